//! `/api/generate`.

use super::{Call, LineWriter, Load, answer, context, fields, messages};
use crate::ApiError;
use crate::core::{
    Answer, Chat, Completion, Family, GenerateRequest, Infill, Input, Message, Part, Prompt, Role,
};
use crate::json::{self, Field, Result};
use crate::rules::{Rules, only, refused, tuning};

const RULES: Rules = &[
    ("messages", refused("they belong to /api/chat; send 'prompt'")),
    ("tools", refused("they belong to /api/chat")),
    ("template", refused("set it on the server with --chat-template")),
    ("width", only("[0]", "image generation is not supported")),
    ("height", only("[0]", "image generation is not supported")),
    ("steps", tuning("image generation is not supported")),
];

/// Parses the body of a `POST /api/generate`. Without a prompt it is a request to load or unload the model. The prompt is a user
/// message for the chat template, unless `raw` is set; it follows the conversation in `context`.
///
/// # Errors
/// Fields that are unknown, not supported, of the wrong type or out of range, by name.
pub fn parse(body: &[u8]) -> Result<Call> {
    let mut o = json::parse(body)?;
    let model = o.model()?;
    let prompt = o.read("prompt", Field::string)?.unwrap_or_default();
    let system = o.read("system", Field::string)?.filter(|s| !s.is_empty());
    let images = messages::images(&mut o)?;
    let raw = o.read("raw", Field::bool)?.unwrap_or(false);
    let suffix = o.read("suffix", Field::string)?.filter(|s| !s.is_empty());
    let mut earlier = o.read("context", context::messages)?.unwrap_or_default();
    let mut chat = Chat::default();
    fields::think(&mut o, &mut chat)?;
    let keep_alive = fields::keep_alive(&mut o)?;
    let mut r = GenerateRequest::new(model, Input::Chat(Chat::default()));
    fields::common(&mut o, &mut r)?;
    fields::finish(o, &mut r, &[RULES])?;
    if prompt.is_empty() && images.is_empty() && suffix.is_none() {
        return Ok(Call::Load(Load { model: r.model, keep_alive }));
    }
    r.keep_alive = keep_alive;
    r.origin = Family::Ollama;
    r.input = if raw || suffix.is_some() {
        let chat_only =
            [("context", !earlier.is_empty()), ("images", !images.is_empty()), ("system", system.is_some())];
        if let Some((what, _)) = chat_only.iter().find(|(_, is_set)| *is_set) {
            let other = if raw { "raw" } else { "suffix" };
            return Err(ApiError::invalid(*what, format!("'{what}' and '{other}' exclude each other")));
        }
        let infill = suffix.map(|suffix| Infill { suffix, files: Vec::new() });
        Input::Completion(Completion { prompts: vec![Prompt::Text(prompt)], infill, ..Completion::default() })
    } else {
        // Clients send the instructions with each prompt; they are in the earlier conversation already.
        if system.is_some() {
            earlier.retain(|m| m.role != Role::System);
        }
        chat.messages.extend(system.map(|text| Message::text(Role::System, text)));
        chat.messages.append(&mut earlier);
        let mut user = Message::empty(Role::User);
        user.content.extend((!prompt.is_empty()).then(|| Part::text(prompt)));
        user.content.extend(images);
        chat.messages.push(user);
        r.report.conversation = true;
        Input::Chat(chat)
    };
    Ok(Call::Generate(Box::new(r)))
}

/// The response body. (For an answer with an `error`, use [`error::body`](super::error::body).)
pub fn response(request: &GenerateRequest, answer: &Answer) -> Vec<u8> {
    answer::response(request, answer, false)
}

/// A stream writer for the answer to `request`.
pub fn writer(request: &GenerateRequest) -> LineWriter {
    LineWriter::new(request, false)
}
