//! Scans arguments in nested tags that are named after their keys.
//!
//! Each tag follows a mark, which is a token in most models, so text without it is never a tag. A closing tag ends the innermost open one
//! of its name; what was opened in between is text. Whether a value is text, a list or an object is decided by the tool's schema.
//!
//! Marks and tags may be forgotten or repeated. Between arguments, where no text is, a tag needs no mark. A call that ends within a value
//! has ended if the next one, or the end of the section, follows: then [`tree`] looks for the end of that value.

mod tree;

use std::collections::HashMap;
use std::ops::Range;

use serde_json::Value;

use crate::json::Progress;
use crate::syntax::Nested;
use tree::{Element, Tree};

/// Maximum length of a tag's name in bytes.
const KEY_BYTES_MAX: usize = 4096;
/// Maximum nesting; deeper tags are text.
const DEPTH_MAX: usize = 64;

#[derive(Debug)]
enum At {
    /// Before an argument, or the end: the text so far, without white space, and where a key in it begins.
    Open { came: String, key: usize },
    /// In a value.
    Text,
    /// After a mark in a value.
    Mark,
    /// After a mark and `<` in a value.
    Angle,
    /// In the name of an opening tag.
    Key { from: usize },
    /// In the name of a closing tag.
    Close { from: usize },
}

impl At {
    fn open() -> Self {
        Self::Open { came: String::new(), key: 0 }
    }
}

/// The texts around a call, without white space.
#[derive(Debug, Default)]
pub struct Around {
    /// Behind the arguments.
    pub behind: String,
    /// Before the next call.
    pub again: String,
    /// The end of the section.
    pub close: String,
}

/// The end of a call within a value: what is behind the arguments, and the text since then, without white space.
#[derive(Debug)]
struct Ended {
    behind: Range<usize>,
    came: String,
}

/// The scanner.
#[derive(Debug)]
pub struct NestedScan {
    tags: Nested,
    /// The mark and `<`.
    open: String,
    ends: Around,
    at: At,
    /// In the order of their opening tags.
    elements: Vec<Element>,
    /// The elements around this place, the innermost last.
    around: Vec<usize>,
    /// Opening tags that are text because of their depth, by name: as many closing tags are text, too.
    too_deep: HashMap<String, usize>,
    /// Up to here no opening tag without its mark is looked for.
    searched: usize,
    ended: Option<Ended>,
    /// What is behind the arguments, if the call ended within a value or without its own end.
    cut_at: Option<Range<usize>>,
    is_mended: bool,
}

impl NestedScan {
    pub fn new(tags: &Nested, ends: Around) -> Self {
        let open = format!("{}<", tags.mark);
        Self {
            tags: tags.clone(),
            open,
            ends,
            at: At::open(),
            elements: Vec::new(),
            around: Vec::new(),
            too_deep: HashMap::new(),
            searched: 0,
            ended: None,
            cut_at: None,
            is_mended: false,
        }
    }

    /// The text of a tag that is not an argument's, without white space.
    pub fn came(&self) -> &str {
        if let At::Open { came, .. } = &self.at { came } else { "" }
    }

    /// Whether an argument is complete and nothing else has begun.
    pub fn may_end(&self) -> bool {
        matches!(self.at, At::Open { .. }) && !self.elements.is_empty()
    }

    /// Whether a tag or a mark was missing or repeated.
    pub fn is_mended(&self) -> bool {
        self.is_mended
    }

    /// The range of the text behind the arguments, if they had no regular end.
    pub fn cut_at(&self) -> Option<Range<usize>> {
        self.cut_at.clone()
    }

    /// At the end of the answer in a value: where the arguments end, if what is behind them has come.
    pub fn finish(&mut self) -> Option<usize> {
        let ended = self.ended.take()?;
        (self.is_mended, self.cut_at) = (true, Some(ended.behind.clone()));
        Some(ended.behind.start)
    }

    /// Processes the character at the end of the held text.
    pub fn step(&mut self, c: char, held: &str) -> Progress {
        let (begun, end) = (held.len() - c.len_utf8(), held.len());
        if !c.is_whitespace() && self.is_over(c) {
            return Progress::Done;
        }
        self.at = match &mut self.at {
            At::Open { .. } if c.is_whitespace() => return Progress::More,
            At::Open { .. } => match self.before_argument(c, held) {
                Some(progress) => return progress,
                None => return self.step(c, held),
            },
            At::Text if held.ends_with(&self.tags.mark) => At::Mark,
            At::Mark if c == '<' => At::Angle,
            At::Angle if c == '/' => At::Close { from: end },
            At::Angle if !matches!(c, '<' | '>') => At::Key { from: begun },
            &mut At::Key { from } if c == '>' => self.opened(from..begun, end, held),
            &mut At::Close { from } if c == '>' => self.closed(from..begun, held),
            At::Key { from } | At::Close { from }
                if c != '<' && c != '\n' && end - *from <= KEY_BYTES_MAX =>
            {
                return Progress::More;
            }
            At::Key { .. } if self.around.is_empty() => return Progress::Bad,
            At::Text | At::Mark | At::Angle | At::Key { .. } | At::Close { .. } => At::Text,
        };
        Progress::More
    }

    /// A character before an argument, or the end; `None` if it is of a key.
    fn before_argument(&mut self, c: char, held: &str) -> Option<Progress> {
        let At::Open { came, key } = &mut self.at else { return None };
        let (mut came, mut key) = (std::mem::take(came), *key);
        came.push(c);
        let progress = self.before_tag(c, held, &mut came, &mut key);
        self.at = match progress {
            Some(_) => At::Open { came, key },
            None if self.around.is_empty() => At::Key { from: key },
            None => At::Text,
        };
        progress
    }

    /// The same, with the character at the end of what `came`.
    fn before_tag(&mut self, c: char, held: &str, came: &mut String, key: &mut usize) -> Option<Progress> {
        let mark = self.tags.mark.as_str();
        if let Some(rest) = came.strip_prefix(mark).filter(|rest| !rest.is_empty() && mark.starts_with(rest))
        {
            (*came, self.is_mended) = (rest.to_string(), true); // twice
            return Some(Progress::More);
        }
        let tag = came.strip_prefix(mark).unwrap_or(came);
        if mark.starts_with(came.as_str()) || tag == "<" {
            return Some(Progress::More);
        }
        if tag.starts_with("</") {
            let close = self.last_close(held).unwrap_or_default();
            if tag == close {
                came.clear(); // twice
                self.is_mended = true;
            } else if !close.starts_with(tag) {
                return Some(Progress::Before);
            }
            return Some(Progress::More);
        }
        let again = self.ends.again.strip_prefix(mark).unwrap_or(&self.ends.again);
        if tag == again && !self.elements.is_empty() {
            let start = start_of(held, came);
            (self.is_mended, self.cut_at) = (true, Some(start..start));
            return Some(Progress::Done);
        }
        let begun = held.len() - c.len_utf8();
        if came.len() == mark.len() + c.len_utf8() && came.starts_with(mark) && c != '<' {
            // White space may lie within the mark: the value begins behind its last character.
            let last = mark.chars().next_back().map_or(0, char::len_utf8);
            let value = start_of(held, &came[mark.len() - last..]) + last;
            return self.value_without_tag(start_of(held, came)..value, held);
        }
        let is_first = tag.len() == "<".len() + c.len_utf8();
        if tag == again || !tag.starts_with('<') || is_first && matches!(c, '<' | '>') {
            return Some(Progress::Before);
        }
        if is_first {
            *key = begun;
        }
        if again.starts_with(tag) {
            return Some(Progress::More);
        }
        if held[*key..begun].contains(['<', '>', '\n']) {
            return Some(Progress::Bad);
        }
        self.is_mended |= !came.starts_with(mark);
        None
    }

    /// A value begins behind a mark, without its opening tag: its closing tag names it.
    fn value_without_tag(
        &mut self,
        Range { start, end: value }: Range<usize>,
        held: &str,
    ) -> Option<Progress> {
        let element =
            Element { start, key: start..start, value: value..value, after: value, is_closed: false };
        self.around.push(self.elements.len());
        self.elements.push(element);
        (self.is_mended, self.searched) = (true, held.len());
        None
    }

    /// The closing tag of the last argument, without its mark.
    fn last_close(&self, held: &str) -> Option<String> {
        let last = self.elements.iter().filter(|e| e.is_closed).max_by_key(|e| e.after)?;
        let key = held[last.key.clone()].split_whitespace();
        Some(format!("</{}>", key.collect::<String>()))
    }

    /// Whether the call has ended within a value, and the next one or the section's end has come with the character `c`.
    fn is_over(&mut self, c: char) -> bool {
        let Some(ended) = &mut self.ended else { return false };
        ended.came.push(c);
        let mut begins = false;
        for text in [&self.ends.again, &self.ends.close] {
            let bare = text.strip_prefix(self.tags.mark.as_str()).unwrap_or(text);
            if [text.as_str(), bare].contains(&ended.came.as_str()) {
                (self.cut_at, self.is_mended) = (Some(ended.behind.clone()), true);
                return true;
            }
            begins |= text.starts_with(&ended.came) || bare.starts_with(&ended.came);
        }
        if !begins {
            self.ended = None;
        }
        false
    }

    fn opened(&mut self, key: Range<usize>, end: usize, held: &str) -> At {
        if self.around.len() < DEPTH_MAX {
            self.around.push(self.elements.len());
            let tag = "<".len();
            let start = match held[..key.start].ends_with(&self.open) {
                true => key.start - self.open.len(),
                false => key.start - tag,
            };
            self.elements.push(Element { start, key, value: end..end, after: end, is_closed: false });
        } else {
            *self.too_deep.entry(held[key].to_string()).or_default() += 1;
        }
        self.searched = end;
        At::Text
    }

    fn closed(&mut self, name: Range<usize>, held: &str) -> At {
        if let Some(opened) = self.too_deep.get_mut(&held[name.clone()]).filter(|n| **n > 0) {
            *opened -= 1;
            return At::Text;
        }
        let end = name.start - "/".len() - self.open.len();
        let is_of = |i: &usize| held[self.elements[*i].key.clone()] == held[name.clone()];
        if let Some(depth) = self.around.iter().rposition(is_of) {
            let element = &mut self.elements[self.around[depth]];
            element.close(held, &self.tags.mark, end, held.len());
            self.around.truncate(depth);
            self.too_deep.clear();
            self.ended = None;
        } else if format!("{}/{}>", self.open, &held[name.clone()]) == self.ends.behind {
            self.ended = Some(Ended { behind: end..held.len(), came: String::new() });
        } else if let Some(i) = self.around.last().copied().filter(|i| self.elements[*i].key.is_empty()) {
            let element = &mut self.elements[i];
            element.key = name;
            element.close(held, &self.tags.mark, end, held.len());
            self.around.pop();
        } else {
            self.open_without_mark(&held[name], end, held);
        }
        self.searched = held.len();
        if self.around.is_empty() { At::open() } else { At::Text }
    }

    /// A closing tag at byte `end` closes one whose mark was forgotten, if no tag is between them.
    fn open_without_mark(&mut self, name: &str, end: usize, held: &str) {
        let Some(text) = held.get(self.searched..end) else { return };
        let tag = format!("<{name}>");
        let Some(start) = text.find(&tag).map(|at| self.searched + at) else { return };
        let value = start + tag.len()..end;
        let key = start + 1..start + 1 + name.len();
        let mut element = Element { start, key, value, after: end, is_closed: false };
        element.close(held, &self.tags.mark, end, held.len());
        self.elements.push(element);
        self.is_mended = true;
    }

    /// The arguments as a JSON object, for a tool with this parameter schema; `None` if a value that is no string holds tags instead.
    pub fn object(&self, held: &str, schema: &Value) -> Option<String> {
        let end = self.cut_at.as_ref().map_or(held.len(), |cut| cut.start);
        Tree::new(self.elements.clone(), held, &self.tags, (schema, end)).object()
    }
}

/// Where the white space-free text `came` begins with which `held` ends.
pub fn start_of(held: &str, came: &str) -> usize {
    let mut chars = held.char_indices().rev().filter(|(_, c)| !c.is_whitespace());
    came.chars().filter_map(|_| chars.next()).last().map_or(held.len(), |(at, _)| at)
}
