//! Keys as clients hold them, and what is kept of them. Used by `store`.
//!
//! A key is 256 bits of the system's randomness, and its BLAKE3 hash is all that is stored. Passwords need slow, salted
//! hashes because people choose few of them: a table of guesses finds most. Among 2^256 equally likely keys no guess is
//! better than another, however fast each can be tried, and no two keys are the same, so a salt would tell nothing apart.
//!
//! A key is found by its hash. How long that takes may tell how much of *the hash* of a guess agrees with a stored one, never
//! how much of the key does: who could choose guesses by their hashes would have broken BLAKE3. The comparison that decides
//! is constant in time all the same.

use std::fmt;
use std::str::FromStr;

use crate::Error;

const PREFIX: &str = "sk-octet-";
/// Longest text that is looked at: nothing longer is a key.
const LENGTH_MAX: usize = 256;

/// A key, once: it prints itself on demand alone ([`Secret::reveal`]), and nothing here keeps it.
pub struct Secret(String);

impl Secret {
    pub(crate) fn new() -> Result<Self, Error> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(|e| Error::NoRandomness(e.to_string()))?;
        let hex = blake3::Hash::from_bytes(bytes).to_hex();
        Ok(Self(format!("{PREFIX}{hex}")))
    }

    /// The key, to show it once to who asked for it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// What is stored of a key; `None` for a text that is none.
pub(crate) fn hash(key: &str) -> Option<blake3::Hash> {
    (!key.is_empty() && key.len() <= LENGTH_MAX).then(|| blake3::hash(key.as_bytes()))
}

/// What a key is called in lists and logs: the beginning of its hash, which tells nothing of the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyId(u64);

impl KeyId {
    pub(crate) fn of(hash: &blake3::Hash) -> Self {
        let [a, b, c, d, e, f, g, h, ..] = *hash.as_bytes();
        Self(u64::from_be_bytes([a, b, c, d, e, f, g, h]))
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for KeyId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let plain = text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit());
        let id = plain.then(|| u64::from_str_radix(text, 16).ok()).flatten();
        id.map(Self).ok_or_else(|| Error::NoSuchKey(text.to_string()))
    }
}
