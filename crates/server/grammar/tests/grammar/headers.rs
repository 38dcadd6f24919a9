//! Answers of families in which text has a header, as calls have, and whose prompts end with the beginning of one.

use std::sync::Arc;

use crate::support::{bytes, ids_of, takes, text_of, walk_to};
use octet_grammar::{Constraint, Grammar, GrammarSpec, Header, Matcher, Tool, ToolMode, ToolSyntax};
use octet_parser::{self as parser, Arguments, CallSyntax, JsonType, Piece, ReasoningTags, Tagged, TextTags};
use serde_json::{Value, json};

struct Family {
    syntax: CallSyntax,
    header: Header,
}

fn text(text: &str) -> Piece {
    Piece::Text(text.into())
}

/// `>>>NAME\n{...}` and `>>>all\nTEXT`, in a vocabulary without such tokens.
fn plain() -> Family {
    Family {
        syntax: CallSyntax {
            open: vec![text(">>>")],
            call: vec![Piece::Name, text("\n"), Piece::Arguments(Arguments::Json)],
            separator: Some(vec![text(">>>")]),
            close: Vec::new(),
            object: None,
        },
        header: Header {
            text: TextTags { open: ">>>all\n".into(), ..TextTags::default() },
            reasoning: None,
            begun: 3,
        },
    }
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

/// Messages whose headers name a recipient, between tokens; reasoning is one of them.
fn recipients() -> Family {
    let head = "<tool_call>assistant to=";
    Family {
        syntax: CallSyntax {
            open: vec![text(head)],
            call: vec![
                Piece::Name,
                text("<think><call name=\""),
                Piece::Name,
                text("\">"),
                tagged("<arg name=\"", "\">", "</arg>"),
                text("</call>"),
            ],
            separator: Some(vec![text(&format!("</think>{head}"))]),
            close: Vec::new(),
            object: None,
        },
        header: Header {
            text: TextTags { open: format!("{head}user<think>"), ..TextTags::default() },
            reasoning: Some(ReasoningTags { open: format!("{head}self<think>"), close: "</think>".into() }),
            begun: "<tool_call>assistant".len(),
        },
    }
}

/// Sections with an end, of which the text's comes before calls even if it is empty.
fn sections() -> Family {
    Family {
        syntax: CallSyntax {
            open: vec![text("<tool_call>tools<think>")],
            call: vec![
                text("<tool_call>call tool=\""),
                Piece::Name,
                text("\"<think>"),
                tagged("<tool_call>arg key=\"", "\"<think>", "</tool_call>arg<think>"),
                text("</tool_call>call<think>"),
            ],
            separator: Some(Vec::new()),
            close: vec![text("</tool_call>tools<think>")],
            object: None,
        },
        header: Header {
            text: TextTags {
                open: "<tool_call>response<think>".into(),
                close: "</tool_call>response<think>".into(),
                end: "</tool_call>message<think>".into(),
            },
            reasoning: None,
            begun: 0,
        },
    }
}

fn tools() -> Vec<Tool> {
    let tool = |name: &str, parameters| Tool { name: name.into(), parameters, strict: false };
    let city = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    vec![tool("get_weather", city), tool("now", Value::Null)]
}

impl Family {
    fn matcher(&self, spec: GrammarSpec) -> Matcher {
        let constraint = Constraint { spec, reasoning_end: None, header: Some(self.header.clone()) };
        Grammar::compile(&bytes(), &constraint).unwrap_or_else(|e| panic!("{e}")).matcher()
    }

    fn calls(&self, mode: ToolMode, parallel: bool) -> Matcher {
        let syntax = ToolSyntax::Native(Arc::new(self.syntax.clone()));
        self.matcher(GrammarSpec::ToolCalls { syntax, tools: tools(), mode, parallel })
    }

    fn read(&self, text: &str) -> parser::Message {
        let format = parser::Format {
            reasoning: self.header.reasoning.clone(),
            tools: parser::ToolSyntax::from(self.syntax.clone()),
            text: Some(self.header.text.clone()),
        };
        let known = tools().into_iter().map(|t| parser::Tool { name: t.name, parameters: t.parameters });
        let start = parser::Start { header: self.header.begun, ..parser::Start::default() };
        parser::parse(format, start, known.collect::<Vec<_>>(), parser::Options::default(), text)
    }

    /// What the prompt has not written of an answer.
    fn rest<'a>(&self, answer: &'a str) -> &'a str {
        &answer[self.header.begun..]
    }

    fn written(&self, cities: &[&str]) -> String {
        let call =
            |city: &&str| ("get_weather".to_string(), json!({"city": city}).as_object().unwrap().clone());
        self.syntax.write(&cities.iter().map(call).collect::<Vec<_>>())
    }
}

#[test]
fn required_calls_follow_the_prompts_header() {
    let ends = ["\n</arg>", "</arg>", "</tool_call>arg<think>"];
    for (mut family, end) in [plain(), recipients(), sections()].into_iter().zip(ends) {
        family.header.reasoning = None;
        let before = match family.header.text.close.as_str() {
            "" => String::new(),
            close => format!("{}{close}", family.header.text.open),
        };
        let grammar = family.calls(ToolMode::Required, true);
        let mut most = 0;
        for seed in 1..=60u64 {
            let text = text_of(&walk_to(&grammar, seed, 80, end));
            let message = family.read(&text);
            assert!(message.content.is_empty() && !message.tool_calls.is_empty(), "{text:?}: {message:?}");
            for call in &message.tool_calls {
                let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
                match call.name.as_str() {
                    "now" => assert_eq!(arguments, json!({}), "{text:?}"),
                    _ => assert!(arguments["city"].is_string(), "{text:?}"),
                }
            }
            most = most.max(message.tool_calls.len());
        }
        assert!(most > 1);
        let (one, two) = (family.written(&["Rome"]), family.written(&["Rome", "Oslo"]));
        let takes = |grammar: &Matcher, text: &str| takes(grammar, &ids_of(family.rest(text)));
        assert!(takes(&grammar, &format!("{before}{one}")) && takes(&grammar, &format!("{before}{two}")));
        assert!(!takes(&grammar, &format!("{}Hi.", family.header.text.open)));
        assert!(!takes(&grammar, &format!("{before}{}", one.replace("get_weather", "get_time"))));
        assert!(!takes(&family.calls(ToolMode::Required, false), &format!("{before}{two}")));
        let named = family.calls(ToolMode::Named("now".into()), true);
        assert!(!takes(&named, &format!("{before}{one}")));
        assert!(takes(
            &named,
            &format!("{before}{}", family.syntax.write(&[("now".into(), Default::default())]))
        ));
    }
}

#[test]
fn with_auto_text_is_free_and_calls_are_not() {
    for family in [plain(), recipients(), sections()] {
        let Header { text: TextTags { open, close, .. }, .. } = &family.header;
        let grammar = family.calls(ToolMode::Auto, true);
        let takes = |text: &str| takes(&grammar, &ids_of(family.rest(text)));
        let call = family.written(&["Rome"]);
        // A message of its own follows the end of the one before.
        let between = if call.starts_with("<tool_call>assistant") { "</think>" } else { "" };
        for said in ["Hi.", "Type\n>>> print(x)\n> 3", "a >> b"] {
            assert!(takes(&format!("{open}{said}{close}")), "{open}{said}");
            let both = format!("{open}{said}{close}{between}{call}");
            assert!(takes(&both), "{both}");
            let message = family.read(family.rest(&both));
            assert_eq!((message.content.as_str(), message.tool_calls.len()), (said, 1), "{both}");
            let wrong = call.replace("get_weather", "get_time");
            for said in [said, ">>>"] {
                assert!(!takes(&format!("{open}{said}{close}{between}{wrong}")), "{said}");
            }
        }
        if close.is_empty() {
            assert!(takes(&call));
        }
        assert!(!takes(&call.replace("city", "town")));
    }
}

#[test]
fn reasoning_may_come_before_a_call() {
    let family = recipients();
    let thought = "<tool_call>assistant to=self<think>Hm, so.</think>";
    let answer = format!("{thought}{}", family.written(&["Rome"]));
    for mode in [ToolMode::Required, ToolMode::Auto] {
        assert!(takes(&family.calls(mode, true), &ids_of(family.rest(&answer))));
    }
    let message = family.read(family.rest(&answer));
    assert_eq!((message.reasoning.as_str(), message.tool_calls.len()), ("Hm, so.", 1));
}

/// The header begins with a token, so no answer continues a part of its text.
#[test]
fn a_prompt_that_ends_within_a_token_is_an_error() {
    let mut header = sections().header;
    header.begun = 1;
    let constraint = Constraint { spec: GrammarSpec::JsonObject, reasoning_end: None, header: Some(header) };
    let Err(e) = Grammar::compile(&bytes(), &constraint) else { panic!("it is compiled") };
    assert!(e.to_string().contains("no answer can continue"), "{e}");
}

#[test]
fn a_constraint_on_the_text_begins_after_its_header() {
    for family in [plain(), recipients(), sections()] {
        let json = family.matcher(GrammarSpec::JsonObject);
        let open = &family.header.text.open;
        assert!(takes(&json, &ids_of(family.rest(&format!("{open}{{\"a\": 1}}")))), "{open}");
        assert!(!takes(&json, &ids_of("{\"a\": 1}")), "{open}");
        let lark = family.matcher(GrammarSpec::Lark("start: \"yes\" | \"no\"".into()));
        assert!(takes(&lark, &ids_of(family.rest(&format!("{open}yes")))), "{open}");
        assert!(!takes(&lark, &ids_of(family.rest(&format!("{open}maybe")))), "{open}");
    }
}
