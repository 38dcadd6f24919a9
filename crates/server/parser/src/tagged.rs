//! Scans arguments that are each between tags. Tags may be repeated; a value whose closing tag was forgotten ends before the next
//! parameter, and before the end of its call if nothing or another call follows.

use std::ops::Range;

use serde_json::Value;

use crate::coerce;
use crate::json::Progress;
use crate::syntax::{Tagged, tags};

/// Maximum length of a parameter's name in bytes.
const KEY_BYTES_MAX: usize = 4096;

/// Maximum length of a key whose opening tag was forgotten.
const BARE_KEY_BYTES_MAX: usize = 128;

#[derive(Debug)]
enum At {
    /// Before a parameter, or the end: the text so far, without white space.
    Open(String),
    /// In a key; `is_bare` without its opening tag.
    Key { from: usize, is_bare: bool },
    /// Behind the tag that ends a key, at byte `from`, before the one that begins its value: the text so far, without white space.
    Middle { key: Range<usize>, from: usize, came: String },
    /// In a value; without a key if its opening tag was forgotten.
    Value { key: Range<usize>, from: usize, is_text: Option<bool> },
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
    /// The tags that end a key and begin a value, if they are two.
    middle: Option<(String, String)>,
    at: At,
    parameters: Vec<Parameter>,
    /// The text behind the arguments, and those that begin another call and end the section, without white space.
    behind: String,
    again: String,
    close: String,
    /// The range of the text behind the arguments, if the last value had no end of its own.
    cut_at: Option<Range<usize>>,
    /// The first key follows the function's name, without a tag between them.
    key_in_name: bool,
    is_mended: bool,
    /// The text that begins another call is in the value.
    holds_call: bool,
    /// A closing tag of no argument has come.
    is_closed: bool,
}

impl TaggedScan {
    /// `behind` is the text behind the arguments, `again` the one that begins another call, and `close` the one that ends the section,
    /// without white space.
    pub fn new(tags: &Tagged, behind: &str, again: &str, close: &str) -> Self {
        Self {
            tags: tags.clone(),
            open: tags.open.split_whitespace().collect(),
            middle: two_tags(tags),
            at: At::Open(String::new()),
            parameters: Vec::new(),
            behind: behind.into(),
            again: again.into(),
            close: close.into(),
            cut_at: None,
            key_in_name: false,
            is_mended: false,
            holds_call: false,
            is_closed: false,
        }
    }

    /// Begins within the first opening tag, of which this much came, without white space.
    pub fn resume(&mut self, came: String) {
        self.at = At::Open(came);
    }

    /// Whether a tag was missing.
    pub fn is_mended(&self) -> bool {
        self.is_mended
    }

    /// Whether the first key follows the function's name, without a tag between them.
    pub fn has_key_in_name(&self) -> bool {
        self.key_in_name
    }

    /// Where the call ended, if its last value had no end of its own.
    pub fn cut_at(&self) -> Option<Range<usize>> {
        self.cut_at.clone()
    }

    /// At the end of the answer in a value: where the arguments end, if what is behind them has come.
    pub fn finish(&mut self, held: &str) -> Option<usize> {
        let held = held.trim_end();
        let section = before_end(held, &self.close).map_or(held, |end| held[..end].trim_end());
        let end = self.end_of_call(held).or_else(|| self.end_of_call(section))?.start;
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
        self.holds_call = false;
    }

    /// The text of a tag that is not a parameter's, without white space.
    pub fn came(&self) -> &str {
        match &self.at {
            At::Open(came) => came,
            At::Key { .. } | At::Middle { .. } | At::Value { .. } => "",
        }
    }

    /// Whether a value is complete and nothing else has begun.
    pub fn may_end(&self) -> bool {
        matches!(self.at, At::Open(_)) && (self.is_closed || !self.parameters.is_empty())
    }

    /// Processes the character at the end of the held text.
    pub fn step(&mut self, c: char, held: &str) -> Progress {
        let end = held.len();
        match &mut self.at {
            At::Open(_) | At::Middle { .. } if c.is_whitespace() => {}
            At::Open(came) => {
                came.push(c);
                let is_close = self.tags.close.trim().starts_with(came.as_str());
                if !self.open.starts_with(came.as_str()) && !is_close {
                    return self.without_open(c, end);
                }
                if *came == self.open {
                    self.at = At::Key { from: end, is_bare: false };
                } else if came == self.tags.close.trim() {
                    came.clear(); // twice, or of no argument
                    self.is_closed = true;
                    self.is_mended = true;
                }
            }
            At::Middle { key, from, came } => {
                let Some((first, last)) = &self.middle else { return Progress::Bad };
                came.push(c);
                if came == first {
                    came.clear(); // twice
                } else if came == last
                    || !last.starts_with(came.as_str()) && !first.starts_with(came.as_str())
                {
                    // If the tag that begins the value is missing, the value begins behind the other.
                    let from = if came == last { end } else { *from };
                    self.is_mended |= came != last;
                    self.at = At::Value { key: key.clone(), from, is_text: None };
                }
            }
            At::Key { from, is_bare } => {
                let key = &held[*from..];
                if key.len() > if *is_bare { BARE_KEY_BYTES_MAX } else { KEY_BYTES_MAX } {
                    return Progress::Bad;
                }
                if let Some((first, last)) = &self.middle {
                    if let Some(len) = before_end(key, first) {
                        self.at = At::Middle { key: *from..*from + len, from: end, came: String::new() };
                    } else if let Some(len) = before_end(key, last) {
                        self.is_mended = true;
                        self.at = At::Value { key: *from..*from + len, from: end, is_text: None };
                    }
                    return Progress::More;
                }
                let text = self.tags.text.as_str();
                let others = self.tags.others.iter().map(|(_, t)| t.as_str());
                let ends = others.chain([text]).filter_map(|middle| Some((before_end(key, middle)?, middle)));
                if let Some((len, middle)) = ends.min_by_key(|(len, _)| *len) {
                    let is_text = self.tags.distinguishes_strings().then_some(middle == text);
                    self.at = At::Value { key: *from..*from + len, from: end, is_text };
                }
            }
            At::Value { from, .. } => {
                let from = *from;
                return self.step_in_value(c, held, from);
            }
        }
        Progress::More
    }

    /// The next character of a value that begins at byte `from`.
    fn step_in_value(&mut self, c: char, held: &str, from: usize) -> Progress {
        let (close, value) = (self.tags.close.trim(), &held[from..]);
        if value.ends_with(close) {
            self.end_value(held.len() - close.len());
            return Progress::More;
        }
        let mut end = None;
        if self.again.ends_with(c) && value.ends_with(&self.again) {
            end = self.end_of_call(held[..held.len() - self.again.len()].trim_end());
            self.holds_call |= end.is_none();
        } else if self.close.ends_with(c) && !self.holds_call {
            let before = before_end(value, &self.close).map(|len| held[..from + len].trim_end());
            end = before.and_then(|before| self.end_of_call(before));
        }
        let Some(end) = end else { return Progress::More };
        self.end_value(end.start);
        self.cut_at = Some(end);
        Progress::Done
    }

    /// Something else than an opening tag comes where a parameter may begin: a key, or a value, whose opening tag was forgotten; or what
    /// is behind the arguments.
    fn without_open(&mut self, c: char, end: usize) -> Progress {
        let came = self.came();
        let is_first = came.len() == c.len_utf8();
        let begun = end - c.len_utf8();
        match &self.middle {
            Some((first, _)) if self.parameters.is_empty() && first.starts_with(came) => {
                if came == first {
                    self.key_in_name = true;
                    self.is_mended = true;
                    self.at = At::Middle { key: 0..0, from: end, came: String::new() };
                }
            }
            Some(_) if is_first && (c.is_alphanumeric() || c == '_') => {
                self.is_mended = true;
                self.at = At::Key { from: begun, is_bare: true };
            }
            None if is_first && c != '<' && self.open.starts_with('<') && !self.behind.starts_with(c) => {
                self.is_mended = true;
                self.at = At::Value { key: 0..0, from: begun, is_text: None };
            }
            _ => return Progress::Before,
        }
        Progress::More
    }

    /// The arguments as a JSON object, for a tool with this parameter schema; `None` if a key holds tags. `first`: what the function's name
    /// took in behind it.
    pub fn object(&self, held: &str, schema: &Value, first: &str) -> Option<String> {
        let mut members: Vec<(&str, String)> = Vec::new();
        for (key, value, is_text) in self.values(held, schema, first)? {
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
    fn values<'a>(
        &self,
        held: &'a str,
        schema: &'a Value,
        first: &'a str,
    ) -> Option<Vec<(&'a str, &'a str, Option<bool>)>> {
        let open = self.tags.open.trim();
        let mut out: Vec<(&str, &str, Option<bool>)> = Vec::new();
        let mut unnamed = None;
        for (i, parameter) in self.parameters.iter().enumerate() {
            let mut key = self.key(&held[parameter.key.clone()])?;
            if i == 0 && self.key_in_name {
                key = Some(first).filter(|key| coerce::declares(schema, key))?;
            } else if parameter.key.is_empty() {
                // It can only be the one that is missing.
                let keys: Vec<&str> = self.parameters.iter().map(|p| held[p.key.clone()].trim()).collect();
                let is_alone = keys.iter().filter(|k| k.is_empty()).count() == 1;
                let is_bare = !tags(&held[parameter.value.clone()]).any(is_tag);
                key = coerce::missing(schema, &keys).filter(|_| is_alone && is_bare)?;
                unnamed = Some(key);
            }
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
                    let before = self.without_end(key, &value[..at]);
                    if !before.trim().is_empty() || coerce::declares(schema, key) {
                        out.push((key, before, is_text));
                    }
                    (key, value, from) = (name, &rest[length + middle.trim().len()..], 0);
                    is_text = self.tags.distinguishes_strings().then_some(middle == self.tags.text);
                }
            }
            out.push((key, value, is_text));
        }
        // Unless it is in another value, whose end was forgotten.
        let is_clear = unnamed.is_none_or(|key| out.iter().filter(|(k, ..)| *k == key).count() == 1);
        is_clear.then_some(out)
    }

    /// A value whose end was forgotten, without what is there of it.
    fn without_end<'a>(&self, key: &str, value: &'a str) -> &'a str {
        let (value, close) = (value.trim_end_matches('\n'), self.tags.close.trim());
        if let Some(value) = value.strip_suffix(&format!("</{key}>")) {
            return value; // the closing tag of XML
        }
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

/// The tags that end a key and begin a value, if they are two.
fn two_tags(of: &Tagged) -> Option<(String, String)> {
    let bare: String = of.text.split_whitespace().collect();
    let mut all = tags(&bare);
    let (first, last) = (all.next()?, all.next()?);
    let are_all = all.next().is_none() && first.len() + last.len() == bare.len();
    (are_all && of.others.iter().all(|(_, text)| *text == of.text)).then(|| (first.into(), last.into()))
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
