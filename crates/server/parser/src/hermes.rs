//! Scans a call in Hermes' syntax: a JSON object between `<tool_call>` and `</tool_call>`. Used by `parser`.

use std::collections::HashMap;

use serde_json::Value;
use serde_json::value::RawValue;

use crate::json::{Progress, Scanner};
use crate::tags::{Step, Tag, Tags, Token};

#[derive(Debug)]
enum At {
    /// After `<tool_call>`: white space, then `{`.
    Open,
    Object(Scanner),
    /// After the object: white space, then `</tool_call>`.
    Close,
}

/// Scans one call from after its first tag.
#[derive(Debug)]
pub struct Scan {
    at: At,
    /// Length of the first tag.
    opened: usize,
    /// The range of the object in the held text.
    object: std::ops::Range<usize>,
}

impl Scan {
    pub fn new(opened: usize) -> Self {
        Self { at: At::Open, opened, object: 0..0 }
    }

    pub fn wanted(&self) -> Tags {
        match self.at {
            At::Close => Tags::NONE.with(Tag::CallClose).with(Tag::CallOpen),
            At::Open | At::Object(_) => Tags::NONE,
        }
    }

    /// Processes the token that ends at byte `end` of the held text.
    pub fn step(&mut self, token: Token, end: usize) -> Step {
        let failed = Step::Text { end: self.opened };
        match (&mut self.at, token) {
            (At::Open | At::Close, _) if token.is_space() => Step::More,
            (At::Open, Token::Char('{')) => {
                let mut scanner = Scanner::new();
                scanner.step('{');
                self.object.start = end - 1;
                self.at = At::Object(scanner);
                Step::More
            }
            (At::Object(scanner), Token::Char(c)) => match scanner.step(c) {
                Progress::More => Step::More,
                Progress::Bad | Progress::Before => failed,
                Progress::Done => {
                    self.object.end = end;
                    self.at = At::Close;
                    Step::More
                }
            },
            (At::Close, Token::Tag(Tag::CallClose)) => Step::Done { end },
            (At::Close, Token::Tag(Tag::CallOpen)) => Step::Done { end: self.object.end },
            _ => failed,
        }
    }

    /// At the end of the answer: where the call ends, if it is complete.
    pub fn finish(&self) -> Option<usize> {
        matches!(self.at, At::Close).then_some(self.object.end)
    }

    /// Name and arguments of a complete call; `None` if it lacks them.
    pub fn call(&self, held: &str) -> Option<(String, String)> {
        let members: HashMap<String, &RawValue> = serde_json::from_str(&held[self.object.clone()]).ok()?;
        let name: String = serde_json::from_str(members.get("name")?.get()).ok()?;
        let Some(arguments) = members.get("arguments") else {
            // Members under other keys would be lost.
            return (members.len() == 1).then(|| (name, "{}".into()));
        };
        let arguments = match arguments.get() {
            "null" => "{}".into(),
            // A JSON string, as in OpenAI's API.
            text if text.starts_with('"') => serde_json::from_str::<String>(text).ok()?.trim().to_string(),
            text => text.to_string(),
        };
        let whole: Value = serde_json::from_str(&arguments).ok()?;
        whole.is_object().then_some((name, arguments))
    }
}
