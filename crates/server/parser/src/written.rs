//! Arguments in Python's or Gemma's syntax: finds their end, and converts them to JSON.
//!
//! Gemma's marks around a text may come twice, or also stand for quotation marks within it; the first may be missing. Keys may also end
//! with `=`. Where a text could end in several places, nothing is read.

use std::collections::HashMap;

use serde_json::Value;
use serde_json::value::RawValue;

use crate::json::Progress;
use crate::syntax::tags;

/// Gemma's quotation mark.
const QUOTE: &str = "<|\"|>";
/// Characters after a quoted string: models also write quotation marks within strings.
const ENDS: [char; 5] = [',', ')', ']', '}', ':'];
/// Maximum nesting of containers.
const DEPTH_MAX: usize = 64;

/// Finds the bracket after the last argument.
#[derive(Debug)]
pub struct Scan {
    gemma: bool,
    /// The quotation mark of the current string.
    quote: Option<char>,
    escaped: bool,
    /// The quotation mark that may have ended a string: it did if a separator follows.
    ended: Option<char>,
    depth: usize,
    /// The last characters, for Gemma's quotation marks.
    last: String,
    /// The last character outside of texts, but white space.
    before: char,
    /// The current text may be a key.
    may_be_key: bool,
    /// The call is between round brackets, as in Python, though its syntax has others.
    is_round: bool,
}

impl Scan {
    /// `is_round` if Gemma's arguments are between round brackets.
    pub fn new(gemma: bool, is_round: bool) -> Self {
        Self {
            gemma,
            quote: None,
            escaped: false,
            ended: None,
            depth: 0,
            last: String::new(),
            before: ',',
            may_be_key: false,
            is_round,
        }
    }

    /// One of Gemma's marks. Behind a bare value it ends a text whose first mark is missing.
    fn mark(&mut self) {
        self.last.clear();
        if self.quote.is_some() || !self.is_before_value() {
            (self.quote, self.ended) = (None, Some('<'));
        } else {
            self.quote = Some('<');
            self.may_be_key = matches!(self.before, ',' | '{' | '(');
        }
    }

    /// Whether a key or a value may begin here.
    fn is_before_value(&self) -> bool {
        matches!(self.before, ',' | ':' | '=' | '[' | '{' | '(')
    }

    /// Whether a character ends the text before it, which this quotation mark may have ended.
    fn is_end(&self, quote: char, c: char) -> bool {
        match (quote, c) {
            ('<', ':' | '=') => self.may_be_key,
            ('<', ')') => self.is_round,
            _ => ENDS.contains(&c),
        }
    }

    pub fn step(&mut self, c: char) -> Progress {
        if self.gemma {
            self.last.push(c);
            if !QUOTE.starts_with(&self.last) {
                self.last.clear();
                if c == '<' {
                    self.last.push(c);
                }
            }
            if self.last == QUOTE && self.quote.is_none_or(|quote| quote == '<') {
                self.mark();
                return Progress::More;
            }
            if self.quote == Some('<') || self.quote.is_none() && self.last.len() > 1 {
                return Progress::More;
            }
        }
        if let Some(quote) = self.quote {
            match c {
                _ if self.escaped => self.escaped = false,
                '\\' => self.escaped = true,
                c if c == quote => (self.quote, self.ended) = (None, Some(c)),
                _ => {}
            }
            return Progress::More;
        }
        if let Some(quote) = self.ended.filter(|_| !c.is_whitespace()) {
            self.ended = None;
            if !self.is_end(quote, c) {
                self.quote = Some(quote); // an apostrophe within a text
                self.escaped = c == '\\' && quote != '<';
                return Progress::More;
            }
        }
        match c {
            '\'' | '"' if !self.gemma || self.is_before_value() => self.quote = Some(c),
            '`' if self.gemma && self.is_before_value() => self.quote = Some(c),
            '(' | '[' | '{' => self.depth += 1,
            ')' | ']' | '}' if self.depth == 0 => return Progress::Before,
            ')' | ']' | '}' => self.depth -= 1,
            _ => {}
        }
        if !c.is_whitespace() && self.last.is_empty() {
            self.before = c;
        }
        if self.depth > DEPTH_MAX { Progress::Bad } else { Progress::More }
    }

    /// The arguments as a JSON object; `None` if invalid.
    pub fn object(&self, text: &str) -> Option<String> {
        object(text, self.gemma)
    }
}

/// The arguments as a JSON object; `None` if invalid.
fn object(text: &str, gemma: bool) -> Option<String> {
    let mut reader = Reader { rest: text, gemma };
    let members = reader.members(None, 0)?;
    reader.space();
    reader.rest.is_empty().then_some(members)
}

/// The members of an object as JSON. Of those with one key the last counts.
#[derive(Default)]
struct Members {
    all: Vec<(String, String)>,
    places: HashMap<String, usize>,
}

impl Members {
    fn put(&mut self, key: String, value: String) {
        match self.places.get(&key) {
            Some(at) => self.all[*at].1 = value,
            None => {
                self.places.insert(key.clone(), self.all.len());
                self.all.push((key, value));
            }
        }
    }

    fn json(&self) -> String {
        let all = self.all.iter().map(|(key, value)| format!("{}:{value}", Value::from(key.as_str())));
        format!("{{{}}}", all.collect::<Vec<_>>().join(","))
    }
}

struct Reader<'a> {
    rest: &'a str,
    gemma: bool,
}

impl Reader<'_> {
    fn space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn accept(&mut self, text: &str) -> bool {
        self.space();
        match self.rest.strip_prefix(text) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    /// Keys and values up to `end`, which is consumed, or to the text's end, as a JSON object.
    fn members(&mut self, end: Option<&str>, depth: usize) -> Option<String> {
        let mut out = Members::default();
        loop {
            self.space();
            if end.map_or(self.rest.is_empty(), |e| self.accept(e)) {
                return Some(out.json());
            }
            if !out.all.is_empty() && !self.accept(",") {
                return None;
            }
            if end.map_or(self.rest.is_empty(), |e| self.accept(e)) {
                return Some(out.json());
            }
            let is_call = end.is_none() && !self.gemma;
            self.space();
            let signs: &[char] = match is_call {
                true => &['='],
                false if self.gemma => &[':', '='],
                false => &[':'],
            };
            let key = if self.is_quoted() {
                self.text(Place::Key)?
            } else {
                let at = self.rest.find(signs)?;
                let key = self.rest[..at].trim().to_string();
                self.rest = &self.rest[at..];
                key
            };
            self.space();
            self.rest = self.rest.strip_prefix(signs)?;
            let value = self.value(depth + 1, Place::Member)?;
            out.put(key, value);
        }
    }

    /// A value as JSON. Numbers stay as written.
    fn value(&mut self, depth: usize, place: Place) -> Option<String> {
        if depth > DEPTH_MAX {
            return None;
        }
        self.space();
        if self.is_quoted() {
            return self.text(place).map(|text| Value::from(text).to_string());
        }
        if self.accept("{") {
            return self.members(Some("}"), depth);
        }
        if self.accept("[") {
            let mut items = Vec::new();
            loop {
                if self.accept("]") {
                    return Some(format!("[{}]", items.join(",")));
                }
                if !items.is_empty() && !self.accept(",") {
                    return None;
                }
                if self.accept("]") {
                    return Some(format!("[{}]", items.join(",")));
                }
                items.push(self.value(depth + 1, Place::Item)?);
            }
        }
        let at = self.rest.find([',', ']', '}']).unwrap_or(self.rest.len());
        let word = self.rest[..at].trim();
        let value = match word {
            "True" | "true" => "true",
            "False" | "false" => "false",
            "None" | "null" => "null",
            number if number.starts_with(|c: char| c == '-' || c.is_ascii_digit()) => {
                serde_json::from_str::<&RawValue>(number).ok()?.get()
            }
            _ if self.gemma => return self.unopened_text(place).map(|text| Value::from(text).to_string()),
            _ => return None,
        };
        self.rest = &self.rest[at..];
        Some(value.into())
    }

    /// A text whose first mark is missing.
    fn unopened_text(&mut self, place: Place) -> Option<String> {
        let (text, rest) = self.rest.split_once(QUOTE)?;
        let is_text = !text.trim_end().ends_with([':', '=', ',', '[', '{', '(']) && ends(rest, place);
        // It could end before each of them, too.
        let is_text = is_text && !text.match_indices(',').any(|(at, _)| ends(&text[at..], place));
        self.rest = rest;
        Some(text.to_string()).filter(|text| is_text && !has_token(text))
    }

    /// A text between Gemma's marks.
    fn marked_text(&mut self, place: Place) -> Option<String> {
        let text = self.rest.strip_prefix(QUOTE)?;
        let mut from = 0;
        loop {
            let at = from + text[from..].find(QUOTE)?;
            from = at + QUOTE.len();
            if ends(&text[from..], place) {
                self.rest = &text[from..];
                return inner_text(&text[..at]);
            }
        }
    }

    /// Whether a text comes: Gemma has quotation marks of its own, and sometimes writes those of other languages.
    fn is_quoted(&self) -> bool {
        self.rest.starts_with(QUOTE)
            || self.rest.starts_with(['\'', '"'])
            || self.gemma && self.rest.starts_with('`')
    }

    fn text(&mut self, place: Place) -> Option<String> {
        if self.rest.starts_with(QUOTE) {
            return self.marked_text(place);
        }
        let quote = self.rest.chars().next()?;
        let mut out = String::new();
        let mut chars = self.rest.char_indices().skip(1);
        while let Some((at, c)) = chars.next() {
            match c {
                '\\' => {
                    let (_, escaped) = chars.next()?;
                    match escaped {
                        'n' => out.push('\n'),
                        't' => out.push('\t'),
                        'r' => out.push('\r'),
                        'x' | 'u' | 'U' => {
                            let digits = match escaped {
                                'x' => 2,
                                'u' => 4,
                                _ => 8,
                            };
                            let hex: String = chars.by_ref().take(digits).map(|(_, c)| c).collect();
                            out.push(char::from_u32(u32::from_str_radix(&hex, 16).ok()?)?);
                        }
                        '\\' | '\'' | '"' => out.push(escaped),
                        other => out.extend(['\\', other]),
                    }
                }
                c if c == quote && ends_text(&self.rest[at + c.len_utf8()..]) => {
                    self.rest = &self.rest[at + c.len_utf8()..];
                    return Some(out);
                }
                c => out.push(c),
            }
        }
        None
    }
}

/// Where a text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Key,
    /// The value of a key.
    Member,
    /// In a list.
    Item,
}

/// Whether one of Gemma's marks, followed by `rest`, ends its text.
fn ends(rest: &str, place: Place) -> bool {
    let rest = rest.trim_start();
    let next = rest.chars().next();
    match (place, next) {
        (Place::Key, _) => matches!(next, Some(':' | '=')),
        (Place::Member, Some(',')) => {
            let next = rest[1..].trim_start();
            let sign = next.find([':', '=', ',', '[', ']', '{', '}']).map(|at| &next[at..]);
            next.is_empty() || next.starts_with([']', '}']) || sign.is_some_and(|s| s.starts_with([':', '=']))
        }
        (Place::Member | Place::Item, _) => matches!(next, None | Some(',' | ']' | '}')),
    }
}

/// What is between the first and the last of Gemma's marks. Others are repeated ones, or the text's own quotation marks; `None` if one may
/// begin another value.
fn inner_text(text: &str) -> Option<String> {
    let mut inner = text;
    if let Some((before, rest)) = inner.split_once(QUOTE)
        && before.trim().is_empty()
    {
        inner = rest;
    }
    if let Some((rest, behind)) = inner.rsplit_once(QUOTE)
        && behind.trim().is_empty()
        && !rest.contains(QUOTE)
    {
        inner = rest;
    }
    let begins_value = |before: &str| before.trim_end().ends_with([',', ':', '=', '[', '{']);
    let last = inner.rfind(QUOTE).unwrap_or(0);
    if inner[..last].split(QUOTE).any(begins_value)
        || inner.contains(QUOTE) && has_token(&inner.replace(QUOTE, ""))
    {
        return None;
    }
    Some(inner.replace(QUOTE, "\""))
}

/// Whether a text has one of Gemma's tags.
fn has_token(text: &str) -> bool {
    tags(text).any(|tag| tag.contains('|'))
}

/// Whether a quotation mark followed by `rest` ends its string.
fn ends_text(rest: &str) -> bool {
    rest.trim_start().chars().next().is_none_or(|c| ENDS.contains(&c))
}

/// A value in Python's syntax as JSON; `None` if invalid.
pub fn python_value(text: &str) -> Option<String> {
    let mut reader = Reader { rest: text, gemma: false };
    let value = reader.value(0, Place::Item)?;
    reader.rest.trim().is_empty().then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read() {
        let python = |text| object(text, false);
        let json = |text: &str| Some(text.to_string());
        assert_eq!(python("city='A', n=-1.5, deep=True"), json(r#"{"city":"A","n":-1.5,"deep":true}"#));
        assert_eq!(
            python(r#"a=["x", 'y\'s', None], b={'k': {"l": []}}"#),
            json(r#"{"a":["x","y's",null],"b":{"k":{"l":[]}}}"#)
        );
        assert_eq!(python(""), json("{}"));
        assert_eq!(
            python("a=123456789012345678901234567890, b=[1e400, 0.1000000000000000055], a=9007199254740993"),
            json(r#"{"a":9007199254740993,"b":[1e400,0.1000000000000000055]}"#)
        );
        assert_eq!(python("a=01"), None);
        assert_eq!(python("f(x)"), None);
        assert_eq!(python("'positional'"), None);
        assert_eq!(python("a='it's \"so\"', b=['x','y']"), json(r#"{"a":"it's \"so\"","b":["x","y"]}"#));
        let gemma = |text| object(text, true);
        assert_eq!(
            gemma(r#"city:<|"|>it's {x}<|"|>,deep:true,paths:[<|"|>a<|"|>,1],o:{k:<|"|>v<|"|>}"#),
            json(r#"{"city":"it's {x}","deep":true,"paths":["a",1],"o":{"k":"v"}}"#)
        );
    }
}
