//! Writes a whole answer to a messages request.

use serde::Serialize;

use super::usage::WireUsage;
use super::{stop_name, stop_sequence};
use crate::anthropic::UNSIGNED;
use crate::core::{Answer, Block, FinishReason, GenerateRequest, RawObject};
use crate::dialect::with_prefix;

#[derive(Serialize)]
struct Response<'a> {
    id: String,
    #[serde(rename = "type")]
    kind: &'static str,
    role: &'static str,
    model: &'a str,
    content: Vec<WireBlock<'a>>,
    stop_reason: &'static str,
    stop_sequence: Option<&'a str>,
    usage: WireUsage,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum WireBlock<'a> {
    Thinking { thinking: &'a str, signature: &'a str },
    RedactedThinking { data: &'a str },
    Text { text: std::borrow::Cow<'a, str> },
    ToolUse { id: &'a str, name: &'a str, input: RawObject },
}

/// The response body: the first choice. (For an answer with an `error`, use [`error::body`](crate::anthropic::error::body).)
pub fn response(request: &GenerateRequest, answer: &Answer) -> Vec<u8> {
    let choice = answer.choices.first();
    let blocks = choice.map_or(&[][..], |c| &c.blocks);
    let finish = choice.and_then(|c| c.finish.as_ref()).unwrap_or(&FinishReason::Length);
    crate::json::to_bytes(&Response {
        id: with_prefix("msg_", &answer.id),
        kind: "message",
        role: "assistant",
        model: &answer.model,
        content: blocks.iter().filter_map(|b| block(b, request.shows_reasoning())).collect(),
        stop_reason: stop_name(finish),
        stop_sequence: stop_sequence(finish),
        usage: (&answer.usage.unwrap_or_default()).into(),
    })
}

fn block(block: &Block, reasoning: bool) -> Option<WireBlock<'_>> {
    match block {
        Block::Reasoning { text, signature } if reasoning => {
            Some(WireBlock::Thinking { thinking: text, signature: signature.as_deref().unwrap_or(UNSIGNED) })
        }
        Block::Redacted(data) if reasoning => Some(WireBlock::RedactedThinking { data }),
        Block::Reasoning { .. } | Block::Redacted(_) => None,
        Block::Text(text) if text.is_empty() => None,
        Block::Text(text) => Some(WireBlock::Text { text: text.into() }),
        Block::ToolCall { id, name, arguments, .. } => Some(match RawObject::read(arguments) {
            Ok(input) => WireBlock::ToolUse { id, name, input },
            // Truncated or invalid arguments: the client cannot call the tool, but the text is not lost.
            Err(_) => WireBlock::Text { text: format!("{name}({arguments})").into() },
        }),
    }
}
