//! Scans a call in Qwen3-Coder's syntax: tags around bare text.
//!
//! The syntax has no escapes, so a value may contain what looks like its end. It ends at the first `</parameter>` after which the call
//! continues as calls do: white space, then the next parameter or the function's end, followed by the call's end. Whole functions
//! inside a value (code about this syntax) are skipped.
//!
//! Models forget, repeat or garble tags, above all at the end of long contexts. So a value also ends where the function and the call
//! do, before the next call, and before a line that begins a parameter of the schema that is not given otherwise. `</parameter>` and
//! `</tool_call>` without `</function>` end it for certain if nothing or another call follows. If not, they may be text of the value: then
//! they count only if the call has no other end, and the parser scans it again.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use serde_json::Value;

use crate::coerce;
use crate::tags::{Step, Tag, Tags, Token};

/// The beginning of a line with a parameter.
const LINE_OF_PARAMETER: &str = "\n<parameter=";

#[derive(Debug, Clone, Copy)]
enum At {
    /// After `<tool_call>`: white space, then `<function=`.
    Open,
    /// In the function's name, up to `>`.
    Name,
    /// After the name: white space, then `<parameter=` or `</function>`.
    Parameters,
    /// There, after a `<tool_call>` out of place.
    Opened,
    /// There, in a text that begins like `<function ` or `<parameter `: without the `=` before the name. It begins at `from`, and may be
    /// text of the value that ended at `value_end`.
    Spaced {
        from: usize,
        value_end: Option<usize>,
        is_function: bool,
    },
    /// In a parameter's name. With `value_end` it may still be text of the value before.
    Key {
        from: usize,
        value_end: Option<usize>,
    },
    Value,
    /// In the value, after `<function=`: a name, `>`.
    InnerName,
    /// In the value, after `<function=name>`: white space, then what makes it a function.
    InnerOpen,
    /// In the value, after a `</function>` at `value_end` that closes nothing in it: white space, then `</tool_call>` if it is the
    /// value's end.
    Unclosed {
        value_end: usize,
    },
    /// After `</parameter>`, which begins at `value_end`: white space, then `<parameter=` or `</function>`.
    AfterValue {
        value_end: usize,
    },
    /// After a `</tool_call>` that ends at `end`, without `</function>` before it: white space and closing tags, then nothing or another
    /// call if it is the call's end.
    CallClosed {
        value_end: usize,
        end: usize,
    },
    /// There, or after `</parameter>`, and after a `<tool_call>`: white space, then `<function=` if the call has ended at `end`.
    NextCall {
        value_end: usize,
        end: usize,
    },
    /// After `</function>`, which ends at `end`: white space, then `</tool_call>`.
    Close {
        end: usize,
        value_end: Option<usize>,
    },
}

/// Scans one call from after its first tag, which is `<tool_call>` or `<function=`.
#[derive(Debug)]
pub struct Scan {
    at: At,
    /// The text up to here is text if this is not a call.
    opened: usize,
    /// The first tag was `<function=`.
    bare: bool,
    /// `</think>` ends an unfinished call.
    in_reasoning: bool,
    /// Skip functions inside values. If not, tags in a value that may be the call's end are.
    nesting: bool,
    /// Number of open functions inside the value.
    depth: usize,
    /// Number of `<tool_call>` inside the value that are not closed.
    calls: usize,
    /// There was a function inside a value, or what may be the call's end.
    may_end_otherwise: bool,
    /// A tag was missing or repeated.
    is_mended: bool,
    name: Range<usize>,
    key: Range<usize>,
    value_from: usize,
    /// Ranges of keys and values in the held text.
    parameters: Vec<(Range<usize>, Range<usize>)>,
}

impl Scan {
    pub fn new(first: Tag, in_reasoning: bool, nesting: bool) -> Self {
        let opened = first.text().len();
        let bare = first == Tag::FunctionOpen;
        Self {
            at: if bare { At::Name } else { At::Open },
            opened,
            bare,
            in_reasoning,
            nesting,
            depth: 0,
            calls: 0,
            may_end_otherwise: false,
            is_mended: false,
            name: opened..opened,
            key: 0..0,
            value_from: 0,
            parameters: Vec::new(),
        }
    }

    pub fn wanted(&self) -> Tags {
        let tags = [
            Tag::CallOpen,
            Tag::CallClose,
            Tag::FunctionOpen,
            Tag::FunctionClose,
            Tag::ParameterOpen,
            Tag::ParameterClose,
        ];
        let tags = tags.into_iter().fold(Tags::NONE, Tags::with);
        if self.in_reasoning { tags.with(Tag::ThinkClose) } else { tags }
    }

    /// Processes the token at these bytes of the held text.
    pub fn step(&mut self, token: Token, Range { start: from, end }: Range<usize>) -> Step {
        let failed = Step::Text { end: self.opened };
        self.at = match (self.at, token) {
            (At::Open, _) if token.is_space() => At::Open,
            // The tag twice, or one out of place.
            (At::Open, Token::Tag(Tag::CallOpen | Tag::ParameterClose)) => {
                self.opened = end;
                self.mended(At::Open)
            }
            (At::Open, Token::Tag(Tag::FunctionOpen)) => {
                self.name = end..end;
                At::Name
            }
            (At::Open, Token::Char('<')) => At::Spaced { from, value_end: None, is_function: true },
            (At::Parameters, Token::Char('<')) if !self.bare => {
                At::Spaced { from, value_end: None, is_function: false }
            }
            (At::AfterValue { value_end }, Token::Char('<')) => {
                At::Spaced { from, value_end: Some(value_end), is_function: false }
            }
            (At::Spaced { from: begun, value_end, is_function }, token) => {
                match self.spaced((begun, value_end, is_function), token, end) {
                    Some(at) => at,
                    None if is_function => return failed,
                    None => return self.not_spaced((begun, value_end), token, from..end),
                }
            }
            (At::Name, Token::Char(c)) if is_name(c) => At::Name,
            (At::Name, Token::Char('>')) => {
                self.name.end = from;
                At::Parameters
            }
            (at @ (At::Parameters | At::Opened), _) if token.is_space() => at,
            (At::Parameters | At::Opened, Token::Tag(Tag::ParameterOpen)) => {
                At::Key { from: end, value_end: None }
            }
            (At::Parameters | At::Opened, Token::Tag(Tag::FunctionClose)) => {
                At::Close { end, value_end: None }
            }
            (At::Parameters, Token::Tag(Tag::CallOpen)) => self.mended(At::Opened),
            // The function twice.
            (At::Parameters, Token::Tag(Tag::FunctionOpen)) => {
                self.name = end..end;
                self.opened = end;
                self.mended(At::Name)
            }
            // A value without the tag before it.
            (At::Parameters, Token::Char(_)) if !self.bare => {
                (self.key, self.value_from) = (0..0, from);
                (self.depth, self.calls) = (0, 0);
                self.mended(At::Value)
            }
            (at @ At::Key { .. }, Token::Char(c)) if is_name(c) => at,
            (At::Key { from: key, value_end }, Token::Char('>')) if key < from => {
                self.end_value(value_end);
                self.key = key..from;
                self.value_from = end;
                (self.depth, self.calls) = (0, 0);
                At::Value
            }
            (At::Open | At::Name | At::Parameters | At::Opened | At::Key { value_end: None, .. }, _) => {
                return failed;
            }
            (_, Token::Tag(Tag::ThinkClose)) => return Step::Text { end: from },
            (at, token) => match self.after_value(at, token, from, end) {
                Ok(at) => at,
                Err(step) => return step,
            },
        };
        Step::More
    }

    /// The state after another character of a tag without its `=`; `None` if it is none.
    fn spaced(
        &mut self,
        (from, value_end, is_function): (usize, Option<usize>, bool),
        token: Token,
        end: usize,
    ) -> Option<At> {
        let word = if is_function { "<function " } else { "<parameter " };
        let Token::Char(c) = token else { return None };
        let matched = end - c.len_utf8() - from;
        if !word[matched..].starts_with(c) {
            return None;
        }
        if matched + c.len_utf8() < word.len() {
            return Some(At::Spaced { from, value_end, is_function });
        }
        self.is_mended = true;
        if is_function {
            self.name = end..end;
            return Some(At::Name);
        }
        Some(At::Key { from: end, value_end })
    }

    /// What looked like such a tag is text of a value: of the one before, or of one without a tag before it.
    fn not_spaced(
        &mut self,
        (begun, value_end): (usize, Option<usize>),
        token: Token,
        at: Range<usize>,
    ) -> Step {
        if value_end.is_none() {
            (self.key, self.value_from) = (0..0, begun);
            (self.depth, self.calls) = (0, 0);
            self.is_mended = true;
        }
        self.at = At::Value;
        self.step(token, at)
    }

    /// The state after a token in or after a value, or the result.
    fn after_value(&mut self, at: At, token: Token, from: usize, end: usize) -> Result<At, Step> {
        Ok(match (at, token) {
            (
                At::InnerOpen
                | At::Unclosed { .. }
                | At::AfterValue { .. }
                | At::CallClosed { .. }
                | At::NextCall { .. }
                | At::Close { .. },
                _,
            ) if token.is_space() => at,
            (At::Unclosed { value_end }, Token::Tag(Tag::CallClose)) => {
                return Err(self.done(Some(value_end), end, true));
            }
            (At::AfterValue { value_end }, Token::Tag(Tag::ParameterOpen)) => {
                At::Key { from: end, value_end: Some(value_end) }
            }
            (At::AfterValue { value_end }, Token::Tag(Tag::FunctionClose)) => {
                At::Close { end, value_end: Some(value_end) }
            }
            (At::AfterValue { value_end }, Token::Tag(Tag::CallClose)) if self.calls == 0 => {
                if !self.nesting {
                    return Err(self.done(Some(value_end), end, true));
                }
                At::CallClosed { value_end, end }
            }
            // The next call, without an end of this one.
            (At::AfterValue { value_end }, Token::Tag(Tag::CallOpen)) => {
                At::NextCall { value_end, end: from }
            }
            (At::AfterValue { value_end }, Token::Tag(Tag::FunctionOpen)) => {
                return Err(self.done(Some(value_end), from, true));
            }
            (At::CallClosed { .. }, Token::Tag(Tag::CallClose | Tag::FunctionClose)) => at,
            // All before it was text of the value, if the call goes on as calls do.
            (At::CallClosed { .. }, Token::Tag(Tag::ParameterClose)) => {
                self.may_end_otherwise = true;
                At::AfterValue { value_end: from }
            }
            (At::CallClosed { value_end, end }, Token::Tag(Tag::CallOpen)) => At::NextCall { value_end, end },
            (
                At::CallClosed { value_end, end } | At::NextCall { value_end, end },
                Token::Tag(Tag::FunctionOpen),
            ) => {
                return Err(self.done(Some(value_end), end, true));
            }
            (At::Close { value_end, .. }, Token::Tag(Tag::CallClose)) => {
                return Err(self.done(value_end, end, false));
            }
            (At::Close { value_end, .. }, Token::Tag(Tag::FunctionClose)) => {
                self.mended(At::Close { end, value_end })
            }
            (At::Close { end, value_end }, token)
                if self.bare || matches!(token, Token::Tag(Tag::CallOpen | Tag::FunctionOpen)) =>
            {
                return Err(self.done(value_end, end, true));
            }
            (At::Close { value_end: None, .. }, _) => return Err(Step::Text { end: self.opened }),
            // Everything else is text of a value.
            (At::CallClosed { .. } | At::NextCall { .. }, token) => {
                self.may_end_otherwise = true;
                self.calls += usize::from(matches!(at, At::NextCall { .. }) && self.nesting);
                self.value_step(At::Value, token, from, end)?
            }
            (at, token) => self.value_step(at, token, from, end)?,
        })
    }

    /// The state after a token of a value, which may contain calls of its own; or the result, if the call ends with it.
    fn value_step(&mut self, at: At, token: Token, from: usize, end: usize) -> Result<At, Step> {
        Ok(match (at, token) {
            (At::InnerName, Token::Char(c)) if is_name(c) => At::InnerName,
            (At::InnerName, Token::Char('>')) => At::InnerOpen,
            (At::InnerOpen, Token::Tag(Tag::FunctionClose)) => At::Value,
            (At::InnerOpen, Token::Tag(Tag::ParameterOpen)) => {
                self.depth += 1;
                self.may_end_otherwise = true;
                At::Value
            }
            (_, Token::Tag(Tag::ParameterClose)) if self.depth == 0 => At::AfterValue { value_end: from },
            (_, Token::Tag(Tag::FunctionOpen)) if self.nesting => At::InnerName,
            (_, Token::Tag(Tag::FunctionClose)) if self.depth == 0 => At::Unclosed { value_end: from },
            (_, Token::Tag(Tag::FunctionClose)) => {
                self.depth -= 1;
                At::Value
            }
            (_, Token::Tag(Tag::CallOpen)) if self.nesting => {
                self.calls += 1;
                At::Value
            }
            (_, Token::Tag(Tag::CallClose)) if self.calls > 0 => {
                self.calls -= 1;
                At::Value
            }
            // No call is open in the value.
            (_, Token::Tag(Tag::CallClose)) if !self.nesting => return Err(self.done(Some(from), end, true)),
            // A function in the value may have been the call's end.
            (_, Token::Tag(Tag::CallClose)) if self.depth == 0 && !self.may_end_otherwise => {
                At::CallClosed { value_end: from, end }
            }
            _ => At::Value,
        })
    }

    /// The call ends at byte `end`.
    fn done(&mut self, value_end: Option<usize>, end: usize, is_mended: bool) -> Step {
        self.end_value(value_end);
        self.is_mended |= is_mended;
        Step::Done { end }
    }

    fn mended(&mut self, at: At) -> At {
        self.is_mended = true;
        at
    }

    /// Ends the last value here.
    fn end_value(&mut self, end: Option<usize>) {
        if let Some(end) = end {
            self.parameters.push((self.key.clone(), self.value_from..end));
        }
    }

    /// At the end of the answer: where the call ends, if it is complete.
    pub fn finish(&mut self) -> Option<usize> {
        let (end, value_end) = match self.at {
            At::Close { end, value_end } => (end, value_end),
            At::CallClosed { value_end, end } => (end, Some(value_end)),
            _ => return None,
        };
        self.is_mended = true;
        self.end_value(value_end);
        Some(end)
    }

    /// An unfinished call may be a finished one if functions inside values are not skipped.
    pub fn may_end_otherwise(&self) -> bool {
        self.may_end_otherwise
    }

    /// Whether a tag was missing or repeated.
    pub fn is_mended(&self) -> bool {
        self.is_mended
    }

    /// Whether the last token was certainly text of a value.
    pub fn in_value(&self) -> bool {
        matches!(self.at, At::Value)
    }

    /// The function's name, once it is complete.
    pub fn name<'a>(&self, held: &'a str) -> &'a str {
        attribute(&held[self.name.clone()])
    }

    /// The arguments of a complete call as a JSON object; `None` if a value that is no string holds tags instead. Of parameters with one
    /// name the last counts.
    pub fn arguments(&self, held: &str, schema: &Value) -> Option<String> {
        let mut members: Vec<(&str, String)> = Vec::new();
        let mut places = HashMap::new();
        let mut values = self.values(held, schema);
        add_missing(&mut values, schema);
        if values.iter().any(|(key, _)| key.is_empty()) {
            return None;
        }
        for (key, value) in values {
            let of = coerce::property(schema, schema, key);
            let value = coerce::value_without_tags(schema, of, value, &is_tag)?;
            let place = *places.entry(key).or_insert(members.len());
            match members.get_mut(place) {
                Some(member) => member.1 = value,
                None => members.push((key, value)),
            }
        }
        let members: Vec<String> =
            members.iter().map(|(k, v)| format!("{}: {v}", coerce::string(k))).collect();
        Some(format!("{{{}}}", members.join(", ")))
    }

    /// Keys and values, without the syntax's newlines. A value is cut where a parameter begins if the end before it was forgotten.
    fn values<'a>(&self, held: &'a str, schema: &'a Value) -> Vec<(&'a str, &'a str)> {
        let name = |key: &Range<usize>| attribute(&held[key.clone()]);
        let mut given: HashSet<&str> = self.parameters.iter().map(|(key, _)| name(key)).collect();
        let mut values = Vec::new();
        for (key, range) in &self.parameters {
            let (mut key, value) = (name(key), &held[range.clone()]);
            let closed = held[range.end..].starts_with(Tag::ParameterClose.text());
            // Parameters after a `<function=` belong to that function.
            let own = &value[..value.find(Tag::FunctionOpen.text()).unwrap_or(value.len())];
            let mut from = 0;
            for (at, _) in own.match_indices(LINE_OF_PARAMETER) {
                let name_and_rest = &value[at + LINE_OF_PARAMETER.len()..];
                let name_end = name_and_rest.find(['<', '>', '\n']).unwrap_or(0);
                let (name, rest) = name_and_rest.split_at(name_end);
                if rest.starts_with('>') && !given.contains(name) && coerce::declares(schema, name) {
                    given.insert(name);
                    let before = bare_value(key, &value[from..=at], false);
                    // A tag without a value is out of place.
                    if !before.is_empty() || coerce::declares(schema, key) {
                        values.push((key, before));
                    }
                    key = name;
                    from = value.len() - rest.len() + ">".len();
                }
            }
            values.push((key, own_value(key, bare_value(key, &value[from..], closed))));
        }
        values
    }
}

/// The tag before a value was forgotten: the value belongs to the only required parameter that is missing. It follows another value's
/// closing tag, or the function's name, and then it has no key.
fn add_missing<'a>(values: &mut Vec<(&'a str, &'a str)>, schema: &'a Value) {
    let keys: Vec<&str> = values.iter().map(|(key, _)| *key).collect();
    let Some(missing) = coerce::missing(schema, &keys) else { return };
    let close = Tag::ParameterClose.text();
    let mut unnamed = values.iter().enumerate().filter(|(_, (key, _))| key.is_empty());
    if let Some((at, _)) = unnamed.next() {
        if unnamed.next().is_none() {
            values[at].0 = missing;
        }
        return;
    }
    let mut all =
        values.iter().enumerate().filter_map(|(at, (_, value))| Some((at, value.split_once(close)?)));
    let (Some((at, (value, rest))), None) = (all.next(), all.next()) else { return };
    if rest.starts_with('\n') && !rest.contains(close) {
        values[at].1 = value.strip_suffix('\n').unwrap_or(value);
        values.insert(at + 1, (missing, rest.trim_matches('\n')));
    }
}

/// A value without its own opening tag, written twice.
fn own_value<'a>(key: &str, value: &'a str) -> &'a str {
    let rest = value.strip_prefix(Tag::ParameterOpen.text()).and_then(|v| v.strip_prefix(key));
    rest.and_then(|v| v.strip_prefix(">\n")).unwrap_or(value)
}

/// Whether a tag of a value is one of the syntax.
fn is_tag(tag: &str) -> bool {
    const WHOLE: [Tag; 4] = [Tag::ParameterClose, Tag::FunctionClose, Tag::CallClose, Tag::CallOpen];
    const BEGUN: [Tag; 2] = [Tag::FunctionOpen, Tag::ParameterOpen];
    WHOLE.iter().any(|t| t.text() == tag) || BEGUN.iter().any(|t| tag.starts_with(t.text()))
}

/// Whether a line is the closing tag of XML for this key.
fn is_end_of(key: &str, line: &str) -> bool {
    line.strip_prefix("</").and_then(|l| l.strip_suffix('>')) == Some(key)
}

/// A value without one newline on either side; an unclosed one also without a last line that was meant to close it.
fn bare_value<'a>(key: &str, value: &'a str, closed: bool) -> &'a str {
    let value = value.strip_prefix('\n').unwrap_or(value);
    let value = value.strip_suffix('\n').unwrap_or(value);
    match value.rsplit_once('\n') {
        Some((value, last)) if !closed && (last.starts_with("</parameter") || is_end_of(key, last)) => value,
        _ => value,
    }
}

/// A name that was written like an attribute: `name="..."`.
fn attribute(name: &str) -> &str {
    name.strip_prefix("name=\"").and_then(|name| name.strip_suffix('"')).unwrap_or(name)
}

/// Whether a character may be part of a name in a tag.
fn is_name(c: char) -> bool {
    !matches!(c, '<' | '>' | '\n')
}
