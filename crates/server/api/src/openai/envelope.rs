//! What answers to chats and to completions share around their choices, whole and streamed.

use serde::Serialize;

use super::usage::{WireProgress, WireTimings, WireUsage};
use super::{FINGERPRINT, error};
use crate::ApiError;
use crate::core::{Answer, Event, FinishReason, GenerateRequest};
use crate::dialect::{broken_off, with_prefix};
use crate::sse;

/// What distinguishes the answers of the two endpoints.
#[derive(Debug, Clone, Copy)]
pub(super) struct Names {
    /// The prefix of ids.
    pub prefix: &'static str,
    /// `object` of a whole answer.
    pub answer: &'static str,
    /// `object` of a chunk.
    pub chunk: &'static str,
}

#[derive(Serialize)]
struct Response<'a, C> {
    id: String,
    object: &'static str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'static str,
    choices: Vec<C>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<WireUsage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<WireTimings>,
}

/// A whole answer with these choices, as JSON.
pub(super) fn response<C: Serialize>(names: Names, answer: &Answer, choices: Vec<C>) -> Vec<u8> {
    crate::json::to_bytes(&Response {
        id: with_prefix(names.prefix, &answer.id),
        object: names.answer,
        created: answer.created_s,
        model: &answer.model,
        system_fingerprint: FINGERPRINT,
        choices,
        usage: answer.usage.as_ref().map(WireUsage::from),
        timings: answer.timings.as_ref().map(WireTimings::from),
    })
}

/// vLLM's `stop_reason`: the stop text that ended the answer.
pub(super) fn stop_reason(finish: &FinishReason) -> Option<&str> {
    if let FinishReason::StopSequence(text) = finish { Some(text) } else { None }
}

#[derive(Serialize)]
struct Chunk<'a, C> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'static str,
    choices: &'a [C],
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<&'a WireUsage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<&'a WireTimings>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_progress: Option<&'a WireProgress>,
}

/// The state of a stream that does not belong to a choice.
#[derive(Debug)]
pub(super) struct ChunkStream {
    names: Names,
    pub include_usage: bool,
    pub timings_per_token: bool,
    id: String,
    model: String,
    created: u64,
    /// The last chunk of a choice, not written yet: it has the times, which come later.
    pub finish: Option<(u32, FinishReason)>,
    usage: Option<WireUsage>,
    timings: Option<WireTimings>,
    finished: bool,
    failed: bool,
}

impl ChunkStream {
    pub fn new(names: Names, request: &GenerateRequest) -> Self {
        Self {
            names,
            include_usage: request.include_usage,
            timings_per_token: request.report.timings_per_token,
            id: String::new(),
            model: String::new(),
            created: 0,
            finish: None,
            usage: None,
            timings: None,
            finished: false,
            failed: false,
        }
    }

    /// Whether an error has ended the stream.
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// The times that are not written yet, if `wanted`.
    pub fn take_timings(&mut self, wanted: bool) -> Option<WireTimings> {
        if wanted { self.timings.take() } else { None }
    }

    fn chunk<'a, C>(
        &'a self,
        choices: &'a [C],
        usage: Option<&'a WireUsage>,
        timings: Option<&'a WireTimings>,
    ) -> Chunk<'a, C> {
        Chunk {
            id: &self.id,
            object: self.names.chunk,
            created: self.created,
            model: &self.model,
            system_fingerprint: FINGERPRINT,
            choices,
            usage,
            timings,
            prompt_progress: None,
        }
    }

    /// Writes a chunk of one choice.
    pub fn write<C: Serialize>(&self, choice: C, timings: Option<&WireTimings>, out: &mut Vec<u8>) {
        // Only the last chunk has `usage`, as in llama-server and vLLM. OpenAI writes `null` into the others, but some clients take any
        // chunk with the field as the last.
        sse::write_json(out, None, &self.chunk(&[choice], None, timings));
    }

    /// Records or writes an event that concerns the stream; ignores those of a choice's contents.
    pub fn record(&mut self, event: &Event, out: &mut Vec<u8>) {
        match event {
            Event::Started { id, model, created_s, .. } => {
                self.id = with_prefix(self.names.prefix, id);
                self.model.clone_from(model);
                self.created = *created_s;
            }
            Event::Finished { choice, reason } => {
                self.finish = Some((*choice, reason.clone()));
                self.finished = true;
            }
            // A chunk without choices.
            Event::Progress { done, total, cached, ms } => {
                let progress = WireProgress { total: *total, cache: *cached, processed: *done, time_ms: *ms };
                let chunk = Chunk { prompt_progress: Some(&progress), ..self.chunk::<()>(&[], None, None) };
                sse::write_json(out, None, &chunk);
            }
            Event::Usage(usage) => self.usage = Some(usage.into()),
            Event::Timings(timings) => self.timings = Some(timings.into()),
            Event::Error(e) => self.fail(e, out),
            _ => {}
        }
    }

    fn fail(&mut self, e: &ApiError, out: &mut Vec<u8>) {
        self.failed = true;
        sse::write_json(out, None, &error::body(e));
    }

    /// Writes the token counts if requested, or an error if the answer is incomplete, and `[DONE]`.
    pub fn end(&mut self, out: &mut Vec<u8>) {
        if !self.failed {
            if !self.finished {
                self.fail(&broken_off(), out);
            } else if self.include_usage && (self.usage.is_some() || self.timings.is_some()) {
                let chunk = self.chunk::<()>(&[], self.usage.as_ref(), self.timings.as_ref());
                sse::write_json(out, None, &chunk);
            }
        }
        sse::write_event(out, None, b"[DONE]");
    }
}
