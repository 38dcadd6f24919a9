//! Writes an answer as a stream of the objects of whole answers. Driven by the server and the gateway through [`StreamWriter`].

use super::answer::{Candidate, Content, Logprobs, Part, Wire, finish_name};
use super::error;
use super::usage::Counts;
use crate::ApiError;
use crate::core::{Event, FinishReason, GenerateRequest, ReasoningPart, TokenLogprob, Usage};
use crate::dialect::{StreamWriter, broken_off};
use crate::json;

/// The form of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Server-sent events.
    Events,
    /// One JSON array, for requests without `alt=sse`.
    Array,
}

/// Writes a chunk for each event, and a last one with each candidate's finish reason and the token counts.
///
/// A call is written as a whole. The signature of reasoning is in the part after it, as in Gemini's streams.
#[derive(Debug)]
pub struct ContentWriter {
    form: Form,
    reasoning: bool,
    id: String,
    model: String,
    choices: Vec<Progress>,
    usage: Option<Usage>,
    wrote: bool,
    failed: bool,
}

/// The state of a candidate.
#[derive(Debug, Default)]
struct Progress {
    choice: u32,
    call: Option<Call>,
    proofs: Vec<ReasoningPart>,
    logprobs: Vec<TokenLogprob>,
    finish: Option<FinishReason>,
}

/// A call whose arguments are arriving.
#[derive(Debug)]
struct Call {
    index: u32,
    id: String,
    name: String,
    arguments: String,
}

impl ContentWriter {
    /// Writes server-sent events.
    pub fn events(request: &GenerateRequest) -> Self {
        Self::new(request, Form::Events)
    }

    /// Writes one array.
    pub fn array(request: &GenerateRequest) -> Self {
        Self::new(request, Form::Array)
    }

    fn new(request: &GenerateRequest, form: Form) -> Self {
        Self {
            form,
            reasoning: request.shows_reasoning(),
            id: String::new(),
            model: String::new(),
            choices: Vec::new(),
            usage: None,
            wrote: false,
            failed: false,
        }
    }

    fn begin(&mut self, out: &mut Vec<u8>) {
        let first = !std::mem::replace(&mut self.wrote, true);
        out.extend_from_slice(match (self.form, first) {
            (Form::Events, _) => b"data: ",
            (Form::Array, true) => b"[",
            (Form::Array, false) => b",\n",
        });
    }

    fn finish(&self, out: &mut Vec<u8>) {
        if self.form == Form::Events {
            out.extend_from_slice(b"\n\n");
        }
    }

    fn piece(&mut self, choice: u32, part: Part<'_>, logprobs: &[TokenLogprob], out: &mut Vec<u8>) {
        self.begin(out);
        let candidate = Candidate {
            content: Content { parts: vec![part], role: "model" },
            finish_reason: None,
            index: choice,
            avg_logprobs: None,
            logprobs_result: Logprobs::new(logprobs),
        };
        json::write(
            out,
            &Wire {
                candidates: vec![candidate],
                usage_metadata: None,
                model_version: &self.model,
                response_id: &self.id,
            },
        );
        self.finish(out);
    }

    fn progress(&mut self, choice: u32) -> &mut Progress {
        let at = self.choices.iter().position(|p| p.choice == choice).unwrap_or_else(|| {
            self.choices.push(Progress { choice, ..Progress::default() });
            self.choices.len() - 1
        });
        &mut self.choices[at]
    }

    fn text(&mut self, choice: u32, text: &str, out: &mut Vec<u8>) {
        let progress = self.progress(choice);
        let part = Part::text(text).proven(&mut progress.proofs);
        let logprobs = std::mem::take(&mut progress.logprobs);
        self.piece(choice, part, &logprobs, out);
    }

    /// Writes the completed call, if there is one.
    fn close(&mut self, choice: u32, out: &mut Vec<u8>) {
        let progress = self.progress(choice);
        let Some(call) = progress.call.take() else { return };
        let part = Part::call(&call.id, &call.name, &call.arguments).proven(&mut progress.proofs);
        let logprobs = std::mem::take(&mut progress.logprobs);
        self.piece(choice, part, &logprobs, out);
    }

    fn fail(&mut self, e: &ApiError, out: &mut Vec<u8>) {
        self.failed = true;
        let body = error::body(e);
        match self.form {
            // Only the data, as Google's servers send it and its libraries expect it.
            Form::Events => {
                json::write(out, &body);
                out.extend_from_slice(b"\n\n");
            }
            Form::Array => {
                self.begin(out);
                json::write(out, &body);
            }
        }
    }

    fn close_array(&mut self, out: &mut Vec<u8>) {
        if self.form == Form::Array {
            out.extend_from_slice(if self.wrote { b"]" } else { b"[]" });
        }
    }
}

impl StreamWriter for ContentWriter {
    fn write(&mut self, event: &Event, out: &mut Vec<u8>) {
        if self.failed {
            return;
        }
        match event {
            Event::Started { id, model, usage, .. } => {
                self.id.clone_from(id);
                self.model.clone_from(model);
                self.usage = *usage;
            }
            Event::Reasoning { choice, text } => {
                self.close(*choice, out);
                if self.reasoning && !text.is_empty() {
                    self.piece(*choice, Part::thought(text), &[], out);
                }
            }
            Event::ReasoningSignature { choice, signature } => {
                let signature = Some(signature.clone());
                self.progress(*choice).proofs.push(ReasoningPart::Text { text: String::new(), signature });
            }
            Event::RedactedReasoning { choice, data } => {
                self.progress(*choice).proofs.push(ReasoningPart::Redacted(data.clone()));
            }
            Event::Text { choice, text } if !text.is_empty() => {
                self.close(*choice, out);
                self.text(*choice, text, out);
            }
            Event::ToolCallStart { choice, index, id, name } => {
                self.close(*choice, out);
                let (id, name) = (id.clone(), name.clone());
                self.progress(*choice).call =
                    Some(Call { index: *index, id, name, arguments: String::new() });
            }
            Event::ToolCallArguments { choice, index, text } => {
                if let Some(call) = self.progress(*choice).call.as_mut().filter(|c| c.index == *index) {
                    call.arguments.push_str(text);
                }
            }
            Event::Logprobs { choice, tokens } => {
                self.progress(*choice).logprobs.extend(tokens.iter().cloned());
            }
            Event::Finished { choice, reason } => {
                self.close(*choice, out);
                self.progress(*choice).finish = Some(reason.clone());
            }
            Event::Usage(usage) => self.usage = Some(*usage),
            Event::Error(e) => self.fail(e, out),
            // Events that this dialect cannot express.
            _ => {}
        }
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        if !self.failed && (self.choices.is_empty() || self.choices.iter().any(|p| p.finish.is_none())) {
            self.fail(&broken_off(), out);
        }
        if !self.failed {
            self.begin(out);
            let mut choices = std::mem::take(&mut self.choices);
            let last = |p: &mut Progress| (Part::text("").proven(&mut p.proofs), p.choice);
            let parts: Vec<(Part<'_>, u32)> = choices.iter_mut().map(last).collect();
            let candidates = parts.into_iter().zip(&choices).map(|((part, index), p)| Candidate {
                content: Content { parts: vec![part], role: "model" },
                finish_reason: p.finish.as_ref().map(finish_name),
                index,
                avg_logprobs: None,
                logprobs_result: Logprobs::new(&p.logprobs),
            });
            json::write(
                out,
                &Wire {
                    candidates: candidates.collect(),
                    usage_metadata: Some(Counts::from(&self.usage.unwrap_or_default())),
                    model_version: &self.model,
                    response_id: &self.id,
                },
            );
            self.finish(out);
        }
        self.close_array(out);
    }

    fn keep_alive(&mut self, out: &mut Vec<u8>) {
        // Google's libraries take comments for invalid JSON. White space between array items is harmless.
        if self.form == Form::Array && self.wrote {
            out.push(b'\n');
        }
    }

    fn pass(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        if self.form == Form::Events {
            out.extend_from_slice(bytes);
            return;
        }
        for data in bytes.split(|b| *b == b'\n').filter_map(|line| line.strip_prefix(b"data:")) {
            self.begin(out);
            out.extend_from_slice(data.trim_ascii());
        }
    }

    fn end_passed(&mut self, out: &mut Vec<u8>) {
        self.close_array(out);
    }
}
