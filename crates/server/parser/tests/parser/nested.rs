//! Arguments in nested tags, as MiniMax M3 writes them: answers, and arguments that come back as they were written. The first table has
//! the cases of llama.cpp's tests of this model (tests/test-chat.cpp), with our tools.

use std::sync::Arc;

use crate::support::{cuts, feed};
use octet_parser::{
    Arguments, CallSyntax, Format, Message, Nested, Options, Parser, Piece, ReasoningTags, Start, Tool,
    ToolSyntax,
};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

const MARK: &str = "]<]minimax[>[";

fn syntax() -> CallSyntax {
    let text = |text: &str| Piece::Text(text.replace('@', MARK));
    let arguments = Arguments::Nested(Nested { mark: MARK.into(), item: "item".into() });
    CallSyntax {
        open: vec![text("@<tool_call>\n@<invoke name=\"")],
        call: vec![Piece::Name, text("\">"), Piece::Arguments(arguments), text("@</invoke>\n")],
        separator: Some(vec![text("@<invoke name=\"")]),
        close: vec![text("@</tool_call>")],
        object: None,
    }
}

fn tools() -> Vec<Tool> {
    let either = |a: Value, b: Value| json!({"anyOf": [a, b]});
    let text = || json!({"type": "string"});
    let range = json!({"type": "object", "properties": {"max": {"type": "integer"}}});
    let properties = json!({
        "city": text(),
        "days": {"type": "integer"},
        "share": {"type": "number"},
        "on": {"type": "boolean"},
        "number": {"type": "object", "properties": {"real": {"type": "number"}, "unit": text()}},
        "tags": {"type": "array", "items": text()},
        "entries": {"type": "array", "items": {"$ref": "#/$defs/entry"}},
        "filter": either(json!({"type": "array", "items": text()}), json!({"type": "object"})),
        "limit": either(json!({"type": "integer"}), range),
        "label": either(text(), json!({"type": "object", "properties": {"text": text()}})),
        "free": {},
    });
    let entry = json!({"type": "object", "properties": {"id": {"type": "integer"}, "item": text()}});
    let parameters = json!({"type": "object", "properties": properties, "$defs": {"entry": entry}});
    let tool = |name: &str| Tool { name: name.into(), parameters: parameters.clone() };
    vec![tool("f"), tool("g")]
}

fn parser() -> Parser {
    let reasoning = ReasoningTags { open: "<mm:think>".into(), close: "</mm:think>".into() };
    let tools_syntax = ToolSyntax::Native(Arc::new(syntax()));
    let format = Format { reasoning: Some(reasoning), tools: tools_syntax, text: None };
    Parser::new(format, Start::default(), tools(), Options::default())
}

/// The message that an answer is, however it is cut. `@` stands for the mark.
fn read(text: &str) -> Message {
    let text = text.replace('@', MARK);
    let whole = feed(parser(), [text.as_str()]);
    for pieces in cuts(&text) {
        assert_eq!(feed(parser(), pieces.iter().copied()), whole, "{pieces:?}");
    }
    whole
}

/// An answer of one call of `f`.
fn call(arguments: &str) -> String {
    format!("@<tool_call>\n@<invoke name=\"f\">{arguments}@</invoke>\n@</tool_call>")
}

#[test]
fn arguments_of_all_types_are_read() {
    for (arguments, want) in [
        ("", "{}"),
        ("@<city>Tokyo@</city>", r#"{"city": "Tokyo"}"#),
        ("@<days>-14@</days>", r#"{"days": -14}"#),
        ("@<share>3.14@</share>", r#"{"share": 3.14}"#),
        ("@<on>true@</on>", r#"{"on": true}"#),
        ("@<days>42@</days>@<city>foo bar@</city>", r#"{"days": 42, "city": "foo bar"}"#),
        (
            "@<number>@<real>1.5@</real>@<unit>7@</unit>@</number>",
            r#"{"number": {"real": 1.5, "unit": "7"}}"#,
        ),
        (
            "@<tags>@<item>alpha@</item>@<item>2@</item>@</tags>@<entries>@<item>@<id>1@</id>@<item>x@</item>@</item>@</entries>",
            r#"{"tags": ["alpha", "2"], "entries": [{"id": 1, "item": "x"}]}"#,
        ),
        ("@<filter>@<item>alpha@</item>@<item>beta@</item>@</filter>", r#"{"filter": ["alpha", "beta"]}"#),
        ("@<filter>@<op>is@</op>@</filter>", r#"{"filter": {"op": "is"}}"#),
        ("@<limit>5@</limit>", r#"{"limit": 5}"#),
        ("@<limit>@<max>10@</max>@</limit>", r#"{"limit": {"max": 10}}"#),
        ("@<label>hi@</label>", r#"{"label": "hi"}"#),
        // llama.cpp makes a text with tags of it. The template writes tags of an object only.
        ("@<label>@<text>hi@</text>@</label>", r#"{"label": {"text": "hi"}}"#),
    ] {
        let message = read(&call(arguments));
        assert_eq!(message.content, "", "{arguments}");
        assert_eq!(message.tool_calls.len(), 1, "{arguments}");
        assert_eq!(message.tool_calls[0].arguments, want, "{arguments}");
    }
}

#[test]
fn what_is_no_tag_is_text() {
    for (arguments, want) in [
        ("\n @<city> A\n<b>@ x</b> @</city>\n", Some(json!({"city": format!(" A\n<b>{MARK} x</b> ")}))),
        ("@<city>@<b>x@</city>", Some(json!({"city": format!("{MARK}<b>x")}))),
        ("@<city>x@</b>@</city>", Some(json!({"city": format!("x{MARK}</b>")}))),
        ("@<city>@<b>x@</b>@</city>", Some(json!({"city": format!("{MARK}<b>x{MARK}</b>")}))),
        (
            "@<tags>@</tags>@<number>@</number>@<city>@</city>",
            Some(json!({"tags": [], "number": {}, "city": ""})),
        ),
        (
            "@<label>so @<text>hi@</text>@</label>",
            Some(json!({"label": format!("so {MARK}<text>hi{MARK}</text>")})),
        ),
        ("@<free>@<a>1@</a>@<b>x@</b>@</free>", Some(json!({"free": {"a": 1, "b": "x"}}))),
        ("@<free>@<item>1@</item>@</free>", Some(json!({"free": [1]}))),
        ("@<free>[1, 2]@</free>", Some(json!({"free": [1, 2]}))),
        ("@<city>Rome", Some(json!({"city": "Rome"}))),
        ("@<ci\nty>Rome@</city>", None),
        ("@<city>Rome@</city>and", None),
    ] {
        let text = call(arguments);
        let message = read(&text);
        match want {
            Some(want) => {
                let got: Value = serde_json::from_str(&message.tool_calls[0].arguments).unwrap();
                assert_eq!(got, want, "{arguments}");
            }
            None => {
                assert_eq!(message.content, text.replace('@', MARK));
                assert!(message.tool_calls.is_empty(), "{arguments}");
            }
        }
    }
}

#[test]
fn text_and_reasoning_precede_several_calls() {
    let one = |name: &str| format!("@<invoke name=\"{name}\">@<city>Paris@</city>@</invoke>\n");
    let text =
        format!("<mm:think>Both.</mm:think>I call.@<tool_call>\n{}{}@</tool_call>", one("f"), one("g"));
    let message = read(&text);
    assert_eq!((message.reasoning.as_str(), message.content.as_str()), ("Both.", "I call."));
    let calls: Vec<(&str, &str)> =
        message.tool_calls.iter().map(|c| (c.name.as_str(), c.arguments.as_str())).collect();
    assert_eq!(calls, [("f", r#"{"city": "Paris"}"#), ("g", r#"{"city": "Paris"}"#)]);
    // Another function's call is text.
    let text = text.replace("\"f\"", "\"h\"").replace("\"g\"", "\"h\"");
    assert!(read(&text).tool_calls.is_empty());
}

/// Deep nesting takes no stack, and each character a bounded time.
#[test]
fn tags_without_end_are_text() {
    let text = format!("@<tool_call>\n@<invoke name=\"f\">{}", "@<free>".repeat(20_000)).replace('@', MARK);
    let tools: Vec<Tool> = tools();
    let format = Format { reasoning: None, tools: ToolSyntax::Native(Arc::new(syntax())), text: None };
    let message = octet_parser::parse(format, Start::default(), tools, Options::default(), &text);
    assert_eq!(message.content, text);
}

/// A closing tag whose opening tag is too deep to count closes nothing further out.
#[test]
fn tags_that_are_too_deep_are_text_with_their_ends() {
    let nested = |depth: usize| format!("{}x{}", "@<item>".repeat(depth), "@</item>".repeat(depth));
    let read = |arguments: &str| {
        let text = call(arguments).replace('@', MARK);
        let message = feed(parser(), [text.as_str()]);
        assert_eq!(message.tool_calls.len(), 1, "{}", message.content);
        serde_json::from_str::<Value>(&message.tool_calls[0].arguments).unwrap()
    };
    for depth in [63, 64, 70] {
        let mut value = &read(&format!("@<free>{}@</free>@<city>Rome@</city>", nested(depth)));
        assert_eq!(value["city"], "Rome", "{depth}");
        value = &value["free"];
        for _ in 0..depth.min(63) {
            value = &value[0];
        }
        assert_eq!(*value, Value::from(nested(depth.saturating_sub(63)).replace('@', MARK)), "{depth}");
    }
}

fn values() -> impl Strategy<Value = Value> {
    let text = "[a-z<>/\\]\\[ é\n]{0,8}".prop_map(Value::from);
    let object = (any::<i32>(), "[a-z ]{0,4}").prop_map(|(id, item)| json!({"id": id, "item": item}));
    (text.clone(), any::<i32>(), any::<bool>(), prop::collection::vec(text, 0..3), prop::collection::vec(object, 0..3))
        .prop_map(|(city, days, on, tags, entries)| {
            json!({"city": city, "days": days, "on": on, "tags": tags, "entries": entries})
        })
}

/// The beginning of a call, and then parts of tags in any order, with white space of any width within them.
fn damaged() -> impl Strategy<Value = String> {
    let parts = [
        "@",
        "]<]mini",
        "max[>[",
        "<",
        ">",
        "</",
        "city",
        "<city>",
        "</city>",
        "</invoke>",
        "</tool_call>",
        "<invoke name=\"f\">",
    ];
    let spaces = ["\u{a0}", "\u{2003}", " ", "\n", "x", "é", "\u{1f600}"];
    let part = prop::sample::select([&parts[..], &spaces, &parts].concat());
    prop::collection::vec(part, 0..16)
        .prop_map(|parts| format!("@<tool_call>\n@<invoke name=\"f\">{}", parts.concat()).replace('@', MARK))
}

/// White space within a mark is none of a value's.
#[test]
fn a_mark_with_white_space_in_it_is_one() {
    for space in ["\u{a0}", " ", "\u{2003}\n"] {
        let message = read(&call(&format!("]<]minimax[>{space}[x@</city>")));
        let calls: Vec<&str> = message.tool_calls.iter().map(|c| c.arguments.as_str()).collect();
        assert_eq!(calls, [r#"{"city": "x"}"#], "{space:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn damaged_calls_do_not_depend_on_chunks(text in damaged()) {
        let whole = feed(parser(), [text.as_str()]);
        prop_assert_eq!(feed(parser(), text.split_inclusive(|_| true)), whole);
    }

    #[test]
    fn written_calls_are_read(first in values(), second in values()) {
        let members = |v: &Value| -> Map<String, Value> { v.as_object().unwrap().clone() };
        let text = syntax().write(&[("f".into(), members(&first)), ("g".into(), members(&second))]);
        let message = feed(parser(), [text.as_str()]);
        let got: Vec<Value> =
            message.tool_calls.iter().map(|c| serde_json::from_str(&c.arguments).unwrap()).collect();
        prop_assert_eq!(got, vec![first, second]);
    }
}
