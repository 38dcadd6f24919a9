//! Parses a client's JSON. Every error names the field's path, fields that no parser takes are checked by the dialect's
//! [`rules`](crate::rules), and `null` means absent.
//!
//! Not serde's derive: its errors have neither the path nor the expected value, its untagged unions (a string or a list of parts) only
//! report "did not match any variant", and `deny_unknown_fields` cannot say why a field that exists elsewhere is not supported here.

mod strict;

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt;
use std::ops::{Range, RangeInclusive};
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::rules::{self, Named, Warning};
use crate::unread::Unread;
use crate::{ApiError, ErrorKind, digits};

/// The result of parsing.
pub(crate) type Result<T> = std::result::Result<T, ApiError>;

/// The path of a value, `messages[3].content[0].type`, and the warnings about its body, and what of it is not read.
#[derive(Debug, Clone, Default)]
pub(crate) struct Path {
    step: Option<Rc<Step>>,
    warnings: Warnings,
    unread: Unread,
}

/// Warnings about one body.
#[derive(Debug, Clone, Default)]
pub(crate) struct Warnings(Rc<RefCell<Vec<Warning>>>);

impl Warnings {
    /// Removes and returns the warnings so far.
    pub(crate) fn take(&self) -> Vec<Warning> {
        self.0.take()
    }
}

#[derive(Debug)]
struct Step {
    parent: Path,
    segment: Segment,
}

#[derive(Debug, Clone)]
enum Segment {
    Key(Cow<'static, str>),
    Index(usize),
}

impl Path {
    fn join(&self, segment: Segment) -> Self {
        let step = Rc::new(Step { parent: self.clone(), segment });
        Self { step: Some(step), warnings: self.warnings.clone(), unread: self.unread.clone() }
    }

    /// The path of a field.
    pub(crate) fn key(&self, key: String) -> Self {
        self.join(Segment::Key(key.into()))
    }

    /// Adds a warning.
    pub(crate) fn warn(&self, warning: Warning) {
        rules::warn(&mut self.warnings.0.borrow_mut(), warning);
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(step) = &self.step else { return Ok(()) };
        step.parent.fmt(f)?;
        match &step.segment {
            Segment::Key(key) if step.parent.step.is_none() => f.write_str(&shortened(key)),
            Segment::Key(key) => write!(f, ".{}", shortened(key)),
            Segment::Index(i) => write!(f, "[{i}]"),
        }
    }
}

/// A client's text, cut to 60 characters.
pub fn shortened(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(60) {
        None => text.into(),
        Some((end, _)) => format!("{}...", &text[..end]).into(),
    }
}

/// `system_instruction` as `systemInstruction`.
pub(crate) fn camel(name: &str) -> String {
    let mut words = name.trim_start_matches('_').split('_');
    let mut out = words.next().unwrap_or_default().to_string();
    for word in words {
        let mut letters = word.chars();
        out.extend(letters.next().map(|c| c.to_ascii_uppercase()));
        out.push_str(letters.as_str());
    }
    out
}

/// The kind of a value, for errors.
pub(crate) fn describe(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(b) => b.to_string(),
        Value::Number(n) => n.to_string(),
        Value::String(s) => match digits::number(s) {
            Some(number) => shortened(number).into(),
            None => format!("the string {:?}", shortened(s)),
        },
        Value::Array(items) if items.is_empty() => "an empty array".into(),
        Value::Array(_) => "an array".into(),
        Value::Object(_) => "an object".into(),
    }
}

/// Parses a body that must be one JSON object.
pub(crate) fn parse(body: &[u8]) -> Result<Object> {
    match strict::value(body)? {
        Value::Object(map) => Ok(Object { path: Path::default(), map }),
        other => Err(ApiError::new(
            ErrorKind::InvalidRequest,
            format!("the body must be a JSON object, got {}", describe(&other)),
        )),
    }
}

/// An object being parsed: fields are taken out one by one; the rest is checked by the dialect's rules.
#[derive(Debug)]
pub(crate) struct Object {
    path: Path,
    map: Map<String, Value>,
}

impl Object {
    /// Its path.
    pub(crate) fn path(&self) -> String {
        self.path.to_string()
    }

    /// Whether it has a field that is not null.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.map.get(key).is_some_and(|v| !v.is_null())
    }

    /// A field, without taking it.
    pub(crate) fn peek(&self, key: &str) -> Option<&Value> {
        self.map.get(key)
    }

    /// Whether a field is `true`.
    pub(crate) fn is_on(&self, key: &str) -> bool {
        self.map.get(key) == Some(&Value::Bool(true))
    }

    /// Sets a field unless the client has set it.
    pub(crate) fn set_default(&mut self, key: &str, value: Value) {
        if !self.has(key) {
            self.map.insert(key.into(), value);
        }
    }

    /// Renames its fields to camel case (`systemInstruction`); Google also accepts the protocol's names (`system_instruction`).
    pub(crate) fn camel_case(&mut self) {
        let is_other = |key: &String| key.contains('_') && !self.map.contains_key(&camel(key));
        let others: Vec<String> = self.map.keys().filter(|key| is_other(key)).cloned().collect();
        for key in others {
            if let Some(value) = self.map.shift_remove(&key) {
                self.map.insert(camel(&key), value);
            }
        }
    }

    /// Takes a field; `None` if it is absent or null.
    pub(crate) fn take(&mut self, key: &'static str) -> Option<Field> {
        match self.map.remove(key) {
            None | Some(Value::Null) => None,
            Some(value) => {
                Some(Field { parent: self.path.clone(), segment: Segment::Key(key.into()), value })
            }
        }
    }

    /// Takes a field that has several names; more than one of them is an error.
    pub(crate) fn take_any(&mut self, keys: &[&'static str]) -> Result<Option<Field>> {
        let mut found: Option<Field> = None;
        for key in keys {
            let Some(field) = self.take(key) else { continue };
            if let Some(first) = &found {
                if first.value != field.value {
                    let what = format!(
                        "and '{}' are two names of one setting and contradict each other",
                        first.path()
                    );
                    return Err(field.error(what));
                }
                continue;
            }
            found = Some(field);
        }
        Ok(found)
    }

    /// Takes a required field.
    pub(crate) fn require(&mut self, key: &'static str) -> Result<Field> {
        self.take(key).ok_or_else(|| {
            let path = self.path.join(Segment::Key(key.into())).to_string();
            ApiError::invalid(path.clone(), format!("'{path}' is missing"))
        })
    }

    /// The model's name. Empty if the client names none, which means the only served model.
    pub(crate) fn model(&mut self) -> Result<String> {
        Ok(self.read("model", Field::string)?.unwrap_or_default())
    }

    /// Takes and parses a field, if present.
    pub(crate) fn read<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(Field) -> Result<T>,
    ) -> Result<Option<T>> {
        self.take(key).map(read).transpose()
    }

    /// The client's own time limit in seconds, as in LiteLLM. Zero means none.
    pub(crate) fn timeout(&mut self) -> Result<Option<Duration>> {
        let seconds = self.read("timeout", |f| f.number(0.0..=f64::MAX))?;
        Ok(seconds.and_then(|s| Duration::try_from_secs_f64(s).ok()).filter(|t| !t.is_zero()))
    }

    /// A field of which only these values are supported.
    pub(crate) fn only(&mut self, key: &'static str, allowed: &[Value], why: &str) -> Result<()> {
        let Some(field) = self.take(key) else { return Ok(()) };
        if allowed.iter().any(|a| rules::same(a, &field.value)) {
            return Ok(());
        }
        let got = describe(&field.value);
        let allowed: Vec<String> = allowed.iter().map(Value::to_string).collect();
        Err(field.error(match allowed.as_slice() {
            [] => format!("is not supported: {why}"),
            _ => format!("{got} is not supported: {why}. Leave it out or send {}", allowed.join(" or ")),
        }))
    }

    /// The warnings about the whole body.
    pub(crate) fn warnings(&self) -> Warnings {
        self.path.warnings.clone()
    }

    /// Warns about this object.
    pub(crate) fn warn(&self, what: impl fmt::Display) {
        self.path.warn(Warning::new(self.path.to_string(), what));
    }

    /// Warns about a field of this object.
    pub(crate) fn warn_of(&self, key: &'static str, what: impl fmt::Display) {
        self.path.warn(Warning::new(self.path.key(key.into()).to_string(), what));
    }

    /// Notes that this is content that is not read, and returns the text that replaces it; see [`Unread::found`].
    pub(crate) fn unread(&self, what: &'static str, refusal: ApiError) -> String {
        self.path.unread.found(self.path(), what, refusal)
    }

    /// Refuses content that is not read in the messages to be answered, and warns about the rest.
    pub(crate) fn settle_unread(&self, asked: &Range<usize>) -> Result<()> {
        for (at, what) in self.path.unread.settle(asked)? {
            let what = format_args!("is {what}, which this server does not read: it is left out");
            self.path.warn(Warning::new(at, what));
        }
        Ok(())
    }

    /// Applies the rules to the remaining fields. Returns those that only tune, unknown ones included.
    pub(crate) fn finish(mut self, tables: &[&[Named]]) -> Result<Map<String, Value>> {
        self.map.values_mut().for_each(digits::plain);
        rules::apply(&self.path, self.map, tables)
    }

    /// The remaining fields, whatever their names.
    pub(crate) fn into_fields(self) -> impl Iterator<Item = (String, Field)> {
        let path = self.path;
        self.map.into_iter().map(move |(key, value)| {
            let segment = Segment::Key(key.clone().into());
            (key, Field { parent: path.clone(), segment, value })
        })
    }
}

/// A value being parsed.
#[derive(Debug)]
pub(crate) struct Field {
    parent: Path,
    segment: Segment,
    value: Value,
}

impl Field {
    /// Its path.
    pub(crate) fn path(&self) -> String {
        self.parent.join(self.segment.clone()).to_string()
    }

    /// Makes another value that stands in its place.
    pub(crate) fn at(&self) -> impl FnOnce(Value) -> Self + use<> {
        let (parent, segment) = (self.parent.clone(), self.segment.clone());
        |value| Self { parent, segment, value }
    }

    /// An error: the field's path, then `what`.
    pub(crate) fn error(&self, what: impl fmt::Display) -> ApiError {
        let path = self.path();
        ApiError::invalid(path.clone(), format!("'{path}' {what}"))
    }

    /// Warns about this field.
    pub(crate) fn warn(&self, what: impl fmt::Display) {
        self.parent.warn(Warning::new(self.path(), what));
    }

    /// The content of its body that is not read.
    pub(crate) fn unread(&self) -> &Unread {
        &self.parent.unread
    }

    /// The error for a wrong type or value.
    pub(crate) fn expected(&self, what: impl fmt::Display) -> ApiError {
        self.error(format_args!("must be {what}, got {}", describe(&self.value)))
    }

    /// The raw value.
    pub(crate) fn raw(mut self) -> Value {
        digits::plain(&mut self.value);
        self.value
    }

    /// The value of a call's arguments or of a result, with all [`digits`].
    pub(crate) fn exact(self) -> Value {
        self.value
    }

    /// The value, without taking it.
    pub(crate) fn value(&self) -> &Value {
        &self.value
    }

    pub(crate) fn bool(self) -> Result<bool> {
        self.value.as_bool().ok_or_else(|| self.expected("true or false"))
    }

    pub(crate) fn string(self) -> Result<String> {
        match self.value {
            Value::String(s) if digits::number(&s).is_none() => Ok(s),
            _ => Err(self.expected("a string")),
        }
    }

    /// A non-empty string.
    pub(crate) fn name(self) -> Result<String> {
        match &self.value {
            Value::String(s) if !s.is_empty() => self.string(),
            _ => Err(self.expected("a non-empty string")),
        }
    }

    /// An integer; 3.0 counts as one.
    pub(crate) fn integer(self, range: RangeInclusive<i64>) -> Result<i64> {
        let n = match &self.value {
            Value::Number(n) => n.as_i64().or_else(|| {
                let f = n.as_f64().filter(|f| f.fract() == 0.0 && f.abs() < 9.0e15)?;
                Some(f as i64)
            }),
            _ => None,
        };
        n.filter(|n| range.contains(n)).ok_or_else(|| self.expected(IntegerIn(range)))
    }

    /// A count within a range.
    pub(crate) fn count(self, range: RangeInclusive<u32>) -> Result<u32> {
        let n = self.integer(i64::from(*range.start())..=i64::from(*range.end()))?;
        Ok(n as u32) // within the range, which is u32's
    }

    /// A limit; -1 (in Ollama also -2) means unlimited.
    pub(crate) fn limit(self, least: u32) -> Result<Option<u32>> {
        match self.value.as_i64() {
            Some(-2 | -1) => Ok(None),
            _ => self.most(least).map(Some),
        }
    }

    /// A maximum; those beyond `u32` are `u32::MAX`, which no context reaches.
    pub(crate) fn most(self, least: u32) -> Result<u32> {
        let is_larger = |n: f64| n.fract() == 0.0 && n > f64::from(u32::MAX);
        if self.value.as_f64().is_some_and(is_larger) { Ok(u32::MAX) } else { self.count(least..=u32::MAX) }
    }

    /// A number.
    pub(crate) fn number(self, range: RangeInclusive<f64>) -> Result<f64> {
        self.value.as_f64().filter(|n| range.contains(n)).ok_or_else(|| {
            let what = match (*range.start(), *range.end()) {
                (a, f64::MAX) => format!("a number from {a} up"),
                (a, b) => format!("a number from {a} to {b}"),
            };
            self.expected(what)
        })
    }

    /// A number; one outside the range is moved to its nearer end, for settings whose values beyond it mean the same.
    pub(crate) fn clamped(self, range: RangeInclusive<f64>) -> Result<f64> {
        match self.value.as_f64() {
            Some(n) => Ok(n.clamp(*range.start(), *range.end())),
            None => self.number(range),
        }
    }

    pub(crate) fn object(self) -> Result<Object> {
        match self.value {
            Value::Object(map) => Ok(Object { path: self.parent.join(self.segment), map }),
            _ => Err(self.expected("an object")),
        }
    }

    /// An object with arbitrary content.
    pub(crate) fn map(mut self) -> Result<Map<String, Value>> {
        digits::plain(&mut self.value);
        self.exact_map()
    }

    /// The same of a call's arguments or of a result, with all [`digits`].
    pub(crate) fn exact_map(self) -> Result<Map<String, Value>> {
        match self.value {
            Value::Object(map) => Ok(map),
            _ => Err(self.expected("an object")),
        }
    }

    /// The items, one at a time: each is freed before the next is parsed.
    pub(crate) fn array(self) -> Result<impl Iterator<Item = Field>> {
        match self.value {
            Value::Array(items) => {
                let parent = self.parent.join(self.segment);
                let field =
                    move |(i, value)| Field { parent: parent.clone(), segment: Segment::Index(i), value };
                Ok(items.into_iter().enumerate().map(field))
            }
            _ => Err(self.expected("an array")),
        }
    }

    /// A list, each item parsed with `read`.
    pub(crate) fn list<T>(self, read: impl FnMut(Field) -> Result<T>) -> Result<Vec<T>> {
        self.array()?.map(read).collect()
    }

    /// One of these strings.
    pub(crate) fn one_of<T: Copy>(self, names: &[(&str, T)]) -> Result<T> {
        let found = self.value.as_str().and_then(|s| names.iter().find(|(n, _)| *n == s));
        found.map(|(_, t)| *t).ok_or_else(|| {
            let names: Vec<String> = names.iter().map(|(n, _)| format!("\"{n}\"")).collect();
            self.expected(names.join(" or "))
        })
    }

    /// The error for a `type`, `role` or the like that is not supported.
    pub(crate) fn unsupported(&self, what: &str) -> ApiError {
        let path = self.path();
        let name = match &self.value {
            Value::String(s) => format!("'{}'", shortened(s)),
            other => describe(other),
        };
        ApiError {
            code: Some("unsupported_value".into()),
            ..ApiError::invalid(path.clone(), format!("{path} {name} is not supported{what}"))
        }
    }

    pub(crate) fn is_string(&self) -> bool {
        self.as_str().is_some()
    }

    pub(crate) fn is_array(&self) -> bool {
        self.value.is_array()
    }

    pub(crate) fn is_object(&self) -> bool {
        self.value.is_object()
    }

    pub(crate) fn as_str(&self) -> Option<&str> {
        self.value.as_str().filter(|text| digits::number(text).is_none())
    }
}

struct IntegerIn(RangeInclusive<i64>);

impl fmt::Display for IntegerIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (*self.0.start(), *self.0.end()) {
            (i64::MIN, i64::MAX) => f.write_str("a whole number"),
            (a, b) if b >= i64::from(u32::MAX) => write!(f, "a whole number from {a} up"),
            (a, b) => write!(f, "a whole number from {a} to {b}"),
        }
    }
}

/// Serialises a wire type to JSON.
pub(crate) fn to_bytes(value: &impl serde::Serialize) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    write(&mut out, value);
    out
}

/// Appends a wire type as JSON.
pub(crate) fn write(out: &mut Vec<u8>, value: &impl serde::Serialize) {
    serde_json::to_writer(out, value).expect("our wire types have string keys, and a Vec takes all bytes");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(text: &str) -> Object {
        parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn errors_name_the_path_and_what_is_expected() {
        let mut o = body(r#"{"a": [{"b": 1}, {"b": "x"}], "t": 3, "n": 1.5, "s": ["", 5]}"#);
        let mut items = o.take("a").unwrap().array().unwrap();
        let mut second = items.nth(1).unwrap().object().unwrap();
        let e = second.require("b").unwrap().count(1..=9).unwrap_err();
        assert_eq!(e.message, "'a[1].b' must be a whole number from 1 to 9, got the string \"x\"");
        assert_eq!(e.param.as_deref(), Some("a[1].b"));
        assert_eq!(second.require("c").unwrap_err().message, "'a[1].c' is missing");
        let e = o.take("t").unwrap().number(0.0..=2.0).unwrap_err();
        assert_eq!(e.message, "'t' must be a number from 0 to 2, got 3");
        assert!(o.take("n").unwrap().integer(0..=9).unwrap_err().message.ends_with("got 1.5"));
        let e = o.take("s").unwrap().list(Field::name).unwrap_err();
        assert_eq!(e.message, "'s[0]' must be a non-empty string, got the string \"\"");
    }

    #[test]
    fn null_is_absent() {
        let mut o = body(r#"{"a": null, "b": null}"#);
        assert!(o.take("a").is_none() && !o.has("b"));
        let warnings = o.warnings();
        assert!(o.finish(&[]).unwrap().is_empty() && warnings.take().is_empty());
    }

    #[test]
    fn numbers_may_be_giant_and_values_deep() {
        for text in ["1e400", &"[".repeat(100_000), &format!("{}1", "{\"a\":".repeat(100_000)), "\"\\ud800\""]
        {
            assert!(parse(format!("{{\"a\": {text}}}").as_bytes()).is_err(), "{:.20}", text);
        }
        let mut o =
            body(r#"{"big": 123456789012345678901234567890, "whole": 7.0, "min": -9223372036854775808}"#);
        assert!(o.take("big").unwrap().integer(0..=i64::MAX).is_err());
        assert_eq!(o.take("whole").unwrap().integer(0..=9).unwrap(), 7);
        assert_eq!(o.take("min").unwrap().integer(i64::MIN..=i64::MAX).unwrap(), i64::MIN);
    }

    #[test]
    fn long_strings_are_cut_in_errors() {
        let mut o = body(&format!(r#"{{"a": "{}"}}"#, "ä".repeat(10_000)));
        assert!(o.take("a").unwrap().bool().unwrap_err().message.len() < 200);
        let o = body(&format!(r#"{{"{}": 1}}"#, "k".repeat(10_000)));
        let warnings = o.warnings();
        o.finish(&[]).unwrap();
        assert!(warnings.take()[0].message.len() < 200);
    }

    #[test]
    fn aliases_must_agree() {
        assert!(body(r#"{"a": 1, "b": 2}"#).take_any(&["a", "b"]).is_err());
        assert!(body(r#"{"a": 1, "b": 1}"#).take_any(&["a", "b"]).unwrap().is_some());
    }
}
