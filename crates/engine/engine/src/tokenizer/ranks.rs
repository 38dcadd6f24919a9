//! tiktoken's vocabularies: tokens in the order in which they were made, without merges.

use std::collections::HashMap;

/// Maximum work for the splits of all tokens, in bytes hashed: a hundred times that of published vocabularies.
const WORK_MAX: u64 = 1 << 32;

/// The merges that give tiktoken's tokens: every way to make a token of two others, in the order of the tokens (transformers converts
/// these vocabularies in the same way).
pub(super) fn merges(tokens: &[&str]) -> Result<Vec<(String, String)>, String> {
    let work: u64 = tokens.iter().map(|t| (t.len() as u64).pow(2)).sum();
    if work > WORK_MAX {
        return Err("has tokens that are too long to find their merges".into());
    }
    let rank: HashMap<&str, usize> = tokens.iter().enumerate().map(|(i, t)| (*t, i)).collect();
    let mut out = Vec::with_capacity(4 * tokens.len());
    let mut ways = Vec::new();
    for token in tokens {
        ways.clear();
        for (cut, _) in token.char_indices().skip(1) {
            let (a, b) = token.split_at(cut);
            if let (Some(&left), Some(&right)) = (rank.get(a), rank.get(b)) {
                ways.push((left, right, cut));
            }
        }
        ways.sort_unstable();
        out.extend(ways.iter().map(|&(_, _, cut)| (token[..cut].to_string(), token[cut..].to_string())));
    }
    Ok(out)
}
