//! Finds added tokens (control tokens, `<think>`, runs of spaces) in text before it is split into words.

use aho_corasick::{AhoCorasick, Anchored, Input, MatchKind};

use super::vocab::TokenKind;

/// The kinds of added tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// A control token: only from trusted text.
    Control,
    /// User-defined and written like a tag: only from trusted text.
    Markup,
    /// User-defined and written like text (a run of spaces, a word): from any text.
    Text,
}

/// An added token and its matching rules (Hugging Face's `AddedToken`).
#[derive(Debug, Clone)]
pub(super) struct Added {
    pub id: u32,
    pub text: String,
    /// The text to find, normalised if `normalized`.
    pub pattern: String,
    pub control: bool,
    /// Includes the white space before it.
    pub lstrip: bool,
    /// Includes the white space after it.
    pub rstrip: bool,
    /// Matches only as a whole word.
    pub single_word: bool,
    /// Matches in normalised text.
    pub normalized: bool,
}

impl Added {
    pub(super) fn plain(id: u32, text: &str, kind: TokenKind) -> Self {
        Self {
            id,
            text: text.into(),
            pattern: text.into(),
            control: kind != TokenKind::UserDefined,
            lstrip: false,
            rstrip: false,
            single_word: false,
            normalized: false,
        }
    }

    pub(super) fn class(&self) -> Class {
        if self.control {
            return Class::Control;
        }
        let tag =
            |open, close| self.text.len() > 2 && self.text.starts_with(open) && self.text.ends_with(close);
        if tag('<', '>') || tag('[', ']') { Class::Markup } else { Class::Text }
    }
}

/// An added token found in a text, at bytes `start..end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    pub start: usize,
    pub end: usize,
    pub id: u32,
}

/// A set of added tokens; among those at one position, the longest matches.
#[derive(Debug)]
pub(super) struct Finder {
    tokens: Vec<Added>,
    automaton: Option<AhoCorasick>,
}

impl Finder {
    pub(super) fn new(tokens: Vec<Added>) -> Result<Self, String> {
        let automaton = if tokens.is_empty() {
            None
        } else {
            let built = AhoCorasick::builder()
                .match_kind(MatchKind::LeftmostLongest)
                .build(tokens.iter().map(|t| t.pattern.as_bytes()))
                .map_err(|e| format!("the added tokens cannot be searched for: {e}"))?;
            Some(built)
        };
        Ok(Self { tokens, automaton })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    pub(super) fn tokens(&self) -> &[Added] {
        &self.tokens
    }

    /// All added tokens in `text`, left to right. None may span a range for which `barred(start, end)` holds.
    pub(super) fn find(&self, text: &str, barred: impl Fn(usize, usize) -> bool) -> Vec<Found> {
        let mut out = Vec::new();
        let Some(automaton) = &self.automaton else { return out };
        let (mut from, mut done) = (0, 0);
        while let Some(m) = automaton.find(Input::new(text).range(from..).anchored(Anchored::No)) {
            let (start, end) = (m.start(), m.end());
            if barred(start, end) {
                from = start + text[start..].chars().next().map_or(1, char::len_utf8);
                continue;
            }
            from = end;
            let t = &self.tokens[m.pattern().as_usize()];
            let touches_word =
                || text[..start].ends_with(is_word_char) || text[end..].starts_with(is_word_char);
            if t.single_word && touches_word() {
                continue;
            }
            let (mut a, mut b) = (start, end);
            if t.lstrip {
                a = text[..start].trim_end().len().max(done);
            }
            if t.rstrip {
                b = text.len() - text[end..].trim_start().len();
            }
            // A match may begin in white space that the previous one includes.
            if start < done {
                continue;
            }
            out.push(Found { start: a, end: b, id: t.id });
            done = b;
            from = from.max(b);
        }
        out
    }
}

fn is_word_char(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finder(specs: &[(&str, &str)]) -> Finder {
        let tokens = specs.iter().enumerate().map(|(i, (text, flags))| Added {
            lstrip: flags.contains('l'),
            rstrip: flags.contains('r'),
            single_word: flags.contains('w'),
            ..Added::plain(i as u32, text, TokenKind::Control)
        });
        Finder::new(tokens.collect()).unwrap()
    }

    fn ids(f: &Finder, text: &str) -> Vec<(usize, usize, u32)> {
        f.find(text, |_, _| false).iter().map(|m| (m.start, m.end, m.id)).collect()
    }

    #[test]
    fn the_longest_wins_and_flags_take_white_space() {
        let f = finder(&[("<a>", ""), ("<a>b", ""), ("<l>", "l"), ("<r>", "r"), ("<w>", "w")]);
        assert_eq!(ids(&f, "x<a>b<a>"), [(1, 5, 1), (5, 8, 0)]);
        assert_eq!(ids(&f, "x  <l> <r> \n<l>"), [(1, 6, 2), (7, 12, 3), (12, 15, 2)]);
        assert_eq!(ids(&f, "x<w> <w>_ <w>"), [(10, 13, 4)]);
        assert_eq!(ids(&f, ""), []);
    }

    #[test]
    fn a_rejected_match_hides_no_later_match() {
        let f = finder(&[("<<x", ""), ("<x", "")]);
        assert_eq!(ids(&f, "<<x"), [(0, 3, 0)]);
        let hits = f.find("<<x", |a, b| a < 1 && 1 < b);
        assert_eq!(hits, [Found { start: 1, end: 3, id: 1 }]);
    }

    #[test]
    fn classes() {
        let class = |t: &str| Added::plain(0, t, TokenKind::UserDefined).class();
        assert_eq!((class("<think>"), class("[TOOL]")), (Class::Markup, Class::Markup));
        assert_eq!((class("    "), class("\n\n"), class("<")), (Class::Text, Class::Text, Class::Text));
        assert_eq!(Added::plain(0, "  ", TokenKind::Control).class(), Class::Control);
    }
}
