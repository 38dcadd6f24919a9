//! Answers in JSON: a schema's grammar accepts the same documents as an independent validator.

use crate::support::{bytes, ids_of, matcher, takes, text_of, walk};
use octet_grammar::GrammarSpec;
use proptest::prelude::*;
use serde::Serialize;
use serde_json::{Map, Value, json};

fn spec(schema: &Value) -> GrammarSpec {
    GrammarSpec::JsonSchema(schema.clone())
}

fn validator(schema: &Value) -> jsonschema::Validator {
    jsonschema::options().should_validate_formats(true).build(schema).unwrap()
}

/// Schemas as requests bring them: with documents that are valid by them, and documents that are not.
fn schemas() -> Vec<(Value, Vec<Value>, Vec<Value>)> {
    vec![
        (
            json!({"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Steps", "type": "object", "properties": {
                "steps": {"type": "array", "items": {"type": "object", "properties": {
                    "explanation": {"type": "string", "description": "why"}, "output": {"type": "string"},
                }, "required": ["explanation", "output"], "additionalProperties": false}},
                "final_answer": {"type": "string"},
            }, "required": ["steps", "final_answer"], "additionalProperties": false}),
            vec![
                json!({"steps": [{"explanation": "é\n", "output": "\""}], "final_answer": "x = 3"}),
                json!({"steps": [], "final_answer": ""}),
            ],
            vec![json!({"steps": []}), json!({"steps": [{}], "final_answer": ""}), json!([])],
        ),
        // As pydantic writes it.
        (
            json!({"$defs": {"Kind": {"enum": ["a", "b c"], "type": "string"},
                    "Item": {"properties": {"kind": {"$ref": "#/$defs/Kind"}, "count": {"default": 1, "minimum": 0, "maximum": 250, "type": "integer"},
                        "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": null}}, "required": ["kind"], "type": "object"}},
                "properties": {"items": {"items": {"$ref": "#/$defs/Item"}, "minItems": 1, "maxItems": 3, "type": "array"}},
                "required": ["items"], "type": "object", "additionalProperties": false}),
            vec![json!({"items": [{"kind": "b c", "count": 250, "note": null}, {"kind": "a"}]})],
            vec![
                json!({"items": []}),
                json!({"items": [{"kind": "c"}]}),
                json!({"items": [{"kind": "a", "count": 251}]}),
                json!({"items": [{"kind": "a"}, {"kind": "a"}, {"kind": "a"}, {"kind": "a"}]}),
            ],
        ),
        // A tree.
        (
            json!({"definitions": {"node": {"type": "object", "properties": {"value": {"type": "number"},
                    "children": {"type": "array", "maxItems": 2, "items": {"$ref": "#/definitions/node"}}},
                "required": ["value"], "additionalProperties": false}}, "$ref": "#/definitions/node"}),
            vec![json!({"value": -1.5e3, "children": [{"value": 0}, {"value": 1, "children": []}]})],
            vec![json!({"children": []}), json!({"value": 1, "children": [{}]}), json!({"value": "1"})],
        ),
        // Told apart by a property.
        (
            json!({"oneOf": [
                {"type": "object", "properties": {"t": {"const": "circle"}, "r": {"type": "number", "exclusiveMinimum": 0, "maximum": 10}},
                 "required": ["t", "r"], "additionalProperties": false},
                {"type": "object", "properties": {"t": {"const": "square"}, "side": {"type": "integer", "multipleOf": 5, "maximum": 1000, "minimum": -1000}},
                 "required": ["t", "side"], "additionalProperties": false}]}),
            vec![json!({"t": "circle", "r": 0.5}), json!({"t": "square", "side": 15})],
            vec![
                json!({"t": "circle", "r": 0}),
                json!({"t": "square", "side": 7}),
                json!({"t": "square", "r": 1}),
            ],
        ),
        (
            json!({"type": "object", "properties": {
                "id": {"type": "string", "pattern": "^[A-Z]{2}-\\d{3}$"}, "day": {"type": "string", "format": "date"},
                "ip": {"type": "string", "format": "ipv4"}, "uuid": {"type": "string", "format": "uuid"},
                "short": {"type": "string", "minLength": 1, "maxLength": 4},
            }, "required": ["id", "day"], "additionalProperties": false}),
            vec![json!({"id": "AB-123", "day": "2024-02-28", "ip": "127.0.0.1", "short": "éééé"})],
            vec![
                json!({"id": "AB-12", "day": "2024-02-28"}),
                json!({"id": "AB-123", "day": "2024-13-28"}),
                json!({"id": "AB-123", "day": "2024-02-28", "short": "abcde"}),
                json!({"id": "AB-123", "day": "2024-02-28", "short": ""}),
            ],
        ),
        // Maps and tuples.
        (
            json!({"type": "object", "additionalProperties": {"type": "array", "prefixItems": [{"type": "boolean"}, {"enum": [1, "x", null, {"a": [1]}]}],
                "items": false, "minItems": 2}}),
            vec![json!({}), json!({"any": [true, {"a": [1]}], "thing": [false, 1]})],
            vec![json!({"a": [true]}), json!({"a": [true, 2]}), json!({"a": [true, 1, 1]})],
        ),
        (
            json!({"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
                {"properties": {"b": {"type": ["string", "null"]}}, "required": ["b"]}], "additionalProperties": true}),
            vec![json!({"a": 1, "b": null})],
            vec![json!({"a": 1}), json!({"a": 1, "b": 2})],
        ),
        (
            json!({"type": "object", "patternProperties": {"^x_": {"type": "integer"}}, "additionalProperties": false}),
            vec![json!({"x_a": 1, "x_": 2})],
            vec![json!({"y": 1}), json!({"x_a": "1"})],
        ),
        (json!(true), vec![json!(null), json!([1, {"a": "b"}])], vec![]),
    ]
}

/// The sampled document; `None` for JSON with numbers beyond 64-bit floats, which serde_json does not read.
fn parsed(text: &str) -> Option<Value> {
    match serde_json::from_str(text) {
        Ok(document) => Some(document),
        Err(e) if e.to_string().contains("number out of range") => None,
        Err(e) => panic!("{text}: {e}"),
    }
}

#[test]
fn json_may_be_indented_and_has_no_long_runs_of_space() {
    let schema = json!({"type": "object", "required": ["a", "b"], "additionalProperties": false, "properties": {
        "a": {"type": "array", "items": {"type": "object"}}, "b": {"type": "integer"},
    }});
    let answer = json!({"a": [{"c": [{"d": {}}], "e": []}], "b": 1});
    for spec in [spec(&schema), GrammarSpec::JsonObject] {
        let m = matcher(&bytes(), spec);
        let takes = |text: &str| takes(&m, &ids_of(text));
        for indent in ["", " ", "  ", "   ", "    ", "\t"] {
            // serde_json's own pretty printer.
            let mut out = Vec::new();
            let formatter = serde_json::ser::PrettyFormatter::with_indent(indent.as_bytes());
            answer.serialize(&mut serde_json::Serializer::with_formatter(&mut out, formatter)).unwrap();
            let text = String::from_utf8(out).unwrap();
            assert!(takes(&text), "{text}");
            assert!(takes(&text.replace('\n', "\r\n")), "{text}");
        }
        assert!(takes(&answer.to_string()) && takes(r#"{"a": [], "b": 1}"#));
        for run in ["  ", "\t", "\n\n", &format!("\n{}", " ".repeat(21)), " \n"] {
            assert!(!takes(&format!(r#"{{"a":{run}[], "b": 1}}"#)), "{run:?}");
        }
    }
}

#[test]
fn documents_are_accepted_as_by_a_validator() {
    let vocabulary = bytes();
    for (schema, yes, no) in schemas() {
        let (grammar, validator) = (matcher(&vocabulary, spec(&schema)), validator(&schema));
        for (documents, valid) in [(yes, true), (no, false)] {
            for document in documents {
                assert_eq!(validator.is_valid(&document), valid, "{schema} {document}");
                for text in [document.to_string(), serde_json::to_string_pretty(&document).unwrap()] {
                    assert_eq!(takes(&grammar, &ids_of(&text)), valid, "{schema} {text}");
                }
            }
        }
    }
}

#[test]
fn sampled_documents_are_valid() {
    let vocabulary = bytes();
    for (schema, ..) in schemas() {
        let (grammar, validator) = (matcher(&vocabulary, spec(&schema)), validator(&schema));
        for seed in 1..=60 {
            let text = text_of(&walk(&grammar, seed, seed as usize * 3));
            let Some(document) = parsed(&text) else { continue };
            if let Err(e) = validator.validate(&document) {
                panic!("{schema} {text}: {e}");
            }
        }
    }
}

/// What pydantic writes says nothing of `additionalProperties`.
#[test]
fn answers_have_no_properties_that_the_schema_does_not_list() {
    let pet = json!({"properties": {"name": {"type": "string"}}, "required": ["name"], "title": "Pet", "type": "object"});
    let schema = json!({"$defs": {"Pet": pet}, "properties": {
        "name": {"type": "string"}, "pets": {"items": {"$ref": "#/$defs/Pet"}, "type": "array"}, "more": {"type": "object"},
    }, "required": ["name", "pets"], "title": "Person", "type": "object"});
    let grammar = matcher(&bytes(), spec(&schema));
    for (document, valid) in [
        (json!({"name": "A", "pets": [{"name": "B"}]}), true),
        (json!({"name": "A", "pets": [], "more": {"any": [1]}}), true),
        (json!({"name": "A", "pets": [], "age": 1}), false),
        (json!({"name": "A", "pets": [{"name": "B", "age": 1}]}), false),
    ] {
        assert_eq!(takes(&grammar, &ids_of(&document.to_string())), valid, "{document}");
    }
}

#[test]
fn any_object_is_an_object() {
    let grammar = matcher(&bytes(), GrammarSpec::JsonObject);
    for seed in 1..=60 {
        let text = text_of(&walk(&grammar, seed, 60));
        assert!(parsed(&text).is_none_or(|d| d.is_object()), "{text}");
    }
    for text in ["{}", "{\"a\": [1.5e-3, {\"b\": null}]}", "{\n  \"é\": true\n}"] {
        assert!(takes(&grammar, &ids_of(text)), "{text}");
    }
    for text in ["", "[]", "1", "{", "{\"a\"}", "{a: 1}", "{} ", "```json\n{}", "{\"a\": 1,}"] {
        assert!(!takes(&grammar, &ids_of(text)), "{text}");
    }
}

/// Libraries send `strict: true` with any schema, and what OpenAI's strict mode forbids can be enforced.
#[test]
fn schemas_need_not_follow_openais_strict_mode() {
    let a = json!({"type": "object", "properties": {"k": {"const": "x"}, "v": {"type": "integer"}}, "required": ["k"]});
    for (schema, yes, no) in [
        (
            a.clone(),
            vec![json!({"k": "x"}), json!({"k": "x", "v": 1})],
            vec![json!({}), json!({"k": "x", "w": 1})],
        ),
        (
            json!({"type": "object", "additionalProperties": {"type": "integer"}}),
            vec![json!({}), json!({"b": 2})],
            vec![json!({"b": "c"})],
        ),
        (
            json!({"anyOf": [a, {"type": "object", "properties": {"z": {"type": "null"}}, "required": ["z"]}]}),
            vec![json!({"k": "x"}), json!({"z": null})],
            vec![json!({}), json!({"k": "x", "z": null})],
        ),
    ] {
        let grammar = matcher(&bytes(), spec(&schema));
        for (documents, valid) in [(yes, true), (no, false)] {
            for document in documents {
                assert_eq!(takes(&grammar, &ids_of(&document.to_string())), valid, "{schema} {document}");
            }
        }
    }
}

/// A vocabulary as models have them: tokens are longer, and a text is spelled in many ways.
#[test]
fn a_models_own_tokens_spell_valid_documents() {
    let Some(qwen) = crate::support::Real::qwen() else { return };
    let vocabulary = qwen.vocabulary();
    for (schema, yes, no) in schemas() {
        let grammar = matcher(&vocabulary, spec(&schema));
        for (documents, valid) in [(yes, true), (no, false)] {
            for document in documents {
                let text = serde_json::to_string_pretty(&document).unwrap();
                assert_eq!(takes(&grammar, &qwen.encode(&text)), valid, "{schema} {text}");
            }
        }
    }
}

#[test]
fn a_whole_number_among_values_is_written_without_a_fraction() {
    for (values, document) in
        [(json!([3.0]), "3"), (json!([[0.0]]), "[0]"), (json!([{"a": -2.0}]), "{\"a\":-2}")]
    {
        let grammar = matcher(&bytes(), spec(&json!({"enum": values})));
        assert!(takes(&grammar, &ids_of(document)), "{document}");
        assert!(
            !takes(&grammar, &ids_of(&values[0].to_string())),
            "{values}: the other way is taken too; say so"
        );
    }
}

/// Documents, without control characters: grammars may not take them all in the escapes that serde_json writes.
fn document() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-1_000_000i64..1_000_000).prop_map(Value::from),
        // None that is whole: among the values of an `enum` such a one is written in one way only (below).
        (-1_000_000i32..1_000_000).prop_map(|n| Value::from(f64::from(n) + 1.0 / 64.0)),
        "[ -~é漢😀\n\t]{0,6}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec(("[a-c~/$ \"é]{0,3}", inner), 0..4)
                .prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

/// A schema that `value` is valid by: `choices` decides how narrow it is.
fn schema_of(value: &Value, choices: &mut impl Iterator<Item = u8>) -> Value {
    let choice = choices.next().unwrap_or(0);
    match value {
        _ if choice % 8 == 7 => json!({"enum": [value, "else"]}),
        Value::Null => json!({"type": "null"}),
        Value::Bool(_) => json!({"type": ["boolean", "null"]}),
        Value::Number(n) if n.is_f64() => json!({"type": "number"}),
        Value::Number(n) => json!({"type": "integer", "minimum": n, "maximum": n.as_i64().unwrap() + 3}),
        Value::String(s) => json!({"type": "string", "maxLength": s.chars().count()}),
        Value::Array(all) if choice.is_multiple_of(2) && !all.is_empty() => {
            let each: Vec<Value> = all.iter().map(|v| schema_of(v, choices)).collect();
            json!({"type": "array", "prefixItems": each, "items": false, "minItems": all.len()})
        }
        Value::Array(all) => {
            let each: Vec<Value> = all.iter().map(|v| schema_of(v, choices)).collect();
            let items = if each.is_empty() { json!(false) } else { json!({"anyOf": each}) };
            json!({"type": "array", "items": items, "maxItems": all.len()})
        }
        Value::Object(all) => {
            let each: Map<String, Value> =
                all.iter().map(|(k, v)| (k.clone(), schema_of(v, choices))).collect();
            let required: Vec<&String> =
                all.keys().filter(|k| choice.is_multiple_of(2) || k.len().is_multiple_of(2)).collect();
            json!({"type": "object", "properties": each, "required": required, "additionalProperties": false})
        }
    }
}

/// The document with one thing changed: a member or an element left out, or a leaf of another type.
fn changed(value: &Value, choices: &mut impl Iterator<Item = u8>) -> Value {
    let choice = usize::from(choices.next().unwrap_or(0));
    match value {
        Value::Array(all) if !all.is_empty() => {
            let mut all = all.clone();
            let at = choice % all.len();
            if choice.is_multiple_of(3) {
                all.remove(at);
            } else {
                all[at] = changed(&all[at], choices);
            }
            Value::Array(all)
        }
        Value::Object(all) if !all.is_empty() => {
            let name = all.keys().nth(choice % all.len()).unwrap();
            let members = all.iter().filter(|(k, _)| !choice.is_multiple_of(3) || *k != name);
            members
                .map(|(k, v)| (k.clone(), if k == name { changed(v, choices) } else { v.clone() }))
                .collect()
        }
        Value::String(_) => json!(1),
        _ => json!("1"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn random_documents_are_accepted_by_their_schemas(
        document in document(),
        narrow in prop::collection::vec(any::<u8>(), 16),
        change in prop::collection::vec(any::<u8>(), 8),
    ) {
        let schema = schema_of(&document, &mut narrow.into_iter());
        let (grammar, validator) = (matcher(&bytes(), spec(&schema)), validator(&schema));
        for document in [changed(&document, &mut change.into_iter()), document] {
            let valid = validator.is_valid(&document);
            prop_assert_eq!(takes(&grammar, &ids_of(&document.to_string())), valid, "{} {}", schema, document);
        }
    }
}
