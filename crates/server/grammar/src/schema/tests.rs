//! Tests of schemas: what is refused and where, what is rewritten, and limits.

use serde_json::{Map, Value, json};

use super::{Policy, Prepared, prepare};
use crate::Error;
use crate::limits::{ENUM_VALUES_MAX, PROPERTIES_MAX, SCHEMA_DEPTH_MAX};

const REFUSE: Policy = Policy::Refuse;

fn refuse(schema: &Value) -> Result<Prepared, Error> {
    prepare(schema, "the schema", REFUSE, false)
}

fn said(schema: &Value) -> String {
    refuse(schema).expect_err(&schema.to_string()).to_string()
}

#[test]
fn unsupported_keywords_are_refused_by_name_and_place() {
    for (name, value) in [
        ("not", json!({})),
        ("if", json!({})),
        ("dependentRequired", json!({})),
        ("dependentSchemas", json!({})),
        ("dependencies", json!({})),
        ("contains", json!({})),
        ("$dynamicRef", json!("#a")),
        ("$recursiveRef", json!("#")),
        ("uniqueItems", json!(true)),
        ("propertyNames", json!({"pattern": "^a"})),
        ("unevaluatedProperties", json!(false)),
        ("unevaluatedItems", json!(false)),
    ] {
        let schema = json!({"properties": {"a/b": {"items": {"type": "string", name: value}}}});
        let said = said(&schema);
        assert!(said.contains(&format!("'{name}' is not supported")), "{said}");
        assert!(said.contains("'#/properties/a~1b/items'"), "{said}");
        let relaxed = prepare(&schema, "the schema", Policy::Relax, false).unwrap();
        assert!(relaxed.warnings.len() == 1 && relaxed.warnings[0].contains(name), "{:?}", relaxed.warnings);
        assert_eq!(relaxed.schema["properties"]["a/b"]["items"], json!({"type": "string"}));
    }
}

#[test]
fn malformed_keywords_are_refused() {
    for (schema, part) in [
        (json!(1), "expected a schema"),
        (json!({"type": "text"}), "'type' is 'text'"),
        (json!({"type": ["string", 1]}), "'type' is a list"),
        (json!({"type": []}), "'type' is a list"),
        (json!({"enum": []}), "'enum' is not a list"),
        (json!({"required": true}), "'required' is not a list"),
        (json!({"minimum": "1"}), "'minimum' is not a number"),
        (json!({"multipleOf": 0}), "'multipleOf' is not a number above 0"),
        (json!({"multipleOf": 100_003}), "'multipleOf' 100003 is too large"),
        (json!({"allOf": [{"multipleOf": 997}, {"multipleOf": 991}]}), "too much with the others"),
        (json!({"type": "integer", "minimum": 1e30}), "beyond 2^53"),
        (json!({"enum": [1e23]}), "beyond 2^53"),
        (json!({"multipleOf": 1e-9}), "'multipleOf' 1e-9 is too large, too small"),
        (json!({"allOf": [{"multipleOf": 99_991}, {"multipleOf": 99_989}]}), "too much with the others"),
        (json!({"minLength": -1}), "'minLength' is not a whole number"),
        (json!({"maxItems": 1e99}), "'maxItems' is not a whole number"),
        (json!({"pattern": "("}), "'pattern'"),
        (json!({"pattern": "(?=a)"}), "'pattern'"),
        (json!({"patternProperties": {"[": {}}}), "'[' in 'patternProperties'"),
        (json!({"anyOf": []}), "'anyOf' is not a list of schemas"),
        (json!({"properties": []}), "'properties' is not an object"),
        (json!({"const": 9007199254740993u64}), "9007199254740993"),
        (json!({"$ref": 1}), "'$ref' is not a string"),
        (json!({"$ref": "#/nowhere"}), "points to nothing"),
        (json!({"$ref": "#anchor"}), "anchor"),
        (json!({"$ref": "other.json#/a"}), "another document"),
    ] {
        let said = said(&schema);
        assert!(said.contains(part), "{schema}: {said}");
    }
}

#[test]
fn annotations_are_dropped_and_references_gathered() {
    let prepared = refuse(&json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema", "title": "T", "examples": [1],
        "properties": {"a": {"$ref": "#/definitions/x%20y", "description": "d"}, "b": {"$ref": "#/definitions/x y"}},
        "definitions": {"x y": {"type": "object", "properties": {"again": {"$ref": "#"}}}, "unused": {"not": {}}},
    }))
    .unwrap();
    let schema = prepared.schema.as_object().unwrap();
    assert_eq!(schema.keys().collect::<Vec<_>>(), ["properties", "type", "additionalProperties", "$defs"]);
    assert_eq!(schema["type"], "object");
    assert_eq!(schema["properties"]["a"], schema["properties"]["b"]);
    assert_eq!(schema["$defs"].as_object().unwrap().len(), 2);
    assert!(!prepared.open && prepared.warnings.is_empty());
}

#[test]
fn unknown_formats_are_annotations() {
    let schema = json!({"type": "string", "format": "color"});
    let prepared = refuse(&schema).unwrap();
    assert_eq!(prepared.schema, json!({"type": "string"}));
    assert!(prepared.warnings[0].contains("'color'"), "{:?}", prepared.warnings);
}

#[test]
fn one_of_becomes_any_of_where_that_says_the_same() {
    let tagged =
        |tag: &str| json!({"type": "object", "properties": {"t": {"const": tag}}, "required": ["t"]});
    for (alternatives, exclusive) in [
        (json!([{"type": "string"}, {"type": "integer"}, {"type": "null"}]), true),
        (json!([{"enum": [1, 2]}, {"enum": [3]}]), true),
        (json!([tagged("a"), tagged("b")]), true),
        (json!([{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]), true),
        (json!([{"type": "number"}, {"type": "integer"}]), false),
        (json!([tagged("a"), tagged("a")]), false),
        (json!([{"enum": [1, 2]}, {"enum": [2]}]), false),
        (json!([{}, {"type": "string"}]), false),
    ] {
        let schema = json!({"oneOf": alternatives, "$defs": {"a": tagged("a"), "b": tagged("b")}});
        match refuse(&schema) {
            Ok(prepared) => {
                assert!(exclusive, "{schema}");
                assert!(prepared.schema.get("oneOf").is_none() && prepared.schema["anyOf"].is_array());
            }
            Err(e) => assert!(!exclusive && e.to_string().contains("use 'anyOf'"), "{schema}: {e}"),
        }
    }
}

/// As llama.cpp's converter and xgrammar read schemas.
#[test]
fn objects_allow_only_listed_properties() {
    let inner = json!({"properties": {"b": {}}, "required": ["b"]});
    let outer = |value: Value| json!({"properties": {"a": value}});
    let with = |key: &str, value: Value| {
        let mut out = inner.clone();
        out[key] = value;
        out
    };
    let tagged = |tag: &str| json!({"properties": {"t": {"const": tag}}, "required": ["t"]});
    for (schema, pointer, closed) in [
        (inner.clone(), "", true),
        (outer(inner.clone()), "/properties/a", true),
        (outer(json!({"items": inner})), "/properties/a/items", true),
        (outer(json!({"prefixItems": [inner]})), "/properties/a/prefixItems/0", true),
        (json!({"additionalProperties": inner}), "/additionalProperties", true),
        (json!({"anyOf": [inner, {"type": "null"}]}), "/anyOf/0", true),
        (json!({"oneOf": [tagged("a"), tagged("b")]}), "/anyOf/1", true),
        (json!({"type": "object", "anyOf": [inner]}), "/anyOf/0", true),
        // As pydantic writes a reference with a description.
        (json!({"allOf": [inner], "description": "d", "default": {}}), "/allOf/0", true),
        (outer(json!({"$ref": "#/$defs/x", "description": "d"})), "/$defs/0", true),
        (with("not", json!({"required": ["c"]})), "", true),
        // Nothing is listed, or the schema says it.
        (json!({"type": "object"}), "", false),
        (json!({"properties": {}}), "", false),
        (with("additionalProperties", json!(true)), "", false),
        (with("additionalProperties", json!({"type": "string"})), "", false),
        (with("patternProperties", json!({"^x": {}})), "", false),
        (with("propertyNames", json!({"type": "string"})), "", false),
        // It could not be met.
        (with("required", json!(["b", "c"])), "", false),
        (with("minProperties", json!(2)), "", false),
        (with("const", json!({"b": 1, "c": 2})), "", false),
        // Together with others.
        (with("anyOf", json!([{"required": ["b"]}, {"required": ["c"]}])), "", false),
        (with("if", json!({})), "", false),
        (json!({"allOf": [inner, {"properties": {"c": {}}}]}), "/allOf/0", false),
        (
            json!({"allOf": [outer(inner.clone()), outer(json!({"properties": {"c": {}}}))]}),
            "/allOf/0/properties/a",
            false,
        ),
        (json!({"properties": {"a": {}}, "anyOf": [inner, {"properties": {"c": {}}}]}), "/anyOf/0", false),
        (json!({"anyOf": [inner], "oneOf": [inner]}), "/anyOf/0", false),
        (json!({"$ref": "#/$defs/x", "required": ["c"]}), "/$defs/0", false),
        (json!({"allOf": [{"$ref": "#/$defs/x"}, {"required": ["c"]}]}), "/$defs/0", false),
        (
            json!({"properties": {"x": inner}, "patternProperties": {"^x": {"properties": {"c": {}}}}}),
            "/properties/x",
            false,
        ),
    ] {
        let mut document = schema.clone();
        document["$defs"] = json!({"x": inner});
        let prepared = prepare(&document, "the schema", Policy::Relax, false).unwrap();
        let found =
            prepared.schema.pointer(pointer).unwrap_or_else(|| panic!("{schema}: {}", prepared.schema));
        assert_eq!(
            found.get("additionalProperties") == Some(&json!(false)),
            closed,
            "{schema} at '{pointer}'"
        );
    }
    // A definition that is used alone and in a combination is closed only alone.
    let x = json!({"$ref": "#/$defs/x"});
    let both = json!({"properties": {"a": x, "b": {"allOf": [x, {"properties": {"c": {}}}]}}, "$defs": {"x": inner}});
    let prepared = refuse(&both).unwrap().schema;
    let defs: Vec<&Value> = prepared["$defs"].as_object().unwrap().values().collect();
    assert_eq!(defs.len(), 2);
    assert_eq!(defs.iter().filter(|d| d["additionalProperties"] == false).count(), 1);
}

#[test]
fn tools_accept_only_listed_properties() {
    for open in [json!({"type": "object"}), json!({"properties": {"a": {}}, "required": ["b"]})] {
        let closed = prepare(&open, "the tool", Policy::Relax, true).unwrap();
        assert_eq!(closed.schema["additionalProperties"], json!(false));
        assert!(!closed.open && refuse(&open).unwrap().schema.get("additionalProperties").is_none());
    }
    let said_so = json!({"type": "object", "properties": {}, "additionalProperties": true});
    assert_eq!(
        prepare(&said_so, "the tool", Policy::Relax, true).unwrap().schema["additionalProperties"],
        json!(true)
    );
}

#[test]
fn too_large_schemas_are_refused() {
    let nested = (0..=SCHEMA_DEPTH_MAX).fold(json!({}), |inner, _| json!({"items": inner}));
    let wide: Map<String, Value> = (0..=PROPERTIES_MAX).map(|i| (format!("p{i}"), json!({}))).collect();
    let values: Vec<usize> = (0..=ENUM_VALUES_MAX).collect();
    // Twenty references, each to two of the next, with keywords beside them: a million when written out.
    let mut laughs: Map<String, Value> = (0..20)
        .map(|i| {
            let next = json!({"type": "object", "$ref": format!("#/$defs/{}", i + 1)});
            (i.to_string(), json!({"type": "object", "properties": {"a": next, "b": next}}))
        })
        .collect();
    laughs.insert("20".into(), json!({"type": "object"}));
    let product: Vec<Value> = (0..6)
        .map(|i| json!({"anyOf": (0..10).map(|j| json!({"required": [format!("{i}{j}")]})).collect::<Vec<_>>()}))
        .collect();
    let patterns: Vec<Value> =
        (0..5).map(|i| json!({"type": "string", "pattern": format!("x.*{i}")})).collect();
    for (schema, part) in [
        (nested, "nested more than"),
        (json!({"properties": wide}), "entries"),
        (json!({"enum": values}), "values"),
        (json!({"$ref": "#/$defs/0", "$defs": laughs}), "parts"),
        (json!({"type": "object", "allOf": product}), "parts"),
        (json!({"allOf": patterns}), "have to be met by one string"),
    ] {
        let said = said(&schema);
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn recursive_references_end() {
    for schema in [
        json!({"$ref": "#"}),
        json!({"anyOf": [{"$ref": "#"}, {"type": "null"}]}),
        json!({"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
        json!({"allOf": [{"$ref": "#"}]}),
    ] {
        // It must end, refused or not.
        let _ = refuse(&schema);
    }
}
