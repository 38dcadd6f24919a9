//! DRY: penalises tokens that would continue a sequence already in the text. Settings in [`super::Dry`].

use std::collections::BTreeSet;

use crate::tokenizer::{Special, Tokenizer};

use super::params::PENALTY_LAST_N_MAX;
use super::stages::Dry;

/// Maximum number of tokens after the first of a sequence breaker, as in llama.cpp.
const TAIL_MAX: usize = 20;
/// Largest exponent of e that an f32 holds.
const EXPONENT_MAX: f32 = 88.722_84;

/// The tokens so far, and the repetitions among them. Allocated by [`Repetitions::new`].
#[derive(Debug, Clone)]
pub(super) struct Repetitions {
    /// The last tokens, oldest first, with capacity for twice the window, so that they are moved rarely.
    tokens: Vec<u32>,
    last_n: usize,
    multiplier: f32,
    base: f32,
    allowed: usize,
    /// Larger exponents would overflow.
    exponent_max: usize,
    /// Sorted: the first token of a breaker, and the tokens after it.
    breakers: Vec<(u32, Vec<u32>)>,
    /// `lengths[k]`: how many of the last tokens equal those `k` positions before them.
    lengths: Vec<u32>,
    /// Tokens that would continue a repetition, with its length; sorted.
    found: Vec<(u32, u32)>,
}

impl Repetitions {
    pub fn new(dry: &Dry) -> Self {
        let last_n = dry.last_n.min(PENALTY_LAST_N_MAX);
        let exponent = if dry.base > 1.000_001 { EXPONENT_MAX / dry.base.ln() } else { 0.0 };
        let split = |b: &Vec<u32>| b.split_first().map(|(head, tail)| (*head, tail.to_vec()));
        let mut breakers: Vec<_> = dry.breakers.iter().filter_map(split).collect();
        // For one first token, the longest first: that one counts.
        breakers.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.len().cmp(&a.1.len())));
        Self {
            tokens: Vec::with_capacity(2 * last_n),
            last_n,
            multiplier: dry.multiplier,
            base: dry.base,
            allowed: dry.allowed_length,
            exponent_max: exponent as usize,
            breakers,
            lengths: Vec::with_capacity(last_n),
            found: Vec::with_capacity(last_n),
        }
    }

    pub fn push(&mut self, id: u32) {
        if self.tokens.len() == 2 * self.last_n {
            self.tokens.copy_within(self.last_n.., 0);
            self.tokens.truncate(self.last_n);
        }
        self.tokens.push(id);
    }

    /// Finds the repetitions at the text's end, for [`Repetitions::penalty`] and [`Repetitions::apply`].
    pub fn find(&mut self) {
        self.found.clear();
        let start = self.tokens.len().saturating_sub(self.last_n);
        let seen = &self.tokens[start..];
        if seen.len() <= self.allowed {
            return;
        }
        let longest = unbroken(seen, &self.breakers);
        if longest < self.allowed {
            return;
        }
        suffixes(seen, &mut self.lengths);
        for (k, &length) in self.lengths.iter().enumerate().skip(1) {
            let length = (length as usize).min(longest);
            if length >= self.allowed {
                // The next token then: `k` positions before the end.
                self.found.push((seen[seen.len() - k], length as u32));
            }
        }
        self.found.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
        self.found.dedup_by_key(|f| f.0);
    }

    /// The penalty of a token.
    pub fn penalty(&self, id: u32) -> f32 {
        match self.found.binary_search_by_key(&id, |f| f.0) {
            Ok(i) => self.price(self.found[i].1),
            Err(_) => 0.0,
        }
    }

    /// Subtracts the penalties from `logits` `[vocab_rows]`.
    pub fn apply(&self, logits: &mut [f32]) {
        for &(id, length) in &self.found {
            if let Some(x) = logits.get_mut(id as usize) {
                *x -= self.price(length);
            }
        }
    }

    fn price(&self, length: u32) -> f32 {
        let mut exponent = length as usize - self.allowed;
        if self.exponent_max > 0 {
            exponent = exponent.min(self.exponent_max);
        }
        self.multiplier * self.base.powf(exponent as f32)
    }
}

/// Tokens after the last breaker: repetitions are not longer.
fn unbroken(seen: &[u32], breakers: &[(u32, Vec<u32>)]) -> usize {
    for (behind, id) in seen.iter().rev().enumerate() {
        let from = breakers.partition_point(|b| b.0 < *id);
        let after = &seen[seen.len() - behind..];
        let mut heads = breakers[from..].iter().take_while(|b| b.0 == *id);
        if let Some((_, tail)) = heads.find(|b| after.starts_with(&b.1)) {
            return behind - tail.len();
        }
    }
    seen.len()
}

/// Computes `lengths[k]`, the length of the longest common suffix of `seen` and `seen` without its last `k` tokens: the Z function of
/// the reversed text (Gusfield, Algorithms on Strings, 1.3), in linear time.
fn suffixes(seen: &[u32], lengths: &mut Vec<u32>) {
    let n = seen.len();
    let back = |i: usize| seen[n - 1 - i];
    lengths.clear();
    lengths.resize(n, 0);
    let (mut left, mut right) = (0, 0);
    for k in 1..n {
        let mut length = if k < right { (lengths[k - left] as usize).min(right - k) } else { 0 };
        while k + length < n && back(length) == back(k + length) {
            length += 1;
        }
        lengths[k] = length as u32;
        if k + length > right {
            (left, right) = (k, k + length);
        }
    }
}

/// All token sequences of a vocabulary that write `text`, or end with a prefix of it: the first token, and the tokens of the rest. For
/// [`Dry::breakers`], as in llama.cpp.
pub fn dry_breakers(tokenizer: &Tokenizer, text: &str) -> Vec<Vec<u32>> {
    let mut out = BTreeSet::new();
    let is_space = |id: &u32| tokenizer.token_bytes(*id) == b" ";
    if text.is_empty() {
        return Vec::new();
    }
    for id in 0..tokenizer.vocab_len() as u32 {
        let word = tokenizer.token_bytes(id);
        if word.windows(text.len()).any(|w| w == text.as_bytes()) {
            out.insert(vec![id]);
            continue;
        }
        // Suffixes of a token's text that are prefixes of `text`, longest first.
        let cuts =
            text.char_indices().map(|(i, _)| i).skip(1).filter(|&i| word.ends_with(&text.as_bytes()[..i]));
        for cut in cuts {
            let rest = tokenizer.encode(&text[cut..], Special::Text).unwrap_or_default();
            // Some vocabularies add a space before the first word, which does not belong to this rest.
            let space = usize::from(!text[cut..].starts_with(' ') && rest.first().is_some_and(is_space));
            let mut breaker = vec![id];
            breaker.extend(rest.into_iter().skip(space).take(TAIL_MAX));
            out.insert(breaker);
        }
    }
    out.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn repeated_suffixes_are_found() {
        // a b c c b c y a b c
        let seen = [1, 2, 3, 3, 2, 3, 9, 1, 2, 3];
        let mut lengths = Vec::new();
        suffixes(&seen, &mut lengths);
        assert_eq!(lengths, [0, 0, 0, 0, 2, 0, 1, 3, 0, 0]);
    }

    #[test]
    fn a_breaker_ends_a_repetition() {
        let one = |head, tail: &[u32]| (head, tail.to_vec());
        assert_eq!(unbroken(&[1, 2, 3, 4], &[]), 4);
        assert_eq!(unbroken(&[1, 2, 3, 4], &[one(2, &[])]), 2);
        assert_eq!(unbroken(&[1, 2, 3, 4], &[one(2, &[3]), one(2, &[])]), 1);
        assert_eq!(unbroken(&[1, 2, 3, 4], &[one(2, &[9])]), 4);
    }

    proptest! {
        #[test]
        fn the_linear_algorithm_equals_plain_loops(seen in prop::collection::vec(0u32..4, 0..60)) {
            let mut lengths = Vec::new();
            suffixes(&seen, &mut lengths);
            for k in 1..seen.len() {
                let plain = (0..seen.len() - k).take_while(|i| seen[seen.len() - 1 - i] == seen[seen.len() - 1 - i - k]).count();
                prop_assert_eq!(lengths[k] as usize, plain);
            }
        }
    }
}
