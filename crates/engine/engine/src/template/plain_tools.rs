//! Tools for templates that fail on what most others take: gpt-oss and Muse Glimmer need a description, and put defaults into text.

use serde_json::{Map, Value};

/// The tools with an empty description where one is missing, and defaults as text; `None` if nothing changes.
pub(super) fn plain(tools: &[Value]) -> Option<Vec<Value>> {
    let mut out = tools.to_vec();
    for tool in &mut out {
        let Some(fields) = tool.as_object_mut() else { continue };
        match fields.get_mut("function").and_then(Value::as_object_mut) {
            Some(function) => complete(function),
            None => complete(fields),
        }
    }
    (out != tools).then_some(out)
}

fn complete(function: &mut Map<String, Value>) {
    let description = function.entry("description").or_insert(Value::Null);
    if description.is_null() {
        *description = "".into();
    }
    if let Some(parameters) = function.get_mut("parameters") {
        write_defaults(parameters);
    }
}

/// The depth is that of a parsed body, at most 128.
fn write_defaults(schema: &mut Value) {
    match schema {
        Value::Array(all) => all.iter_mut().for_each(write_defaults),
        Value::Object(fields) => {
            for (name, value) in fields {
                match (name.as_str(), &*value) {
                    // A property of this name is a schema.
                    ("default", Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_)) => {
                        *value = value.to_string().into();
                    }
                    ("enum" | "const" | "examples", _) => {}
                    _ => write_defaults(value),
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::plain;

    #[test]
    fn what_is_missing_is_filled_in() {
        let schema = json!({"type": "object", "properties": {"n": {"type": "integer", "default": 1}, "default": {"type": "null"}}});
        let tool = json!({"type": "function", "function": {"name": "f", "parameters": schema}});
        let filled = &plain(&[tool]).unwrap()[0]["function"];
        assert_eq!(filled["description"], "");
        assert_eq!(
            filled["parameters"]["properties"],
            json!({"n": {"type": "integer", "default": "1"}, "default": {"type": "null"}})
        );
        assert_eq!(plain(std::slice::from_ref(&json!({"function": filled}))), None);
        assert_eq!(plain(&[json!("no tool")]), None);
    }
}
