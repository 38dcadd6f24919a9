//! Parses a client's chat request.

use super::super::fields;
use super::super::foreign::{LENGTHS, drop_repeated};
use super::messages::messages;
use super::tools::tools;
use crate::ApiError;
use crate::core::{Chat, GenerateRequest, Input, Role};
use crate::json::{self, Field, Object, Result};
use crate::rules::{Rules, only, refused, tuning};

/// Fields of other APIs.
const RULES: Rules = &[
    ("system", refused("send a message with the role 'system'")),
    ("instructions", refused("send a message with the role 'system'")),
    ("format", refused("send 'response_format'")),
    ("options", refused("send its fields beside 'messages'")),
    ("parse_tool_calls", only("[true]", "calls are always parsed")),
];

/// Parses the body of a `POST /v1/chat/completions`.
///
/// # Errors
/// Fields that are unknown, not supported, of the wrong type or out of range, by name.
pub fn parse(body: &[u8]) -> Result<GenerateRequest> {
    request(json::parse(body)?)
}

/// The same for a parsed object.
pub(crate) fn request(mut o: Object) -> Result<GenerateRequest> {
    drop_repeated(&mut o);
    let model = o.model()?;
    let read = messages(o.require("messages")?)?;
    let mut chat = Chat { messages: read.messages, ..Chat::default() };
    tools(&mut o, &mut chat)?;
    fields::other_thinking(&mut o, &mut chat)?;
    let effort = if o.has("reasoning_effort") { "reasoning_effort" } else { "reasoning.effort" };
    if let Some(f) = o.take("reasoning_effort") {
        fields::effort(f, &mut chat)?;
    }
    fields::thinking(&mut o, &mut chat)?;
    fields::settle_effort(&o, &mut chat, effort);
    continuation(&mut o, &mut chat, read.continued)?;
    o.settle_unread(&chat.current_turn())?;

    let mut r = GenerateRequest::new(model, Input::Chat(Chat::default()));
    r.max_tokens = max_tokens(&mut o)?;
    r.stop = o.read("stop", fields::stop)?.unwrap_or_default();
    r.n = o.read("n", |f| f.count(1..=fields::N_MAX))?.unwrap_or(1);
    r.logprobs = logprobs(&mut o)?;
    r.response_format = o.read("response_format", fields::response_format)?.unwrap_or_default();
    fields::structured(&mut o, &mut r)?;
    r.include_usage = stream_options(&mut o)?;
    fields::common(&mut o, &mut r)?;
    r.input = Input::Chat(chat);
    fields::finish(o, &mut r, &[RULES, LENGTHS])?;
    Ok(r)
}

/// vLLM's fields to continue the last message; `continued` is the path of a field of the message itself that says so.
fn continuation(o: &mut Object, chat: &mut Chat, continued: Option<String>) -> Result<()> {
    let name = "continue_final_message";
    let asked = o.read(name, Field::bool)?;
    if let Some(path) = continued.as_ref().filter(|_| asked == Some(false)) {
        return Err(ApiError::invalid(path.clone(), format!("'{path}' is true, but '{name}' is false")));
    }
    chat.continue_final = continued.is_some() || asked == Some(true);
    let path = &*continued.unwrap_or_else(|| name.into());
    if chat.continue_final && chat.messages.last().is_none_or(|m| m.role != Role::Assistant) {
        return Err(ApiError::invalid(path, format!("'{path}' needs a last message of the assistant")));
    }
    if chat.continue_final && chat.messages.last().is_some_and(|m| !m.tool_calls.is_empty()) {
        return Err(ApiError::invalid(path, format!("'{path}' cannot continue a message with 'tool_calls'")));
    }
    if chat.continue_final {
        let why = "it cannot be true together with 'continue_final_message'";
        o.only("add_generation_prompt", &[false.into()], why)
    } else {
        let why = "without it there is no answer; set 'continue_final_message' to continue the last message";
        o.only("add_generation_prompt", &[true.into()], why)
    }
}

/// The newer and the older name of the answer's token limit, and llama-server's.
fn max_tokens(o: &mut Object) -> Result<Option<u32>> {
    // llama-server's word for no limit: it contradicts no other.
    if o.peek("n_predict").is_some_and(|n| *n == -1) {
        o.take("n_predict");
    }
    match o.take_any(&["max_completion_tokens", "max_tokens", "n_predict"])? {
        Some(f) => f.limit(1),
        None => Ok(None),
    }
}

fn logprobs(o: &mut Object) -> Result<Option<u32>> {
    let on = o.read("logprobs", Field::bool)?.unwrap_or(false);
    let Some(f) = o.take("top_logprobs") else { return Ok(on.then_some(0)) };
    let missing = f.error("needs 'logprobs' to be true");
    let top = f.count(0..=fields::TOP_LOGPROBS_MAX)?;
    if on || top == 0 { Ok(on.then_some(top)) } else { Err(missing) }
}

/// Whether a stream ends with token counts.
pub(crate) fn stream_options(o: &mut Object) -> Result<bool> {
    let Some(f) = o.take("stream_options") else { return Ok(false) };
    if !o.is_on("stream") {
        f.warn("is ignored: it has no effect without 'stream'");
        return Ok(false);
    }
    let mut options = f.object()?;
    let include_usage = options.read("include_usage", Field::bool)?.unwrap_or(false);
    // Padding hides lengths from eavesdroppers. Requests for no padding are met; requests for padding are harmless.
    options.read("include_obfuscation", Field::bool)?;
    options.finish(&[&[("continuous_usage_stats", tuning("tokens are counted at the end"))]])?;
    Ok(include_usage)
}
