//! Writes completions as a stream. Driven by the server and the gateway through [`StreamWriter`].

use serde::Serialize;

use super::super::chat::finish_name;
use super::super::envelope::{ChunkStream, stop_reason};
use super::super::experts::WireExperts;
use super::NAMES;
use super::logprobs::Logprobs;
use crate::core::{Event, FinishReason, GenerateRequest, RoutedExperts, TokenLogprob};
use crate::dialect::StreamWriter;
use crate::sse;

/// Writes `text_completion` events and `[DONE]`. As in chat, token counts are written only if requested, and times are in the last
/// event.
#[derive(Debug)]
pub struct CompletionWriter {
    stream: ChunkStream,
    logprobs: bool,
    choices: Vec<Progress>,
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
            stream: ChunkStream::new(NAMES, request),
            logprobs: request.logprobs.is_some(),
            choices: Vec::new(),
        }
    }

    fn progress(&mut self, choice: u32) -> &mut Progress {
        let at = self.choices.iter().position(|p| p.choice == choice).unwrap_or_else(|| {
            self.choices.push(Progress { choice, ..Progress::default() });
            self.choices.len() - 1
        });
        &mut self.choices[at]
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
        let choice = ChunkChoice {
            index,
            text,
            logprobs,
            routed_experts: experts.as_ref().map(WireExperts::new),
            finish_reason: finish.map(finish_name),
            stop_reason: finish.and_then(stop_reason),
        };
        let per_token = self.stream.timings_per_token && !last;
        let timings = self.stream.take_timings(per_token || last && !self.stream.include_usage);
        self.stream.write(choice, timings.as_ref(), out);
    }

    /// Writes the held-back last event of a choice.
    fn release(&mut self, last: bool, out: &mut Vec<u8>) {
        if let Some((index, reason)) = self.stream.finish.take() {
            self.piece(index, "", Some(&reason), last, out);
        }
    }
}

impl StreamWriter for CompletionWriter {
    fn write(&mut self, event: &Event, out: &mut Vec<u8>) {
        if self.stream.has_failed() {
            return;
        }
        if !matches!(event, Event::Usage(_) | Event::Timings(_)) {
            self.release(false, out);
        }
        match event {
            Event::Text { choice, text } => self.piece(*choice, text, None, false, out),
            Event::Logprobs { choice, tokens } if self.logprobs => {
                self.progress(*choice).waiting.extend(tokens.iter().cloned());
            }
            Event::RoutedExperts { choice, tokens } => {
                self.progress(*choice).experts.get_or_insert_default().extend(tokens);
            }
            Event::Started { .. }
            | Event::Finished { .. }
            | Event::Progress { .. }
            | Event::Usage(_)
            | Event::Timings(_)
            | Event::Error(_) => self.stream.record(event, out),
            // Plain text has no reasoning or calls, and log-probabilities were not requested.
            Event::Reasoning { .. }
            | Event::ReasoningSignature { .. }
            | Event::RedactedReasoning { .. }
            | Event::ToolCallStart { .. }
            | Event::ToolCallArguments { .. }
            | Event::Logprobs { .. }
            | Event::Tokens { .. }
            | Event::Applied(_) => {}
        }
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        if !self.stream.has_failed() {
            self.release(true, out);
        }
        self.stream.end(out);
    }

    fn keep_alive(&mut self, out: &mut Vec<u8>) {
        sse::write_comment(out, "keep-alive");
    }
}
