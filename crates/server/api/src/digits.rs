//! Numbers with more digits than a [`Value`] keeps: integers beyond 64 bits, and floats that are larger or more exact than a double.
//!
//! In a `Value` such a number is a text with a mark before its digits. serde_json's own `arbitrary_precision` would change every number of
//! the program to a map wherever serde holds it back, as in untagged enums.

use std::borrow::Cow;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::ops::Range;
use std::sync::LazyLock;

use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// Before the digits: a text that no client knows, as it is another one in each process.
static MARK: LazyLock<String> = LazyLock::new(|| {
    let random = || RandomState::new().build_hasher().finish();
    format!("\u{fdef}{:016x}{:016x}:", random(), random())
});
/// A number of fewer bytes, without an exponent, keeps its digits in any case.
const BYTES_MIN: usize = 16;

/// The keys of calls' arguments, in all dialects, and of results that are objects.
pub(crate) const ARGUMENTS: &[&str] = &["arguments", "input", "args", "response"];

/// JSON with texts instead of the numbers that a `Value` would change.
pub(crate) fn marked(json: &str) -> Cow<'_, str> {
    mark(json, None)
}

/// The same, for the values of these keys alone, and what is in them.
pub(crate) fn marked_in<'a>(json: &'a str, keys: &[&str]) -> Cow<'a, str> {
    mark(json, Some(keys))
}

fn mark<'a>(json: &'a str, keys: Option<&[&str]>) -> Cow<'a, str> {
    let (bytes, is_all) = (json.as_bytes(), keys.is_none());
    let mut found: Vec<Range<usize>> = Vec::new();
    // Whether numbers are marked in the containers around this place, and in the value that follows.
    let (mut around, mut is_marked): (Vec<bool>, bool) = (Vec::new(), is_all);
    let (mut at, mut text) = (0, 0..0);
    while let Some(byte) = bytes.get(at) {
        let begun = at;
        at += 1;
        match byte {
            b'"' => {
                at = end_of_text(bytes, at);
                text = begun + 1..at.saturating_sub(1).max(begun + 1);
            }
            b':' => {
                let is_key = |keys: &&[&str]| json.get(text.clone()).is_some_and(|key| keys.contains(&key));
                is_marked = around.last().copied().unwrap_or(is_all) || keys.as_ref().is_some_and(is_key);
            }
            b'{' | b'[' => around.push(is_marked),
            b'}' | b']' => {
                around.pop();
                is_marked = around.last().copied().unwrap_or(is_all);
            }
            b',' => is_marked = around.last().copied().unwrap_or(is_all),
            b'-' | b'0'..=b'9' => {
                let is_part = |b: &u8| matches!(b, b'0'..=b'9' | b'.' | b'+' | b'-' | b'e' | b'E');
                at += bytes[at..].iter().take_while(|b| is_part(b)).count();
                if is_marked && !is_kept(&json[begun..at]) {
                    found.push(begun..at);
                }
            }
            _ => {}
        }
    }
    if found.is_empty() {
        return json.into();
    }
    let (mut out, mut copied) = (String::with_capacity(json.len() + found.len() * (MARK.len() + 2)), 0);
    for number in found {
        out.push_str(&json[copied..number.start]);
        out.push_str(&format!("\"{}{}\"", *MARK, &json[number.clone()]));
        copied = number.end;
    }
    out.push_str(&json[copied..]);
    out.into()
}

/// Where a text ends that begins at byte `at`, behind its quotation mark.
fn end_of_text(bytes: &[u8], mut at: usize) -> usize {
    while let Some(length) = bytes[at..].iter().position(|b| matches!(b, b'"' | b'\\')) {
        at += length;
        if bytes[at] == b'"' {
            return at + 1;
        }
        at = (at + 2).min(bytes.len());
    }
    bytes.len()
}

/// Whether a `Value` has all digits of a number. What is no number is left to the parser.
fn is_kept(number: &str) -> bool {
    if number.len() < BYTES_MIN && !number.contains(['e', 'E']) || !is_number(number) {
        return true;
    }
    let read: Option<Value> = serde_json::from_str(number).ok();
    read.is_some_and(|read| decimal(&read.to_string()) == decimal(number))
}

fn is_number(text: &str) -> bool {
    text.starts_with(|c: char| c == '-' || c.is_ascii_digit())
        && serde_json::from_str::<&RawValue>(text).is_ok()
        && text.ends_with(|c: char| c.is_ascii_digit())
        && text.bytes().all(|b| !b.is_ascii_whitespace())
}

/// A number as its sign, its digits without zeros at either end, and the power of ten of the last one.
fn decimal(number: &str) -> Option<(bool, String, i64)> {
    let (is_negative, number) = (number.starts_with('-'), number.trim_start_matches('-'));
    let (mantissa, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let exponent: i64 = exponent.parse().ok()?;
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all = format!("{whole}{fraction}");
    let digits = all.trim_end_matches('0');
    let power =
        exponent.checked_sub(fraction.len() as i64)?.checked_add((all.len() - digits.len()) as i64)?;
    let digits = digits.trim_start_matches('0').to_string();
    let power = if digits.is_empty() { 0 } else { power };
    Some((is_negative, digits, power))
}

/// The digits of a number, if a text stands for one.
pub(crate) fn number(text: &str) -> Option<&str> {
    text.strip_prefix(MARK.as_str()).filter(|number| is_number(number))
}

/// Makes marked numbers the numbers that a `Value` has for them, the nearest ones: for what is no call's argument.
pub(crate) fn plain(value: &mut Value) {
    match value {
        Value::String(text) => {
            if let Some(number) = number(text) {
                let nearest: f64 = number.parse().unwrap_or_default();
                *value = nearest.clamp(f64::MIN, f64::MAX).into();
            }
        }
        Value::Array(items) => items.iter_mut().for_each(plain),
        Value::Object(members) => members.values_mut().for_each(plain),
        _ => {}
    }
}

/// A text, or any other value as JSON with all digits.
pub(crate) fn bare(value: &Value) -> String {
    match value.as_str() {
        Some(text) if number(text).is_none() => text.into(),
        _ => text(value),
    }
}

/// Reads a body of any dialect, with all digits of the numbers in calls' arguments and in the schemas of tools and answers.
///
/// # Errors
/// It is no JSON object.
pub fn read(json: &[u8]) -> serde_json::Result<Map<String, Value>> {
    const SCHEMAS: [&str; 4] = ["parameters", "input_schema", "parametersJsonSchema", "schema"];
    match std::str::from_utf8(json) {
        Ok(json) => serde_json::from_str(&marked_in(json, &[ARGUMENTS, &SCHEMAS].concat())),
        Err(_) => serde_json::from_slice(json),
    }
}

/// A value as JSON with all digits.
pub fn text(value: &Value) -> String {
    serde_json::to_string(&Exact(value)).unwrap_or_else(|_| value.to_string())
}

/// Serialises a value to JSON with all digits.
struct Exact<'a>(&'a Value);

impl Serialize for Exact<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::String(text) => match number(text).map(|n| RawValue::from_string(n.to_string())) {
                Some(Ok(number)) => number.serialize(to),
                _ => to.serialize_str(text),
            },
            Value::Array(items) => {
                let mut list = to.serialize_seq(Some(items.len()))?;
                items.iter().try_for_each(|item| list.serialize_element(&Exact(item)))?;
                list.end()
            }
            Value::Object(members) => {
                let mut map = to.serialize_map(Some(members.len()))?;
                members.iter().try_for_each(|(key, value)| map.serialize_entry(key, &Exact(value)))?;
                map.end()
            }
            other => other.serialize(to),
        }
    }
}
