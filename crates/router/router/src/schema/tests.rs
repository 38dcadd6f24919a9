//! What the check finds is what the crate `jsonschema` finds.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::{Stop, check};

const STEPS: u64 = 100_000;

fn checked(schema: &Value, value: &Value) -> Result<(), Stop> {
    check(schema, value, &mut { STEPS })
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-3i64..5).prop_map(Value::from),
        (-3i32..5).prop_map(|n| (f64::from(n) / 2.0).into()),
        any::<i32>().prop_map(|n| (f64::from(n) * 1.5).into()),
        Just(json!(12_000_000_000_000_000_000u64)),
        prop::sample::select(vec!["", "a", "ab", "b", "äö", "\u{1f600}x", "a/b~c"]).prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(name(), inner, 0..4).prop_map(|m| m.into_iter().collect()),
        ]
    })
}

fn name() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["a", "b", "ab", "a/b~c"]).prop_map(String::from)
}

fn schema() -> impl Strategy<Value = Value> {
    let types = vec!["null", "boolean", "integer", "number", "string", "array", "object"];
    let keyword = prop_oneof![
        prop::sample::subsequence(types, 1..4).prop_map(|t| json!({"type": t})),
        value().prop_map(|v| json!({"const": v})),
        prop::collection::vec(value(), 1..4).prop_map(|v| json!({"enum": v})),
        (prop::sample::select(BOUNDS.to_vec()), -2i32..5).prop_map(|(k, n)| json!({k: f64::from(n) / 2.0})),
        (1i32..5).prop_map(|n| json!({"multipleOf": f64::from(n) / 2.0})),
        (prop::sample::select(COUNTS.to_vec()), 0u32..4).prop_map(|(k, n)| json!({k: n})),
        Just(json!({"uniqueItems": true})),
        Just(json!({"$ref": "#/$defs/d"})),
        prop::sample::select(vec!["^a", "b$", "^\\w*$", "[äö]", "^.$"]).prop_map(|p| json!({"pattern": p})),
        prop::collection::btree_set(name(), 0..3).prop_map(|n| json!({"required": n})),
        prop::collection::btree_set(name(), 0..3).prop_map(|n| json!({"dependentRequired": {"a": n}})),
        any::<bool>().prop_map(Value::Bool),
    ];
    keyword.prop_recursive(4, 32, 4, |inner| {
        let some = || prop::collection::vec(inner.clone(), 1..4);
        let named = || prop::collection::btree_map(name(), inner.clone(), 0..3);
        prop_oneof![
            (prop::sample::select(vec!["allOf", "anyOf", "oneOf"]), some()).prop_map(|(k, s)| json!({k: s})),
            (prop::sample::select(SINGLE.to_vec()), inner.clone()).prop_map(|(k, s)| json!({k: s})),
            (prop::sample::select(vec!["properties", "dependentSchemas", "dependencies"]), named())
                .prop_map(|(k, s)| json!({k: s})),
            inner.clone().prop_map(|s| json!({"patternProperties": {"^a": s}})),
            (named(), inner.clone()).prop_map(|(p, s)| json!({"properties": p, "additionalProperties": s})),
            (some(), inner.clone()).prop_map(|(p, s)| json!({"prefixItems": p, "items": s})),
            (some(), inner.clone()).prop_map(|(p, s)| json!({"items": p, "additionalItems": s})),
            (inner.clone(), 0..3, 0..3)
                .prop_map(|(s, min, max)| json!({"contains": s, "minContains": min, "maxContains": max})),
            (inner.clone(), inner.clone(), inner.clone())
                .prop_map(|(i, t, e)| json!({"if": i, "then": t, "else": e})),
            // Keywords beside each other.
            prop::collection::vec(inner.clone(), 2..4).prop_map(|all| {
                let keys = all.into_iter().filter_map(|s| s.as_object().cloned()).flatten();
                Value::Object(keys.collect::<Map<_, _>>())
            }),
        ]
    })
}

const BOUNDS: [&str; 4] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"];
const COUNTS: [&str; 6] =
    ["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"];
const SINGLE: [&str; 5] = ["not", "items", "contains", "propertyNames", "additionalProperties"];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn as_another_implementation(
        main in schema(),
        named in schema(),
        draft in prop::sample::select(vec![
            "",
            "https://json-schema.org/draft/2020-12/schema",
            "https://json-schema.org/draft/2019-09/schema",
            "http://json-schema.org/draft-07/schema#",
        ]),
        values in prop::collection::vec(value(), 8),
    ) {
        let mut whole = json!({"allOf": [main], "$defs": {"d": named}});
        if !draft.is_empty() {
            whole["$schema"] = draft.into();
        }
        let theirs = jsonschema::validator_for(&whole);
        for value in values {
            match (checked(&whole, &value), &theirs) {
                // Not valid.
                (_, Err(_)) => {}
                (Err(Stop::Unknown), Ok(_)) => {
                    prop_assert!(named.to_string().contains("$ref"), "{} {}: only the endless is unknown", whole, value);
                }
                (ours, Ok(theirs)) => {
                    prop_assert_eq!(ours.is_ok(), theirs.is_valid(&value), "{} {} {:?}", whole, value, ours);
                }
            }
        }
    }
}

/// Where it is, and what.
#[test]
fn what_is_wrong_is_said_without_the_value() {
    let broken = |schema: Value, value: Value| match checked(&schema, &value) {
        Err(Stop::Broken { at, what }) => (at, what),
        other => panic!("{schema} {value}: {other:?}"),
    };
    let list = json!({"properties": {"a/b~c": {"items": {"type": "integer", "minimum": 1}}}});
    for (value, at, what) in [
        (json!({"a/b~c": [1, 0]}), "/a~1b~0c/1", "below the minimum of 1"),
        (json!({"a/b~c": [1, 2, "secret"]}), "/a~1b~0c/2", "the value is not of type \"integer\""),
    ] {
        assert_eq!(broken(list.clone(), value), (at.into(), what.into()));
    }
    for (schema, value, what) in [
        (json!({"required": ["b"]}), json!({"secret": 1}), "'b' is a required property"),
        (json!({"enum": [1, "x"]}), json!("secret"), "the value is not one of [1,\"x\"]"),
        (
            json!({"anyOf": [{"type": "null"}, false]}),
            json!("secret"),
            "the value matches no schema of 'anyOf'",
        ),
        (json!({"pattern": "^a"}), json!("secret"), "the value does not match the pattern \"^a\""),
        (
            json!({"propertyNames": {"maxLength": 3}}),
            json!({"secret": 1}),
            "a property's name is not allowed",
        ),
        (json!({"additionalProperties": false}), json!({"x": "secret"}), "no value is allowed here"),
    ] {
        assert_eq!(broken(schema, value).1, what);
    }
}

/// Steps are charged for what takes time: long references, lists of types, expressions that have many states.
#[test]
fn what_takes_long_is_unknown() {
    // 256 times the same schema, by references to references.
    let many_times = |name: &str, one: &Value| {
        let mut defs = Map::from_iter([(name.to_string(), one.clone())]);
        let mut last = name.to_string();
        for i in 0..8 {
            let of = json!({"$ref": format!("#/$defs/{last}")});
            last = format!("d{i}");
            defs.insert(last.clone(), json!({"allOf": [of, of]}));
        }
        checked(&json!({"$ref": format!("#/$defs/{last}"), "$defs": defs}), &json!(1))
    };
    assert_eq!(many_times("short", &json!(true)), Ok(()));
    assert_eq!(many_times(&"a".repeat(1 << 20), &json!(true)), Err(Stop::Unknown));
    let types = |n: usize| json!({"type": vec!["integer"; n]});
    assert_eq!(many_times("short", &types(100)), Ok(()));
    assert_eq!(many_times("short", &types(1000)), Err(Stop::Unknown));
    let text = Value::String("ab".repeat(1 << 19));
    assert_eq!(checked(&json!({"pattern": "(a|b)*a(a|b){200}c"}), &text), Err(Stop::Unknown));
    let short = checked(&json!({"pattern": "(a|b)*a(a|b){200}c"}), &json!("a".repeat(100)));
    assert!(matches!(short, Err(Stop::Broken { .. })));
    // Common ones are checked over and over.
    let dates = json!({"items": {"pattern": "^\\d{4}-\\d{2}-\\d{2}$"}});
    assert_eq!(checked(&dates, &json!(vec!["2024-10-21"; 1000])), Ok(()));
}

/// Large numbers leave few bits behind the point, and some do.
#[test]
fn multiples_of_large_numbers() {
    for (n, of, holds) in [
        (1_234_567_890.5, 1.0, false),
        (1_234_567_890.5, 0.5, true),
        (1_234_567_890.25, 0.5, false),
        (1e15 + 0.5, 1.0, false),
        (0.3, 0.1, true),
        (123_456.7, 0.1, true),
        (123_456.75, 0.1, false),
        (1e300, 3.0, true),
    ] {
        assert_eq!(checked(&json!({"multipleOf": of}), &json!(n)).is_ok(), holds, "{n} of {of}");
    }
}

/// What other drafts say otherwise.
#[test]
fn drafts_differ() {
    let draft = |n: &str, mut schema: Value| {
        schema["$schema"] = format!("http://json-schema.org/draft-{n}/schema#").into();
        schema
    };
    let strict = json!({"minimum": 1, "exclusiveMinimum": true, "maximum": 3, "exclusiveMaximum": true});
    assert_eq!(checked(&draft("04", strict.clone()), &json!(2)), Ok(()));
    for n in [1, 3] {
        assert!(matches!(checked(&draft("04", strict.clone()), &json!(n)), Err(Stop::Broken { .. })));
    }
    assert_eq!(checked(&strict, &json!(2)), Err(Stop::Unknown));
    // Up to draft 7 nothing counts beside a reference.
    let beside = json!({"$ref": "#/$defs/any", "type": "null", "$defs": {"any": true}});
    assert_eq!(checked(&draft("07", beside.clone()), &json!(1)), Ok(()));
    assert!(matches!(checked(&beside, &json!(1)), Err(Stop::Broken { .. })));
    assert_eq!(
        checked(&json!({"$schema": "https://a.example/own", "type": "null"}), &json!(1)),
        Err(Stop::Unknown)
    );
}

/// A tree refers to itself; a schema that only refers has no end.
#[test]
fn what_refers_to_itself_ends() {
    let tree = json!({"type": "object", "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}});
    assert_eq!(checked(&tree, &json!({"left": {"right": {}}})), Ok(()));
    let wrong = checked(&tree, &json!({"left": {"right": 1}}));
    assert!(matches!(wrong, Err(Stop::Broken { at, .. }) if at == "/left/right"));
    assert_eq!(checked(&json!({"anyOf": [{"$ref": "#"}, true]}), &json!(1)), Err(Stop::Unknown));
    // Pairs of items take more steps than there are.
    let many: Vec<u32> = (0..1000).collect();
    assert_eq!(checked(&json!({"uniqueItems": true}), &json!(many)), Err(Stop::Unknown));
}
