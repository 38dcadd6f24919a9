//! The objects of answers, and whole answers. Streams use the same objects.

use std::borrow::Cow;

use serde::Serialize;

use super::proof;
use super::usage::Counts;
use crate::core::{
    Answer, Block, Choice, FinishReason, GenerateRequest, RawObject, ReasoningPart, TokenLogprob,
};
use crate::openai::finite;

/// An answer, or a chunk of one.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Wire<'a> {
    pub candidates: Vec<Candidate<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage_metadata: Option<Counts>,
    pub model_version: &'a str,
    pub response_id: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Candidate<'a> {
    pub content: Content<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<&'static str>,
    pub index: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub avg_logprobs: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs_result: Option<Logprobs<'a>>,
}

#[derive(Serialize)]
pub(super) struct Content<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Part<'a>>,
    pub role: &'static str,
}

#[derive(Serialize, Default)]
#[serde(rename_all = "camelCase")]
pub(super) struct Part<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub thought: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function_call: Option<Call<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thought_signature: Option<String>,
}

#[derive(Serialize)]
pub(super) struct Call<'a> {
    id: &'a str,
    name: &'a str,
    args: RawObject,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Logprobs<'a> {
    chosen_candidates: Vec<Token<'a>>,
    top_candidates: Vec<Top<'a>>,
}

#[derive(Serialize)]
struct Top<'a> {
    candidates: Vec<Token<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Token<'a> {
    token: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_id: Option<u32>,
    log_probability: f32,
}

impl<'a> Part<'a> {
    /// Text of an answer.
    pub fn text(text: impl Into<Cow<'a, str>>) -> Self {
        Self { text: Some(text.into()), ..Self::default() }
    }

    /// Reasoning.
    pub fn thought(text: &'a str) -> Self {
        Self { thought: true, ..Self::text(text) }
    }

    /// A call. A truncated one, or one with invalid arguments, becomes text: a client could not call it.
    pub fn call(id: &'a str, name: &'a str, arguments: &str) -> Self {
        match RawObject::read(arguments) {
            Ok(args) => Self { function_call: Some(Call { id, name, args }), ..Self::default() },
            Err(_) => Self::text(format!("{name}({arguments})")),
        }
    }

    /// The same with the signature of the reasoning before it.
    pub fn proven(mut self, proofs: &mut Vec<ReasoningPart>) -> Self {
        self.thought_signature = proof::wrap(&std::mem::take(proofs));
        self
    }
}

impl<'a> Logprobs<'a> {
    /// `None` where there are none.
    pub fn new(tokens: &'a [TokenLogprob]) -> Option<Self> {
        if tokens.is_empty() {
            return None;
        }
        let chosen = |t: &'a TokenLogprob| Token {
            token: &t.token,
            token_id: t.id,
            log_probability: finite(t.logprob.unwrap_or(0.0)),
        };
        let top = |t: &'a TokenLogprob| {
            let one = |t: &'a crate::core::TopLogprob| Token {
                token: &t.token,
                token_id: t.id,
                log_probability: finite(t.logprob),
            };
            Top { candidates: t.top.iter().map(one).collect() }
        };
        Some(Self {
            chosen_candidates: tokens.iter().map(chosen).collect(),
            top_candidates: tokens.iter().filter(|t| !t.top.is_empty()).map(top).collect(),
        })
    }
}

/// The value of `finishReason`.
pub(super) fn finish_name(reason: &FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop | FinishReason::StopSequence(_) | FinishReason::ToolCalls => "STOP",
        FinishReason::Length => "MAX_TOKENS",
        FinishReason::ContentFilter => "SAFETY",
    }
}

/// The body of a whole answer.
pub fn response(request: &GenerateRequest, answer: &Answer) -> Vec<u8> {
    crate::json::to_bytes(&Wire {
        candidates: answer.choices.iter().map(|c| candidate(c, request.shows_reasoning())).collect(),
        usage_metadata: Some(Counts::from(&answer.usage.unwrap_or_default())),
        model_version: &answer.model,
        response_id: &answer.id,
    })
}

fn candidate(choice: &Choice, reasoning: bool) -> Candidate<'_> {
    let (mut parts, mut proofs) = (Vec::new(), Vec::new());
    for block in &choice.blocks {
        match block {
            Block::Reasoning { text, signature } => {
                if reasoning && !text.is_empty() {
                    parts.push(Part::thought(text));
                }
                if signature.is_some() {
                    proofs.push(ReasoningPart::Text { text: String::new(), signature: signature.clone() });
                }
            }
            Block::Redacted(data) => proofs.push(ReasoningPart::Redacted(data.clone())),
            Block::Text(text) if text.is_empty() => {}
            Block::Text(text) => parts.push(Part::text(text.as_str()).proven(&mut proofs)),
            Block::ToolCall { id, name, arguments, .. } => {
                parts.push(Part::call(id, name, arguments).proven(&mut proofs));
            }
        }
    }
    if !proofs.is_empty() {
        parts.push(Part::text("").proven(&mut proofs));
    }
    let finish = choice.finish.as_ref().unwrap_or(&FinishReason::Length);
    let known = choice.logprobs.iter().filter_map(|t| t.logprob).map(finite);
    let sum: f32 = known.clone().sum();
    let count = known.count();
    Candidate {
        content: Content { parts, role: "model" },
        finish_reason: Some(finish_name(finish)),
        index: choice.index,
        avg_logprobs: (count > 0).then(|| sum / count as f32),
        logprobs_result: Logprobs::new(&choice.logprobs),
    }
}
