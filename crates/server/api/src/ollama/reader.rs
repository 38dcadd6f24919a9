//! Parses Ollama's chat answer, whole or streamed.
//!
//! Lenient: unknown fields are skipped.

use serde::Deserialize;

use super::error;
use crate::ApiError;
use crate::core::{Event, FinishReason, RawObject, Timings, TokenLogprob, Usage};
use crate::dialect::broken_off;
use crate::ndjson::LineDecoder;
use crate::openai::Token;
use crate::reader::{Reader, Translate, read};
use crate::time::seconds;

#[derive(Deserialize)]
struct Wire {
    #[serde(default)]
    model: String,
    #[serde(default)]
    created_at: String,
    #[serde(default)]
    message: Option<Message>,
    #[serde(default)]
    logprobs: Option<Vec<Token>>,
    #[serde(default)]
    done: bool,
    #[serde(default)]
    done_reason: Option<String>,
    #[serde(flatten)]
    counts: Counts,
    #[serde(default)]
    error: Option<String>,
}

#[derive(Deserialize)]
struct Message {
    #[serde(default)]
    content: Option<String>,
    #[serde(default)]
    thinking: Option<String>,
    #[serde(default)]
    tool_calls: Option<Vec<Call>>,
}

#[derive(Deserialize)]
struct Call {
    #[serde(default)]
    id: Option<String>,
    function: Function,
}

#[derive(Deserialize)]
struct Function {
    name: String,
    #[serde(default)]
    arguments: RawObject,
}

/// Times are in nanoseconds.
#[derive(Deserialize, Default)]
struct Counts {
    #[serde(default)]
    total_duration: u64,
    #[serde(default)]
    load_duration: u64,
    #[serde(default)]
    prompt_eval_count: u64,
    #[serde(default)]
    prompt_eval_duration: u64,
    #[serde(default)]
    eval_count: u64,
    #[serde(default)]
    eval_duration: u64,
}

impl Counts {
    fn usage(&self) -> Usage {
        Usage {
            prompt_tokens: self.prompt_eval_count,
            completion_tokens: self.eval_count,
            ..Usage::default()
        }
    }

    /// `None` if no times were reported.
    fn timings(&self) -> Option<Timings> {
        let ms = |nanoseconds: u64| nanoseconds as f64 / 1e6;
        (self.total_duration > 0).then(|| Timings {
            cache_n: 0,
            prompt_n: self.prompt_eval_count,
            prompt_ms: ms(self.prompt_eval_duration),
            predicted_n: self.eval_count,
            predicted_ms: ms(self.eval_duration),
            load_ms: ms(self.load_duration),
            total_ms: ms(self.total_duration),
            draft: None,
        })
    }
}

/// The token counts in a whole answer, or in the last line of a stream; also of embeddings. `None` if there are none. For forwarded
/// answers.
pub fn usage_in(json: &[u8]) -> Option<Usage> {
    #[derive(Deserialize)]
    struct Holder {
        #[serde(default)]
        prompt_eval_count: Option<u64>,
        #[serde(default)]
        eval_count: Option<u64>,
    }
    let h: Holder = serde_json::from_slice(json).ok()?;
    (h.prompt_eval_count.is_some() || h.eval_count.is_some()).then(|| Usage {
        prompt_tokens: h.prompt_eval_count.unwrap_or(0),
        completion_tokens: h.eval_count.unwrap_or(0),
        ..Usage::default()
    })
}

/// Translates lines.
#[derive(Debug, Default)]
pub struct Translator {
    started: bool,
    /// For generated ids of calls without one.
    stamp: String,
    calls: u32,
    done: bool,
}

impl Translate for Translator {
    fn piece(&mut self, json: &[u8], out: &mut Vec<Event>) -> Result<bool, ApiError> {
        let w: Wire = read(json)?;
        if let Some(message) = w.error {
            return Err(error::error_from_message(message, None));
        }
        if !std::mem::replace(&mut self.started, true) {
            self.stamp = w.created_at.chars().filter(char::is_ascii_digit).collect();
            out.push(Event::Started {
                id: String::new(), // this dialect has none
                model: w.model,
                created_s: seconds(&w.created_at).unwrap_or(0),
                usage: None,
            });
        }
        if let Some(tokens) = w.logprobs.filter(|t| !t.is_empty()) {
            let tokens: Vec<TokenLogprob> = tokens.into_iter().map(Token::into).collect();
            out.push(Event::Logprobs { choice: 0, tokens });
        }
        if let Some(m) = w.message {
            let nonempty = |text: Option<String>| text.filter(|t| !t.is_empty());
            out.extend(nonempty(m.thinking).map(|text| Event::Reasoning { choice: 0, text }));
            out.extend(nonempty(m.content).map(|text| Event::Text { choice: 0, text }));
            for call in m.tool_calls.unwrap_or_default() {
                let index = self.calls;
                self.calls += 1;
                let id = nonempty(call.id).unwrap_or_else(|| format!("call_{}_{index}", self.stamp));
                let Function { name, arguments } = &call.function;
                out.extend(Event::tool_call(0, index, &id, name, arguments.get()));
            }
        }
        if w.done {
            self.done = true;
            let reason = match w.done_reason.as_deref() {
                Some("length") => FinishReason::Length,
                Some("content_filter") => FinishReason::ContentFilter,
                _ if self.calls > 0 => FinishReason::ToolCalls,
                _ => FinishReason::Stop,
            };
            out.push(Event::Finished { choice: 0, reason });
            out.push(Event::Usage(w.counts.usage()));
            out.extend(w.counts.timings().map(Event::Timings));
        }
        Ok(self.done)
    }

    fn end(&mut self, _out: &mut Vec<Event>) -> Result<(), ApiError> {
        if self.done { Ok(()) } else { Err(broken_off()) }
    }
}

/// The events of a whole answer.
///
/// # Errors
/// A body that is not an answer, or an error with status 200.
pub fn events(body: &[u8]) -> Result<Vec<Event>, ApiError> {
    let mut out = Vec::new();
    let mut translator = Translator::default();
    translator.piece(body, &mut out)?;
    translator.end(&mut out)?;
    Ok(out)
}

/// Parses a stream of lines.
pub type LineReader = Reader<LineDecoder, Translator>;
