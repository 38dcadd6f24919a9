//! Rendezvous hashing: the same key goes to the same deployment, and if one is removed only its own keys move.

use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

/// A hash that is the same in every process: XXH3.
pub fn hash(parts: &[&[u8]]) -> u64 {
    let mut h = Xxh3::new();
    for part in parts {
        // Includes the length: otherwise ("a", "bc") would equal ("ab", "c").
        h.update(&part.len().to_le_bytes());
        h.update(part);
    }
    h.digest()
}

/// The score of `id` for `key`: the highest gets it, and each gets a share of keys in proportion to its weight (Schindelhauer and
/// Schomaker, "Weighted distributed hash tables", 2005).
pub fn score(key: u64, id: &str, weight: f64) -> f64 {
    if weight <= 0.0 {
        return f64::NEG_INFINITY;
    }
    let h = xxh3_64_with_seed(id.as_bytes(), key);
    // In (0, 1): 53 bits, and half a step away from both ends.
    let unit = ((h >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    weight / -unit.ln()
}
