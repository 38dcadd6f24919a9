//! Writes a chat or generate answer as a stream of lines. Driven by the server and the gateway through [`StreamWriter`].

use super::answer::{Content, Counts, Reply, WireCall, call, done_name};
use super::context::History;
use super::error;
use crate::ApiError;
use crate::core::{Event, FinishReason, GenerateRequest, Timings, TokenLogprob, Usage};
use crate::dialect::{StreamWriter, broken_off};
use crate::ndjson;
use crate::openai::Token;
use crate::time::rfc3339;

/// Writes a line for each piece, and a last one with counts. Calls are written whole: the dialect has no partial ones. Only the first
/// choice is written: the dialect has one.
#[derive(Debug)]
pub struct LineWriter {
    chat: bool,
    reasoning: bool,
    logprobs: bool,
    model: String,
    created_at: String,
    /// Log-probabilities whose text is not written yet.
    waiting: Vec<TokenLogprob>,
    open: Option<OpenCall>,
    finish: Option<FinishReason>,
    usage: Option<Usage>,
    timings: Option<Timings>,
    /// The conversation with the answer so far, if the last line has it.
    history: Option<History>,
    failed: bool,
}

/// The call being collected.
#[derive(Debug)]
struct OpenCall {
    index: u32,
    id: String,
    name: String,
    arguments: String,
}

impl LineWriter {
    pub(super) fn new(request: &GenerateRequest, chat: bool) -> Self {
        Self {
            chat,
            reasoning: request.shows_reasoning(),
            logprobs: request.logprobs.is_some(),
            model: request.model.clone(),
            created_at: rfc3339(0),
            waiting: Vec::new(),
            open: None,
            finish: None,
            usage: None,
            timings: None,
            history: History::of(request),
            failed: false,
        }
    }

    fn line(&mut self, text: &str, thinking: Option<&str>, calls: Vec<WireCall>, out: &mut Vec<u8>) {
        let waiting = std::mem::take(&mut self.waiting);
        let reply = Reply {
            model: &self.model,
            created_at: &self.created_at,
            content: Content::new(self.chat, text, thinking, calls),
            done: false,
            done_reason: None,
            context: None,
            logprobs: (!waiting.is_empty()).then(|| waiting.iter().map(Token::new).collect()),
            counts: None,
        };
        ndjson::write_line(out, &crate::json::to_bytes(&reply));
    }

    /// Writes the completed call.
    fn close(&mut self, out: &mut Vec<u8>) {
        let Some(open) = self.open.take() else { return };
        match call(open.index, &open.id, &open.name, &open.arguments) {
            Ok(call) => self.line("", None, vec![call], out),
            Err(text) => self.line(&text, None, Vec::new(), out),
        }
    }

    fn fail(&mut self, e: &ApiError, out: &mut Vec<u8>) {
        self.failed = true;
        ndjson::write_line(out, error::body(e).to_string().as_bytes());
    }
}

impl StreamWriter for LineWriter {
    fn write(&mut self, event: &Event, out: &mut Vec<u8>) {
        if self.failed {
            return;
        }
        match event {
            Event::Started { model, created_s, .. } => {
                self.model.clone_from(model);
                self.created_at = rfc3339(*created_s);
            }
            Event::Reasoning { choice: 0, text } if self.reasoning => {
                self.close(out);
                self.line("", Some(text), Vec::new(), out);
            }
            Event::Text { choice: 0, text } => {
                self.close(out);
                if let Some(history) = &mut self.history {
                    history.push(text);
                }
                self.line(text, None, Vec::new(), out);
            }
            Event::ToolCallStart { choice: 0, index, id, name } => {
                self.close(out);
                let (index, id, name) = (*index, id.clone(), name.clone());
                self.open = Some(OpenCall { index, id, name, arguments: String::new() });
            }
            Event::ToolCallArguments { choice: 0, index, text } => match &mut self.open {
                Some(open) if open.index == *index => open.arguments.push_str(text),
                _ => self.fail(&ApiError::upstream("the answer mixes the arguments of several calls"), out),
            },
            Event::Logprobs { choice: 0, tokens } if self.logprobs => {
                self.waiting.extend(tokens.iter().cloned());
            }
            Event::Finished { choice: 0, reason } => {
                self.close(out);
                self.finish = Some(reason.clone());
            }
            Event::Usage(usage) => self.usage = Some(*usage),
            Event::Timings(timings) => self.timings = Some(*timings),
            Event::Error(e) => self.fail(e, out),
            // Events that this dialect cannot express, or that were not requested.
            _ => {}
        }
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        if self.failed {
            return;
        }
        let Some(reason) = self.finish.take() else {
            self.fail(&broken_off(), out);
            return;
        };
        let waiting = std::mem::take(&mut self.waiting);
        let reply = Reply {
            model: &self.model,
            created_at: &self.created_at,
            content: Content::new(self.chat, "", None, Vec::new()),
            done: true,
            done_reason: Some(done_name(&reason)),
            context: self.history.take().map(History::encode),
            logprobs: (!waiting.is_empty()).then(|| waiting.iter().map(Token::new).collect()),
            counts: Some(Counts::new(self.usage, self.timings)),
        };
        ndjson::write_line(out, &crate::json::to_bytes(&reply));
    }

    fn keep_alive(&mut self, _out: &mut Vec<u8>) {
        // Clients take every line for a part of the answer, so there is no keep-alive.
    }
}
