//! Scans a call that is one JSON object, and finds its name and arguments.

use std::collections::HashMap;
use std::ops::Range;

use serde_json::value::RawValue;

use crate::json::{Expected, Progress, Scanner, is_object};
use crate::syntax::Keys;

/// Maximum name length for streaming arguments: no tool has a longer name.
pub const NAME_BYTES_MAX: usize = 1024;

/// Keys that models write instead of those in their templates.
const NAME_KEYS: &[&str] = &["name", "tool_name"];
const ARGUMENTS_KEYS: &[&str] = &["arguments", "parameters"];

/// The scanner.
#[derive(Debug)]
pub struct ObjectScan {
    keys: Keys,
    scanner: Scanner,
    /// Start of the object; white space may precede it.
    from: Option<usize>,
    to: usize,
    /// Start of the member's key, and the key.
    key_from: usize,
    key: String,
    /// Start of the member's value.
    value_from: usize,
    name: Option<Range<usize>>,
    /// Start of the arguments, if they are an object.
    arguments: Option<Range<usize>>,
}

impl ObjectScan {
    pub fn new(keys: &Keys) -> Self {
        Self {
            keys: keys.clone(),
            scanner: Scanner::new(),
            from: None,
            to: 0,
            key_from: 0,
            key: String::new(),
            value_from: 0,
            name: None,
            arguments: None,
        }
    }

    /// Whether the object's first character has come.
    pub fn has_begun(&self) -> bool {
        self.from.is_some()
    }

    fn is_name(&self, key: &str) -> bool {
        key == self.keys.name || NAME_KEYS.contains(&key)
    }

    fn is_arguments(&self, key: &str) -> bool {
        key == self.keys.arguments || ARGUMENTS_KEYS.contains(&key)
    }

    /// Processes the character at the end of the held text.
    pub fn step(&mut self, c: char, held: &str) -> Progress {
        let (begun, end) = (held.len() - c.len_utf8(), held.len());
        if self.from.is_none() {
            match c {
                '{' => self.from = Some(begun),
                c if c.is_whitespace() => return Progress::More,
                _ => return Progress::Bad,
            }
        }
        let before = (self.scanner.depth(), self.scanner.expected());
        let progress = self.scanner.step(c);
        let after = (self.scanner.depth(), self.scanner.expected());
        match (before, after) {
            ((1, Expected::Key), (1, Expected::Nothing)) => self.key_from = begun,
            ((1, Expected::Nothing), (1, Expected::Colon)) => {
                self.key = serde_json::from_str(&held[self.key_from..end]).unwrap_or_default();
            }
            ((1, Expected::Value), (depth, _)) if !c.is_whitespace() => {
                self.value_from = begun;
                if depth == 2 && c == '{' && self.is_arguments(&self.key) {
                    self.arguments = Some(begun..begun);
                }
            }
            (before, (1, Expected::Comma)) if before != (1, Expected::Comma) => {
                if self.is_name(&self.key) && held[self.value_from..].starts_with('"') {
                    self.name = Some(self.value_from..end);
                }
                if let Some(arguments) = &mut self.arguments
                    && arguments.start == arguments.end
                {
                    arguments.end = end;
                }
            }
            _ => {}
        }
        if progress == Progress::Done {
            self.to = end;
        }
        progress
    }

    /// The function's name and the range of its arguments, if both have begun; the range is empty while the arguments are incomplete.
    pub fn started(&self, held: &str) -> Option<(String, Range<usize>)> {
        let name = self.name.clone().filter(|name| name.len() <= NAME_BYTES_MAX)?;
        let arguments = self.arguments.clone()?;
        Some((serde_json::from_str(&held[name]).ok()?, arguments))
    }

    /// Name and arguments of a complete call; `None` if it lacks them.
    pub fn call(&self, held: &str) -> Option<(String, String)> {
        let members: HashMap<String, &RawValue> = serde_json::from_str(&held[self.from?..self.to]).ok()?;
        let member = |own: &str, others: &[&str]| {
            members.get(own).or_else(|| others.iter().find_map(|k| members.get(*k))).map(|v| v.get())
        };
        let name: String = serde_json::from_str(member(&self.keys.name, NAME_KEYS)?).ok()?;
        let arguments = match member(&self.keys.arguments, ARGUMENTS_KEYS) {
            // Members under other keys would be lost.
            None if members.len() > 1 => return None,
            None | Some("null") => "{}".into(),
            // A JSON string, as in OpenAI's API.
            Some(text) if text.starts_with('"') => {
                serde_json::from_str::<String>(text).ok()?.trim().to_string()
            }
            Some(text) => text.to_string(),
        };
        is_object(&arguments).then_some((name, arguments))
    }
}
