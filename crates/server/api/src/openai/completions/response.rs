//! Writes a whole answer to a completion request. Called by the server and the gateway.

use serde::Serialize;

use super::super::FINGERPRINT;
use super::super::chat::finish_name;
use super::super::experts::WireExperts;
use super::super::usage::{WireTimings, WireUsage};
use super::logprobs::Logprobs;
use crate::core::{Answer, Choice, FinishReason, GenerateRequest};
use crate::dialect::with_prefix;

#[derive(Serialize)]
struct Response<'a> {
    id: String,
    object: &'static str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'static str,
    choices: Vec<WireChoice<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<WireUsage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<WireTimings>,
}

#[derive(Serialize)]
struct WireChoice<'a> {
    index: u32,
    text: String,
    logprobs: Option<Logprobs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    routed_experts: Option<WireExperts<'a>>,
    finish_reason: &'static str,
    /// vLLM's field: the stop text that ended the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_reason: Option<&'a str>,
}

/// The response body. (For an answer with an `error`, use [`error::body`](crate::openai::error::body).)
pub fn response(request: &GenerateRequest, answer: &Answer) -> Vec<u8> {
    crate::json::to_bytes(&Response {
        id: with_prefix("cmpl-", &answer.id),
        object: "text_completion",
        created: answer.created_s,
        model: &answer.model,
        system_fingerprint: FINGERPRINT,
        choices: answer.choices.iter().map(|c| choice(request, c)).collect(),
        usage: answer.usage.as_ref().map(WireUsage::from),
        timings: answer.timings.as_ref().map(WireTimings::from),
    })
}

fn choice<'a>(request: &GenerateRequest, c: &'a Choice) -> WireChoice<'a> {
    let finish = c.finish.as_ref().unwrap_or(&FinishReason::Length);
    WireChoice {
        index: c.index,
        text: c.text(),
        logprobs: request.logprobs.map(|_| Logprobs::new(&c.logprobs, &mut 0)),
        routed_experts: c.experts.as_ref().map(WireExperts::new),
        finish_reason: finish_name(finish),
        stop_reason: if let FinishReason::StopSequence(text) = finish { Some(text) } else { None },
    }
}
