//! `context` of `/api/generate`: the conversation so far as a list of numbers, which clients send back to continue it. Written and read
//! here; to clients the numbers are opaque.
//!
//! Ollama's numbers are the tokens of the prompt. Here they are the text, because this server keeps nothing between the requests, and the
//! model may be another server's: [`MARK`], the length of a JSON text in bytes, and three of its bytes per number. The JSON text is a list of
//! `[role, text]`.

use crate::ApiError;
use crate::core::{GenerateRequest, Message, Part, Role};
use crate::json::{Field, Result};

/// The first number: beyond all tokens, so that no other server's list begins with it. Its last byte is the version of this encoding.
const MARK: u32 = 0x0c7e_7001;
/// Bytes per number: fewer than four, so that clients which read signed or floating-point numbers lose nothing.
const GROUP: usize = 3;

const ROLES: [(&str, Role); 3] =
    [("system", Role::System), ("user", Role::User), ("assistant", Role::Assistant)];

/// A conversation and its answer, which is collected as it is written.
#[derive(Debug)]
pub(super) struct History {
    turns: Vec<(&'static str, String)>,
    answer: String,
}

impl History {
    /// The conversation of a request whose answer reports it.
    pub(super) fn of(request: &GenerateRequest) -> Option<Self> {
        let chat = request.chat().filter(|_| request.report.conversation)?;
        let turn = |message: &Message| {
            let (name, _) = ROLES.iter().find(|(_, role)| *role == message.role)?;
            let texts: Vec<&str> = message.content.iter().filter_map(Part::as_text).collect();
            Some((*name, texts.join("\n")))
        };
        Some(Self { turns: chat.messages.iter().filter_map(turn).collect(), answer: String::new() })
    }

    /// More of the answer.
    pub(super) fn push(&mut self, text: &str) {
        self.answer.push_str(text);
    }

    /// The numbers.
    pub(super) fn encode(mut self) -> Vec<u32> {
        self.turns.push(("assistant", self.answer));
        let text = crate::json::to_bytes(&self.turns);
        // A text of 4 GiB exceeds every context.
        let len = u32::try_from(text.len()).unwrap_or(u32::MAX);
        let group = |bytes: &[u8]| bytes.iter().rev().fold(0, |n, byte| n << 8 | u32::from(*byte));
        [MARK, len].into_iter().chain(text.chunks(GROUP).map(group)).collect()
    }
}

/// The messages of a `context`; none if it is empty.
///
/// # Errors
/// If this server did not write it: the tokens of another server mean nothing here, and without them the conversation would be lost.
pub(super) fn messages(f: Field) -> Result<Vec<Message>> {
    let foreign = || {
        let what =
            "'context' was not returned by this server: send the conversation as messages to /api/chat";
        ApiError::invalid("context", what)
    };
    let numbers = f.list(|n| n.count(0..=u32::MAX))?;
    if numbers.is_empty() {
        return Ok(Vec::new());
    }
    let turns = decode(&numbers).ok_or_else(foreign)?;
    let message = |(name, text): (String, String)| {
        let (_, role) = ROLES.iter().find(|(known, _)| *known == name)?;
        Some(Message::text(*role, text))
    };
    turns.into_iter().map(message).collect::<Option<_>>().ok_or_else(foreign)
}

fn decode(numbers: &[u32]) -> Option<Vec<(String, String)>> {
    let [MARK, len, groups @ ..] = numbers else { return None };
    let len = usize::try_from(*len).ok().filter(|len| len.div_ceil(GROUP) == groups.len())?;
    let mut bytes: Vec<u8> = groups.iter().flat_map(|n| n.to_le_bytes().into_iter().take(GROUP)).collect();
    bytes.truncate(len);
    serde_json::from_slice(&bytes).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::core::{Chat, Input};

    fn read(numbers: &[u32]) -> Option<Vec<(String, String)>> {
        decode(numbers)
    }

    /// The numbers of any text.
    fn numbers(text: &str) -> Vec<u32> {
        let group = |bytes: &[u8]| bytes.iter().rev().fold(0, |n, byte| n << 8 | u32::from(*byte));
        [MARK, u32::try_from(text.len()).unwrap()]
            .into_iter()
            .chain(text.as_bytes().chunks(GROUP).map(group))
            .collect()
    }

    #[test]
    fn only_texts_of_known_roles_are_read() {
        let parse = |text: &str| {
            let body = serde_json::json!({"model": "m", "prompt": "p", "context": numbers(text)}).to_string();
            crate::ollama::generate::parse(body.as_bytes())
        };
        assert!(parse(r#"[["user", "a"], ["assistant", ""]]"#).is_ok());
        let deep = "[".repeat(100_000);
        for wrong in [
            r#"[["tool", "a"]]"#,
            r#"[["user"]]"#,
            r#"[["user", "a", "b"]]"#,
            r#"[["user", ["a"]]]"#,
            r#"[[1, "a"]]"#,
            r#"{"user": "a"}"#,
            r#"[["user", "a"]] x"#,
            "",
            &deep,
        ] {
            let e = parse(wrong).unwrap_err();
            assert_eq!(e.param.as_deref(), Some("context"), "{e}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(
            turns in prop::collection::vec((prop::sample::select(&ROLES[..]), ".{0,20}"), 0..5),
            answer in ".{0,20}",
        ) {
            let messages = turns.iter().map(|((_, role), text)| Message::text(*role, text.clone())).collect();
            let chat = Chat { messages, ..Chat::default() };
            let mut request = GenerateRequest::new("m", Input::Chat(chat));
            request.report.conversation = true;
            let mut history = History::of(&request).unwrap();
            history.push(&answer);
            let numbers = history.encode();
            prop_assert!(numbers[2..].iter().all(|n| *n < 1 << 24));
            let mut expected: Vec<_> =
                turns.into_iter().map(|((name, _), text)| (name.to_string(), text)).collect();
            expected.push(("assistant".into(), answer));
            prop_assert_eq!(read(&numbers), Some(expected));
        }

        #[test]
        fn any_numbers_are_harmless(
            numbers in prop::collection::vec(any::<u32>(), 1..9),
            unused in 0..GROUP,
        ) {
            prop_assert_eq!(read(&numbers), None);
            // The length fits, so the bytes are read; the upper byte of each number is ignored.
            let len = u32::try_from(numbers.len() * GROUP - unused).unwrap();
            let fitting = [&[MARK, len][..], &numbers[..]].concat();
            let lower: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes().into_iter().take(GROUP)).collect();
            prop_assert_eq!(read(&fitting), serde_json::from_slice(&lower[..len as usize]).ok());
            prop_assert_eq!(read(&[&[MARK, len + 3][..], &numbers[..]].concat()), None);
        }
    }
}
