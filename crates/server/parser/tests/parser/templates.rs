//! What models' own templates render, parsed: the message comes back, and renders to the same text again.

use crate::support::render::{python_json, render, source};
use octet_parser::{Format, Message, Options, Parser, ReasoningTags, Start, Tool, ToolSyntax, parse};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

const TEMPLATES: [&str; 5] = ["qwen3_5_think", "qwen3_5_nothink", "qwen3_6", "qwen3_8", "qwen3"];
const TURN: &str = "<|im_start|>assistant\n";

/// As the tools of a request.
fn tools(listed: &Value) -> Vec<Tool> {
    let functions = listed.as_array().into_iter().flatten().map(|t| &t["function"]);
    functions
        .map(|f| Tool { name: f["name"].as_str().unwrap().into(), parameters: f["parameters"].clone() })
        .collect()
}

/// A parsed answer as a message of the API.
fn message(m: &Message) -> Value {
    let calls: Vec<Value> = m
        .tool_calls
        .iter()
        .map(|c| {
            let arguments: Value = serde_json::from_str(&c.arguments).unwrap();
            json!({"type": "function", "function": {"name": c.name, "arguments": arguments}})
        })
        .collect();
    let mut message = json!({"role": "assistant", "content": m.content});
    if !m.reasoning.is_empty() {
        message["reasoning_content"] = m.reasoning.as_str().into();
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    message
}

/// The assistant's turns in a prompt, without what opens and ends them.
fn turns(prompt: &str) -> Vec<&str> {
    prompt.split(TURN).skip(1).filter_map(|t| Some(t.split_once("<|im_end|>")?.0)).collect()
}

/// Parses a turn both as an answer to a prompt that opens the thoughts and to one that does not, whole and cut in two at
/// every `cuts`th character from the first of those on.
fn parse_turn(format: Format, tools: &[Tool], turn: &str, (first, cuts): (usize, usize)) -> Message {
    let opened =
        turn.strip_prefix("<think>\n").map(|rest| (Start { in_reasoning: true, ..Start::default() }, rest));
    let whole = parse(format.clone(), Start::default(), tools, Options::default(), turn);
    for (start, text) in [(Start::default(), turn)].into_iter().chain(opened) {
        for (cut, _) in text.char_indices().skip(first).step_by(cuts) {
            let mut got = Message::default();
            let mut parser = Parser::new(format.clone(), start, tools, Options::default());
            parser.push(&text[..cut], &mut |delta| got.add(delta));
            parser.push(&text[cut..], &mut |delta| got.add(delta));
            parser.finish(&mut |delta| got.add(delta));
            assert_eq!(got, whole, "cut at {cut}: {text}");
        }
    }
    whole
}

#[test]
fn formats_are_derived_from_templates() {
    for name in TEMPLATES {
        let Some(source) = source(name) else { return };
        let tools = if name == "qwen3" { ToolSyntax::Hermes } else { ToolSyntax::Qwen3Coder };
        assert_eq!(
            Format::detect(&source),
            Format { reasoning: Some(ReasoningTags::default()), tools, text: None },
            "{name}"
        );
    }
}

#[test]
fn golden_turns_parse_to_their_messages() {
    let Some(path) = octet_testkit::shared("golden/chat/chat_golden.json") else { return };
    let golden: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let (mut seen, mut calls) = (0, 0);
    for case in golden.as_array().unwrap() {
        let said: Vec<&Value> =
            case["messages"].as_array().unwrap().iter().filter(|m| m["role"] == "assistant").collect();
        for (name, rendered) in case["rendered"].as_object().unwrap() {
            let Some(text) = rendered["text"].as_str() else { continue };
            let (format, tools) = (Format::detect(&source(name).unwrap()), tools(&case["tools"]));
            let turns = turns(text);
            assert_eq!(turns.len(), said.len(), "{name} {}", case["name"]);
            for (turn, said) in turns.into_iter().zip(&said) {
                let at = format!("{name} {}: {turn}", case["name"]);
                let got = message(&parse_turn(format.clone(), &tools, turn, (0, 1)));
                let mut want = json!({"role": "assistant", "content": said["content"]});
                // Templates leave out old thoughts, and trim those that they keep.
                let inline = said["content"].as_str().unwrap().split_once("</think>");
                if let Some((thought, content)) = inline.filter(|_| name != "qwen3_8") {
                    want["reasoning_content"] = thought.trim_start_matches("<think>").trim().into();
                    want["content"] = content.trim().into();
                } else if turn.contains("</think>") && said["reasoning_content"].is_string() {
                    want["reasoning_content"] = said["reasoning_content"].as_str().unwrap().trim().into();
                }
                for call in said["tool_calls"].as_array().into_iter().flatten() {
                    calls += 1;
                    let mut function = call["function"].clone();
                    if let Value::String(text) = &function["arguments"] {
                        function["arguments"] = serde_json::from_str(text).unwrap();
                    }
                    if name.starts_with("qwen3_5") && turn.contains("\nFalse\n") {
                        // This template writes what its tool's schema does not know as Python does.
                        function["arguments"]["flag"] = "False".into();
                        function["arguments"]["nul"] = "None".into();
                    }
                    let call = json!({"type": "function", "function": function});
                    want["tool_calls"] = Value::Array(
                        [want["tool_calls"].as_array().cloned().unwrap_or_default(), vec![call]].concat(),
                    );
                }
                assert_eq!(got, want, "{at}");
                seen += 1;
            }
        }
    }
    assert!(seen > 40 && calls > 20, "{seen} {calls}");
}

/// Text that a template neither trims nor takes for a tag.
fn words() -> impl Strategy<Value = String> {
    "[#*a-zé<1-9]{1,6}([ \n]{1,3}[.a-z<>/{}\"é]{1,6}){0,3}"
        .prop_filter("the syntax itself", |t| !t.contains("<think>") && !t.contains("</think>"))
}

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-1e6..1e6).prop_map(Value::from),
        ".{0,6}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((".{0,4}", inner), 0..4)
                .prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

/// Arguments of the tool `t` below.
fn arguments() -> impl Strategy<Value = Map<String, Value>> {
    let text = "([ -~é\n]|</parameter>|</function>|</?tool_call>|\n){0,12}";
    let text = text.prop_filter("the syntax itself", |t| {
        let t: String = t.split_whitespace().collect();
        !t.contains("</parameter></function>") && !t.contains("</function></tool_call>")
    });
    (
        prop::option::of(text),
        prop::option::of(any::<i32>()),
        prop::option::of(prop::collection::vec(json_value(), 0..3)),
        prop::option::of(any::<bool>()),
        prop::option::of(prop_oneof![Just(Value::Null), any::<u8>().prop_map(Value::from)]),
    )
        .prop_map(|(text, number, list, flag, either)| {
            let all = [
                ("text", text.map(Value::from)),
                ("number", number.map(Value::from)),
                ("list", list.map(Value::from)),
                ("flag", flag.map(Value::from)),
                ("either", either),
            ];
            all.into_iter().filter_map(|(k, v)| Some((k.to_string(), v?))).collect()
        })
}

fn schema() -> Value {
    json!([{"type": "function", "function": {"name": "t", "parameters": {"type": "object", "properties": {
        "text": {"type": "string"},
        "number": {"type": "number"},
        "list": {"type": "array"},
        "flag": {"type": "boolean"},
        "either": {"type": ["integer", "null"]},
    }}}}])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Text exactly as the template renders it parses to the original message, which renders the same.
    #[test]
    fn rendered_messages_parse_to_themselves(
        reasoning in prop::option::of(words()),
        content in prop::option::of(words()),
        calls in prop::collection::vec(arguments(), 0..3),
        first_cut in 0..16usize,
    ) {
        let mut said = json!({"role": "assistant", "content": content.clone().unwrap_or_default()});
        if let Some(text) = &reasoning {
            said["reasoning_content"] = text.as_str().into();
        }
        if !calls.is_empty() {
            let call = |a: &Map<String, Value>| json!({"type": "function", "function": {"name": "t", "arguments": a}});
            said["tool_calls"] = calls.iter().map(call).collect();
        }
        for name in TEMPLATES {
            let Some(source) = source(name) else { return Ok(()) };
            let (user, schema) = (json!({"role": "user", "content": "Hi"}), schema());
            let prompt = render(&source, &[user.clone(), said.clone()], &schema);
            let turn = prompt.split_once(TURN).unwrap().1.strip_suffix("<|im_end|>\n").unwrap();
            let got = parse_turn(Format::detect(&source), &tools(&schema), turn, (first_cut, 16));
            prop_assert_eq!(&message(&got), &said, "{}: {}", name, turn);
            prop_assert_eq!(render(&source, &[user, message(&got)], &schema), prompt);
            // Arguments are written as templates write them.
            for (call, arguments) in got.tool_calls.iter().zip(&calls) {
                prop_assert_eq!(&call.arguments, &python_json(&Value::Object(arguments.clone())));
            }
        }
    }
}
