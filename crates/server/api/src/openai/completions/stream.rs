//! Writes completions as a stream. Driven by the server and the gateway through [`StreamWriter`].

use serde::Serialize;

use super::super::chat::finish_name;
use super::super::experts::WireExperts;
use super::super::usage::{WireProgress, WireTimings, WireUsage};
use super::super::{FINGERPRINT, error};
use super::logprobs::Logprobs;
use crate::ApiError;
use crate::core::{Event, FinishReason, GenerateRequest, RoutedExperts, TokenLogprob};
use crate::dialect::{StreamWriter, broken_off, with_prefix};
use crate::sse;

/// Writes `text_completion` events and `[DONE]`. As in chat, token counts are written only if requested, and times are in the last
/// event.
#[derive(Debug)]
pub struct CompletionWriter {
    include_usage: bool,
    logprobs: bool,
    timings_per_token: bool,
    id: String,
    model: String,
    created: u64,
    choices: Vec<Progress>,
    /// The last event of a choice, not written yet.
    finish: Option<(u32, FinishReason)>,
    usage: Option<WireUsage>,
    timings: Option<WireTimings>,
    finished: bool,
    failed: bool,
}

/// The state of a choice.
#[derive(Debug, Default)]
struct Progress {
    choice: u32,
    /// Log-probabilities whose text is not written yet.
    waiting: Vec<TokenLogprob>,
    /// Experts of the same tokens.
    experts: Option<RoutedExperts>,
    /// Length of its text so far in characters, as the tokens have them.
    offset: u64,
}

#[derive(Serialize)]
struct Chunk<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'static str,
    choices: &'a [ChunkChoice<'a>],
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<&'a WireUsage>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<&'a WireTimings>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_progress: Option<&'a WireProgress>,
}

#[derive(Serialize)]
struct ChunkChoice<'a> {
    index: u32,
    text: &'a str,
    logprobs: Option<Logprobs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    routed_experts: Option<WireExperts<'a>>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_reason: Option<&'a str>,
}

impl CompletionWriter {
    /// A stream writer for the answer to `request`.
    pub fn new(request: &GenerateRequest) -> Self {
        Self {
            include_usage: request.include_usage,
            logprobs: request.logprobs.is_some(),
            timings_per_token: request.report.timings_per_token,
            id: String::new(),
            model: String::new(),
            created: 0,
            choices: Vec::new(),
            finish: None,
            usage: None,
            timings: None,
            finished: false,
            failed: false,
        }
    }

    fn progress(&mut self, choice: u32) -> &mut Progress {
        let at = self.choices.iter().position(|p| p.choice == choice).unwrap_or_else(|| {
            self.choices.push(Progress { choice, ..Progress::default() });
            self.choices.len() - 1
        });
        &mut self.choices[at]
    }

    fn chunk(
        &self,
        choices: &[ChunkChoice<'_>],
        usage: Option<Option<&WireUsage>>,
        timings: Option<&WireTimings>,
        out: &mut Vec<u8>,
    ) {
        sse::write_json(out, None, &Chunk { timings, ..self.empty_chunk(choices, usage) });
    }

    /// Writes a piece of a choice, or its end, with the pending log-probabilities.
    fn piece(
        &mut self,
        index: u32,
        text: &str,
        finish: Option<&FinishReason>,
        last: bool,
        out: &mut Vec<u8>,
    ) {
        let p = self.progress(index);
        let (waiting, experts) = (std::mem::take(&mut p.waiting), p.experts.take());
        let logprobs = (!waiting.is_empty()).then(|| Logprobs::new(&waiting, &mut p.offset));
        let stop_reason =
            if let Some(FinishReason::StopSequence(text)) = finish { Some(&**text) } else { None };
        let routed_experts = experts.as_ref().map(WireExperts::new);
        let finish_reason = finish.map(finish_name);
        let choice = ChunkChoice { index, text, logprobs, routed_experts, finish_reason, stop_reason };
        let with_times = (last && !self.include_usage) || (self.timings_per_token && !last);
        let timings = if with_times { self.timings.take() } else { None };
        let usage = self.include_usage.then_some(None);
        self.chunk(&[choice], usage, timings.as_ref(), out);
    }

    /// Writes the prompt's progress: an event without choices.
    fn write_progress(&self, progress: &WireProgress, out: &mut Vec<u8>) {
        let usage = self.include_usage.then_some(None);
        let chunk = Chunk { prompt_progress: Some(progress), ..self.empty_chunk(&[], usage) };
        sse::write_json(out, None, &chunk);
    }

    fn empty_chunk<'a>(
        &'a self,
        choices: &'a [ChunkChoice<'a>],
        usage: Option<Option<&'a WireUsage>>,
    ) -> Chunk<'a> {
        Chunk {
            id: &self.id,
            object: "text_completion",
            created: self.created,
            model: &self.model,
            system_fingerprint: FINGERPRINT,
            choices,
            usage,
            timings: None,
            prompt_progress: None,
        }
    }

    /// Writes the held-back last event of a choice.
    fn release(&mut self, last: bool, out: &mut Vec<u8>) {
        if let Some((index, reason)) = self.finish.take() {
            self.piece(index, "", Some(&reason), last, out);
        }
    }

    fn fail(&mut self, e: &ApiError, out: &mut Vec<u8>) {
        self.failed = true;
        sse::write_json(out, None, &error::body(e));
    }
}

impl StreamWriter for CompletionWriter {
    fn write(&mut self, event: &Event, out: &mut Vec<u8>) {
        if self.failed {
            return;
        }
        if !matches!(event, Event::Usage(_) | Event::Timings(_)) {
            self.release(false, out);
        }
        match event {
            Event::Started { id, model, created_s, .. } => {
                self.id = with_prefix("cmpl-", id);
                self.model.clone_from(model);
                self.created = *created_s;
            }
            Event::Text { choice, text } => self.piece(*choice, text, None, false, out),
            Event::Logprobs { choice, tokens } if self.logprobs => {
                self.progress(*choice).waiting.extend(tokens.iter().cloned());
            }
            Event::RoutedExperts { choice, tokens } => {
                self.progress(*choice).experts.get_or_insert_default().extend(tokens);
            }
            Event::Finished { choice, reason } => {
                self.finish = Some((*choice, reason.clone()));
                self.finished = true;
            }
            Event::Usage(usage) => self.usage = Some(usage.into()),
            Event::Timings(timings) => self.timings = Some(timings.into()),
            Event::Error(e) => self.fail(e, out),
            // Plain text has no reasoning or calls, and log-probabilities were not requested.
            Event::Reasoning { .. }
            | Event::ReasoningSignature { .. }
            | Event::RedactedReasoning { .. }
            | Event::ToolCallStart { .. }
            | Event::ToolCallArguments { .. }
            | Event::Logprobs { .. }
            | Event::Tokens { .. }
            | Event::Applied(_) => {}
            Event::Progress { done, total, cached, ms } => {
                let progress = WireProgress { total: *total, cache: *cached, processed: *done, time_ms: *ms };
                self.write_progress(&progress, out);
            }
        }
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        if !self.failed {
            self.release(true, out);
            if !self.finished {
                self.fail(&broken_off(), out);
            } else if self.include_usage && (self.usage.is_some() || self.timings.is_some()) {
                self.chunk(&[], Some(self.usage.as_ref()), self.timings.as_ref(), out);
            }
        }
        sse::write_event(out, None, b"[DONE]");
    }

    fn keep_alive(&mut self, out: &mut Vec<u8>) {
        sse::write_comment(out, "keep-alive");
    }
}
