//! Converts the bare text of an argument to JSON, by the tool's JSON schema.
//!
//! - A parameter of type string gets the text unchanged, including trailing spaces.
//! - A text that an `enum` or `const` lists as a string is a string.
//! - Otherwise the text is parsed as JSON, if the schema accepts the value's type. Python's `True`, `False` and `None` are accepted
//!   for booleans and null, as older templates write them.
//! - If nothing fits, it is a string.
//!
//! A parameter without a schema accepts all types: text that parses as a number, boolean, null, array or object becomes that. JSON is
//! passed on as the model wrote it, so no digit of a number is lost.

use serde_json::{Map, Value};

use crate::json::{Progress, Scanner};
use crate::syntax::tags;
use crate::types::Types;
use crate::written;

/// Maximum number of nested schemas visited for one argument. References may be circular.
const SCHEMAS_MAX: u32 = 256;

/// Follows references between schemas.
struct Reader<'a> {
    root: &'a Value,
    left: u32,
}

impl<'a> Reader<'a> {
    /// The schema's keys; `None` without any, or when the limit of visited schemas is reached.
    fn enter(&mut self, schema: &'a Value) -> Option<&'a Map<String, Value>> {
        self.left = self.left.checked_sub(1)?;
        schema.as_object()
    }

    fn target(&self, schema: &'a Map<String, Value>) -> Option<&'a Value> {
        self.root.pointer(schema.get("$ref")?.as_str()?.strip_prefix('#')?)
    }

    /// The schema of parameter `key`, listed or not.
    fn property(&mut self, schema: &'a Value, key: &str) -> Option<&'a Value> {
        self.declared(schema, key).or_else(|| schema.get("additionalProperties").filter(|s| s.is_object()))
    }

    /// The schema of a listed parameter.
    fn declared(&mut self, schema: &'a Value, key: &str) -> Option<&'a Value> {
        let s = self.enter(schema)?;
        if let Some(found) = s.get("properties").and_then(|p| p.get(key)) {
            return Some(found);
        }
        let inner = self.target(s).into_iter().chain(list(s, "allOf")).chain(alternatives(s));
        for schema in inner {
            if let Some(found) = self.declared(schema, key) {
                return Some(found);
            }
        }
        None
    }

    /// The schema of an array's items.
    fn items(&mut self, schema: &'a Value) -> Option<&'a Value> {
        let s = self.enter(schema)?;
        if let Some(items) = s.get("items").filter(|i| i.is_object()) {
            return Some(items);
        }
        let inner = self.target(s).into_iter().chain(list(s, "allOf")).chain(alternatives(s));
        inner.into_iter().find_map(|schema| self.items(schema))
    }

    /// The types that `schema` accepts.
    fn types(&mut self, schema: &'a Value) -> Types {
        let Some(s) = self.enter(schema) else {
            return if *schema == Value::Bool(false) { Types::NONE } else { Types::ALL };
        };
        let implied = || match s {
            _ if s.contains_key("properties") => Types::OBJECT,
            _ if s.contains_key("items") || s.contains_key("prefixItems") => Types::ARRAY,
            _ => Types::ALL,
        };
        let mut types = Types::declared(s).unwrap_or_else(implied);
        if s.contains_key("enum") || s.contains_key("const") {
            types = types.and(Types::union(named(s).map(Types::of)));
        }
        if let Some(target) = self.target(s) {
            types = types.and(self.types(target));
        }
        for schema in list(s, "allOf") {
            types = types.and(self.types(schema));
        }
        if alternatives(s).next().is_some() {
            types = types.and(Types::union(alternatives(s).map(|schema| self.types(schema))));
        }
        if s.get("nullable") == Some(&Value::Bool(true)) {
            types = types.or(Types::NULL);
        }
        types
    }

    /// Whether an `enum` or `const` lists exactly this string.
    fn names(&mut self, schema: &'a Value, text: &str) -> bool {
        let Some(s) = self.enter(schema) else { return false };
        named(s).any(|v| v.as_str() == Some(text))
            || self
                .target(s)
                .into_iter()
                .chain(list(s, "allOf"))
                .chain(alternatives(s))
                .any(|schema| self.names(schema, text))
    }
}

fn list<'a>(schema: &'a Map<String, Value>, key: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    schema.get(key).and_then(Value::as_array).into_iter().flatten()
}

fn alternatives(schema: &Map<String, Value>) -> impl Iterator<Item = &Value> {
    list(schema, "anyOf").chain(list(schema, "oneOf"))
}

/// The values that an `enum` or `const` lists.
fn named(schema: &Map<String, Value>) -> impl Iterator<Item = &Value> {
    list(schema, "enum").chain(schema.get("const"))
}

/// Whether the schema of a tool's parameters lists `key`.
pub fn declares(root: &Value, key: &str) -> bool {
    let mut reader = Reader { root, left: SCHEMAS_MAX };
    reader.declared(root, key).is_some()
}

/// The only parameter that the schema of a tool requires, and that is not among `given`; `None` if there are several.
pub fn missing<'a>(root: &'a Value, given: &[&str]) -> Option<&'a str> {
    let required = root.get("required").and_then(Value::as_array)?;
    let mut missing = required.iter().filter_map(Value::as_str).filter(|key| !given.contains(key));
    missing.next().filter(|_| missing.next().is_none())
}

/// Argument `key` of a tool whose parameters have the schema `root`, as JSON text.
#[cfg(test)]
fn argument(root: &Value, key: &str, text: &str) -> String {
    value(root, property(root, root, key), text)
}

/// A value as JSON, like [`value`]. Only a string can hold tags of the syntax, which `is_tag` tells: of other values they are left out, if
/// the value then has the schema's type; `None` if it has not.
pub fn value_without_tags(
    root: &Value,
    schema: Option<&Value>,
    text: &str,
    is_tag: &dyn Fn(&str) -> bool,
) -> Option<String> {
    let json = value(root, schema, text);
    let is_misfit = json.starts_with('"') && !types(root, schema).has(Types::STRING);
    if !is_misfit || !tags(text).any(is_tag) {
        return Some(json);
    }
    Some(value(root, schema, &without_tags(text, is_tag))).filter(|json| !json.starts_with('"'))
}

/// A text without the tags of the syntax, which `is_tag` tells.
pub fn without_tags(text: &str, is_tag: &dyn Fn(&str) -> bool) -> String {
    tags(text).filter(|t| is_tag(t)).fold(text.to_string(), |bare, tag| bare.replace(tag, ""))
}

/// The schema of member `key` of an object with this schema; references lead into `root`.
pub fn property<'a>(root: &'a Value, schema: &'a Value, key: &str) -> Option<&'a Value> {
    Reader { root, left: SCHEMAS_MAX }.property(schema, key)
}

/// The schema of the items of an array with this schema.
pub fn items<'a>(root: &'a Value, schema: &'a Value) -> Option<&'a Value> {
    Reader { root, left: SCHEMAS_MAX }.items(schema)
}

/// The types that a schema accepts: all without one.
pub fn types(root: &Value, schema: Option<&Value>) -> Types {
    schema.map_or(Types::ALL, |s| Reader { root, left: SCHEMAS_MAX }.types(s))
}

/// A text as JSON, for a value with this schema.
pub fn value(root: &Value, schema: Option<&Value>, text: &str) -> String {
    let types = types(root, schema);
    let mut reader = Reader { root, left: SCHEMAS_MAX };
    if types == Types::STRING || schema.is_some_and(|s| reader.names(s, text)) {
        return string(text);
    }
    let spelled = text.trim_matches([' ', '\t', '\n', '\r']);
    if let Some(value) = read(spelled)
        && !value.is_string()
        && types.has(Types::of(&value))
    {
        return spelled.into();
    }
    if types != Types::ALL {
        match spelled.to_ascii_lowercase().as_str() {
            word @ ("true" | "false") if types.has(Types::BOOLEAN) => return word.into(),
            "none" | "null" if types.has(Types::NULL) => return "null".into(),
            _ => {}
        }
        // Lists and mappings in Python's syntax, which some templates write.
        if spelled.starts_with(['[', '{'])
            && let Some(value) = written::python_value(spelled)
            && types.has(if spelled.starts_with('[') { Types::ARRAY } else { Types::OBJECT })
        {
            return value;
        }
    }
    string(text)
}

/// The JSON value, if `text` is valid and not nested too deep.
fn read(text: &str) -> Option<Value> {
    if text.starts_with(['{', '[']) {
        let mut scanner = Scanner::new();
        let end = text.chars().map(|c| scanner.step(c)).find(|p| *p != Progress::More);
        if end != Some(Progress::Done) {
            return None;
        }
    }
    serde_json::from_str(text).ok()
}

/// A JSON string.
pub fn string(text: &str) -> String {
    Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The text as an argument whose parameter has `schema`.
    fn one(schema: Value, text: &str) -> String {
        argument(&json!({"type": "object", "properties": {"p": schema}}), "p", text)
    }

    #[test]
    fn each_type_parses_its_own_notation() {
        for (kind, text, want) in [
            ("string", " 5 ", "\" 5 \""),
            ("string", "{\"a\": 1}", "\"{\\\"a\\\": 1}\""),
            ("string", "null", "\"null\""),
            ("string", "a\n\tb\n", "\"a\\n\\tb\\n\""),
            ("string", "", "\"\""),
            ("integer", "5", "5"),
            ("integer", " -5\n", "-5"),
            ("integer", "123456789012345678901234567890", "123456789012345678901234567890"),
            ("integer", "5.5", "\"5.5\""),
            ("integer", "05", "\"05\""),
            ("integer", "five", "\"five\""),
            ("integer", "null", "\"null\""),
            ("number", "5", "5"),
            ("number", "1e-07", "1e-07"),
            ("number", "1.10", "1.10"),
            ("number", "NaN", "\"NaN\""),
            ("number", "1e999", "\"1e999\""),
            ("boolean", "true", "true"),
            ("boolean", "False", "false"),
            ("boolean", "1", "\"1\""),
            ("null", "null", "null"),
            ("null", "None", "null"),
            ("array", "[1, \"a\"]", "[1, \"a\"]"),
            ("array", "[1, 2", "\"[1, 2\""),
            ("array", "[1] [2]", "\"[1] [2]\""),
            ("array", "\n[\n  1\n]\n", "[\n  1\n]"),
            ("array", "{}", "\"{}\""),
            ("object", "{\"a\": [1.0]}", "{\"a\": [1.0]}"),
            ("object", "{'a': True}", "{\"a\":true}"),
            ("object", "{'a': true", "\"{'a': true\""),
            ("object", "[]", "\"[]\""),
            ("unheard of", "5", "5"),
        ] {
            assert_eq!(one(json!({"type": kind}), text), want, "{kind} {text:?}");
        }
    }

    #[test]
    fn a_value_gets_the_type_that_fits() {
        let optional = json!({"anyOf": [{"type": "string"}, {"type": "null"}]});
        let listed = json!({"type": ["string", "null"]});
        let nullable = json!({"type": "string", "nullable": true});
        for schema in [optional, listed, nullable] {
            assert_eq!(one(schema.clone(), "null"), "null", "{schema}");
            assert_eq!(one(schema.clone(), "None"), "null", "{schema}");
            assert_eq!(one(schema.clone(), "5"), "\"5\"", "{schema}");
            assert_eq!(one(schema, " x"), "\" x\"");
        }
        let either = json!({"oneOf": [{"type": "string"}, {"type": "integer"}, {"type": "array"}]});
        assert_eq!(one(either.clone(), "5"), "5");
        assert_eq!(one(either.clone(), "5.5"), "\"5.5\"");
        assert_eq!(one(either.clone(), "[5]"), "[5]");
        assert_eq!(one(either, "{}"), "\"{}\"");
        assert_eq!(
            one(json!({"allOf": [{"type": ["string", "integer"]}, {"type": "string"}]}), "5"),
            "\"5\""
        );
        assert_eq!(one(json!({"allOf": [{"type": "string"}, {"type": "array"}]}), "5"), "\"5\"");
        assert_eq!(one(json!({"properties": {}}), "{}"), "{}");
        assert_eq!(one(json!({"items": {"type": "string"}}), "[]"), "[]");
        assert_eq!(one(json!(false), "5"), "\"5\"");
    }

    #[test]
    fn enums_and_constants_name_their_values() {
        assert_eq!(one(json!({"enum": ["1", "2"]}), "1"), "\"1\"");
        assert_eq!(one(json!({"enum": ["auto", 1]}), "1"), "1");
        assert_eq!(one(json!({"enum": ["auto", 1]}), "auto"), "\"auto\"");
        assert_eq!(one(json!({"enum": ["true", false]}), "true"), "\"true\"");
        assert_eq!(one(json!({"enum": [1, 2]}), "3"), "3", "the client judges");
        assert_eq!(one(json!({"const": "5"}), "5"), "\"5\"");
        assert_eq!(one(json!({"const": 5}), "5"), "5");
        assert_eq!(one(json!({"anyOf": [{"const": "null"}, {"type": "null"}]}), "null"), "\"null\"");
        assert_eq!(one(json!({"type": "integer", "enum": ["x"]}), "5"), "\"5\"", "nothing fits");
    }

    #[test]
    fn references_are_followed_and_may_be_circular() {
        let root = json!({
            "$ref": "#/$defs/args",
            "$defs": {
                "args": {"properties": {"n": {"$ref": "#/$defs/count"}, "loop": {"$ref": "#/$defs/loop"}, "gone": {"$ref": "#/none"}}},
                "count": {"type": "integer"},
                "loop": {"anyOf": [{"$ref": "#/$defs/loop"}, {"$ref": "#/$defs/loop"}]},
            },
        });
        assert_eq!(argument(&root, "n", "5"), "5");
        assert_eq!(argument(&root, "n", "x"), "\"x\"");
        assert_eq!(argument(&root, "loop", "5"), "5");
        assert_eq!(argument(&root, "gone", "5"), "5");
        assert_eq!(argument(&json!({"$ref": "#"}), "p", "[]"), "[]");
    }

    #[test]
    fn unknown_parameters_are_parsed_by_their_notation() {
        let root = json!({"type": "object", "properties": {"known": {"description": "no type"}}});
        for key in ["known", "unknown"] {
            for (text, want) in [
                ("5", "5"),
                ("1e-07", "1e-07"),
                ("null", "null"),
                ("false", "false"),
                ("{\"a\": 1}", "{\"a\": 1}"),
                ("False", "\"False\""),
                ("\"quoted\"", "\"\\\"quoted\\\"\""),
                ("007", "\"007\""),
                ("two words", "\"two words\""),
            ] {
                assert_eq!(argument(&root, key, text), want);
            }
        }
        let strings = json!({"additionalProperties": {"type": "string"}});
        assert_eq!(argument(&strings, "p", "5"), "\"5\"");
        assert_eq!(argument(&json!({"additionalProperties": false}), "p", "5"), "5");
        assert_eq!(argument(&Value::Null, "p", "5"), "5");
        let deep = "[".repeat(101) + &"]".repeat(101);
        assert_eq!(argument(&Value::Null, "p", &deep), string(&deep));
    }
}
