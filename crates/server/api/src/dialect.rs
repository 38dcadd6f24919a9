//! The interfaces that all dialects share: stream writers for clients, stream readers for providers.

use serde_json::{Map, Value};

use crate::ApiError;
use crate::core::{Chat, Event, GenerateRequest};

/// Writes the events of one answer as a client's stream. Bytes are appended to `out`.
pub trait StreamWriter: Send {
    /// The next event.
    fn write(&mut self, event: &Event, out: &mut Vec<u8>);
    /// Ends the stream. An incomplete answer ends with an error event.
    fn end(&mut self, out: &mut Vec<u8>);
    /// Writes a keep-alive that clients ignore; may write nothing.
    fn keep_alive(&mut self, out: &mut Vec<u8>);
    /// Forwards complete events of a provider that speaks the client's dialect.
    fn pass(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(bytes);
    }
    /// Ends a forwarded stream.
    fn end_passed(&mut self, _out: &mut Vec<u8>) {}
}

/// Parses a provider's stream. Invalid data becomes one [`Event::Error`], the last event.
pub trait StreamReader: Send {
    /// Parses the next bytes, split anywhere.
    fn push(&mut self, bytes: &[u8], out: &mut Vec<Event>);
    /// The connection was closed. An incomplete stream gives an error.
    fn end(&mut self, out: &mut Vec<Event>);
    /// Whether the stream is complete or has failed: what follows is not read.
    fn is_over(&self) -> bool;
}

/// A request in a provider's dialect.
#[derive(Debug, Clone, PartialEq)]
pub struct Body {
    /// The JSON body.
    pub json: Map<String, Value>,
    /// Requested fields that the provider does not have. The gateway decides whether that is an error.
    pub dropped: Vec<&'static str>,
    /// Why, for those of which there is more to say than that.
    pub reasons: Vec<String>,
}

impl Body {
    pub(crate) fn empty() -> Self {
        Self { json: Map::new(), dropped: Vec::new(), reasons: Vec::new() }
    }

    pub(crate) fn new(model: &str) -> Self {
        let mut body = Self::empty();
        body.set("model", Some(model));
        body
    }

    /// Sets a field if there is a value.
    pub(crate) fn set(&mut self, name: &str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.json.insert(name.into(), value.into());
        }
    }

    /// Records that the client set `name`, which the provider does not have.
    pub(crate) fn drop_if(&mut self, asked: bool, name: &'static str) {
        if asked {
            self.dropped.push(name);
        }
    }

    /// Records that a field cannot be kept, and why.
    pub(crate) fn drop_because(&mut self, name: &'static str, why: String) {
        self.dropped.push(name);
        self.reasons.push(why);
    }

    /// Drops `parallel_tool_calls: false`. With the deprecated `functions` the client has not set it: its answer has one call anyway.
    pub(crate) fn drop_parallel_tool_calls(&mut self, chat: &Chat) {
        let asked = chat.parallel_tool_calls == Some(false) && !chat.has_legacy_functions();
        self.drop_if(asked, "parallel_tool_calls");
    }

    /// Drops the choice of a tool, by the name of the client's field.
    pub(crate) fn drop_tool_choice(&mut self, chat: &Chat) {
        self.drop_if(true, if chat.has_legacy_functions() { "function_call" } else { "tool_choice" });
    }

    /// Drops all sampling fields except temperature, `top_p` and `top_k`, for providers that have only these.
    pub(crate) fn drop_all_but_the_basics(&mut self, r: &GenerateRequest) {
        let s = &r.sampling;
        self.drop_if(s.min_p.is_some(), "min_p");
        s.more.fields().into_iter().for_each(|(name, _)| self.drop_if(true, name));
        self.drop_if(s.repetition_penalty.is_some(), "repetition_penalty");
        self.drop_if(s.presence_penalty.is_some(), "presence_penalty");
        self.drop_if(s.frequency_penalty.is_some(), "frequency_penalty");
        self.drop_if(s.seed.is_some(), "seed");
        self.drop_if(!s.logit_bias.is_empty(), "logit_bias");
        self.drop_if(r.logprobs.is_some(), "logprobs");
        self.drop_if(r.n > 1, "n");
        self.drop_if(r.min_tokens.is_some(), "min_tokens");
        self.drop_if(!r.stop_token_ids.is_empty(), "stop_token_ids");
        self.drop_if(r.ignore_eos, "ignore_eos");
        self.drop_if(r.report.experts, "return_routed_experts");
    }

    /// Sets a field that only some providers have, or records it as dropped.
    pub(crate) fn set_if(&mut self, known: bool, name: &'static str, value: Option<impl Into<Value>>) {
        if known {
            self.set(name, value);
        } else {
            self.drop_if(value.is_some(), name);
        }
    }
}

/// The error of a stream that ended before it was complete.
pub(crate) fn broken_off() -> ApiError {
    ApiError::upstream("the answer ended before it was complete")
}

/// An id with the prefix of its dialect.
pub(crate) fn with_prefix(prefix: &str, id: &str) -> String {
    if id.starts_with(prefix) { id.to_string() } else { format!("{prefix}{id}") }
}
