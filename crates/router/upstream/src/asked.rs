//! Gives a forwarded answer the model's name that its client asked for, as in translated answers.
//!
//! The provider's name is learned from the first piece that has one; where the two are the same, nothing is copied. In JSON, quotes within
//! texts are escaped, so the bytes of a field do not occur in a text.

use bytes::Bytes;
use memchr::memmem;
use serde_json::Value;

const FIELD: &[u8] = b"\"model\"";

/// Replaces the model's name.
#[derive(Debug)]
pub(crate) struct Asked {
    /// The field with the client's name.
    name: Vec<u8>,
    /// The provider's field, once it is known. Empty: there is nothing to replace.
    theirs: Option<Vec<u8>>,
}

impl Asked {
    /// For a client that asked for `name`.
    pub(crate) fn new(name: &str) -> Self {
        let name = [FIELD, b":", Value::from(name).to_string().as_bytes()].concat();
        Self { name, theirs: None }
    }

    /// A piece of the answer: complete events, or all of it.
    pub(crate) fn apply(&mut self, piece: Bytes) -> Bytes {
        if self.theirs.is_none() {
            let theirs = field(&piece).map(<[u8]>::to_vec);
            self.theirs = theirs.map(|theirs| if theirs == self.name { Vec::new() } else { theirs });
        }
        let Some(theirs) = self.theirs.as_ref().filter(|theirs| !theirs.is_empty()) else { return piece };
        let mut out = Vec::new();
        let mut from = 0;
        for at in memmem::find_iter(&piece, theirs) {
            out.extend_from_slice(&piece[from..at]);
            out.extend_from_slice(&self.name);
            from = at + theirs.len();
        }
        if from == 0 {
            return piece;
        }
        out.extend_from_slice(&piece[from..]);
        out.into()
    }
}

/// The first field `"model": "..."`.
fn field(json: &[u8]) -> Option<&[u8]> {
    memmem::find_iter(json, FIELD).find_map(|at| {
        let rest = &json[at + FIELD.len()..];
        let colon = rest.iter().position(|b| !b.is_ascii_whitespace()).filter(|n| rest[*n] == b':')? + 1;
        let quote = colon + rest[colon..].iter().position(|b| !b.is_ascii_whitespace())?;
        if rest[quote] != b'"' {
            return None;
        }
        let end = quote + 1 + rest[quote + 1..].iter().position(|b| matches!(b, b'"' | b'\\'))?;
        (rest[end] == b'"').then(|| &json[at..at + FIELD.len() + end + 1])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(name: &str, pieces: &[&str]) -> String {
        let mut asked = Asked::new(name);
        let all = pieces.iter().map(|p| asked.apply(Bytes::copy_from_slice(p.as_bytes())));
        all.map(|b| String::from_utf8(b.to_vec()).expect("text")).collect()
    }

    #[test]
    fn the_name_is_replaced_where_it_is_a_field() {
        for (said, expected) in [
            (r#"{"id":"x","model":"gpt-4o-2024","c":1}"#, r#"{"id":"x","model":"m","c":1}"#),
            (
                r#"{"model" : "theirs","t":"\"model\":\"theirs\""}"#,
                r#"{"model":"m","t":"\"model\":\"theirs\""}"#,
            ),
            (r#"{"message":{"model":"a b"}}"#, r#"{"message":{"model":"m"}}"#),
            (r#"{"model":null,"x":1}"#, r#"{"model":null,"x":1}"#),
            (r#"{"model"#, r#"{"model"#),
            (r#"{"model":"#, r#"{"model":"#),
            (r#"{"model":"open"#, r#"{"model":"open"#),
            ("", ""),
        ] {
            assert_eq!(apply("m", &[said]), expected, "{said}");
        }
        assert_eq!(apply("a\"b", &[r#"{"model":"x"}"#]), r#"{"model":"a\"b"}"#);
    }

    #[test]
    fn each_event_of_a_stream_has_it() {
        let event = |name: &str| format!("data: {{\"model\":\"{name}\",\"choices\":[]}}\n\n");
        let said = format!("{}{}", event("theirs"), event("theirs"));
        assert_eq!(
            apply("m", &[": ping\n\n", &said, &event("theirs")]),
            format!(": ping\n\n{}", event("m").repeat(3))
        );
        assert_eq!(apply("theirs", &[&said]), said);
    }
}
