//! Tests that the work of the parser is linear in the answer.

use serde_json::Value;

use super::*;
use crate::reasoning::ReasoningTags;
use crate::text::TextTags;

/// Characters read, of a text that is fed by characters, per character.
fn work(tools: ToolSyntax, in_reasoning: bool, text: &str) -> f64 {
    let tool = Tool { name: "f".into(), parameters: Value::Null };
    let mut format = Format { reasoning: Some(ReasoningTags::default()), tools, text: None };
    if format.tools.trigger() == ">>>" {
        format.text = Some(TextTags { open: ">>>all\n".into(), ..TextTags::default() });
    }
    let mut parser =
        Parser::new(format, Start { in_reasoning, ..Start::default() }, [tool], Options::default());
    for c in text.chars() {
        parser.char(c);
        parser.read_again();
    }
    if parser.call.is_some() {
        parser.end_call();
        parser.read_again();
    }
    parser.steps as f64 / text.chars().count() as f64
}

/// Names and JSON between tags, objects in a list, an object alone, names after a mark that text has, too, and keys and values in tags.
fn native() -> [ToolSyntax; 5] {
    use crate::syntax::{Arguments, CallSyntax, Keys, Piece, Tagged};
    let text = |t: &str| vec![Piece::Text(t.into())];
    let json = || Piece::Arguments(Arguments::Json);
    let keys = || Keys { name: "name".into(), arguments: "arguments".into() };
    let mut object = text("{\"name\": \"");
    object.extend([Piece::Name, Piece::Text("\", \"arguments\": ".into()), json(), Piece::Text("}".into())]);
    let named = CallSyntax {
        open: text("<tool_call>"),
        call: vec![Piece::Name, Piece::Text(">".into()), json(), Piece::Text("</tool_call>".into())],
        separator: Some(text("<tool_call>")),
        close: Vec::new(),
        object: None,
    };
    let list = CallSyntax {
        open: text("<tool_call>["),
        call: object.clone(),
        separator: Some(text(", ")),
        close: text("]</tool_call>"),
        object: Some(keys()),
    };
    let alone = CallSyntax {
        open: Vec::new(),
        call: object,
        separator: None,
        close: Vec::new(),
        object: Some(keys()),
    };
    let marked = CallSyntax {
        open: text(">>>"),
        call: vec![Piece::Name, Piece::Text("\n".into()), json()],
        separator: Some(text(">>>")),
        close: Vec::new(),
        object: None,
    };
    let tags =
        Tagged { open: "<k>".into(), text: "</k><v>".into(), others: Vec::new(), close: "</v>".into() };
    let arguments = Piece::Arguments(Arguments::Tagged(tags));
    let tagged = CallSyntax {
        open: text("<tool_call>"),
        call: vec![Piece::Name, arguments, Piece::Text("</tool_call>".into())],
        separator: Some(text("<tool_call>")),
        close: text("</section>"),
        object: None,
    };
    [named, list, alone, marked, tagged].map(ToolSyntax::from)
}

#[test]
fn work_is_linear() {
    let begun = "<tool_call>\n<function=f>\n<parameter=a>\n";
    let ended = "\n</parameter>\n</function>\n</tool_call>";
    for piece in [
        "<",
        "<tool_call>",
        "<tool_call",
        "<tool_call> \n",
        "<tool_call><function=f",
        "<tool_call><function=f>",
        "<tool_call><function=f><parameter=",
        "<tool_call><function=f></function>",
        "<function=f>",
        "<function=f><parameter=a>",
        "<function=g><parameter=a>",
        begun,
        &begun.replace("=f", "=g"),
        &format!("{begun}<function=x><parameter=y>"),
        &format!("{begun}</parameter>"),
        &format!("{begun}</function></parameter>"),
        &format!("{begun}<function=x><parameter=y>{ended}"),
        ended,
        "<tool_call>{",
        "<tool_call>{\"a\": \"",
        "<tool_call>{\"<tool_call>\":[{",
        "\"<tool_call>{\":",
        "<think>",
        "</think>",
        "<tool_call> </think>",
        "<tool_call>g>{\"",
        "<tool_call>f>{\"<tool_call>f>{",
        "<tool_call>[{\"name\": \"g\", \"arguments\": {\"<tool_call>[{",
        "{\"name\": \"f\", \"arguments\": {",
        "<|channel|>analysis<|message|>",
        "<|message|><|end|><|",
        ">",
        ">>>",
        ">>>al",
        ">>>all\n",
        ">>>f\n{}",
        ">>>f\n{}>>>all",
        ">>>g\n{\"",
        // Without a tag.
        "\nf>{\"a\": ",
        "\nf></tool_call>",
        "\n[{\"name\": \"f\"}",
        "\n[{\"name\": \"f\"}]</tool_call>",
        "\nf<k>",
        "\nf<k>a</k>b</v>",
        "\nf<k>a</k><v>b</v></tool_call>",
        "<tool_call>f<k>a</k><v>b</tool_call>",
        "<tool_call>f<k>a</k><v></tool_call></section>",
        "<tool_call>fa</k><v>b</v>a</k>",
        "<tool_call>\n<function=f>\na",
        "<|channel|>final a ",
        "<|channel|>",
        "\n",
        " ",
    ] {
        let text = piece.repeat(20_000 / piece.len());
        let built_in = [ToolSyntax::Qwen3Coder, ToolSyntax::Hermes, ToolSyntax::None, ToolSyntax::Harmony];
        for syntax in built_in.into_iter().chain(native()) {
            for (in_reasoning, text) in
                [(false, text.clone()), (true, text.clone()), (true, text.clone() + "</think>")]
            {
                let work = work(syntax.clone(), in_reasoning, &text);
                assert!(work < 5.0, "{piece:?} {syntax:?} in reasoning {in_reasoning}: {work} times");
            }
        }
    }
}
