//! Watches a forwarded stream: whether it ends properly, carries an error, and how many tokens it reports.
//!
//! Only complete events are forwarded, so an error can be written after what the client has if the stream breaks. Nothing is copied unless
//! an event arrives in pieces. Events are separated by line feeds, as all servers write them; JSON is parsed only if an event may be an
//! error or contain a count.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt;
use std::sync::LazyLock;

use bytes::{Bytes, BytesMut};
use memchr::memchr;
use memchr::memmem::Finder;
use octet_api::anthropic::messages::UsageReader;
use octet_api::core::Usage;
use octet_api::{ApiError, gemini, ollama, openai, sse};
use serde::Deserialize;
use serde::de::{Deserializer as _, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::dialect::Dialect;

/// The format of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Chunks of chat and completions, and `[DONE]`.
    Chunks,
    /// Named events of OpenAI's responses.
    Responses,
    /// Named events of Anthropic's messages.
    Messages,
    /// Ollama's lines.
    Lines,
    /// Gemini's chunks, without an end marker.
    Contents,
}

impl Form {
    fn of(dialect: Dialect) -> Self {
        match dialect {
            Dialect::OpenAiChat | Dialect::OpenAiCompletions | Dialect::OpenAiEmbeddings => Self::Chunks,
            // An unread answer is not watched.
            Dialect::Passed(_) => Self::Chunks,
            Dialect::OpenAiResponses => Self::Responses,
            Dialect::AnthropicMessages | Dialect::AnthropicCountTokens => Self::Messages,
            Dialect::OllamaChat | Dialect::OllamaGenerate | Dialect::OllamaEmbed => Self::Lines,
            Dialect::Gemini
            | Dialect::GeminiCountTokens
            | Dialect::GeminiEmbed
            | Dialect::GeminiBatchEmbed => Self::Contents,
        }
    }
}

/// What to do with an event.
#[derive(Debug, PartialEq)]
enum Verdict {
    Pass,
    /// Not for the client.
    Withhold,
    /// The last one.
    Last,
    Fail(ApiError),
}

/// Watches one stream.
#[derive(Debug)]
pub(crate) struct Watch {
    form: Form,
    /// The client did not request the stream's count.
    withhold_count: bool,
    /// Choices that have not ended.
    choices_left: u32,
    /// An incomplete event.
    carry: BytesMut,
    /// In that event: searched up to here, and start of the last line.
    searched: usize,
    line: usize,
    usage: Option<Usage>,
    messages: UsageReader,
    is_over: bool,
}

struct Finders {
    done: Finder<'static>,
    error: Finder<'static>,
    finish: Finder<'static>,
    usage: Finder<'static>,
    content_finish: Finder<'static>,
    content_usage: Finder<'static>,
    blocked: Finder<'static>,
}

static FINDERS: LazyLock<Finders> = LazyLock::new(|| Finders {
    done: Finder::new(b"\"done\":"),
    error: Finder::new(b"\"error\""),
    finish: Finder::new(b"\"finish_reason\":"),
    usage: Finder::new(b"\"usage\":"),
    content_finish: Finder::new(b"\"finishReason\""),
    content_usage: Finder::new(b"\"usageMetadata\""),
    blocked: Finder::new(b"\"blockReason\""),
});

impl Watch {
    /// For an answer with `n` choices.
    pub(crate) fn new(dialect: Dialect, n: u32, withhold_count: bool) -> Self {
        Self {
            form: Form::of(dialect),
            withhold_count,
            choices_left: n,
            carry: BytesMut::new(),
            searched: 0,
            line: 0,
            usage: None,
            messages: UsageReader::default(),
            is_over: false,
        }
    }

    /// Whether the last event has arrived.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    pub(crate) fn usage(&self) -> Option<Usage> {
        self.usage.or_else(|| self.messages.usage())
    }

    /// Processes the next bytes; `out` gets those for the client.
    ///
    /// # Errors
    /// If the stream reports an error, or an event does not end.
    pub(crate) fn push(&mut self, bytes: Bytes, out: &mut VecDeque<Bytes>) -> Result<(), ApiError> {
        if self.is_over {
            return Ok(());
        }
        if !self.carry.is_empty() {
            self.carry.extend_from_slice(&bytes);
            while !self.is_over {
                let carry = std::mem::take(&mut self.carry);
                let found = self.event(&carry);
                self.carry = carry;
                let Some((length, verdict)) = found else { break };
                let event = self.carry.split_to(length).freeze();
                self.give(verdict, event, out)?;
            }
            return self.check_length();
        }
        // Consecutive events stay together.
        let (mut from, mut at) = (0, 0);
        while !self.is_over {
            let Some((length, verdict)) = self.event(&bytes[at..]) else { break };
            let start = at;
            at += length;
            if verdict != Verdict::Pass {
                if from < start {
                    out.push_back(bytes.slice(from..start));
                }
                from = at;
                self.give(verdict, bytes.slice(start..at), out)?;
            }
        }
        if from < at {
            out.push_back(bytes.slice(from..at));
        }
        if !self.is_over {
            self.carry.extend_from_slice(&bytes[at..]);
        }
        self.check_length()
    }

    /// Length of the first event in `buffer`, and what to do with it; `None` if it is incomplete.
    fn event(&mut self, buffer: &[u8]) -> Option<(usize, Verdict)> {
        loop {
            let Some(offset) = memchr(b'\n', &buffer[self.searched..]) else {
                self.searched = buffer.len();
                return None;
            };
            let end = self.searched + offset;
            let blank = matches!(&buffer[self.line..end], b"" | b"\r");
            (self.searched, self.line) = (end + 1, end + 1);
            if blank || self.form == Form::Lines {
                (self.searched, self.line) = (0, 0);
                return Some((end + 1, self.judge(&buffer[..=end])));
            }
        }
    }

    fn judge(&mut self, event: &[u8]) -> Verdict {
        match self.form {
            Form::Lines => self.judge_line(event.trim_ascii()),
            Form::Chunks => {
                for line in lines(event) {
                    let verdict = match line.strip_prefix(b"data:") {
                        Some(data) => self.judge_chunk(data.trim_ascii()),
                        // llama.cpp used its own name for errors.
                        None => match line.strip_prefix(b"error:") {
                            Some(e) => Verdict::Fail(openai_error(e)),
                            None if is_field(line) => Verdict::Pass,
                            None => Verdict::Fail(ApiError::upstream(
                                "a line of the stream is not part of an event",
                            )),
                        },
                    };
                    if verdict != Verdict::Pass {
                        return verdict;
                    }
                }
                Verdict::Pass
            }
            Form::Contents => self.judge_contents(event),
            Form::Responses | Form::Messages => {
                let (mut name, mut data) = (&b""[..], &b""[..]);
                for line in lines(event) {
                    if let Some(value) = line.strip_prefix(b"event:") {
                        name = value.trim_ascii();
                    } else if let Some(value) = line.strip_prefix(b"data:") {
                        data = value.trim_ascii();
                    }
                }
                self.judge_named(name, data)
            }
        }
    }

    fn judge_chunk(&mut self, data: &[u8]) -> Verdict {
        if data == b"[DONE]" {
            return Verdict::Last;
        }
        // Decides without parsing where possible.
        if data.first() != Some(&b'{') || data.last() != Some(&b'}') {
            return Verdict::Fail(ApiError::upstream("an event of the stream is not a JSON object"));
        }
        let found = &*FINDERS;
        for at in found.finish.find_iter(data) {
            if value_at(data, at + found.finish.needle().len()) == Some(b'"') {
                self.choices_left = self.choices_left.saturating_sub(1);
            }
        }
        if found.error.find(data).is_some() && is_error(data) {
            return Verdict::Fail(openai_error(data));
        }
        let counts = found.usage.find(data).map(|at| value_at(data, at + found.usage.needle().len()));
        if counts != Some(Some(b'{')) {
            return Verdict::Pass;
        }
        self.usage = openai::usage_in(data).or(self.usage);
        if self.withhold_count && has_no_choices(data) { Verdict::Withhold } else { Verdict::Pass }
    }

    fn judge_named(&mut self, name: &[u8], data: &[u8]) -> Verdict {
        #[derive(Deserialize)]
        struct Typed<'a> {
            #[serde(borrow, rename = "type")]
            kind: Cow<'a, str>,
        }
        let typed: Option<Typed<'_>>;
        let name = if name.is_empty() {
            typed = serde_json::from_slice(data).ok();
            typed.as_ref().map_or(&b""[..], |t| t.kind.as_bytes())
        } else {
            name
        };
        match (self.form, name) {
            (Form::Messages, b"message_start" | b"message_delta") => {
                self.messages.push(data);
                Verdict::Pass
            }
            (Form::Messages, b"message_stop") => Verdict::Last,
            (Form::Messages, b"error") => Verdict::Fail(octet_api::anthropic::error::in_stream(data)),
            (Form::Responses, b"response.completed" | b"response.incomplete") => {
                self.usage = openai::usage_in(data);
                Verdict::Last
            }
            (Form::Responses, b"response.failed" | b"error") => Verdict::Fail(openai_error(data)),
            _ => Verdict::Pass,
        }
    }

    /// A chunk of a Gemini answer. Errors are bare JSON, without `data:`.
    fn judge_contents(&mut self, event: &[u8]) -> Verdict {
        if event.trim_ascii_start().first() == Some(&b'{') {
            return Verdict::Fail(gemini::error::in_stream(event));
        }
        for data in lines(event).filter_map(|line| line.strip_prefix(b"data:")) {
            let data = data.trim_ascii();
            if data.first() != Some(&b'{') || data.last() != Some(&b'}') {
                return Verdict::Fail(ApiError::upstream("an event of the stream is not a JSON object"));
            }
            let found = &*FINDERS;
            if found.error.find(data).is_some() && is_error(data) {
                return Verdict::Fail(gemini::error::in_stream(data));
            }
            if found.content_finish.find(data).is_some() || found.blocked.find(data).is_some() {
                self.choices_left = 0;
            }
            if found.content_usage.find(data).is_some() {
                self.usage = gemini::usage_in(data).or(self.usage);
            }
        }
        Verdict::Pass
    }

    fn judge_line(&mut self, line: &[u8]) -> Verdict {
        let found = &*FINDERS;
        if found.error.find(line).is_some() && is_error(line) {
            return Verdict::Fail(ollama::error::in_stream(line));
        }
        let done = found.done.find(line).map(|at| value_at(line, at + found.done.needle().len()));
        if done == Some(Some(b't')) {
            self.usage = ollama::usage_in(line);
            return Verdict::Last;
        }
        Verdict::Pass
    }

    /// The connection was closed.
    ///
    /// # Errors
    /// The stream was not complete.
    pub(crate) fn end(&mut self, out: &mut VecDeque<Bytes>) -> Result<(), ApiError> {
        if self.is_over {
            return Ok(());
        }
        if self.form == Form::Lines && !self.carry.is_empty() {
            // The last line may lack its line feed.
            self.push(Bytes::from_static(b"\n"), out)?;
        }
        // The end marker may be missing.
        if self.form == Form::Chunks && self.carry.trim_ascii() == b"data: [DONE]" {
            self.push(Bytes::from_static(b"\n\n"), out)?;
        }
        if self.form == Form::Contents && !self.carry.trim_ascii().is_empty() {
            // An error, or a last piece without its blank line.
            self.push(Bytes::from_static(b"\n\n"), out)?;
        }
        // Some servers do not send `[DONE]`, and Gemini never does.
        let may_just_end = matches!(self.form, Form::Chunks | Form::Contents);
        let complete = self.is_over || (may_just_end && self.choices_left == 0 && self.carry.is_empty());
        self.is_over = true;
        if complete { Ok(()) } else { Err(ApiError::upstream("the answer ended before it was complete")) }
    }

    fn give(&mut self, verdict: Verdict, event: Bytes, out: &mut VecDeque<Bytes>) -> Result<(), ApiError> {
        match verdict {
            Verdict::Pass => out.push_back(event),
            Verdict::Withhold => {}
            Verdict::Last => {
                self.is_over = true;
                out.push_back(event);
            }
            Verdict::Fail(e) => {
                self.is_over = true;
                return Err(e);
            }
        }
        Ok(())
    }

    fn check_length(&mut self) -> Result<(), ApiError> {
        if self.carry.len() <= sse::EVENT_BYTES_MAX {
            return Ok(());
        }
        self.is_over = true;
        Err(ApiError::upstream(format!(
            "an event of the stream is longer than {} bytes",
            sse::EVENT_BYTES_MAX
        )))
    }
}

/// Whether a line is valid in an event: a comment, a field, or empty.
fn is_field(line: &[u8]) -> bool {
    line.trim_ascii().is_empty() || matches!(line[0], b':' | b'a'..=b'z')
}

/// The complete lines of an event.
fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let end = memchr(b'\n', rest)?;
        let line = &rest[..end];
        rest = &rest[end + 1..];
        Some(line)
    })
}

/// The first byte after a field's colon.
fn value_at(json: &[u8], at: usize) -> Option<u8> {
    json[at..].iter().copied().find(|b| !b.is_ascii_whitespace())
}

/// Whether an event that contains the word in its JSON is an error.
fn is_error(json: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Holder {
        #[serde(default)]
        error: Option<Value>,
        #[serde(default)]
        object: Option<Value>,
    }
    let holder = serde_json::from_slice::<Holder>(json);
    holder.is_ok_and(|h| h.error.is_some() || h.object.is_some_and(|o| o == "error"))
}

fn has_no_choices(json: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Holder {
        #[serde(default)]
        choices: Vec<IgnoredAny>,
    }
    serde_json::from_slice::<Holder>(json).is_ok_and(|h| h.choices.is_empty())
}

fn openai_error(json: &[u8]) -> ApiError {
    openai::error::in_stream(json)
}

/// The checked fields of a complete answer, in one pass because answers are long: whether it is an object with the expected list, and the
/// raw `usage`, which is not parsed here: an invalid count must not fail an answer.
struct Look {
    /// The list's name.
    list: Option<&'static str>,
}

#[derive(Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de> Visitor<'de> for Look {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut missing, mut usage) = (self.list, None);
        while let Some(Key(name)) = map.next_key()? {
            if self.list == Some(&*name) {
                map.next_value::<Vec<IgnoredAny>>()?;
                missing = None;
            } else if name == "usage" {
                usage = map.next_value()?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        missing.map_or(Ok(usage), |list| Err(A::Error::missing_field(list)))
    }
}

fn look(dialect: Dialect, body: &[u8]) -> serde_json::Result<Option<&RawValue>> {
    let list = match dialect {
        Dialect::OpenAiChat | Dialect::OpenAiCompletions => Some("choices"),
        Dialect::OpenAiEmbeddings => Some("data"),
        Dialect::AnthropicMessages => Some("content"),
        _ => None,
    };
    let mut json = serde_json::Deserializer::from_slice(body);
    let usage = json.deserialize_map(Look { list })?;
    json.end()?;
    Ok(usage)
}

/// The count of a complete answer.
///
/// # Errors
/// Invalid JSON, no answer, or an error with a status of success.
pub(crate) fn whole(dialect: Dialect, body: &[u8]) -> Result<Option<Usage>, ApiError> {
    if body.len() < ERROR_BYTES_MAX && FINDERS.error.find(body).is_some() && is_error(body) {
        return Err(match Form::of(dialect) {
            Form::Chunks | Form::Responses => openai_error(body),
            Form::Messages => octet_api::anthropic::error::in_stream(body),
            Form::Lines => ollama::error::in_stream(body),
            Form::Contents => gemini::error::in_stream(body),
        });
    }
    let usage = look(dialect, body).map_err(|e| {
        let text: String = String::from_utf8_lossy(&body[..body.len().min(800)]).chars().take(200).collect();
        ApiError::upstream(format!("the provider's answer cannot be read: {e}: {text}"))
    })?;
    Ok(match Form::of(dialect) {
        Form::Chunks | Form::Responses => usage.and_then(|u| openai::usage_of(u.get())),
        _ => counted(dialect, body),
    })
}

/// The count in an answer, or in its short members.
pub(crate) fn counted(dialect: Dialect, body: &[u8]) -> Option<Usage> {
    match Form::of(dialect) {
        Form::Chunks | Form::Responses => openai::usage_in(body),
        Form::Messages => {
            let mut usage = UsageReader::default();
            usage.push(body);
            usage.usage()
        }
        Form::Lines => ollama::usage_in(body),
        Form::Contents => gemini::usage_in(body),
    }
}

/// A longer answer is not just an error.
const ERROR_BYTES_MAX: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DIALECTS: [Dialect; 5] = [
        Dialect::OpenAiChat,
        Dialect::OpenAiResponses,
        Dialect::AnthropicMessages,
        Dialect::OllamaChat,
        Dialect::Gemini,
    ];

    /// The forwarded bytes, the end, and the count.
    fn watch(dialect: Dialect, data: &[u8], piece: usize) -> (Vec<u8>, Result<(), ApiError>, Option<Usage>) {
        let mut watch = Watch::new(dialect, 1, true);
        let mut out = VecDeque::new();
        let pieces = data.chunks(piece);
        let result = pieces.map(Bytes::copy_from_slice).try_for_each(|p| watch.push(p, &mut out));
        let result = result.and_then(|()| watch.end(&mut out));
        (out.into_iter().flatten().collect(), result, watch.usage())
    }

    #[test]
    fn a_last_word_without_its_end_is_one() {
        let (out, result, _) = watch(Dialect::OpenAiChat, b"data: {}\n\ndata: [DONE]", 5);
        assert_eq!((out.as_slice(), result), (&b"data: {}\n\ndata: [DONE]\n\n"[..], Ok(())));
    }

    #[test]
    fn words_within_texts_are_no_ends() {
        let text = br#"data: {"choices":[{"delta":{"content":"\"finish_reason\":\"stop\" \"error\": 1 [DONE] \"usage\":{"}}]}"#;
        let (out, result, usage) = watch(Dialect::OpenAiChat, &[text, &b"\n\n"[..]].concat(), 1000);
        assert_eq!((out.len(), usage), (text.len() + 2, None));
        assert!(result.is_err());
    }

    #[test]
    fn an_event_without_end_is_given_up() {
        let mut watch = Watch::new(Dialect::OpenAiChat, 1, false);
        let (piece, mut out) = (Bytes::from(vec![b'x'; 1 << 20]), VecDeque::new());
        let failed = (0..20).find_map(|_| watch.push(piece.clone(), &mut out).err());
        assert!(failed.unwrap().message.contains("is longer than"));
        assert!(out.is_empty());
    }

    proptest! {
        #[test]
        fn cuts_do_not_matter(
            parts in prop::collection::vec(prop::sample::select(vec![
                "data: ", "{\"choices\":[],\"usage\":{\"prompt_tokens\":1}}", "\n", "\n\n", "\r\n\r\n", "[DONE]", "event: message_stop",
                "{\"error\":\"x\"}", "\"finish_reason\": \"stop\"", "event: error", ": ping", "{\"done\":true}", "\r", "error: {}", "x",
            ]), 0..24),
            piece in 1usize..40,
        ) {
            let data = parts.concat().into_bytes();
            for dialect in DIALECTS {
                prop_assert_eq!(watch(dialect, &data, piece), watch(dialect, &data, usize::MAX));
            }
        }

        #[test]
        fn any_bytes_are_harmless(data in prop::collection::vec(any::<u8>(), 0..200), piece in 1usize..40) {
            for dialect in DIALECTS {
                let (out, ..) = watch(dialect, &data, piece);
                prop_assert!(out.len() <= data.len() + 2);
            }
        }
    }
}
