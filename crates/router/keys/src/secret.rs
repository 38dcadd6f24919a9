//! Keys as clients have them, and what is stored of them.
//!
//! A key is 256 bits of the system's randomness, and only its BLAKE3 hash is stored. Passwords need slow, salted
//! hashes because people choose common ones: a table of guesses finds most. Among 2^256 equally likely keys no guess is
//! better than another, however fast each can be tried, and no two keys are equal, so a salt has no use.
//!
//! A key is found by its hash. The time of the search may reveal how much of *the hash* of a guess agrees with a stored one, never
//! how much of the key does: choosing guesses by their hashes requires breaking BLAKE3. The final comparison
//! still takes constant time.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};

use crate::Error;

const PREFIX: &str = "sk-octet-";
/// Maximum length of a key; longer texts are not hashed.
const LENGTH_MAX: usize = 256;

/// A new key. It is shown only by [`Secret::reveal`], and not stored.
pub struct Secret(String);

impl Secret {
    pub(crate) fn new() -> Result<Self, Error> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(|e| Error::NoRandomness(e.to_string()))?;
        let hex = blake3::Hash::from_bytes(bytes).to_hex();
        Ok(Self(format!("{PREFIX}{hex}")))
    }

    /// The key, to be shown once.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// The hash that is stored; `None` for a text that cannot be a key.
pub(crate) fn hash(key: &str) -> Option<blake3::Hash> {
    (!key.is_empty() && key.len() <= LENGTH_MAX).then(|| blake3::hash(key.as_bytes()))
}

/// The hash of a key of another program of which only the SHA-256 is known; no key of ours has it.
pub(crate) fn foreign_hash(key: &str) -> blake3::Hash {
    of_digest(&Sha256::digest(key.as_bytes()))
}

/// The same from the SHA-256 itself, in hexadecimal digits.
pub(crate) fn foreign(digest: &str) -> Option<blake3::Hash> {
    // 32 bytes, as a BLAKE3 hash has.
    blake3::Hash::from_hex(digest).ok().map(|digest| of_digest(digest.as_bytes()))
}

fn of_digest(digest: &[u8]) -> blake3::Hash {
    blake3::derive_key("octet 2026-11-27 a key that is known by its SHA-256", digest).into()
}

/// A key's id in lists and logs: the beginning of its hash, which reveals nothing about the key.
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
