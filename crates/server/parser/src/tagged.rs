//! Scans arguments that are each between tags. Tags may be repeated; a value whose closing tag was forgotten ends before the next
//! parameter, and before the end of its call if nothing or another call follows. Used by `native`.

use std::ops::Range;

use serde_json::Value;

use crate::coerce;
use crate::json::Progress;
use crate::syntax::{Tagged, tags};

/// Maximum length of a parameter's name in bytes.
const KEY_BYTES_MAX: usize = 4096;

#[derive(Debug)]
enum At {
    /// Before a parameter, or the end: the text so far, without white space.
    Open(String),
    Key {
        from: usize,
    },
    Value {
        key: Range<usize>,
        from: usize,
        is_text: Option<bool>,
    },
}

/// A parameter: the ranges of its key and value, and whether the tags mark it as a string.
#[derive(Debug)]
struct Parameter {
    key: Range<usize>,
    value: Range<usize>,
    is_text: Option<bool>,
}

/// The scanner.
#[derive(Debug)]
pub struct TaggedScan {
    tags: Tagged,
    /// The opening tag, without white space.
    open: String,
    at: At,
    parameters: Vec<Parameter>,
    /// The text behind the arguments, and the one that begins another call, without white space.
    behind: String,
    again: String,
    /// The range of the text behind the arguments, if the last value had no end of its own.
    cut_at: Option<Range<usize>>,
}

impl TaggedScan {
    /// `behind` is the text behind the arguments, and `again` the one that begins another call, without white space.
    pub fn new(tags: &Tagged, behind: &str, again: &str) -> Self {
        Self {
            tags: tags.clone(),
            open: tags.open.split_whitespace().collect(),
            at: At::Open(String::new()),
            parameters: Vec::new(),
            behind: behind.into(),
            again: again.into(),
            cut_at: None,
        }
    }

    /// Where the call ended, if its last value had no end of its own.
    pub fn cut_at(&self) -> Option<Range<usize>> {
        self.cut_at.clone()
    }

    /// At the end of the answer in a value: where the arguments end, if what is behind them has come.
    pub fn finish(&mut self, held: &str) -> Option<usize> {
        let end = self.end_of_call(held.trim_end())?.start;
        self.end_value(end);
        Some(end)
    }

    /// The range of the text behind the arguments with which `held` ends, if it is in a value.
    fn end_of_call(&self, held: &str) -> Option<Range<usize>> {
        let At::Value { from, .. } = self.at else { return None };
        let value = held.get(from..).filter(|_| !self.behind.is_empty())?;
        let end = before_end(value, &self.behind)?;
        Some(from + end..held.len())
    }

    fn end_value(&mut self, end: usize) {
        if let At::Value { key, from, is_text } = &self.at {
            self.parameters.push(Parameter { key: key.clone(), value: *from..end, is_text: *is_text });
        }
        self.at = At::Open(String::new());
    }

    /// The text of a tag that is not a parameter's, without white space.
    pub fn came(&self) -> &str {
        match &self.at {
            At::Open(came) => came,
            At::Key { .. } | At::Value { .. } => "",
        }
    }

    /// Whether a value is complete and nothing else has begun.
    pub fn may_end(&self) -> bool {
        matches!(self.at, At::Open(_)) && !self.parameters.is_empty()
    }

    /// Processes the character at the end of the held text.
    pub fn step(&mut self, c: char, held: &str) -> Progress {
        let end = held.len();
        match &mut self.at {
            At::Open(_) if c.is_whitespace() => {}
            At::Open(came) => {
                came.push(c);
                let is_close =
                    self.tags.close.trim().starts_with(came.as_str()) && !self.parameters.is_empty();
                if !self.open.starts_with(came.as_str()) && !is_close {
                    return Progress::Before;
                }
                if *came == self.open {
                    self.at = At::Key { from: end };
                } else if came == self.tags.close.trim() {
                    came.clear(); // twice
                }
            }
            At::Key { from } => {
                let key = &held[*from..];
                if key.len() > KEY_BYTES_MAX {
                    return Progress::Bad;
                }
                let text = self.tags.text.as_str();
                let others = self.tags.others.iter().map(|(_, t)| t.as_str());
                let ends = others.chain([text]).filter_map(|middle| Some((before_end(key, middle)?, middle)));
                if let Some((len, middle)) = ends.min_by_key(|(len, _)| *len) {
                    let is_text = self.tags.distinguishes_strings().then_some(middle == text);
                    self.at = At::Value { key: *from..*from + len, from: end, is_text };
                }
            }
            At::Value { key, from, is_text } => {
                let close = self.tags.close.trim();
                if held[*from..].ends_with(close) {
                    let value = *from..end - close.len();
                    self.parameters.push(Parameter { key: key.clone(), value, is_text: *is_text });
                    self.at = At::Open(String::new());
                } else if self.again.ends_with(c)
                    && let Some(value) = held.strip_suffix(self.again.as_str())
                    && let Some(call_end) = self.end_of_call(value.trim_end())
                {
                    self.end_value(call_end.start);
                    self.cut_at = Some(call_end);
                    return Progress::Done;
                }
            }
        }
        Progress::More
    }

    /// The arguments as a JSON object, for a tool with this parameter schema; `None` if a key holds tags.
    pub fn object(&self, held: &str, schema: &Value) -> Option<String> {
        let mut members: Vec<(&str, String)> = Vec::new();
        for (key, value, is_text) in self.values(held, schema)? {
            let value = self.value(value);
            let json = match is_text {
                Some(true) => coerce::string(value),
                Some(false) => unquoted(value)?,
                None => {
                    let of = coerce::property(schema, schema, key);
                    coerce::value_without_tags(schema, of, value, &is_tag)?
                }
            };
            members.retain(|(k, _)| *k != key);
            members.push((key, json));
        }
        let members: Vec<String> =
            members.iter().map(|(k, v)| format!("{}: {v}", coerce::string(k))).collect();
        Some(format!("{{{}}}", members.join(", ")))
    }

    /// Keys and values, and whether the tags mark them as strings. A value is cut where a parameter of the schema begins that is not given
    /// otherwise: the end before it was forgotten.
    fn values<'a>(&self, held: &'a str, schema: &Value) -> Option<Vec<(&'a str, &'a str, Option<bool>)>> {
        let open = self.tags.open.trim();
        let mut out: Vec<(&str, &str, Option<bool>)> = Vec::new();
        for parameter in &self.parameters {
            let mut key = self.key(&held[parameter.key.clone()])?;
            let mut value = &held[parameter.value.clone()];
            let mut is_text = parameter.is_text;
            let mut from = 0;
            if let Some(rest) = self.after_own_tag(key, value) {
                value = rest; // it came twice
            }
            while let Some(at) = value[from..].find(open).map(|at| from + at) {
                let rest = &value[at + open.len()..];
                from = at + open.len();
                let texts = self.tags.others.iter().map(|(_, t)| t.as_str()).chain([self.tags.text.as_str()]);
                let middle = texts.filter_map(|t| Some((rest.find(t.trim())?, t))).min();
                let Some((length, middle)) = middle else { break };
                let name = rest[..length].trim();
                let is_given = out.iter().any(|(k, ..)| *k == name)
                    || self.parameters.iter().any(|p| held[p.key.clone()].trim() == name);
                if !open.is_empty() && !is_given && coerce::declares(schema, name) {
                    // A tag without a value is out of place.
                    let before = self.without_end(&value[..at]);
                    if !before.trim().is_empty() || coerce::declares(schema, key) {
                        out.push((key, before, is_text));
                    }
                    (key, value, from) = (name, &rest[length + middle.trim().len()..], 0);
                    is_text = self.tags.distinguishes_strings().then_some(middle == self.tags.text);
                }
            }
            out.push((key, value, is_text));
        }
        Some(out)
    }

    /// A value whose end was forgotten, without what is there of it.
    fn without_end<'a>(&self, value: &'a str) -> &'a str {
        let (value, close) = (value.trim_end_matches('\n'), self.tags.close.trim());
        let bounds = tags(close).flat_map(|t| {
            let at = t.as_ptr() as usize - close.as_ptr() as usize;
            [at, at + t.len()]
        });
        let parts = bounds.flat_map(|at| [&close[..at], &close[at..]]).filter(|part| !part.trim().is_empty());
        parts.filter_map(|part| value.strip_suffix(part)).min_by_key(|v| v.len()).unwrap_or(value)
    }

    /// A value behind the tag that is before it, with its key.
    fn after_own_tag<'a>(&self, key: &str, value: &'a str) -> Option<&'a str> {
        let open = self.tags.open.trim();
        let rest = value.trim_start().strip_prefix(open).filter(|_| !open.is_empty())?;
        let rest = rest.trim_start().strip_prefix(key)?.trim_start();
        let mut middles = self.tags.others.iter().map(|(_, t)| t.as_str()).chain([self.tags.text.as_str()]);
        middles.find_map(|middle| rest.strip_prefix(middle.trim()))
    }

    /// A key without tags that came twice; `None` if others are in it.
    fn key<'a>(&self, key: &'a str) -> Option<&'a str> {
        let (open, close) = (self.tags.open.trim(), self.tags.close.trim());
        let mut key = key.trim();
        while let Some(rest) = key.strip_prefix(open).filter(|_| !open.is_empty()) {
            key = rest.trim();
        }
        let end = tags(&self.tags.text).next().filter(|t| self.tags.text.starts_with(t));
        while let Some(rest) = end.and_then(|end| key.strip_suffix(end)) {
            key = rest.trim();
        }
        let has = |tag: &str| !tag.is_empty() && key.contains(tag);
        (!has(open) && !has(close) && !tags(key).any(is_tag)).then_some(key)
    }

    /// A value without the white space of the tags around it.
    fn value<'a>(&self, value: &'a str) -> &'a str {
        let (middle, close) = (&self.tags.text, &self.tags.close);
        let before = &middle[middle.trim_end().len()..];
        let behind = &close[..close.len() - close.trim_start().len()];
        // The tag before it, twice.
        let again = tags(middle).last().filter(|t| middle.trim_end().ends_with(t) && !middle.starts_with(t));
        let value = again.and_then(|t| value.trim_start().strip_prefix(t)).unwrap_or(value);
        let value = value.strip_prefix(before).unwrap_or(value);
        let value = value.strip_suffix(behind).unwrap_or(value);
        // XML escapes: MiniCPM5.
        value.strip_prefix("<![CDATA[").and_then(|v| v.strip_suffix("]]>")).unwrap_or(value)
    }
}

/// Whether a tag in a value that is no string, or in a key, is one of the syntax.
fn is_tag(tag: &str) -> bool {
    tag.contains(['/', '_', '|', '=', ':'])
}

/// A value that its tags mark as no string, as JSON; `None` if it holds tags instead.
fn unquoted(value: &str) -> Option<String> {
    let is_json = |text: &str| serde_json::from_str::<Value>(text).is_ok();
    if is_json(value) {
        return Some(value.trim().into());
    }
    let bare = coerce::without_tags(value, &is_tag);
    match bare == value {
        true => Some(coerce::string(value)),
        false => Some(bare.trim().to_string()).filter(|bare| is_json(bare)),
    }
}

/// Length of `text` without `tag` at its end, ignoring white space; `None` if it does not end with it.
fn before_end(text: &str, tag: &str) -> Option<usize> {
    let mut rest = text.char_indices().rev().filter(|(_, c)| !c.is_whitespace());
    let mut len = None;
    for c in tag.chars().rev().filter(|c| !c.is_whitespace()) {
        let (at, d) = rest.next()?;
        if c != d {
            return None;
        }
        len = Some(at);
    }
    len.filter(|_| !text.ends_with(char::is_whitespace))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_with_white_space_end_a_key() {
        let middle = "</arg_key>\n<arg_value>";
        assert_eq!(before_end("city</arg_key><arg_value>", middle), Some(4));
        assert_eq!(before_end("city</arg_key>\n\n<arg_value>", middle), Some(4));
        assert_eq!(before_end("city</arg_key><arg_value", middle), None);
        assert_eq!(before_end("city</arg_key><arg_value> ", middle), None);
        assert_eq!(before_end("", ""), None);
    }
}
