//! Items of a request for a response: messages, calls, what tools returned, reasoning. Called by the request's parser.

use super::super::chat::{arguments, image_source};
use crate::core::{Image, Message, Part, ReasoningPart, Role, ToolCall};
use crate::json::{Accepted, Field, Object, Result};

/// What an item says about itself, and clients send back.
const ACCEPTED: &[Accepted] = &[
    ("id", "an item's name in the answer that it came in"),
    ("status", "an item that is sent is complete"),
    ("phase", "comment or answer: templates know no difference"),
];

/// `input`: a text of the user's, or items.
pub(super) fn input(f: Field, out: &mut Vec<Message>) -> Result<()> {
    if f.is_string() {
        out.push(Message::text(Role::User, f.string()?));
        return Ok(());
    }
    if !f.is_array() {
        return Err(f.expected("a string or an array of items"));
    }
    for f in f.array()? {
        item(f, out)?;
    }
    Ok(())
}

fn item(f: Field, out: &mut Vec<Message>) -> Result<()> {
    let mut o = f.object()?;
    let kind = o.take("type");
    match kind.as_ref().map(|f| f.as_str()) {
        None | Some(Some("message")) => message(&mut o, out)?,
        Some(Some("function_call")) => {
            let call = ToolCall {
                id: o.require("call_id")?.name()?,
                name: o.require("name")?.name()?,
                arguments: o.read("arguments", arguments)?.unwrap_or_default(),
                cache: None,
            };
            assistant(out, |_| true).tool_calls.push(call);
        }
        Some(Some("function_call_output")) => {
            let mut m = Message::empty(Role::Tool);
            m.tool_call_id = Some(o.require("call_id")?.name()?);
            m.name = o.read("name", Field::string)?;
            m.content = content(o.require("output")?)?;
            out.push(m);
        }
        Some(Some("reasoning")) => {
            let text = reasoning(&mut o)?;
            // Reasoning comes before what is said.
            let m = assistant(out, |m| m.content.is_empty() && m.tool_calls.is_empty());
            m.reasoning.extend(text.map(|text| ReasoningPart::Text { text, signature: None }));
        }
        Some(Some("item_reference")) => {
            return Err(kind.expect("just seen").unsupported("; send the item itself"));
        }
        Some(_) => {
            let what = "; message, function_call, function_call_output and reasoning are";
            return Err(kind.expect("just seen").unsupported(what));
        }
    }
    o.accept(ACCEPTED);
    o.only("caller", &[serde_json::json!({"type": "direct"})], "this server runs no programs")?;
    o.finish(&[("namespace", "tools have no namespaces")])
}

/// The assistant's message that an item belongs to: the last, if it can take the item.
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
    if f.is_string() {
        return Ok(vec![Part::text(f.string()?)]);
    }
    if !f.is_array() {
        return Err(f.expected("a string or an array of parts"));
    }
    f.list(|f| {
        let mut o = f.object()?;
        let at = o.path();
        let kind = o.require("type")?;
        let part = match kind.as_str() {
            Some("input_text" | "output_text" | "text") => Part::text(o.require("text")?.string()?),
            Some("refusal") => Part::text(o.require("refusal")?.string()?),
            Some("input_image") => {
                let source = image_source(o.require("image_url")?.name()?);
                let detail = o.read("detail", Field::string)?;
                Part::Image { image: Image { source, detail, at }, cache: None }
            }
            Some(_) => return Err(kind.unsupported("; input_text, output_text and input_image are")),
            None => return Err(kind.expected("a string")),
        };
        o.accept(&[
            ("annotations", "an answer's citations, which clients send back"),
            ("logprobs", "an answer's log-probabilities, which clients send back"),
            ("prompt_cache_breakpoint", "our cache finds shared prefixes by itself"),
        ]);
        o.finish(&[("file_id", "files are not kept; send the picture itself")])?;
        Ok(part)
    })
}

/// The text of an earlier answer's reasoning: as it was, else its summary. What is encrypted is for its provider only.
fn reasoning(o: &mut Object) -> Result<Option<String>> {
    let mut read = |name, kind: &'static str| {
        o.read(name, |f| {
            f.list(|f| {
                let mut part = f.object()?;
                part.only("type", &[kind.into()], "it has another type there")?;
                let text = part.require("text")?.string()?;
                part.finish(&[])?;
                Ok(text)
            })
        })
    };
    let content = read("content", "reasoning_text")?.unwrap_or_default();
    let summary = read("summary", "summary_text")?.unwrap_or_default();
    o.accept(&[("encrypted_content", "only its provider can read it")]);
    let texts = if content.is_empty() { summary } else { content };
    Ok((!texts.is_empty()).then(|| texts.join("\n")))
}
