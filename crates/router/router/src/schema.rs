//! Checks a value against a JSON Schema in a bounded number of steps: schemas and values are untrusted.
//!
//! Not a library's: those compile a schema before they check a value, so their time and memory would have to be estimated in advance, and
//! the one that we used took a twelfth of Octet's compile time. The tests compare with it.
//!
//! Supports drafts 7 to 2020-12 and their common parts with older ones, except references other than `#/...` and keywords that depend on
//! the evaluation of others; `format` is ignored, as in the last drafts.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::fmt::Display;

use regex_automata::meta::{Config, Regex};
use serde_json::{Map, Number, Value};

#[cfg(test)]
mod tests;

/// Maximum memory of a regular expression.
const PATTERN_BYTES_MAX: usize = 1 << 17;
/// Steps for compiling one byte of a regular expression.
const PATTERN_BYTE_STEPS: u64 = 200;
/// Bytes of text that one step compares.
const STEP_BYTES: usize = 16;
/// Bytes of a compiled regular expression that one step matches against [`STEP_BYTES`] of text. Without a state table all its states can be
/// active: `(a|b)*a(a|b){200}c` has 20 KiB, and takes 19 µs for 16 bytes on Zen 5.
const PATTERN_STEP_BYTES: usize = 256;
/// Maximum nesting of schemas, including references.
const DEPTH_MAX: usize = 128;

/// Why a check fails.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The value does not match: where (as a JSON pointer), and why, without the value itself.
    Broken { at: String, what: String },
    /// The schema is invalid or unsupported, or the steps are used up.
    Unknown,
}
use Stop::Unknown;

type Checked = Result<(), Stop>;

/// `Ok` if `value` matches `schema`. Subtracts the steps used from `steps_left`.
pub(crate) fn check(schema: &Value, value: &Value, steps_left: &mut u64) -> Checked {
    let draft = schema["$schema"].as_str().unwrap_or("json-schema.org");
    if !draft.contains("json-schema.org") {
        return Err(Unknown);
    }
    let mut checker = Checker {
        root: schema,
        is_draft_4: draft.contains("draft-04"),
        is_old: draft.contains("draft-0"),
        has_tuples: draft.contains("draft-0") || draft.contains("2019-09"),
        steps_left,
        depth: 0,
        is_tried: false,
        patterns: HashMap::new(),
    };
    checker.names_nothing_below(schema, true)?;
    checker.schema(schema, value)
}

struct Checker<'a, 's> {
    root: &'a Value,
    is_draft_4: bool,
    /// Up to draft 7: a reference excludes all other keywords.
    is_old: bool,
    /// Before 2020-12: `items` may be a list.
    has_tuples: bool,
    steps_left: &'s mut u64,
    depth: usize,
    /// An alternative: its error is not read.
    is_tried: bool,
    patterns: HashMap<&'a str, Regex>,
}

impl<'a> Checker<'a, '_> {
    fn spend(&mut self, steps: u64) -> Checked {
        *self.steps_left = self.steps_left.checked_sub(steps).ok_or(Unknown)?;
        Ok(())
    }

    fn spend_text(&mut self, text: &str) -> Checked {
        self.spend(1 + (text.len() / STEP_BYTES) as u64)
    }

    /// Nested schemas with their own id or draft: references would be relative to them.
    fn names_nothing_below(&mut self, at: &'a Value, is_root: bool) -> Checked {
        self.spend(1)?;
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(Unknown);
        }
        match at {
            Value::Array(all) => all.iter().try_for_each(|v| self.names_nothing_below(v, false))?,
            Value::Object(keys) => {
                for (key, v) in keys {
                    let names = matches!(key.as_str(), "$id" | "$schema") || (key == "id" && self.is_draft_4);
                    if names && v.is_string() && !is_root {
                        return Err(Unknown);
                    }
                    self.names_nothing_below(v, false)?;
                }
            }
            _ => {}
        }
        self.depth -= 1;
        Ok(())
    }

    fn broken(&self, what: impl FnOnce() -> String) -> Checked {
        let what = if self.is_tried { String::new() } else { what() };
        Err(Stop::Broken { at: String::new(), what })
    }

    fn must(&self, holds: bool, what: impl FnOnce() -> String) -> Checked {
        if holds { Ok(()) } else { self.broken(what) }
    }

    fn at_least(&self, limit: &Value, n: usize, of: &str) -> Checked {
        let limit = count(limit)?;
        self.must(n >= limit, || format!("fewer than {limit} {of}"))
    }

    fn at_most(&self, limit: &Value, n: usize, of: &str) -> Checked {
        let limit = count(limit)?;
        self.must(n <= limit, || format!("more than {limit} {of}"))
    }

    /// Whether `value` matches, as an alternative.
    fn fits(&mut self, schema: &'a Value, value: &Value) -> Result<bool, Stop> {
        let before = (self.is_tried, self.depth);
        self.is_tried = true;
        let checked = self.schema(schema, value);
        (self.is_tried, self.depth) = before;
        match checked {
            Ok(()) => Ok(true),
            Err(Stop::Broken { .. }) => Ok(false),
            Err(Unknown) => Err(Unknown),
        }
    }

    fn schema(&mut self, schema: &'a Value, value: &Value) -> Checked {
        self.spend(1)?;
        let keys = match schema {
            Value::Bool(fits) => return self.must(*fits, || "no value is allowed here".into()),
            Value::Object(keys) => keys,
            _ => return Err(Unknown),
        };
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(Unknown);
        }
        if self.is_old && keys.contains_key("$ref") {
            self.reference(&keys["$ref"], value)?;
        } else {
            for (key, v) in keys {
                self.spend(1)?;
                self.keyword(keys, key, v, value)?;
                match value {
                    Value::Object(fields) => self.object_keyword(keys, key, v, fields)?,
                    Value::Array(items) => self.array_keyword(keys, key, v, items)?,
                    Value::String(text) => self.text_keyword(key, v, text)?,
                    Value::Number(n) => self.number_keyword(keys, key, v, n)?,
                    Value::Null | Value::Bool(_) => {}
                }
            }
        }
        self.depth -= 1;
        Ok(())
    }

    /// The same value, checked against another schema.
    fn reference(&mut self, pointer: &'a Value, value: &Value) -> Checked {
        let pointer = pointer.as_str().and_then(|p| p.strip_prefix('#')).ok_or(Unknown)?;
        self.spend_text(pointer)?;
        // `%24` would decode to `$`, and `/%24defs` is a different path.
        if pointer.contains('%') {
            return Err(Unknown);
        }
        let schema = self.root.pointer(pointer).ok_or(Unknown)?;
        self.schema(schema, value)
    }

    /// A nested value.
    fn inner(&mut self, name: impl Display, schema: &'a Value, value: &Value) -> Checked {
        self.schema(schema, value).map_err(|e| match e {
            Stop::Broken { at, what } if !self.is_tried => {
                let name = name.to_string().replace('~', "~0").replace('/', "~1");
                Stop::Broken { at: format!("/{name}{at}"), what }
            }
            other => other,
        })
    }

    /// Keywords for values of any type.
    fn keyword(&mut self, keys: &'a Map<String, Value>, key: &str, v: &'a Value, value: &Value) -> Checked {
        match key {
            "type" => {
                let types = match v {
                    Value::Array(all) => all.as_slice(),
                    one => std::slice::from_ref(one),
                };
                self.spend(types.len() as u64)?;
                let mut is_one = false;
                for name in types {
                    is_one |= is_of_type(value, name.as_str().ok_or(Unknown)?)?;
                }
                self.must(is_one, || format!("the value is not of type {v}"))
            }
            "const" => {
                let same = self.same(v, value)?;
                self.must(same, || format!("the value is not {v}"))
            }
            "enum" => {
                for allowed in list(v)? {
                    if self.same(allowed, value)? {
                        return Ok(());
                    }
                }
                self.broken(|| format!("the value is not one of {v}"))
            }
            "$ref" => self.reference(v, value),
            "$dynamicRef" | "$recursiveRef" | "unevaluatedProperties" | "unevaluatedItems" => Err(Unknown),
            "allOf" => list(v)?.iter().try_for_each(|schema| self.schema(schema, value)),
            "anyOf" => {
                for schema in list(v)? {
                    if self.fits(schema, value)? {
                        return Ok(());
                    }
                }
                self.broken(|| "the value matches no schema of 'anyOf'".into())
            }
            "oneOf" => {
                let mut fitting = 0;
                for schema in list(v)? {
                    fitting += usize::from(self.fits(schema, value)?);
                }
                self.must(fitting == 1, || format!("the value matches {fitting} schemas of 'oneOf'"))
            }
            "dependentRequired" | "dependentSchemas" if !self.is_old => self.dependencies(v, value),
            // From old drafts, and still in use.
            "dependencies" => self.dependencies(v, value),
            "not" => {
                let fits = self.fits(v, value)?;
                self.must(!fits, || "the value matches the schema of 'not'".into())
            }
            "if" => {
                let branch = if self.fits(v, value)? { "then" } else { "else" };
                keys.get(branch).map_or(Ok(()), |schema| self.schema(schema, value))
            }
            _ => Ok(()),
        }
    }

    fn object_keyword(
        &mut self,
        keys: &'a Map<String, Value>,
        key: &str,
        v: &'a Value,
        fields: &Map<String, Value>,
    ) -> Checked {
        match key {
            "required" => self.required(v, fields),
            "properties" => {
                for (name, schema) in object(v)? {
                    self.spend_text(name)?;
                    if let Some(field) = fields.get(name) {
                        self.inner(name, schema, field)?;
                    }
                }
                Ok(())
            }
            "patternProperties" => {
                for (pattern, schema) in object(v)? {
                    for (name, field) in fields {
                        if self.matches(pattern, name)? {
                            self.inner(name, schema, field)?;
                        }
                    }
                }
                Ok(())
            }
            "additionalProperties" => {
                for (name, field) in fields {
                    self.spend_text(name)?;
                    if !self.is_property(keys, name)? {
                        self.inner(name, v, field)?;
                    }
                }
                Ok(())
            }
            "propertyNames" => self.names(v, fields),
            "minProperties" => self.at_least(v, fields.len(), "properties"),
            "maxProperties" => self.at_most(v, fields.len(), "properties"),
            _ => Ok(()),
        }
    }

    fn required(&mut self, names: &'a Value, fields: &Map<String, Value>) -> Checked {
        for name in list(names)? {
            let name = name.as_str().ok_or(Unknown)?;
            self.spend_text(name)?;
            self.must(fields.contains_key(name), || format!("'{name}' is a required property"))?;
        }
        Ok(())
    }

    fn is_property(&mut self, keys: &'a Map<String, Value>, name: &str) -> Result<bool, Stop> {
        if keys.get("properties").is_some_and(|all| all.get(name).is_some()) {
            return Ok(true);
        }
        for pattern in keys.get("patternProperties").map(object).transpose()?.into_iter().flat_map(Map::keys)
        {
            if self.matches(pattern, name)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn names(&mut self, schema: &'a Value, fields: &Map<String, Value>) -> Checked {
        for name in fields.keys() {
            self.spend_text(name)?;
            let fits = self.fits(schema, &Value::String(name.clone()))?;
            self.must(fits, || "a property's name is not allowed".into())?;
        }
        Ok(())
    }

    /// Keywords that apply if a certain property is present.
    fn dependencies(&mut self, all: &'a Value, value: &Value) -> Checked {
        let Value::Object(fields) = value else { return Ok(()) };
        for (name, v) in object(all)? {
            self.spend_text(name)?;
            if fields.contains_key(name) {
                match v {
                    Value::Array(_) => self.required(v, fields)?,
                    schema => self.schema(schema, value)?,
                }
            }
        }
        Ok(())
    }

    fn array_keyword(
        &mut self,
        keys: &'a Map<String, Value>,
        key: &str,
        v: &'a Value,
        items: &[Value],
    ) -> Checked {
        match key {
            "items" => match v {
                Value::Array(tuple) if self.has_tuples => self.tuple(tuple, items),
                Value::Array(_) => Err(Unknown),
                schema => {
                    let first = keys.get("prefixItems").filter(|_| !self.has_tuples).map(list).transpose()?;
                    self.items(first.map_or(0, Vec::len), schema, items)
                }
            },
            "prefixItems" if !self.has_tuples => self.tuple(list(v)?, items),
            "additionalItems" if self.has_tuples => match keys.get("items") {
                Some(Value::Array(tuple)) => self.items(tuple.len(), v, items),
                _ => Ok(()),
            },
            "minItems" => self.at_least(v, items.len(), "items"),
            "maxItems" => self.at_most(v, items.len(), "items"),
            "uniqueItems" if v == &Value::Bool(true) => self.unique(items),
            "contains" => self.contains(keys, v, items),
            _ => Ok(()),
        }
    }

    fn tuple(&mut self, schemas: &'a [Value], items: &[Value]) -> Checked {
        let mut both = schemas.iter().zip(items).enumerate();
        both.try_for_each(|(i, (schema, item))| self.inner(i, schema, item))
    }

    /// The items from `first` on.
    fn items(&mut self, first: usize, schema: &'a Value, items: &[Value]) -> Checked {
        let mut rest = items.iter().enumerate().skip(first);
        rest.try_for_each(|(i, item)| self.inner(i, schema, item))
    }

    fn unique(&mut self, items: &[Value]) -> Checked {
        for (i, item) in items.iter().enumerate() {
            for other in &items[..i] {
                let same = self.same(item, other)?;
                self.must(!same, || "two items are the same".into())?;
            }
        }
        Ok(())
    }

    fn contains(&mut self, keys: &'a Map<String, Value>, schema: &'a Value, items: &[Value]) -> Checked {
        let bound = |key: &str| keys.get(key).filter(|_| !self.is_old).map(count).transpose();
        let (least, most) = (bound("minContains")?.unwrap_or(1), bound("maxContains")?.unwrap_or(usize::MAX));
        let mut fitting = 0;
        for item in items {
            fitting += usize::from(self.fits(schema, item)?);
        }
        let holds = (least..=most).contains(&fitting);
        self.must(holds, || format!("{fitting} items match the schema of 'contains'"))
    }

    fn text_keyword(&mut self, key: &str, v: &'a Value, text: &str) -> Checked {
        match key {
            "minLength" | "maxLength" => {
                self.spend_text(text)?;
                let (limit, length) = (count(v)?, text.chars().count());
                match key {
                    "minLength" => self.must(length >= limit, || format!("shorter than {limit} characters")),
                    _ => self.must(length <= limit, || format!("longer than {limit} characters")),
                }
            }
            "pattern" => {
                let matches = self.matches(v.as_str().ok_or(Unknown)?, text)?;
                self.must(matches, || format!("the value does not match the pattern {v}"))
            }
            _ => Ok(()),
        }
    }

    /// Linear in the length of the text times the size of the pattern.
    fn matches(&mut self, pattern: &'a str, text: &str) -> Result<bool, Stop> {
        // The lookup.
        self.spend_text(pattern)?;
        if !self.patterns.contains_key(pattern) {
            self.spend((pattern.len() as u64).saturating_mul(PATTERN_BYTE_STEPS))?;
            let translated = jsonschema_regex::to_rust_regex(pattern).map_err(|()| Unknown)?;
            let limits = Config::new()
                .nfa_size_limit(Some(PATTERN_BYTES_MAX))
                .hybrid_cache_capacity(PATTERN_BYTES_MAX);
            let built = Regex::builder().configure(limits).build(&translated);
            self.patterns.insert(pattern, built.map_err(|_| Unknown)?);
        }
        let size = 1 + self.patterns[pattern].memory_usage() / PATTERN_STEP_BYTES;
        let steps = (text.len() as u64 + 1).saturating_mul(size as u64) / STEP_BYTES as u64;
        self.spend(1 + steps)?;
        Ok(self.patterns[pattern].is_match(text))
    }

    fn number_keyword(
        &mut self,
        keys: &'a Map<String, Value>,
        key: &str,
        v: &'a Value,
        n: &Number,
    ) -> Checked {
        let bound = |wrong: &[Ordering], what: &str| {
            let Value::Number(limit) = v else { return Err(Unknown) };
            let holds = !order(n, limit).is_some_and(|o| wrong.contains(&o));
            self.must(holds, || format!("{what} {limit}"))
        };
        // In draft 4 only, `exclusiveMinimum` modifies `minimum`.
        let (less, more) = (Ordering::Less, Ordering::Greater);
        let strict = |key: &str| keys.get(key) == Some(&Value::Bool(true));
        match key {
            "minimum" if self.is_draft_4 && strict("exclusiveMinimum") => {
                bound(&[less, Ordering::Equal], "not above")
            }
            "maximum" if self.is_draft_4 && strict("exclusiveMaximum") => {
                bound(&[more, Ordering::Equal], "not below")
            }
            "minimum" => bound(&[less], "below the minimum of"),
            "maximum" => bound(&[more], "above the maximum of"),
            "exclusiveMinimum" | "exclusiveMaximum" if self.is_draft_4 => Ok(()),
            "exclusiveMinimum" => bound(&[less, Ordering::Equal], "not above"),
            "exclusiveMaximum" => bound(&[more, Ordering::Equal], "not below"),
            "multipleOf" => {
                let holds = is_multiple(n, v)?;
                self.must(holds, || format!("not a multiple of {v}"))
            }
            _ => Ok(()),
        }
    }

    /// Equality in JSON: 1 equals 1.0.
    fn same(&mut self, a: &Value, b: &Value) -> Result<bool, Stop> {
        self.spend(1)?;
        match (a, b) {
            (Value::Number(a), Value::Number(b)) => Ok(order(a, b) == Some(Ordering::Equal)),
            (Value::String(a), Value::String(b)) if a.len() == b.len() => {
                self.spend_text(a)?;
                Ok(a == b)
            }
            (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
                for (a, b) in a.iter().zip(b) {
                    if !self.same(a, b)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            (Value::Object(a), Value::Object(b)) if a.len() == b.len() => {
                for (name, a) in a {
                    self.spend_text(name)?;
                    match b.get(name) {
                        Some(b) if self.same(a, b)? => {}
                        _ => return Ok(false),
                    }
                }
                Ok(true)
            }
            (Value::Array(_), Value::Array(_)) | (Value::Object(_), Value::Object(_)) => Ok(false),
            (a, b) => Ok(a == b),
        }
    }
}

fn list(v: &Value) -> Result<&Vec<Value>, Stop> {
    v.as_array().ok_or(Unknown)
}

fn object(v: &Value) -> Result<&Map<String, Value>, Stop> {
    v.as_object().ok_or(Unknown)
}

/// A count: schemas may write 2.0.
fn count(v: &Value) -> Result<usize, Stop> {
    let whole = v.as_u64().or_else(|| v.as_f64().filter(|n| *n >= 0.0 && n.fract() == 0.0).map(|n| n as u64));
    whole.and_then(|n| usize::try_from(n).ok()).ok_or(Unknown)
}

fn is_of_type(value: &Value, name: &str) -> Result<bool, Stop> {
    Ok(match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "number" => value.is_number(),
        "integer" => {
            value.as_number().is_some_and(|n| !n.is_f64() || n.as_f64().is_some_and(|n| n.fract() == 0.0))
        }
        _ => return Err(Unknown),
    })
}

fn order(a: &Number, b: &Number) -> Option<Ordering> {
    match (a.as_i128(), b.as_i128()) {
        (Some(a), Some(b)) => Some(a.cmp(&b)),
        _ => a.as_f64()?.partial_cmp(&b.as_f64()?),
    }
}

fn is_multiple(n: &Number, of: &Value) -> Result<bool, Stop> {
    let of = of.as_number().ok_or(Unknown)?;
    match (n.as_i128(), of.as_i128()) {
        (_, Some(..=0)) => Err(Unknown),
        (Some(n), Some(of)) => Ok(n % of == 0),
        _ => {
            let of = of.as_f64().filter(|of| *of > 0.0).ok_or(Unknown)?;
            let quotient = n.as_f64().ok_or(Unknown)? / of;
            // 0.3 is a multiple of 0.1, though not in binary arithmetic. Division by an integer is exact for multiples.
            let tolerance = if of.fract() == 0.0 { 0.0 } else { 4.0 * f64::EPSILON * quotient.abs() };
            Ok((quotient - quotient.round()).abs() <= tolerance)
        }
    }
}
