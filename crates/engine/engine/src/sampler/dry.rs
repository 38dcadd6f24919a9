//! DRY: which tokens would go on with a sequence that the text has already, and what that costs them. Used by
//! [`super::Sampler`]; settings in [`super::Dry`].

use std::collections::BTreeSet;

use crate::tokenizer::{Special, Tokenizer};

use super::params::PENALTY_LAST_N_MAX;
use super::stages::Dry;

/// Longest tail of a sequence of tokens that breaks repetitions, as in llama.cpp.
const TAIL_MAX: usize = 20;
/// Largest exponent of e that an f32 holds.
const EXPONENT_MAX: f32 = 88.722_84;

/// The tokens seen, and what DRY makes of them. All memory is taken by [`Repetitions::new`].
#[derive(Debug, Clone)]
pub(super) struct Repetitions {
    /// The last tokens, oldest first; twice as many as are looked at have room, so that they move seldom.
    tokens: Vec<u32>,
    last_n: usize,
    multiplier: f32,
    base: f32,
    allowed: usize,
    /// Exponents beyond it would overflow.
    exponent_max: usize,
    /// Ascending: a token that begins a breaker, and those that must follow it.
    breakers: Vec<(u32, Vec<u32>)>,
    /// `lengths[k]`: how many of the last tokens also stand `k` places before the end.
    lengths: Vec<u32>,
    /// Tokens that would go on with a repetition, ascending, and its length.
    found: Vec<(u32, u32)>,
}

impl Repetitions {
    pub fn new(dry: &Dry) -> Self {
        let last_n = dry.last_n.min(PENALTY_LAST_N_MAX);
        let exponent = if dry.base > 1.000_001 { EXPONENT_MAX / dry.base.ln() } else { 0.0 };
        let split = |b: &Vec<u32>| b.split_first().map(|(head, tail)| (*head, tail.to_vec()));
        let mut breakers: Vec<_> = dry.breakers.iter().filter_map(split).collect();
        // Of one head the longest first: that one counts.
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

    /// Looks at the text as it stands; [`Repetitions::penalty`] and [`Repetitions::apply`] tell of what this found.
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
                // What came next then: `k` places before the end the last token stands.
                self.found.push((seen[seen.len() - k], length as u32));
            }
        }
        self.found.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
        self.found.dedup_by_key(|f| f.0);
    }

    /// What is subtracted from the logit of a token.
    pub fn penalty(&self, id: u32) -> f32 {
        match self.found.binary_search_by_key(&id, |f| f.0) {
            Ok(i) => self.price(self.found[i].1),
            Err(_) => 0.0,
        }
    }

    /// Subtracts it from `logits` `[vocab_rows]`.
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

/// Tokens behind the last breaker: no repetition is longer.
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

/// Fills `lengths[k]` with the length of the longest common suffix of `seen` and `seen` without its last `k` tokens: the Z
/// function of the reversed text (Gusfield, Algorithms on Strings, 1.3), in linear time.
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

/// All ways in which tokens of a vocabulary write `text`, or end with a beginning of it: the first token, and those that the
/// rest is made of. For [`Dry::breakers`], as llama.cpp makes them.
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
        // Ends of the word with which the text begins, the longest first.
        let cuts =
            text.char_indices().map(|(i, _)| i).skip(1).filter(|&i| word.ends_with(&text.as_bytes()[..i]));
        for cut in cuts {
            let rest = tokenizer.encode(&text[cut..], Special::Text).unwrap_or_default();
            // Some vocabularies write a space before a text's first word, but this is not its beginning.
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
    fn suffixes_that_stand_elsewhere() {
        // a b c c b c y a b c
        let seen = [1, 2, 3, 3, 2, 3, 9, 1, 2, 3];
        let mut lengths = Vec::new();
        suffixes(&seen, &mut lengths);
        assert_eq!(lengths, [0, 0, 0, 0, 2, 0, 1, 3, 0, 0]);
    }

    #[test]
    fn a_breaker_ends_what_may_repeat() {
        let one = |head, tail: &[u32]| (head, tail.to_vec());
        assert_eq!(unbroken(&[1, 2, 3, 4], &[]), 4);
        assert_eq!(unbroken(&[1, 2, 3, 4], &[one(2, &[])]), 2);
        assert_eq!(unbroken(&[1, 2, 3, 4], &[one(2, &[3]), one(2, &[])]), 1);
        assert_eq!(unbroken(&[1, 2, 3, 4], &[one(2, &[9])]), 4);
    }

    proptest! {
        #[test]
        fn linear_time_gives_what_plain_loops_give(seen in prop::collection::vec(0u32..4, 0..60)) {
            let mut lengths = Vec::new();
            suffixes(&seen, &mut lengths);
            for k in 1..seen.len() {
                let plain = (0..seen.len() - k).take_while(|i| seen[seen.len() - 1 - i] == seen[seen.len() - 1 - i - k]).count();
                prop_assert_eq!(lengths[k] as usize, plain);
            }
        }
    }
}
