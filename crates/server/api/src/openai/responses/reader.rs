//! A provider's response, whole or as a stream of events. Called by the gateway.
//!
//! Lenient: events, items and fields that we do not know are skipped.

use serde::Deserialize;
use serde_json::Value;

use super::super::usage::AnyUsage;
use super::super::{error, logprobs};
use crate::ApiError;
use crate::core::{Event, FinishReason};
use crate::dialect::broken_off;
use crate::reader::{Reader, Translate, read};
use crate::sse::SseDecoder;

#[derive(Deserialize)]
struct Wire {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    response: Option<Response>,
    #[serde(default)]
    item: Option<Item>,
    #[serde(default)]
    output_index: u32,
    #[serde(default)]
    summary_index: u32,
    #[serde(default)]
    delta: Option<Value>,
    #[serde(default)]
    logprobs: Option<Vec<logprobs::Token>>,
}

#[derive(Deserialize)]
struct Response {
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    created_at: Option<f64>,
    #[serde(default)]
    status: Option<String>,
    #[serde(default)]
    error: Option<Value>,
    #[serde(default)]
    incomplete_details: Option<Incomplete>,
    #[serde(default)]
    output: Vec<Item>,
    #[serde(default)]
    usage: Option<AnyUsage>,
}

#[derive(Deserialize)]
struct Incomplete {
    #[serde(default)]
    reason: Option<String>,
}

#[derive(Deserialize)]
struct Item {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    call_id: Option<String>,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    arguments: Option<String>,
    #[serde(default)]
    content: Option<Vec<Part>>,
    #[serde(default)]
    summary: Option<Vec<Part>>,
}

#[derive(Deserialize)]
struct Part {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    refusal: Option<String>,
    #[serde(default)]
    logprobs: Option<Vec<logprobs::Token>>,
}

/// The item that is being written.
#[derive(Debug)]
struct Open {
    /// The provider's number of it.
    number: u32,
    /// Ours of the call, if it is one.
    call: Option<u32>,
    /// Some of it came.
    has_begun: bool,
}

/// Turns events of the dialect into ours.
#[derive(Debug, Default)]
pub struct Translator {
    started: bool,
    open: Option<Open>,
    calls: u32,
    refused: bool,
    finished: bool,
}

impl Translator {
    fn event(&mut self, wire: Wire, json: &[u8], out: &mut Vec<Event>) -> Result<bool, ApiError> {
        let delta =
            || wire.delta.as_ref().and_then(Value::as_str).filter(|t| !t.is_empty()).map(String::from);
        match (wire.kind.as_str(), wire.response, wire.item) {
            ("response.created" | "response.in_progress", Some(response), _) => self.start(&response, out),
            ("response.output_item.added", _, Some(item)) => self.added(wire.output_index, item, out)?,
            ("response.output_item.done", _, Some(item)) => self.done(wire.output_index, item, out)?,
            ("response.function_call_arguments.delta", ..) => {
                if let Some(text) = delta() {
                    let open = self.open.as_mut().filter(|o| o.number == wire.output_index);
                    let Some((open, index)) = open.and_then(|o| o.call.map(|index| (o, index))) else {
                        return Err(ApiError::upstream(
                            "the provider's answer has arguments of no call, or mixes those of several",
                        ));
                    };
                    open.has_begun = true;
                    out.push(Event::ToolCallArguments { choice: 0, index, text });
                }
            }
            ("response.output_text.delta", ..) => {
                self.begun(wire.output_index);
                if let Some(tokens) = wire.logprobs.filter(|t| !t.is_empty()) {
                    let tokens = tokens.into_iter().map(logprobs::Token::into).collect();
                    out.push(Event::Logprobs { choice: 0, tokens });
                }
                out.extend(delta().map(|text| Event::Text { choice: 0, text }));
            }
            ("response.refusal.delta", ..) => {
                self.begun(wire.output_index);
                self.refused = true;
                out.extend(delta().map(|text| Event::Text { choice: 0, text }));
            }
            ("response.reasoning_summary_text.delta" | "response.reasoning_text.delta", ..) => {
                self.begun(wire.output_index);
                out.extend(delta().map(|text| Event::Reasoning { choice: 0, text }));
            }
            // Parts of a summary are paragraphs.
            ("response.reasoning_summary_part.added", ..) if wire.summary_index > 0 => {
                out.push(Event::Reasoning { choice: 0, text: "\n\n".into() });
            }
            ("response.completed" | "response.incomplete", Some(response), _) => {
                self.finish(response, out);
                return Ok(true);
            }
            ("response.failed", Some(response), _) => return Err(failed(response.error.as_ref())),
            ("error", ..) => return Err(error::from_value(&read(json)?, None)),
            _ => {}
        }
        Ok(false)
    }

    fn start(&mut self, response: &Response, out: &mut Vec<Event>) {
        if !std::mem::replace(&mut self.started, true) {
            out.push(Event::Started {
                id: response.id.clone().unwrap_or_default(),
                model: response.model.clone().unwrap_or_default(),
                created_s: response.created_at.unwrap_or(0.0) as u64,
                usage: None,
            });
        }
    }

    /// Some of an item came. What comes of one that was not announced is read all the same.
    fn begun(&mut self, number: u32) {
        match self.open.as_mut().filter(|o| o.number == number) {
            Some(open) => open.has_begun = true,
            None => self.open = Some(Open { number, call: None, has_begun: true }),
        }
    }

    fn added(&mut self, number: u32, item: Item, out: &mut Vec<Event>) -> Result<(), ApiError> {
        let mut call = None;
        if item.kind == "function_call" {
            let Some(name) = item.name.filter(|n| !n.is_empty()) else {
                return Err(ApiError::upstream("the provider's answer calls a tool without saying which"));
            };
            let index = self.calls;
            self.calls += 1;
            let id = item.call_id.filter(|id| !id.is_empty()).unwrap_or_else(|| format!("call_{index}"));
            out.push(Event::ToolCallStart { choice: 0, index, id, name });
            call = Some(index);
        }
        self.open = Some(Open { number, call, has_begun: false });
        Ok(())
    }

    /// An item is complete: what did not come piece by piece comes now.
    fn done(&mut self, number: u32, mut item: Item, out: &mut Vec<Event>) -> Result<(), ApiError> {
        let arguments = item.arguments.take();
        let (content, summary) = (item.content.take(), item.summary.take());
        let kind = item.kind.clone();
        if self.open.as_ref().is_none_or(|o| o.number != number) {
            self.added(number, item, out)?;
        }
        let Some(open) = self.open.take().filter(|o| !o.has_begun) else { return Ok(()) };
        if let Some(index) = open.call {
            let text = arguments.filter(|a| !a.trim().is_empty()).unwrap_or_else(|| "{}".into());
            out.push(Event::ToolCallArguments { choice: 0, index, text });
        }
        let text = |parts: Option<Vec<Part>>| {
            let texts: Vec<String> = parts.into_iter().flatten().filter_map(|p| p.text).collect();
            texts.join("\n\n")
        };
        if kind == "reasoning" {
            // As it was, else its summary.
            let whole = text(content);
            let text = if whole.is_empty() { text(summary) } else { whole };
            out.extend((!text.is_empty()).then_some(Event::Reasoning { choice: 0, text }));
            return Ok(());
        }
        for part in content.into_iter().flatten().filter(|_| kind == "message") {
            self.refused |= part.kind == "refusal";
            if let Some(tokens) = part.logprobs.filter(|t| !t.is_empty()) {
                let tokens = tokens.into_iter().map(logprobs::Token::into).collect();
                out.push(Event::Logprobs { choice: 0, tokens });
            }
            let text = part.text.or(part.refusal).filter(|t| !t.is_empty());
            out.extend(text.map(|text| Event::Text { choice: 0, text }));
        }
        Ok(())
    }

    fn finish(&mut self, response: Response, out: &mut Vec<Event>) {
        self.start(&response, out);
        let cut = response.incomplete_details.and_then(|d| d.reason);
        let reason = match cut.as_deref() {
            Some("content_filter") => FinishReason::ContentFilter,
            Some(_) => FinishReason::Length,
            None if response.status.as_deref() == Some("incomplete") => FinishReason::Length,
            None if self.calls > 0 => FinishReason::ToolCalls,
            None if self.refused => FinishReason::ContentFilter,
            None => FinishReason::Stop,
        };
        self.finished = true;
        out.push(Event::Finished { choice: 0, reason });
        out.extend(response.usage.map(|u| Event::Usage(u.into())));
    }
}

fn failed(error: Option<&Value>) -> ApiError {
    match error.filter(|e| !e.is_null()) {
        Some(error) => error::from_value(error, None),
        None => ApiError::upstream("the provider says that its response failed, and not why"),
    }
}

impl Translate for Translator {
    fn piece(&mut self, json: &[u8], out: &mut Vec<Event>) -> Result<bool, ApiError> {
        if json == b"[DONE]" {
            return Ok(true);
        }
        self.event(read(json)?, json, out)
    }

    fn end(&mut self, _out: &mut Vec<Event>) -> Result<(), ApiError> {
        if self.finished { Ok(()) } else { Err(broken_off()) }
    }
}

/// The events of a whole response.
///
/// # Errors
/// A body that is no response, or one that failed.
pub fn events(body: &[u8]) -> Result<Vec<Event>, ApiError> {
    let mut response: Response = read(body)?;
    let has_failed = matches!(response.status.as_deref(), Some("failed" | "cancelled"));
    if has_failed || response.error.as_ref().is_some_and(|e| !e.is_null()) {
        return Err(failed(response.error.as_ref()));
    }
    if !matches!(response.status.as_deref(), Some("completed" | "incomplete")) {
        return Err(ApiError::upstream("the provider's answer is no complete response"));
    }
    let mut out = Vec::new();
    let mut t = Translator::default();
    t.start(&response, &mut out);
    for (i, item) in std::mem::take(&mut response.output).into_iter().enumerate() {
        t.done(i as u32, item, &mut out)?;
    }
    t.finish(response, &mut out);
    Ok(out)
}

/// Reads a stream of a response's events.
pub type ResponseReader = Reader<SseDecoder, Translator>;
