//! Scans arguments in nested tags that are named after their keys.
//!
//! Each tag follows a mark, which is a token in most models, so text without it is never a tag. A closing tag ends the innermost open one
//! of its name; what was opened in between is text. Whether a value is text, a list or an object is decided by the tool's schema.

use std::collections::HashMap;
use std::ops::Range;

use serde_json::Value;

use crate::coerce;
use crate::json::Progress;
use crate::syntax::Nested;
use crate::types::Types;

/// Maximum length of a tag's name in bytes.
const KEY_BYTES_MAX: usize = 4096;
/// Maximum nesting; deeper tags are text.
const DEPTH_MAX: usize = 64;

#[derive(Debug)]
enum At {
    /// Before an argument, or the end: the text so far, without white space.
    Open(String),
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

/// A tag that was opened: the ranges of its name and its value.
#[derive(Debug)]
struct Element {
    key: Range<usize>,
    value: Range<usize>,
    is_closed: bool,
}

/// The scanner.
#[derive(Debug)]
pub struct NestedScan {
    tags: Nested,
    /// The mark and `<`.
    open: String,
    at: At,
    /// In the order of their opening tags.
    elements: Vec<Element>,
    /// The elements around this place, the innermost last.
    around: Vec<usize>,
    /// Opening tags that are text because of their depth, by name: as many closing tags are text, too.
    too_deep: HashMap<String, usize>,
}

impl NestedScan {
    pub fn new(tags: &Nested) -> Self {
        let open = format!("{}<", tags.mark);
        Self {
            tags: tags.clone(),
            open,
            at: At::Open(String::new()),
            elements: Vec::new(),
            around: Vec::new(),
            too_deep: HashMap::new(),
        }
    }

    /// The text of a tag that is not an argument's, without white space.
    pub fn came(&self) -> &str {
        if let At::Open(came) = &self.at { came } else { "" }
    }

    /// Whether an argument is complete and nothing else has begun.
    pub fn may_end(&self) -> bool {
        matches!(self.at, At::Open(_)) && !self.elements.is_empty()
    }

    /// Processes the character at the end of the held text.
    pub fn step(&mut self, c: char, held: &str) -> Progress {
        let (begun, end) = (held.len() - c.len_utf8(), held.len());
        self.at = match &mut self.at {
            At::Open(_) if c.is_whitespace() => return Progress::More,
            At::Open(came) => {
                came.push(c);
                if self.open.starts_with(came.as_str()) {
                    return Progress::More;
                }
                if came.strip_suffix(c) != Some(&self.open) || matches!(c, '/' | '<' | '>') {
                    return Progress::Before;
                }
                At::Key { from: begun }
            }
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

    fn opened(&mut self, key: Range<usize>, end: usize, held: &str) -> At {
        if self.around.len() < DEPTH_MAX {
            self.around.push(self.elements.len());
            self.elements.push(Element { key, value: end..end, is_closed: false });
        } else {
            *self.too_deep.entry(held[key].to_string()).or_default() += 1;
        }
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
            (element.value.end, element.is_closed) = (end, true);
            self.around.truncate(depth);
            self.too_deep.clear();
        }
        if self.around.is_empty() { At::Open(String::new()) } else { At::Text }
    }

    /// The arguments as a JSON object, for a tool with this parameter schema; `None` if a value that is no string holds tags instead.
    pub fn object(&self, held: &str, schema: &Value) -> Option<String> {
        let arguments = self.children(0, held.len());
        self.members(&arguments, held, (schema, Some(schema)))
    }

    /// The complete elements from `first` that begin before byte `end`, without those in them.
    fn children(&self, first: usize, end: usize) -> Vec<usize> {
        let mut out: Vec<usize> = Vec::new();
        for (i, element) in self.elements.iter().enumerate().skip(first) {
            if element.value.start > end {
                break;
            }
            if element.is_closed && out.last().is_none_or(|l| self.elements[*l].value.end < element.key.start)
            {
                out.push(i);
            }
        }
        out
    }

    /// Whether a value has text besides these elements.
    fn has_text(&self, inner: &[usize], value: Range<usize>, held: &str) -> bool {
        let mut from = value.start;
        for element in inner.iter().map(|i| &self.elements[*i]) {
            if has_text(&held[from..element.key.start - self.open.len()]) {
                return true;
            }
            from = element.value.end + self.open.len() + "/>".len() + element.key.len();
        }
        has_text(&held[from..value.end])
    }

    fn members(&self, all: &[usize], held: &str, (root, schema): (&Value, Option<&Value>)) -> Option<String> {
        let mut members: Vec<(&str, String)> = Vec::new();
        for &i in all {
            let key = &held[self.elements[i].key.clone()];
            let of = schema.and_then(|s| coerce::property(root, s, key));
            members.retain(|(k, _)| *k != key);
            members.push((key, self.value(i, held, (root, of))?));
        }
        let members: Vec<String> =
            members.iter().map(|(k, v)| format!("{}: {v}", coerce::string(k))).collect();
        Some(format!("{{{}}}", members.join(", ")))
    }

    /// The value of an element as JSON, by its schema.
    fn value(&self, i: usize, held: &str, (root, schema): (&Value, Option<&Value>)) -> Option<String> {
        let value = self.elements[i].value.clone();
        let text = &held[value.clone()];
        let types = coerce::types(root, schema);
        let inner = self.children(i + 1, value.end);
        if inner.is_empty() || self.has_text(&inner, value.clone(), held) {
            return match text.trim() {
                "" if !types.has(Types::STRING) && types.has(Types::ARRAY) => Some("[]".into()),
                "" if !types.has(Types::STRING) && types.has(Types::OBJECT) => Some("{}".into()),
                _ => coerce::value_without_tags(root, schema, text, &|_| true),
            };
        }
        let is_item = |i: &usize| held[self.elements[*i].key.clone()] == self.tags.item;
        if types.has(Types::ARRAY) && inner.iter().all(is_item) {
            let of = schema.and_then(|s| coerce::items(root, s));
            let items: Option<Vec<String>> = inner.iter().map(|i| self.value(*i, held, (root, of))).collect();
            return Some(format!("[{}]", items?.join(", ")));
        }
        if types.has(Types::OBJECT) {
            self.members(&inner, held, (root, schema))
        } else {
            coerce::value_without_tags(root, schema, text, &|_| true)
        }
    }
}

/// Whether a text is more than white space and tags.
fn has_text(text: &str) -> bool {
    !coerce::without_tags(text, &|_| true).trim().is_empty()
}
