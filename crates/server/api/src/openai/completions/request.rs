//! A client's request to continue prompts. Called by the server and the gateway.

use super::super::chat::stream_options;
use super::super::{fields, prompts};
use crate::ApiError;
use crate::core::{Completion, GenerateRequest, Input};
use crate::json::{self, Accepted, Field, Object, Result};

/// Longest answer where the client does not say: this dialect's own.
const MAX_TOKENS_DEFAULT: u32 = 16;

const REFUSED: &[Accepted] = &[
    ("messages", "they belong to /v1/chat/completions; send 'prompt'"),
    ("tools", "they belong to /v1/chat/completions"),
    ("tool_choice", "it belongs to /v1/chat/completions"),
    ("reasoning_effort", "a plain completion does not think; use /v1/chat/completions"),
    ("chat_template_kwargs", "a plain completion has no template; use /v1/chat/completions"),
    ("top_logprobs", "it belongs to /v1/chat/completions; here 'logprobs' is the number of alternatives"),
    ("max_completion_tokens", "it belongs to /v1/chat/completions; send 'max_tokens'"),
];

/// Reads the body of a `POST /v1/completions`.
///
/// # Errors
/// Fields that are unknown, not supported, of the wrong type or out of range, by name.
pub fn parse(body: &[u8]) -> Result<GenerateRequest> {
    let mut o = json::parse(body)?;
    let model = o.require("model")?.name()?;
    let prompts = prompts::prompts(o.require("prompt")?)?;
    let echo = o.read("echo", Field::bool)?.unwrap_or(false);

    let mut r = GenerateRequest::new(model, Input::Completion(Completion { prompts, echo }));
    r.max_tokens = max_tokens(&mut o, echo)?;
    r.stop = o.read("stop", fields::stop)?.unwrap_or_default();
    r.n = o.read("n", |f| f.count(1..=fields::N_MAX))?.unwrap_or(1);
    // Some clients send both; the best of as many as are given are all.
    o.only("best_of", &[r.n.into()], "every answer is given; there is no choosing among several")?;
    r.logprobs = o.read("logprobs", |f| f.count(0..=fields::TOP_LOGPROBS_MAX))?;
    r.response_format = o.read("response_format", fields::response_format)?.unwrap_or_default();
    fields::structured(&mut o, &mut r)?;
    r.include_usage = stream_options(&mut o)?;
    o.only("suffix", &["".into()], "filling in the middle is not supported")?;
    o.only(
        "add_special_tokens",
        &[true.into()],
        "the model's tokenizer says which tokens a prompt begins with",
    )?;
    fields::common(&mut o, &mut r)?;
    let known: Vec<Accepted> = REFUSED.iter().chain(fields::REFUSED).copied().collect();
    o.finish(&known)?;
    Ok(r)
}

/// 0 only makes sense where the prompt's own log-probabilities are asked for.
fn max_tokens(o: &mut Object, echo: bool) -> Result<Option<u32>> {
    let Some(f) = o.take("max_tokens") else { return Ok(Some(MAX_TOKENS_DEFAULT)) };
    if f.value().as_u64() == Some(0) && !echo {
        return Err(ApiError::invalid(
            "max_tokens",
            "'max_tokens' may be 0 only with 'echo', else there is no answer",
        ));
    }
    f.limit(0)
}
