//! Answers in which text has a header, as calls have: after a mark, as messages to recipients, and as sections that end.

use crate::support::{cuts, feed, tools};
use octet_parser::{
    Arguments, CallSyntax, JsonType, Message, Options, Parser, Piece, ReasoningFormat, ReasoningTags, Start,
    Tagged, TextTags, ToolCall,
};
use proptest::prelude::*;

fn text(text: &str) -> Piece {
    Piece::Text(text.into())
}

fn tagged(open: &str, middle: &str, close: &str) -> Piece {
    let others = [JsonType::Number, JsonType::Boolean, JsonType::Null, JsonType::Array, JsonType::Object];
    Piece::Arguments(Arguments::Tagged(Tagged {
        open: open.into(),
        text: middle.into(),
        others: others.map(|t| (t, middle.to_string())).into(),
        close: close.into(),
    }))
}

fn syntax(open: &str, call: Vec<Piece>, separator: &str, close: &str) -> CallSyntax {
    let close = Some(text(close)).filter(|c| *c != text(""));
    CallSyntax {
        open: vec![text(open)],
        call,
        separator: Some(vec![text(separator)]),
        close: close.into_iter().collect(),
        object: None,
    }
}

/// How a family answers, and how its prompts end.
struct Family {
    format: octet_parser::Format,
    prompt: &'static str,
}

fn format(
    calls: CallSyntax,
    reasoning: Option<ReasoningTags>,
    [open, close, end]: [&str; 3],
) -> octet_parser::Format {
    let header = TextTags { open: open.into(), close: close.into(), end: end.into() };
    octet_parser::Format { reasoning, tools: calls.into(), text: Some(header) }
}

/// `>>>all` and `>>>NAME`, each on a line.
fn marks() -> Family {
    let call = vec![Piece::Name, text("\n"), Piece::Arguments(Arguments::Json)];
    Family {
        format: format(syntax(">>>", call, ">>>", ""), None, [">>>all\n", "", ""]),
        prompt: "user\n\n>>>",
    }
}

/// Messages to the model itself, to the user, and to functions.
fn recipients() -> Family {
    let call = vec![
        Piece::Name,
        text("<|message|><call name=\""),
        Piece::Name,
        text("\">"),
        tagged("<arg name=\"", "\">", "</arg>"),
        text("</call>"),
    ];
    let thought = ReasoningTags { open: "<|start|>bot to=self<|message|>".into(), close: "<|eom|>".into() };
    let calls = syntax("<|start|>bot to=", call, "<|eom|><|start|>bot to=", "");
    Family {
        format: format(calls, Some(thought), ["<|start|>bot to=user<|message|>", "", ""]),
        prompt: "<|start|>user<|message|>hi<|eot|><|start|>bot",
    }
}

/// Sections, each with an end.
fn sections() -> Family {
    let call = vec![
        text("<|open|>call tool=\""),
        Piece::Name,
        text("\"<|sep|>"),
        tagged("<|open|>arg key=\"", "\"<|sep|>", "<|close|>arg<|sep|>"),
        text("<|close|>call<|sep|>"),
    ];
    let thought =
        ReasoningTags { open: "<|open|>think<|sep|>".into(), close: "<|close|>think<|sep|>".into() };
    let calls = syntax("<|open|>tools<|sep|>", call, "", "<|close|>tools<|sep|>");
    let tags = ["<|open|>say<|sep|>", "<|close|>say<|sep|>", "<|close|>message<|sep|>"];
    Family {
        format: format(calls, Some(thought), tags),
        prompt: "<|open|>message role=\"bot\"<|sep|><|open|>think<|sep|>",
    }
}

impl Family {
    fn parser(&self, options: Options) -> Parser {
        Parser::new(self.format.clone(), self.format.start(self.prompt), tools(), options)
    }

    fn read(&self, text: &str) -> Message {
        let whole = feed(self.parser(Options::default()), [text]);
        for pieces in cuts(text) {
            let got = feed(self.parser(Options::default()), pieces.iter().copied());
            assert_eq!(got, whole, "{pieces:?}");
        }
        whole
    }
}

fn message(reasoning: &str, content: &str, calls: &[(&str, &str)]) -> Message {
    let call = |(index, (name, arguments)): (usize, &(&str, &str))| ToolCall {
        index,
        name: name.to_string(),
        arguments: arguments.to_string(),
    };
    Message {
        reasoning: reasoning.into(),
        content: content.into(),
        tool_calls: calls.iter().enumerate().map(call).collect(),
    }
}

const ROME: (&str, &str) = ("get_weather", r#"{"city": "Rome"}"#);
const NOW: (&str, &str) = ("now", "{}");

#[test]
fn a_prompts_end_is_the_beginning_of_the_first_header() {
    let header = |family: &Family| family.format.start(family.prompt);
    assert_eq!(header(&marks()), Start { in_reasoning: false, header: 3 });
    assert_eq!(header(&recipients()), Start { in_reasoning: false, header: "<|start|>bot".len() });
    assert_eq!(header(&sections()), Start { in_reasoning: true, header: 0 });
    // A prompt that continues an answer is past the header.
    let mut continued = marks();
    continued.prompt = ">>>all\nWell";
    assert_eq!(continued.read(", yes."), message("", ", yes.", &[]));
}

#[test]
fn marks_before_text_and_calls() {
    let family = marks();
    for (text, content, calls) in [
        ("all\nHello.", "Hello.", &[][..]),
        ("all\n Hello.\n\n", " Hello.\n\n", &[]),
        ("get_weather\n{\"city\": \"Rome\"}", "", &[ROME]),
        ("get_weather\n{\"city\": \"Rome\"}>>>now\n{}", "", &[ROME, NOW]),
        ("all\nSure.\n>>>get_weather\n{\"city\": \"Rome\"}>>>now\n{}\n", "Sure.\n", &[ROME, NOW]),
        ("all\nA>>>now\n{}>>>all\nB", "AB", &[NOW]),
        ("all\nType\n>>> print(1)\n>>>> and >>>> x", "Type\n>>> print(1)\n>>>> and >>>> x", &[]),
        ("all\n>>>get_time\n{}", ">>>get_time\n{}", &[]),
        // A header behind a character with which it could begin.
        ("all\n<b>>>>all\nB", "<b>B", &[]),
        ("all\n<b>>>>now\n{}", "<b>", &[NOW]),
        // The header twice, half of it, and none.
        (">>>all\nHi", "Hi", &[]),
        ("all", "", &[]),
        ("all\n", "", &[]),
        ("", "", &[]),
        ("allot\n{}", "allot\n{}", &[]),
        ("Hello.", "Hello.", &[]),
        ("get_time\n{}", "get_time\n{}", &[]),
    ] {
        assert_eq!(family.read(text), message("", content, calls), "{text:?}");
    }
    // Arguments are emitted as they arrive, before they are complete.
    assert_eq!(family.read("now\n{\"a\": ").tool_calls[0].arguments, "{\"a\": ");
    // Without tools calls are text, and text has its header nevertheless.
    for (text, content) in [("all\nHi", "Hi"), ("now\n{}", "now\n{}")] {
        let parser =
            Parser::new(family.format.clone(), family.format.start(family.prompt), [], Options::default());
        assert_eq!(feed(parser, [text]).content, content);
    }
    let one = Options { parallel_tool_calls: false, ..Options::default() };
    let got = feed(family.parser(one), ["now\n{}>>>now\n{}"]);
    assert_eq!(got.tool_calls.len(), 1);
}

#[test]
fn messages_to_recipients() {
    let family = recipients();
    let rome = "get_weather<|message|><call name=\"get_weather\"><arg name=\"city\">Rome</arg></call>";
    for (text, want) in [
        (" to=user<|message|>Hi <b>.".to_string(), message("", "Hi <b>.", &[])),
        (
            " to=self<|message|>Hm.\n<|eom|><|start|>bot to=user<|message|>Hi.".into(),
            message("Hm.\n", "Hi.", &[]),
        ),
        (format!(" to={rome}"), message("", "", &[ROME])),
        (
            format!(" to=self<|message|>Hm.<|eom|><|start|>bot to={rome}<|eom|><|start|>bot to={rome}"),
            message("Hm.", "", &[ROME, ROME]),
        ),
        (
            format!(" to=user<|message|>Let me see.<|eom|><|start|>bot to={rome}"),
            message("", "Let me see.", &[ROME]),
        ),
        (format!(" to={rome}<|eom|><|start|>bot to=user<|message|>So."), message("", "So.", &[ROME])),
        ("Hi.".into(), message("", "Hi.", &[])),
    ] {
        assert_eq!(family.read(&text), want, "{text:?}");
    }
}

#[test]
fn sections_that_end() {
    let family = sections();
    let rome = "<|open|>call tool=\"get_weather\"<|sep|><|open|>arg key=\"city\"<|sep|>Rome<|close|>arg<|sep|>\
        <|close|>call<|sep|>";
    let end = "<|close|>message<|sep|>";
    let said = |text: &str| format!("Hm.<|close|>think<|sep|><|open|>say<|sep|>{text}<|close|>say<|sep|>");
    for (text, want) in [
        (format!("{}{end}", said("Hi.")), message("Hm.", "Hi.", &[])),
        (
            format!("{}<|open|>tools<|sep|>{rome}{rome}<|close|>tools<|sep|>{end}", said("")),
            message("Hm.", "", &[ROME, ROME]),
        ),
        (
            format!("{}<|open|>tools<|sep|>{rome}<|close|>tools<|sep|>{end}", said("Well:\n")),
            message("Hm.", "Well:\n", &[ROME]),
        ),
        // Reasoning whose end is missing.
        (format!("Hm.<|open|>say<|sep|>Hi.{end}"), message("Hm.", "Hi.", &[])),
    ] {
        assert_eq!(family.read(&text), want, "{text:?}");
    }
}

/// An answer truncated after each of its characters: no part of a header or a call is text.
#[test]
fn a_truncated_header_is_not_text() {
    let args = "{\"city\": \"Rome\"}";
    let rome = "get_weather<|message|><call name=\"get_weather\"><arg name=\"city\">Rome</arg></call>";
    let call =
        "<|open|>tools<|sep|><|open|>call tool=\"now\"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>";
    for (family, text) in [
        (marks(), format!("all\nA < b.>>>get_weather\n{args}>>>get_weather\n{args}")),
        (
            recipients(),
            format!(" to=user<|message|>A < b.<|eom|><|start|>bot to={rome}<|eom|><|start|>bot to={rome}"),
        ),
        (
            sections(),
            format!(
                "<|close|>think<|sep|><|open|>say<|sep|>A < b.<|close|>say<|sep|>{call}<|close|>message<|sep|>"
            ),
        ),
    ] {
        for (at, _) in text.char_indices() {
            let (mut parser, mut message) = (family.parser(Options::default()), Message::default());
            parser.push(&text[..at], &mut |delta| message.add(delta));
            parser.finish_cut(&mut |delta| message.add(delta));
            assert!("A < b.".starts_with(&message.content), "{:?}: {message:?}", &text[..at]);
            assert_eq!(message.reasoning, "", "{:?}", &text[..at]);
        }
    }
}

/// Characters with which tags begin are text as well.
#[test]
fn a_truncated_text_keeps_its_last_character() {
    for (family, answer, expected) in [
        (marks(), "all\nif x >", "if x >"),
        (marks(), "all\n1 >>", "1 >>"),
        (recipients(), " to=user<|message|>a <", "a <"),
        (sections(), "<|close|>think<|sep|><|open|>say<|sep|>a <", "a <"),
    ] {
        let start = family.format.start(family.prompt);
        let mut parser = Parser::new(family.format.clone(), start, [], Options::default());
        let mut message = Message::default();
        parser.push(answer, &mut |delta| message.add(delta));
        parser.finish_cut(&mut |delta| message.add(delta));
        assert_eq!(message.content, expected);
    }
}

fn answer() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        ">>>",
        "all",
        "\n",
        "now",
        "get_weather",
        "{}",
        "{\"city\": \"",
        "\"}",
        ">",
        "<|start|>bot",
        " to=",
        "self",
        "user",
        "<|message|>",
        "<|eom|>",
        "<call name=\"",
        "\">",
        "<arg name=\"",
        "city",
        "</arg>",
        "</call>",
        "<|open|>",
        "<|sep|>",
        "<|close|>",
        "say",
        "think",
        "tools",
        "call tool=\"",
        "\"<|sep|>",
        "arg key=\"",
        "arg",
        "message",
        "<",
        " ",
        "é",
    ]);
    prop::collection::vec(piece, 0..24).prop_map(|p| p.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn results_do_not_depend_on_random_chunks(
        text in answer(), which in 0..3usize, split: bool, parallel_tool_calls: bool,
        at in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let family = [marks, recipients, sections][which]();
        let reasoning = if split { ReasoningFormat::Deepseek } else { ReasoningFormat::None };
        let new = || family.parser(Options { reasoning, parallel_tool_calls, ..Options::default() });
        let want = feed(new(), [text.as_str()]);
        let mut at: Vec<usize> = at.iter().map(|i| i.index(text.len() + 1)).filter(|i| text.is_char_boundary(*i)).collect();
        at.extend([0, text.len()]);
        at.sort();
        let pieces: Vec<&str> = at.windows(2).map(|w| &text[w[0]..w[1]]).collect();
        prop_assert_eq!(&feed(new(), pieces.iter().copied()), &want, "{:?}", pieces);
        prop_assert_eq!(&feed(new(), cuts(&text).pop().unwrap()), &want);
        if split && which == 0 {
            prop_assert!(!want.content.contains(">>>all\n"), "{:?}", want);
        }
    }
}
