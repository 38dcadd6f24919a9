//! `/v1/chat/completions`: for clients ([`parse`], [`response`], [`ChunkWriter`]) and for providers ([`body()`], [`events`],
//! [`ChunkReader`]).

mod body;
mod messages;
mod proof;
mod reader;
mod request;
mod response;
mod stream;
mod tools;

pub(super) use body::effort;
pub use body::{Flavor, body};
pub(crate) use messages::{NOT_KEPT, any_arguments, arguments, content_kind, document, text_or_parts};
pub use reader::{ChunkReader, events};
pub use request::parse;
pub(crate) use request::{request, stream_options};
pub use response::response;
pub use stream::ChunkWriter;
pub(crate) use tools::tool_choice;

use super::envelope::Names;

/// `finish_reason` of an answer with a call of one of the deprecated `functions`.
const FUNCTION_CALL: &str = "function_call";

const NAMES: Names = Names { prefix: "chatcmpl-", answer: "chat.completion", chunk: "chat.completion.chunk" };

/// The value of `finish_reason`.
pub(super) fn finish_name(reason: &crate::core::FinishReason) -> &'static str {
    use crate::core::FinishReason::*;
    match reason {
        Stop | StopSequence(_) => "stop",
        Length => "length",
        ToolCalls => "tool_calls",
        ContentFilter => "content_filter",
    }
}
