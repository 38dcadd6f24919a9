//! Arguments in Python's or Gemma's syntax, or in nested tags: rules from the schema of a tool's parameters.
//!
//! Members come in the schema's order. Constraints on values beyond types and members are not enforced: a warning says so, or the tool
//! is refused if it is strict.

use octet_parser::{Arguments as Form, Nested};
use serde_json::{Map, Value};

use super::bare::is_name;
use super::texts::{any_text, text};
use super::{Arguments, Rules, xml};
use crate::schema::pointer_segment;
use crate::{Error, Tool, Vocabulary, lark};

/// Maximum nesting of schemas; deeper values are unconstrained.
const DEPTH_MAX: usize = 16;
/// Keywords that are enforced, or have no effect.
const ENFORCED: &[&str] = &[
    "type",
    "enum",
    "const",
    "anyOf",
    "oneOf",
    "$ref",
    "$defs",
    "items",
    "properties",
    "required",
    "additionalProperties",
    "title",
    "description",
    "default",
    "examples",
];

/// Writes the rules of a tool's arguments followed by `end`; returns a reference to them.
pub(super) fn members(
    rules: &mut Rules,
    vocabulary: &Vocabulary,
    form: &Form,
    (i, tool): (usize, &Tool),
    given: Option<&Arguments<'_>>,
    end: &str,
) -> Result<String, Error> {
    let mut writer =
        Writer { rules, vocabulary, form, given, prefix: format!("literal{i}"), count: 0, defs: Map::new() };
    writer.any();
    let Some(arguments) = given else {
        return Ok(match form {
            Form::Nested(nested) => format!("{}{end}", writer.any_members(nested, tool)),
            _ => format!("(member (comma member)*)? {end}"),
        });
    };
    let alternatives = arguments.alternatives();
    if alternatives.is_empty() {
        return writer.call(arguments, end);
    }
    // The checks of the whole: of its size, and that one alternative excludes the others.
    let whole = arguments.prepare(arguments.schema, &arguments.path, true)?;
    writer.rules.warn(whole.warnings);
    let each: Result<Vec<String>, Error> = alternatives.iter().map(|one| writer.call(one, end)).collect();
    Ok(format!("({})", each?.join(" | ")))
}

/// Whether a key can be the name of a nested tag.
fn is_tag(key: &str) -> bool {
    is_name(key) && !key.starts_with('/') && key.trim() == key
}

struct Writer<'a> {
    rules: &'a mut Rules,
    vocabulary: &'a Vocabulary,
    form: &'a Form,
    given: Option<&'a Arguments<'a>>,
    prefix: String,
    count: usize,
    defs: Map<String, Value>,
}

impl Writer<'_> {
    /// Writes the rules of a call's arguments followed by `end`; returns a reference to them.
    fn call(&mut self, arguments: &Arguments<'_>, end: &str) -> Result<String, Error> {
        let prepared = arguments.prepare(arguments.schema, &arguments.path, true)?;
        self.rules.warn(prepared.warnings.clone());
        self.defs = prepared.schema.get("$defs").and_then(Value::as_object).cloned().unwrap_or_default();
        for name in ["anyOf", "oneOf", "$ref"] {
            if prepared.schema.get(name).is_some() {
                xml::problem(self.rules, arguments, &arguments.path, super::not_at_the_top(name))?;
            }
        }
        self.object(&prepared.schema, &arguments.path, end, true, 0)
    }

    /// Writes the rules of any value, once for all tools.
    fn any(&mut self) {
        if self.rules.text.contains("\nany_value: ") || self.rules.text.starts_with("any_value: ") {
            return;
        }
        if let Form::Nested(nested) = self.form {
            return self.any_nested(nested);
        }
        let string = match self.form {
            Form::Gemma => {
                let mark = "<|\"|>";
                format!("{}{}", self.token(mark), any_text(self.rules, self.vocabulary, mark))
            }
            _ => r#"/"([^"\\\x00-\x1f]|\\["\\nt])*"|'([^'\\\x00-\x1f]|\\['\\nt])*'/"#.into(),
        };
        let (comma, colon, key) = match self.form {
            Form::Gemma => (",", ":", "/[a-zA-Z_][a-zA-Z0-9_]*/"),
            _ => (", ", ": ", "string"),
        };
        let sign = if *self.form == Form::Gemma { ":" } else { "=" };
        let words = ["true", "false", "null"].map(|w| lark::literal(&self.word(w)));
        for (name, body) in [
            ("string", string.as_str()),
            ("integer", "/-?(0|[1-9][0-9]{0,17})/"),
            ("number", "/-?(0|[1-9][0-9]{0,17})(\\.[0-9]{1,17})?/"),
            ("boolean", &format!("{}| {}", words[0], words[1])),
            ("null", &words[2]),
            ("comma", &lark::literal(comma)),
            ("colon", &lark::literal(colon)),
            ("key", key),
            ("array", r#""[" (any_value (comma any_value)*)? "]""#),
            ("object", r#""{" (pair (comma pair)*)? "}""#),
            ("pair", "key colon any_value"),
            ("member", &format!("/[a-zA-Z_][a-zA-Z0-9_]*/ {}any_value", lark::literal(sign))),
            ("any_value", "string | number | boolean | null | array | object"),
        ] {
            self.rules.rule(name, body);
        }
    }

    /// Writes the rules of values in nested tags, each with the mark that follows it. A value without a schema is text; an object without
    /// listed members is JSON, as a grammar cannot name a tag at its end as at its beginning.
    fn any_nested(&mut self, nested: &Nested) {
        let mark = text(self.vocabulary, &nested.mark);
        let string = any_text(self.rules, self.vocabulary, &nested.mark);
        for (name, body) in [
            ("string", string),
            ("integer", format!("/-?(0|[1-9][0-9]{{0,17}})/ {mark}")),
            ("number", format!("/-?(0|[1-9][0-9]{{0,17}})(\\.[0-9]{{1,17}})?/ {mark}")),
            ("boolean", format!("({}| {}) {mark}", lark::literal("true"), lark::literal("false"))),
            ("null", format!("{}{mark}", lark::literal("null"))),
            ("array", format!("%json {{\"type\": \"array\"}} {mark}")),
            ("object", format!("%json {{\"type\": \"object\"}} {mark}")),
            ("comma", lark::literal("")),
            ("any_value", "string".into()),
        ] {
            self.rules.rule(name, &body);
        }
    }

    /// Any number of a tool's arguments with any values.
    fn any_members(&self, nested: &Nested, tool: &Tool) -> String {
        let keys = tool.parameters["properties"].as_object().into_iter().flatten().map(|(key, _)| key);
        let all: Vec<String> =
            keys.filter(|k| is_tag(k)).map(|key| self.element(nested, key, "any_value")).collect();
        if all.is_empty() { String::new() } else { format!("({})* ", all.join("| ")) }
    }

    /// A value between its tags.
    fn element(&self, nested: &Nested, key: &str, value: &str) -> String {
        let open = text(self.vocabulary, &format!("{}<{key}>", nested.mark));
        format!("{open}{value} {}", lark::literal(&format!("</{key}>")))
    }

    /// A mark of the syntax, which may be a token.
    fn token(&self, mark: &str) -> String {
        self.vocabulary.special(mark).map_or_else(|| lark::literal(mark), lark::token)
    }

    /// A JSON keyword in this syntax.
    fn word(&self, word: &str) -> String {
        match (self.form, word) {
            (Form::Python, "true") => "True".into(),
            (Form::Python, "false") => "False".into(),
            (Form::Python, "null") => "None".into(),
            _ => word.into(),
        }
    }

    fn name(&mut self) -> String {
        self.count += 1;
        format!("{}_{}", self.prefix, self.count)
    }

    /// Reports keywords that are not enforced.
    fn check(&mut self, schema: &Map<String, Value>, path: &str) -> Result<(), Error> {
        let Some(arguments) = self.given else { return Ok(()) };
        for key in schema.keys().filter(|k| !ENFORCED.contains(&k.as_str())) {
            let what = format!("'{}' is not supported in this model's syntax", key.escape_debug());
            xml::problem(self.rules, arguments, path, what)?;
        }
        Ok(())
    }

    /// The values of a schema, in Lark.
    fn value(&mut self, schema: &Value, path: &str, depth: usize) -> Result<String, Error> {
        let Value::Object(s) = schema else { return Ok("any_value".into()) };
        if depth > DEPTH_MAX {
            return Ok("any_value".into());
        }
        self.check(s, path)?;
        let target = s.get("$ref").and_then(Value::as_str).and_then(|r| r.strip_prefix("#/$defs/"));
        if let Some(target) = target.and_then(|name| self.defs.get(name)).cloned() {
            return self.value(&target, path, depth + 1);
        }
        let listed = s.get("enum").and_then(Value::as_array).cloned();
        if let Some(values) = listed.or_else(|| s.get("const").map(|v| vec![v.clone()])) {
            let end = self.form_mark();
            let all: Vec<String> =
                values.iter().map(|v| text(self.vocabulary, &(self.form.value(v) + end))).collect();
            return Ok(format!("({})", all.join("| ")));
        }
        if let Some(any) = s.get("anyOf").or(s.get("oneOf")).and_then(Value::as_array) {
            let all: Result<Vec<String>, Error> =
                any.iter().map(|v| self.value(v, path, depth + 1)).collect();
            return Ok(format!("({})", all?.join(" | ")));
        }
        let types: Vec<&str> = match s.get("type") {
            Some(Value::String(one)) => vec![one],
            Some(Value::Array(many)) => many.iter().filter_map(Value::as_str).collect(),
            _ if s.contains_key("properties") => vec!["object"],
            _ => return Ok("any_value".into()),
        };
        let mut all = Vec::new();
        for of in types {
            all.push(match of {
                "array" => {
                    let item = match s.get("items") {
                        Some(items) => self.value(items, path, depth + 1)?,
                        None => "any_value".into(),
                    };
                    self.list(&item)
                }
                "object" if s.contains_key("properties") => match self.form {
                    Form::Nested(nested) => {
                        let mark = text(self.vocabulary, &nested.mark);
                        self.object(schema, path, &mark, false, depth + 1)?
                    }
                    _ => format!("\"{{\" {}", self.object(schema, path, "\"}\"", false, depth + 1)?),
                },
                other => other.to_string(),
            });
        }
        Ok(format!("({})", all.join(" | ")))
    }

    /// What follows each value.
    fn form_mark(&self) -> &str {
        if let Form::Nested(nested) = self.form { &nested.mark } else { "" }
    }

    /// A list of these items.
    fn list(&self, item: &str) -> String {
        match self.form {
            Form::Nested(nested) => {
                let mark = text(self.vocabulary, &nested.mark);
                format!("({})* {mark}", self.element(nested, &nested.item, item))
            }
            _ => format!("\"[\" ({item} (comma {item})*)? \"]\""),
        }
    }

    /// The members of an object in order, followed by `end`.
    fn object(
        &mut self,
        schema: &Value,
        path: &str,
        end: &str,
        is_call: bool,
        depth: usize,
    ) -> Result<String, Error> {
        if let Value::Object(s) = schema {
            self.check(s, path)?;
        }
        let required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let mut members = Vec::new();
        for (key, of) in schema["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}/properties/{}", pointer_segment(key));
            if let (Form::Nested(_), false, Some(arguments)) = (self.form, is_tag(key), self.given) {
                let what = "the name cannot be a tag: it is empty, begins with /, has <, > or a new line, or white space around it";
                xml::problem(self.rules, arguments, &path, what.into())?;
                continue;
            }
            let value = self.value(of, &path, depth + 1)?;
            let member = match (self.form, is_call) {
                (Form::Nested(nested), _) => self.element(nested, key, &value),
                (Form::Gemma, _) => format!("{}{value}", lark::literal(&format!("{key}:"))),
                (_, true) => format!("{}{value}", lark::literal(&format!("{key}="))),
                (_, false) => {
                    format!("{}{value}", lark::literal(&format!("{}: ", Value::from(key.as_str()))))
                }
            };
            members.push((member, required.contains(&key.as_str())));
        }
        // From the last to the first: what may follow if there is no member so far, and if there is one.
        let mut follow = [end.to_string(), end.to_string()];
        for (member, is_required) in members.iter().rev() {
            let names = [self.name(), self.name()];
            let [first, later] = &follow;
            for (name, comma, skipped) in [(&names[0], "", first), (&names[1], "comma ", later)] {
                let or = if *is_required { String::new() } else { format!(" | {skipped}") };
                self.rules.rule(name, &format!("{comma}{member} {later}{or}"));
            }
            follow = names;
        }
        let [first, _] = follow;
        Ok(first)
    }
}
