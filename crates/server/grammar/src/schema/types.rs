//! The types that a schema accepts, and whether two schemas exclude each other.

use std::cell::Cell;

use octet_parser::Types;
use serde_json::{Map, Value};

use super::{Policy, target};
use crate::Error;
use crate::limits::ONE_OF_MAX;

/// Maximum depth of nested schemas; deeper ones count as unknown.
const FOLLOWED_MAX: u32 = 16;
/// Maximum number of schema comparisons per document.
const COMPARISONS_MAX: u32 = 200_000;

/// Neither `type` nor another keyword that implies types.
pub fn without_type(schema: &Map<String, Value>) -> bool {
    !["type", "enum", "const", "$ref", "anyOf", "oneOf", "allOf"].iter().any(|k| schema.contains_key(*k))
}

/// The single type that all keywords apply to.
pub fn implied_type(schema: &Map<String, Value>) -> Option<&'static str> {
    let mut meant = None;
    for name in schema.keys() {
        let about = match name.as_str() {
            "properties"
            | "patternProperties"
            | "additionalProperties"
            | "required"
            | "minProperties"
            | "maxProperties" => "object",
            "items" | "prefixItems" | "additionalItems" | "minItems" | "maxItems" => "array",
            "pattern" | "format" | "minLength" | "maxLength" => "string",
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" | "multipleOf" => "number",
            _ => continue,
        };
        if meant.is_some_and(|m| m != about) {
            return None;
        }
        meant = Some(about);
    }
    meant
}

/// The types that a prepared schema accepts; a superset if unclear.
pub fn types(schema: &Map<String, Value>, definitions: &Map<String, Value>) -> Types {
    types_below(schema, definitions, FOLLOWED_MAX)
}

fn types_below(schema: &Map<String, Value>, definitions: &Map<String, Value>, left: u32) -> Types {
    let Some(left) = left.checked_sub(1) else { return Types::ALL };
    let of = |value: &Value| match value {
        Value::Object(s) => types_below(s, definitions, left),
        Value::Bool(false) => Types::NONE,
        _ => Types::ALL,
    };
    let mut out = Types::declared(schema).unwrap_or(Types::ALL);
    if let Some(values) = values(schema) {
        out = out.and(Types::union(values.iter().map(Types::of)));
    }
    if let Some(target) = schema.get("$ref").and_then(|r| target(r, definitions)) {
        out = out.and(of(target));
    }
    for all in schema.get("allOf").and_then(Value::as_array).into_iter().flatten() {
        out = out.and(of(all));
    }
    for name in ["anyOf", "oneOf"] {
        if let Some(any) = schema.get(name).and_then(Value::as_array) {
            out = out.and(Types::union(any.iter().map(of)));
        }
    }
    out
}

/// The values of `const` or `enum`.
fn values(schema: &Map<String, Value>) -> Option<&[Value]> {
    match (schema.get("const"), schema.get("enum")) {
        (Some(value), _) => Some(std::slice::from_ref(value)),
        (None, Some(Value::Array(values))) => Some(values),
        _ => None,
    }
}

/// Rewrites `oneOf`: if its alternatives exclude each other it equals `anyOf`, which llguidance supports.
pub struct Alternatives<'a> {
    definitions: &'a Map<String, Value>,
    subject: &'a str,
    policy: Policy,
    warnings: &'a mut Vec<String>,
    comparisons: Cell<u32>,
}

impl<'a> Alternatives<'a> {
    /// For a document with these definitions.
    pub fn new(
        definitions: &'a Map<String, Value>,
        subject: &'a str,
        policy: Policy,
        warnings: &'a mut Vec<String>,
    ) -> Self {
        Self { definitions, subject, policy, warnings, comparisons: Cell::new(0) }
    }

    /// The prepared schema `value` at `path`, with its `oneOf`s rewritten.
    pub fn settle(&mut self, value: &Value, path: &str) -> Result<Value, Error> {
        let Value::Object(schema) = value else { return Ok(value.clone()) };
        let mut out = Map::new();
        for (name, value) in schema {
            let here = |s: &str| format!("{path}/{name}/{}", super::pointer_segment(s));
            let settled = match (name.as_str(), value) {
                ("properties" | "patternProperties", Value::Object(all)) => {
                    let each = all.iter().map(|(k, v)| Ok((k.clone(), self.settle(v, &here(k))?)));
                    Value::Object(each.collect::<Result<_, Error>>()?)
                }
                ("prefixItems" | "items" | "allOf" | "anyOf" | "oneOf", Value::Array(all)) => {
                    let each = all.iter().enumerate().map(|(i, v)| self.settle(v, &here(&i.to_string())));
                    Value::Array(each.collect::<Result<_, Error>>()?)
                }
                ("items" | "additionalItems" | "additionalProperties", v) => {
                    self.settle(v, &format!("{path}/{name}"))?
                }
                _ => value.clone(),
            };
            out.insert(name.clone(), settled);
        }
        if let Some(all) = schema.get("oneOf").and_then(Value::as_array) {
            self.exclusive(all, path)?;
            any_of(&mut out);
        }
        Ok(Value::Object(out))
    }

    /// An error or a warning, unless all alternatives exclude each other.
    fn exclusive(&mut self, all: &[Value], path: &str) -> Result<(), Error> {
        let pairs = || (0..all.len()).flat_map(|b| (0..b).map(move |a| (a, b)));
        let what = if all.len() > ONE_OF_MAX {
            format!("'oneOf' has {} alternatives; at most {ONE_OF_MAX} are compared: use 'anyOf'", all.len())
        } else if let Some((a, b)) = pairs().find(|&(a, b)| !self.disjoint(&all[a], &all[b], FOLLOWED_MAX)) {
            format!(
                "the alternatives {a} and {b} of 'oneOf' are not known to exclude each other: use 'anyOf'"
            )
        } else {
            return Ok(());
        };
        let error = Error::Schema { subject: self.subject.into(), path: path.into(), what };
        if self.policy != Policy::Relax {
            return Err(error);
        }
        self.warnings.push(format!("{error}; taken as 'anyOf'"));
        Ok(())
    }

    /// Whether no value is valid for both.
    fn disjoint(&self, a: &Value, b: &Value, left: u32) -> bool {
        self.comparisons.set(self.comparisons.get().saturating_add(1));
        let (Some(left), true) = (left.checked_sub(1), self.comparisons.get() < COMPARISONS_MAX) else {
            return false;
        };
        let (a, b) = match (a, b) {
            (Value::Bool(false), _) | (_, Value::Bool(false)) => return true,
            (Value::Object(a), Value::Object(b)) => (a, b),
            _ => return false,
        };
        let common = types(a, self.definitions).and(types(b, self.definitions));
        if common == Types::NONE {
            return true;
        }
        // Keywords beside a reference or an alternative only restrict further.
        let whole = |s: &Map<String, Value>| Value::Object(s.clone());
        for (one, other) in [(a, b), (b, a)] {
            let followed = one.get("$ref").and_then(|r| target(r, self.definitions));
            let all = one.get("allOf").and_then(Value::as_array).into_iter().flatten();
            if followed.into_iter().chain(all).any(|s| self.disjoint(s, &whole(other), left)) {
                return true;
            }
            for name in ["anyOf", "oneOf"] {
                let any = one.get(name).and_then(Value::as_array);
                if any.is_some_and(|any| any.iter().all(|s| self.disjoint(s, &whole(other), left))) {
                    return true;
                }
            }
        }
        if let (Some(a), Some(b)) = (values(a), values(b)) {
            return !a.iter().any(|v| b.contains(v));
        }
        common == Types::OBJECT && (self.property_excludes(a, b, left) || self.property_excludes(b, a, left))
    }

    /// Whether a property that `a` requires has only values that `b` refuses.
    fn property_excludes(&self, a: &Map<String, Value>, b: &Map<String, Value>, left: u32) -> bool {
        let property = |s: &'_ Map<String, Value>, name: &str| -> Option<Value> {
            let listed = s.get("properties").and_then(|p| p.get(name)).cloned();
            // With patterns, an unlisted name may still have a schema.
            let other =
                || s.get("additionalProperties").filter(|_| !s.contains_key("patternProperties")).cloned();
            listed.or_else(other)
        };
        let required =
            a.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
        required
            .filter_map(|name| Some((property(a, name).unwrap_or(Value::Bool(true)), property(b, name)?)))
            .any(|(a, b)| self.disjoint(&a, &b, left))
    }
}

/// Renames `oneOf` to `anyOf` in place: the order of keywords is the order of properties.
fn any_of(schema: &mut Map<String, Value>) {
    let taken = schema.contains_key("anyOf");
    let renamed = std::mem::take(schema).into_iter().map(|(name, value)| match name.as_str() {
        "oneOf" if taken => (
            "allOf".to_string(),
            Value::Array(vec![Value::Object(Map::from_iter([("anyOf".into(), value)]))]),
        ),
        "oneOf" => ("anyOf".to_string(), value),
        _ => (name, value),
    });
    for (name, value) in renamed {
        match (schema.get_mut(&name), value) {
            (Some(Value::Array(there)), Value::Array(more)) => there.extend(more),
            (_, value) => {
                schema.insert(name, value);
            }
        }
    }
}
