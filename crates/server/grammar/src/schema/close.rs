//! Which objects allow only the properties that they list: by the standard a schema that says nothing of `additionalProperties` allows any,
//! but its author means those that it lists, and a model would go on writing others.

use serde_json::{Map, Value};

use super::keywords::{Keyword, keyword};

/// Keywords beside which the listed properties are not all that the author means.
const OTHERS: [&str; 15] = [
    "additionalProperties",
    "patternProperties",
    "unevaluatedProperties",
    "propertyNames",
    "allOf",
    "anyOf",
    "oneOf",
    "$ref",
    "$dynamicRef",
    "$recursiveRef",
    "if",
    "dependentSchemas",
    "dependencies",
    "enum",
    "const",
];

/// Whether an object allows only its listed properties. False if it lists none, or says so itself, or could not be met then.
pub fn closes(schema: &Map<String, Value>) -> bool {
    let Some(listed) = schema.get("properties").and_then(Value::as_object).filter(|p| !p.is_empty()) else {
        return false;
    };
    let required = schema.get("required").and_then(Value::as_array);
    // `false` as a property's schema forbids it: the author lists what must not be there.
    let allowed = listed.values().filter(|schema| **schema != Value::Bool(false)).count();
    let is_listed = |name: &Value| name.as_str().is_none_or(|name| listed.contains_key(name));
    let least = schema.get("minProperties").and_then(Value::as_f64).unwrap_or(0.0);
    let open = |name: &&&str| {
        schema
            .get(**name)
            .is_some_and(|value| **name != "unevaluatedProperties" || *value != Value::Bool(false))
    };
    allowed > 0
        && !OTHERS.iter().any(|name| open(&name))
        && required.into_iter().flatten().all(is_listed)
        && least <= allowed as f64
}

/// Whether an object allows what other schemas list: alternatives that only require listed properties list none.
pub fn lists_elsewhere(schema: &Map<String, Value>) -> bool {
    let lists = |member: &Value| {
        let asserts = |name: &String| name != "required" && keyword(name) != Keyword::Annotation;
        member.as_object().is_none_or(|member| member.keys().any(asserts))
    };
    let combined = ["allOf", "anyOf", "oneOf"].iter().filter_map(|name| schema.get(*name)?.as_array());
    schema.contains_key("$ref") || combined.flatten().any(lists)
}

/// Whether what the keyword `name` of a schema holds must be met together with others: properties of one may be listed by another, so
/// neither can be closed. `allOf` with one schema, as pydantic writes a reference with a description, is no combination.
pub fn combines(name: &str, schema: &Map<String, Value>) -> bool {
    match name {
        "allOf" | "anyOf" | "oneOf" | "$ref" => {
            let asserts = |key: &&String| *key != "type" && keyword(key) != Keyword::Annotation;
            let several = |value: &Value| value.as_array().is_some_and(|all| all.len() > 1);
            schema.keys().filter(asserts).count() > 1
                || name == "allOf" && schema.get(name).is_some_and(several)
        }
        "properties" | "patternProperties" => schema.contains_key("patternProperties"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::closes;

    #[test]
    fn objects_that_list_what_may_be_there_are_closed() {
        let closed = |schema: Value| closes(schema.as_object().expect("an object"));
        assert!(closed(json!({"properties": {"a": {}}})));
        assert!(closed(json!({"properties": {"a": {}}, "unevaluatedProperties": false})));
        assert!(closed(json!({"properties": {"a": {}, "b": false}})));
        for open in [
            json!({"type": "object"}),
            json!({"properties": {}}),
            json!({"properties": {"secret": false}}),
            json!({"properties": {"a": {}}, "additionalProperties": true}),
            json!({"properties": {"a": {}}, "unevaluatedProperties": true}),
            json!({"properties": {"a": {}}, "required": ["b"]}),
            json!({"properties": {"a": {}, "b": false}, "minProperties": 2}),
        ] {
            assert!(!closed(open.clone()), "{open}");
        }
    }
}
