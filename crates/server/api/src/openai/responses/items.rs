//! Parses items of a Responses request: messages, calls, tool results, reasoning.

use std::collections::HashSet;

use serde_json::Value;

use super::super::chat::{NOT_KEPT, arguments, content_kind, document, text_or_parts};
use super::tools::{self, flat};
use crate::core::{Chat, Image, ImageSource, Message, Part, ReasoningPart, Role, Tool, ToolCall, ToolOrigin};
use crate::digits;
use crate::json::{Field, Object, Result, shortened};
use crate::rules::{Rules, echo, refused, tuning, tuning_but};

/// Metadata of an item that clients send back.
const ITEM: Rules = &[
    ("id", echo()),
    ("status", echo()),
    ("phase", echo()),
    ("created_by", echo()),
    ("object", echo()),
    ("encrypted_content", echo()),
    ("acknowledged_safety_checks", echo()),
    ("internal_chat_message_metadata_passthrough", echo()),
    ("metadata", echo()),
    ("agent", echo()),
    ("max_output_length", echo()),
    ("caller", tuning_but(r#"[{"type": "direct"}]"#, "this server runs no programs")),
];

/// The same for a part of a message.
const PART: Rules = &[
    ("annotations", echo()),
    ("logprobs", echo()),
    ("prompt_cache_breakpoint", tuning("shared prefixes are found without it")),
    ("file_id", refused("files are not kept; send the picture itself")),
];

/// Calls of hosted tools whose result is not a separate item.
const HOSTED: &[&str] = &[
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "image_generation_call",
    "mcp_list_tools",
    "mcp_call",
    "mcp_approval_request",
    "mcp_approval_response",
    "tool_search_call",
    "tool_search_output",
    "program",
    "program_output",
    "compaction_trigger",
];

/// `input`: a user's text, or items. Tools added by an item are put into `added`; `kept` returns stored items by their ids.
pub(super) fn input(
    f: Field,
    chat: &mut Chat,
    added: &mut Vec<Tool>,
    kept: &mut dyn FnMut(&str) -> Option<Value>,
) -> Result<()> {
    if f.is_string() {
        chat.messages.push(Message::text(Role::User, f.string()?));
        return Ok(());
    }
    if !f.is_array() {
        return Err(f.expected("a string or an array of items"));
    }
    let mut referred = HashSet::new();
    let unread = f.unread().clone();
    for mut f in f.array()? {
        if f.value()["type"] == "item_reference" || is_bare_reference(f.value()) {
            f = stored(f, kept, &mut referred)?;
        }
        item(f, &mut chat.messages, added)?;
        unread.place(chat.messages.len().saturating_sub(1));
    }
    Ok(())
}

/// A reference may come without its type.
fn is_bare_reference(item: &Value) -> bool {
    item.as_object().is_some_and(|o| o.len() == 1 && o.contains_key("id"))
}

/// The stored item that an item refers to. Each may be referred to once: a short request stands for no more than is kept.
fn stored(
    f: Field,
    kept: &mut dyn FnMut(&str) -> Option<Value>,
    referred: &mut HashSet<String>,
) -> Result<Field> {
    let at = f.at();
    let mut o = f.object()?;
    let f = o.require("id")?;
    let unknown = f.error("refers to an item that is not stored: send the item itself");
    let twice = f.error("refers to an item that is already in the input");
    let id = f.name()?;
    if !referred.insert(id.clone()) {
        return Err(twice);
    }
    kept(&id).map(at).ok_or(unknown)
}

fn item(f: Field, out: &mut Vec<Message>, added: &mut Vec<Tool>) -> Result<()> {
    let mut o = f.object()?;
    let kind = o.take("type");
    match kind.as_ref().map_or(Some("message"), |f| f.as_str()) {
        Some("message" | "agent_message") => message(&mut o, out)?,
        Some("function_call") => {
            call(&mut o, out, |o| Ok(o.read("arguments", arguments)?.unwrap_or_default()))?;
        }
        Some("custom_tool_call") => {
            call(&mut o, out, |o| Ok(ToolOrigin::arguments(&o.require("input")?.string()?)))?;
        }
        Some("function_call_output" | "custom_tool_call_output") => {
            let mut m = Message::empty(Role::Tool);
            // Without an id it answers the call before it.
            m.tool_call_id = o.read("call_id", Field::name)?;
            m.name = o.read("name", Field::string)?;
            o.take("namespace");
            m.content = content(o.require("output")?)?;
            out.push(m);
        }
        Some("reasoning") => {
            let text = reasoning(&mut o)?;
            // Reasoning precedes the message.
            let m = assistant(out, |m| m.content.is_empty() && m.tool_calls.is_empty());
            m.reasoning.extend(text.map(|text| ReasoningPart::Text { text, signature: None }));
        }
        Some("additional_tools") => {
            o.take("role");
            tools::read(o.require("tools")?, added)?;
        }
        // An encrypted summary of the conversation, which only its provider can read.
        Some("compaction" | "compaction_summary" | "context_compaction") => {
            return Err(kind.expect("just seen").unsupported("; send the items that it summarises"));
        }
        Some(hosted) if HOSTED.contains(&hosted) => {
            o.warn(format_args!("is left out: '{hosted}' is of a tool that a provider runs"));
            return Ok(());
        }
        // Calls that the client runs have ids: they are kept as function calls.
        Some(name) if name.ends_with("_call") && o.has("call_id") => return client_call(o, name, out),
        Some(output) if output.ends_with("_call_output") => client_output(&mut o, out)?,
        Some(other) => {
            o.warn(format_args!("is left out: '{}' is not a known item", shortened(other)));
            return Ok(());
        }
        None => return Err(kind.expect("just seen").expected("a string")),
    }
    o.finish(&[ITEM])?;
    Ok(())
}

/// A call of a function or of a custom tool.
fn call(
    o: &mut Object,
    out: &mut Vec<Message>,
    arguments: impl FnOnce(&mut Object) -> Result<String>,
) -> Result<()> {
    let (id, name) = (o.require("call_id")?.name()?, name(o)?);
    let arguments = arguments(o)?;
    assistant(out, |_| true).tool_calls.push(ToolCall { id, name, arguments, cache: None });
    Ok(())
}

/// A call of a tool that OpenAI defines and the client runs (`local_shell_call`): its fields are the arguments.
fn client_call(mut o: Object, kind: &str, out: &mut Vec<Message>) -> Result<()> {
    let (id, name) = (o.require("call_id")?.name()?, kind.trim_end_matches("_call").to_string());
    let mut fields: serde_json::Map<_, _> = o.into_fields().map(|(k, f)| (k, f.exact())).collect();
    fields.retain(|key, _| !matches!(&**key, "id" | "status"));
    let arguments = digits::text(&fields.into());
    assistant(out, |_| true).tool_calls.push(ToolCall { id, name, arguments, cache: None });
    Ok(())
}

/// What such a tool returned: a text, or anything else as JSON.
fn client_output(o: &mut Object, out: &mut Vec<Message>) -> Result<()> {
    let mut m = Message::empty(Role::Tool);
    let id = o.take_any(&["call_id", "id"])?;
    m.tool_call_id = id.map(Field::name).transpose()?;
    if let Some(f) = o.take("output") {
        m.content = if f.is_string() { content(f)? } else { vec![Part::text(digits::bare(&f.exact()))] };
    }
    out.push(m);
    Ok(())
}

/// The name of a call in the model's prompt.
fn name(o: &mut Object) -> Result<String> {
    let name = o.require("name")?.name()?;
    let namespace = o.read("namespace", Field::string)?.filter(|n| !n.is_empty());
    Ok(namespace.map_or(name.clone(), |namespace| flat(&namespace, &name)))
}

/// The assistant message that an item belongs to: the last one if the item fits, else a new one.
fn assistant(out: &mut Vec<Message>, fits: impl Fn(&Message) -> bool) -> &mut Message {
    if !out.last().is_some_and(|m| m.role == Role::Assistant && fits(m)) {
        out.push(Message::empty(Role::Assistant));
    }
    out.last_mut().expect("just seen or pushed")
}

fn message(o: &mut Object, out: &mut Vec<Message>) -> Result<()> {
    let role_field = o.require("role")?;
    let role = match role_field.as_str() {
        Some("user") => Role::User,
        Some("assistant") => Role::Assistant,
        Some("system") => Role::System,
        Some("developer") => Role::Developer,
        _ => return Err(role_field.expected("\"user\", \"assistant\", \"system\" or \"developer\"")),
    };
    let content = content(o.require("content")?)?;
    if role == Role::Assistant {
        assistant(out, |m| m.content.is_empty() && m.tool_calls.is_empty()).content = content;
    } else {
        out.push(Message { content, ..Message::empty(role) });
    }
    Ok(())
}

fn content(f: Field) -> Result<Vec<Part>> {
    text_or_parts(f, part)
}

fn part(f: Field) -> Result<Part> {
    let mut o = f.object()?;
    let at = o.path();
    let kind = o.require("type")?;
    let part = match kind.as_str() {
        Some("input_text" | "output_text" | "text" | "summary_text" | "reasoning_text") => {
            Part::text(o.require("text")?.string()?)
        }
        Some("refusal") => Part::text(o.require("refusal")?.string()?),
        Some("input_image") if o.has("file_id") && !o.has("image_url") => {
            let refusal = o.require("file_id")?.error(NOT_KEPT);
            return Ok(Part::text(o.unread("an image", refusal)));
        }
        Some("input_image") => {
            let source = ImageSource::url(o.require("image_url")?)?;
            let detail = o.read("detail", Field::string)?;
            Part::Image { image: Image { source, detail, at, frame: None }, cache: None }
        }
        Some("input_file") => document(&mut o, at)?,
        Some(other) => {
            let refusal = kind.unsupported("; input_text, output_text, input_image and input_file are");
            return Ok(Part::text(o.unread(content_kind(other), refusal)));
        }
        None => return Err(kind.expected("a string")),
    };
    o.finish(&[PART])?;
    Ok(part)
}

/// The text of earlier reasoning: as written, or else its summary. Encrypted reasoning is for its provider only.
fn reasoning(o: &mut Object) -> Result<Option<String>> {
    let mut read = |name| {
        let texts = |f: Field| {
            f.list(|f| {
                let mut part = f.object()?;
                let text = part.require("text")?.string()?;
                part.finish(&[&[("type", echo())]])?;
                Ok(text)
            })
        };
        o.read(name, texts)
    };
    let content = read("content")?.unwrap_or_default();
    let summary = read("summary")?.unwrap_or_default();
    let texts = if content.is_empty() { summary } else { content };
    Ok((!texts.is_empty()).then(|| texts.join("\n")))
}
