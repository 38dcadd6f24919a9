//! Fields of a JSON object with errors that name file, field and what was expected.
//!
//! A field that is `null` counts as absent, as it does for those who write these files.

use serde_json::{Map, Value};

use crate::Error;

/// An object in a JSON file.
#[derive(Clone)]
pub(super) struct Fields<'a> {
    file: &'a str,
    /// Names of the objects around it, each with a dot.
    prefix: String,
    map: &'a Map<String, Value>,
}

/// Parses a file's text; the outermost value must be an object.
pub(super) fn parse(file: &str, text: &str) -> Result<Map<String, Value>, Error> {
    // Some editors write a byte order mark, which JSON forbids.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let parsed = serde_json::from_str(text).or_else(|e| match pythons(text) {
        Some(json) => serde_json::from_str(&json).map_err(|_| e),
        None => Err(e),
    });
    match parsed {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(Error::format(file, "is not a JSON object")),
        Err(e) => Err(Error::format(file, format!("is not JSON: {e}"))),
    }
}

/// JSON for a text of Python's, which writes infinity and NaN as JSON cannot: `null` in their place. `None` if it has none.
fn pythons(text: &str) -> Option<String> {
    let mut out = String::with_capacity(text.len());
    let mut found = false;
    // Every second part is within quotes, where a backslash may stand before one.
    let (mut rest, mut quoted) = (text, false);
    while !rest.is_empty() {
        let mut escaped = false;
        let end = rest.find(|c: char| {
            let ends = c == '"' && !(quoted && escaped);
            escaped = c == '\\' && !escaped;
            ends
        });
        let part = &rest[..end.unwrap_or(rest.len())];
        rest = end.map_or("", |end| &rest[end + 1..]);
        match quoted {
            true => out.push_str(part),
            false => {
                let plain = ["-Infinity", "Infinity", "NaN"]
                    .iter()
                    .fold(part.to_string(), |part, n| part.replace(n, "null"));
                found |= plain != part;
                out.push_str(&plain);
            }
        }
        if end.is_some() {
            out.push('"');
        }
        quoted = !quoted;
    }
    found.then_some(out)
}

impl<'a> Fields<'a> {
    pub fn new(file: &'a str, map: &'a Map<String, Value>) -> Self {
        Self { file, prefix: String::new(), map }
    }

    /// The error that `what` is wrong with `field`.
    pub fn bad(&self, field: &str, what: impl std::fmt::Display) -> Error {
        Error::format(self.file, format!("field '{}{field}' {what}", self.prefix))
    }

    pub fn get(&self, field: &str) -> Option<&'a Value> {
        self.map.get(field).filter(|v| !v.is_null())
    }

    fn typed<T>(
        &self,
        field: &str,
        expected: &str,
        convert: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        match self.get(field) {
            None => Ok(None),
            Some(v) => match convert(v) {
                Some(x) => Ok(Some(x)),
                None => Err(self.bad(field, format!("is {}; expected {expected}", brief(v)))),
            },
        }
    }

    pub fn need<T>(&self, field: &str, expected: &str, value: Option<T>) -> Result<T, Error> {
        value.ok_or_else(|| self.bad(field, format!("is missing; expected {expected}")))
    }

    pub fn opt_u32(&self, field: &str) -> Result<Option<u32>, Error> {
        self.typed(field, "an unsigned 32-bit integer", |v| v.as_u64()?.try_into().ok())
    }
    pub fn u32(&self, field: &str) -> Result<u32, Error> {
        self.need(field, "an unsigned 32-bit integer", self.opt_u32(field)?)
    }
    pub fn opt_i64(&self, field: &str) -> Result<Option<i64>, Error> {
        self.typed(field, "an integer", Value::as_i64)
    }
    pub fn opt_f64(&self, field: &str) -> Result<Option<f64>, Error> {
        self.typed(field, "a number", |v| v.as_f64().filter(|x| x.is_finite()))
    }
    pub fn f64(&self, field: &str) -> Result<f64, Error> {
        self.need(field, "a number", self.opt_f64(field)?)
    }
    pub fn opt_bool(&self, field: &str) -> Result<Option<bool>, Error> {
        self.typed(field, "true or false", Value::as_bool)
    }
    pub fn opt_str(&self, field: &str) -> Result<Option<&'a str>, Error> {
        self.typed(field, "a string", Value::as_str)
    }
    pub fn str(&self, field: &str) -> Result<&'a str, Error> {
        self.need(field, "a string", self.opt_str(field)?)
    }
    pub fn opt_array(&self, field: &str) -> Result<Option<&'a [Value]>, Error> {
        self.typed(field, "an array", |v| v.as_array().map(Vec::as_slice))
    }
    pub fn opt_object(&self, field: &str) -> Result<Option<Fields<'a>>, Error> {
        let map = self.typed(field, "an object", Value::as_object)?;
        Ok(map.map(|map| Fields { file: self.file, prefix: format!("{}{field}.", self.prefix), map }))
    }
    /// Number of fields.
    pub fn len(&self) -> usize {
        self.map.len()
    }
    /// An array of strings.
    pub fn opt_strs(&self, field: &str) -> Result<Option<Vec<&'a str>>, Error> {
        self.typed(field, "an array of strings", |v| v.as_array()?.iter().map(Value::as_str).collect())
    }
    /// Token ids: one, or an array of them; a negative one stands for none.
    pub fn opt_ids(&self, field: &str) -> Result<Option<Vec<i64>>, Error> {
        let ids = self.typed(field, "a token id or an array of them", |v| match v {
            Value::Array(ids) => ids.iter().map(token_id).collect(),
            one => Some(vec![token_id(one)?]),
        })?;
        Ok(ids.map(|ids| ids.into_iter().filter(|&id| id >= 0).collect()))
    }
}

fn token_id(v: &Value) -> Option<i64> {
    v.as_i64().filter(|&id| id <= u32::MAX.into())
}

/// A value for a message: short whatever it is.
fn brief(v: &Value) -> String {
    match v {
        Value::Array(_) => "an array".into(),
        Value::Object(_) => "an object".into(),
        Value::String(s) if s.len() > 40 => "a long string".into(),
        v => v.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_only_python_writes_are_absent() {
        let text = r#"{"a": [0.0, Infinity], "b": -Infinity, "c": NaN, "say \"NaN\"": "Infinity\\", "d": 1}"#;
        let map = parse("config.json", text).unwrap();
        let json = Value::Object(map).to_string();
        assert_eq!(json, r#"{"a":[0.0,null],"b":null,"c":null,"say \"NaN\"":"Infinity\\","d":1}"#);
        let e = parse("config.json", r#"{"a": Infinit}"#).unwrap_err().to_string();
        assert!(e.contains("is not JSON"), "{e}");
    }
}
