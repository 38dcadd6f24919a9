//! Messages of a chat request. Called by the request's parser; Ollama's and the responses' dialect have their own.

use crate::core::{CacheBreakpoint, Image, ImageSource, Message, Part, ReasoningPart, Role, ToolCall};
use crate::json::{Field, Object, Result};

/// Where a client puts notes of its own, or echoes what an answer had.
const ACCEPTED: &[crate::json::Accepted] =
    &[("annotations", "an answer's citations, which OpenAI's own library sends back")];

pub(super) fn messages(f: Field) -> Result<Vec<Message>> {
    let empty = f.error("must have at least one message");
    let messages = f.list(message)?;
    if messages.is_empty() { Err(empty) } else { Ok(messages) }
}

fn message(f: Field) -> Result<Message> {
    let mut o = f.object()?;
    let role_field = o.require("role")?;
    let role = match role_field.as_str() {
        Some("system") => Role::System,
        Some("developer") => Role::Developer,
        Some("user") => Role::User,
        Some("assistant") => Role::Assistant,
        Some("tool") => Role::Tool,
        Some(_) => return Err(role_field.unsupported("; system, developer, user, assistant and tool are")),
        None => return Err(role_field.expected("a string")),
    };
    let mut m = Message::empty(role);
    m.name = o.read("name", Field::string)?;
    match role {
        Role::Assistant => assistant(&mut o, &mut m)?,
        Role::Tool => {
            m.tool_call_id = Some(o.require("tool_call_id")?.string()?);
            m.content = content(o.require("content")?)?;
        }
        _ => m.content = content(o.require("content")?)?,
    }
    let why = [("function_call", "it was replaced by 'tool_calls'"), ("audio", "messages are text")];
    o.accept(ACCEPTED);
    o.finish(&why)?;
    Ok(m)
}

fn assistant(o: &mut Object, m: &mut Message) -> Result<()> {
    m.content = o.read("content", content)?.unwrap_or_default();
    if let Some(text) = o.read("refusal", Field::string)? {
        m.content.push(Part::text(text));
    }
    if let Some(f) = o.take_any(&["reasoning_content", "reasoning"])? {
        m.reasoning.push(ReasoningPart::Text { text: f.string()?, signature: None });
    }
    m.tool_calls = o.read("tool_calls", |f| f.list(tool_call))?.unwrap_or_default();
    Ok(())
}

fn tool_call(f: Field) -> Result<ToolCall> {
    let mut o = f.object()?;
    super::super::fields::function_type(&mut o)?;
    let id = o.require("id")?.string()?;
    let mut function = o.require("function")?.object()?;
    let name = function.require("name")?.name()?;
    let arguments = function.read("arguments", arguments)?.unwrap_or_default();
    function.finish(&[])?;
    // Its place in the answer's stream, which clients keep when they gather one.
    o.read("index", |f| f.count(0..=u32::MAX))?;
    o.finish(&[])?;
    Ok(ToolCall { id, name, arguments, cache: None })
}

/// Arguments of a call: the text of a JSON object, or (as several clients send it) the object.
pub(crate) fn arguments(f: Field) -> Result<String> {
    if f.is_object() {
        return Ok(f.raw().to_string());
    }
    let Some(text) = f.as_str() else { return Err(f.expected("a JSON object as a string")) };
    match crate::core::arguments_object(text) {
        Ok(_) => match crate::json::stands_twice(text) {
            Some(key) => Err(f.error(format_args!("has '{key}' twice in one object; say it once"))),
            None => f.string(),
        },
        Err(what) => Err(f.error(format_args!("must be a JSON object as a string, but it is {what}"))),
    }
}

/// A text, or a list of parts.
fn content(f: Field) -> Result<Vec<Part>> {
    if f.is_string() {
        return Ok(vec![Part::text(f.string()?)]);
    }
    if !f.is_array() {
        return Err(f.expected("a string or an array of parts"));
    }
    f.list(part)
}

fn part(f: Field) -> Result<Part> {
    let mut o = f.object()?;
    let at = o.path();
    let kind = o.require("type")?;
    let mut part = match kind.as_str() {
        Some("text") => Part::text(o.require("text")?.string()?),
        Some("refusal") => Part::text(o.require("refusal")?.string()?),
        Some("image_url") => {
            let mut url = o.require("image_url")?.object()?;
            let source = image_source(url.require("url")?.name()?);
            let detail = url.read("detail", Field::string)?;
            url.finish(&[])?;
            Part::Image { image: Image { source, detail, at }, cache: None }
        }
        Some(_) => return Err(kind.unsupported("; text is")),
        None => return Err(kind.expected("a string")),
    };
    if let Some(f) = o.take("prompt_cache_breakpoint") {
        let mut b = f.object()?;
        b.only("mode", &["explicit".into()], "a breakpoint is explicit")?;
        let ttl = b.read("ttl", Field::string)?;
        b.finish(&[])?;
        let (Part::Text { cache, .. } | Part::Image { cache, .. }) = &mut part;
        *cache = Some(CacheBreakpoint { ttl });
    }
    o.finish(&[])?;
    Ok(part)
}

/// An address, or the picture itself in a `data:` address.
pub(crate) fn image_source(url: String) -> ImageSource {
    let inline = url.strip_prefix("data:").and_then(|rest| rest.split_once(";base64,"));
    match inline {
        Some((media_type, data)) => ImageSource::Base64 {
            media_type: (!media_type.is_empty()).then(|| media_type.to_string()),
            data: data.to_string(),
        },
        None => ImageSource::Url(url),
    }
}
