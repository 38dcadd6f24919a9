//! `/v1/messages`: for clients ([`parse`], [`response`], [`MessageWriter`]) and for providers ([`body()`], [`events`],
//! [`MessageReader`]).

mod body;
mod content;
mod reader;
mod request;
mod response;
mod stream;
mod usage;

pub use body::{Provider, body};
pub(crate) use reader::Translator;
pub use reader::{MessageReader, events};
pub use request::parse;
pub(super) use request::parse_to_count;
pub use response::response;
pub use stream::MessageWriter;
pub use usage::UsageReader;

use crate::core::FinishReason;

/// The value of `stop_reason`.
fn stop_name(reason: &FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "end_turn",
        FinishReason::StopSequence(_) => "stop_sequence",
        FinishReason::Length => "max_tokens",
        FinishReason::ToolCalls => "tool_use",
        FinishReason::ContentFilter => "refusal",
    }
}

/// The value of `stop_sequence`.
fn stop_sequence(reason: &FinishReason) -> Option<&str> {
    match reason {
        FinishReason::StopSequence(text) => Some(text),
        _ => None,
    }
}

/// The meaning of a provider's `stop_reason`.
fn stop_reason(name: &str, sequence: Option<String>) -> FinishReason {
    match name {
        "stop_sequence" => FinishReason::StopSequence(sequence.unwrap_or_default()),
        "max_tokens" | "model_context_window_exceeded" => FinishReason::Length,
        "tool_use" => FinishReason::ToolCalls,
        "refusal" => FinishReason::ContentFilter,
        _ => FinishReason::Stop,
    }
}
