//! Prevents text of messages from becoming control tokens.
//!
//! A chat template mixes its own text, whose `<|im_end|>` is a control token, with text of messages, whose `<|im_end|>` is text. After
//! rendering they cannot be told apart. So before rendering, a mark (a noncharacter that the input does not use) is inserted after the
//! first character of everything in a message that looks like such a token; after rendering the marks are removed, and their positions
//! are the prompt's barriers.

use aho_corasick::AhoCorasick;
use serde_json::{Map, Value};

use crate::tokenizer::{Prompt, Tokenizer};

/// Noncharacters, which Unicode reserves for a program's internal use.
const MARKS: std::ops::RangeInclusive<char> = '\u{fdd0}'..='\u{fdef}';

/// Whether a character may be a mark.
pub(super) fn is_mark(c: char) -> bool {
    MARKS.contains(&c)
}

/// The possible marks that occur in a text, as a bit set.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Used(u32);

impl Used {
    pub(super) fn text(&mut self, s: &str) {
        for c in s.chars().filter(|&c| is_mark(c)) {
            self.0 |= 1 << (u32::from(c) - u32::from(*MARKS.start()));
        }
    }

    pub(super) fn value(&mut self, v: &Value) {
        match v {
            Value::String(s) => self.text(s),
            Value::Array(a) => a.iter().for_each(|v| self.value(v)),
            Value::Object(o) => o.iter().for_each(|(k, v)| {
                self.text(k);
                self.value(v);
            }),
            _ => {}
        }
    }

    /// An unused mark.
    pub(super) fn free(self) -> Option<char> {
        MARKS.enumerate().find(|(i, _)| self.0 & (1 << i) == 0).map(|(_, c)| c)
    }
}

/// Tokens of one trust level to find in messages.
#[derive(Debug)]
struct Tokens {
    automaton: Option<AhoCorasick>,
    /// The tokens sorted, for texts that end with a prefix of one.
    sorted: Vec<String>,
    longest: usize,
}

impl Tokens {
    fn new<'a>(texts: impl Iterator<Item = &'a str> + Clone) -> Result<Self, String> {
        let none = texts.clone().next().is_none();
        let automaton = if none {
            None
        } else {
            // The standard match kind: only it reports overlapping matches.
            Some(
                AhoCorasick::new(texts.clone())
                    .map_err(|e| format!("the added tokens cannot be searched for: {e}"))?,
            )
        };
        let mut sorted: Vec<String> = texts.clone().map(String::from).collect();
        sorted.sort_unstable();
        Ok(Self { automaton, sorted, longest: texts.map(str::len).max().unwrap_or(0) })
    }

    /// Whether `s` is a proper prefix of a token.
    fn has_longer_text(&self, s: &str) -> bool {
        let after = self.sorted.partition_point(|t| t.as_str() <= s);
        self.sorted.get(after).is_some_and(|t| t.starts_with(s))
    }

    /// Byte offsets in `s` that need a mark, unordered.
    fn places(&self, s: &str, out: &mut Vec<usize>) {
        let behind_first = |start: usize| start + s[start..].chars().next().map_or(0, char::len_utf8);
        if let Some(a) = &self.automaton {
            out.extend(a.find_overlapping_iter(s).map(|m| behind_first(m.start())));
        }
        // The end of this text and the beginning of the next might form a token.
        let end = s.trim_end();
        let tail = end.len().saturating_sub(self.longest);
        for (i, _) in end.char_indices().rev().take_while(|(i, _)| *i >= tail) {
            if self.has_longer_text(&end[i..]) {
                out.push(behind_first(i));
            }
        }
    }
}

/// Finds what must stay text; built once per tokenizer.
#[derive(Debug)]
pub(super) struct Guard {
    control: Tokens,
    tags: Tokens,
}

impl Guard {
    pub(super) fn new(tokenizer: &Tokenizer) -> Result<Self, String> {
        let of =
            |control: bool| tokenizer.guarded().iter().filter(move |t| t.1 == control).map(|t| t.0.as_str());
        Ok(Self { control: Tokens::new(of(true))?, tags: Tokens::new(of(false))? })
    }

    /// Marks control tokens, and `tags` too if set, in all strings of `v`; true if a tag was marked.
    pub(super) fn mark(&self, v: &mut Value, mark: char, tags: bool) -> bool {
        match v {
            Value::String(s) => self.mark_text(s, mark, tags),
            Value::Array(a) => a.iter_mut().fold(false, |any, v| self.mark(v, mark, tags) | any),
            Value::Object(o) => {
                let mut any = false;
                let marked: Map<String, Value> = std::mem::take(o)
                    .into_iter()
                    .map(|(mut k, mut v)| {
                        any |= self.mark_text(&mut k, mark, tags);
                        any |= self.mark(&mut v, mark, tags);
                        (k, v)
                    })
                    .collect();
                *o = marked;
                any
            }
            _ => false,
        }
    }

    fn mark_text(&self, s: &mut String, mark: char, tags: bool) -> bool {
        let mut places = Vec::new();
        self.control.places(s, &mut places);
        let controls = places.len();
        if tags {
            self.tags.places(s, &mut places);
        }
        let any_tag = places.len() > controls;
        places.sort_unstable();
        places.dedup();
        if places.is_empty() {
            return false;
        }
        // Builds a new text: inserting into the old one would move its tail each time.
        let mut marked = String::with_capacity(s.len() + places.len() * mark.len_utf8());
        let mut done = 0;
        for at in places {
            marked.push_str(&s[done..at]);
            marked.push(mark);
            done = at;
        }
        marked.push_str(&s[done..]);
        *s = marked;
        any_tag
    }
}

/// Removes the marks from rendered text.
pub(super) fn unmark(marked: &str, mark: char) -> Prompt {
    let mut text = String::with_capacity(marked.len());
    let mut barriers = Vec::new();
    for piece in marked.split_inclusive(mark) {
        match piece.strip_suffix(mark) {
            Some(p) => {
                text.push_str(p);
                barriers.push(text.len());
            }
            None => text.push_str(piece),
        }
    }
    Prompt { text, barriers }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marked(controls: &[&str], tags: &[&str], text: &str) -> String {
        let guard = Guard {
            control: Tokens::new(controls.iter().copied()).unwrap(),
            tags: Tokens::new(tags.iter().copied()).unwrap(),
        };
        let mut v = Value::String(text.into());
        guard.mark(&mut v, '^', true);
        v.as_str().unwrap().to_string()
    }

    #[test]
    fn marks_follow_the_first_character() {
        assert_eq!(marked(&["<e>"], &["<t>"], "a<e><t>b"), "a<^e><^t>b");
        assert_eq!(marked(&["<e>", "e>x"], &[], "<e>x"), "<^e^>x", "overlapping tokens are marked both");
        assert_eq!(marked(&["<|im|>"], &[], "x <|im \n"), "x <^|im \n", "the beginning of one");
        assert_eq!(marked(&["<<a"], &[], "<<"), "<^<^", "every beginning");
        assert_eq!(marked(&["<a", "<ab", "<b"], &[], "<a <"), "<^a <^", "one of several");
        assert_eq!(marked(&["ß>"], &[], "aß>ß"), "aß^>ß^");
        assert_eq!(marked(&[], &[], "<e>"), "<e>");
    }

    #[test]
    fn unmarking_gives_offsets() {
        let p = unmark("a<^e><^t>b^", '^');
        assert_eq!((p.text.as_str(), p.barriers), ("a<e><t>b", vec![2, 5, 8]));
    }

    #[test]
    fn an_unused_mark_is_found_or_not() {
        let mut used = Used::default();
        used.value(&serde_json::json!({"\u{fdd0}": ["\u{fdd1}"]}));
        assert_eq!(used.free(), Some('\u{fdd2}'));
        used.text(&MARKS.collect::<String>());
        assert_eq!(used.free(), None);
    }
}
