//! The arguments of a call as they are written into answers whose calls hold an object: the model's own text, as a parsed number would lose
//! digits.

use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::digits;

/// A JSON object as text, without white space: answers may be lines.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct RawObject(Box<RawValue>);

impl RawObject {
    /// The arguments of a call; without any, an empty object.
    ///
    /// # Errors
    /// A description of what they are instead of an object.
    pub fn read(text: &str) -> Result<Self, String> {
        let text = if text.trim().is_empty() { "{}" } else { text };
        let no_json = |e: serde_json::Error| format!("no JSON: {e}");
        let (bare, numberless) = bare(text);
        // A raw value may hold unpaired surrogates, and any depth. Numbers may be of any size.
        match serde_json::from_str(&numberless).map_err(no_json)? {
            Value::Object(_) => RawValue::from_string(bare).map(Self).map_err(no_json),
            other => Err(format!("no JSON object but {}", crate::json::describe(&other))),
        }
    }

    /// The text.
    pub fn get(&self) -> &str {
        self.0.get()
    }
}

impl Default for RawObject {
    fn default() -> Self {
        Self(RawValue::from_string("{}".into()).unwrap_or_default())
    }
}

impl<'de> Deserialize<'de> for RawObject {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(from)?;
        Self::read(raw.get()).map_err(de::Error::custom)
    }
}

/// JSON without white space; and with 0 instead of each number.
fn bare(json: &str) -> (String, String) {
    let (mut bare, mut numberless) = (String::with_capacity(json.len()), String::with_capacity(json.len()));
    let (mut in_text, mut escaped, mut in_number) = (false, false, false);
    for c in json.chars() {
        if in_text {
            in_text = escaped || c != '"';
            escaped = !escaped && c == '\\';
        } else if in_number && matches!(c, '0'..='9' | '.' | '+' | '-' | 'e' | 'E') {
            bare.push(c);
            continue;
        } else {
            in_number = matches!(c, '0'..='9' | '-');
            in_text = c == '"';
            if matches!(c, ' ' | '\t' | '\n' | '\r') {
                numberless.push(' ');
                continue;
            }
        }
        bare.push(c);
        numberless.push(if in_number { '0' } else { c });
    }
    (bare, numberless)
}

/// The arguments of a call as an object, or a description of what they are instead. With `all_digits`, numbers that a [`Value`] would change
/// are [texts with a mark](digits).
pub(super) fn arguments_object(text: &str, all_digits: bool) -> Result<Map<String, Value>, String> {
    if text.trim().is_empty() {
        return Ok(Map::new());
    }
    let marked = if all_digits { digits::marked(text) } else { text.into() };
    match serde_json::from_str(&marked) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(other) => Err(format!("no JSON object but {}", crate::json::describe(&other))),
        Err(e) => Err(format!("no JSON: {e}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_digits() {
        let text = r#"{"a":[9007199254740993,123456789012345678901234567890,1e400,0.1000000000000000055,-0.0],"b":"1\" 2\\","c":true}"#;
        let spaced = text.replace(',', " ,\n\t").replace(':', " : ").replace('[', "[\r\n");
        for of in [text, &spaced] {
            let arguments = RawObject::read(of).unwrap();
            assert_eq!(serde_json::to_string(&arguments).unwrap(), text);
            assert_eq!(serde_json::from_str::<RawObject>(of).unwrap().get(), text);
        }
        assert_eq!(RawObject::read(" ").unwrap().get(), "{}");
        assert_eq!(RawObject::default().get(), "{}");
    }

    #[test]
    fn what_is_no_object_is_refused() {
        let deep = format!("{{\"a\": {}{}}}", "[".repeat(500), "]".repeat(500));
        for text in [
            "[1]",
            "1e400",
            "{\"a\": 1",
            "{\"a\": 01}",
            "{\"a\": -}",
            "{\"a\": 1 2}",
            "{\"a\": tr ue}",
            "{\"a\": 1} {}",
            "{\"a\" \"b\": 1}",
            "{\"a\": \"\\ud800\"}",
            "null",
            &deep,
        ] {
            assert!(RawObject::read(text).is_err(), "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn objects_are_read_as_serde_json_reads_them(text in r#"[{}\[\]",:\\ \n01.e+untrfals-]{0,16}"#) {
            let text = format!("{{\"a\":{text}}}");
            if let Ok(Value::Object(of)) = serde_json::from_str(&text) {
                let raw = RawObject::read(&text).unwrap();
                proptest::prop_assert_eq!(serde_json::from_str::<Value>(raw.get()).unwrap(), Value::Object(of));
            } else if let Ok(raw) = RawObject::read(&text) {
                // A number that is too large.
                proptest::prop_assert!(text.contains(['e', 'E']), "{}", raw.get());
            }
        }
    }
}
