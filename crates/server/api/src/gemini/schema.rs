//! Converts Gemini's schemas (`responseSchema`, `parameters`: a subset of OpenAPI's) to JSON schemas.

use serde_json::{Map, Value};

use crate::json::camel;

/// Keys whose values are schemas, lists of schemas, and schemas by name.
const SCHEMA: [&str; 2] = ["items", "additionalProperties"];
const SCHEMAS: [&str; 2] = ["anyOf", "prefixItems"];
const NAMED: [&str; 2] = ["properties", "$defs"];
/// Keys with 64-bit numbers, which Google's JSON writes as strings.
const COUNTS: [&str; 6] =
    ["minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"];
/// Formats that add nothing to the type.
const FORMATS: [&str; 5] = ["enum", "float", "double", "int32", "int64"];

/// The equivalent JSON schema. A JSON schema is returned unchanged. (Its depth is bounded by that of bodies.)
pub(super) fn json_schema(schema: Map<String, Value>) -> Map<String, Value> {
    let (mut out, mut order, mut nullable) = (Map::new(), None, false);
    for (key, value) in schema {
        let key = match key.as_str() {
            "defs" => "$defs".to_string(),
            "ref" => "$ref".to_string(),
            _ => camel(&key),
        };
        let value = match (key.as_str(), value) {
            ("propertyOrdering", Value::Array(names)) => {
                order = Some(names);
                continue;
            }
            ("nullable", Value::Bool(is)) => {
                nullable = is;
                continue;
            }
            ("example", _) => continue,
            ("format", Value::String(format)) if FORMATS.contains(&format.as_str()) => continue,
            ("type", Value::String(kind)) if kind == "TYPE_UNSPECIFIED" => continue,
            ("type", Value::String(kind)) => kind.to_lowercase().into(),
            (key, Value::String(text)) if COUNTS.contains(&key) => {
                text.parse::<u64>().map_or(Value::String(text), Value::from)
            }
            (key, Value::Object(inner)) if SCHEMA.contains(&key) => json_schema(inner).into(),
            (key, Value::Array(items)) if SCHEMAS.contains(&key) => {
                items.into_iter().map(any_schema).collect()
            }
            (key, Value::Object(inner)) if NAMED.contains(&key) => {
                Value::Object(inner.into_iter().map(|(name, s)| (name, any_schema(s))).collect())
            }
            (_, other) => other,
        };
        out.insert(key, value);
    }
    if let (Some(names), Some(Value::Object(properties))) = (order, out.get_mut("properties")) {
        let mut ordered = Map::new();
        for name in names.iter().filter_map(Value::as_str) {
            if let Some(value) = properties.shift_remove(name) {
                ordered.insert(name.into(), value);
            }
        }
        ordered.append(properties);
        *properties = ordered;
    }
    if nullable {
        accept_null(&mut out);
    }
    out
}

/// The same for a schema that may be `true` or `false`.
pub(super) fn any_schema(value: Value) -> Value {
    match value {
        Value::Object(schema) => json_schema(schema).into(),
        other => other,
    }
}

/// Makes a schema accept `null`.
fn accept_null(schema: &mut Map<String, Value>) {
    if let Some(Value::String(kind)) = schema.get("type").cloned() {
        schema.insert("type".into(), Value::from(vec![kind, "null".into()]));
    }
    if let Some(Value::Array(values)) = schema.get_mut("enum") {
        values.push(Value::Null);
    }
    if let Some(Value::Array(schemas)) = schema.get_mut("anyOf") {
        schemas.push(serde_json::json!({"type": "null"}));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn openapi_keywords_become_json_schema_keywords() {
        let theirs = json!({
            "type": "OBJECT", "propertyOrdering": ["b", "a"], "required": ["a"],
            "properties": {
                "a": {"type": "INTEGER", "format": "int32", "nullable": true},
                "b": {"type": "ARRAY", "minItems": "1", "max_items": 3, "items": {"type": "STRING", "format": "enum", "enum": ["x"]}},
                "type": {"any_of": [{"type": "NUMBER"}, {"type": "STRING", "format": "date-time"}]},
            },
        });
        let ours = json!({
            "type": "object", "required": ["a"],
            "properties": {
                "b": {"type": "array", "minItems": 1, "maxItems": 3, "items": {"type": "string", "enum": ["x"]}},
                "a": {"type": ["integer", "null"]},
                "type": {"anyOf": [{"type": "number"}, {"type": "string", "format": "date-time"}]},
            },
        });
        // Their order, too.
        assert_eq!(any_schema(theirs).to_string(), ours.to_string());
        assert_eq!(any_schema(ours.clone()), ours, "a JSON schema stays as it is");
    }
}
