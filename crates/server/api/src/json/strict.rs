//! Parses bytes to a JSON value and refuses duplicate keys.
//!
//! serde_json's own `Value` keeps the last duplicate: of `{"max_tokens": 1, "max_tokens": 2}` the first would be silently ignored, and
//! a proxy in front that uses the first would have checked a different request.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::{Path, Result, Segment};
use crate::{ApiError, ErrorKind, digits};

/// The parser's position, and whether it found a duplicate key.
#[derive(Default)]
struct Place {
    path: Vec<Segment>,
    twice: bool,
}

impl Place {
    fn path(&self) -> String {
        self.path.iter().fold(Path::default(), |path, segment| path.join(segment.clone())).to_string()
    }
}

/// Parses one value.
struct Seed<'a>(&'a mut Place);

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> std::result::Result<Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> std::result::Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, b: bool) -> std::result::Result<Value, E> {
        Ok(b.into())
    }

    fn visit_i64<E>(self, n: i64) -> std::result::Result<Value, E> {
        Ok(n.into())
    }

    fn visit_u64<E>(self, n: u64) -> std::result::Result<Value, E> {
        Ok(n.into())
    }

    fn visit_f64<E: Error>(self, n: f64) -> std::result::Result<Value, E> {
        Number::from_f64(n).map(Value::Number).ok_or_else(|| E::custom("a number that is not finite"))
    }

    fn visit_str<E>(self, s: &str) -> std::result::Result<Value, E> {
        Ok(s.into())
    }

    fn visit_string<E>(self, s: String) -> std::result::Result<Value, E> {
        Ok(s.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> std::result::Result<Value, A::Error> {
        let mut out = Vec::new();
        self.0.path.push(Segment::Index(0));
        while let Some(item) = items.next_element_seed(Seed(self.0))? {
            out.push(item);
            if let Some(Segment::Index(i)) = self.0.path.last_mut() {
                *i = out.len();
            }
        }
        self.0.path.pop();
        Ok(Value::Array(out))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> std::result::Result<Value, A::Error> {
        let mut out = Map::new();
        while let Some(key) = fields.next_key::<String>()? {
            self.0.twice = out.contains_key(&key);
            self.0.path.push(Segment::Key(key.clone().into()));
            if self.0.twice {
                return Err(A::Error::custom("a key that is there already"));
            }
            let value = fields.next_value_seed(Seed(self.0))?;
            out.insert(key, value);
            self.0.path.pop();
        }
        Ok(Value::Object(out))
    }
}

/// Parses the bytes. Errors name the path reached so far.
pub(super) fn value(body: &[u8]) -> Result<Value> {
    if body.trim_ascii().is_empty() {
        return Err(ApiError::new(ErrorKind::InvalidRequest, "the body is empty; send a JSON object"));
    }
    if [&b"\xef\xbb\xbf"[..], b"\xff\xfe", b"\xfe\xff"].iter().any(|mark| body.starts_with(mark)) {
        let what = "the body begins with a byte order mark; send JSON in UTF-8 without one";
        return Err(ApiError::new(ErrorKind::InvalidRequest, what));
    }
    let mut place = Place::default();
    let marked = std::str::from_utf8(body).ok().map(|text| digits::marked_in(text, digits::ARGUMENTS));
    let bytes = marked.as_deref().map_or(body, str::as_bytes);
    let mut from = serde_json::Deserializer::from_slice(bytes);
    let read = Seed(&mut place).deserialize(&mut from).and_then(|value| from.end().map(|()| value));
    read.map_err(|e| refused(&place, body, &e))
}

fn refused(place: &Place, body: &[u8], e: &serde_json::Error) -> ApiError {
    let path = place.path();
    let message = if place.twice {
        format!("'{path}' is a duplicate key in its object; give it once")
    } else if let Some(half) = half_of_a_pair(body).filter(|_| e.to_string().contains("hex escape")) {
        format!(
            "'{path}' has a lone surrogate, {half}: half of a character. Cut texts between characters, not between \
             UTF-16 units (line {}, column {})",
            e.line(),
            e.column()
        )
    } else {
        format!("the body cannot be read as JSON: {e}")
    };
    let error = ApiError::new(ErrorKind::InvalidRequest, message);
    ApiError { param: (!path.is_empty()).then_some(path), ..error }
}

/// The first unpaired surrogate escape (`\uD800` to `\uDFFF`), as written.
fn half_of_a_pair(body: &[u8]) -> Option<String> {
    let unit = |at: usize| -> Option<u32> {
        let digits = body.get(at..at + 6)?.strip_prefix(b"\\u")?;
        u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    };
    let mut at = 0;
    while at < body.len() {
        if body[at] != b'\\' {
            at += 1;
            continue;
        }
        at += match unit(at) {
            Some(0xD800..=0xDBFF) if matches!(unit(at + 6), Some(0xDC00..=0xDFFF)) => 12,
            Some(0xD800..=0xDFFF) => return Some(String::from_utf8_lossy(&body[at..at + 6]).into()),
            Some(_) => 6,
            // Another escape of two characters; the second may be a backslash.
            None => 2,
        };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicate_keys_are_refused() {
        for (body, path) in [
            (r#"{"max_tokens": 1, "model": "m", "max_tokens": 2}"#, "max_tokens"),
            (r#"{"a": [{"b": 1}, {"b": {"c": 1, "c": 1}}]}"#, "a[1].b.c"),
            (r#"{"a": null, "a": 1}"#, "a"),
            ("{\"a\": 1, \"\\u0061\": 1}", "a"),
        ] {
            let e = value(body.as_bytes()).unwrap_err();
            assert_eq!(e.param.as_deref(), Some(path), "{e}");
            assert!(e.message.contains("duplicate key"), "{e}");
        }
        let fine = r#"{"a": {"b": 1}, "c": {"b": 1}, "d": [{"b": -2}, {"b": 1.5}, null, true, 18446744073709551615]}"#;
        assert_eq!(value(fine.as_bytes()).unwrap(), serde_json::from_str::<Value>(fine).unwrap());
    }

    #[test]
    fn bodies_that_are_not_json_are_named() {
        let why = |body: &[u8]| value(body).unwrap_err().message;
        assert_eq!(why(b" \n"), "the body is empty; send a JSON object");
        for body in [&b"\xef\xbb\xbf{}"[..], b"\xff\xfe{\0}\0"] {
            assert!(why(body).contains("a byte order mark"), "{}", why(body));
        }
    }

    #[test]
    fn an_incomplete_character_is_named() {
        for (text, half) in [
            (r"\ud83d", r"\ud83d"),
            (r"x\uDE00y", r"\uDE00"),
            (r"\ud83d\ud83d\ude00", r"\ud83d"),
            (r"\\\ud83dx", r"\ud83d"),
        ] {
            let e = value(format!(r#"{{"m": [{{"t": "{text}"}}]}}"#).as_bytes()).unwrap_err();
            assert_eq!(e.param.as_deref(), Some("m[0].t"), "{e}");
            assert!(e.message.contains(&format!("a lone surrogate, {half}:")), "{e}");
        }
        assert_eq!(value(br#""\ud83d\ude00 \\ud83d""#).unwrap(), "\u{1f600} \\ud83d");
        let other = value(br#"{"a": "\ux", "b": "\ud83d"}"#).unwrap_err();
        assert!(other.message.contains("cannot be read as JSON"), "{other}");
    }
}
