//! Writes a whole answer to a chat request.

use serde::Serialize;

use super::super::envelope::{self, stop_reason};
use super::super::experts::WireExperts;
use super::super::logprobs::Logprobs;
use super::proof::Proofs;
use super::{FUNCTION_CALL, NAMES, finish_name};
use crate::core::{Answer, Choice, FinishReason, GenerateRequest, ToolOrigin};

#[derive(Serialize)]
struct WireChoice<'a> {
    index: u32,
    message: WireMessage<'a>,
    logprobs: Option<Logprobs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    routed_experts: Option<WireExperts<'a>>,
    finish_reason: &'static str,
    /// vLLM's field: the stop text that ended the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_reason: Option<&'a str>,
}

#[derive(Serialize)]
struct WireMessage<'a> {
    role: &'static str,
    content: Option<String>,
    refusal: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(flatten)]
    proofs: Proofs,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<WireCall<'a>>,
    /// The call of one of the deprecated `functions`.
    #[serde(skip_serializing_if = "Option::is_none")]
    function_call: Option<WireFunction<'a>>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum WireCall<'a> {
    Function { id: &'a str, function: WireFunction<'a> },
    Custom { id: &'a str, custom: WireCustom<'a> },
}

#[derive(Serialize)]
struct WireCustom<'a> {
    name: &'a str,
    input: String,
}

#[derive(Serialize)]
struct WireFunction<'a> {
    name: &'a str,
    arguments: &'a str,
}

/// The response body. (For an answer with an `error`, use [`error::body`](crate::openai::error::body).)
pub fn response(request: &GenerateRequest, answer: &Answer) -> Vec<u8> {
    let choices = answer.choices.iter().map(|c| choice(request, c)).collect();
    envelope::response(NAMES, answer, choices)
}

fn choice<'a>(request: &GenerateRequest, c: &'a Choice) -> WireChoice<'a> {
    let is_legacy = request.has_legacy_functions();
    let mut calls = c.tool_calls();
    let function_call = if is_legacy { calls.next() } else { None };
    let function_call = function_call.map(|(_, name, arguments)| WireFunction { name, arguments });
    let calls: Vec<_> = calls
        .filter(|_| !is_legacy)
        .map(|(id, name, arguments)| {
            if request.is_custom(name) {
                WireCall::Custom { id, custom: WireCustom { name, input: ToolOrigin::input(arguments) } }
            } else {
                WireCall::Function { id, function: WireFunction { name, arguments } }
            }
        })
        .collect();
    let text = c.text();
    // A message with calls only has no content, as in OpenAI's answers.
    let has_calls = function_call.is_some() || !calls.is_empty();
    let content = (!has_calls || !text.is_empty()).then_some(text);
    let finish = c.finish.as_ref().unwrap_or(&FinishReason::Length);
    WireChoice {
        index: c.index,
        message: WireMessage {
            role: "assistant",
            content,
            refusal: None,
            reasoning_content: c.reasoning().filter(|_| request.shows_reasoning()),
            proofs: if request.shows_reasoning() { Proofs::of(&c.blocks) } else { Proofs::default() },
            tool_calls: calls,
            function_call,
        },
        logprobs: request.logprobs.map(|_| Logprobs::new(&c.logprobs)),
        routed_experts: c.experts.as_ref().map(WireExperts::new),
        finish_reason: match finish {
            FinishReason::ToolCalls if is_legacy => FUNCTION_CALL,
            finish => finish_name(finish),
        },
        stop_reason: stop_reason(finish),
    }
}
