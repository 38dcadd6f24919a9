//! Parses a provider's answer to a chat request, whole or as a stream of chunks. Called by the gateway.
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
use crate::core::{Event, FinishReason, TokenLogprob};
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
    #[serde(default)]
    content: Option<String>,
    #[serde(default)]
    refusal: Option<String>,
    #[serde(default)]
    reasoning_content: Option<String>,
    #[serde(default)]
    reasoning: Option<String>,
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
    /// Our indices of its calls, by the provider's.
    calls: HashMap<u32, u32>,
    /// The provider's index of the last call, and its highest.
    last_call: u32,
    highest_call: u32,
    /// The last call has no arguments so far.
    without_arguments: bool,
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
            self.choices.push(Progress { choice, ..Progress::default() });
        }
        let progress = &mut self.choices[at];
        if let Some(tokens) = c.logprobs.and_then(|l| l.content).filter(|t| !t.is_empty()) {
            let tokens: Vec<TokenLogprob> = tokens.into_iter().map(logprobs::Token::into).collect();
            out.push(Event::Logprobs { choice, tokens });
        }
        if let Some(delta) = c.delta {
            let nonempty = |text: Option<String>| text.filter(|t| !t.is_empty());
            let reasoning = nonempty(delta.reasoning_content).or_else(|| nonempty(delta.reasoning));
            out.extend(reasoning.map(|text| Event::Reasoning { choice, text }));
            out.extend(nonempty(delta.content).map(|text| Event::Text { choice, text }));
            if let Some(text) = nonempty(delta.refusal) {
                progress.refused = true;
                out.push(Event::Text { choice, text });
            }
            for call in delta.tool_calls.unwrap_or_default() {
                progress.call(call, &self.id, out)?;
            }
        }
        if let Some(reason) = c.finish_reason.filter(|_| !progress.finished) {
            progress.finished = true;
            progress.end_call(out);
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
    fn call(&mut self, call: Call, answer: &str, out: &mut Vec<Event>) -> Result<(), ApiError> {
        let function = call.function.unwrap_or(Function { name: None, arguments: None });
        let id = call.id.filter(|id| !id.is_empty());
        let number = match call.index {
            Some(number) => number,
            // Without indices, a name begins a new call.
            None if self.calls.is_empty() => 0,
            None if function.name.is_some() => self.highest_call.saturating_add(1),
            None => self.last_call,
        };
        let place = self.calls.get(&number).copied();
        let index = place.unwrap_or(self.calls.len() as u32);
        let choice = self.choice;
        if place.is_none() {
            let Some(name) = function.name.filter(|n| !n.is_empty()) else {
                return Err(ApiError::upstream("the provider's answer calls a tool without saying which"));
            };
            self.end_call(out);
            self.calls.insert(number, index);
            (self.last_call, self.highest_call) = (number, self.highest_call.max(number));
            self.without_arguments = true;
            let id = id.unwrap_or_else(|| format!("call_{answer}_{choice}_{index}"));
            out.push(Event::ToolCallStart { choice, index, id, name });
        }
        let text = match function.arguments {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text,
            Some(object) => object.to_string(),
        };
        if text.is_empty() {
            return Ok(());
        }
        if index as usize + 1 != self.calls.len() {
            return Err(ApiError::upstream("the provider's answer mixes the arguments of several calls"));
        }
        self.without_arguments = false;
        out.push(Event::ToolCallArguments { choice, index, text });
        Ok(())
    }

    /// A call without arguments gets an empty object: clients of other dialects expect one.
    fn end_call(&mut self, out: &mut Vec<Event>) {
        if std::mem::take(&mut self.without_arguments) {
            let index = self.calls.len() as u32 - 1;
            out.push(Event::ToolCallArguments { choice: self.choice, index, text: "{}".into() });
        }
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
