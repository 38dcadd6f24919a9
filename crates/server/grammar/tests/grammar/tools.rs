//! Tool calls: the parser of answers reads every text that a grammar accepts as calls of these tools with valid arguments.

use crate::support::{bytes, compile, ids_of, matcher, takes, text_of, walk_to};
use octet_grammar::{Error, GrammarSpec, Tool, ToolMode, ToolSyntax};
use octet_parser::{self as parser, Arguments, CallSyntax, JsonType, Keys, Nested, Piece, Tagged};
use proptest::prelude::*;
use serde_json::{Value, json};

/// The syntaxes that are built in, and some in the forms that are read off templates.
fn syntaxes() -> Vec<ToolSyntax> {
    [ToolSyntax::Qwen3Coder, ToolSyntax::Hermes, ToolSyntax::Harmony { may_think: true }]
        .into_iter()
        .chain(native().map(|s| ToolSyntax::Native(s.into())))
        .collect()
}

/// A list of objects, names between tags, arguments between tags, tags that say which arguments are strings, and nested tags.
fn native() -> impl Iterator<Item = CallSyntax> {
    let text = |t: &str| Piece::Text(t.into());
    let json = || Piece::Arguments(Arguments::Json);
    let keys = Keys { name: "name".into(), arguments: "parameters".into() };
    let object = vec![
        text("{\"id\": \""),
        Piece::Id,
        text("\", \"name\": \""),
        Piece::Name,
        text("\", \"parameters\": "),
        json(),
        text("}"),
    ];
    let list = CallSyntax {
        open: vec![text("<CALLS>[")],
        call: object,
        separator: Some(vec![text(", ")]),
        close: vec![text("]</CALLS>")],
        object: Some(keys),
    };
    let named = CallSyntax {
        open: vec![text("<|calls|><|call|>functions.")],
        call: vec![Piece::Name, text(":"), Piece::Number(0), text("<|args|>"), json(), text("<|end|>")],
        separator: Some(vec![text("<|call|>functions.")]),
        close: vec![text("<|calls_end|>")],
        object: None,
    };
    let tagged = |text_middle: &str, other: &str| {
        let others = [JsonType::Number, JsonType::Boolean, JsonType::Null, JsonType::Array, JsonType::Object];
        let arguments = Tagged {
            open: "\n<arg name=\"".into(),
            text: text_middle.into(),
            others: others.map(|t| (t, other.to_string())).into(),
            close: "</arg>".into(),
        };
        let call =
            vec![Piece::Name, text("\">"), Piece::Arguments(Arguments::Tagged(arguments)), text("\n</call>")];
        let open = vec![text("<call name=\"")];
        CallSyntax {
            separator: Some(vec![text("\n<call name=\"")]),
            open,
            call,
            close: Vec::new(),
            object: None,
        }
    };
    let written = |open: &str, arguments: Arguments, end: &str, separator: &str, close: &str| CallSyntax {
        open: vec![text(open)],
        call: vec![
            Piece::Name,
            text(&end[..1].replace(')', "(").replace('}', "{")),
            Piece::Arguments(arguments),
            text(end),
        ],
        separator: Some(vec![text(separator)]),
        close: if close.is_empty() { Vec::new() } else { vec![text(close)] },
        object: None,
    };
    let python = written("<|calls|>[", Arguments::Python, ")", ", ", "]<|end|>");
    let gemma = written("<|call>call:", Arguments::Gemma, "}<call|>", "<|call>call:", "");
    let same = tagged("\">", "\">");
    let typed = tagged("\" string=\"true\">", "\" string=\"false\">");
    [list, named, same, typed, python, gemma, nested("]<]minimax[>["), nested("]<]other[>[")].into_iter()
}

/// Nested tags after this mark.
fn nested(mark: &str) -> CallSyntax {
    let text = |t: &str| Piece::Text(format!("{mark}{t}"));
    let arguments = Arguments::Nested(Nested { mark: mark.into(), item: "item".into() });
    CallSyntax {
        open: vec![text("<calls>\n"), text("<call name=\"")],
        call: vec![Piece::Name, Piece::Text("\">".into()), Piece::Arguments(arguments), text("</call>\n")],
        separator: Some(vec![text("<call name=\"")]),
        close: vec![text("</calls>")],
        object: None,
    }
}

fn tool(name: &str, parameters: Value) -> Tool {
    Tool { name: name.into(), parameters, strict: false }
}

fn tools() -> Vec<Tool> {
    vec![
        tool(
            "get_weather",
            json!({"type": "object", "properties": {
                "city": {"type": "string", "description": "where"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 14},
            }, "required": ["city", "unit"]}),
        ),
        tool(
            "edit-file",
            json!({"type": "object", "properties": {
                "path": {"type": "string", "pattern": "^[a-z/]{1,8}\\.rs$"},
                "mode": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                "edits": {"type": "array", "maxItems": 2, "items": {"$ref": "#/$defs/edit"}},
                "force": {"type": "boolean"},
                "short": {"type": "string", "minLength": 1, "maxLength": 5},
            }, "required": ["path", "edits"], "additionalProperties": false,
            "$defs": {"edit": {"type": "object", "properties": {"from": {"type": "string"}, "to": {"type": "string"}},
                "required": ["from", "to"], "additionalProperties": false}}}),
        ),
        tool("now", Value::Null),
        tool("empty", json!({"type": "object", "properties": {}})),
    ]
}

fn spec(syntax: &ToolSyntax, mode: ToolMode, parallel: bool) -> GrammarSpec {
    GrammarSpec::ToolCalls { syntax: syntax.clone(), tools: tools(), mode, parallel }
}

/// The end of a text without quotation marks. It contains a line break, so no JSON string contains it.
fn text_end(syntax: &ToolSyntax) -> &'static str {
    match syntax {
        ToolSyntax::Harmony { .. } => "\n<|end|>",
        ToolSyntax::Native(native) if native.trigger() == "<|call>" => "\n<|\"|>",
        ToolSyntax::Native(native) if native.trigger() == "]<]minimax[>[" => "]<]minimax[>[</",
        ToolSyntax::Native(native) if native.trigger() == "]<]other[>[" => "]<]other[>[</",
        ToolSyntax::Native(_) => "\n</arg>",
        ToolSyntax::Qwen3Coder | ToolSyntax::Hermes => "\n</parameter>\n",
    }
}

/// The message that an answer is.
fn read(syntax: &ToolSyntax, thinking: bool, text: &str) -> parser::Message {
    read_calls(syntax, thinking, tools(), text)
}

fn read_calls(syntax: &ToolSyntax, thinking: bool, known: Vec<Tool>, text: &str) -> parser::Message {
    let tools = match syntax {
        ToolSyntax::Qwen3Coder => parser::ToolSyntax::Qwen3Coder,
        ToolSyntax::Hermes => parser::ToolSyntax::Hermes,
        ToolSyntax::Harmony { .. } => parser::ToolSyntax::Harmony,
        ToolSyntax::Native(syntax) => parser::ToolSyntax::Native(syntax.clone()),
    };
    let format = parser::Format { reasoning: Some(parser::ReasoningTags::default()), tools, text: None };
    let known = known.into_iter().map(|t| parser::Tool { name: t.name, parameters: t.parameters });
    let start = parser::Start { in_reasoning: thinking, ..parser::Start::default() };
    parser::parse(format, start, known.collect::<Vec<_>>(), parser::Options::default(), text)
}

/// What of a schema is enforced: of values that are written as in Python, by Gemma or in nested tags, types and members alone.
fn enforced(syntax: &ToolSyntax, mut schema: Value) -> Value {
    let is_literal = |p: &Piece| {
        matches!(p, Piece::Arguments(Arguments::Python | Arguments::Gemma | Arguments::Nested(_)))
    };
    if let ToolSyntax::Native(native) = syntax
        && native.call.iter().any(is_literal)
    {
        for property in schema["properties"].as_object_mut().unwrap().values_mut() {
            let property = property.as_object_mut().unwrap();
            ["pattern", "minimum", "maximum", "maxItems", "minLength", "maxLength"].iter().for_each(|k| {
                property.shift_remove(*k);
            });
        }
    }
    schema
}

/// Asserts that the answer is nothing but calls, and these are valid.
fn assert_calls(syntax: &ToolSyntax, text: &str) -> Vec<parser::ToolCall> {
    let message = read(syntax, false, text);
    let thinks = matches!(syntax, ToolSyntax::Harmony { .. });
    assert!(message.content.is_empty() && (thinks || message.reasoning.is_empty()), "{text}");
    assert!(!message.tool_calls.is_empty(), "{text}");
    for call in &message.tool_calls {
        let tool = tools().into_iter().find(|t| t.name == call.name).unwrap();
        let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
        match tool.parameters {
            Value::Null => assert_eq!(arguments, json!({}), "{text}"),
            schema => {
                let schema = enforced(syntax, schema);
                if let Err(e) = jsonschema::validate(&schema, &arguments) {
                    panic!("{text}: {arguments}: {e}");
                }
                // Closed, though two of the schemas do not say so.
                let known = schema["properties"].as_object().unwrap();
                assert!(arguments.as_object().unwrap().keys().all(|k| known.contains_key(k)), "{text}");
            }
        }
    }
    message.tool_calls
}

#[test]
fn required_calls_are_calls() {
    let vocabulary = bytes();
    for syntax in &syntaxes() {
        let (mut most, mut names) = (0, std::collections::HashSet::new());
        let grammar = matcher(&vocabulary, spec(syntax, ToolMode::Required, true));
        for seed in 1..=80u64 {
            let text = text_of(&walk_to(&grammar, seed, 150, text_end(syntax)));
            let calls = assert_calls(syntax, &text);
            most = most.max(calls.len());
            names.extend(calls.into_iter().map(|c| c.name));
        }
        assert!(
            (most > 1 || matches!(syntax, ToolSyntax::Harmony { .. })) && names.len() == tools().len(),
            "{syntax:?}: {most} {names:?}"
        );
        let grammar = matcher(&vocabulary, spec(syntax, ToolMode::Required, false));
        for seed in 1..=20u64 {
            let text = text_of(&walk_to(&grammar, seed, 100, text_end(syntax)));
            assert_eq!(assert_calls(syntax, &text).len(), 1, "{text}");
        }
    }
}

#[test]
fn a_named_tool_is_called_once() {
    let vocabulary = bytes();
    for syntax in &syntaxes() {
        let grammar = matcher(&vocabulary, spec(syntax, ToolMode::Named("edit-file".into()), true));
        for seed in 1..=40u64 {
            let text = text_of(&walk_to(&grammar, seed, 120, text_end(syntax)));
            let calls = assert_calls(syntax, &text);
            assert_eq!((calls.len(), calls[0].name.as_str()), (1, "edit-file"), "{text}");
        }
        let e = compile(&vocabulary, spec(syntax, ToolMode::Named("nope".into()), true), false).unwrap_err();
        assert!(matches!(&e, Error::Tools(m) if m.contains("'nope'")), "{e}");
    }
}

const CALL: &str = "<tool_call>\n<function=get_weather>\n<parameter=unit>\ncelsius\n</parameter>\n<parameter=city>\nSão <b>Paulo\n\
    </parameter>\n</function>\n</tool_call>";
const HERMES: &str = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"unit\": \"celsius\"}}\n</tool_call>";

#[test]
fn calls_in_the_templates_form_are_accepted() {
    for (syntax, call) in [(&ToolSyntax::Qwen3Coder, CALL), (&ToolSyntax::Hermes, HERMES)] {
        let grammar = matcher(&bytes(), spec(syntax, ToolMode::Required, true));
        assert!(takes(&grammar, &ids_of(call)), "{call}");
        assert!(takes(&grammar, &ids_of(&format!("{call}\n{call}"))), "{call}");
        for wrong in [
            "Hello".to_string(),
            format!("Let me see.\n{call}"),
            format!("{call} and so on"),
            call.replace("celsius", "kelvin"),
            call.replace("get_weather", "get_time"),
            call.replace("unit", "units"),
            call.replace("</tool_call>", ""),
        ] {
            assert!(!takes(&grammar, &ids_of(&wrong)), "{wrong}");
        }
    }
    // Required parameters, each once, in any order; tags in values are not escaped, so they are refused.
    let grammar = matcher(&bytes(), spec(&ToolSyntax::Qwen3Coder, ToolMode::Required, true));
    let city = "<parameter=city>\nSão <b>Paulo\n</parameter>\n";
    for wrong in [
        CALL.replace(city, ""),
        CALL.replace(city, &city.repeat(2)),
        CALL.replace("<b>", "</parameter>"),
        CALL.replace("<b>", "<function="),
    ] {
        assert!(!takes(&grammar, &ids_of(&wrong)), "{wrong}");
    }
}

#[test]
fn with_auto_text_is_free_and_calls_are_not() {
    for (syntax, call) in [(&ToolSyntax::Qwen3Coder, CALL), (&ToolSyntax::Hermes, HERMES)] {
        let grammar = matcher(&bytes(), spec(syntax, ToolMode::Auto, true));
        for text in
            ["", "Hello.", "a </think> b", &format!("Let me see.\n\n{call}"), &format!("{call}\n{call}")]
        {
            assert!(takes(&grammar, &ids_of(text)), "{text}");
        }
        for text in [format!("See: {}", call.replace("celsius", "kelvin")), format!("{call} and so on")] {
            assert!(!takes(&grammar, &ids_of(&text)), "{text}");
        }
    }
}

#[test]
fn reasoning_precedes_calls() {
    for (syntax, call) in [(&ToolSyntax::Qwen3Coder, CALL), (&ToolSyntax::Hermes, HERMES)] {
        let grammar = compile(&bytes(), spec(syntax, ToolMode::Required, true), true).unwrap().matcher();
        for lead in ["Well…\n</think>\n\n", "</think>\n\n", "</think>", "A call in the thoughts ends them:\n"]
        {
            let text = format!("{lead}{call}");
            assert!(takes(&grammar, &ids_of(&text)), "{text}");
            let message = read(syntax, true, &text);
            assert_eq!((message.content.as_str(), message.tool_calls.len()), ("", 1), "{text}");
        }
        for wrong in ["Only thoughts", "Thoughts</think>", "Thoughts</think>\n\nNo call."] {
            assert!(!takes(&grammar, &ids_of(wrong)), "{wrong}");
        }
    }
}

/// A list of alternatives, as zod and pydantic write a discriminated union.
#[test]
fn arguments_of_several_forms_are_enforced() {
    let vocabulary = bytes();
    let form = |kind: &str, more: &str| {
        json!({"type": "object", "properties": {"kind": {"type": "string", "const": kind}, more: {"type": "integer"}},
            "required": ["kind", more], "additionalProperties": false})
    };
    let (left, right) = (form("left", "steps"), form("right", "turns"));
    let schemas = [
        json!({"anyOf": [left]}),
        json!({"type": "object", "title": "T", "oneOf": [left, right]}),
        json!({"anyOf": [{"$ref": "#/$defs/l"}, {"$ref": "#/$defs/r"}], "$defs": {"l": left, "r": right}}),
        json!({"allOf": [{"anyOf": [left, right]}]}),
    ];
    for syntax in &syntaxes() {
        for (i, schema) in schemas.iter().enumerate() {
            let tools = vec![tool("go", schema.clone())];
            let (mode, syntax) = (ToolMode::Required, syntax.clone());
            let spec = GrammarSpec::ToolCalls {
                syntax: syntax.clone(),
                tools: tools.clone(),
                mode,
                parallel: false,
            };
            let compiled = compile(&vocabulary, spec.clone(), false).unwrap();
            // Those that write a call in a form of their own say what they do not enforce.
            if !compiled.warnings().is_empty() {
                let said = compiled.warnings().join(" ");
                assert!(
                    said.contains("'go'") && said.contains("not enforced"),
                    "{syntax:?} {schema}: {said}"
                );
                assert_eq!(i, 3, "{syntax:?} {schema}: {said}");
                continue;
            }
            let grammar = matcher(&vocabulary, spec);
            for seed in 1..=6u64 {
                let text = text_of(&walk_to(&grammar, seed, 120, text_end(&syntax)));
                let message = read_calls(&syntax, false, tools.clone(), &text);
                let arguments: Value = serde_json::from_str(&message.tool_calls[0].arguments).unwrap();
                jsonschema::validate(schema, &arguments)
                    .unwrap_or_else(|e| panic!("{text}: {arguments}: {e}"));
            }
        }
    }
}

#[test]
fn what_stands_beside_a_reference_holds() {
    let a = json!({"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]});
    let beside = json!({"$ref": "#/$defs/a", "required": ["y"], "properties": {"y": {"type": "integer"}}});
    let mut root = beside.clone();
    root["$defs"] = json!({"a": a});
    let alternatives = json!({"anyOf": [beside], "$defs": {"a": a}});
    for syntax in &syntaxes() {
        for schema in [&root, &alternatives] {
            let tools = vec![tool("go", schema.clone())];
            let mode = ToolMode::Required;
            let spec = GrammarSpec::ToolCalls {
                syntax: syntax.clone(),
                tools: tools.clone(),
                mode,
                parallel: false,
            };
            if !compile(&bytes(), spec.clone(), false).unwrap().warnings().is_empty() {
                continue;
            }
            let grammar = matcher(&bytes(), spec);
            for seed in 1..=6u64 {
                let text = text_of(&walk_to(&grammar, seed, 120, text_end(syntax)));
                let message = read_calls(syntax, false, tools.clone(), &text);
                let arguments: Value = serde_json::from_str(&message.tool_calls[0].arguments).unwrap();
                jsonschema::validate(schema, &arguments)
                    .unwrap_or_else(|e| panic!("{syntax:?} {text}: {arguments}: {e}"));
            }
        }
    }
}

#[test]
fn alternatives_that_overlap_are_named() {
    let one = |name: &str| json!({"type": "object", "properties": {name: {"type": "integer"}}});
    let overlapping = json!({"oneOf": [one("a"), one("b")]});
    for syntax in &syntaxes() {
        let with = |strict| {
            let tools = vec![Tool { name: "f".into(), parameters: overlapping.clone(), strict }];
            let mode = ToolMode::Required;
            let spec = GrammarSpec::ToolCalls { syntax: syntax.clone(), tools, mode, parallel: false };
            compile(&bytes(), spec, false)
        };
        let warnings = with(false).unwrap().warnings().join("\n");
        assert!(warnings.contains("'f'") && warnings.contains("oneOf"), "{syntax:?}: {warnings}");
        let said = with(true).unwrap_err().to_string();
        assert!(said.contains("oneOf"), "{syntax:?}: {said}");
    }
}

#[test]
fn unenforceable_schemas_give_a_warning() {
    let vocabulary = bytes();
    let odd = json!({"type": "object", "properties": {"a": {"type": "string", "not": {"const": "x"}}}, "required": ["a"], "additionalProperties": false});
    for syntax in &syntaxes() {
        let with = |strict| {
            let tools = vec![Tool { name: "f".into(), parameters: odd.clone(), strict }];
            let spec = GrammarSpec::ToolCalls {
                syntax: syntax.clone(),
                tools,
                mode: ToolMode::Required,
                parallel: false,
            };
            compile(&vocabulary, spec, false)
        };
        let warnings = with(false).unwrap().warnings().join("\n");
        assert!(
            warnings.contains("'not'") && warnings.contains("'f'") && warnings.contains("/properties/a"),
            "{warnings}"
        );
        let said = with(true).unwrap_err().to_string();
        assert!(said.contains("'not' is not supported") && said.contains("'#/properties/a'"), "{said}");
        for (tools, part) in [
            (vec![], "there are 0"),
            (vec![tool("a", Value::Null), tool("a", Value::Null)], "two are called 'a'"),
            (vec![tool("", Value::Null)], "0 bytes"),
            (vec![tool("a", json!({"type": "array"}))], "type object"),
        ] {
            let spec = GrammarSpec::ToolCalls {
                syntax: syntax.clone(),
                tools,
                mode: ToolMode::Required,
                parallel: false,
            };
            let said = compile(&vocabulary, spec, false).unwrap_err().to_string();
            assert!(said.contains(part), "{said}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Text in tags is taken if and only if the parser reads it back as it was.
    #[test]
    fn bare_text_is_used_if_it_can_be_parsed_again(
        pieces in prop::collection::vec(prop_oneof![
            "[a-zé<>/= \n]{0,4}", Just("</parameter>".into()), Just("</function>".into()), Just("</parameter".into()),
            Just("<function=".into()), Just("<parameter=".into()), Just("<tool".into()), Just("{\"a\": 1}".into()),
        ], 0..5),
    ) {
        let city = pieces.concat();
        let text = CALL.replace("São <b>Paulo", &city);
        let grammar = matcher(&bytes(), spec(&ToolSyntax::Qwen3Coder, ToolMode::Required, false));
        if takes(&grammar, &ids_of(&text)) {
            let calls = assert_calls(&ToolSyntax::Qwen3Coder, &text);
            let arguments: Value = serde_json::from_str(&calls[0].arguments).unwrap();
            prop_assert_eq!(calls.len(), 1);
            prop_assert_eq!(arguments["city"].as_str(), Some(city.as_str()), "{}", text);
        } else {
            let tags = ["</parameter>", "</function>", "<function="];
            prop_assert!(tags.iter().any(|t| city.contains(t)), "{}", text);
        }
    }
}
