//! Public bug reports about other programs' parsers, as answers of our own: what is right here. Each names its report.

use crate::support::{cuts, feed, parser, tools};
use octet_parser::{Arguments, CallSyntax, Format, Message, Options, Parser, Piece, Start, ToolSyntax};

/// The message that an answer is, however it is cut.
fn read(new: &dyn Fn() -> Parser, text: &str) -> Message {
    let whole = feed(new(), [text]);
    for pieces in cuts(text) {
        assert_eq!(feed(new(), pieces.iter().copied()), whole, "{pieces:?}");
    }
    whole
}

fn calls(message: &Message) -> Vec<(&str, &str)> {
    message.tool_calls.iter().map(|c| (c.name.as_str(), c.arguments.as_str())).collect()
}

/// vLLM #28806: a streamed call without arguments lost its `{}`.
#[test]
fn a_call_without_arguments_has_an_empty_object() {
    let new = || parser(ToolSyntax::Hermes, false, Options::default());
    for text in [
        "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": \"now\"}</tool_call>",
    ] {
        assert_eq!(calls(&read(&new, text)), [("now", "{}")]);
    }
}

/// vLLM #13622, #18220: a streamed first argument that is no text was cut, or lost.
#[test]
fn numbers_are_whole_however_they_are_cut() {
    let text = |t: &str| Piece::Text(t.into());
    let syntax = CallSyntax {
        open: vec![text("[TOOL_CALLS]")],
        call: vec![Piece::Name, text("[ARGS]"), Piece::Arguments(Arguments::Json)],
        separator: Some(vec![text("[TOOL_CALLS]")]),
        close: Vec::new(),
        object: None,
    };
    let format = Format { reasoning: None, tools: syntax.into(), text: None };
    let new = || Parser::new(format.clone(), Start::default(), tools(), Options::default());
    let answer = "[TOOL_CALLS]get_weather[ARGS]{\"days\": 12, \"city\": \"A\"}[TOOL_CALLS]get_weather[ARGS]{\"days\":12.0}";
    let message = read(&new, answer);
    let want = [("get_weather", "{\"days\": 12, \"city\": \"A\"}"), ("get_weather", "{\"days\":12}")];
    assert_eq!(calls(&message), want);
}

/// Ollama #17742, #17354: a call without `<tool_call>`, and the closing tag that is left over, were text.
#[test]
fn a_function_without_its_wrapper_is_a_call() {
    let new = || parser(ToolSyntax::Qwen3Coder, false, Options::default());
    let bare = "<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n";
    for text in
        [bare.to_string(), format!("{bare}</tool_call>\n"), format!("{bare}</tool_call>\n</tool_call>")]
    {
        let message = read(&new, &text);
        assert_eq!(
            (calls(&message), message.content.as_str()),
            (vec![("get_weather", "{\"city\": \"Rome\"}")], "")
        );
    }
    let other = "<function=other>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>";
    assert_eq!(read(&new, other).content, other);
}

/// Ollama #17274: the text of a call that could not be read was lost, and the answer was empty.
#[test]
fn a_call_that_cannot_be_read_is_text() {
    let new = || parser(ToolSyntax::Hermes, false, Options::default());
    let text =
        "<tool_call>\n{\"name\": \"write_file\", \"arguments\": {\"tags\": [\"a\", \"b\"}}\n</tool_call>";
    let message = read(&new, text);
    assert_eq!((calls(&message), message.content.as_str()), (vec![], text));
}

/// Ollama #12884: a call of gpt-oss with lines of code failed the whole request.
#[test]
fn arguments_of_code_are_as_written() {
    let new = || parser(ToolSyntax::Harmony, false, Options::default());
    let code = "{\"path\": \"a.ts\", \"content\": \"/** A {b} */\\nexport const P = [{\\\"id\\\": 1}]; // <|x|>\\n\"}";
    let head = "<|channel|>commentary to=functions.write_file <|constrain|>json<|message|>";
    assert_eq!(calls(&read(&new, &format!("{head}{code}<|call|>"))), [("write_file", code)]);
    // What is no JSON comes as written, too: the client sees what the model wrote.
    assert_eq!(
        calls(&read(&new, &format!("{head}{code}}}<|call|>"))),
        [("write_file", &*format!("{code}}}"))]
    );
}
