//! The objects of chat and generate answers, whole or as lines of a stream.

use serde::Serialize;

use super::context::History;
use crate::core::{Answer, Block, Choice, FinishReason, GenerateRequest, RawObject, Timings, Usage};
use crate::openai::Token;
use crate::time::rfc3339;

/// An answer or a line of one.
#[derive(Serialize)]
pub(super) struct Reply<'a> {
    pub model: &'a str,
    pub created_at: &'a str,
    #[serde(flatten)]
    pub content: Content<'a>,
    pub done: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub done_reason: Option<&'static str>,
    /// The conversation, for the next request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<Vec<Token>>,
    #[serde(flatten)]
    pub counts: Option<Counts>,
}

/// The position of the text: the only difference between the two endpoints.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum Content<'a> {
    Chat {
        message: Message<'a>,
    },
    Generate {
        response: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        thinking: Option<&'a str>,
    },
}

#[derive(Serialize)]
pub(super) struct Message<'a> {
    role: &'static str,
    content: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<WireCall>,
}

#[derive(Debug, Serialize)]
pub(super) struct WireCall {
    id: String,
    function: WireFunction,
}

#[derive(Debug, Serialize)]
struct WireFunction {
    index: u32,
    name: String,
    arguments: RawObject,
}

/// The counts and times (in nanoseconds) of the last line.
#[derive(Debug, Serialize)]
pub(super) struct Counts {
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: u64,
    prompt_eval_duration: u64,
    eval_count: u64,
    eval_duration: u64,
}

impl Counts {
    pub(super) fn new(usage: Option<Usage>, timings: Option<Timings>) -> Self {
        let (u, t) = (usage.unwrap_or_default(), timings.unwrap_or_default());
        Self {
            total_duration: nanoseconds(t.total_ms),
            load_duration: nanoseconds(t.load_ms),
            prompt_eval_count: u.prompt_tokens,
            prompt_eval_duration: nanoseconds(t.prompt_ms),
            eval_count: u.completion_tokens,
            eval_duration: nanoseconds(t.predicted_ms),
        }
    }
}

/// Whole nanoseconds; negative or invalid times become 0.
pub(super) fn nanoseconds(ms: f64) -> u64 {
    (ms * 1e6) as u64
}

impl<'a> Content<'a> {
    pub(super) fn new(
        chat: bool,
        text: &'a str,
        thinking: Option<&'a str>,
        tool_calls: Vec<WireCall>,
    ) -> Self {
        if chat {
            Self::Chat { message: Message { role: "assistant", content: text, thinking, tool_calls } }
        } else {
            Self::Generate { response: text, thinking }
        }
    }
}

/// A call; or its text, if its arguments are not an object (truncated or invalid), so that nothing is lost.
pub(super) fn call(index: u32, id: &str, name: &str, arguments: &str) -> Result<WireCall, String> {
    match RawObject::read(arguments) {
        Ok(arguments) => {
            Ok(WireCall { id: id.into(), function: WireFunction { index, name: name.into(), arguments } })
        }
        Err(_) => Err(format!("{name}({arguments})")),
    }
}

pub(super) fn done_name(reason: &FinishReason) -> &'static str {
    match reason {
        FinishReason::Length => "length",
        FinishReason::ContentFilter => "content_filter",
        FinishReason::Stop | FinishReason::StopSequence(_) | FinishReason::ToolCalls => "stop",
    }
}

/// A whole answer: its first choice.
pub(super) fn response(request: &GenerateRequest, answer: &Answer, chat: bool) -> Vec<u8> {
    let nothing = Choice::default();
    let choice = answer.choices.first().unwrap_or(&nothing);
    let mut text = String::new();
    let mut calls = Vec::new();
    for block in &choice.blocks {
        match block {
            Block::Text(t) => text.push_str(t),
            Block::ToolCall { index, id, name, arguments } => match call(*index, id, name, arguments) {
                Ok(call) => calls.push(call),
                Err(shown) => text.push_str(&shown),
            },
            Block::Reasoning { .. } | Block::Redacted(_) => {}
        }
    }
    let thinking = choice.reasoning().filter(|_| request.shows_reasoning());
    let context = History::of(request).map(|mut history| {
        history.push(&text);
        history.encode()
    });
    let finish = choice.finish.as_ref().unwrap_or(&FinishReason::Length);
    crate::json::to_bytes(&Reply {
        model: &answer.model,
        created_at: &rfc3339(answer.created_s),
        content: Content::new(chat, &text, thinking.as_deref(), calls),
        done: true,
        done_reason: Some(done_name(finish)),
        context,
        logprobs: request.logprobs.map(|_| choice.logprobs.iter().map(Token::new).collect()),
        counts: Some(Counts::new(answer.usage, answer.timings)),
    })
}
