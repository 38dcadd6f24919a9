//! Writes a response as a stream of events. Driven by the server and the gateway through [`StreamWriter`].

use serde::Serialize;
use serde_json::{Value, json};

use super::response::{
    Call, Frame, item_status, logprob_values, message_item, reasoning_item, reasoning_part, text_part,
};
use crate::ApiError;
use crate::core::{Event, FinishReason, GenerateRequest, Reporting, TokenLogprob, ToolOrigin, Usage};
use crate::dialect::{StreamWriter, broken_off};
use crate::openai::usage::{WireProgress, WireTimings};
use crate::sse;

/// Writes `response.created`, `response.in_progress`, the items (each `response.output_item.added`, its parts and deltas,
/// `response.output_item.done`) and `response.completed`, `.incomplete` or `.failed`. Only the first choice is written: the dialect
/// has one.
#[derive(Debug)]
pub struct ResponseWriter {
    frame: Frame,
    reasoning: bool,
    logprobs: bool,
    started: bool,
    sequence: u64,
    output: Vec<Value>,
    open: Option<Open>,
    waiting: Vec<TokenLogprob>,
    /// llama.cpp's fields, where the request asks for them.
    report: Reporting,
    timings: Option<WireTimings>,
    usage: Option<Usage>,
    finish: Option<FinishReason>,
    failed: bool,
}

/// The item being written.
#[derive(Debug)]
struct Open {
    kind: Kind,
    id: String,
    /// Its content so far: reasoning, text or arguments.
    text: String,
    logprobs: Vec<TokenLogprob>,
}

#[derive(Debug)]
enum Kind {
    Reasoning,
    Message,
    Call { index: u32, call: Call },
}

impl Kind {
    /// The event for pieces of the arguments, if they are streamed: a custom tool's text is inside a JSON string, which is parsed when
    /// complete.
    fn arguments_event(&self) -> Option<&'static str> {
        match self {
            Self::Call { call, .. } if call.origin.custom => None,
            Self::Call { .. } => Some("response.function_call_arguments.delta"),
            _ => None,
        }
    }
}

#[derive(Serialize)]
struct Delta<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    sequence_number: u64,
    item_id: &'a str,
    output_index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_index: Option<u32>,
    delta: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<Vec<Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<&'a WireTimings>,
}

impl ResponseWriter {
    /// A stream writer for the answer to `request`.
    pub fn new(request: &GenerateRequest) -> Self {
        Self {
            frame: Frame::new(request),
            reasoning: request.shows_reasoning(),
            logprobs: request.logprobs.is_some(),
            started: false,
            sequence: 0,
            output: Vec::new(),
            open: None,
            waiting: Vec::new(),
            report: request.report.clone(),
            timings: None,
            usage: None,
            finish: None,
            failed: false,
        }
    }

    /// Writes an event with the fields of `rest`.
    fn event(&mut self, kind: &'static str, rest: Value, out: &mut Vec<u8>) {
        let mut value = json!({"type": kind, "sequence_number": self.sequence});
        self.sequence += 1;
        if let (Value::Object(all), Value::Object(rest)) = (&mut value, rest) {
            all.extend(rest);
        }
        sse::write_json(out, Some(kind), &value);
    }

    fn begin(&mut self, kind: Kind, out: &mut Vec<u8>) {
        self.close("completed", out);
        let n = self.output.len();
        let (prefix, part) = match &kind {
            Kind::Reasoning => ("rs", Some(reasoning_part(""))),
            Kind::Message => ("msg", Some(text_part("", &[]))),
            Kind::Call { call, .. } => (call.prefix(), None),
        };
        let open =
            Open { kind, id: self.frame.item_id(prefix, n), text: String::new(), logprobs: Vec::new() };
        let item = open.item(None, "in_progress");
        self.event("response.output_item.added", json!({"output_index": n, "item": item}), out);
        if let Some(part) = part {
            let rest = json!({"item_id": open.id, "output_index": n, "content_index": 0, "part": part});
            self.event("response.content_part.added", rest, out);
        }
        self.open = Some(open);
    }

    fn delta(&mut self, text: &str, out: &mut Vec<u8>) {
        let Some(open) = &mut self.open else { return };
        open.text.push_str(text);
        let (kind, content_index) = match (&open.kind, open.kind.arguments_event()) {
            (Kind::Reasoning, _) => ("response.reasoning_text.delta", Some(0)),
            (Kind::Message, _) => ("response.output_text.delta", Some(0)),
            (Kind::Call { .. }, Some(kind)) => (kind, None),
            (Kind::Call { .. }, None) => return,
        };
        let logprobs = matches!(open.kind, Kind::Message).then(|| {
            let tokens = std::mem::take(&mut self.waiting);
            let values = logprob_values(&tokens);
            open.logprobs.extend(tokens);
            values
        });
        let delta = Delta {
            kind,
            sequence_number: self.sequence,
            item_id: &open.id,
            output_index: self.output.len(),
            content_index,
            delta: text,
            logprobs,
            timings: self.timings.as_ref().filter(|_| self.report.timings_per_token),
        };
        sse::write_json(out, Some(kind), &delta);
        self.sequence += 1;
    }

    fn close(&mut self, status: &str, out: &mut Vec<u8>) {
        let Some(open) = self.open.take() else { return };
        let n = self.output.len();
        let (id, text) = (&open.id, &open.text);
        let part = match &open.kind {
            Kind::Reasoning => {
                let rest = json!({"item_id": id, "output_index": n, "content_index": 0, "text": text});
                self.event("response.reasoning_text.done", rest, out);
                Some(reasoning_part(text))
            }
            Kind::Message => {
                let logprobs = logprob_values(&open.logprobs);
                let rest = json!({"item_id": id, "output_index": n, "content_index": 0, "text": text, "logprobs": logprobs});
                self.event("response.output_text.done", rest, out);
                Some(text_part(text, &open.logprobs))
            }
            Kind::Call { call, .. } if call.origin.custom => {
                let input = ToolOrigin::input(text);
                let rest = json!({"item_id": id, "output_index": n, "delta": input});
                self.event("response.custom_tool_call_input.delta", rest, out);
                let rest = json!({"item_id": id, "output_index": n, "input": input});
                self.event("response.custom_tool_call_input.done", rest, out);
                None
            }
            Kind::Call { call, .. } => {
                let name = call.client_name();
                let rest = json!({"item_id": id, "output_index": n, "name": name, "arguments": text});
                self.event("response.function_call_arguments.done", rest, out);
                None
            }
        };
        if let Some(part) = &part {
            let rest = json!({"item_id": id, "output_index": n, "content_index": 0, "part": part});
            self.event("response.content_part.done", rest, out);
        }
        let item = open.item(Some(text), status);
        self.event("response.output_item.done", json!({"output_index": n, "item": item}), out);
        self.output.push(item);
    }

    fn fail(&mut self, e: &ApiError, out: &mut Vec<u8>) {
        self.failed = true;
        if self.started {
            let output = std::mem::take(&mut self.output);
            let response = self.frame.failed(e, output).clone();
            self.event("response.failed", json!({"response": response}), out);
        } else {
            let rest = json!({"code": e.code, "message": e.message, "param": e.param});
            self.event("error", rest, out);
        }
    }
}

impl Open {
    /// The item, with or without its content.
    fn item(&self, text: Option<&str>, status: &str) -> Value {
        match &self.kind {
            Kind::Reasoning => reasoning_item(&self.id, text, status),
            Kind::Message => message_item(&self.id, text.map(|t| text_part(t, &self.logprobs)), status),
            Kind::Call { call, .. } => call.item(&self.id, text, status),
        }
    }
}

impl StreamWriter for ResponseWriter {
    fn write(&mut self, event: &Event, out: &mut Vec<u8>) {
        if self.failed {
            return;
        }
        match event {
            Event::Started { id, model, created_s, .. } => {
                self.started = true;
                self.frame.begin(id, model, *created_s);
                for kind in ["response.created", "response.in_progress"] {
                    let response = self.frame.value().clone();
                    self.event(kind, json!({"response": response}), out);
                }
            }
            Event::Reasoning { choice: 0, text } if self.reasoning => {
                if !matches!(self.open, Some(Open { kind: Kind::Reasoning, .. })) {
                    self.begin(Kind::Reasoning, out);
                }
                self.delta(text, out);
            }
            Event::Text { choice: 0, text } if !text.is_empty() => {
                if !matches!(self.open, Some(Open { kind: Kind::Message, .. })) {
                    self.begin(Kind::Message, out);
                }
                self.delta(text, out);
            }
            Event::ToolCallStart { choice: 0, index, id, name } => {
                let call = Call { id: id.clone(), origin: self.frame.origin(name), name: name.clone() };
                self.begin(Kind::Call { index: *index, call }, out);
            }
            Event::ToolCallArguments { choice: 0, index, text } => match &self.open {
                Some(Open { kind: Kind::Call { index: i, .. }, .. }) if i == index => self.delta(text, out),
                _ => self.fail(&ApiError::upstream("the answer mixes the arguments of several calls"), out),
            },
            Event::Logprobs { choice: 0, tokens } if self.logprobs => {
                self.waiting.extend(tokens.iter().cloned());
            }
            Event::Finished { choice: 0, reason } => {
                self.close(item_status(reason), out);
                self.finish = Some(reason.clone());
            }
            Event::Progress { done, total, cached, ms } if self.report.progress => {
                let progress = WireProgress { total: *total, cache: *cached, processed: *done, time_ms: *ms };
                let response = self.frame.value().clone();
                let rest = json!({"response": response, "prompt_progress": progress});
                self.event("response.in_progress", rest, out);
            }
            Event::Timings(timings) => self.timings = Some(timings.into()),
            Event::Usage(usage) => self.usage = Some(*usage),
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
        let output = std::mem::take(&mut self.output);
        let response = self.frame.finished(&reason, output, self.usage.as_ref()).clone();
        let complete = response["status"] == "completed";
        let kind = if complete { "response.completed" } else { "response.incomplete" };
        let mut rest = json!({"response": response});
        let shown = self.report.progress || self.report.timings_per_token;
        if let Some(timings) = self.timings.take().filter(|_| shown) {
            rest["timings"] = json!(timings);
        }
        self.event(kind, rest, out);
    }

    fn keep_alive(&mut self, out: &mut Vec<u8>) {
        sse::write_comment(out, "keep-alive");
    }
}
