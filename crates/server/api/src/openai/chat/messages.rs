//! Parses messages of a chat request. Called by the request's parser; Ollama's dialect and Responses have their own.

use std::collections::HashMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::core::{
    CacheBreakpoint, Image, ImageSource, Message, Part, ReasoningPart, Role, ToolCall, ToolOrigin,
};
use crate::json::{Field, Object, Result};
use crate::rules::{Rules, echo, tuning};

/// Fields of an answer's message that clients send back, or add.
const MESSAGE: Rules = &[
    ("annotations", echo()),
    ("provider_specific_fields", echo()),
    ("reasoning_details", echo()),
    ("reasoning_signature", echo()),
    ("reasoning_opaque", echo()),
    ("thinking_blocks", echo()),
    ("finish_reason", echo()),
    ("stop_reason", echo()),
    ("parsed", echo()),
    ("id", echo()),
    ("images", tuning("an answer's images are not shown to the model")),
    ("audio", tuning("messages are text")),
    ("cache_control", tuning("shared prefixes are found without it")),
];

/// Fields of a part besides its content.
const PART: Rules = &[
    ("cache_control", tuning("shared prefixes are found without it")),
    ("annotations", echo()),
    ("provider_specific_fields", echo()),
];

/// Further fields of a call. `index` is its position in a streamed answer, which clients keep.
const CALL: Rules = &[
    ("index", echo()),
    ("provider_specific_fields", echo()),
    ("extra_content", echo()),
    ("thought_signature", echo()),
    ("parsed_arguments", echo()),
    ("cache_control", tuning("shared prefixes are found without it")),
];

pub(super) fn messages(f: Field) -> Result<Vec<Message>> {
    let empty = f.error("must have at least one message");
    let mut messages = f.list(message)?;
    number_legacy_calls(&mut messages);
    if messages.is_empty() { Err(empty) } else { Ok(messages) }
}

/// Gives repeated calls without ids different ids: the n-th result by a function's name belongs to the n-th call of that name.
fn number_legacy_calls(messages: &mut [Message]) {
    let mut calls: HashMap<String, usize> = HashMap::new();
    let mut results: HashMap<String, usize> = HashMap::new();
    let numbered = |id: &mut String, seen: &mut HashMap<String, usize>| {
        let n = seen.entry(id.clone()).or_default();
        *n += 1;
        if *n > 1 {
            *id = format!("{id}_{n}");
        }
    };
    for message in messages {
        for call in &mut message.tool_calls {
            if call.id == legacy_id(&call.name) {
                numbered(&mut call.id, &mut calls);
            }
        }
        if let (Some(id), Some(name)) = (&mut message.tool_call_id, &message.name)
            && *id == legacy_id(name)
        {
            numbered(id, &mut results);
        }
    }
}

fn message(f: Field) -> Result<Message> {
    let mut o = f.object()?;
    let role_field = o.require("role")?;
    let role = match role_field.as_str() {
        Some("system") => Role::System,
        Some("developer") => Role::Developer,
        Some("user") => Role::User,
        Some("assistant") => Role::Assistant,
        // The deprecated role of function results.
        Some("tool" | "function") => Role::Tool,
        Some(_) => return Err(role_field.unsupported("; system, developer, user, assistant and tool are")),
        None => return Err(role_field.expected("a string")),
    };
    let mut m = Message::empty(role);
    m.name = o.read("name", Field::string)?.filter(|name| !name.is_empty());
    match role {
        Role::Assistant => assistant(&mut o, &mut m)?,
        Role::Tool => {
            m.tool_call_id = match o.take("tool_call_id") {
                // Without an id it answers the call before it, unless it names a function.
                None => m.name.as_deref().map(legacy_id),
                Some(f) => Some(f.string()?),
            };
            // A tool may return nothing.
            m.content = o.read("content", content)?.unwrap_or_default();
        }
        _ => m.content = content(o.require("content")?)?,
    }
    o.finish(&[MESSAGE])?;
    Ok(m)
}

/// Calls of the deprecated form have no ids.
fn legacy_id(name: &str) -> String {
    format!("call_{name}")
}

fn assistant(o: &mut Object, m: &mut Message) -> Result<()> {
    let mut thoughts = Vec::new();
    if let Some(f) = o.take("content") {
        m.content = if f.is_array() { answered(f, &mut thoughts)? } else { content(f)? };
    }
    if let Some(text) = o.read("refusal", Field::string)? {
        m.content.push(Part::text(text));
    }
    if let Some(f) = o.take_any(&["reasoning_content", "reasoning", "reasoning_text", "thinking"])? {
        let text = f.string()?;
        if !text.is_empty() {
            m.reasoning.push(ReasoningPart::Text { text, signature: None });
        }
    }
    if m.reasoning.is_empty() {
        m.reasoning = thoughts;
    }
    if m.reasoning.is_empty() {
        // LiteLLM's, Anthropic's and OpenRouter's names.
        for list in ["thinking_blocks", "reasoning_details"] {
            let texts = o.take(list).map(reasoning_texts).unwrap_or_default();
            if m.reasoning.is_empty() {
                m.reasoning.extend(texts);
            }
        }
    }
    m.tool_calls = o.read("tool_calls", |f| f.list(tool_call))?.unwrap_or_default();
    if let Some(f) = o.take("function_call") {
        let mut function = f.object()?;
        let name = function.require("name")?.name()?;
        let arguments = function.read("arguments", arguments)?.unwrap_or_default();
        function.finish(&[CALL])?;
        m.tool_calls.push(ToolCall { id: legacy_id(&name), name, arguments, cache: None });
    }
    Ok(())
}

/// Parts of an answer: those of other providers' reasoning are put into `thoughts`.
fn answered(f: Field, thoughts: &mut Vec<ReasoningPart>) -> Result<Vec<Part>> {
    let mut out = Vec::new();
    for f in f.array()? {
        match f.value()["type"].as_str() {
            Some("thinking" | "reasoning" | "redacted_thinking") => {
                // Mistral's is a list of texts.
                let inner = f.value()["thinking"].clone();
                thoughts.extend(thought_texts(if inner.is_array() {
                    inner
                } else {
                    [f.raw()].into_iter().collect()
                }));
            }
            _ => out.push(part(f)?),
        }
    }
    Ok(out)
}

/// The readable texts in a list of reasoning blocks, with their signatures. Other blocks are for their provider only.
fn reasoning_texts(f: Field) -> Vec<ReasoningPart> {
    thought_texts(f.raw())
}

fn thought_texts(blocks: Value) -> Vec<ReasoningPart> {
    let blocks = blocks.as_array().into_iter().flatten();
    let text = |b: &Value| {
        ["thinking", "text", "summary", "reasoning"].iter().find_map(|k| Some(b[*k].as_str()?.to_string()))
    };
    let part = |b: &Value| {
        let signature = b["signature"].as_str().filter(|s| !s.is_empty()).map(str::to_string);
        text(b).filter(|t| !t.is_empty()).map(|text| ReasoningPart::Text { text, signature })
    };
    blocks.filter_map(part).collect()
}

fn tool_call(f: Field) -> Result<ToolCall> {
    let mut o = f.object()?;
    // A custom tool.
    if o.peek("type").and_then(Value::as_str) == Some("custom") {
        o.take("type");
        let id = o.require("id")?.string()?;
        let mut custom = o.require("custom")?.object()?;
        let name = custom.require("name")?.name()?;
        let input = custom.require("input")?.string()?;
        custom.finish(&[CALL])?;
        o.finish(&[CALL])?;
        return Ok(ToolCall { id, name, arguments: ToolOrigin::arguments(&input), cache: None });
    }
    super::super::fields::function_type(&mut o)?;
    let id = o.read("id", Field::string)?;
    let mut function = o.require("function")?.object()?;
    let name = function.require("name")?.name()?;
    let id = id.unwrap_or_else(|| legacy_id(&name));
    let arguments = function.read("arguments", arguments)?.unwrap_or_default();
    function.finish(&[CALL])?;
    o.finish(&[CALL])?;
    Ok(ToolCall { id, name, arguments, cache: None })
}

/// Arguments of a call: a JSON object, as text or (from several clients) as an object. Other text is kept: a model wrote it.
pub(crate) fn arguments(f: Field) -> Result<String> {
    if f.is_object() {
        return Ok(f.raw().to_string());
    }
    if f.is_string() { f.string() } else { Err(f.expected("a JSON object as a string")) }
}

fn content(f: Field) -> Result<Vec<Part>> {
    text_or_parts(f, part)
}

/// A text, or a list of parts.
pub(crate) fn text_or_parts(f: Field, part: fn(Field) -> Result<Part>) -> Result<Vec<Part>> {
    if f.is_string() {
        return Ok(vec![Part::text(f.string()?)]);
    }
    if !f.is_array() {
        return Err(f.expected("a string or an array of parts"));
    }
    f.list(part)
}

fn part(f: Field) -> Result<Part> {
    // LangChain's shorthand of a text.
    if f.is_string() {
        return Ok(Part::text(f.string()?));
    }
    let mut o = f.object()?;
    let at = o.path();
    let kind = o.require("type")?;
    let mut part = match kind.as_str() {
        Some("text" | "input_text" | "output_text") => Part::text(o.require("text")?.string()?),
        Some("refusal") => Part::text(o.require("refusal")?.string()?),
        Some("image_url") => {
            let f = o.require("image_url")?;
            let (source, detail) = if f.is_string() {
                (image_source(f.name()?), None)
            } else {
                let mut url = f.object()?;
                let source = image_source(url.require("url")?.name()?);
                let detail = url.read("detail", Field::string)?;
                url.finish(&[&[("format", echo())]])?;
                (source, detail)
            };
            Part::Image { image: Image { source, detail, at }, cache: None }
        }
        Some("file") => {
            let mut file = o.require("file")?.object()?;
            let part = document(&mut file, at)?;
            file.finish(&[])?;
            part
        }
        Some(_) => return Err(kind.unsupported("; text, image_url and file are")),
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
    o.finish(&[PART])?;
    Ok(part)
}

/// A file given by its bytes or URL. Text becomes text; a PDF or an image stays what it is. Other files are refused.
pub(crate) fn document(o: &mut Object, at: String) -> Result<Part> {
    o.only("file_id", &[], "files are not kept; send 'file_data'")?;
    let name = o.read("filename", Field::string)?.filter(|name| !name.is_empty());
    o.take("detail");
    let (address, is_url) = match o.take("file_url") {
        Some(f) => (f, true),
        None => (o.require("file_data")?, false),
    };
    let unknown = address.error("is neither text nor a PDF: send the file's text");
    let source = match image_source(address.name()?) {
        // Bytes without a type.
        ImageSource::Url(data) if !is_url && !data.contains("://") => {
            ImageSource::Base64 { media_type: None, data }
        }
        source => source,
    };
    let ImageSource::Base64 { media_type, data } = source else {
        return Ok(Part::Image { image: Image { source, detail: None, at }, cache: None });
    };
    match FileKind::of(media_type.as_deref(), &data) {
        FileKind::Text(text) => {
            let head = name.map(|name| format!("{name}\n")).unwrap_or_default();
            Ok(Part::text(head + &text))
        }
        FileKind::Document(media_type) => {
            let source = ImageSource::Base64 { media_type: Some(media_type), data };
            Ok(Part::Image { image: Image { source, detail: None, at }, cache: None })
        }
        FileKind::Unknown => Err(unknown),
    }
}

/// What a file contains.
enum FileKind {
    Text(String),
    /// A document or image, by its media type.
    Document(String),
    Unknown,
}

impl FileKind {
    /// The kind by the declared type if it is a document's or an image's, else by the bytes.
    fn of(media_type: Option<&str>, data: &str) -> Self {
        const PDF: &str = "application/pdf";
        let kind = media_type.map(|kind| kind.split(';').next().unwrap_or(kind).trim());
        if let Some(kind) = kind.filter(|kind| *kind == PDF || kind.starts_with("image/")) {
            return Self::Document(kind.into());
        }
        match STANDARD.decode(data) {
            Ok(bytes) if bytes.starts_with(b"%PDF") => Self::Document(PDF.into()),
            Ok(bytes) if !bytes.contains(&0) => String::from_utf8(bytes).map_or(Self::Unknown, Self::Text),
            _ => Self::Unknown,
        }
    }
}

/// A URL, or the image itself in a data URL.
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
