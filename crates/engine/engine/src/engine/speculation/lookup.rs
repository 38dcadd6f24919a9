//! Guesses from the text (prompt lookup): the tokens that followed the latest earlier occurrence of the last tokens. Edited code, quoted
//! documents and lists repeat much of the text before them. A drafter of `speculation`, with a table of bounded size for each answer.

use super::controller::{Class, Controller};
use super::{Drafter, Guesses, Work};
use crate::Error;
use crate::vision::is_image;

/// Number of last tokens that must be equal.
pub const NGRAM: usize = 3;
/// Maximum number of tokens compared to find the length of the match.
const COMPARED_MAX: usize = 32;
/// Entries of a table, of 4 bytes each.
const ENTRIES_MIN: usize = 1 << 10;
const ENTRIES_MAX: usize = 1 << 16;

/// The latest position of each sequence of [`NGRAM`] tokens, by hash. On a collision the later one wins.
#[derive(Debug, Clone)]
pub struct Lookup {
    /// Position of the token after it, or 0 for none.
    table: Vec<u32>,
    /// Number of positions entered.
    entered: usize,
}

/// A match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Position of the token after it.
    pub at: usize,
    /// Number of equal tokens before it, as far as they were compared.
    pub len: usize,
}

fn hash(tokens: &[u32]) -> usize {
    let mixed = tokens.iter().fold(0u64, |h, t| (h ^ u64::from(*t)).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    (mixed >> 32) as usize
}

impl Lookup {
    /// For a text of up to `tokens` tokens.
    pub fn new(tokens: usize) -> Self {
        let entries = tokens.next_power_of_two().clamp(ENTRIES_MIN, ENTRIES_MAX);
        Self { table: vec![0; entries], entered: NGRAM }
    }

    /// Enters the new part of `tokens`, and searches for their last tokens.
    pub fn find(&mut self, tokens: &[u32]) -> Option<Found> {
        let mask = self.table.len() - 1;
        for next in self.entered..tokens.len() {
            self.table[hash(&tokens[next - NGRAM..next]) & mask] = next as u32;
        }
        self.entered = self.entered.max(tokens.len());
        let last = &tokens[tokens.len().checked_sub(NGRAM)?..];
        let at = self.table[hash(last) & mask] as usize;
        if at < NGRAM || tokens[at - NGRAM..at] != *last {
            return None;
        }
        let before = tokens[..at].iter().rev();
        let len = before.zip(tokens.iter().rev()).take(COMPARED_MAX).take_while(|(a, b)| a == b).count();
        Some(Found { at, len })
    }
}

impl Found {
    /// The `i`th token after the match: of `tokens`, or, past their end, of the guesses so far, as a repetition continues.
    pub fn token(&self, tokens: &[u32], guesses: &[u32], i: usize) -> Option<u32> {
        let at = self.at + i;
        tokens.get(at).or_else(|| guesses.get(at - tokens.len())).copied()
    }
}

/// The drafter.
pub(super) struct Repeated {
    /// Guesses only if that is as valuable as a model's drafts, which cost more.
    against_drafts: bool,
}

impl Repeated {
    pub fn any() -> Self {
        Self { against_drafts: false }
    }

    pub fn better_than_drafts() -> Self {
        Self { against_drafts: true }
    }
}

impl Drafter for Repeated {
    fn draft(&mut self, work: &mut Work<'_>, control: &mut Controller) -> Result<(), Error> {
        let others = work.others();
        for r in work.running.iter_mut().filter(|r| r.choice.guesses.is_open()) {
            let tokens = &r.choice.tokens;
            let guesses = &mut r.choice.guesses;
            let Some(lookup) = &mut guesses.lookup else { continue };
            let Some(found) = lookup.find(tokens) else { continue };
            for i in 0..guesses.most {
                let Some(id) = found.token(tokens, &guesses.ids, i).filter(|id| !is_image(*id)) else {
                    break;
                };
                // Each further guess has a longer match before it.
                guesses.push(id, Class::lookup(found.len + i));
            }
            let Guesses { history, classes, most, .. } = &*guesses;
            if self.against_drafts && !control.beats_drafts(history, others, classes, *most) {
                guesses.ids.clear();
                guesses.classes.clear();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_last_occurrence_is_found() {
        let mut lookup = Lookup::new(100);
        let text = [1, 2, 3, 4, 9, 2, 3, 4, 5, 7, 2, 3, 4];
        assert_eq!(lookup.find(&text[..4]), None);
        assert_eq!(lookup.find(&text), Some(Found { at: 8, len: 3 }));
        let found = lookup.find(&text).unwrap();
        assert_eq!(
            (0..3).map(|i| found.token(&text, &[], i)).collect::<Vec<_>>(),
            [Some(5), Some(7), Some(2)]
        );
        assert_eq!(lookup.find(&[1, 2]), None);
    }

    #[test]
    fn a_repetition_is_continued() {
        let text: Vec<u32> = [5, 6].repeat(10);
        let found = Lookup::new(10).find(&text).unwrap();
        let mut guesses = Vec::new();
        for i in 0..9 {
            guesses.push(found.token(&text, &guesses, i).unwrap());
        }
        assert_eq!(guesses, [5, 6, 5, 6, 5, 6, 5, 6, 5]);
    }

    proptest! {
        /// Incrementally or in one call, it finds what a search of the whole text finds, unless another sequence collided.
        #[test]
        fn matches_occur_in_the_text(text in prop::collection::vec(0u32..5, 0..400), step in 1usize..9) {
            let mut lookup = Lookup::new(400);
            let mut end = 0;
            while end < text.len() {
                end = (end + step).min(text.len());
                let tokens = &text[..end];
                let found = lookup.find(tokens);
                let last = &tokens[end.saturating_sub(NGRAM)..];
                let there = (NGRAM..end).rev().find(|&p| last.len() == NGRAM && tokens[p - NGRAM..p] == *last);
                if let Some(f) = found {
                    prop_assert_eq!(Some(f.at), there);
                    prop_assert!(f.len >= NGRAM && tokens[f.at - f.len..f.at] == tokens[end - f.len..]);
                }
            }
        }
    }
}
