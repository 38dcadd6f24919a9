//! The rule for unsupported fields, in one place. Each dialect has tables of these rules;
//! [`Object::finish`](crate::json::Object::finish) applies them to every field that its parser has not taken.
//!
//! 1. A field that changes what the answer means and cannot be honoured is refused by name: [`refused`], [`only`].
//! 2. Its neutral or default value is accepted: `null`, and what the rule lists ([`only`]) or, if it lists nothing, an empty value.
//! 3. A field that only tunes ([`tuning`]), and one that no table knows, is accepted with a [`Warning`]. `--strict` refuses it.
//! 4. A field of an answer that clients send back with the history ([`echo`]) is accepted.

use serde_json::{Map, Value};

use crate::ApiError;
use crate::json::Path;

/// A name and its rule.
pub(crate) type Named = (&'static str, Rule);
/// Rules by the fields' names.
pub(crate) type Rules = &'static [Named];

/// The rule for a field that no parser takes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rule {
    kind: Kind,
    /// Neutral values, as a JSON array; empty values, if the array is empty.
    neutral: &'static str,
    why: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Refused,
    Tuning,
    Echo,
}

/// A field that changes what the answer means, and is not supported.
pub(crate) const fn refused(why: &'static str) -> Rule {
    Rule { kind: Kind::Refused, neutral: "", why }
}

/// The same, with other neutral values than empty ones.
pub(crate) const fn only(neutral: &'static str, why: &'static str) -> Rule {
    Rule { kind: Kind::Refused, neutral, why }
}

/// A field that only tunes, and has no effect here.
pub(crate) const fn tuning(why: &'static str) -> Rule {
    Rule { kind: Kind::Tuning, neutral: "", why }
}

/// The same, with values that request the default behaviour.
pub(crate) const fn tuning_but(neutral: &'static str, why: &'static str) -> Rule {
    Rule { kind: Kind::Tuning, neutral, why }
}

/// A field of answers that clients send back.
pub(crate) const fn echo() -> Rule {
    Rule { kind: Kind::Echo, neutral: "", why: "" }
}

/// A part of a request that was accepted and has no effect, or not its full effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// Its path: `messages[3].content[0].cache_control`.
    pub param: String,
    /// What happens to it, with the path.
    pub message: String,
}

impl Warning {
    /// A warning about the field at `param`.
    pub fn new(param: impl Into<String>, what: impl std::fmt::Display) -> Self {
        let param = param.into();
        Self { message: format!("'{param}' {what}"), param }
    }

    /// The message without list indices, so that it is the same for all messages: `'messages[].content[].cache_control' is ...`.
    pub fn kind(&self) -> String {
        let mut out = String::with_capacity(self.message.len());
        let (path, what) = self.message.split_at(self.param.len() + 1);
        let mut rest = path;
        while let Some((before, after)) = rest.split_once('[') {
            out.push_str(before);
            out.push('[');
            rest = after.trim_start_matches(|c: char| c.is_ascii_digit());
        }
        out + rest + what
    }

    /// The same as an error, for `--strict`.
    pub fn refuse(&self) -> ApiError {
        ApiError {
            code: Some("unsupported_parameter".into()),
            ..ApiError::invalid(
                self.param.clone(),
                format!("{} (the server runs with --strict)", self.message),
            )
        }
    }
}

/// Maximum number of warnings per request.
const WARNINGS_MAX: usize = 64;

/// Adds a warning, unless there is one of the same kind.
pub(crate) fn warn(warnings: &mut Vec<Warning>, warning: Warning) {
    if warnings.len() == WARNINGS_MAX {
        return;
    }
    let kind = warning.kind();
    if !warnings.iter().any(|w| w.kind() == kind) {
        warnings.push(warning);
    }
}

/// Applies the rules to the remaining fields. Returns those that only tune, unknown ones included: a provider may know them.
pub(crate) fn apply(
    path: &Path,
    rest: Map<String, Value>,
    tables: &[&[Named]],
) -> Result<Map<String, Value>, ApiError> {
    let mut out = Map::new();
    for (key, value) in rest {
        if value.is_null() {
            continue;
        }
        let rule = tables.iter().copied().flatten().find(|(name, _)| *name == key).map(|(_, rule)| rule);
        let at = || path.key(key.clone()).to_string();
        match rule {
            None => path.warn(Warning::new(at(), "is ignored: unknown field")),
            Some(rule) if rule.is_neutral(&value) => {}
            Some(rule) => match rule.kind {
                Kind::Refused => return Err(rule.refuse(&at(), &value)),
                Kind::Tuning => path.warn(Warning::new(at(), format_args!("is ignored: {}", rule.why))),
                Kind::Echo => {}
            },
        }
        if rule.is_none_or(|r| r.kind == Kind::Tuning) {
            out.insert(key, value);
        }
    }
    Ok(out)
}

impl Rule {
    fn neutral(&self) -> Vec<Value> {
        if self.neutral.is_empty() {
            return Vec::new();
        }
        serde_json::from_str(self.neutral).expect("our own tables are JSON")
    }

    fn is_neutral(&self, value: &Value) -> bool {
        if !self.neutral.is_empty() {
            // An empty list requests nothing, whatever the rule lists.
            return value.as_array().is_some_and(Vec::is_empty)
                || self.neutral().iter().any(|n| same(n, value));
        }
        match value {
            Value::Null | Value::Bool(false) => true,
            Value::String(text) => text.is_empty(),
            Value::Array(items) => items.is_empty(),
            Value::Object(fields) => fields.is_empty(),
            Value::Bool(true) | Value::Number(_) => false,
        }
    }

    fn refuse(&self, path: &str, value: &Value) -> ApiError {
        let allowed: Vec<String> = self.neutral().iter().map(Value::to_string).collect();
        let message = match allowed.as_slice() {
            [] => format!("'{path}' is not supported: {}", self.why),
            _ => format!(
                "'{path}' {} is not supported: {}. Leave it out or send {}",
                match value {
                    Value::Array(_) | Value::Object(_) => crate::shortened(&value.to_string()).into_owned(),
                    _ => crate::json::describe(value),
                },
                self.why,
                allowed.join(" or ")
            ),
        };
        ApiError { code: Some("unsupported_parameter".into()), ..ApiError::invalid(path, message) }
    }
}

/// Compares values; 1 and 1.0 are equal.
pub(crate) fn same(a: &Value, b: &Value) -> bool {
    a == b || (a.is_number() && a.as_f64() == b.as_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::{Object, parse};

    const RULES: Rules = &[
        ("audio", refused("answers are text")),
        ("best_of", only("[1]", "every answer is given")),
        ("verbosity", tuning_but(r#"["medium"]"#, "say it in the prompt")),
        ("service_tier", tuning("there is one tier")),
        ("annotations", echo()),
    ];

    fn body(text: &str) -> Object {
        parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn fields_that_change_the_answer_are_refused() {
        for (text, param, message) in [
            (r#"{"audio": {"voice": "x"}}"#, "audio", "'audio' is not supported: answers are text"),
            (r#"{"best_of": 2}"#, "best_of", "Leave it out or send 1"),
        ] {
            let e = body(text).finish(&[RULES]).unwrap_err();
            assert_eq!((e.param.as_deref(), e.code.as_deref()), (Some(param), Some("unsupported_parameter")));
            assert!(e.message.contains(message), "{e}");
        }
    }

    #[test]
    fn neutral_values_pass_and_tuning_fields_get_a_warning() {
        let o =
            body(r#"{"audio": {}, "best_of": 1.0, "verbosity": "medium", "annotations": [1], "new": null}"#);
        let warnings = o.warnings();
        assert!(o.finish(&[RULES]).unwrap().contains_key("verbosity"));
        assert!(warnings.take().is_empty());
        let o = body(r#"{"verbosity": "low", "service_tier": "flex", "new": 1}"#);
        let warnings = o.warnings();
        let left: Vec<String> = o.finish(&[RULES]).unwrap().into_iter().map(|(key, _)| key).collect();
        assert_eq!(left, ["verbosity", "service_tier", "new"]);
        let messages: Vec<String> = warnings.take().into_iter().map(|w| w.message).collect();
        assert_eq!(
            messages,
            [
                "'verbosity' is ignored: say it in the prompt",
                "'service_tier' is ignored: there is one tier",
                "'new' is ignored: unknown field",
            ]
        );
    }

    #[test]
    fn one_warning_of_a_kind_and_a_bounded_number() {
        let mut o = body(r#"{"messages": [{"a": 1}, {"a": 1, "b": 2}]}"#);
        let warnings = o.warnings();
        for f in o.take("messages").unwrap().array().unwrap() {
            f.object().unwrap().finish(&[]).unwrap();
        }
        let params: Vec<String> = warnings.take().into_iter().map(|w| w.param).collect();
        assert_eq!(params, ["messages[0].a", "messages[1].b"]);
        assert_eq!(Warning::new("a[12].b[0].c", "is[1]").kind(), "'a[].b[].c' is[1]");
        let many: Vec<String> = (0..1000).map(|i| format!("\"k{i}\": 1")).collect();
        let o = body(&format!("{{{}}}", many.join(",")));
        let warnings = o.warnings();
        o.finish(&[]).unwrap();
        assert_eq!(warnings.take().len(), WARNINGS_MAX);
    }

    #[test]
    fn strict_servers_refuse_what_others_warn_about() {
        let e = Warning::new("a.b", "is ignored: unknown field").refuse();
        assert_eq!(e.param.as_deref(), Some("a.b"));
        assert_eq!(e.message, "'a.b' is ignored: unknown field (the server runs with --strict)");
    }
}
