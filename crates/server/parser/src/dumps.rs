//! Writes values like Python: chat templates do, and models were trained on it. Used where calls are written as text, and by the server
//! for tools that are described in the instructions.

use std::fmt::Write;

use serde_json::Value;

/// A value like `json.dumps(value, ensure_ascii=False)`.
pub fn json_dumps(value: &Value) -> String {
    let mut out = String::new();
    write(&mut out, value, ["null", "false", "true"]);
    out
}

/// A value in Python's syntax; its strings are in JSON's, which is valid Python.
pub fn python_text(value: &Value) -> String {
    let mut out = String::new();
    write(&mut out, value, ["None", "False", "True"]);
    out
}

/// Writes a value, with these words for null, false and true.
fn write(out: &mut String, value: &Value, words: [&str; 3]) {
    match value {
        Value::Null => out.push_str(words[0]),
        Value::Bool(is_true) => out.push_str(words[1 + usize::from(*is_true)]),
        Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            Some(x) => out.push_str(&float(x)),
            None => push(out, number),
        },
        Value::String(_) => push(out, value),
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                out.push_str(if i == 0 { "" } else { ", " });
                write(out, item, words);
            }
            out.push(']');
        }
        Value::Object(members) => {
            out.push('{');
            for (i, (key, value)) in members.iter().enumerate() {
                out.push_str(if i == 0 { "" } else { ", " });
                push(out, &Value::from(key.as_str()));
                out.push_str(": ");
                write(out, value, words);
            }
            out.push('}');
        }
    }
}

fn push(out: &mut String, value: &impl std::fmt::Display) {
    let _ = write!(out, "{value}"); // writing to a string does not fail
}

/// The shortest digits that round-trip, in Python's layout: exponents below 1e-4 and from 1e16.
fn float(x: f64) -> String {
    let scientific = format!("{x:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>() {
        Ok(e) if x != 0.0 && !(-4..16).contains(&e) => {
            format!("{digits}e{}{:02}", if e < 0 { '-' } else { '+' }, e.abs())
        }
        _ => format!("{x:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What CPython 3.11 printed: `json.dumps(json.loads(text), ensure_ascii=False)`.
    #[test]
    fn json_is_pythons() {
        for (text, written) in [
            (
                r#"{"a":"Zürich \"x\"\n\u0001\u007f/","b":[1,-2.50,true,null],"c":{},"d":[]}"#,
                "{\"a\": \"Zürich \\\"x\\\"\\n\\u0001\u{7f}/\", \"b\": [1, -2.5, true, null], \"c\": {}, \"d\": []}",
            ),
            (
                "[1e-7,0.0001,1e15,1e16,123456789012345680.0,-0.0,1.5e300,18446744073709551615]",
                "[1e-07, 0.0001, 1000000000000000.0, 1e+16, 1.2345678901234568e+17, -0.0, 1.5e+300, 18446744073709551615]",
            ),
        ] {
            let value: Value = serde_json::from_str(text).unwrap();
            assert_eq!(json_dumps(&value), written);
            // As text it is the same.
            assert_eq!(serde_json::from_str::<Value>(written).unwrap(), value);
        }
    }

    #[test]
    fn python_has_words_of_its_own() {
        let value = serde_json::json!({"a": [true, false, null, 1.0], "b": "it's"});
        assert_eq!(python_text(&value), r#"{"a": [True, False, None, 1.0], "b": "it's"}"#);
    }
}
