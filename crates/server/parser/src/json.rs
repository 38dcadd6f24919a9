//! Scans JSON incrementally: finds the end of an object, and detects invalid JSON at once.

use serde_json::value::RawValue;

/// Maximum nesting; below serde_json's limit, so that a scanned value, and an object around it, can be parsed.
const DEPTH_MAX: usize = 100;

/// The result of a character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    More,
    /// The object or array is complete.
    Done,
    /// The text is not JSON.
    Bad,
    /// The value was complete before this character. (JSON itself only uses `Done`.)
    Before,
}

/// What may come next, besides white space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    Key,
    Colon,
    Value,
    Comma,
    /// More of a string, a number or a word.
    Nothing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expect {
    Value,
    ValueOrClose,
    Key,
    KeyOrClose,
    Colon,
    CommaOrClose,
    Text {
        key: bool,
    },
    Escape {
        key: bool,
    },
    Hex {
        key: bool,
        left: u8,
    },
    /// Its digits are checked by serde_json only.
    Number,
    /// The rest of `true`, `false` or `null`.
    Word(&'static str),
}

/// Scans one object or array from its first character. Accepts all JSON, and of other texts only odd numbers and unpaired surrogates.
#[derive(Debug)]
pub struct Scanner {
    /// The closing character of each open container.
    open: Vec<char>,
    expect: Expect,
}

impl Scanner {
    pub fn new() -> Self {
        Self { open: Vec::new(), expect: Expect::Value }
    }

    pub fn step(&mut self, c: char) -> Progress {
        if self.expect == Expect::Number {
            if matches!(c, '0'..='9' | '+' | '-' | '.' | 'e' | 'E') {
                return Progress::More;
            }
            self.expect = Expect::CommaOrClose;
        }
        let space = matches!(c, ' ' | '\t' | '\n' | '\r');
        let next = match (self.expect, c) {
            (Expect::Text { key }, '"') => self.after_text(key),
            (Expect::Text { key }, '\\') => Expect::Escape { key },
            (Expect::Text { key }, ' '..) => Expect::Text { key },
            (Expect::Escape { key }, 'u') => Expect::Hex { key, left: 4 },
            (Expect::Escape { key }, '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't') => Expect::Text { key },
            (Expect::Hex { key, left: 1 }, _) if c.is_ascii_hexdigit() => Expect::Text { key },
            (Expect::Hex { key, left }, _) if c.is_ascii_hexdigit() => Expect::Hex { key, left: left - 1 },
            (Expect::Word(rest), _) if rest.starts_with(c) => match &rest[c.len_utf8()..] {
                "" => Expect::CommaOrClose,
                rest => Expect::Word(rest),
            },
            (Expect::Text { .. } | Expect::Escape { .. } | Expect::Hex { .. } | Expect::Word(_), _) => {
                return Progress::Bad;
            }
            _ if space && !self.open.is_empty() => self.expect,
            (Expect::Value | Expect::ValueOrClose, '{' | '[') if self.open.len() < DEPTH_MAX => {
                self.open.push(if c == '{' { '}' } else { ']' });
                if c == '{' { Expect::KeyOrClose } else { Expect::ValueOrClose }
            }
            _ if self.open.is_empty() => return Progress::Bad,
            (Expect::Value | Expect::ValueOrClose, '"') => Expect::Text { key: false },
            (Expect::Value | Expect::ValueOrClose, '-' | '0'..='9') => Expect::Number,
            (Expect::Value | Expect::ValueOrClose, 't') => Expect::Word("rue"),
            (Expect::Value | Expect::ValueOrClose, 'f') => Expect::Word("alse"),
            (Expect::Value | Expect::ValueOrClose, 'n') => Expect::Word("ull"),
            (Expect::Key | Expect::KeyOrClose, '"') => Expect::Text { key: true },
            (Expect::Colon, ':') => Expect::Value,
            (Expect::CommaOrClose, ',') if self.open.last() == Some(&'}') => Expect::Key,
            (Expect::CommaOrClose, ',') => Expect::Value,
            (Expect::CommaOrClose | Expect::KeyOrClose | Expect::ValueOrClose, _)
                if self.open.last() == Some(&c) =>
            {
                self.open.pop();
                if self.open.is_empty() {
                    return Progress::Done;
                }
                Expect::CommaOrClose
            }
            _ => return Progress::Bad,
        };
        self.expect = next;
        Progress::More
    }

    /// Number of open containers.
    pub fn depth(&self) -> usize {
        self.open.len()
    }

    /// What may come next.
    pub fn expected(&self) -> Expected {
        match self.expect {
            Expect::Key | Expect::KeyOrClose => Expected::Key,
            Expect::Colon => Expected::Colon,
            Expect::Value | Expect::ValueOrClose => Expected::Value,
            Expect::CommaOrClose => Expected::Comma,
            Expect::Text { .. }
            | Expect::Escape { .. }
            | Expect::Hex { .. }
            | Expect::Number
            | Expect::Word(_) => Expected::Nothing,
        }
    }

    fn after_text(&self, key: bool) -> Expect {
        if key { Expect::Colon } else { Expect::CommaOrClose }
    }
}

/// Whether a text is a JSON object that is not nested too deep. Numbers may be of any size.
pub fn is_object(text: &str) -> bool {
    let mut scanner = Scanner::new();
    let is_whole = text.trim_end().chars().all(|c| scanner.step(c) != Progress::Bad) && scanner.depth() == 0;
    is_whole
        && text.starts_with('{')
        && serde_json::from_str::<&RawValue>(text).is_ok()
        && has_paired_surrogates(text)
}

/// Whether each half of a character in JSON (`\ud83d`) has the other half behind it.
fn has_paired_surrogates(json: &str) -> bool {
    let (mut rest, mut is_open) = (json, false);
    while let Some((before, escape)) = rest.split_once('\\') {
        let unit = escape.strip_prefix('u').and_then(|hex| u16::from_str_radix(hex.get(..4)?, 16).ok());
        let closes = matches!(unit, Some(0xDC00..=0xDFFF));
        if closes != is_open || is_open && !before.is_empty() {
            return false;
        }
        is_open = matches!(unit, Some(0xD800..=0xDBFF));
        // The character behind the backslash is one byte in valid JSON.
        rest = escape.get(if unit.is_some() { "uXXXX".len() } else { 1 }..).unwrap_or_default();
    }
    !is_open
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    /// Where the text stops being the beginning of JSON, or is complete.
    fn scan(text: &str) -> (Progress, usize) {
        let mut s = Scanner::new();
        for (at, c) in text.char_indices() {
            match s.step(c) {
                Progress::More => {}
                end => return (end, at + c.len_utf8()),
            }
        }
        (Progress::More, text.len())
    }

    #[test]
    fn invalid_json_is_detected_early() {
        for (text, at) in [
            ("x", 1),
            ("\"a\"", 1),
            ("{x", 2),
            ("{\"a\" 1", 6),
            ("{\"a\":1 2", 8),
            ("{\"a\":\"\n", 7),
            ("{\"a\":\"\\x", 8),
            ("{\"a\":\"\\u12g", 11),
            ("[1}", 3),
            ("[tru ", 5),
            ("[,", 2),
            ("[1,]", 4),
            ("{\"a\":1,}", 8),
            ("{1", 2),
        ] {
            assert_eq!(scan(text), (Progress::Bad, at), "{text}");
        }
        assert_eq!(scan(&"[".repeat(101)), (Progress::Bad, 101));
        let deep = format!("{}{}", "[".repeat(100), "]".repeat(100));
        assert_eq!(scan(&deep), (Progress::Done, 200));
        assert!(serde_json::from_str::<Value>(&format!("{{\"a\": {deep}}}")).is_ok());
    }

    #[test]
    fn objects_may_have_any_number_and_whole_characters() {
        for text in ["{}", "{\"a\": 1e999}", r#"{"a": "\ud83d\ude00 \\ud83d \n\ud83d\ude00"}"#] {
            assert!(is_object(text), "{text}");
        }
        for text in [
            "",
            "[]",
            "{} {}",
            "{\"a\": 01}",
            r#"{"a": "\ud83d"}"#,
            r#"{"a": "\ude00"}"#,
            r#"{"a": "\ud83d \ude00"}"#,
            r#"{"a": "\ud83d\ud83d\ude00"}"#,
        ] {
            assert!(!is_object(text), "{text}");
        }
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            ".{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::vec((".{0,4}", inner), 0..5).prop_map(|m| m.into_iter().collect()),
            ]
        })
    }

    proptest! {
        #[test]
        fn json_ends_where_serde_json_says(v in value(), pretty: bool, rest in ".{0,4}") {
            let v = Value::Array(vec![v]);
            let text = if pretty { format!("{v:#}") } else { v.to_string() };
            prop_assert_eq!(scan(&format!("{text}{rest}")), (Progress::Done, text.len()));
        }

        #[test]
        fn no_prefix_of_json_is_refused(text in r#"[\[{][\[\]{}",: 01e.\\untrfalse-]{0,24}"#) {
            let (end, at) = scan(&text);
            let mut values = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
            match values.next() {
                Some(Ok(_)) => prop_assert_eq!((end, at), (Progress::Done, values.byte_offset())),
                // Of an escape's four digits serde_json looks at none before the last.
                Some(Err(e)) if e.is_eof() && !text.contains("\\u") => prop_assert_eq!(end, Progress::More, "{}", e),
                _ => {}
            }
        }
    }
}
