//! Scans arguments that are each between tags. Used by `native`.

use std::ops::Range;

use serde_json::Value;

use crate::coerce;
use crate::json::Progress;
use crate::syntax::Tagged;

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
}

impl TaggedScan {
    pub fn new(tags: &Tagged) -> Self {
        Self {
            tags: tags.clone(),
            open: tags.open.split_whitespace().collect(),
            at: At::Open(String::new()),
            parameters: Vec::new(),
        }
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
                if !self.open.starts_with(came.as_str()) {
                    return Progress::Before;
                }
                if *came == self.open {
                    self.at = At::Key { from: end };
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
                }
            }
        }
        Progress::More
    }

    /// The arguments as a JSON object, for a tool with this parameter schema.
    pub fn object(&self, held: &str, schema: &Value) -> String {
        let mut members: Vec<(&str, String)> = Vec::new();
        for parameter in &self.parameters {
            let key = held[parameter.key.clone()].trim();
            let value = self.value(&held[parameter.value.clone()]);
            let json = match parameter.is_text {
                Some(true) => coerce::string(value),
                Some(false) if serde_json::from_str::<Value>(value).is_ok() => value.trim().into(),
                Some(false) => coerce::string(value),
                None => coerce::argument(schema, key, value),
            };
            members.retain(|(k, _)| *k != key);
            members.push((key, json));
        }
        let members: Vec<String> =
            members.iter().map(|(k, v)| format!("{}: {v}", coerce::string(k))).collect();
        format!("{{{}}}", members.join(", "))
    }

    /// A value without the white space of the tags around it.
    fn value<'a>(&self, value: &'a str) -> &'a str {
        let (middle, close) = (&self.tags.text, &self.tags.close);
        let before = &middle[middle.trim_end().len()..];
        let behind = &close[..close.len() - close.trim_start().len()];
        let value = value.strip_prefix(before).unwrap_or(value);
        let value = value.strip_suffix(behind).unwrap_or(value);
        // XML escapes: MiniCPM5.
        value.strip_prefix("<![CDATA[").and_then(|v| v.strip_suffix("]]>")).unwrap_or(value)
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
