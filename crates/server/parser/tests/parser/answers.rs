//! The parsed form of answers, which does not depend on how they are split.

use crate::support::answers::{ANSWERS, Answer};
use crate::support::{cuts, feed, parser};
use octet_parser::{
    Arguments, CallSyntax, Delta, Keys, Message, Options, Piece, ReasoningFormat, ToolCall, ToolSyntax,
};
use proptest::prelude::*;

fn whole(answer: &Answer, options: Options) -> Message {
    feed(parser(answer.syntax.clone(), answer.in_reasoning, options), [answer.text])
}

fn all_in_content() -> Options {
    Options { reasoning: ReasoningFormat::None, ..Options::default() }
}

fn one_call() -> Options {
    Options { parallel_tool_calls: false, ..Options::default() }
}

#[test]
fn answers_parse_as_expected() {
    for a in ANSWERS {
        let call = |(index, (name, arguments)): (usize, &(&str, &str))| ToolCall {
            index,
            name: name.to_string(),
            arguments: arguments.to_string(),
        };
        let want = Message {
            reasoning: a.reasoning.into(),
            content: a.content.into(),
            tool_calls: a.calls.iter().enumerate().map(call).collect(),
        };
        assert_eq!(whole(a, Options::default()), want, "{} ({:?})", a.name, a.syntax);
    }
}

#[test]
fn results_do_not_depend_on_chunks() {
    for a in ANSWERS {
        for options in [Options::default(), all_in_content(), one_call()] {
            let want = whole(a, options);
            for pieces in cuts(a.text) {
                let got = feed(parser(a.syntax.clone(), a.in_reasoning, options), pieces.iter().copied());
                assert_eq!(got, want, "{} ({:?}) as {pieces:?}", a.name, a.syntax);
            }
        }
    }
}

#[test]
fn every_prefix_of_an_answer_parses() {
    // Of messages in channels a head alone is nothing.
    for a in ANSWERS.iter().filter(|a| a.syntax != ToolSyntax::Harmony) {
        for (end, _) in a.text.char_indices() {
            let text = &a.text[..end];
            let want = feed(parser(a.syntax.clone(), a.in_reasoning, Options::default()), [text]);
            for pieces in
                [&text.split_inclusive('\n').collect::<Vec<_>>(), &text.split_inclusive('<').collect()]
            {
                let got = feed(
                    parser(a.syntax.clone(), a.in_reasoning, Options::default()),
                    pieces.iter().copied(),
                );
                assert_eq!(got, want, "{} ({:?}) as {pieces:?}", a.name, a.syntax);
            }
            // Half a call is text to the last letter.
            if want.tool_calls.is_empty() {
                let all = feed(parser(a.syntax.clone(), a.in_reasoning, all_in_content()), [text]);
                assert_eq!(all.content, text, "{}", a.name);
            }
        }
    }
}

#[test]
fn without_tools_calls_are_text() {
    let format = "{{ '<tool_call><function=<parameter=' }}</think>";
    for a in ANSWERS.iter().filter(|a| !a.in_reasoning && !a.text.trim_start().starts_with("<think>")) {
        let format = octet_parser::Format::detect(format);
        let got = octet_parser::parse(format, Default::default(), [], Options::default(), a.text);
        assert_eq!((got.content.as_str(), got.tool_calls), (a.text, vec![]), "{}", a.name);
    }
}

#[test]
fn without_parallel_calls_there_is_one_call() {
    let call = "<tool_call>\n<function=now>\n</function>\n</tool_call>";
    let got =
        feed(parser(ToolSyntax::Qwen3Coder, false, one_call()), [format!("A\n\n{call}\n{call}\n").as_str()]);
    assert_eq!((got.content, got.tool_calls.len()), (format!("A\n\n\n{call}\n"), 1));
    let got = feed(parser(ToolSyntax::Qwen3Coder, false, one_call()), [call, "\n\n"]);
    assert_eq!((got.content.as_str(), got.tool_calls.len()), ("", 1));
}

#[test]
fn reasoning_may_stay_in_the_content() {
    for a in ANSWERS.iter().filter(|a| a.calls.is_empty()) {
        let got = whole(a, all_in_content());
        assert_eq!((got.reasoning.as_str(), got.content.as_str()), ("", a.text), "{}", a.name);
    }
    let text = "Hm.\n\n<tool_call>\n<function=now>\n</function>\n</tool_call>\n</think>\n\nYes.";
    let got = feed(parser(ToolSyntax::Qwen3Coder, true, all_in_content()), [text]);
    assert_eq!((got.content.as_str(), got.tool_calls.len()), ("Hm.\n\n\n</think>\n\nYes.", 1));
}

#[test]
fn reasoning_may_be_omitted() {
    let hidden = Options { reasoning: ReasoningFormat::Hidden, ..Options::default() };
    for a in ANSWERS {
        let want = Message { reasoning: String::new(), ..whole(a, Options::default()) };
        assert_eq!(whole(a, hidden), want, "{}", a.name);
    }
}

/// The deltas of every character.
fn deltas(syntax: ToolSyntax, in_reasoning: bool, text: &str) -> Vec<String> {
    let mut p = parser(syntax.clone(), in_reasoning, Options::default());
    let mut buffer = [0; 4];
    text.chars()
        .map(|c| {
            let mut out = String::new();
            p.push(c.encode_utf8(&mut buffer), &mut |delta| match delta {
                Delta::Reasoning(t) | Delta::Content(t) => out.push_str(t),
                Delta::Call { name, .. } => out.push_str(&format!("[{name}]")),
                Delta::Arguments(_) => {}
            });
            out
        })
        .collect()
}

#[test]
fn text_is_emitted_as_soon_as_it_is_certain() {
    let q = ToolSyntax::Qwen3Coder;
    assert_eq!(deltas(q.clone(), false, "a <b\n\n\nc"), ["a", " ", "", "<b", "", "", "\n", "\n\nc"]);
    assert_eq!(deltas(q.clone(), true, "a\n\n</b"), ["a", "", "", "", "", "\n\n</b"]);
    // Without tools only a possible tag is held.
    let none = ToolSyntax::None;
    assert_eq!(
        deltas(none, false, " \na\n <think>"),
        ["", "", " \na", "\n", " ", "<", "t", "h", "i", "n", "k", ">"]
    );
    // Text that cannot become a call any more is emitted at once, and so are the values of a call without a tool.
    let said = deltas(q.clone(), false, "<tool_call> {");
    assert_eq!(said.last().unwrap(), "<tool_call> {");
    let quoted = "<tool_call>\n<function=other>\n<parameter=a>";
    let said = deltas(q.clone(), false, &format!("{quoted}\nvalue"));
    assert_eq!(said[quoted.len() - 1..], [quoted, "", "\nv", "a", "l", "u", "e"].map(String::from));
    // A call is emitted with its last character.
    let call = "<tool_call>\n<function=now>\n</function>\n</tool_call>";
    let said = deltas(q.clone(), false, call);
    assert!(said[..call.len() - 1].iter().all(String::is_empty));
    assert_eq!(said[call.len() - 1], "[now]");
}

#[test]
fn the_parser_tracks_whether_the_model_is_reasoning() {
    let mut p = parser(ToolSyntax::Qwen3Coder, true, Options::default());
    let mut seen = Vec::new();
    for piece in ["a", "</thi", "nk>", "b"] {
        p.push(piece, &mut |_| {});
        seen.push(p.in_reasoning());
    }
    assert_eq!(seen, [true, true, false, false]);
}

/// Pieces that answers, right and wrong, are made of.
fn fragment() -> impl Strategy<Value = String> {
    let tags = prop::sample::select(vec![
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "<tool_call>[",
        "<tool_call>\n<function=now>\n",
        "<function=write_file>",
        "<function=other>\n",
        "</function>",
        "\n</function>\n</tool_call>",
        "<parameter=content>",
        "<parameter=a>\n",
        "</parameter>",
        "\n</parameter>\n",
        "{\"name\": \"now\"",
        ", \"arguments\": {\"a\": \"",
        "\"}",
        "}",
        "\n",
        "\n\n",
        " ",
        "<",
        ">",
        "\\",
        "\"",
    ]);
    prop_oneof![5 => tags.prop_map(String::from), 1 => "[a-c<>/é\u{1f600} \n]{0,6}"]
}

fn answer() -> impl Strategy<Value = String> {
    prop::collection::vec(fragment(), 0..24).prop_map(|f| f.concat())
}

/// A list of objects between tags, whose arguments are emitted as they arrive.
fn listed() -> ToolSyntax {
    let text = |t: &str| vec![Piece::Text(t.into())];
    let mut call = text("{\"name\": \"");
    let arguments = Piece::Arguments(Arguments::Json);
    call.extend([Piece::Name, Piece::Text("\", \"arguments\": ".into()), arguments, Piece::Text("}".into())]);
    ToolSyntax::from(CallSyntax {
        open: text("<tool_call>["),
        call,
        separator: Some(text(", ")),
        close: text("]</tool_call>"),
        object: Some(Keys { name: "name".into(), arguments: "arguments".into() }),
    })
}

fn syntax() -> impl Strategy<Value = ToolSyntax> {
    let built_in = [ToolSyntax::Qwen3Coder, ToolSyntax::Hermes, ToolSyntax::None, ToolSyntax::Harmony];
    prop::sample::select(built_in.into_iter().chain([listed()]).collect::<Vec<_>>())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn results_do_not_depend_on_random_chunks(
        text in answer(), syntax in syntax(), in_reasoning: bool, split: bool, parallel: bool,
        at in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let options = Options {
            reasoning: if split { ReasoningFormat::Deepseek } else { ReasoningFormat::None },
            parallel_tool_calls: parallel,
            ..Options::default()
        };
        let new = || parser(syntax.clone(), in_reasoning, options);
        let want = feed(new(), [text.as_str()]);
        for (i, call) in want.tool_calls.iter().enumerate() {
            prop_assert_eq!(call.index, i);
            let arguments: Result<serde_json::Value, _> = serde_json::from_str(&call.arguments);
            // Those that are emitted as they arrive may be incomplete.
            let streams = matches!(syntax, ToolSyntax::Native(_) | ToolSyntax::Harmony);
            prop_assert!(streams || arguments.is_ok_and(|a| a.is_object()));
        }
        let mut at: Vec<usize> = at.iter().map(|i| i.index(text.len() + 1)).filter(|i| text.is_char_boundary(*i)).collect();
        at.push(0);
        at.push(text.len());
        at.sort();
        let pieces: Vec<&str> = at.windows(2).map(|w| &text[w[0]..w[1]]).collect();
        prop_assert_eq!(&feed(new(), pieces.iter().copied()), &want, "{:?}", pieces);
        prop_assert_eq!(&feed(new(), cuts(&text).pop().unwrap()), &want);
    }

    /// Text outside of calls is kept: all of it with the tags in the content, and all but tags and the newlines
    /// next to them without.
    #[test]
    fn nothing_is_lost(text in answer(), syntax in syntax(), in_reasoning: bool) {
        prop_assume!(syntax != ToolSyntax::Harmony); // which has other tags
        let all = feed(parser(syntax.clone(), in_reasoning, all_in_content()), [text.as_str()]);
        let split = feed(parser(syntax.clone(), in_reasoning, Options::default()), [text.as_str()]);
        prop_assert_eq!(&all.tool_calls, &split.tool_calls);
        if all.tool_calls.is_empty() {
            prop_assert_eq!(&all.content, &text);
            let begun = match in_reasoning {
                true => Some(text.as_str()),
                false => text.trim_start().strip_prefix("<think>"),
            };
            let Some(begun) = begun else {
                prop_assert_eq!(split.content, text);
                return Ok(());
            };
            let (thought, mut said) = begun.split_once("</think>").unwrap_or((begun, ""));
            // The closing tag again, with nothing but white space since the last one, is no text.
            while let Some(rest) = said.trim_start_matches([' ', '\n']).strip_prefix("</think>") {
                said = rest;
            }
            let strip = |t: &'_ str| t.strip_prefix('\n').unwrap_or(t).to_string();
            prop_assert_eq!(strip(&strip(said)), split.content);
            let thought = strip(thought);
            if begun.contains("</think>") {
                let thought = thought.strip_suffix('\n').unwrap_or(&thought);
                prop_assert_eq!(if thought.trim().is_empty() { "" } else { thought }, split.reasoning);
            } else {
                prop_assert_eq!(thought, split.reasoning);
            }
        }
    }

    /// Text and calls of an answer are distinguished again.
    #[test]
    fn calls_are_found_in_any_text(
        pieces in prop::collection::vec(("[a-z]{1,5}( [a-z.]{1,5}){0,2}", any::<bool>(), "[ -;=?-~é\n]{0,12}"), 1..6),
        hermes: bool,
    ) {
        let (mut text, mut want) = (String::new(), Message::default());
        for (i, (words, calls, value)) in pieces.iter().enumerate() {
            if *calls {
                let arguments = serde_json::json!({"content": value});
                text += &match hermes {
                    true => format!("<tool_call>\n{{\"name\": \"write_file\", \"arguments\": {arguments}}}\n</tool_call>"),
                    false => format!(
                        "<tool_call>\n<function=write_file>\n<parameter=content>\n{value}\n</parameter>\n</function>\n</tool_call>"
                    ),
                };
                want.tool_calls.push(ToolCall {
                    index: want.tool_calls.len(),
                    name: "write_file".into(),
                    arguments: arguments.to_string(),
                });
            } else {
                let words = format!("{words}{i}");
                text += &words;
                want.content += &words;
            }
        }
        let syntax = if hermes { ToolSyntax::Hermes } else { ToolSyntax::Qwen3Coder };
        let mut got = feed(parser(syntax, false, Options::default()), [text.as_str()]);
        for call in &mut got.tool_calls {
            let arguments: serde_json::Value = serde_json::from_str(&call.arguments).unwrap();
            call.arguments = arguments.to_string();
        }
        prop_assert_eq!(got, want, "{}", text);
    }
}

/// An answer truncated after each of its characters: no part of a call is text.
#[test]
fn a_truncated_call_is_not_text() {
    let call = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>";
    let xml = "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>";
    for (syntax, call) in [(ToolSyntax::Hermes, call), (ToolSyntax::Qwen3Coder, xml)] {
        let text = format!("A <b.\n\n{call}\n{call}");
        for (at, _) in text.char_indices() {
            let mut parser = parser(syntax.clone(), false, Options::default());
            let mut message = Message::default();
            parser.push(&text[..at], &mut |delta| message.add(delta));
            parser.finish_cut(&mut |delta| message.add(delta));
            assert!("A <b.\n\n".starts_with(&message.content), "{syntax:?} {at}: {:?}", message.content);
            for made in &message.tool_calls {
                assert_eq!(
                    (made.name.as_str(), made.arguments.as_str()),
                    ("get_weather", r#"{"city": "Rome"}"#)
                );
            }
        }
        // Text that is not a call stays text.
        let mut parser = parser(syntax, false, Options::default());
        let mut message = Message::default();
        parser.push("a < b and <br", &mut |delta| message.add(delta));
        parser.finish_cut(&mut |delta| message.add(delta));
        assert_eq!(message.content, "a < b and <br");
    }
}

#[test]
fn a_truncated_header_is_not_text() {
    let text = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather \
                <|constrain|>json<|message|>{}<|call|><|start|>assistant<|channel|>final<|message|>Yes.<|end|>";
    for (at, _) in text.char_indices() {
        let mut parser = parser(ToolSyntax::Harmony, false, Options::default());
        let mut message = Message::default();
        parser.push(&text[..at], &mut |delta| message.add(delta));
        parser.finish_cut(&mut |delta| message.add(delta));
        assert!(
            "Hm.".starts_with(&message.reasoning) && "Yes.".starts_with(&message.content),
            "{at}: {message:?}"
        );
    }
}
