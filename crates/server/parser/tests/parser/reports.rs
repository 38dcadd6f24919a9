//! Public bug reports about other programs' parsers, as answers of our own: what is right here. Each names its report.

use crate::support::{cuts, feed, parser, tools};
use octet_parser::{
    Arguments, CallSyntax, Format, Message, Options, Parser, Piece, ReasoningTags, Start, Tagged, ToolSyntax,
};

/// The message that an answer is, however it is cut.
pub(crate) fn read(new: &dyn Fn() -> Parser, text: &str) -> Message {
    let whole = feed(new(), [text]);
    for pieces in cuts(text) {
        assert_eq!(feed(new(), pieces.iter().copied()), whole, "{pieces:?}");
    }
    whole
}

pub(crate) fn calls(message: &Message) -> Vec<(&str, &str)> {
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

pub(crate) fn text(text: &str) -> Piece {
    Piece::Text(text.into())
}

/// A parser of a syntax derived from a template.
pub(crate) fn native(
    open: &str,
    call: Vec<Piece>,
    separator: &str,
    close: &str,
) -> impl Fn() -> Parser + use<> {
    let syntax = CallSyntax {
        open: vec![text(open)],
        call,
        separator: Some(vec![text(separator)]),
        close: if close.is_empty() { Vec::new() } else { vec![text(close)] },
        object: None,
    };
    let format = Format { reasoning: Some(ReasoningTags::default()), tools: syntax.into(), text: None };
    move || Parser::new(format.clone(), Start::default(), tools(), Options::default())
}

pub(crate) fn tagged(open: &str, middle: &str, close: &str) -> Piece {
    let (open, middle, close) = (open.to_string(), middle.to_string(), close.to_string());
    Piece::Arguments(Arguments::Tagged(Tagged { open, text: middle, others: Vec::new(), close }))
}

pub(crate) fn glm() -> impl Fn() -> Parser + use<> {
    let arguments = tagged("<arg_key>", "</arg_key><arg_value>", "</arg_value>");
    native("<tool_call>", vec![Piece::Name, arguments, text("</tool_call>")], "<tool_call>", "")
}

pub(crate) fn gemma() -> impl Fn() -> Parser + use<> {
    let call = vec![Piece::Name, text("{"), Piece::Arguments(Arguments::Gemma), text("}<tool_call|>")];
    native("<|tool_call>call:", call, "<|tool_call>call:", "")
}

pub(crate) fn kimi() -> impl Fn() -> Parser + use<> {
    let call = vec![
        Piece::Name,
        text(":"),
        Piece::Number(0),
        text("<|tool_call_argument_begin|>"),
        Piece::Arguments(Arguments::Json),
        text("<|tool_call_end|>"),
    ];
    let begin = "<|tool_call_begin|>functions.";
    native(&format!("<|tool_calls_section_begin|>{begin}"), call, begin, "<|tool_calls_section_end|>")
}

fn deepseek() -> impl Fn() -> Parser + use<> {
    let call =
        vec![Piece::Name, text("\n```json\n"), Piece::Arguments(Arguments::Json), text("\n```<|call_end|>")];
    native(
        "<|calls_begin|><|call_begin|>function<|sep|>",
        call,
        "\n<|call_begin|>function<|sep|>",
        "<|calls_end|>",
    )
}

pub(crate) const ROME: (&str, &str) = ("get_weather", "{\"city\": \"Rome\"}");

/// What an answer is: its calls and its text.
pub(crate) fn is(new: &dyn Fn() -> Parser, answer: &str, want: &[(&str, &str)], content: &str) {
    let message = read(new, answer);
    assert_eq!((calls(&message).as_slice(), message.content.as_str()), (want, content), "{answer}");
}

/// Ollama #13820, Continue #10896: GLM's calls without `<arg_key>` or `<arg_value>` failed the answer. Colibri #505: without the end of the
/// last tag they were lost.
#[test]
fn keys_and_values_without_their_opening_tags_are_read() {
    let new = glm();
    for call in [
        "<tool_call>get_weather<arg_key>city</arg_key>Rome</arg_value></tool_call>",
        "<tool_call>get_weathercity</arg_key><arg_value>Rome</arg_value></tool_call>",
        "<tool_call>get_weather<arg_key>city<arg_value>Rome</arg_value></tool_call>",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n</tool_cal",
        "get_weather<arg_key>city</arg_key><arg_value>Rome</arg_value></tool_call>",
    ] {
        is(&new, call, &[ROME], "");
    }
    let two = "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Rome</arg_value>days</arg_key><arg_value>2</arg_value></tool_call>";
    is(&new, two, &[("get_weather", "{\"city\": \"Rome\", \"days\": 2}")], "");
    // A name that is none, and a mention of the tag.
    is(&new, "<tool_call>get_weatherx</arg_key>", &[], "<tool_call>get_weatherx</arg_key>");
    is(
        &new,
        "Use <tool_call> to call.\nget_weather is a tool.",
        &[],
        "Use <tool_call> to call.\nget_weather is a tool.",
    );
}

/// Ollama #15315: Gemma 4 wrote a text between backticks, and the call was lost. vLLM #41967: several calls in one piece.
#[test]
fn gemma_may_quote_otherwise() {
    let new = gemma();
    let write = |content: &str| {
        format!("<|tool_call>call:write_file{{path:<|\"|>a.css<|\"|>,content:{content}}}<tool_call|>")
    };
    let want = "{\"path\":\"a.css\",\"content\":\".a { b: 'c', d }\"}";
    for quoted in ["`.a { b: 'c', d }`", "\".a { b: 'c', d }\"", "<|\"|>.a { b: 'c', d }<|\"|>"] {
        is(&new, &write(quoted), &[("write_file", want)], "");
        is(&new, &(write(quoted) + &write(quoted)), &[("write_file", want), ("write_file", want)], "");
    }
    // Without the end of the first, or the beginning of the second.
    let rome = "call:get_weather{city:<|\"|>Rome<|\"|>}";
    let spelled = ("get_weather", "{\"city\":\"Rome\"}");
    is(&new, &format!("<|tool_call>{rome}<|tool_call>{rome}<tool_call|>"), &[spelled, spelled], "");
    is(&new, &format!("<|tool_call>{rome}<tool_call|>{rome}<tool_call|>"), &[spelled, spelled], "");
}

/// vLLM #47901: the arguments of a call behind one without arguments were lost. SGLang #23363: long arguments. vLLM #49316: streamed
/// numbers were not of the schema's type.
#[test]
fn calls_behind_empty_ones_keep_their_arguments() {
    let new = kimi();
    let call = |name: &str, arguments: &str| {
        format!(
            "<|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"
        )
    };
    let long = format!("{{\"city\": \"{}\"}}", "Rome ".repeat(400));
    let section = |calls: &str| format!("<|tool_calls_section_begin|>{calls}<|tool_calls_section_end|>");
    let answer = section(&(call("now", "{}") + &call("get_weather", "{\"days\": 2.0}")));
    is(&new, &answer, &[("now", "{}"), ("get_weather", "{\"days\": 2}")], "");
    let answer = section(&(call("now", "{}") + &call("get_weather", &long)));
    assert_eq!(calls(&feed(new(), [answer.as_str()])), [("now", "{}"), ("get_weather", long.as_str())]);
    // vLLM #53246: reasoning without its end, then calls.
    let answer = format!("<think>Let me look.{}", section(&call("get_weather", ROME.1)));
    let message = read(&new, &answer);
    assert_eq!((calls(&message), message.reasoning.as_str()), (vec![ROME], "Let me look."));
}

/// Unsloth #5624: a malformed call without its JSON took the next one's.
#[test]
fn a_malformed_call_leaves_the_next_one() {
    let new = deepseek();
    let good = "<|call_begin|>function<|sep|>get_weather\n```json\n{\"city\": \"Rome\"}\n```<|call_end|>";
    let bad = "<|call_begin|>function<|sep|>now";
    is(&new, &format!("<|calls_begin|>{bad}{good}<|calls_end|>"), &[ROME], &format!("<|calls_begin|>{bad}"));
}

/// llama.cpp #26763: without the newline before `</parameter>` a value took in the calls behind it. llama.cpp #20260: text before
/// the call. Ollama #16810, #17276: `</parameter>` without its beginning, and a value without it.
#[test]
fn damaged_parameters_are_read() {
    let new = || parser(ToolSyntax::Qwen3Coder, false, Options::default());
    let call = |inner: &str| format!("<tool_call>\n<function=get_weather>\n{inner}</function>\n</tool_call>");
    let whole = "<parameter=city>\nRome\n</parameter>\n";
    for inner in ["<parameter=city>\nRome</parameter>\n", "<parameter=city>\nRome\n", "Rome\n</parameter>\n"]
    {
        let answer = format!("I look.\n\n{}\n{}", call(inner), call(whole));
        is(&new, &answer, &[ROME, ROME], "I look.");
    }
    // Claude Code #84362: a value that ends with its own name took in the next parameter.
    let wrong = "<parameter=path>\na.txt\n</path>\n<parameter=content>\nhi\n</parameter>\n";
    let answer = format!("<tool_call>\n<function=write_file>\n{wrong}</function>\n</tool_call>");
    is(&new, &answer, &[("write_file", "{\"path\": \"a.txt\", \"content\": \"hi\"}")], "");
}

/// vLLM #39697: reasoning that the server ends is ended once more by the model.
#[test]
fn reasoning_may_end_twice() {
    let new = || parser(ToolSyntax::Qwen3Coder, true, Options::default());
    let message = read(&new, "Hm.\n</think>\n\n</think>\n\nYes.");
    assert_eq!((message.reasoning.as_str(), message.content.as_str()), ("Hm.", "Yes."));
}

/// llama.cpp #27720, vLLM #43408 and #50690, Dynamo #237: damaged headers lost the answer, or failed it.
#[test]
fn damaged_headers_lose_nothing() {
    let new = || parser(ToolSyntax::Harmony, false, Options::default());
    let rest = "<|end|><|start|>assistant<|channel|>final<|message|>Yes.";
    for (head, content) in [
        ("<|channel|>??", "??Yes."),
        ("<|channel|>commentary 2?", "2?Yes."),
        ("<|channel|>commentary to=assistant<|channel|>commentary", "Yes."),
        ("<|channel|><|message|>Hm. ", "Hm. Yes."),
        ("<|channel|>finalx<|message|>Hm. ", "Hm. Yes."),
    ] {
        is(&new, &format!("{head}{rest}"), &[], content);
    }
    is(&new, "<|start|><|start|>assistant<|channel|>final<|message|>Yes.", &[], "Yes.");
    is(&new, "<|channel|>final<|message|>Yes.<|end|><|return|>", &[], "Yes.");
}
