//! Later public bug reports about other programs' parsers, as answers of our own. Each names its report.

use crate::reports::{ROME, calls, gemma, glm, is, native, read, tagged, text};
use crate::support::{feed, parser, tools};
use octet_parser::{
    Arguments, CallSyntax, Format, JsonType, Nested, Options, Parser, Piece, ReasoningTags, Start, Tagged,
    TextTags, ToolSyntax,
};

/// SGLang #39240: Gemma left out the first mark of a text. vLLM #51284: it quoted like JSON or Python within lists. Ollama #17882: it
/// wrote `=` behind a key. vLLM #44715: marks also stand for a text's own quotation marks. omlx #1846: round brackets, as in Python.
#[test]
fn gemma_may_mark_texts_otherwise() {
    let new = gemma();
    let call = |arguments: &str| format!("<|tool_call>call:write_file{{{arguments}}}<tool_call|>");
    for (arguments, want) in [
        ("path:a b.txt<|\"|>", r#"{"path":"a b.txt"}"#),
        ("path:a, b.txt<|\"|>,mode:7", r#"{"path":"a, b.txt","mode":7}"#),
        ("tags:[\"a\"],mode:7", r#"{"tags":["a"],"mode":7}"#),
        ("tags:['a','b c']", r#"{"tags":["a","b c"]}"#),
        ("meta:{\"kind\": \"fast\"}", r#"{"meta":{"kind":"fast"}}"#),
        ("path='a.txt',content=\"b\"", r#"{"path":"a.txt","content":"b"}"#),
        (
            "content:<|\"|>sql(<|\"|><|\"|><|\"|> SELECT 1 <|\"|><|\"|><|\"|>).df()<|\"|>,tags:[<|\"|>a<|\"|>]",
            r#"{"content":"sql(\"\"\" SELECT 1 \"\"\").df()","tags":["a"]}"#,
        ),
        ("path:<|\"|><|\"|>a<|\"|>,content:<|\"|>b<|\"|><|\"|>", r#"{"path":"a","content":"b"}"#),
        ("path:<|\"|>a<|\"|>\n<|\"|>,mode:7", r#"{"path":"a","mode":7}"#),
        ("content:<|\"|>say(<|\"|>a, b<|\"|>)<|\"|>,mode:7", r#"{"content":"say(\"a, b\")","mode":7}"#),
    ] {
        is(&new, &call(arguments), &[("write_file", want)], "");
    }
    let round = "<|tool_call>call:write_file(path=\"a.txt\", content=<|\"|>b<|\"|>)<tool_call|>";
    is(&new, round, &[("write_file", r#"{"path":"a.txt","content":"b"}"#)], "");
    // Where a text ends is not clear.
    let unclear = call("tags:[<|\"|>a,<|\"|>b<|\"|>]");
    is(&new, &unclear, &[], &unclear);
}

/// Fireworks' SDK #119: a closing tag behind the name of a GLM call without arguments was taken for a part of the name. vLLM #49248,
/// #47190: without `<arg_value>` or `<arg_key>` the arguments were lost.
#[test]
fn a_closing_tag_without_an_argument_is_none() {
    let new = glm();
    for call in
        ["<tool_call>now</arg_value></tool_call>", "<tool_call>now</arg_value>", "<tool_call>now</tool_call>"]
    {
        is(&new, call, &[("now", "{}")], "");
    }
    let two = "<tool_call>now</arg_value></tool_call><tool_call>get_weather city</arg_key><arg_value>Rome</arg_value></tool_call>";
    is(&new, two, &[("now", "{}"), ROME], "");
}

const MARK: &str = "]<]minimax[>[";

fn minimax() -> impl Fn() -> Parser {
    let marked = |t: &str| text(&t.replace('@', MARK));
    let arguments = Arguments::Nested(Nested { mark: MARK.into(), item: "item".into() });
    let syntax = CallSyntax {
        open: vec![marked("@<tool_call>\n@<invoke name=\"")],
        call: vec![Piece::Name, marked("\">"), Piece::Arguments(arguments), marked("@</invoke>\n")],
        separator: Some(vec![marked("@<invoke name=\"")]),
        close: vec![marked("@</tool_call>")],
        object: None,
    };
    let reasoning = ReasoningTags { open: "<mm:think>".into(), close: "</mm:think>".into() };
    let format = Format { reasoning: Some(reasoning), tools: syntax.into(), text: None };
    move || Parser::new(format.clone(), Start::default(), tools(), Options::default()).after_reasoning()
}

/// vLLM #51073: MiniMax M3 leaves out the opening tag of a first argument. Dynamo's crates #83: it leaves out the section's. vLLM-Ascend
/// #12815: keys may have hyphens. smg #2447: reasoning that the prompt has ended is ended again.
#[test]
fn minimax_leaves_out_tags() {
    let new = minimax();
    let is = |answer: &str, want: &[(&str, &str)], content: &str| {
        is(&new, &answer.replace('@', MARK), want, content)
    };
    let file = ("write_file", r#"{"path": "a.txt", "content": "Hello"}"#);
    let first = "@<invoke name=\"write_file\">@a.txt@</path>@<content>Hello@</content>@</invoke>\n";
    is(&format!("@<tool_call>\n{first}@</tool_call>"), &[file], "");
    is(&format!("@<tool_call>\n{first}{first}@</tool_call>"), &[file, file], "");
    let rome = "@<invoke name=\"get_weather\">@<city>Rome@</city>@</invoke>\n";
    is(&format!("</mm:think></mm:think>@<tool_call>\n{rome}@</tool_call>"), &[ROME], "");
    is("</mm:think>Hello.", &[], "Hello.");
    is(&format!("@<tool_call>\n{rome}"), &[ROME], "");
    is(
        "@<tool_call>\n@<invoke name=\"write_file\">@<-A>3@</-A>@</invoke>\n@</tool_call>",
        &[("write_file", r#"{"-A": 3}"#)],
        "",
    );
    // A value without a name at its end, either.
    let unclear = "@<tool_call>\n@<invoke name=\"write_file\">@a.txt@</invoke>\n@</tool_call>";
    is(unclear, &[], &unclear.replace('@', MARK));
}

fn dsml() -> impl Fn() -> Parser {
    let others = [JsonType::Number, JsonType::Boolean, JsonType::Null, JsonType::Array, JsonType::Object];
    let arguments = Piece::Arguments(Arguments::Tagged(Tagged {
        open: "<｜DSML｜parameter name=\"".into(),
        text: "\" string=\"true\">".into(),
        others: others.map(|of| (of, "\" string=\"false\">".into())).into(),
        close: "</｜DSML｜parameter>\n".into(),
    }));
    let call = vec![Piece::Name, text("\">\n"), arguments, text("</｜DSML｜invoke>\n")];
    native(
        "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"",
        call,
        "<｜DSML｜invoke name=\"",
        "</｜DSML｜tool_calls>",
    )
}

/// SGLang #40236: DSML calls without their section's beginning or end, and beside a malformed one, were text.
#[test]
fn calls_without_their_section_are_read() {
    let new = dsml();
    let rome = "<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Rome</｜DSML｜parameter>\n</｜DSML｜invoke>\n";
    is(&new, &format!("<｜DSML｜tool_calls>\n{rome}</｜DSML｜tool_calls>"), &[ROME], "");
    is(&new, &format!("<｜DSML｜tool_calls>\n{rome}{rome}"), &[ROME, ROME], "");
    is(&new, rome, &[ROME], "");
    is(&new, &format!("I look.\n\n{rome}</｜DSML｜tool_calls>"), &[ROME], "I look.");
    let other = rome.replace("get_weather", "other");
    let message = read(&new, &format!("<｜DSML｜tool_calls>\n{other}{rome}</｜DSML｜tool_calls>"));
    assert_eq!(calls(&message), [ROME]);
}

fn minimax_2() -> impl Fn() -> Parser {
    let arguments = tagged("<parameter name=\"", "\">", "</parameter>\n");
    let call = vec![Piece::Name, text("\">\n"), arguments, text("</invoke>\n")];
    native("<minimax:tool_call>\n<invoke name=\"", call, "<invoke name=\"", "</minimax:tool_call>")
}

/// Dynamo's crates #245: the tag that ends a section, in a text, lost the call.
#[test]
fn a_text_may_hold_the_end_of_a_section() {
    let new = minimax_2();
    let call = |city: &str| {
        format!(
            "<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">{city}</parameter>\n</invoke>\n</minimax:tool_call>"
        )
    };
    let want = r#"{"city": "Montréal </minimax:tool_call> café"}"#;
    is(&new, &call("Montréal </minimax:tool_call> café"), &[("get_weather", want)], "");
}

/// SGLang #38894: Qwen3-Coder wrote `<function bash>`, without `=`. vLLM #57699: a last parameter without its end was lost. SGLang #38624:
/// an example of a call of another function was a call.
#[test]
fn functions_and_parameters_may_lack_their_sign() {
    let new = || parser(ToolSyntax::Qwen3Coder, false, Options::default());
    let value = "\nRome\n</parameter>\n";
    for (function, parameter) in [
        ("<function get_weather>", "<parameter=city>"),
        ("<function=get_weather>", "<parameter city>"),
        ("<function name=\"get_weather\">", "<parameter name=\"city\">"),
    ] {
        let call = format!("<tool_call>\n{function}\n{parameter}{value}</function>\n</tool_call>");
        is(&new, &call, &[ROME], "");
        let days =
            call.replace(value, &format!("{value}{}\n2\n</parameter>\n", parameter.replace("city", "days")));
        is(&new, &days, &[("get_weather", "{\"city\": \"Rome\", \"days\": 2}")], "");
    }
    let unclosed =
        "<tool_call>\n<function=write_file>\n<parameter=meta>\n{\"on\": true}\n</function>\n</tool_call>";
    is(&new, unclosed, &[("write_file", "{\"meta\": {\"on\": true}}")], "");
    let text = "<parameter=content>\nA <parameter is\n</parameter>\n<parameter is\n</parameter>\n";
    let call = format!("<tool_call>\n<function=write_file>\n{text}</function>\n</tool_call>");
    let want = "{\"content\": \"A <parameter is\\n</parameter>\\n<parameter is\"}";
    is(&new, &call, &[("write_file", want)], "");
    let example = "So:\n<tool_call>\n<function=run_command>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>";
    is(&new, example, &[], example);
}

/// Kimi K3's syntax.
fn frames() -> Format {
    let others = [JsonType::Number, JsonType::Boolean, JsonType::Null, JsonType::Array, JsonType::Object];
    let names = ["number", "boolean", "null", "array", "object"];
    let middle = |of: &str| format!("\" type=\"{of}\"<|sep|>");
    let arguments = Piece::Arguments(Arguments::Tagged(Tagged {
        open: "<|open|>argument key=\"".into(),
        text: middle("string"),
        others: others.into_iter().zip(names.map(middle)).collect(),
        close: "<|close|>argument<|sep|>".into(),
    }));
    let index = [text("\" index=\""), Piece::Number(1), text("\"<|sep|>")];
    let call = [text("<|open|>call tool=\""), Piece::Name].into_iter().chain(index);
    let calls = CallSyntax {
        open: vec![text("<|open|>tools<|sep|>")],
        call: call.chain([arguments, text("<|close|>call<|sep|>")]).collect(),
        separator: Some(Vec::new()),
        close: vec![text("<|close|>tools<|sep|>")],
        object: None,
    };
    let tags = TextTags {
        open: "<|open|>response<|sep|>".into(),
        close: "<|close|>response<|sep|>".into(),
        end: "<|close|>message<|sep|>".into(),
    };
    let reasoning =
        ReasoningTags { open: "<|open|>think<|sep|>".into(), close: "<|close|>think<|sep|>".into() };
    Format { reasoning: Some(reasoning), tools: calls.into(), text: Some(tags) }
}

/// What is no frame comes out as it was written.
#[test]
fn unknown_frames_are_text() {
    for text in
        ["<|open|>foo<|open|>", "<|close|>foo<|open|>", "<|open|>foo<|sep|>bar", "<|close|>foo<|sep|>"]
    {
        let parser = Parser::new(frames(), Start::default(), tools(), Options::default());
        assert_eq!(feed(parser, [text]).content, text);
    }
}

/// Any one of Kimi K3's tokens may be missing or come twice. oh-my-pi #8495: two between sections were lost.
#[test]
fn tokens_of_frames_may_be_missing_or_repeated() {
    let format = frames();
    let new = || Parser::new(format.clone(), Start::default(), tools(), Options::default());
    let argument = |key: &str, of: &str, value: &str| {
        format!("<|open|>argument key=\"{key}\" type=\"{of}\"<|sep|>{value}<|close|>argument<|sep|>")
    };
    let inner = argument("city", "string", "Rome, the argument") + &argument("days", "number", "2");
    let call =
        |n: u32| format!("<|open|>call tool=\"get_weather\" index=\"{n}\"<|sep|>{inner}<|close|>call<|sep|>");
    let answer = format!(
        "<|open|>think<|sep|>I think so.<|close|>think<|sep|><|open|>response<|sep|>A response.<|close|>response<|sep|>\
         <|open|>tools<|sep|>{}{}<|close|>tools<|sep|><|close|>message<|sep|>",
        call(1),
        call(2)
    );
    let whole = read(&new, &answer);
    let rome = ("get_weather", r#"{"city": "Rome, the argument", "days": 2}"#);
    assert_eq!((whole.reasoning.as_str(), whole.content.as_str()), ("I think so.", "A response."));
    assert_eq!(calls(&whole), [rome, rome]);
    for token in ["<|open|>", "<|close|>", "<|sep|>"] {
        for (at, _) in answer.match_indices(token) {
            let (before, behind) = (&answer[..at], &answer[at + token.len()..]);
            for instead in [String::new(), token.repeat(2), format!("{token}\n{token}")] {
                let text = format!("{before}{instead}{behind}");
                assert_eq!(feed(new(), [text.as_str()]), whole, "{text}");
                assert_eq!(feed(new(), text.split_inclusive('|')), whole, "{text}");
            }
        }
    }
    let rest = "<|open|>argument key=\"city\" type=\"string\"<|sep|>Rome<|close|>argument<|sep|><|close|>call<|sep|>";
    let lost = format!(
        "<|open|>toolscall tool=\"get_weather\" index=\"1\"<|sep|>{rest}<|close|>toolsmessage<|sep|>"
    );
    is(&new, &lost, &[ROME], "");
    // What is no frame stays as it is.
    for (text, content) in [
        ("Hi.", "Hi."),
        ("tools are", "tools are"),
        ("<|open|>response<|sep|>a <|sep|> b<|close|>response<|sep|>", "a <|sep|> b"),
        ("<|open|>response<|sep|>a <|op", "a <|op"),
        ("<|open|>response<|sep|>I think", "I think"),
    ] {
        is(&new, text, &[], content);
    }
}

/// A call without any tag is one if it is all of an answer.
#[test]
fn a_whole_answer_may_be_a_call() {
    let new = || parser(ToolSyntax::Hermes, false, Options::default());
    let rome = "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}";
    is(&new, rome, &[ROME], "");
    is(&new, &format!("\n{rome}\n"), &[ROME], "");
    for text in [
        format!("Write {rome}"),
        format!("{rome} calls it."),
        rome.replace("get_weather", "other"),
        rome.replace("}}", "}, \"id\": 1}"),
        format!("[{rome}]"),
        "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}".into(),
    ] {
        is(&new, &text, &[], &text);
    }
    let call = vec![Piece::Name, text("("), Piece::Arguments(Arguments::Python), text(")")];
    let new = native("<|tool_call_start|>[", call, ", ", "]<|tool_call_end|>");
    is(&new, "[get_weather(city='Rome')]", &[("get_weather", "{\"city\":\"Rome\"}")], "");
    for text in [
        "[get_weather(city='Rome')] is a call.",
        "[get_weather(city)]",
        "[get_weather]",
        "Use [get_weather(city='Rome')]",
    ] {
        is(&new, text, &[], text);
    }
}

/// A format that is enforced on the text may look like a call: without a tag it is text.
#[test]
fn text_in_an_enforced_format_is_no_call() {
    let options = Options { untagged_calls: false, ..Options::default() };
    let rome = "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}";
    let new = || parser(ToolSyntax::Hermes, false, options);
    is(&new, rome, &[], rome);
    is(&new, &format!("<tool_call>\n{rome}\n</tool_call>"), &[ROME], "");
}
