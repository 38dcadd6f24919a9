//! Answers in channels (gpt-oss) whose headers are damaged: text is never lost, and a header is never text.

use crate::support::{cuts, feed, parser};
use octet_parser::{Message, Options, Parser, ReasoningFormat, ToolSyntax};
use proptest::prelude::*;

fn new() -> Parser {
    parser(ToolSyntax::Harmony, false, Options::default())
}

fn said(reasoning: &str, content: &str, calls: &[(&str, &str)]) -> Message {
    let mut message = Message { reasoning: reasoning.into(), content: content.into(), ..Message::default() };
    for (index, (name, arguments)) in calls.iter().enumerate() {
        message.add(octet_parser::Delta::Call { index, name });
        message.add(octet_parser::Delta::Arguments(arguments));
    }
    message
}

const ROME: &[(&str, &str)] = &[("get_weather", "{\"city\": \"Rome\"}")];

#[test]
fn a_header_may_run_on() {
    let thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant";
    for (text, want) in [
        ("<|channel|>final Hello", said("", "Hello", &[])),
        ("<|channel|>final\n\nHello, it's me.", said("", "Hello, it's me.", &[])),
        ("<|channel|>finalHello there", said("", "Hello there", &[])),
        ("<|channel|>final 4<|return|>", said("", "4", &[])),
        ("<|channel|>final json is a format.", said("", "json is a format.", &[])),
        ("<|channel|>final {\"a\": 1}", said("", "{\"a\": 1}", &[])),
        ("<|channel|>final json{\"a\": 1}", said("", "{\"a\": 1}", &[])),
        ("<|channel|>final <|constrain|>json {\"a\": 1}", said("", "{\"a\": 1}", &[])),
        ("<|channel|>final <b>bold</b>", said("", "<b>bold</b>", &[])),
        ("<|channel|>final 你好，世界", said("", "你好，世界", &[])),
        (
            "<|channel|>analysis Hm. So <|end|><|start|>assistant<|channel|>final Yes.",
            said("Hm. So ", "Yes.", &[]),
        ),
        ("<|channel|>analysis Hm.<|channel|>final<|message|>Yes.", said("Hm.", "Yes.", &[])),
        ("<|channel|>analysis<|channel|>final<|message|>Yes.", said("", "Yes.", &[])),
        (
            "<|channel|>analysis<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
            said("", "Yes.", &[]),
        ),
        ("<|channel|>commentary I look.<|end|>", said("", "I look.", &[])),
        (&format!("{thought}<|channel|>final Yes."), said("Hm.", "Yes.", &[])),
        (&format!("{thought} Yes, it is."), said("Hm.", "Yes, it is.", &[])),
        ("Yes, it is.", said("", "Yes, it is.", &[])),
        ("assistant is a role", said("", "assistant is a role", &[])),
        // Calls.
        (
            " to=functions.get_weather<|channel|>commentary json{\"city\": \"Rome\"}<|call|>",
            said("", "", ROME),
        ),
        ("<|channel|>commentary to=functions.get_weather {\"city\": \"Rome\"}<|call|>", said("", "", ROME)),
        ("<|channel|>commentaryto=functions.get_weather {\"city\": \"Rome\"}", said("", "", ROME)),
        (
            "<|channel|>commentary to=functions.get_weather <|constrain|>json{\"city\": \"Rome\"}",
            said("", "", ROME),
        ),
        (" to=functions.get_weathercommentary json<|message|>{\"city\": \"Rome\"}", said("", "", ROME)),
        ("<|channel|>commentary to=functions.now <|constrain|>json<|call|>", said("", "", &[("now", "{}")])),
        (
            "<|channel|>commentary to=functions.now <|constrain|>json<|message|>",
            said("", "", &[("now", "{}")]),
        ),
    ] {
        assert_eq!(feed(new(), [text]), want, "{text}");
        for pieces in cuts(text) {
            assert_eq!(feed(new(), pieces.iter().copied()), want, "{pieces:?}");
        }
    }
}

#[test]
fn a_header_that_runs_on_may_be_cut() {
    let text = "<|channel|>analysis Hm, hm.<|end|><|start|>assistant<|channel|>final Yes, so it is.";
    let mut longest = 0;
    for (at, _) in text.char_indices().chain([(text.len(), ' ')]) {
        let (mut parser, mut message) = (new(), Message::default());
        parser.push(&text[..at], &mut |delta| message.add(delta));
        parser.finish_cut(&mut |delta| message.add(delta));
        let is_prefix =
            "Hm, hm.".starts_with(&message.reasoning) && "Yes, so it is.".starts_with(&message.content);
        assert!(is_prefix && message.content.len() >= longest, "{at}: {message:?}");
        longest = message.content.len();
    }
    assert_eq!(longest, "Yes, so it is.".len());
}

#[test]
fn text_comes_before_its_answer_ends() {
    let (mut parser, mut got) = (new(), String::new());
    parser.push("<|channel|>final Hello there, frie", &mut |delta| {
        if let octet_parser::Delta::Content(text) = delta {
            got.push_str(text);
        }
    });
    assert_eq!(got, "Hello there, frie");
}

#[test]
fn all_may_stay_in_the_content() {
    let options = Options { reasoning: ReasoningFormat::None, ..Options::default() };
    for text in [
        "<|channel|>final Hello there",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final\nYes.",
    ] {
        assert_eq!(feed(parser(ToolSyntax::Harmony, false, options), [text]).content, text);
    }
}

fn answer() -> impl Strategy<Value = String> {
    let parts = prop::sample::select(vec![
        "<|start|>",
        "assistant",
        "<|channel|>",
        "analysis",
        "commentary",
        "final",
        " to=functions.get_weather",
        " to=functions.other",
        " json",
        "<|constrain|>",
        "<|message|>",
        "<|end|>",
        "<|call|>",
        "{\"days\": 5.0}",
        "zq",
        " ",
        "\n",
        "<",
        "é, ",
    ]);
    prop::collection::vec(parts, 0..16).prop_map(|f| f.concat())
}

proptest! {
    #[test]
    fn any_headers_parse_however_they_are_cut(text in answer(), at in any::<prop::sample::Index>(), cut: bool) {
        let read = |pieces: &[&str]| {
            let (mut parser, mut message) = (new(), Message::default());
            pieces.iter().for_each(|piece| parser.push(piece, &mut |delta| message.add(delta)));
            parser.finish_scoped(cut, &mut |delta, _| message.add(delta));
            message
        };
        let at = text.floor_char_boundary(at.index(text.len() + 1));
        let whole = read(&[&text]);
        prop_assert_eq!(&read(&[&text[..at], &text[at..]]), &whole);
        // What is no word of a header is never lost.
        let all = format!("{}{}", whole.reasoning, whole.content) + &whole.tool_calls.iter().map(|c| c.arguments.as_str()).collect::<String>();
        let is_named = text.contains("to=functions") || text.contains("<|constrain|>");
        prop_assert!(is_named || all.matches('é').count() == text.matches('é').count(), "{:?}", whole);
        if !text.contains(['<', '\n']) && !text.contains("to=") && text.contains("zq") {
            prop_assert!(all.contains("zq"), "{:?}", whole);
        }
    }
}
