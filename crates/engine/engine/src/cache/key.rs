//! Names of cached prefixes: a chain of hashes, so that a name stands for all tokens up to it, the model, and the salt.

/// A chained hash (BLAKE3).
pub type Key = [u8; 32];

/// The start of all chains of one model (`fingerprint`) and one salt.
pub fn root_key(fingerprint: &Key, salt: &str) -> Key {
    hash(b"octet root", fingerprint, salt.bytes().map(u32::from))
}

/// The prefix that ends with a page of `tokens` after the prefix `parent`.
pub fn page_key(parent: &Key, tokens: &[u32]) -> Key {
    hash(b"octet page", parent, tokens.iter().copied())
}

/// A state after `tail` tokens past the prefix `parent`.
pub fn state_key(parent: &Key, tail: &[u32]) -> Key {
    hash(b"octet state", parent, tail.iter().copied())
}

fn hash(kind: &[u8], parent: &Key, tokens: impl Iterator<Item = u32>) -> Key {
    let mut h = blake3::Hasher::new();
    // Both parts in front have one length for each kind, and no kind begins with another.
    h.update(kind).update(parent);
    tokens.for_each(|t| {
        h.update(&t.to_le_bytes());
    });
    h.finalize().into()
}
