//! Formats values like Python: `str`, `repr` and `json.dumps`. Chat templates rely on these, and models were trained on their exact output.

use std::fmt::Write;

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

use super::bounds::check_text;
use super::guard::is_mark;

/// Maximum nesting that is written.
pub(super) const MAX_DEPTH: usize = 200;

/// `str(value)`.
pub(super) fn str(value: &Value) -> Result<String, Error> {
    match value.as_str() {
        Some(s) => Ok(s.to_string()),
        None => {
            let mut out = String::new();
            write_repr(&mut out, value, 0)?;
            Ok(out)
        }
    }
}

pub(super) fn too_deep() -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("a value is nested more than {MAX_DEPTH} deep"))
}

/// The float in `value`, if it is one.
fn float(value: &Value) -> Option<f64> {
    if value.is_integer() { None } else { f64::try_from(value.clone()).ok() }
}

fn write_repr(out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(too_deep());
    }
    check_text(out.len())?;
    match value.kind() {
        ValueKind::Undefined => {}
        ValueKind::Number => match float(value) {
            Some(x) => out.push_str(&float_repr(x, "inf", "nan")),
            None => push(out, value),
        },
        ValueKind::String => string_repr(out, value.as_str().unwrap_or_default()),
        ValueKind::Seq | ValueKind::Iterable => {
            let tuple = value.is_tuple();
            out.push(if tuple { '(' } else { '[' });
            let mut n = 0;
            for item in value.try_iter()? {
                if n > 0 {
                    out.push_str(", ");
                }
                write_repr(out, &item, depth + 1)?;
                n += 1;
            }
            out.push_str(match (tuple, n) {
                (false, _) => "]",
                (true, 1) => ",)",
                (true, _) => ")",
            });
        }
        ValueKind::Map => {
            out.push('{');
            for (n, key) in value.try_iter()?.enumerate() {
                if n > 0 {
                    out.push_str(", ");
                }
                write_repr(out, &key, depth + 1)?;
                out.push_str(": ");
                write_repr(out, &value.get_item(&key)?, depth + 1)?;
            }
            out.push('}');
        }
        // Booleans, None and the engine's objects already print as in Python.
        _ => push(out, value),
    }
    Ok(())
}

fn push(out: &mut String, value: &Value) {
    let _ = write!(out, "{value}"); // writing to a string does not fail
}

/// The shortest digits that round-trip, in Python's layout: exponents below 1e-4 and from 1e16.
fn float_repr(x: f64, infinity: &str, nan: &str) -> String {
    if x.is_nan() {
        return nan.into();
    }
    if x.is_infinite() {
        return format!("{}{infinity}", if x < 0.0 { "-" } else { "" });
    }
    let scientific = format!("{x:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>() {
        Ok(e) if x != 0.0 && !(-4..16).contains(&e) => {
            format!("{digits}e{}{:02}", if e < 0 { '-' } else { '+' }, e.abs())
        }
        _ => {
            let plain = format!("{x}");
            if plain.contains('.') { plain } else { plain + ".0" }
        }
    }
}

fn string_repr(out: &mut String, s: &str) {
    let quote = if s.contains('\'') && !s.contains('"') { '"' } else { '\'' };
    out.push(quote);
    // Runs of what needs no look are copied whole.
    let plain = |c: char| matches!(c, ' '..='~') && c != '\\' && c != quote;
    let mut rest = s;
    while let Some(at) = rest.find(|c| !plain(c)) {
        out.push_str(&rest[..at]);
        let mut chars = rest[at..].chars();
        let Some(c) = chars.next() else { break };
        rest = chars.as_str();
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if is_printable(c) => out.push(c),
            c => {
                let n = u32::from(c);
                let _ = match n {
                    0..=0xff => write!(out, "\\x{n:02x}"),
                    0x100..=0xffff => write!(out, "\\u{n:04x}"),
                    _ => write!(out, "\\U{n:08x}"),
                };
            }
        }
    }
    out.push_str(rest);
    out.push(quote);
}

/// Python's `str.isprintable`, for text in messages: no controls, no spaces but the plain one, no format or private characters.
fn is_printable(c: char) -> bool {
    if is_mark(c) || c == ' ' {
        return true;
    }
    !(c.is_control()
        || c.is_whitespace()
        || matches!(u32::from(c),
            0xad | 0x200b..=0x200f | 0x202a..=0x202e | 0x2060..=0x206f | 0xfeff | 0xfff9..=0xfffb
            | 0xe000..=0xf8ff | 0xfdd0..=0xfdef | 0xe0000..=0xe007f | 0xf0000..))
}

/// Options of `json.dumps`.
#[derive(Debug, Clone)]
pub(super) struct JsonStyle {
    pub ensure_ascii: bool,
    /// Indentation of a level; `None` writes one line.
    pub indent: Option<String>,
    pub item_separator: String,
    pub key_separator: String,
    pub sort_keys: bool,
}

impl Default for JsonStyle {
    fn default() -> Self {
        Self {
            ensure_ascii: false,
            indent: None,
            item_separator: ", ".into(),
            key_separator: ": ".into(),
            sort_keys: false,
        }
    }
}

/// `json.dumps(value, ...)`.
pub(super) fn json(value: &Value, style: &JsonStyle) -> Result<String, Error> {
    let mut out = String::new();
    write_json(&mut out, value, style, 0)?;
    Ok(out)
}

fn write_json(out: &mut String, value: &Value, style: &JsonStyle, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(too_deep());
    }
    check_text(out.len())?;
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => match float(value) {
            Some(x) => out.push_str(&float_repr(x, "Infinity", "NaN")),
            None => push(out, value),
        },
        ValueKind::String => json_string(out, value.as_str().unwrap_or_default(), style.ensure_ascii),
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            let mut empty = true;
            for item in value.try_iter()? {
                separate(out, style, empty, depth + 1);
                empty = false;
                write_json(out, &item, style, depth + 1)?;
            }
            close(out, style, empty, depth, ']');
        }
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            if style.sort_keys {
                keys.sort();
            }
            out.push('{');
            let empty = keys.is_empty();
            for (n, key) in keys.iter().enumerate() {
                separate(out, style, n == 0, depth + 1);
                match key.kind() {
                    ValueKind::String => {
                        json_string(out, key.as_str().unwrap_or_default(), style.ensure_ascii)
                    }
                    // json.dumps converts numbers, booleans and None to string keys.
                    _ => {
                        out.push('"');
                        write_json(out, key, style, depth + 1)?;
                        out.push('"');
                    }
                }
                out.push_str(&style.key_separator);
                write_json(out, &value.get_item(key)?, style, depth + 1)?;
            }
            close(out, style, empty, depth, '}');
        }
        other => {
            return Err(Error::new(
                ErrorKind::BadSerialization,
                format!("a value that is {other} cannot be written as JSON"),
            ));
        }
    }
    Ok(())
}

fn separate(out: &mut String, style: &JsonStyle, first: bool, depth: usize) {
    if !first {
        out.push_str(&style.item_separator);
    }
    new_line(out, style, depth);
}

fn close(out: &mut String, style: &JsonStyle, empty: bool, depth: usize, end: char) {
    if !empty {
        new_line(out, style, depth);
    }
    out.push(end);
}

fn new_line(out: &mut String, style: &JsonStyle, depth: usize) {
    if let Some(indent) = &style.indent {
        out.push('\n');
        for _ in 0..depth {
            out.push_str(indent);
        }
    }
}

fn json_string(out: &mut String, s: &str, ensure_ascii: bool) {
    out.push('"');
    for c in s.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\0'..='\u{1f}' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c if ensure_ascii && !c.is_ascii() && !is_mark(c) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(json: &str) -> Value {
        Value::from(minijinja::value::Serde(serde_json::from_str::<serde_json::Value>(json).unwrap()))
    }

    /// Each expectation is what CPython 3.11 printed.
    #[test]
    fn str_is_pythons() {
        let check = |json: &str, want: &str| assert_eq!(str(&value(json)).unwrap(), want);
        check(r#"["a", 1, 2.0, true, null, {"k": []}]"#, "['a', 1, 2.0, True, None, {'k': []}]");
        check(
            r#"["it's", "q\"", "'\"", "a\nb\\\u00a0\u0007é"]"#,
            r#"["it's", 'q"', '\'"', 'a\nb\\\xa0\x07é']"#,
        );
        check(
            "[1e-7, 0.0001, 1e15, 1e16, 123456789012345680.0, -0.0, 1.5e300]",
            "[1e-07, 0.0001, 1000000000000000.0, 1e+16, 1.2345678901234568e+17, -0.0, 1.5e+300]",
        );
        check(r#""plain""#, "plain");
        check("18446744073709551615", "18446744073709551615");
    }

    #[test]
    fn json_is_pythons() {
        let v = value(r#"{"b": [1, 2.50, "é\u0001\u007f</s>"], "a": {}, "c": [], "d": {"x": null}}"#);
        let json = |style: JsonStyle| json(&v, &style).unwrap();
        assert_eq!(
            json(JsonStyle::default()),
            "{\"b\": [1, 2.5, \"é\\u0001\u{7f}</s>\"], \"a\": {}, \"c\": [], \"d\": {\"x\": null}}"
        );
        let style = JsonStyle {
            ensure_ascii: true,
            indent: Some("  ".into()),
            item_separator: ",".into(),
            sort_keys: true,
            ..JsonStyle::default()
        };
        assert_eq!(
            json(style),
            "{\n  \"a\": {},\n  \"b\": [\n    1,\n    2.5,\n    \"\\u00e9\\u0001\u{7f}</s>\"\n  ],\n  \"c\": [],\n  \"d\": {\n    \"x\": null\n  }\n}"
        );
        assert!(super::json(&Value::UNDEFINED, &JsonStyle::default()).is_err());
    }
}
