//! Names of cached prefixes: chained hashes of the model, the salt and all tokens up to the prefix's end.

/// A chained hash (BLAKE3).
pub type Key = [u8; 32];

/// The first link for one model (`fingerprint`) and one salt.
pub fn root_key(fingerprint: &Key, salt: &str) -> Key {
    hash(b"octet root", fingerprint, salt.bytes().map(u32::from))
}

/// The prefix that extends `parent` by a page of `tokens`.
pub fn page_key(parent: &Key, tokens: &[u32]) -> Key {
    hash(b"octet page", parent, tokens.iter().copied())
}

/// A state `tail` tokens after the prefix `parent`.
pub fn state_key(parent: &Key, tail: &[u32]) -> Key {
    hash(b"octet state", parent, tail.iter().copied())
}

fn hash(kind: &[u8], parent: &Key, tokens: impl Iterator<Item = u32>) -> Key {
    let mut h = blake3::Hasher::new();
    // The kind and the parent have fixed lengths, and no kind is a prefix of another.
    h.update(kind).update(parent);
    tokens.for_each(|t| {
        h.update(&t.to_le_bytes());
    });
    h.finalize().into()
}
