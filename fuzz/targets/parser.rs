//! An answer, how it is read and how it is cut: the cuts may not matter, arguments are JSON objects, no text is lost.
#![no_main]

use libfuzzer_sys::fuzz_target;
use octet_parser::{
    Arguments, CallSyntax, Format, Message, Options, Parser, Piece, ReasoningFormat, ReasoningTags, Start,
    TextTags, Tool, ToolSyntax, parse,
};
use serde_json::{Value, json};

fuzz_target!(|data: &[u8]| {
    // One byte of switches, one of which characters end a piece, then the answer.
    let [switches, cut, answer @ ..] = data else { return };
    let text = String::from_utf8_lossy(answer);
    let syntax = match switches & 3 {
        0 => ToolSyntax::None,
        1 => ToolSyntax::Hermes,
        2 => marks(),
        _ => ToolSyntax::Qwen3Coder,
    };
    // Text has a header where calls are between marks.
    let is_marked = switches & 3 == 2;
    let header = TextTags { open: ">>>all\n".into(), ..TextTags::default() };
    let reasoning = (switches & 4 == 0).then(ReasoningTags::default);
    let format = Format { reasoning, tools: syntax, text: is_marked.then_some(header) };
    let start = Start { in_reasoning: switches & 8 != 0, header: usize::from(switches & 64 != 0) * 3 };
    let whole = switches & 16 != 0;
    let options = Options {
        reasoning: if whole { ReasoningFormat::None } else { ReasoningFormat::Deepseek },
        parallel_tool_calls: switches & 32 == 0,
        untagged_calls: switches & 128 == 0,
    };
    let parameters = json!({"properties": {
        "s": {"type": "string"}, "i": {"type": ["integer", "null"]}, "o": {"$ref": "#/$defs/o"},
    }, "$defs": {"o": {"anyOf": [{"$ref": "#/$defs/o"}, {"type": "object"}]}}});
    let tools = [Tool { name: "f".into(), parameters }, Tool { name: "g".into(), parameters: Value::Null }];

    let want = parse(format.clone(), start, tools.clone(), options, &text);
    let mut got = Message::default();
    let mut parser = Parser::new(format, start, tools, options);
    for piece in text.split_inclusive(|c: char| (c as u32 ^ u32::from(*cut)) % 5 == 0) {
        parser.push(piece, &mut |delta| got.add(delta));
    }
    parser.finish(&mut |delta| got.add(delta));
    assert_eq!(got, want);

    if is_marked {
        return; // arguments are emitted as they arrive, and may be incomplete
    }
    for call in &want.tool_calls {
        let arguments: Value = serde_json::from_str(&call.arguments).expect("arguments are JSON");
        assert!(arguments.is_object());
    }
    if whole && want.tool_calls.is_empty() {
        assert_eq!(want.content, text);
    }
});

/// `>>>NAME` and JSON.
fn marks() -> ToolSyntax {
    let mark = || vec![Piece::Text(">>>".into())];
    ToolSyntax::from(CallSyntax {
        open: mark(),
        call: vec![Piece::Name, Piece::Text("\n".into()), Piece::Arguments(Arguments::Json)],
        separator: Some(mark()),
        close: Vec::new(),
        object: None,
    })
}
