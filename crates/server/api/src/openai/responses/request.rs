//! A client's request for a response. Called by the server and the gateway.

use serde_json::json;

use super::super::chat::stream_options;
use super::super::fields;
use super::items;
use crate::ApiError;
use crate::core::{Chat, GenerateRequest, Input, Message, ResponseFormat, Role};
use crate::json::{self, Accepted, Field, Object, Result};

const REFUSED: &[Accepted] = &[
    ("conversation", "conversations are not kept; send the items, or 'previous_response_id'"),
    ("prompt", "prompts are not kept; send 'instructions' and 'input'"),
    ("context_management", "nothing is cut from a conversation"),
    ("access_programs", "there are none"),
    ("image", "images are not supported yet"),
    ("messages", "it belongs to /v1/chat/completions; send 'input'"),
    ("max_tokens", "send 'max_output_tokens'"),
    ("response_format", "send 'text.format'"),
    ("reasoning_effort", "send 'reasoning.effort'"),
];

/// Reads the body of a `POST /v1/responses`.
///
/// # Errors
/// Fields that are unknown, not supported, of the wrong type or out of range, by name.
pub fn parse(body: &[u8]) -> Result<GenerateRequest> {
    let mut o = json::parse(body)?;
    let model = o.require("model")?.name()?;
    let mut chat = Chat::default();
    let instructions = o.read("instructions", Field::string)?;
    if let Some(text) = &instructions {
        chat.messages.push(Message::text(Role::System, text.clone()));
    }
    let previous = o.read("previous_response_id", Field::name)?;
    items::input(o.require("input")?, &mut chat.messages)?;
    if chat.messages.is_empty() {
        return Err(ApiError::invalid("input", "'input' must have at least one item"));
    }
    tools(&mut o, &mut chat)?;
    reasoning(&mut o, &mut chat)?;
    fields::thinking(&mut o, &mut chat)?;

    let mut r = GenerateRequest::new(model, Input::Chat(Chat::default()));
    r.previous_response_id = previous;
    r.max_tokens = o.take("max_output_tokens").map(|f| f.limit(1)).transpose()?.flatten();
    r.logprobs = logprobs(&mut o)?;
    r.response_format = text(&mut o)?;
    r.response_format_field = "text.format".into();
    fields::structured(&mut o, &mut r)?;
    r.store = o.read("store", Field::bool)?.unwrap_or(false);
    o.only("background", &[false.into()], "answers are given at once")?;
    o.only("truncation", &["disabled".into()], "a prompt that does not fit is refused, never cut")?;
    // It limits the tools that a server runs by itself, and there are none.
    o.read("max_tool_calls", |f| f.count(0..=u32::MAX))?;
    stream_options(&mut o)?;
    fields::common(&mut o, &mut r)?;
    o.finish(REFUSED)?;
    if let Some(text) = instructions {
        // Answers repeat it.
        r.extra.insert("instructions".into(), text.into());
    }
    r.include_usage = true;
    r.input = Input::Chat(chat);
    Ok(r)
}

fn tools(o: &mut Object, chat: &mut Chat) -> Result<()> {
    if let Some(f) = o.take("tools") {
        chat.tools = f.list(|f| {
            let mut o = f.object()?;
            let kind = o.require("type")?;
            if kind.as_str() != Some("function") {
                return Err(kind.unsupported("; functions are: this server runs no tools of its own"));
            }
            let tool = fields::tool(&mut o)?;
            o.only("defer_loading", &[false.into()], "all tools are shown to the model")?;
            o.only("allowed_callers", &[json!(["direct"])], "this server runs no programs")?;
            o.finish(&[("output_schema", "say in the description what the tool returns")])?;
            Ok(tool)
        })?;
        fields::unique(&chat.tools)?;
    }
    if let Some(f) = o.take("tool_choice") {
        chat.tool_choice = fields::tool_choice(f, |o| o.require("name")?.name())?;
        fields::check_tool_choice(chat)?;
    }
    chat.parallel_tool_calls = o.read("parallel_tool_calls", Field::bool)?;
    Ok(())
}

fn reasoning(o: &mut Object, chat: &mut Chat) -> Result<()> {
    let Some(f) = o.take("reasoning") else { return Ok(()) };
    let mut r = f.object()?;
    if let Some(f) = r.take("effort") {
        fields::effort(f, chat)?;
    }
    // Reasoning is given as it is, which is more than any summary.
    let summaries = [("auto", ()), ("concise", ()), ("detailed", ())];
    r.read("summary", |f| f.one_of(&summaries))?;
    r.read("generate_summary", |f| f.one_of(&summaries))?;
    r.only("context", &["auto".into()], "the model's template decides which reasoning it sees")?;
    r.only("mode", &["standard".into()], "there is one mode")?;
    r.finish(&[])
}

fn text(o: &mut Object) -> Result<ResponseFormat> {
    let Some(f) = o.take("text") else { return Ok(ResponseFormat::Text) };
    let mut text = f.object()?;
    text.only("verbosity", &["medium".into()], "say in the prompt how long the answer shall be")?;
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
    text.finish(&[])?;
    Ok(format)
}

/// What the answer shall contain besides; and log-probabilities, which are asked for here.
fn logprobs(o: &mut Object) -> Result<Option<u32>> {
    let top = o.read("top_logprobs", |f| f.count(0..=fields::TOP_LOGPROBS_MAX))?;
    let mut asked = top.is_some_and(|n| n > 0);
    if let Some(f) = o.take("include") {
        for f in f.array()? {
            match f.as_str() {
                Some("message.output_text.logprobs") => asked = true,
                // Our reasoning is in the open, so that there is nothing to encrypt.
                Some("reasoning.encrypted_content") => {}
                _ => {
                    return Err(
                        f.unsupported("; message.output_text.logprobs and reasoning.encrypted_content are")
                    );
                }
            }
        }
    }
    Ok(asked.then(|| top.unwrap_or(0)))
}
