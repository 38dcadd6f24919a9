//! Scans a call in Hermes' syntax: a JSON object between `<tool_call>` and `</tool_call>`. Models forget or repeat tags: either may be
//! missing, and the first may come twice.

use std::collections::HashMap;

use serde_json::value::RawValue;

use crate::json::{Progress, Scanner, is_object};
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
    /// The text up to here is text if this is not a call.
    opened: usize,
    /// The range of the object in the held text.
    object: std::ops::Range<usize>,
    /// The first tag was forgotten: the text began with the object.
    is_bare: bool,
    is_mended: bool,
}

impl Scan {
    pub fn new(opened: usize) -> Self {
        Self { at: At::Open, opened, object: 0..0, is_bare: false, is_mended: false }
    }

    /// After the `{` of an object without a tag before it. It is a call only if a tag follows, or if it is all of the answer.
    pub fn bare() -> Self {
        let mut scan = Self::new(0);
        scan.step(Token::Char('{'), 1);
        (scan.is_bare, scan.is_mended) = (true, true);
        scan
    }

    /// Whether the first tag was forgotten.
    pub fn is_bare(&self) -> bool {
        self.is_bare
    }

    pub fn wanted(&self) -> Tags {
        match self.at {
            At::Close => Tags::NONE.with(Tag::CallClose).with(Tag::CallOpen),
            At::Open => Tags::NONE.with(Tag::CallClose).with(Tag::CallOpen),
            At::Object(_) => Tags::NONE,
        }
    }

    /// Processes the token that ends at byte `end` of the held text.
    pub fn step(&mut self, token: Token, end: usize) -> Step {
        let failed = match (self.is_bare, &self.at) {
            (false, _) => Step::Text { end: self.opened },
            (true, At::Close) => Step::Text { end: self.object.end },
            (true, _) => Step::Text { end },
        };
        match (&mut self.at, token) {
            (At::Open | At::Close, _) if token.is_space() => Step::More,
            // A tag twice, or the closing one out of place.
            (At::Open, Token::Tag(Tag::CallOpen | Tag::CallClose)) => {
                (self.is_mended, self.opened) = (true, end);
                Step::More
            }
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
            (At::Close, Token::Tag(Tag::CallOpen)) if !self.is_bare => {
                self.is_mended = true;
                Step::Done { end: self.object.end }
            }
            _ => failed,
        }
    }

    /// At the end of the answer: where the call ends, if it is complete. Without any tag the object is one if it `is_alone`, and has nothing
    /// but a call's members.
    pub fn finish(&mut self, held: &str, is_alone: bool) -> Option<usize> {
        self.is_mended = true;
        let is_call = || {
            let members: Option<HashMap<String, &RawValue>> =
                serde_json::from_str(&held[self.object.clone()]).ok();
            members.is_some_and(|m| m.len() == 2 && m.contains_key("name") && m.contains_key("arguments"))
        };
        let may_end = matches!(self.at, At::Close) && (!self.is_bare || is_alone && is_call());
        may_end.then_some(self.object.end)
    }

    /// Whether a tag was missing or repeated.
    pub fn is_mended(&self) -> bool {
        self.is_mended
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
        is_object(&arguments).then_some((name, arguments))
    }
}
