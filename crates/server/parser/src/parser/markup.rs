//! Tags out of place next to calls: repeated or left over ones of the syntax, and wrappers that models make up. They are not text.
//!
//! Between a call and the next text, every closing tag of the syntax is markup. Other tags, and wrappers (`<function_calls>`), are held
//! with the white space after them: they are markup if a call follows, and text otherwise.

use super::{Call, Parser, Zone};
use crate::changes::Change;
use crate::format::{Format, ToolSyntax};
use crate::syntax::{Arguments, CallSyntax, Piece, tags};
use crate::tags::{Tag, Token};

/// With these words the names of wrappers begin.
const WORDS: [&str; 5] = ["function", "tool", "invoke", "invocation", "call"];
/// Maximum length of a wrapper's name.
const NAME_BYTES_MAX: usize = 32;

/// The tags of an answer's syntax that can be out of place.
#[derive(Debug, Default)]
pub struct Marks {
    /// Those that end a call or a part of it.
    closing: Vec<String>,
    /// Those of reasoning, and within calls.
    others: Vec<String>,
    /// What is before a key in the tag that opens an argument, and what may be behind it.
    keyed: Option<(String, Vec<String>)>,
}

/// Maximum length of a tag with a key.
const KEYED_BYTES_MAX: usize = 128;

/// Whether a text is such a tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    None,
    Part,
    Whole,
}

impl Mark {
    fn of(text: &str, tag: &str) -> Self {
        match tag.strip_prefix(text) {
            Some("") => Self::Whole,
            Some(_) => Self::Part,
            None => Self::None,
        }
    }

    fn or(self, other: impl FnOnce() -> Self) -> Self {
        if self == Self::None { other() } else { self }
    }
}

impl Marks {
    pub fn of(format: &Format) -> Self {
        let closing = match &format.tools {
            ToolSyntax::None | ToolSyntax::Harmony => Vec::new(),
            ToolSyntax::Qwen3Coder => {
                [Tag::CallClose, Tag::FunctionClose, Tag::ParameterClose].map(|t| t.text().to_string()).into()
            }
            ToolSyntax::Hermes => vec![Tag::CallClose.text().into()],
            ToolSyntax::Native(syntax) => closing(syntax),
        };
        let mut others: Vec<String> =
            format.reasoning.iter().flat_map(|r| [r.open.clone(), r.close.clone()]).collect();
        if let ToolSyntax::Native(syntax) = &format.tools {
            others.extend(syntax.tags().into_iter().filter(|t| *t != syntax.trigger()).map(str::to_string));
        }
        others.retain(|tag| !closing.contains(tag));
        Self { closing, others, keyed: keyed(&format.tools) }
    }

    /// Whether a text is the tag that opens an argument.
    fn keyed(&self, text: &str) -> Mark {
        let Some((open, closes)) = self.keyed.as_ref().filter(|_| text.len() < KEYED_BYTES_MAX) else {
            return Mark::None;
        };
        let Some(key) = text.strip_prefix(open.as_str()) else {
            return if open.starts_with(text) { Mark::Part } else { Mark::None };
        };
        let end = key.find(|c: char| !(c.is_alphanumeric() || "_-.".contains(c))).unwrap_or(key.len());
        closes.iter().fold(Mark::None, |mark, close| {
            mark.or(|| match close.strip_prefix(&key[end..]) {
                Some("") if end > 0 => Mark::Whole,
                Some(_) => Mark::Part,
                None => Mark::None,
            })
        })
    }
}

/// What is before a key in the tag that opens an argument, and what may be behind it, if that is one tag.
fn keyed(tools: &ToolSyntax) -> Option<(String, Vec<String>)> {
    match tools {
        ToolSyntax::Qwen3Coder => Some((Tag::ParameterOpen.text().into(), vec![">".into()])),
        ToolSyntax::Native(syntax) => syntax.call.iter().find_map(|piece| match piece {
            Piece::Arguments(Arguments::Tagged(t)) => {
                let open = t.open.trim();
                let mut closes: Vec<String> =
                    t.others.iter().map(|(_, text)| text).chain([&t.text]).map(|t| t.trim().into()).collect();
                closes.dedup();
                let is_one = |close: &String| close.ends_with('>') && close.matches('>').count() == 1;
                let are_tags = open.starts_with('<') && !open.contains('>') && closes.iter().all(is_one);
                are_tags.then(|| (open.into(), closes))
            }
            _ => None,
        }),
        ToolSyntax::None | ToolSyntax::Hermes | ToolSyntax::Harmony => None,
    }
}

/// The tags behind the arguments of a call, in them, and at the end of a section.
fn closing(syntax: &CallSyntax) -> Vec<String> {
    let behind = syntax.call.iter().rev().take_while(|p| !matches!(p, Piece::Arguments(_)));
    let texts = behind.chain(&syntax.close).filter_map(|p| match p {
        Piece::Text(text) => Some(text.as_str()),
        Piece::Name | Piece::Id | Piece::Number(_) | Piece::Arguments(_) => None,
    });
    let mut out: Vec<String> = texts.flat_map(tags).map(str::to_string).collect();
    for piece in &syntax.call {
        if let Piece::Arguments(Arguments::Tagged(tagged)) = piece {
            out.extend(tags(&tagged.close).map(str::to_string));
        }
    }
    let opening = syntax.open.iter().chain(syntax.separator.iter().flatten());
    let opening: Vec<&Piece> = opening.collect();
    let opens = |tag: &String| opening.iter().any(|p| matches!(p, Piece::Text(text) if text.contains(tag)));
    out.retain(|tag| tag != syntax.trigger() && !opens(tag));
    out.sort_unstable();
    out.dedup();
    out
}

/// Whether a text is the tag of a wrapper, and whether it is a closing one.
fn wrapper(text: &str) -> (Mark, bool) {
    let Some(rest) = text.strip_prefix('<') else { return (Mark::None, false) };
    let is_closing = rest.starts_with('/');
    let name = rest.trim_start_matches('/');
    let (name, is_whole) = name.strip_suffix('>').map_or((name, false), |name| (name, true));
    let is_name = name.len() <= NAME_BYTES_MAX && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
    let begins = |word: &&str| name.starts_with(*word) || !is_whole && word.starts_with(name);
    let mark = match is_name && WORDS.iter().any(begins) && text.matches('/').count() < 2 {
        true if is_whole => Mark::Whole,
        true => Mark::Part,
        false => Mark::None,
    };
    (mark, is_closing)
}

impl Parser {
    /// Whether only white space has come since the last call.
    fn is_behind_call(&self) -> bool {
        self.calls > 0 && !self.started && self.call.is_none() && self.mark.is_empty()
    }

    /// Whether a wrapper may begin here: at the beginning of a line.
    fn may_wrap(&self) -> bool {
        let at_line = !self.started || self.gap.ends_with('\n');
        self.takes_calls()
            && self.zone == Zone::Content
            && self.call.is_none()
            && self.format.text.is_none()
            && at_line
    }

    /// Whether a mark begins with this character. (Every wrapper begins with `<`.)
    pub(super) fn begins_mark(&self, c: char) -> bool {
        let closing = self.is_behind_call() || self.may_wrap();
        closing && self.marks.closing.iter().any(|m| m.starts_with(c))
    }

    /// Whether the held part of a tag is a mark.
    pub(super) fn find_mark(&self) -> Mark {
        self.mark_of(&self.part)
    }

    fn mark_of(&self, part: &str) -> Mark {
        let (behind, may_wrap) = (self.is_behind_call(), self.may_wrap());
        let one_of =
            |tags: &[String]| tags.iter().fold(Mark::None, |mark, tag| mark.or(|| Mark::of(part, tag)));
        let may_close = (behind || may_wrap) && !self.is_unread;
        let closing = if may_close { one_of(&self.marks.closing) } else { Mark::None };
        let mark = closing.or(|| if may_wrap { one_of(&self.marks.others) } else { Mark::None });
        let mark = mark.or(|| if may_wrap { self.marks.keyed(part) } else { Mark::None });
        mark.or(|| match wrapper(part) {
            (mark, false) if may_wrap => mark,
            (mark, true) if behind && !self.is_unread => mark,
            _ => Mark::None,
        })
    }

    /// Length of the mark with which the held part of a tag begins, if another tag's beginning is its own.
    pub(super) fn mark_before(&self) -> Option<usize> {
        let all = self.marks.closing.iter().chain(&self.marks.others);
        let longest = all.filter(|m| self.part.starts_with(m.as_str())).max_by_key(|m| m.len())?;
        (self.mark_of(longest) == Mark::Whole).then_some(longest.len())
    }

    /// Whether a text of at least a word is the beginning of a mark.
    pub(super) fn is_mark_part(&self, part: &str) -> bool {
        part.len() > 1 && self.mark_of(part) != Mark::None
    }

    /// A mark is complete.
    pub(super) fn found_mark(&mut self, text: String) {
        let is_end = self.marks.closing.contains(&text) || wrapper(&text).1;
        if self.is_behind_call() && is_end {
            self.changes.add(Change::TagBesideCall);
        } else {
            self.mark.push_str(&text);
        }
    }

    /// No call follows the mark.
    pub(super) fn mark_is_text(&mut self) {
        let mark = std::mem::take(&mut self.mark);
        self.is_unread |= std::mem::take(&mut self.mark_began_call);
        mark.chars().for_each(|c| self.text(c));
    }

    /// The answer ends behind the mark: behind a call it is none of its text.
    pub(super) fn end_mark(&mut self) {
        if self.calls > 0 && !self.started && !self.mark.is_empty() {
            self.mark.clear();
            self.changes.add(Change::TagBesideCall);
        }
        self.mark_is_text();
    }

    /// The beginning of a call that comes twice, or is left over behind a call: it is held as a mark. False if it is text.
    pub(super) fn is_left_over(&mut self, last: Token) -> bool {
        let (Some(Call::Native(scan)), Token::Char(c)) = (&self.call, last) else { return false };
        let Some(trigger) = scan.unused_trigger().filter(|_| self.made_up == 0) else { return false };
        let length = match trigger.starts_with(c) {
            true => self.held.len() - c.len_utf8(),
            false if self.calls > 0 && !self.started && scan.has_trigger_alone() => trigger.len(),
            false => return false,
        };
        self.call = None;
        self.again.push((self.held.split_off(length), 0));
        self.mark.push_str(&std::mem::take(&mut self.held));
        true
    }

    /// Holds the tags with which a call began as marks, if another tag follows that does not fit: a call may follow them. False if more than
    /// tags have come.
    pub(super) fn holds_tags(&mut self, last: Token) -> bool {
        let whole = match last {
            Token::Tag(tag) => self.held.len() - super::tag_text(&self.format, tag).len(),
            Token::Char(_) => self.held.rfind(['<', '[', ']']).unwrap_or(0),
        };
        let begun = &self.held[..whole];
        // Not those with a name: such a call is text.
        let trigger = self.plan.as_ref().map_or(Tag::CallOpen.text(), |plan| plan.trigger());
        let known = |tag: &&str| {
            let mut all = self.marks.closing.iter().chain(&self.marks.others);
            *tag == trigger || all.any(|mark| mark == tag)
        };
        let length: usize = tags(begun).filter(known).map(str::len).sum();
        let bare: usize = begun.chars().filter(|c| !c.is_whitespace()).map(char::len_utf8).sum();
        let may_wrap = self.zone == Zone::Content
            && self.format.text.is_none()
            && self.takes_calls()
            && (!self.started || self.gap.ends_with('\n'));
        if !may_wrap || length == 0 || length != bare || self.made_up > 0 || self.quoted {
            return false;
        }
        self.call = None;
        self.mark_began_call = true;
        self.again.push((self.held.split_off(whole), 0));
        self.mark.push_str(&std::mem::take(&mut self.held));
        true
    }

    /// Drops what was held for a call, if it is tags alone behind a call; false if it is not.
    pub(super) fn drop_tags(&mut self) -> bool {
        let held = self.held.trim();
        let length: usize = tags(held).map(str::len).sum();
        let bare = held.chars().filter(|c| !c.is_whitespace());
        let is_alone = length > 0 && length == bare.map(char::len_utf8).sum::<usize>();
        if self.calls == 0 || self.started || !is_alone || self.made_up > 0 {
            return false;
        }
        self.changes.add(Change::TagBesideCall);
        self.call = None;
        self.held.clear();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrappers_are_named_after_calls() {
        for (text, want) in [
            ("<", Mark::Part),
            ("<func", Mark::Part),
            ("</tool_us", Mark::Part),
            ("<function_invocation>", Mark::Whole),
            ("</tool_calls>", Mark::Whole),
            ("<tools>", Mark::Whole),
            ("<invoke name", Mark::None),
            ("<b>", Mark::None),
            ("<to>", Mark::None),
            ("</>", Mark::None),
            ("<//tool>", Mark::None),
            ("<function=", Mark::None),
        ] {
            assert_eq!(wrapper(text).0, want, "{text}");
        }
    }
}
