//! OpenAI's rules for strict schemas: an object lists all its properties. Called by `walk`.

use octet_parser::Types;
use serde_json::{Map, Value};

/// Checks the rules; the error says which is broken.
pub fn check(schema: &Map<String, Value>) -> Result<(), String> {
    let object = schema.contains_key("properties")
        || (schema.contains_key("type") && Types::declared(schema).is_none_or(|t| t.has(Types::OBJECT)));
    if !object {
        return Ok(());
    }
    if schema.get("additionalProperties") != Some(&Value::Bool(false)) {
        return Err("strict: an object needs 'additionalProperties': false".into());
    }
    let required = schema.get("required").and_then(Value::as_array);
    let missing = schema
        .get("properties")
        .and_then(Value::as_object)
        .and_then(|p| p.keys().find(|k| !required.is_some_and(|r| r.iter().any(|v| v == k.as_str()))));
    match missing {
        Some(name) => Err(format!(
            "strict: 'required' has to list every property, and '{}' is missing (an optional one is a union with null)",
            name.escape_debug()
        )),
        None => Ok(()),
    }
}
