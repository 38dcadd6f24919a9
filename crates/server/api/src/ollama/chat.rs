//! `/api/chat`.

pub use super::body::body;
pub use super::reader::events;
use super::{Call, LineWriter, Load, answer, fields, messages};
use crate::core::{Answer, Chat, Family, GenerateRequest, Input};
use crate::json::{self, Result};
use crate::openai;
use crate::rules::{Rules, refused};

const RULES: Rules = &[
    ("prompt", refused("it belongs to /api/generate; send 'messages'")),
    ("template", refused("set it on the server with --chat-template")),
];

/// Parses the body of a `POST /api/chat`. Without messages it is a request to load or unload the model.
///
/// # Errors
/// Fields that are unknown, not supported, of the wrong type or out of range, by name.
pub fn parse(body: &[u8]) -> Result<Call> {
    let mut o = json::parse(body)?;
    let model = o.model()?;
    let mut chat =
        Chat { messages: o.read("messages", messages::messages)?.unwrap_or_default(), ..Chat::default() };
    chat.tools = o.read("tools", openai::tools)?.unwrap_or_default();
    // Not Ollama's own; clients send it all the same.
    openai::chat::tool_choice(&mut o, &mut chat)?;
    fields::think(&mut o, &mut chat)?;
    let keep_alive = fields::keep_alive(&mut o)?;
    let mut r = GenerateRequest::new(model, Input::Chat(Chat::default()));
    fields::common(&mut o, &mut r)?;
    fields::finish(o, &mut r, &[RULES])?;
    if chat.messages.is_empty() {
        return Ok(Call::Load(Load { model: r.model, keep_alive }));
    }
    r.keep_alive = keep_alive;
    r.origin = Family::Ollama;
    r.input = Input::Chat(chat);
    Ok(Call::Generate(Box::new(r)))
}

/// The response body. (For an answer with an `error`, use [`error::body`](super::error::body).)
pub fn response(request: &GenerateRequest, answer: &Answer) -> Vec<u8> {
    answer::response(request, answer, true)
}

/// A stream writer for the answer to `request`.
pub fn writer(request: &GenerateRequest) -> LineWriter {
    LineWriter::new(request, true)
}
