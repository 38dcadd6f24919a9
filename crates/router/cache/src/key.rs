//! Cache keys: a hash of everything that an answer depends on. Computed by the server for each request.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Number;

/// The key of an entry: `namespace:hash`, or only the hash.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Key {
    namespace: Option<Arc<str>>,
    hash: [u8; 32],
}

impl Key {
    /// Bytes of its namespace.
    pub(crate) fn namespace_bytes(&self) -> usize {
        self.namespace.as_ref().map_or(0, |n| n.len())
    }

    /// Parses a key's text form.
    pub fn read(name: &str) -> Option<Self> {
        let (namespace, hash) = name.rsplit_once(':').map_or((None, name), |(n, hash)| (Some(n), hash));
        let is_hash = hash.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        let hash = is_hash.then(|| blake3::Hash::from_hex(hash).ok()).flatten()?;
        Some(Self { namespace: namespace.map(Into::into), hash: hash.into() })
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}:")?;
        }
        f.write_str(&blake3::Hash::from_bytes(self.hash).to_hex())
    }
}

/// Computes a key from parts. Parts are delimited: `ab`, `c` differs from `a`, `bc`.
pub struct KeyMaker(blake3::Hasher);

impl Default for KeyMaker {
    fn default() -> Self {
        Self::new()
    }
}

impl KeyMaker {
    /// Without parts.
    pub fn new() -> Self {
        Self(blake3::Hasher::new_derive_key("octet 2026-11-23 the key of a cached response"))
    }

    /// One more text.
    pub fn text(&mut self, text: &str) {
        self.bytes(b't', text.as_bytes());
    }

    /// Adds a JSON document, ignoring white space and the order of keys. False if it is not JSON, or has duplicate keys, which readers
    /// treat differently.
    pub fn json(&mut self, document: &[u8]) -> bool {
        let Ok(document) = serde_json::from_slice::<Json>(document) else { return false };
        self.value(&document);
        true
    }

    /// The key.
    pub fn key(self, namespace: Option<Arc<str>>) -> Key {
        Key { namespace, hash: self.0.finalize().into() }
    }

    fn bytes(&mut self, kind: u8, bytes: &[u8]) {
        self.0.update(&[kind]);
        self.0.update(&(bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
    }

    fn value(&mut self, value: &Json) {
        match value {
            Json::Null => self.bytes(b'n', b""),
            Json::Bool(b) => self.bytes(b'b', &[u8::from(*b)]),
            Json::Number(n) => self.bytes(b'd', n.to_string().as_bytes()),
            Json::Text(text) => self.bytes(b's', text.as_bytes()),
            Json::List(items) => {
                self.bytes(b'l', &(items.len() as u64).to_le_bytes());
                items.iter().for_each(|item| self.value(item));
            }
            Json::Map(fields) => {
                self.bytes(b'm', &(fields.len() as u64).to_le_bytes());
                for (name, value) in fields {
                    self.bytes(b'k', name.as_bytes());
                    self.value(value);
                }
            }
        }
    }
}

/// JSON with sorted, unique keys.
enum Json {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    List(Vec<Json>),
    Map(BTreeMap<String, Json>),
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, b: bool) -> Result<Json, E> {
        Ok(Json::Bool(b))
    }

    fn visit_u64<E>(self, n: u64) -> Result<Json, E> {
        Ok(Json::Number(n.into()))
    }

    fn visit_i64<E>(self, n: i64) -> Result<Json, E> {
        Ok(Json::Number(n.into()))
    }

    fn visit_f64<E: Error>(self, n: f64) -> Result<Json, E> {
        Number::from_f64(n).map(Json::Number).ok_or_else(|| E::custom("no finite number"))
    }

    fn visit_str<E>(self, text: &str) -> Result<Json, E> {
        Ok(Json::Text(text.into()))
    }

    fn visit_string<E>(self, text: String) -> Result<Json, E> {
        Ok(Json::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Json, A::Error> {
        let mut out = Vec::new();
        while let Some(item) = items.next_element()? {
            out.push(item);
        }
        Ok(Json::List(out))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Json, A::Error> {
        let mut out = BTreeMap::new();
        while let Some((name, value)) = fields.next_entry::<String, Json>()? {
            if out.insert(name, value).is_some() {
                return Err(A::Error::custom("duplicate key"));
            }
        }
        Ok(Json::Map(out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(document: &str) -> Option<String> {
        let mut maker = KeyMaker::new();
        maker.json(document.as_bytes()).then(|| maker.key(None).to_string())
    }

    #[test]
    fn space_and_order_make_no_difference_and_values_do() {
        let one = of(r#"{"a": [1, {"b": "x", "c": null}], "d": 0.5}"#);
        assert_eq!(one, of(r#"{"d":5e-1,"a":[1,{"c":null,"b":"\u0078"}]}"#));
        assert_eq!(one.map(|k| k.len()), Some(64));
        let different = [
            r#"{}"#,
            r#"[]"#,
            r#"{"a":1}"#,
            r#"{"a":"1"}"#,
            r#"{"a":[1]}"#,
            r#"{"a":[[1]]}"#,
            r#"{"a":true}"#,
            r#"{"a":null}"#,
            r#"{"a":1,"b":2}"#,
            r#"{"a":{"b":2}}"#,
            r#"["a","b"]"#,
            r#"["ab"]"#,
            r#"[["a"],"b"]"#,
            r#"[["a","b"]]"#,
            r#"{"a":"b"}"#,
            r#"["a",{"b":[]}]"#,
            r#"["a",{"b":{}}]"#,
            r#"[1,2]"#,
            r#"[2,1]"#,
            r#"[-1]"#,
        ];
        let keys: std::collections::HashSet<_> = different.iter().map(|d| of(d).expect(d)).collect();
        assert_eq!(keys.len(), different.len());
        for wrong in ["", "{", r#"{"a":1,"a":1}"#, r#"[{"x":{"a":1,"a":2}}]"#, "{} {}", &"[".repeat(1000)] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn parts_are_told_apart() {
        let of = |parts: &[&str]| {
            let mut maker = KeyMaker::new();
            parts.iter().for_each(|p| maker.text(p));
            maker.key(Some("ns".into())).to_string()
        };
        assert_ne!(of(&["ab", "c"]), of(&["a", "bc"]));
        assert_ne!(of(&["a"]), of(&["a", ""]));
        assert!(of(&["a"]).starts_with("ns:"));
    }
}
