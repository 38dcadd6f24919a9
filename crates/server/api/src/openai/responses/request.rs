//! Parses a client's Responses request.

use super::super::chat::stream_options;
use super::super::fields;
use super::{items, tools};
use serde_json::Value;

use crate::ApiError;
use crate::core::{Chat, GenerateRequest, Input, Message, ResponseFormat, Role};
use crate::json::{self, Field, Object, Result};
use crate::rules::{Rules, echo, refused, tuning, tuning_but};

/// Fields of the body, before those of all of OpenAI's dialects.
const RULES: Rules = &[
    ("truncation", tuning_but(r#"["disabled"]"#, "a prompt that does not fit is refused, never cut")),
    ("context_management", tuning("nothing is cut from a conversation")),
    // It limits hosted tools, and there are none.
    ("max_tool_calls", echo()),
    ("access_programs", tuning("there are none")),
    ("background", refused("answers are given at once")),
    ("conversation", refused("conversations are not kept; send the items, or 'previous_response_id'")),
    ("prompt", refused("prompts are not kept; send 'instructions' and 'input'")),
    ("messages", refused("it belongs to /v1/chat/completions; send 'input'")),
    ("max_tokens", refused("send 'max_output_tokens'")),
    ("response_format", refused("send 'text.format'")),
    ("reasoning_effort", refused("send 'reasoning.effort'")),
];

/// Fields of `reasoning`. Reasoning is returned in full, which is more than a summary.
const REASONING: Rules = &[
    ("summary", echo()),
    ("generate_summary", echo()),
    ("context", tuning_but(r#"["auto"]"#, "the model's template decides which reasoning it sees")),
    ("mode", tuning_but(r#"["standard"]"#, "there is one mode")),
];

/// Fields of `text`.
const TEXT: Rules =
    &[("verbosity", tuning_but(r#"["medium"]"#, "say in the prompt how long the answer should be"))];

/// Parses the body of a `POST /v1/responses`.
///
/// # Errors
/// Fields that are unknown, not supported, of the wrong type or out of range, by name.
pub fn parse(body: &[u8]) -> Result<GenerateRequest> {
    parse_with(body, &mut |_| None)
}

/// The same, where items may be references to items of stored responses: `kept` returns the item with an id.
///
/// # Errors
/// As [`parse`], and references to items that are not kept.
pub fn parse_with(body: &[u8], kept: &mut dyn FnMut(&str) -> Option<Value>) -> Result<GenerateRequest> {
    let mut o = json::parse(body)?;
    let model = o.model()?;
    let mut chat = Chat::default();
    let instructions = o.read("instructions", Field::string)?;
    if let Some(text) = &instructions {
        chat.messages.push(Message::text(Role::System, text.clone()));
    }
    let previous = o.read("previous_response_id", Field::name)?;
    let mut added = Vec::new();
    items::input(o.require("input")?, &mut chat, &mut added, kept)?;
    if chat.messages.is_empty() {
        return Err(ApiError::invalid("input", "'input' must have at least one item"));
    }
    tools::tools(&mut o, &mut chat, added)?;
    reasoning(&mut o, &mut chat)?;
    fields::thinking(&mut o, &mut chat)?;
    fields::settle_effort(&o, &mut chat, "reasoning.effort");
    o.settle_unread(&chat.current_turn())?;

    let mut r = GenerateRequest::new(model, Input::Chat(Chat::default()));
    r.previous_response_id = previous;
    r.max_tokens = o.take("max_output_tokens").map(|f| f.limit(1)).transpose()?.flatten();
    r.logprobs = logprobs(&mut o)?;
    r.response_format = text(&mut o)?;
    r.response_format_field = "text.format".into();
    fields::structured(&mut o, &mut r)?;
    // As at OpenAI: clients continue what they did not ask to store.
    r.store = o.read("store", Field::bool)?.unwrap_or(true);
    stream_options(&mut o)?;
    fields::common(&mut o, &mut r)?;
    r.input = Input::Chat(chat);
    fields::finish(o, &mut r, &[RULES])?;
    if let Some(text) = instructions {
        // Answers repeat it.
        r.extra.insert("instructions".into(), text.into());
    }
    r.include_usage = true;
    Ok(r)
}

fn reasoning(o: &mut Object, chat: &mut Chat) -> Result<()> {
    let Some(f) = o.take("reasoning") else { return Ok(()) };
    let mut r = f.object()?;
    if let Some(f) = r.take("effort") {
        fields::effort(f, chat)?;
    }
    r.finish(&[REASONING])?;
    Ok(())
}

fn text(o: &mut Object) -> Result<ResponseFormat> {
    let Some(f) = o.take("text") else { return Ok(ResponseFormat::Text) };
    let mut text = f.object()?;
    let format = match text.take("format") {
        None => ResponseFormat::Text,
        Some(f) => {
            let mut format = f.object()?;
            let kind = format.require("type")?;
            let out = match kind.as_str() {
                Some("text") => ResponseFormat::Text,
                Some("json_object") => ResponseFormat::JsonObject,
                Some("json_schema") => fields::named_schema(&mut format)?,
                _ => return Err(kind.unsupported("; \"text\", \"json_object\" and \"json_schema\" are")),
            };
            format.finish(&[])?;
            out
        }
    };
    text.finish(&[TEXT])?;
    Ok(format)
}

/// `include`: further contents of the answer; log-probabilities are requested here.
fn logprobs(o: &mut Object) -> Result<Option<u32>> {
    let top = o.read("top_logprobs", |f| f.count(0..=fields::TOP_LOGPROBS_MAX))?;
    let mut asked = top.is_some_and(|n| n > 0);
    if let Some(f) = o.take("include") {
        for f in f.array()? {
            match f.as_str() {
                Some("message.output_text.logprobs") => asked = true,
                // Reasoning is not encrypted here, so there is nothing to include.
                Some("reasoning.encrypted_content") => {}
                Some(_) => f.warn("is ignored: it is of a tool that a provider runs, or of images"),
                None => return Err(f.expected("a string")),
            }
        }
    }
    Ok(asked.then(|| top.unwrap_or(0)))
}
