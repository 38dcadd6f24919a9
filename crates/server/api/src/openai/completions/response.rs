//! Writes a whole answer to a completion request.

use serde::Serialize;

use super::super::chat::finish_name;
use super::super::envelope::{self, stop_reason};
use super::super::experts::WireExperts;
use super::NAMES;
use super::logprobs::Logprobs;
use crate::core::{Answer, Choice, FinishReason, GenerateRequest};

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
    let choices = answer.choices.iter().map(|c| choice(request, c)).collect();
    envelope::response(NAMES, answer, choices)
}

fn choice<'a>(request: &GenerateRequest, c: &'a Choice) -> WireChoice<'a> {
    let finish = c.finish.as_ref().unwrap_or(&FinishReason::Length);
    WireChoice {
        index: c.index,
        text: c.text(),
        logprobs: request.logprobs.map(|_| Logprobs::new(&c.logprobs, &mut 0)),
        routed_experts: c.experts.as_ref().map(WireExperts::new),
        finish_reason: finish_name(finish),
        stop_reason: stop_reason(finish),
    }
}
