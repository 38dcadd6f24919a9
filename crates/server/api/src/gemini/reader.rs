//! Parses Gemini's answer, whole or as a stream of the same objects.
//!
//! Lenient: unknown parts and fields are skipped.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::Value;

use super::usage::Counts;
use super::{SIGNED, error};
use crate::core::{Event, FinishReason, RawObject, Usage};
use crate::dialect::broken_off;
use crate::reader::{Reader, Translate, read};
use crate::sse::SseDecoder;
use crate::time::seconds;
use crate::{ApiError, ErrorKind};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wire {
    #[serde(default)]
    candidates: Vec<Candidate>,
    #[serde(default)]
    prompt_feedback: Option<Feedback>,
    #[serde(default)]
    usage_metadata: Option<Counts>,
    #[serde(default)]
    model_version: Option<String>,
    #[serde(default)]
    response_id: Option<String>,
    #[serde(default)]
    create_time: Option<String>,
    #[serde(default)]
    error: Option<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Feedback {
    #[serde(default)]
    block_reason: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Candidate {
    #[serde(default)]
    index: u32,
    #[serde(default)]
    content: Option<Content>,
    #[serde(default)]
    finish_reason: Option<String>,
    #[serde(default)]
    finish_message: Option<String>,
    #[serde(default)]
    logprobs_result: Option<Logprobs>,
}

#[derive(Deserialize)]
struct Content {
    #[serde(default)]
    parts: Vec<Part>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Part {
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    thought: bool,
    #[serde(default)]
    thought_signature: Option<String>,
    #[serde(default)]
    function_call: Option<Call>,
}

#[derive(Deserialize)]
struct Call {
    #[serde(default)]
    id: Option<String>,
    name: String,
    #[serde(default)]
    args: RawObject,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Logprobs {
    #[serde(default)]
    chosen_candidates: Vec<Token>,
    #[serde(default)]
    top_candidates: Vec<Top>,
}

#[derive(Deserialize)]
struct Top {
    #[serde(default)]
    candidates: Vec<Token>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Token {
    #[serde(default)]
    token: String,
    #[serde(default)]
    log_probability: f32,
}

/// The state of a candidate.
#[derive(Debug, Default)]
struct Progress {
    choice: u32,
    calls: u32,
    finished: bool,
}

/// Translates answers and chunks.
#[derive(Debug, Default)]
pub struct Translator {
    started: bool,
    id: String,
    choices: Vec<Progress>,
    /// Their places, by the provider's index.
    places: HashMap<u32, usize>,
    usage: Option<Usage>,
}

/// Maximum number of choices: writers of streams search them. More than any provider has.
const CHOICES_MAX: usize = 1024;

impl Translator {
    fn answer(&mut self, w: Wire, out: &mut Vec<Event>) -> Result<(), ApiError> {
        if let Some(e) = w.error {
            return Err(error::from_value(&serde_json::json!({ "error": e }), None));
        }
        if let Some(reason) =
            w.prompt_feedback.and_then(|f| f.block_reason).filter(|_| w.candidates.is_empty())
        {
            let what = format!("the provider refuses the prompt: {reason}");
            return Err(ApiError { code: Some(reason), ..ApiError::new(ErrorKind::ContentPolicy, what) });
        }
        if !self.started && (!w.candidates.is_empty() || w.usage_metadata.is_some()) {
            self.started = true;
            self.id = w.response_id.unwrap_or_default();
            out.push(Event::Started {
                id: self.id.clone(),
                model: w.model_version.unwrap_or_default(),
                created_s: w.create_time.as_deref().and_then(seconds).unwrap_or(0),
                usage: None,
            });
        }
        // Counts of a stream are totals.
        self.usage = w.usage_metadata.map(Usage::from).or(self.usage);
        w.candidates.into_iter().try_for_each(|c| self.candidate(c, out))
    }

    fn candidate(&mut self, c: Candidate, out: &mut Vec<Event>) -> Result<(), ApiError> {
        let choice = c.index;
        let at = *self.places.entry(choice).or_insert(self.choices.len());
        if at == self.choices.len() {
            self.choices.push(Progress { choice, ..Progress::default() });
        }
        let progress = &mut self.choices[at];
        if let Some(tokens) = c.logprobs_result.map(tokens).filter(|t| !t.is_empty()) {
            out.push(Event::Logprobs { choice, tokens });
        }
        for part in c.content.map(|c| c.parts).unwrap_or_default() {
            progress.part(part, &self.id, out);
        }
        if let Some(name) = c.finish_reason.filter(|_| !progress.finished) {
            progress.finished = true;
            let reason = progress.reason(&name, c.finish_message)?;
            out.push(Event::Finished { choice, reason });
        }
        Ok(())
    }
}

impl Translate for Translator {
    fn piece(&mut self, json: &[u8], out: &mut Vec<Event>) -> Result<bool, ApiError> {
        self.answer(read(json)?, out)?;
        if self.choices.len() > CHOICES_MAX {
            return Err(ApiError::upstream(format!(
                "the provider's answer has more than {CHOICES_MAX} choices"
            )));
        }
        Ok(false)
    }

    fn end(&mut self, out: &mut Vec<Event>) -> Result<(), ApiError> {
        if self.choices.is_empty() || self.choices.iter().any(|p| !p.finished) {
            return Err(broken_off());
        }
        out.extend(self.usage.take().map(Event::Usage));
        Ok(())
    }
}

impl Progress {
    fn part(&mut self, part: Part, answer: &str, out: &mut Vec<Event>) {
        let choice = self.choice;
        let text = part.text.filter(|t| !t.is_empty());
        let signed = part.thought_signature.filter(|s| !s.is_empty());
        let proof = signed.map(|s| Event::ReasoningSignature { choice, signature: format!("{SIGNED}{s}") });
        if part.thought {
            out.extend(text.map(|text| Event::Reasoning { choice, text }));
            out.extend(proof);
            return;
        }
        // It signs the reasoning before it.
        out.extend(proof);
        out.extend(text.map(|text| Event::Text { choice, text }));
        if let Some(call) = part.function_call {
            let index = self.calls;
            self.calls += 1;
            let id = call.id.filter(|id| !id.is_empty());
            let id = id.unwrap_or_else(|| format!("call_{answer}_{choice}_{index}"));
            out.extend(Event::tool_call(choice, index, &id, &call.name, call.args.get()));
        }
    }

    fn reason(&self, name: &str, message: Option<String>) -> Result<FinishReason, ApiError> {
        Ok(match name {
            "MAX_TOKENS" => FinishReason::Length,
            "SAFETY" | "RECITATION" | "LANGUAGE" | "BLOCKLIST" | "PROHIBITED_CONTENT" | "SPII"
            | "IMAGE_SAFETY" => FinishReason::ContentFilter,
            "STOP" | "FINISH_REASON_UNSPECIFIED" if self.calls > 0 => FinishReason::ToolCalls,
            "STOP" | "FINISH_REASON_UNSPECIFIED" => FinishReason::Stop,
            _ => {
                let why = message.map(|m| format!(": {m}")).unwrap_or_default();
                return Err(ApiError::upstream(format!("the provider ended its answer with {name}{why}")));
            }
        })
    }
}

fn tokens(l: Logprobs) -> Vec<crate::core::TokenLogprob> {
    let mut tops = l.top_candidates.into_iter();
    let token = |t: Token| {
        let top = tops.next().map(|t| t.candidates).unwrap_or_default().into_iter().map(|t| {
            let bytes = t.token.as_bytes().to_vec();
            crate::core::TopLogprob { id: None, bytes, logprob: t.log_probability, token: t.token }
        });
        crate::core::TokenLogprob {
            id: None,
            bytes: t.token.as_bytes().to_vec(),
            logprob: Some(t.log_probability),
            top: top.collect(),
            token: t.token,
        }
    };
    l.chosen_candidates.into_iter().map(token).collect()
}

/// The events of a whole answer.
///
/// # Errors
/// A body that is not an answer, or an error with status 200.
pub fn events(body: &[u8]) -> Result<Vec<Event>, ApiError> {
    let mut out = Vec::new();
    let mut translator = Translator::default();
    translator.piece(body, &mut out)?;
    translator.end(&mut out)?;
    Ok(out)
}

/// Parses a stream (`alt=sse`). Only the end of the connection ends it.
pub type ContentReader = Reader<SseDecoder, Translator>;
