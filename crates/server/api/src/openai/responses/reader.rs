//! A provider's response, whole or as a stream of events.
//!
//! Lenient: unknown events, items and fields are skipped.

use std::collections::HashMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::super::usage::AnyUsage;
use super::super::{error, logprobs};
use crate::ApiError;
use crate::calls::Calls;
use crate::core::{Event, FinishReason};
use crate::dialect::broken_off;
use crate::reader::{Reader, Translate, read};
use crate::sse::SseDecoder;

/// An event. Its fields are parsed only for known kinds: others may have fields of the same names.
#[derive(Deserialize)]
struct Wire {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    response: Option<Value>,
    #[serde(default)]
    item: Option<Value>,
    #[serde(default)]
    output_index: Option<Value>,
    #[serde(default)]
    summary_index: Option<Value>,
    #[serde(default)]
    delta: Option<Value>,
    #[serde(default)]
    logprobs: Option<Value>,
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
    output: Option<Vec<Value>>,
    #[serde(default)]
    usage: Option<AnyUsage>,
}

#[derive(Deserialize)]
struct Incomplete {
    #[serde(default)]
    reason: Option<String>,
}

/// An item of a known kind.
enum Item {
    Call(Call),
    Message(Message),
    Reasoning(Reasoning),
    /// Any other kind.
    Other,
}

#[derive(Deserialize)]
struct Call {
    #[serde(default)]
    call_id: Option<String>,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    arguments: Option<Value>,
}

#[derive(Deserialize)]
struct Message {
    #[serde(default)]
    content: Option<Vec<Value>>,
}

#[derive(Deserialize)]
struct Reasoning {
    #[serde(default)]
    content: Option<Vec<Value>>,
    #[serde(default)]
    summary: Option<Vec<Value>>,
}

impl Item {
    fn of(item: Value) -> Result<Self, ApiError> {
        Ok(match item["type"].as_str() {
            Some("function_call") => Self::Call(parse_known(item)?),
            Some("message") => Self::Message(parse_known(item)?),
            Some("reasoning") => Self::Reasoning(parse_known(item)?),
            _ => Self::Other,
        })
    }
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

/// The text parts of a list. Some have no type.
fn parts(list: Option<Vec<Value>>) -> Result<Vec<Part>, ApiError> {
    const TEXTS: [&str; 5] = ["output_text", "text", "refusal", "summary_text", "reasoning_text"];
    let texts = list.into_iter().flatten().filter(|p| p["type"].as_str().is_none_or(|t| TEXTS.contains(&t)));
    texts.map(parse_known).collect()
}

/// Parses items of known kinds.
fn parse_known<T: DeserializeOwned>(value: Value) -> Result<T, ApiError> {
    serde_json::from_value(value)
        .map_err(|e| ApiError::upstream(format!("the provider's answer cannot be read: {e}")))
}

/// The provider's index of an item. Some send none: their items come one after the other.
type Number = Option<u64>;

/// An item that the provider announced.
#[derive(Debug, Default)]
struct Announced {
    /// Its position among the calls.
    call: Option<usize>,
    /// Whether a part of it arrived.
    has_begun: bool,
    /// Whether it is complete.
    is_done: bool,
}

/// Translates events of the dialect.
#[derive(Debug, Default)]
pub struct Translator {
    started: bool,
    id: String,
    items: HashMap<Number, Announced>,
    calls: Calls,
    refused: bool,
    finished: bool,
}

impl Translator {
    fn event(&mut self, wire: Wire, json: &[u8], out: &mut Vec<Event>) -> Result<bool, ApiError> {
        let delta = wire.delta.as_ref().and_then(Value::as_str).filter(|t| !t.is_empty()).map(String::from);
        let number = wire.output_index.as_ref().and_then(Value::as_u64);
        match (wire.kind.as_str(), wire.response, wire.item) {
            ("response.created" | "response.in_progress", Some(response), _) => {
                self.start(&parse_known(response)?, out);
            }
            ("response.output_item.added", _, Some(item)) => self.added(number, &Item::of(item)?)?,
            ("response.output_item.done", _, Some(item)) => self.done(number, Item::of(item)?, out)?,
            ("response.function_call_arguments.delta", ..) => {
                if let Some(text) = delta {
                    self.arguments(number, &text, out)?;
                }
            }
            ("response.output_text.delta", ..) => {
                self.mark_begun(number);
                if let Some(tokens) = wire.logprobs.filter(|t| !t.is_null()) {
                    logged(parse_known(tokens)?, out);
                }
                self.emit(delta.map(|text| Event::Text { choice: 0, text }), out);
            }
            ("response.refusal.delta", ..) => {
                self.mark_begun(number);
                self.refused = true;
                self.emit(delta.map(|text| Event::Text { choice: 0, text }), out);
            }
            ("response.reasoning_summary_text.delta" | "response.reasoning_text.delta", ..) => {
                self.mark_begun(number);
                self.emit(delta.map(|text| Event::Reasoning { choice: 0, text }), out);
            }
            // Parts of a summary are paragraphs.
            ("response.reasoning_summary_part.added", ..)
                if wire.summary_index.and_then(|n| n.as_u64()).is_some_and(|n| n > 0) =>
            {
                out.push(Event::Reasoning { choice: 0, text: "\n\n".into() });
            }
            ("response.completed" | "response.incomplete", Some(response), _) => {
                self.finish(parse_known(response)?, out)?;
                return Ok(true);
            }
            ("response.failed", Some(response), _) => {
                return Err(failed(response.get("error")));
            }
            ("error", ..) => return Err(error::from_value(&read(json)?, None)),
            _ => {}
        }
        Ok(false)
    }

    fn start(&mut self, response: &Response, out: &mut Vec<Event>) {
        if !std::mem::replace(&mut self.started, true) {
            self.id = response.id.clone().unwrap_or_default();
            out.push(Event::Started {
                id: self.id.clone(),
                model: response.model.clone().unwrap_or_default(),
                created_s: response.created_at.unwrap_or(0.0) as u64,
                usage: None,
            });
        }
    }

    /// Processes a part of an item, even if the item was not announced.
    fn mark_begun(&mut self, number: Number) {
        self.items.entry(number).or_default().has_begun = true;
    }

    fn emit(&mut self, events: impl IntoIterator<Item = Event>, out: &mut Vec<Event>) {
        events.into_iter().for_each(|event| self.calls.emit(event, out));
    }

    fn arguments(&mut self, number: Number, text: &str, out: &mut Vec<Event>) -> Result<(), ApiError> {
        let Some(call) = self.items.get(&number).and_then(|item| item.call) else {
            return Err(ApiError::upstream("the provider's answer has arguments of no call"));
        };
        self.mark_begun(number);
        self.calls.arguments(call, text, &self.id, out)
    }

    fn added(&mut self, number: Number, item: &Item) -> Result<(), ApiError> {
        // Some providers announce an item twice.
        if number.is_some() && self.items.contains_key(&number) {
            return Ok(());
        }
        let mut at = None;
        if let Item::Call(call) = item {
            let Some(name) = call.name.clone().filter(|n| !n.is_empty()) else {
                return Err(ApiError::upstream("the provider's answer calls a tool without saying which"));
            };
            let id = call.call_id.clone().filter(|id| !id.is_empty());
            let own = number.unwrap_or_else(|| self.calls.next_number());
            at = Some(self.calls.begin(own, id, name));
        }
        self.items.insert(number, Announced { call: at, ..Announced::default() });
        Ok(())
    }

    /// Processes a complete item: emits what did not arrive in parts.
    fn done(&mut self, number: Number, item: Item, out: &mut Vec<Event>) -> Result<(), ApiError> {
        let is_next = number.is_none() && self.items.get(&number).is_some_and(|i| i.is_done);
        if is_next || !self.items.contains_key(&number) {
            self.added(number, &item)?;
        }
        let announced = self.items.entry(number).or_default();
        let was_done = std::mem::replace(&mut announced.is_done, true);
        let (is_said, call_at) = (was_done || announced.has_begun, announced.call);
        if is_said {
            return match call_at.filter(|_| !was_done) {
                Some(at) => self.calls.complete(at, &self.id, out),
                None => Ok(()),
            };
        }
        match item {
            Item::Call(call) => {
                let text = match call.arguments {
                    None | Some(Value::Null) => String::new(),
                    Some(Value::String(text)) => text,
                    Some(other) => other.to_string(),
                };
                self.arguments(number, &text, out)?;
                if let Some(at) = call_at {
                    self.calls.complete(at, &self.id, out)?;
                }
            }
            Item::Reasoning(reasoning) => {
                let text = |list| {
                    let texts: Vec<String> = parts(list)?.into_iter().filter_map(|p| p.text).collect();
                    Ok::<_, ApiError>(texts.join("\n\n"))
                };
                // The reasoning text, else its summary.
                let whole = text(reasoning.content)?;
                let text = if whole.is_empty() { text(reasoning.summary)? } else { whole };
                self.emit((!text.is_empty()).then_some(Event::Reasoning { choice: 0, text }), out);
                self.mark_begun(number);
            }
            Item::Message(message) => {
                for part in parts(message.content)? {
                    self.refused |= part.kind == "refusal";
                    logged(part.logprobs.unwrap_or_default(), out);
                    let text = part.text.or(part.refusal).filter(|t| !t.is_empty());
                    self.emit(text.map(|text| Event::Text { choice: 0, text }), out);
                }
                self.mark_begun(number);
            }
            Item::Other => {}
        }
        Ok(())
    }

    fn finish(&mut self, response: Response, out: &mut Vec<Event>) -> Result<(), ApiError> {
        self.start(&response, out);
        let cut = response.incomplete_details.and_then(|d| d.reason);
        let is_cut = cut.is_some() || response.status.as_deref() == Some("incomplete");
        self.calls.finish(is_cut, &self.id, out)?;
        let reason = match cut.as_deref() {
            Some("content_filter") => FinishReason::ContentFilter,
            _ if is_cut => FinishReason::Length,
            _ if !self.calls.is_empty() => FinishReason::ToolCalls,
            _ if self.refused => FinishReason::ContentFilter,
            _ => FinishReason::Stop,
        };
        self.finished = true;
        out.push(Event::Finished { choice: 0, reason });
        out.extend(response.usage.map(|u| Event::Usage(u.into())));
        Ok(())
    }
}

fn logged(tokens: Vec<logprobs::Token>, out: &mut Vec<Event>) {
    if !tokens.is_empty() {
        let tokens = tokens.into_iter().map(logprobs::Token::into).collect();
        out.push(Event::Logprobs { choice: 0, tokens });
    }
}

fn failed(error: Option<&Value>) -> ApiError {
    match error.filter(|e| !e.is_null()) {
        Some(error) => error::from_value(error, None),
        None => ApiError::upstream("the provider reports that its response failed, without a reason"),
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
/// A body that is not a response, or a failed response.
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
    for (i, item) in response.output.take().into_iter().flatten().enumerate() {
        t.done(Some(i as u64), Item::of(item)?, &mut out)?;
    }
    t.finish(response, &mut out)?;
    Ok(out)
}

/// Reads a stream of a response's events.
pub type ResponseReader = Reader<SseDecoder, Translator>;
