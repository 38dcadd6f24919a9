//! Keys and other values that are never shown. Held by endpoints; made by whoever reads a configuration.

use zeroize::Zeroizing;

/// What stands where a secret stood.
const HIDDEN: &str = "***";

/// Shortest text that is looked for in what providers say: a shorter one stands in ordinary words.
const REDACTED_BYTES_MIN: usize = 6;

/// A key. Neither `Debug` nor an error ever shows it, and its memory is cleared when it is dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Takes a key.
    pub fn new(text: impl Into<String>) -> Self {
        Self(Zeroizing::new(text.into()))
    }

    /// The key, for the header that needs it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// `text` without the key in it: providers repeat keys in their errors.
    pub(crate) fn hide_in(&self, text: &mut String) {
        if self.0.len() >= REDACTED_BYTES_MIN && text.contains(self.0.as_str()) {
            *text = text.replace(self.0.as_str(), HIDDEN);
        }
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(HIDDEN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_not_shown() {
        let key = Secret::new("sk-abcdef");
        assert_eq!(format!("{key:?} {:?}", Some(&key)), "*** Some(***)");
        let mut said = "Incorrect API key provided: sk-abcdef. Is sk-abcdef yours?".to_string();
        key.hide_in(&mut said);
        assert_eq!(said, "Incorrect API key provided: ***. Is *** yours?");
        Secret::new("").hide_in(&mut said);
        assert_eq!(said, "Incorrect API key provided: ***. Is *** yours?");
    }
}
