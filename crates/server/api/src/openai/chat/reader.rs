//! Parses a provider's answer to a chat request, whole or as a stream of chunks.
//!
//! Lenient: unknown fields are skipped, and harmless mistakes of servers are corrected (calls without an index, or with `stop` as
//! their finish reason).

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::Value;

use super::super::logprobs::Logprobs;
use super::super::usage::{WireTimings, WireUsage};
use super::super::{error, logprobs};
use crate::ApiError;
use crate::calls::Calls;
use crate::core::{Event, FinishReason, ReasoningPart, TokenLogprob};
use crate::dialect::broken_off;
use crate::reader::{Reader, Translate, read};
use crate::sse::SseDecoder;

#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    created: Option<f64>,
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    choices: Option<Vec<Choice>>,
    #[serde(default)]
    usage: Option<WireUsage>,
    #[serde(default)]
    timings: Option<WireTimings>,
    #[serde(default)]
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    index: u32,
    #[serde(default, alias = "message")]
    delta: Option<Delta>,
    #[serde(default)]
    logprobs: Option<Logprobs>,
    #[serde(default)]
    finish_reason: Option<String>,
    #[serde(default)]
    stop_reason: Option<Value>,
}

#[derive(Deserialize)]
struct Delta {
    /// A text; Mistral's models that think send a list of parts.
    #[serde(default)]
    content: Option<Value>,
    #[serde(default)]
    refusal: Option<String>,
    #[serde(default)]
    reasoning_content: Option<String>,
    #[serde(default)]
    reasoning: Option<String>,
    /// Signed reasoning, as LiteLLM's proxy sends it.
    #[serde(default)]
    thinking_blocks: Option<Vec<Value>>,
    /// The same, as OpenRouter sends it.
    #[serde(default)]
    reasoning_details: Option<Vec<Value>>,
    #[serde(default)]
    tool_calls: Option<Vec<Call>>,
}

#[derive(Deserialize)]
struct Call {
    #[serde(default)]
    index: Option<u32>,
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    function: Option<Function>,
}

#[derive(Deserialize)]
struct Function {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    arguments: Option<Value>,
}

/// The state of a choice.
#[derive(Debug, Default)]
struct Progress {
    choice: u32,
    calls: Calls,
    refused: bool,
    finished: bool,
}

/// Translates chunks.
#[derive(Debug, Default)]
pub struct Translator {
    id: String,
    started: bool,
    choices: Vec<Progress>,
    /// Their places, by the provider's index.
    places: HashMap<u32, usize>,
}

/// Maximum number of choices in a stream: writers of streams search them. More than any provider has.
const STREAM_CHOICES_MAX: usize = 1024;

impl Translator {
    fn chunk(&mut self, chunk: Chunk, out: &mut Vec<Event>) -> Result<(), ApiError> {
        if let Some(e) = chunk.error {
            return Err(error::from_value(&e, None));
        }
        let choices = chunk.choices.unwrap_or_default();
        // Azure's first chunk is empty.
        if !self.started && (!choices.is_empty() || chunk.usage.is_some()) {
            self.started = true;
            self.id = chunk.id.unwrap_or_default();
            out.push(Event::Started {
                id: self.id.clone(),
                model: chunk.model.unwrap_or_default(),
                created_s: chunk.created.unwrap_or(0.0) as u64,
                usage: None,
            });
        }
        for choice in choices {
            self.choice(choice, out)?;
        }
        out.extend(chunk.usage.map(|u| Event::Usage(u.into())));
        out.extend(chunk.timings.map(|t| Event::Timings(t.into())));
        Ok(())
    }

    fn choice(&mut self, c: Choice, out: &mut Vec<Event>) -> Result<(), ApiError> {
        let choice = c.index;
        let at = *self.places.entry(choice).or_insert(self.choices.len());
        if at == self.choices.len() {
            self.choices.push(Progress { choice, calls: Calls::of(choice), ..Progress::default() });
        }
        let progress = &mut self.choices[at];
        if let Some(tokens) = c.logprobs.and_then(|l| l.content).filter(|t| !t.is_empty()) {
            let tokens: Vec<TokenLogprob> = tokens.into_iter().map(logprobs::Token::into).collect();
            out.push(Event::Logprobs { choice, tokens });
        }
        if let Some(delta) = c.delta {
            progress.delta(delta, &self.id, out)?;
        }
        if let Some(reason) = c.finish_reason.filter(|_| !progress.finished) {
            progress.finished = true;
            progress.calls.finish(reason == "length", &self.id, out)?;
            let reason = progress.reason(&reason, c.stop_reason)?;
            out.push(Event::Finished { choice, reason });
        }
        Ok(())
    }
}

impl Translate for Translator {
    fn piece(&mut self, json: &[u8], out: &mut Vec<Event>) -> Result<bool, ApiError> {
        if json == b"[DONE]" {
            return Ok(true);
        }
        self.chunk(read(json)?, out)?;
        if self.choices.len() > STREAM_CHOICES_MAX {
            let what = format!("the provider's stream has more than {STREAM_CHOICES_MAX} choices");
            return Err(ApiError::upstream(what));
        }
        Ok(false)
    }

    fn end(&mut self, _out: &mut Vec<Event>) -> Result<(), ApiError> {
        let complete = !self.choices.is_empty() && self.choices.iter().all(|p| p.finished);
        if complete { Ok(()) } else { Err(broken_off()) }
    }
}

impl Progress {
    fn delta(&mut self, delta: Delta, answer: &str, out: &mut Vec<Event>) -> Result<(), ApiError> {
        let choice = self.choice;
        let nonempty = |text: Option<String>| text.filter(|t| !t.is_empty());
        let signed = proofs(choice, delta.thinking_blocks, delta.reasoning_details);
        let has_text = signed.iter().any(|e| matches!(e, Event::Reasoning { .. }));
        let reasoning = nonempty(delta.reasoning_content).or_else(|| nonempty(delta.reasoning));
        let reasoning = reasoning.filter(|_| !has_text);
        let content = content(choice, delta.content)?;
        let refusal = nonempty(delta.refusal);
        self.refused |= refusal.is_some();
        let reasoning = reasoning.map(|text| Event::Reasoning { choice, text });
        let refusal = refusal.map(|text| Event::Text { choice, text });
        for event in reasoning.into_iter().chain(signed).chain(content).chain(refusal) {
            self.calls.emit(event, out);
        }
        delta.tool_calls.into_iter().flatten().try_for_each(|call| self.call(call, answer, out))
    }

    fn call(&mut self, call: Call, answer: &str, out: &mut Vec<Event>) -> Result<(), ApiError> {
        let function = call.function.unwrap_or(Function { name: None, arguments: None });
        let id = call.id.filter(|id| !id.is_empty());
        let name = function.name.filter(|name| !name.is_empty());
        let calls = &mut self.calls;
        let known = match call.index {
            // Some servers give all calls the same number, and others a new id to each piece of one.
            Some(number) => calls
                .position(number.into())
                .filter(|at| name.is_none() || id.as_ref().is_none_or(|id| !calls.has_other_id(*at, id))),
            // Without numbers, a name begins a new call.
            None => match &id {
                Some(id) if name.is_none() => calls.with_id(id).or(calls.last()),
                _ if name.is_none() => calls.last(),
                _ => None,
            },
        };
        let at = match known {
            Some(at) => {
                if let Some(piece) = &name {
                    calls.extend_name(at, piece);
                }
                at
            }
            None => {
                let number = call.index.map_or_else(|| calls.next_number(), u64::from);
                calls.begin(number, id, name.unwrap_or_default())
            }
        };
        let text = match function.arguments {
            None | Some(Value::Null) => return Ok(()),
            Some(Value::String(text)) => text,
            Some(object) => object.to_string(),
        };
        self.calls.arguments(at, &text, answer, out)
    }

    fn reason(&self, name: &str, stop: Option<Value>) -> Result<FinishReason, ApiError> {
        Ok(match name {
            "length" => FinishReason::Length,
            "content_filter" => FinishReason::ContentFilter,
            "error" => return Err(ApiError::upstream("the provider ended its answer with an error")),
            "tool_calls" | "function_call" => FinishReason::ToolCalls,
            // OpenAI itself reports `stop` for a call that was required, but the client must make it.
            _ if !self.calls.is_empty() => FinishReason::ToolCalls,
            _ if self.refused => FinishReason::ContentFilter,
            _ => match stop {
                Some(Value::String(text)) => FinishReason::StopSequence(text),
                _ => FinishReason::Stop,
            },
        })
    }
}

/// The events of a message's content: a text, or a list of parts. Mistral's parts of kind `thinking` have a list of texts.
fn content(choice: u32, content: Option<Value>) -> Result<Vec<Event>, ApiError> {
    let parts = match content {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::String(text)) if text.is_empty() => return Ok(Vec::new()),
        Some(Value::String(text)) => return Ok(vec![Event::Text { choice, text }]),
        Some(Value::Array(parts)) => parts,
        Some(other) => {
            let what = crate::json::describe(&other);
            return Err(ApiError::upstream(format!("the provider's answer has {what} as its content")));
        }
    };
    let event = |part: Value| match part["type"].as_str() {
        Some("thinking") => text_of(&part["thinking"]).map(|text| Event::Reasoning { choice, text }),
        Some("text" | "output_text") | None => {
            text_of(&part["text"]).map(|text| Event::Text { choice, text })
        }
        // References to sources, images: the text does not depend on them.
        Some(_) => None,
    };
    Ok(parts.into_iter().filter_map(event).collect())
}

/// A text, or the texts of a list of parts; `None` if it is empty.
fn text_of(value: &Value) -> Option<String> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|p| p["text"].as_str().or(p.as_str())).collect(),
        _ => String::new(),
    };
    (!text.is_empty()).then_some(text)
}

/// Signed and encrypted reasoning of `thinking_blocks` and `reasoning_details`. Servers that send one of these lists repeat its texts as
/// `reasoning_content`.
fn proofs(choice: u32, blocks: Option<Vec<Value>>, details: Option<Vec<Value>>) -> Vec<Event> {
    let mut out = Vec::new();
    for part in super::proof::parts(blocks, details) {
        match part {
            ReasoningPart::Text { text, signature } => {
                out.extend((!text.is_empty()).then_some(Event::Reasoning { choice, text }));
                out.extend(signature.map(|signature| Event::ReasoningSignature { choice, signature }));
            }
            ReasoningPart::Redacted(data) => out.push(Event::RedactedReasoning { choice, data }),
        }
    }
    out
}

/// The events of a whole answer.
///
/// # Errors
/// A body that is not an answer, or an error with status 200.
pub fn events(body: &[u8]) -> Result<Vec<Event>, ApiError> {
    let mut out = Vec::new();
    let mut translator = Translator::default();
    let mut chunk: Chunk = read(body)?;
    // An answer is collected in the order of its choices.
    chunk.choices.iter_mut().for_each(|choices| choices.sort_by_key(|c| c.index));
    translator.chunk(chunk, &mut out)?;
    translator.end(&mut out)?;
    Ok(out)
}

/// Parses a stream of chunks.
pub type ChunkReader = Reader<SseDecoder, Translator>;

#[cfg(test)]
mod tests {
    use super::*;

    /// A search through all for each would take minutes.
    #[test]
    fn many_choices_and_calls_are_translated_in_linear_time() {
        let many = 200_000;
        let calls = (0..many)
            .map(|i| format!("{{\"id\":\"c{i}\",\"function\":{{\"name\":\"f\",\"arguments\":\"{{}}\"}}}}"));
        let calls = calls.collect::<Vec<_>>().join(",");
        let one = format!(
            "{{\"choices\":[{{\"index\":0,\"message\":{{\"tool_calls\":[{calls}]}},\"finish_reason\":\"tool_calls\"}}]}}"
        );
        let found = events(one.as_bytes()).unwrap();
        let starts = found.iter().filter_map(|e| match e {
            Event::ToolCallStart { index, .. } => Some(*index),
            _ => None,
        });
        assert!(starts.eq(0..many));
        // In descending order, which would move those that are there.
        let choice = |i: u32| {
            format!("{{\"index\":{i},\"message\":{{\"content\":\"a\"}},\"finish_reason\":\"stop\"}}")
        };
        let choices = (0..many).rev().map(choice).collect::<Vec<_>>().join(",");
        let found = events(format!("{{\"choices\":[{choices}]}}").as_bytes()).unwrap();
        let answer = crate::core::Answer::from_events(&found);
        assert!(answer.choices.iter().map(|c| c.index).eq(0..many));
    }

    #[test]
    fn a_stream_has_at_most_as_many_choices_as_any_provider_has() {
        use crate::dialect::StreamReader;

        let mut reader = ChunkReader::new();
        let mut out = Vec::new();
        for i in 0..=STREAM_CHOICES_MAX {
            let chunk =
                format!("data: {{\"choices\":[{{\"index\":{i},\"delta\":{{\"content\":\"a\"}}}}]}}\n\n");
            reader.push(chunk.as_bytes(), &mut out);
        }
        assert!(
            matches!(out.last(), Some(Event::Error(e)) if e.message.contains("choices")),
            "{:?}",
            out.last()
        );
        assert_eq!(out.iter().filter(|e| matches!(e, Event::Text { .. })).count(), STREAM_CHOICES_MAX + 1);
    }
}
