//! Reads a long JSON object as it is forwarded: whether it is complete, and its short members, among which is the token count.

use memchr::memchr2;
use octet_api::ApiError;

/// Maximum size of a member that is kept, and of all together.
const MEMBER_BYTES_MAX: usize = 16 << 10;
const KEPT_BYTES_MAX: usize = 256 << 10;
/// Maximum depth, as of parsed JSON.
const DEPTH_MAX: usize = 128;

/// The state of an object that arrives in pieces.
#[derive(Debug, Default)]
pub(crate) struct Skim {
    /// Open brackets.
    open: Vec<u8>,
    in_string: bool,
    /// The next byte of the string is escaped.
    escaped: bool,
    /// The current member of the outermost object, and whether it is too long to be kept.
    member: Vec<u8>,
    is_long: bool,
    /// The short members, each with a comma before it.
    kept: Vec<u8>,
    is_over: bool,
}

impl Skim {
    /// Reads the next bytes.
    ///
    /// # Errors
    /// They do not continue a JSON object.
    pub(crate) fn push(&mut self, mut bytes: &[u8]) -> Result<(), ApiError> {
        while !bytes.is_empty() {
            let used = if self.in_string { self.string(bytes) } else { self.plain(bytes[0])? };
            bytes = &bytes[used..];
        }
        Ok(())
    }

    /// Reads a part of a string, up to its end; returns its length.
    fn string(&mut self, bytes: &[u8]) -> usize {
        let used = match memchr2(b'"', b'\\', bytes) {
            _ if std::mem::take(&mut self.escaped) => 1,
            Some(at) => {
                (self.escaped, self.in_string) = (bytes[at] == b'\\', bytes[at] == b'\\');
                at + 1
            }
            None => bytes.len(),
        };
        self.keep(&bytes[..used]);
        used
    }

    fn plain(&mut self, byte: u8) -> Result<usize, ApiError> {
        if byte.is_ascii_whitespace() {
            return Ok(1);
        }
        let fits = match (byte, self.open.as_slice()) {
            _ if self.is_over => false,
            (b'{', []) => return Ok(self.begin(byte)),
            (_, []) => false,
            (b',', [_]) => return Ok(self.member_ends()),
            (b'}', [_]) => {
                self.is_over = true;
                self.open.clear();
                return Ok(self.member_ends());
            }
            (b'{' | b'[', open) => open.len() < DEPTH_MAX,
            (b'}', [.., last]) => *last == b'{',
            (b']', [.., last]) => *last == b'[',
            _ => true,
        };
        if !fits {
            return Err(broken());
        }
        match byte {
            b'{' | b'[' => drop(self.begin(byte)),
            b'}' | b']' => drop(self.open.pop()),
            b'"' => self.in_string = true,
            _ => {}
        }
        self.keep(&[byte]);
        Ok(1)
    }

    fn begin(&mut self, bracket: u8) -> usize {
        self.open.push(bracket);
        1
    }

    fn keep(&mut self, bytes: &[u8]) {
        self.is_long |= self.member.len() + bytes.len() > MEMBER_BYTES_MAX;
        if !self.is_long {
            self.member.extend_from_slice(bytes);
        }
    }

    fn member_ends(&mut self) -> usize {
        if !self.is_long && !self.member.is_empty() && self.kept.len() + self.member.len() < KEPT_BYTES_MAX {
            self.kept.push(b',');
            self.kept.append(&mut self.member);
        }
        self.member.clear();
        self.is_long = false;
        1
    }

    /// The object's short members, at its end.
    ///
    /// # Errors
    /// It is not complete.
    pub(crate) fn end(&self) -> Result<Vec<u8>, ApiError> {
        if !self.is_over {
            return Err(broken());
        }
        Ok([b"{", self.kept.strip_prefix(b",").unwrap_or(&self.kept), b"}"].concat())
    }
}

fn broken() -> ApiError {
    ApiError::upstream("the answer ended before it was complete, or is not a JSON object")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn skim(text: &str, piece: usize) -> Result<Value, ApiError> {
        let mut skim = Skim::default();
        text.as_bytes().chunks(piece).try_for_each(|piece| skim.push(piece))?;
        Ok(serde_json::from_slice(&skim.end()?).expect("the members of valid JSON are valid"))
    }

    #[test]
    fn short_members_are_kept_and_long_ones_left_out() {
        let long = "x\\\"{[".repeat(20_000);
        let text = format!(
            " {{\"id\" : \"a,}}b\", \"choices\": [{{\"content\": \"{long}\"}}], \"usage\":\n {{\"prompt_tokens\": 3, \"d\": [1, {{}}]}}, \"n\": null }} \n"
        );
        for piece in [1, 7, 4096, usize::MAX] {
            let expected = json!({"id": "a,}b", "usage": {"prompt_tokens": 3, "d": [1, {}]}, "n": null});
            assert_eq!(skim(&text, piece).unwrap(), expected, "{piece}");
        }
        assert_eq!(skim("{}", 1).unwrap(), json!({}));
        for broken in
            ["", "[]", "{", "{\"a\": 1", "{\"a\": [}", "{} {}", "{\"a\": \"", "x", &"{\"a\":".repeat(200)]
        {
            assert!(skim(broken, 3).is_err(), "{broken}");
        }
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<i32>().prop_map(Value::from),
            "[ -~\\n\\\\\"{}\\[\\],:é]{0,9}".prop_map(Value::from)
        ];
        leaf.prop_recursive(3, 20, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::hash_map("[a-z\\\\\"{]{0,4}", inner, 0..4)
                    .prop_map(|m| m.into_iter().collect()),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_object_is_read_as_it_is(members in prop::collection::hash_map("[a-z\\\\\"{]{0,4}", value(), 0..6), piece in 1usize..9, pretty: bool) {
            let value: Value = members.into_iter().collect();
            let text = if pretty { format!("{value:#}") } else { value.to_string() };
            prop_assert_eq!(skim(&text, piece).unwrap(), value);
            // What is cut off is not complete.
            for end in text.char_indices().map(|(at, _)| at) {
                prop_assert!(skim(&text[..end], piece).is_err());
            }
        }

        #[test]
        fn any_bytes_are_harmless(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let mut skim = Skim::default();
            if skim.push(&bytes).is_ok() && let Ok(kept) = skim.end() {
                prop_assert!(kept.len() <= bytes.len());
            }
        }
    }
}
