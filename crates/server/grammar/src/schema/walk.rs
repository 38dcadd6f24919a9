//! Walks through a schema: checks every keyword, resolves every reference.

use std::collections::{HashMap, HashSet};

use octet_parser::Types;
use serde_json::{Map, Number, Value};

use super::keywords::{FORMATS, Keyword, keyword};
use super::{Policy, close, pointer_segment, types};
use crate::limits::{
    DEFINITIONS_MAX, ENUM_BYTES_MAX, ENUM_VALUES_MAX, MULTIPLE_DIGITS_MAX, MULTIPLE_MAX, PATTERN_BYTES_MAX,
    PATTERN_PROPERTIES_MAX, PROPERTIES_MAX, SCHEMA_DEPTH_MAX, SCHEMAS_MAX,
};
use crate::{Error, regex};

/// Maximum number of warnings.
const WARNINGS_MAX: usize = 32;

/// The state of a walk.
pub struct Walk<'a> {
    root: &'a Value,
    subject: &'a str,
    policy: Policy,
    path: String,
    depth: usize,
    /// Inside a schema with its own `$id`, to which references are relative.
    embedded: bool,
    /// Inside a part that must be met together with others.
    combined: bool,
    schemas: usize,
    /// Bytes of all patterns with their classes written out.
    pattern_bytes: usize,
    enum_values: usize,
    enum_bytes: usize,
    /// Least common multiple of all `multipleOf`: an integer without the decimal point, and its number of decimals.
    multiples: (u32, u32),
    /// Targets of references, and whether they are combined with others, with the indices of their definitions.
    numbers: HashMap<(String, bool), usize>,
    /// Definitions still to be walked.
    ahead: Vec<Ahead<'a>>,
    definitions: Map<String, Value>,
    warnings: Vec<String>,
}

/// A definition to be walked.
struct Ahead<'a> {
    number: usize,
    value: &'a Value,
    path: String,
    combined: bool,
}

/// The result of a walk.
pub struct Outcome {
    pub definitions: Map<String, Value>,
    /// Positions of the definitions in the document.
    pub pointers: HashMap<String, String>,
    pub warnings: Vec<String>,
}

impl<'a> Walk<'a> {
    pub fn new(root: &'a Value, path: &str, subject: &'a str, policy: Policy) -> Self {
        Self {
            root,
            subject,
            policy,
            path: path.into(),
            depth: 0,
            embedded: false,
            combined: false,
            schemas: 0,
            pattern_bytes: 0,
            enum_values: 0,
            enum_bytes: 0,
            multiples: (1, 0),
            numbers: HashMap::new(),
            ahead: Vec::new(),
            definitions: Map::new(),
            warnings: Vec::new(),
        }
    }

    /// Walks `part` and all its references. Only the first walk returns a schema; definitions are in the outcome.
    pub fn document(&mut self, part: &'a Value) -> Result<Value, Error> {
        let schema = self.schema(part)?;
        while let Some(Ahead { number, value, path, combined }) = self.ahead.pop() {
            self.path = path;
            self.combined = combined;
            let definition = self.schema(value)?;
            self.definitions.insert(number.to_string(), definition);
        }
        Ok(schema)
    }

    pub fn finish(self) -> Outcome {
        let pointers = self
            .numbers
            .into_iter()
            .map(|((pointer, _), number)| (number.to_string(), format!("#{pointer}")));
        Outcome { definitions: self.definitions, pointers: pointers.collect(), warnings: self.warnings }
    }

    fn error(&self, what: impl Into<String>) -> Error {
        Error::Schema { subject: self.subject.into(), path: self.path.clone(), what: what.into() }
    }

    /// Reports something that cannot be enforced: an error, or a warning after which the caller drops it.
    fn problem(&mut self, what: impl Into<String>) -> Result<(), Error> {
        let error = self.error(what);
        if self.policy != Policy::Relax {
            return Err(error);
        }
        if self.warnings.len() < WARNINGS_MAX {
            self.warnings.push(format!("{error}; not enforced"));
        }
        Ok(())
    }

    /// Walks a nested schema.
    fn below(&mut self, segments: &[&str], value: &'a Value) -> Result<Value, Error> {
        let len = self.path.len();
        for s in segments {
            self.path.push('/');
            self.path.push_str(&pointer_segment(s));
        }
        let out = self.schema(value)?;
        self.path.truncate(len);
        Ok(out)
    }

    fn schema(&mut self, value: &'a Value) -> Result<Value, Error> {
        self.schemas += 1;
        if self.schemas > SCHEMAS_MAX {
            return Err(self.error(format!("there are more than {SCHEMAS_MAX} schemas in it")));
        }
        if self.depth >= SCHEMA_DEPTH_MAX {
            return Err(self.error(format!("is nested more than {SCHEMA_DEPTH_MAX} deep")));
        }
        let schema = match value {
            Value::Bool(_) => return Ok(value.clone()),
            Value::Object(schema) => schema,
            other => {
                self.problem(format!(
                    "is {}; expected a schema, which is an object or a boolean",
                    kind(other)
                ))?;
                return Ok(Value::Bool(true));
            }
        };
        let embedded = self.embedded;
        self.embedded |= self.path != "#" && schema.get("$id").is_some_and(Value::is_string);
        let combined = self.combined;
        self.depth += 1;
        let mut out = Map::new();
        for (name, value) in schema {
            self.combined = combined || close::combines(name, schema);
            if let Some(value) = self.keyword(name, value, schema)? {
                out.insert(name.clone(), value);
            }
        }
        self.depth -= 1;
        self.combined = combined;
        self.embedded = embedded;
        // Without a type, keywords for objects and arrays allow all other types. Authors mean the type.
        if types::without_type(&out)
            && let Some(meant) = types::implied_type(&out)
        {
            out.insert("type".into(), meant.into());
        }
        if !combined && close::closes(schema) {
            out.insert("additionalProperties".into(), false.into());
        }
        Ok(Value::Object(out))
    }

    /// The rewritten value of one keyword; `None` drops it.
    fn keyword(
        &mut self,
        name: &str,
        value: &'a Value,
        schema: &Map<String, Value>,
    ) -> Result<Option<Value>, Error> {
        let keep = |ok: bool| ok.then(|| value.clone());
        Ok(match keyword(name) {
            Keyword::Annotation => None,
            Keyword::Unsupported => {
                self.problem(format!("'{name}' is not supported"))?;
                None
            }
            Keyword::Schema => Some(self.below(&[name], value)?),
            Keyword::SchemaOrList if !value.is_array() => Some(self.below(&[name], value)?),
            Keyword::SchemaOrList | Keyword::Schemas => self.list(name, value)?,
            Keyword::Named => self.named(name, value)?,
            Keyword::Type => keep(self.types(value)?),
            Keyword::Enum => self.values(value)?,
            Keyword::Const => {
                self.value(value)?;
                keep(self.exact(value)?)
            }
            Keyword::Ref => self.reference(value)?,
            Keyword::Required => self.required(value)?,
            Keyword::ExclusiveBound if value.is_boolean() => keep(true),
            Keyword::Bound | Keyword::ExclusiveBound => match value {
                Value::Number(n) => keep(is_exact(n) || saturates(n) || self.inexact(n)?),
                _ => keep(self.malformed(name, "a number")?),
            },
            Keyword::MultipleOf => match value.as_f64() {
                Some(n) if n > 0.0 => keep(self.multiple(value)?),
                _ => keep(self.malformed(name, "a number above 0")?),
            },
            Keyword::Count => match count(value) {
                Some(n) => Some(n.into()),
                None => keep(self.malformed(name, "a whole number from 0 to 4294967295")?),
            },
            Keyword::Pattern => keep(self.pattern(value)?),
            Keyword::Format => self.format(value, schema)?,
            Keyword::UniqueItems | Keyword::PropertyNames | Keyword::Unevaluated => {
                if !is_trivial(name, value) {
                    self.problem(format!("'{name}' is not supported"))?;
                }
                None
            }
        })
    }

    /// Whether a number can be a multiple of all `multipleOf` values of the document so far.
    fn multiple(&mut self, value: &Value) -> Result<bool, Error> {
        let (coefficient, digits) = self.multiples;
        let met = decimal(&value.to_string()).and_then(|(other, other_digits)| {
            let all = digits.max(other_digits);
            let a = coefficient.checked_mul(10u32.checked_pow(all - digits)?)?;
            let b = other.checked_mul(10u32.checked_pow(all - other_digits)?)?;
            let lcm = a.checked_mul(b)? / gcd(a, b);
            (all <= MULTIPLE_DIGITS_MAX && lcm <= MULTIPLE_MAX).then_some((lcm, all))
        });
        match met {
            Some(met) => self.multiples = met,
            None => self.problem(format!(
                "'multipleOf' {value} is too large, too small, or too much with the others of this schema"
            ))?,
        }
        Ok(met.is_some())
    }

    /// Reports a keyword with a value of the wrong type: an error, or `false` to drop it.
    fn malformed(&mut self, name: &str, expected: &str) -> Result<bool, Error> {
        self.problem(format!("'{name}' is not {expected}"))?;
        Ok(false)
    }

    fn list(&mut self, name: &str, value: &'a Value) -> Result<Option<Value>, Error> {
        let Some(list) =
            value.as_array().filter(|l| !l.is_empty() || matches!(name, "prefixItems" | "items"))
        else {
            self.malformed(name, "a list of schemas")?;
            return Ok(None);
        };
        let mut out = Vec::with_capacity(list.len());
        for (i, v) in list.iter().enumerate() {
            out.push(self.below(&[name, &i.to_string()], v)?);
        }
        Ok(Some(Value::Array(out)))
    }

    fn named(&mut self, name: &str, value: &'a Value) -> Result<Option<Value>, Error> {
        let Some(map) = value.as_object() else {
            self.malformed(name, "an object of schemas")?;
            return Ok(None);
        };
        let most = if name == "properties" { PROPERTIES_MAX } else { PATTERN_PROPERTIES_MAX };
        if map.len() > most {
            return Err(self.error(format!("'{name}' has {} entries; the maximum is {most}", map.len())));
        }
        let mut out = Map::new();
        for (key, v) in map {
            if name == "patternProperties" {
                match regex::search(key) {
                    Ok(printed) => self.count_pattern(&printed)?,
                    Err(e) => {
                        self.problem(format!("'{}' in 'patternProperties': {e}", key.escape_debug()))?;
                        continue;
                    }
                }
            }
            out.insert(key.clone(), self.below(&[name, key], v)?);
        }
        Ok(Some(Value::Object(out)))
    }

    fn types(&mut self, value: &Value) -> Result<bool, Error> {
        let names: Vec<Option<&str>> = match value {
            Value::Array(all) if !all.is_empty() => all.iter().map(Value::as_str).collect(),
            one => vec![one.as_str()],
        };
        for name in names {
            if name.and_then(Types::named).is_none() {
                let name =
                    name.map_or_else(|| kind(value).to_string(), |n| format!("'{}'", n.escape_debug()));
                self.problem(format!(
                    "'type' is {name}; expected null, boolean, integer, number, string, array or object"
                ))?;
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn values(&mut self, value: &Value) -> Result<Option<Value>, Error> {
        let Some(values) = value.as_array().filter(|v| !v.is_empty()) else {
            self.malformed("enum", "a list of values")?;
            return Ok(None);
        };
        let mut seen = HashSet::new();
        let mut out = Vec::with_capacity(values.len());
        for v in values {
            self.value(v)?;
            if !self.exact(v)? {
                return Ok(None);
            }
            if seen.insert(v.to_string()) {
                out.push(v.clone());
            }
        }
        Ok(Some(Value::Array(out)))
    }

    /// Counts a value of an `enum` or `const`.
    fn value(&mut self, value: &Value) -> Result<(), Error> {
        self.enum_values += 1;
        self.enum_bytes += value.to_string().len();
        if self.enum_values > ENUM_VALUES_MAX || self.enum_bytes > ENUM_BYTES_MAX {
            let most = format!("{ENUM_VALUES_MAX} values or {ENUM_BYTES_MAX} bytes of them");
            return Err(self.error(format!("there are more than {most} in 'enum' and 'const'")));
        }
        Ok(())
    }

    /// Whether all numbers in `value` are exact: llguidance reads them as 64-bit floats.
    fn exact(&mut self, value: &Value) -> Result<bool, Error> {
        match value {
            Value::Number(n) => Ok(is_exact(n) || self.inexact(n)?),
            Value::Array(all) => all.iter().try_fold(true, |ok, v| Ok(ok & self.exact(v)?)),
            Value::Object(all) => all.values().try_fold(true, |ok, v| Ok(ok & self.exact(v)?)),
            _ => Ok(true),
        }
    }

    fn inexact(&mut self, n: &Number) -> Result<bool, Error> {
        self.problem(format!("the number {n} is not exact as a 64-bit float: its magnitude is beyond 2^53"))?;
        Ok(false)
    }

    fn required(&mut self, value: &Value) -> Result<Option<Value>, Error> {
        // In draft 3, and in hand-written schemas, it is a boolean at the property itself.
        let Some(names) = value.as_array().filter(|l| l.iter().all(Value::is_string)) else {
            self.malformed("required", "a list of names")?;
            return Ok(None);
        };
        if names.len() > PROPERTIES_MAX {
            return Err(
                self.error(format!("'required' has {} names; the maximum is {PROPERTIES_MAX}", names.len()))
            );
        }
        Ok(Some(value.clone()))
    }

    fn pattern(&mut self, value: &Value) -> Result<bool, Error> {
        let Some(pattern) = value.as_str() else { return self.malformed("pattern", "a string") };
        match regex::search(pattern) {
            Ok(printed) => {
                self.count_pattern(&printed)?;
                Ok(true)
            }
            Err(e) => {
                self.problem(format!("'pattern': {e}"))?;
                Ok(false)
            }
        }
    }

    fn count_pattern(&mut self, printed: &str) -> Result<(), Error> {
        self.pattern_bytes += printed.len();
        if self.pattern_bytes > PATTERN_BYTES_MAX {
            let what = format!(
                "the patterns so far have more than {PATTERN_BYTES_MAX} bytes with their classes written out"
            );
            return Err(self.error(what));
        }
        Ok(())
    }

    /// An unknown format is an annotation, so it is dropped.
    fn format(&mut self, value: &Value, schema: &Map<String, Value>) -> Result<Option<Value>, Error> {
        let Some(name) = value.as_str() else {
            self.malformed("format", "a string")?;
            return Ok(None);
        };
        let string = Types::declared(schema).is_none_or(|t| t.has(Types::STRING));
        if FORMATS.contains(&name) || !string {
            return Ok(string.then(|| value.clone()));
        }
        let what =
            format!("the format '{}' is not known; known: {}", name.escape_debug(), FORMATS.join(", "));
        if self.warnings.len() < WARNINGS_MAX {
            self.warnings.push(format!("{}; not enforced", self.error(what)));
        }
        Ok(None)
    }

    fn reference(&mut self, value: &'a Value) -> Result<Option<Value>, Error> {
        let Some(reference) = value.as_str() else {
            self.malformed("$ref", "a string")?;
            return Ok(None);
        };
        match self.resolve(reference) {
            Ok((pointer, target)) => {
                let path = format!("#{}", pointer.escape_debug());
                let (key, combined) = ((pointer, self.combined), self.combined);
                let number = match self.numbers.get(&key) {
                    Some(&number) => number,
                    None => {
                        let number = self.numbers.len();
                        if number >= DEFINITIONS_MAX {
                            return Err(self
                                .error(format!("references point to more than {DEFINITIONS_MAX} schemas")));
                        }
                        self.ahead.push(Ahead { number, value: target, path, combined });
                        self.numbers.insert(key, number);
                        number
                    }
                };
                Ok(Some(format!("#/$defs/{number}").into()))
            }
            Err(what) => {
                self.problem(format!("the reference '{}' {what}", reference.escape_debug()))?;
                Ok(None)
            }
        }
    }

    /// The pointer in a reference, and its target.
    fn resolve(&self, reference: &str) -> Result<(String, &'a Value), String> {
        if self.embedded {
            return Err("is in a schema with its own '$id', which is not supported".into());
        }
        let id = self.root.get("$id").and_then(Value::as_str).unwrap_or_default();
        let local = match reference.split_once('#') {
            Some((document, local)) if document.is_empty() || document == id.trim_end_matches('#') => local,
            _ => {
                return Err("points to another document; only those to this one (#/...) are supported".into());
            }
        };
        let pointer = percent_decode(local).ok_or("is not a URI")?;
        if !pointer.is_empty() && !pointer.starts_with('/') {
            return Err("points to an anchor; only paths (#/...) are supported".into());
        }
        let target = self.root.pointer(&pointer).ok_or("points to nothing")?;
        Ok((pointer, target))
    }
}

/// Whether a number is exact as a 64-bit float, and, if it is an integer, within llguidance's 64 bits.
fn is_exact(n: &Number) -> bool {
    const SAFE: u64 = 1 << 53;
    match (n.as_u64(), n.as_i64()) {
        (Some(u), _) => {
            u <= SAFE
                || u < 1 << 63 && u.is_multiple_of(1 << u64::BITS.saturating_sub(53 + u.leading_zeros()))
        }
        (_, Some(i)) => i.unsigned_abs() <= SAFE || (i as f64) as i64 == i,
        _ => n.as_f64().is_some_and(|f| f.fract() != 0.0 || f.abs() < i64::MAX as f64),
    }
}

/// The largest number of an integer type as a bound: becomes the largest bound that llguidance supports.
fn saturates(n: &Number) -> bool {
    n.as_u64().is_some_and(|u| u == u64::MAX || u == i64::MAX as u64)
}

/// A positive number as an integer without the decimal point, and its number of decimals.
fn decimal(text: &str) -> Option<(u32, u32)> {
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let fraction = fraction.trim_end_matches('0');
    let coefficient: u32 = format!("{whole}{fraction}").parse().ok()?;
    let digits = i64::try_from(fraction.len()).ok()?.checked_sub(exponent.parse().ok()?)?;
    match u32::try_from(digits) {
        Ok(digits) => Some((coefficient, digits)),
        Err(_) => Some((coefficient.checked_mul(10u32.checked_pow(u32::try_from(-digits).ok()?)?)?, 0)),
    }
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// The decoded fragment of a URI.
fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = text.bytes();
    let mut out = Vec::with_capacity(text.len());
    while let Some(b) = bytes.next() {
        out.push(if b == b'%' {
            let digits = [bytes.next()?, bytes.next()?];
            u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
        } else {
            b
        });
    }
    String::from_utf8(out).ok()
}

/// A value of `minItems`, `maxLength` and the like. Some schema generators have only floats.
fn count(value: &Value) -> Option<u64> {
    let float = || value.as_f64().filter(|n| n.fract() == 0.0 && *n >= 0.0).map(|n| n as u64);
    value.as_u64().or_else(float).filter(|n| *n <= u32::MAX.into())
}

/// Whether a value of a keyword that is not supported allows everything.
fn is_trivial(name: &str, value: &Value) -> bool {
    match (keyword(name), value) {
        (Keyword::UniqueItems, value) => *value == Value::Bool(false),
        // Some generators write this for a map of strings.
        (Keyword::PropertyNames, Value::Object(s)) => s.iter().all(|(k, v)| k == "type" && v == "string"),
        (_, value) => *value == Value::Bool(true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_floats_hold() {
        let n = |s: &str| serde_json::from_str::<Number>(s).unwrap();
        for s in [
            "0",
            "-1",
            "9007199254740992",
            "9007199254740994",
            "-9007199254740992",
            "4611686018427387904",
            "0.1",
        ] {
            assert!(is_exact(&n(s)), "{s}");
        }
        for s in [
            "9007199254740993",
            "-9007199254740993",
            "18446744073709551615",
            "9223372036854775807",
            "9223372036854775808",
            "1e30",
            "-12345678901234567890123",
        ] {
            assert!(!is_exact(&n(s)), "{s}");
        }
        assert!(saturates(&n("18446744073709551615")) && saturates(&n("9223372036854775807")));
    }

    #[test]
    fn decimals() {
        for (text, want) in [
            ("5", Some((5, 0))),
            ("0.01", Some((1, 2))),
            ("2.50", Some((25, 1))),
            ("1e-9", Some((1, 9))),
            ("1.5e3", Some((1500, 0))),
            ("1e300", None),
            ("4294967296", None),
        ] {
            assert_eq!(decimal(text), want, "{text}");
        }
        assert_eq!((gcd(12, 18), gcd(7, 1)), (6, 1));
    }

    #[test]
    fn fragments() {
        assert_eq!(percent_decode("/a%20b~1c").as_deref(), Some("/a b~1c"));
        assert_eq!((percent_decode("%"), percent_decode("%zz"), percent_decode("%ff")), (None, None, None));
    }
}
