//! The values of nested tags as JSON, by the tool's schema.

use std::ops::Range;

use serde_json::Value;

use crate::coerce;
use crate::syntax::Nested;
use crate::types::Types;

/// A tag that was opened, with its value.
#[derive(Debug, Clone)]
pub struct Element {
    /// Where the opening tag begins, with its mark if it has one.
    pub start: usize,
    /// The range of its name.
    pub key: Range<usize>,
    /// The range of its value.
    pub value: Range<usize>,
    /// Behind the closing tag.
    pub after: usize,
    pub is_closed: bool,
}

impl Element {
    /// Closes it at byte `end`, where its closing tag begins; `after` is behind that. Marks before the tag are its own, repeated.
    pub fn close(&mut self, held: &str, mark: &str, end: usize, after: usize) {
        self.value.end = end;
        while held[self.value.clone()].ends_with(mark) {
            self.value.end -= mark.len();
        }
        (self.after, self.is_closed) = (after, true);
    }
}

/// The elements of a call's arguments.
pub struct Tree<'a> {
    /// In the order of their opening tags.
    elements: Vec<Element>,
    held: &'a str,
    tags: &'a Nested,
    schema: &'a Value,
    /// Where the arguments end.
    end: usize,
}

impl<'a> Tree<'a> {
    pub fn new(
        elements: Vec<Element>,
        held: &'a str,
        tags: &'a Nested,
        (schema, end): (&'a Value, usize),
    ) -> Self {
        let mut tree = Self { elements, held, tags, schema, end };
        if tree.elements.iter().any(|e| !e.is_closed) {
            tree.close_all();
        }
        tree
    }

    /// Closes elements whose closing tag was forgotten, or has no mark, if it is clear where they end.
    fn close_all(&mut self) {
        // The ends of the closed elements around the current one, the innermost last.
        let mut around: Vec<usize> = Vec::new();
        for i in 0..self.elements.len() {
            let element = &self.elements[i];
            let start = element.start;
            while around.last().is_some_and(|end| *end <= start) {
                around.pop();
            }
            if !element.is_closed
                && let Some((end, after)) = self.end_of(i, around.last().copied())
            {
                self.elements[i].close(self.held, &self.tags.mark, end, after);
            }
            let element = &self.elements[i];
            if element.is_closed {
                around.push(element.value.end);
            }
        }
    }

    /// Where the value of an element ends that is not closed, in one that ends at `around`; and where its closing tag ends.
    fn end_of(&self, i: usize, around: Option<usize>) -> Option<(usize, usize)> {
        let element = &self.elements[i];
        let (from, key) = (element.value.start, &self.held[element.key.clone()]);
        if key.is_empty() {
            return None;
        }
        let limit = around.unwrap_or(self.end);
        let text = self.held.get(from..limit)?;
        // Its closing tag without the mark, before another tag.
        let close = format!("</{key}>");
        let is_end = |(at, _): &(usize, &str)| {
            let (before, rest) = (&text[..*at], text[at + close.len()..].trim_start());
            !before.ends_with(&self.tags.mark) && (rest.is_empty() || rest.starts_with(&self.tags.mark))
        };
        if let Some((at, _)) = text.match_indices(&close).find(is_end) {
            return Some((from + at, from + at + close.len()));
        }
        let is_item = key == self.tags.item;
        if around.is_some() && !is_item {
            return None; // text
        }
        let own = coerce::property(self.schema, self.schema, key);
        let is_next = |e: &&Element| {
            let next = &self.held[e.key.clone()];
            let is_declared = || coerce::declares(self.schema, next);
            let is_inner = || own.is_some_and(|own| coerce::property(self.schema, own, next).is_some());
            e.start < limit
                && match is_item {
                    true => next == key,
                    false => next != key && is_declared() && !is_inner(),
                }
        };
        let end = self.elements[i + 1..].iter().find(is_next).map_or(limit, |next| next.start);
        // A tag without a value is out of place, if another one has the key.
        let is_other = |e: &Element| e.is_closed && self.held[e.key.clone()] == *key;
        let is_empty = self.held[from..end].replace(&self.tags.mark, "").trim().is_empty();
        (is_item || !is_empty || !self.elements.iter().any(is_other)).then_some((end, end))
    }

    /// The arguments as a JSON object; `None` if a value that is no string holds tags instead.
    pub fn object(&self) -> Option<String> {
        if self.elements.iter().any(|e| e.key.is_empty()) {
            return None; // a value without a name
        }
        let arguments = self.children(0, self.end);
        self.members(&arguments, Some(self.schema))
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
    fn has_text(&self, inner: &[usize], value: Range<usize>) -> bool {
        let mut from = value.start;
        for element in inner.iter().map(|i| &self.elements[*i]) {
            if has_text(&self.held[from..element.start]) {
                return true;
            }
            from = element.after.min(value.end);
        }
        has_text(&self.held[from..value.end])
    }

    fn members(&self, all: &[usize], schema: Option<&Value>) -> Option<String> {
        let mut members: Vec<(&str, String)> = Vec::new();
        for &i in all {
            let key = &self.held[self.elements[i].key.clone()];
            let of = schema.and_then(|s| coerce::property(self.schema, s, key));
            members.retain(|(k, _)| *k != key);
            members.push((key, self.value(i, of)?));
        }
        let members: Vec<String> =
            members.iter().map(|(k, v)| format!("{}: {v}", coerce::string(k))).collect();
        Some(format!("{{{}}}", members.join(", ")))
    }

    /// The value of an element as JSON, by its schema.
    fn value(&self, i: usize, schema: Option<&Value>) -> Option<String> {
        let (root, value) = (self.schema, self.elements[i].value.clone());
        let text = self.without_own_tag(i);
        let types = coerce::types(root, schema);
        let inner = self.children(i + 1, value.end);
        if inner.is_empty() || self.has_text(&inner, value.clone()) {
            return match text.trim() {
                "" if !types.has(Types::STRING) && types.has(Types::ARRAY) => Some("[]".into()),
                "" if !types.has(Types::STRING) && types.has(Types::OBJECT) => Some("{}".into()),
                _ => coerce::value_without_tags(root, schema, text, &|_| true),
            };
        }
        let is_item = |i: &usize| self.held[self.elements[*i].key.clone()] == self.tags.item;
        if types.has(Types::ARRAY) && inner.iter().all(is_item) {
            let of = schema.and_then(|s| coerce::items(root, s));
            let items: Option<Vec<String>> = inner.iter().map(|i| self.value(*i, of)).collect();
            return Some(format!("[{}]", items?.join(", ")));
        }
        if types.has(Types::OBJECT) {
            self.members(&inner, schema)
        } else {
            coerce::value_without_tags(root, schema, text, &|_| true)
        }
    }

    /// The text of a value, without the tag before it if that comes twice.
    fn without_own_tag(&self, i: usize) -> &'a str {
        let element = &self.elements[i];
        let text = &self.held[element.value.clone()];
        let own = format!("<{}>", &self.held[element.key.clone()]);
        text.trim_start().strip_prefix(own.as_str()).unwrap_or(text)
    }
}

/// Whether a text is more than white space and tags.
fn has_text(text: &str) -> bool {
    !coerce::without_tags(text, &|_| true).trim().is_empty()
}
