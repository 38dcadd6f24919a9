//! Parses the answer of `Converse`, whole or streamed, and the stream of an invoked Anthropic model.
//!
//! Lenient: unknown blocks and fields are skipped.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use super::SIGNED;
use super::frames::FrameDecoder;
use crate::ApiError;
use crate::anthropic::messages;
use crate::core::{Event, FinishReason, Usage};
use crate::dialect::{StreamReader, broken_off};
use crate::reader::{Reader, Translate, read};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ResponseBody {
    output: Output,
    stop_reason: String,
    #[serde(default)]
    usage: Option<Counts>,
}

#[derive(Deserialize)]
struct Output {
    message: Message,
}

#[derive(Deserialize)]
struct Message {
    #[serde(default)]
    content: Vec<Block>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Block {
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    tool_use: Option<ToolUse>,
    #[serde(default)]
    reasoning_content: Option<Reasoning>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ToolUse {
    tool_use_id: String,
    name: String,
    #[serde(default)]
    input: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Reasoning {
    #[serde(default)]
    reasoning_text: Option<ReasoningText>,
}

#[derive(Deserialize)]
struct ReasoningText {
    #[serde(default)]
    text: String,
    #[serde(default)]
    signature: Option<String>,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "camelCase")]
struct Counts {
    #[serde(default)]
    input_tokens: u64,
    #[serde(default)]
    output_tokens: u64,
    #[serde(default)]
    cache_read_input_tokens: Option<u64>,
    #[serde(default)]
    cache_write_input_tokens: Option<u64>,
}

impl From<Counts> for Usage {
    fn from(c: Counts) -> Self {
        // As in Anthropic's counts, the input excludes tokens read from or written to the cache.
        let cached = c.cache_read_input_tokens.unwrap_or(0);
        let written = c.cache_write_input_tokens.unwrap_or(0);
        Self {
            prompt_tokens: c.input_tokens.saturating_add(cached).saturating_add(written),
            cached_tokens: c.cache_read_input_tokens,
            cache_written_tokens: c.cache_write_input_tokens,
            completion_tokens: c.output_tokens,
            reasoning_tokens: None,
        }
    }
}

/// An event of the stream.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wire {
    #[serde(default)]
    content_block_start: Option<BlockStart>,
    #[serde(default)]
    content_block_delta: Option<BlockDelta>,
    #[serde(default)]
    content_block_stop: Option<IgnoredAny>,
    #[serde(default)]
    message_stop: Option<Stop>,
    #[serde(default)]
    metadata: Option<Metadata>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Stop {
    stop_reason: String,
}

#[derive(Deserialize)]
struct Metadata {
    #[serde(default)]
    usage: Option<Counts>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BlockStart {
    #[serde(default)]
    start: Start,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct Start {
    #[serde(default)]
    tool_use: Option<ToolUse>,
}

#[derive(Deserialize)]
struct BlockDelta {
    delta: Delta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Delta {
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    tool_use: Option<InputDelta>,
    #[serde(default)]
    reasoning_content: Option<ReasoningDelta>,
}

#[derive(Deserialize)]
struct InputDelta {
    #[serde(default)]
    input: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReasoningDelta {
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    signature: Option<String>,
}

/// Translates answers and stream events.
#[derive(Debug, Default)]
pub struct Translator {
    started: bool,
    calls: u32,
    /// The last call has no arguments so far.
    is_bare: bool,
    finished: bool,
    usage: Option<Usage>,
}

impl Translator {
    fn start(&mut self, out: &mut Vec<Event>) {
        if !std::mem::replace(&mut self.started, true) {
            out.push(Event::Started { id: String::new(), model: String::new(), created_s: 0, usage: None });
        }
    }

    fn call(&mut self, call: ToolUse, out: &mut Vec<Event>) {
        self.end_call(out);
        let index = self.calls;
        self.calls += 1;
        self.is_bare = call.input.is_empty();
        out.push(Event::ToolCallStart { choice: 0, index, id: call.tool_use_id, name: call.name });
        if !self.is_bare {
            let text = Value::from(call.input).to_string();
            out.push(Event::ToolCallArguments { choice: 0, index, text });
        }
    }

    /// A call without arguments gets an empty object: clients of other dialects expect one.
    fn end_call(&mut self, out: &mut Vec<Event>) {
        if std::mem::take(&mut self.is_bare) {
            out.push(Event::ToolCallArguments { choice: 0, index: self.calls - 1, text: "{}".into() });
        }
    }

    fn block(&mut self, block: Block, out: &mut Vec<Event>) {
        if let Some(text) = block.reasoning_content.and_then(|r| r.reasoning_text) {
            thought(Some(text.text), text.signature, out);
        }
        out.extend(block.text.filter(|t| !t.is_empty()).map(|text| Event::Text { choice: 0, text }));
        if let Some(call) = block.tool_use {
            self.call(call, out);
            self.end_call(out);
        }
    }

    fn finish(&mut self, reason: &str, out: &mut Vec<Event>) -> Result<(), ApiError> {
        let reason = match reason {
            "end_turn" => FinishReason::Stop,
            // The API does not say which sequence it was.
            "stop_sequence" => FinishReason::Stop,
            "max_tokens" | "model_context_window_exceeded" => FinishReason::Length,
            "tool_use" => FinishReason::ToolCalls,
            "content_filtered" | "guardrail_intervened" => FinishReason::ContentFilter,
            other => return Err(ApiError::upstream(format!("the provider ended its answer with {other}"))),
        };
        self.finished = true;
        out.push(Event::Finished { choice: 0, reason });
        Ok(())
    }

    fn delta(&mut self, delta: Delta, out: &mut Vec<Event>) {
        out.extend(delta.text.filter(|t| !t.is_empty()).map(|text| Event::Text { choice: 0, text }));
        if let Some(piece) = delta.tool_use.filter(|p| !p.input.is_empty() && self.calls > 0) {
            self.is_bare = false;
            out.push(Event::ToolCallArguments { choice: 0, index: self.calls - 1, text: piece.input });
        }
        if let Some(r) = delta.reasoning_content {
            thought(r.text, r.signature, out);
        }
    }
}

fn thought(text: Option<String>, signature: Option<String>, out: &mut Vec<Event>) {
    out.extend(text.filter(|t| !t.is_empty()).map(|text| Event::Reasoning { choice: 0, text }));
    let signature = signature.filter(|s| !s.is_empty()).map(|s| format!("{SIGNED}{s}"));
    out.extend(signature.map(|signature| Event::ReasoningSignature { choice: 0, signature }));
}

impl Translate for Translator {
    fn piece(&mut self, json: &[u8], out: &mut Vec<Event>) -> Result<bool, ApiError> {
        self.start(out);
        let wire: Wire = read(json)?;
        if let Some(call) = wire.content_block_start.and_then(|b| b.start.tool_use) {
            self.call(call, out);
        }
        if let Some(block) = wire.content_block_delta {
            self.delta(block.delta, out);
        }
        if wire.content_block_stop.is_some() || wire.message_stop.is_some() {
            self.end_call(out);
        }
        if let Some(stop) = wire.message_stop {
            self.finish(&stop.stop_reason, out)?;
        }
        if let Some(metadata) = wire.metadata {
            self.usage = metadata.usage.map(Usage::from).or(self.usage);
            // The last event of a stream.
            return Ok(self.finished);
        }
        Ok(false)
    }

    fn end(&mut self, out: &mut Vec<Event>) -> Result<(), ApiError> {
        if !self.finished {
            return Err(broken_off());
        }
        out.extend(self.usage.take().map(Event::Usage));
        Ok(())
    }
}

/// The events of a whole answer.
///
/// # Errors
/// A body that is not an answer.
pub fn events(body: &[u8]) -> Result<Vec<Event>, ApiError> {
    let whole: ResponseBody = read(body)?;
    let mut out = Vec::new();
    let mut translator = Translator::default();
    translator.start(&mut out);
    for block in whole.output.message.content {
        translator.block(block, &mut out);
    }
    translator.finish(&whole.stop_reason, &mut out)?;
    out.extend(whole.usage.map(|u| Event::Usage(u.into())));
    Ok(out)
}

/// Parses a `ConverseStream`.
#[derive(Default)]
pub struct ConverseReader(Reader<FrameDecoder, Translator>);

/// Parses an `InvokeModelWithResponseStream` of an Anthropic model.
#[derive(Default)]
pub struct InvokedReader(Reader<FrameDecoder, messages::Translator>);

macro_rules! stream_reader {
    ($name:ident) => {
        impl $name {
            /// A reader for a new stream.
            pub fn new() -> Self {
                Self::default()
            }
        }

        impl StreamReader for $name {
            fn push(&mut self, bytes: &[u8], out: &mut Vec<Event>) {
                self.0.push(bytes, out);
            }

            fn end(&mut self, out: &mut Vec<Event>) {
                self.0.end(out);
            }

            fn is_over(&self) -> bool {
                self.0.is_over()
            }
        }
    };
}

stream_reader!(ConverseReader);
stream_reader!(InvokedReader);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_call_without_arguments_has_an_empty_object_of_them() {
        let mut t = Translator::default();
        let mut out = Vec::new();
        for json in [
            r#"{"contentBlockStart":{"start":{"toolUse":{"toolUseId":"a","name":"time"}},"contentBlockIndex":0}}"#,
            r#"{"contentBlockDelta":{"delta":{"toolUse":{"input":""}},"contentBlockIndex":0}}"#,
            r#"{"contentBlockStop":{"contentBlockIndex":0}}"#,
            r#"{"contentBlockStart":{"start":{"toolUse":{"toolUseId":"b","name":"add"}},"contentBlockIndex":1}}"#,
            r#"{"contentBlockDelta":{"delta":{"toolUse":{"input":"{\"x\":1}"}},"contentBlockIndex":1}}"#,
            r#"{"contentBlockStop":{"contentBlockIndex":1}}"#,
            r#"{"messageStop":{"stopReason":"tool_use"}}"#,
        ] {
            assert!(!t.piece(json.as_bytes(), &mut out).unwrap());
        }
        let answer = crate::core::Answer::from_events(&out);
        let calls: Vec<_> = answer.choices[0].tool_calls().collect();
        assert_eq!(calls, [("a", "time", "{}"), ("b", "add", r#"{"x":1}"#)]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_harmless(data in prop::collection::vec(any::<u8>(), 0..400), piece in 1usize..50) {
            let mut readers: [Box<dyn StreamReader>; 2] = [Box::new(ConverseReader::new()), Box::new(InvokedReader::new())];
            for reader in &mut readers {
                let mut out = Vec::new();
                for bytes in data.chunks(piece) {
                    reader.push(bytes, &mut out);
                }
                reader.end(&mut out);
                prop_assert!(matches!(out.last(), Some(Event::Error(_))), "{:?}", out);
                prop_assert!(reader.is_over());
            }
        }
    }
}
