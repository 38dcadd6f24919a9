//! Parses a client's completion request.

use super::super::chat::stream_options;
use super::super::foreign::{LENGTHS, drop_repeated};
use super::super::{fields, prompts};
use crate::ApiError;
use crate::core::{Completion, GenerateRequest, Infill, Input};
use crate::json::{self, Field, Object, Result};
use crate::rules::{Rules, only, refused, tuning};

/// This dialect's default length of an answer.
const MAX_TOKENS_DEFAULT: u32 = 16;

const RULES: Rules = &[
    ("messages", refused("it belongs to /v1/chat/completions; send 'prompt'")),
    ("system", refused("put it into 'prompt'")),
    ("instructions", refused("put them into 'prompt'")),
    ("format", refused("send 'response_format'")),
    ("options", refused("send its fields beside 'prompt'")),
    ("tools", refused("it belongs to /v1/chat/completions")),
    ("tool_choice", only(r#"["none", "auto"]"#, "it belongs to /v1/chat/completions")),
    ("top_logprobs", only("[0]", "here 'logprobs' is the number of alternatives")),
    ("reasoning_effort", tuning("a plain completion has no reasoning")),
    ("chat_template_kwargs", tuning("a plain completion has no template")),
    ("add_special_tokens", only("[true]", "the model's tokenizer says which tokens a prompt begins with")),
];

/// Parses the body of a `POST /v1/completions`.
///
/// # Errors
/// Fields that are unknown, not supported, of the wrong type or out of range, by name.
pub fn parse(body: &[u8]) -> Result<GenerateRequest> {
    let mut o = json::parse(body)?;
    drop_repeated(&mut o);
    let model = o.model()?;
    let prompts = prompts::prompts(o.require("prompt")?)?;
    let echo = o.read("echo", Field::bool)?.unwrap_or(false);

    let suffix = o.read("suffix", Field::string)?.filter(|s| !s.is_empty());
    let infill = suffix.map(|suffix| Infill { suffix, files: Vec::new() });
    let mut r = GenerateRequest::new(model, Input::Completion(Completion { prompts, echo, infill }));
    r.max_tokens = max_tokens(&mut o, echo)?;
    r.stop = o.read("stop", fields::stop)?.unwrap_or_default();
    r.n = o.read("n", |f| f.count(1..=fields::N_MAX))?.unwrap_or(1);
    // Some clients send `best_of` with `n`; with equal values it has no effect.
    o.only("best_of", &[r.n.into()], "every answer is given; there is no choosing among several")?;
    r.logprobs = o.read("logprobs", |f| f.count(0..=fields::TOP_LOGPROBS_MAX))?;
    r.response_format = o.read("response_format", fields::response_format)?.unwrap_or_default();
    fields::structured(&mut o, &mut r)?;
    r.include_usage = stream_options(&mut o)?;
    fields::common(&mut o, &mut r)?;
    fields::finish(o, &mut r, &[RULES, LENGTHS])?;
    Ok(r)
}

/// 0 is valid only if the prompt's own log-probabilities are requested.
fn max_tokens(o: &mut Object, echo: bool) -> Result<Option<u32>> {
    let Some(f) = o.take_any(&["max_tokens", "max_completion_tokens"])? else {
        return Ok(Some(MAX_TOKENS_DEFAULT));
    };
    if f.value().as_u64() == Some(0) && !echo {
        return Err(ApiError::invalid(
            "max_tokens",
            "'max_tokens' may be 0 only with 'echo', else there is no answer",
        ));
    }
    f.limit(0)
}
