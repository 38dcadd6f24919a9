//! Parses messages of a chat request. Called by the request's parser; Ollama's dialect and Responses have their own.

use std::collections::{HashMap, HashSet, VecDeque};

use serde_json::Value;

use crate::core::{
    CacheBreakpoint, Image, ImageSource, Message, Part, ReasoningPart, Role, ToolCall, ToolOrigin,
};
use crate::file::File;
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
    add_missing_ids(&mut messages);
    if messages.is_empty() { Err(empty) } else { Ok(messages) }
}

/// Gives calls without ids different ids. A result without an id answers a call of its name in the last message that has one: the
/// first that has no result, else the last.
fn add_missing_ids(messages: &mut [Message]) {
    if !messages.iter().any(lacks_id) {
        return;
    }
    let mut ids = Ids::default();
    let sent = messages.iter().flat_map(|m| m.tool_calls.iter().map(|c| &c.id).chain(&m.tool_call_id));
    ids.used = sent.filter(|id| !id.is_empty()).cloned().collect();
    let mut open: HashMap<String, VecDeque<String>> = HashMap::new();
    for message in messages {
        for call in &message.tool_calls {
            open.remove(&call.name);
        }
        for call in &mut message.tool_calls {
            if call.id.is_empty() {
                call.id = ids.unused(&call.name);
            }
            open.entry(call.name.clone()).or_default().push_back(call.id.clone());
        }
        if message.tool_call_id.is_none()
            && let (Role::Tool, Some(name)) = (message.role, &message.name)
        {
            let open = open.entry(name.clone()).or_default();
            let next = if open.len() > 1 { open.pop_front() } else { open.front().cloned() };
            message.tool_call_id = Some(next.unwrap_or_else(|| ids.unused(name)));
        }
    }
}

/// Whether a call, or a result that names its function, has no id. Those of the deprecated form have none.
fn lacks_id(m: &Message) -> bool {
    let is_result = m.role == Role::Tool && m.name.is_some();
    is_result && m.tool_call_id.is_none() || m.tool_calls.iter().any(|c| c.id.is_empty())
}

/// The ids of a conversation.
#[derive(Default)]
struct Ids {
    used: HashSet<String>,
    /// The number of the last id made for each function.
    made: HashMap<String, usize>,
}

impl Ids {
    /// An id for a call of this function that no other has.
    fn unused(&mut self, name: &str) -> String {
        let n = self.made.entry(name.to_string()).or_default();
        loop {
            *n += 1;
            let id = if *n == 1 { format!("call_{name}") } else { format!("call_{name}_{n}") };
            if self.used.insert(id.clone()) {
                return id;
            }
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
            // Without an id it answers the call before it, unless it names a function.
            m.tool_call_id = o.read("tool_call_id", Field::string)?.filter(|id| !id.is_empty());
            // A tool may return nothing.
            m.content = o.read("content", content)?.unwrap_or_default();
        }
        _ => m.content = content(o.require("content")?)?,
    }
    o.finish(&[MESSAGE])?;
    Ok(m)
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
        m.tool_calls.push(ToolCall { id: String::new(), name, arguments, cache: None });
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
    let id = o.read("id", Field::string)?.unwrap_or_default();
    let mut function = o.require("function")?.object()?;
    let name = function.require("name")?.name()?;
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
    let (f, is_url) = match o.take("file_url") {
        Some(f) => (f, true),
        None => (o.require("file_data")?, false),
    };
    let sent = f.as_str().unwrap_or_default();
    // Bytes may come without a type.
    let untyped = !is_url && !sent.is_empty() && !sent.contains("://");
    match data_url(sent).or(untyped.then_some((None, sent))) {
        Some((media_type, data)) => {
            let head = name.map(|name| format!("{name}\n")).unwrap_or_default();
            File { media_type, data, head, at, cache: None }.part(&f)
        }
        None => {
            let source = ImageSource::Url(f.name()?);
            Ok(Part::Image { image: Image { source, detail: None, at }, cache: None })
        }
    }
}

/// The type, if there is one, and the bytes of a data URL.
fn data_url(url: &str) -> Option<(Option<&str>, &str)> {
    let (media_type, data) = url.strip_prefix("data:")?.split_once(";base64,")?;
    Some(((!media_type.is_empty()).then_some(media_type), data))
}

/// A URL, or the image itself in a data URL.
pub(crate) fn image_source(url: String) -> ImageSource {
    match data_url(&url) {
        Some((media_type, data)) => {
            ImageSource::Base64 { media_type: media_type.map(str::to_string), data: data.to_string() }
        }
        None => ImageSource::Url(url),
    }
}
