//! Parses messages of a chat request. Ollama's dialect and Responses have their own.

use std::collections::{HashMap, HashSet, VecDeque};

use serde_json::Value;

use super::super::video;
use crate::breakpoint::{breakpoint, cache_control};
use crate::core::{Image, ImageSource, Message, Part, ReasoningPart, Role, ToolCall, ToolOrigin, data_url};
use crate::digits;
use crate::file::File;
use crate::json::{Field, Object, Result, shortened};
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
    ("prefix", tuning(CONTINUED)),
    ("partial", tuning(CONTINUED)),
];

const CONTINUED: &str = "only a last message of the assistant is continued";

/// Fields of a part besides its content.
const PART: Rules = &[("annotations", echo()), ("provider_specific_fields", echo())];

/// Further fields of a call. `index` is its position in a streamed answer, which clients keep.
const CALL: Rules = &[
    ("index", echo()),
    ("provider_specific_fields", echo()),
    ("extra_content", echo()),
    ("thought_signature", echo()),
    ("parsed_arguments", echo()),
];

/// A conversation.
#[derive(Default)]
pub(super) struct Conversation {
    pub messages: Vec<Message>,
    /// The path of a field of the last message that says that the answer continues it: Mistral's and DeepSeek's `prefix`, Kimi's
    /// `partial`.
    pub continued: Option<String>,
    /// The ids of calls that are left out.
    hosted: HashSet<String>,
}

pub(super) fn messages(f: Field) -> Result<Conversation> {
    let empty = f.error("must have at least one message");
    let last = f.value().as_array().map_or(0, Vec::len);
    let unread = f.unread().clone();
    let mut out = Conversation::default();
    for (i, f) in f.array()?.enumerate() {
        let new = message(f, i + 1 == last, &mut out)?;
        if !new.is_empty() {
            out.messages.extend(new);
            unread.place(out.messages.len() - 1);
        }
    }
    add_missing_ids(&mut out.messages);
    if out.messages.is_empty() { Err(empty) } else { Ok(out) }
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

/// Reads a message: none if it is left out, several if it has results of tools.
fn message(f: Field, is_last: bool, all: &mut Conversation) -> Result<Vec<Message>> {
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
    let mut results = Vec::new();
    match role {
        Role::Assistant => {
            let left_out = assistant(&mut o, &mut m, &mut all.hosted)?;
            if left_out && is_blank(&m) {
                return Ok(Vec::new());
            }
            for name in ["prefix", "partial"].into_iter().filter(|_| is_last) {
                let Some(f) = o.take(name) else { continue };
                let path = f.path();
                all.continued = f.bool()?.then_some(path).or(all.continued.take());
            }
        }
        Role::Tool => {
            // Without an id it answers the call before it, unless it names a function.
            m.tool_call_id = o.read("tool_call_id", Field::string)?.filter(|id| !id.is_empty());
            if m.tool_call_id.as_ref().is_some_and(|id| all.hosted.contains(id)) {
                o.warn("is left out: its call is, too");
                return Ok(Vec::new());
            }
            // A tool may return nothing.
            m.content = o.read("content", content)?.unwrap_or_default();
        }
        Role::User => {
            (results, m.content) = asked(o.require("content")?, all.messages.len())?;
        }
        Role::System | Role::Developer => m.content = content(o.require("content")?)?,
    }
    // LiteLLM's clients may also mark a whole message.
    mark_last(&mut o, &mut m)?;
    o.finish(&[MESSAGE])?;
    if results.is_empty() || !m.content.is_empty() {
        results.push(m);
    }
    Ok(results)
}

/// Reads `cache_control` of a message: a breakpoint after its last part.
fn mark_last(o: &mut Object, m: &mut Message) -> Result<()> {
    if let Some(breakpoint) = cache_control(o)?
        && let Some(Part::Text { cache, .. } | Part::Image { cache, .. }) = m.content.last_mut()
    {
        cache.get_or_insert(breakpoint);
    }
    Ok(())
}

/// Whether a message says and calls nothing.
fn is_blank(m: &Message) -> bool {
    m.tool_calls.is_empty() && m.content.iter().all(|part| part.as_text() == Some(""))
}

/// Reads an assistant's message. The ids of calls that are left out are added to `hosted`; true if there are any.
fn assistant(o: &mut Object, m: &mut Message, hosted: &mut HashSet<String>) -> Result<bool> {
    let mut parts = Answered::default();
    if let Some(f) = o.take("content") {
        m.content = if f.is_array() { answered(f, &mut parts)? } else { content(f)? };
    }
    if let Some(text) = o.read("refusal", Field::string)? {
        m.content.push(Part::text(text));
    }
    // LiteLLM's and Anthropic's name, and OpenRouter's.
    let lists = ["thinking_blocks", "reasoning_details"].map(|list| o.take(list));
    let list = |at: usize| lists[at].as_ref().and_then(|f| f.value().as_array()).cloned();
    let signed = super::proof::parts(list(0), list(1));
    for name in ["reasoning_content", "reasoning", "reasoning_text", "thinking"] {
        let Some(f) = o.take(name) else { continue };
        let found = reasoning(&f)?;
        if m.reasoning.is_empty() {
            m.reasoning = found;
        } else if !found.is_empty() && found != m.reasoning {
            f.warn("is ignored: the message has other reasoning beside it");
        }
    }
    if m.reasoning.is_empty() {
        m.reasoning = parts.thoughts;
    }
    let is_proof = |part: &ReasoningPart| !matches!(part, ReasoningPart::Text { signature: None, .. });
    if signed.iter().any(is_proof) {
        m.reasoning = signed;
    } else {
        for list in lists.into_iter().flatten() {
            if m.reasoning.is_empty() {
                m.reasoning = reasoning_texts(list);
            }
        }
    }
    let calls = o.read("tool_calls", |f| f.list(|f| tool_call(f, hosted)))?.unwrap_or_default();
    let left_out = calls.iter().any(Option::is_none);
    m.tool_calls = calls.into_iter().flatten().collect();
    // Some clients send a call both ways.
    if !parts.calls.is_empty() {
        let known: HashSet<&str> = m.tool_calls.iter().map(|call| call.id.as_str()).collect();
        parts.calls.retain(|call| !known.contains(call.id.as_str()));
    }
    m.tool_calls.append(&mut parts.calls);
    if let Some(f) = o.take("function_call") {
        let mut function = f.object()?;
        let name = function.require("name")?.name()?;
        let arguments = function.read("arguments", arguments)?.unwrap_or_default();
        function.finish(&[CALL])?;
        m.tool_calls.push(ToolCall { id: String::new(), name, arguments, cache: None });
    }
    Ok(left_out)
}

/// What other providers put into the parts of an answer.
#[derive(Default)]
struct Answered {
    thoughts: Vec<ReasoningPart>,
    calls: Vec<ToolCall>,
}

/// Parts of an answer: those of other providers' reasoning and calls are put into `beside`.
fn answered(f: Field, beside: &mut Answered) -> Result<Vec<Part>> {
    let mut out = Vec::new();
    for f in f.array()? {
        match f.value()["type"].as_str() {
            Some("thinking" | "reasoning" | "redacted_thinking") => {
                thought_texts(f.value(), &mut beside.thoughts);
            }
            Some("tool_use") => beside.calls.push(tool_use(f.object()?)?),
            Some(kind) if kind == "server_tool_use" || kind.ends_with("_tool_result") => {
                f.warn(format_args!(
                    "is left out: parts of the type '{}' are not supported",
                    shortened(kind)
                ));
            }
            _ => out.extend(one_or_frames(f, part)?),
        }
    }
    Ok(out)
}

/// Parts of a question. Results of tools, in Anthropic's form, become messages before it, the first at `at`.
fn asked(f: Field, at: usize) -> Result<(Vec<Message>, Vec<Part>)> {
    if !f.is_array() {
        return Ok((Vec::new(), content(f)?));
    }
    let unread = f.unread().clone();
    let (mut results, mut others) = (Vec::new(), Vec::new());
    for f in f.array()? {
        if f.value()["type"] == "tool_result" {
            results.push(tool_result(f.object()?)?);
            unread.place(at + results.len() - 1);
        } else {
            others.extend(one_or_frames(f, part)?);
        }
    }
    Ok((results, others))
}

/// Anthropic's form of a call's result.
fn tool_result(mut o: Object) -> Result<Message> {
    o.take("type");
    let mut m = Message::empty(Role::Tool);
    m.tool_call_id = Some(o.require("tool_use_id")?.name()?);
    m.is_error = o.read("is_error", Field::bool)?.unwrap_or(false);
    m.content = o.read("content", content)?.unwrap_or_default();
    mark_last(&mut o, &mut m)?;
    o.finish(&[PART])?;
    Ok(m)
}

/// Anthropic's form of a call.
fn tool_use(mut o: Object) -> Result<ToolCall> {
    o.take("type");
    let id = o.require("id")?.name()?;
    let name = o.require("name")?.name()?;
    let arguments = o.take("input").map(any_arguments).unwrap_or_default();
    o.finish(&[CALL])?;
    Ok(ToolCall { id, name, arguments, cache: None })
}

/// Reasoning as a text, or as one block or several.
fn reasoning(f: &Field) -> Result<Vec<ReasoningPart>> {
    let mut out = Vec::new();
    match f.value() {
        Value::String(_) | Value::Array(_) | Value::Object(_) => thought_texts(f.value(), &mut out),
        _ => return Err(f.expected("a string")),
    }
    Ok(out)
}

/// The readable texts in a list of reasoning blocks, with their signatures. Other blocks are for their provider only.
fn reasoning_texts(f: Field) -> Vec<ReasoningPart> {
    let mut out = Vec::new();
    if f.is_array() {
        thought_texts(f.value(), &mut out);
    }
    out
}

fn thought_texts(block: &Value, out: &mut Vec<ReasoningPart>) {
    match block {
        Value::String(text) if !text.is_empty() => {
            out.push(ReasoningPart::Text { text: text.clone(), signature: None });
        }
        Value::Array(blocks) => blocks.iter().for_each(|block| thought_texts(block, out)),
        Value::Object(fields) => {
            let names = ["thinking", "text", "summary", "reasoning", "content"];
            let texts =
                names.iter().find_map(|name| fields.get(*name).filter(|v| v.is_string() || v.is_array()));
            let before = out.len();
            texts.into_iter().for_each(|texts| thought_texts(texts, out));
            let sent = block["signature"].as_str().filter(|s| !s.is_empty());
            if let Some(ReasoningPart::Text { signature, .. }) = out[before..].last_mut() {
                *signature = sent.map(str::to_string).or(signature.take());
            }
        }
        _ => {}
    }
}

/// Reads a call; `None` if it is of a tool that a provider runs.
fn tool_call(f: Field, hosted: &mut HashSet<String>) -> Result<Option<ToolCall>> {
    let mut o = f.object()?;
    let kind = o.peek("type").and_then(Value::as_str).unwrap_or_default();
    if !["", "function", "custom"].contains(&kind) {
        o.warn(format_args!("is left out: this server has no tool '{}'", shortened(kind)));
        hosted.extend(o.read("id", Field::string)?.filter(|id| !id.is_empty()));
        return Ok(None);
    }
    // A custom tool.
    if o.peek("type").and_then(Value::as_str) == Some("custom") {
        o.take("type");
        let id = o.require("id")?.string()?;
        let mut custom = o.require("custom")?.object()?;
        let name = custom.require("name")?.name()?;
        let input = custom.require("input")?.string()?;
        custom.finish(&[CALL])?;
        o.finish(&[CALL])?;
        return Ok(Some(ToolCall { id, name, arguments: ToolOrigin::arguments(&input), cache: None }));
    }
    super::super::fields::function_type(&mut o)?;
    let id = o.read("id", Field::string)?.unwrap_or_default();
    let mut function = o.require("function")?.object()?;
    let name = function.require("name")?.name()?;
    let arguments = function.read("arguments", arguments)?.unwrap_or_default();
    function.finish(&[CALL])?;
    o.finish(&[CALL])?;
    Ok(Some(ToolCall { id, name, arguments, cache: None }))
}

/// Arguments in a history, whatever they are: what is no text is written as JSON.
pub(crate) fn any_arguments(f: Field) -> String {
    digits::bare(&f.exact())
}

/// Arguments of a call: a JSON object, as text or (from several clients) as an object. Other text is kept: a model wrote it.
pub(crate) fn arguments(f: Field) -> Result<String> {
    if f.is_object() {
        return Ok(digits::text(&f.exact()));
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
    let parts = f.list(|f| one_or_frames(f, part))?;
    Ok(parts.into_iter().flatten().collect())
}

/// A part, or the frames of a video.
fn one_or_frames(f: Field, part: fn(Field) -> Result<Part>) -> Result<Vec<Part>> {
    if video::is_one(&f) { video::parts(f) } else { Ok(vec![part(f)?]) }
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
        Some("input_image") if o.has("file_id") && !o.has("image_url") => {
            let refusal = o.require("file_id")?.error(NOT_KEPT);
            return Ok(Part::text(o.unread("an image", refusal)));
        }
        Some("image") if o.has("source") => anthropic_image(&mut o, at, &kind)?,
        Some("image_url" | "input_image") => {
            let f = o.require("image_url")?;
            let (source, detail) = if f.is_string() {
                (ImageSource::url(f)?, None)
            } else {
                let mut url = f.object()?;
                let source = ImageSource::url(url.require("url")?)?;
                let detail = url.read("detail", Field::string)?;
                url.finish(&[&[("format", echo())]])?;
                (source, detail)
            };
            let detail = detail.or(o.read("detail", Field::string)?);
            Part::Image { image: Image { source, detail, at, frame: None }, cache: None }
        }
        Some("file") => {
            let mut file = o.require("file")?.object()?;
            let part = document(&mut file, at)?;
            file.finish(&[])?;
            part
        }
        Some(other) => {
            let refusal = kind.unsupported("; text, image_url and file are");
            return Ok(Part::text(o.unread(content_kind(other), refusal)));
        }
        None => return Err(kind.expected("a string")),
    };
    if let Some(breakpoint) = breakpoint(&mut o)? {
        let (Part::Text { cache, .. } | Part::Image { cache, .. }) = &mut part;
        *cache = Some(breakpoint);
    }
    o.finish(&[PART])?;
    Ok(part)
}

/// What a part of a type that is not supported contains.
pub(crate) fn content_kind(name: &str) -> &'static str {
    match name {
        "audio" | "audio_url" | "input_audio" => "audio",
        "document" | "document_url" | "file" | "file_url" | "input_file" => "a document",
        "image" | "image_file" | "input_image" => "an image",
        _ => "content of another kind",
    }
}

/// Anthropic's form of an image.
fn anthropic_image(o: &mut Object, at: String, kind: &Field) -> Result<Part> {
    let mut source = o.require("source")?.object()?;
    let from = match source.take("type").as_ref().and_then(Field::as_str) {
        Some("url") => ImageSource::Url(source.require("url")?.name()?),
        Some("base64") => {
            let media_type = source.read("media_type", Field::name)?;
            ImageSource::base64(&source.require("data")?, media_type.as_deref())?
        }
        _ => return Ok(Part::text(o.unread("an image", kind.unsupported("; send 'image_url'")))),
    };
    source.finish(&[])?;
    Ok(Part::Image { image: Image { source: from, detail: None, at, frame: None }, cache: None })
}

/// Why an id of a file is refused.
pub(crate) const NOT_KEPT: &str = "is not supported: files are not kept; send the file itself";

/// A file given by its bytes or URL. Text becomes text; a PDF or an image stays what it is. Other files are refused.
pub(crate) fn document(o: &mut Object, at: String) -> Result<Part> {
    let name = o.read("filename", Field::string)?.filter(|name| !name.is_empty());
    o.take("detail");
    if let Some(f) = o.take("file_id") {
        if !o.has("file_data") && !o.has("file_url") {
            return Ok(Part::text(o.unread("a file", f.error(NOT_KEPT))));
        }
        f.warn("is ignored: the file itself is beside it");
    }
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
            Ok(Part::Image { image: Image { source, detail: None, at, frame: None }, cache: None })
        }
    }
}
