//! API keys. Checked by a middleware before a request is read.

use subtle::ConstantTimeEq;

use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;

/// Headers with keys besides `Authorization`: those of Anthropic's, Azure's, Gemini's and LiteLLM's clients.
const HEADERS: [&str; 4] = ["x-api-key", "api-key", "x-goog-api-key", "x-litellm-api-key"];

/// What a request without an accepted key is answered.
pub const NO_KEY: &str =
    "missing or invalid API key; send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'";

/// The accepted keys; without any, every request is accepted. Never printed.
#[derive(Clone, Default)]
pub struct Keys(Vec<String>);

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Keys({})", self.0.len())
    }
}

impl Keys {
    /// These keys; empty strings are ignored.
    pub fn new(keys: impl IntoIterator<Item = String>) -> Self {
        Self(keys.into_iter().filter(|k| !k.is_empty()).collect())
    }

    /// True if no key is needed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// These keys and more.
    pub fn and(&self, more: impl IntoIterator<Item = String>) -> Self {
        Self::new(self.0.iter().cloned().chain(more))
    }

    /// Whether this is one of the keys.
    pub fn has(&self, key: &str) -> bool {
        self.0.iter().fold(false, |known, k| known | bool::from(k.as_bytes().ct_eq(key.as_bytes())))
    }

    /// The key that a request brings, known or not.
    pub fn sent(headers: &HeaderMap) -> Option<&str> {
        let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok());
        let bearer = text(AUTHORIZATION.as_str()).and_then(|v| {
            let (scheme, key) = v.split_at_checked("Bearer ".len())?;
            scheme.eq_ignore_ascii_case("Bearer ").then_some(key)
        });
        bearer.or_else(|| HEADERS.iter().find_map(|name| text(name))).map(str::trim)
    }

    /// Whether a request has a valid key: `Authorization: Bearer KEY`, or one of the other headers.
    pub fn admit(&self, headers: &HeaderMap) -> bool {
        if self.is_empty() {
            return true;
        }
        let bearer = headers.get(AUTHORIZATION).and_then(|v| {
            let (scheme, key) = v.as_bytes().split_at_checked(b"Bearer ".len())?;
            scheme.eq_ignore_ascii_case(b"Bearer ").then_some(key)
        });
        let of = |name: &&str| headers.get(*name).map(|v| v.as_bytes());
        let (usual, others) = HEADERS.split_at(1);
        let sent = bearer.into_iter().chain(usual.iter().filter_map(of));
        // Other programs' headers are read only if no usual header is present.
        let is_usual = bearer.is_some() || usual.iter().any(|name| headers.contains_key(*name));
        let sent = sent.chain(others.iter().filter(|_| !is_usual).filter_map(of));
        // Compares with all keys, so that timing does not reveal which one matched.
        sent.fold(false, |known, key| {
            let matches = self.0.iter().map(|k| bool::from(k.as_bytes().ct_eq(key)));
            matches.fold(known, |a, b| a | b)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_in_two_headers() {
        let keys = Keys::new(["one".into(), "two".into(), String::new()]);
        let with = |name: &'static str, value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().unwrap());
            keys.admit(&headers)
        };
        assert!(
            with("authorization", "Bearer one")
                && with("authorization", "bearer two")
                && with("x-api-key", "two")
        );
        for wrong in ["Bearer on", "Bearer onee", "one", "Bearer ", "Basic one", ""] {
            assert!(!with("authorization", wrong), "{wrong}");
        }
        assert!(!keys.admit(&HeaderMap::new()) && Keys::default().admit(&HeaderMap::new()));
        assert_eq!(format!("{keys:?}"), "Keys(2)");
    }
}
