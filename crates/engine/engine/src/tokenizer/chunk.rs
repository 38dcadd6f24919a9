//! Splits a long text, so that it is tokenized in pieces: memory stays small, and the work can end early.
//!
//! A split must not change any token. Words usually end between a letter or digit and something else, or before a space; the tokenizer
//! itself confirms each position, given the text around it.

use std::ops::Range;

use super::added::Found;

/// Approximate size of a piece: [`super::Bounds`] is checked after each.
pub const CHUNK_BYTES: usize = 64 << 10;
/// Longest text without a possible split. (A word needs a hundred times its size, and cannot be interrupted.)
pub const WORD_BYTES_MAX: usize = 1 << 20;
/// Number of bytes on each side of a split that are checked.
const AROUND: usize = 128;
/// Maximum number of positions tried for one split: some tokenizers have no words.
const TRIES_MAX: usize = 64;

/// A text that cannot be split after byte `from`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NoCutPoint {
    pub from: usize,
}

#[derive(PartialEq)]
enum Class {
    Letter,
    Number,
    Space,
    Other,
}

fn class(c: char) -> Class {
    if c.is_alphabetic() {
        Class::Letter
    } else if c.is_numeric() {
        Class::Number
    } else if c.is_whitespace() {
        Class::Space
    } else {
        Class::Other
    }
}

/// Whether a word may end between these characters.
fn may_end(left: char, right: char) -> bool {
    match class(left) {
        Class::Letter | Class::Number => class(left) != class(right),
        Class::Other => right == ' ',
        Class::Space => false,
    }
}

/// The end of the piece that begins at `from`, with about `bytes` bytes. `found` are added tokens, which are not split; `ends` tells
/// whether a word ends between two texts, of which the first begins at the given byte.
pub(super) fn end(
    text: &str,
    from: usize,
    bytes: usize,
    word_max: usize,
    found: &[Found],
    ends: impl Fn(usize, &str, &str) -> bool,
) -> Result<usize, NoCutPoint> {
    let left = text.len() - from;
    let start = text.ceil_char_boundary(from + bytes.max(1).min(left));
    let mut before = text[..start].chars().next_back();
    let mut tries = 0;
    for (i, c) in text[start..].char_indices() {
        let at = start + i;
        if at - from > word_max || tries == TRIES_MAX {
            break;
        }
        if before.is_some_and(|b| may_end(b, c)) && !within(found, at) {
            tries += 1;
            let around = around(text, from, at, found);
            if ends(around.start, &text[around.start..at], &text[at..around.end]) {
                return Ok(at);
            }
        }
        before = Some(c);
    }
    if left <= word_max { Ok(text.len()) } else { Err(NoCutPoint { from }) }
}

/// The text around `at` that is tokenized together with it: without the pieces before (a word that is apart from its left neighbour
/// already may become another one without its right neighbour too), and between two added tokens.
fn around(text: &str, from: usize, at: usize, found: &[Found]) -> Range<usize> {
    let next = found.partition_point(|f| f.end <= at);
    let after = found[..next].last().map_or(0, |f| f.end);
    let before = found.get(next).map_or(text.len(), |f| f.start);
    let start = text.floor_char_boundary(at.saturating_sub(AROUND));
    let end = text.ceil_char_boundary(at + AROUND);
    start.max(from).max(after)..end.min(before)
}

/// Whether an added token spans `at`, or ends there.
fn within(found: &[Found], at: usize) -> bool {
    let next = found.partition_point(|f| f.end < at);
    found.get(next).is_some_and(|f| f.start < at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_are_at_the_ends_of_words() {
        let cut = |text: &str, bytes| end(text, 0, bytes, usize::MAX, &[], |_, _, _| true).unwrap();
        assert_eq!(cut("some words", 2), 4);
        assert_eq!(cut("some words", 4), 4);
        assert_eq!(cut("some words", 5), 10);
        assert_eq!(cut("中文，中文", 1), 6);
        assert_eq!(cut("...  ... x", 1), 3);
        assert_eq!(cut("12 ab34cd", 3), 5);
        assert_eq!(cut("", 3), 0);
    }

    #[test]
    fn indivisible_text_is_not_cut() {
        let text = "aaaa bbbb cccc";
        let cut = |word_max, found: &[Found], ends: bool| end(text, 0, 2, word_max, found, |_, _, _| ends);
        assert_eq!(cut(14, &[], false), Ok(14));
        assert_eq!(cut(13, &[], false), Err(NoCutPoint { from: 0 }));
        assert_eq!(cut(13, &[Found { start: 2, end: 6, id: 0 }], true), Ok(9));
        // not behind an added token, but before one
        assert_eq!(cut(13, &[Found { start: 2, end: 4, id: 0 }], true), Ok(9));
        assert_eq!(cut(13, &[Found { start: 4, end: 6, id: 0 }], true), Ok(4));
    }

    #[test]
    fn the_context_ends_at_the_piece_and_at_added_tokens() {
        let text = "a".repeat(1000);
        let found = [Found { start: 100, end: 110, id: 0 }, Found { start: 150, end: 160, id: 0 }];
        assert_eq!(around(&text, 0, 90, &found), 0..100);
        assert_eq!(around(&text, 0, 100, &found), 0..100);
        assert_eq!(around(&text, 0, 120, &found), 110..150);
        assert_eq!(around(&text, 115, 120, &found), 115..150);
        assert_eq!(around(&text, 0, 500, &found), 500 - AROUND..500 + AROUND);
        assert_eq!(around(&text, 0, 950, &[]), 950 - AROUND..1000);
    }
}
