//! Parses contents and their parts.

use std::collections::VecDeque;

use super::proof;
use crate::core::{Image, ImageSource, Message, Part, ReasoningPart, Role, ToolCall};
use crate::digits;
use crate::file::File;
use crate::json::{Field, Object, Result, shortened};
use crate::rules::{Rules, echo, tuning};

/// A list, or a single item as a list of one.
pub(super) fn several(f: Field) -> Result<Vec<Field>> {
    if f.is_array() { Ok(f.array()?.collect()) } else { Ok(vec![f]) }
}

/// Fields of a part besides its content.
const PART: Rules = &[
    ("partMetadata", echo()),
    ("videoMetadata", tuning("video is not supported")),
    ("mediaResolution", tuning("media is processed by the provider")),
];

/// Calls without a result so far. Clients may omit ids: results then belong to the calls of the same function in order.
#[derive(Default)]
struct Calls {
    open: VecDeque<(String, String)>,
    made: usize,
}

impl Calls {
    fn begin(&mut self, id: Option<String>, name: &str) -> String {
        self.made += 1;
        let id = id.unwrap_or_else(|| format!("call_{}", self.made));
        self.open.push_back((id.clone(), name.to_string()));
        id
    }

    fn answered(&mut self, id: Option<String>, name: &str) -> String {
        let at = match &id {
            Some(id) => self.open.iter().position(|(i, _)| i == id),
            None => self.open.iter().position(|(_, n)| n == name),
        };
        let found = at.and_then(|at| self.open.remove(at)).map(|(id, _)| id);
        id.or(found).unwrap_or_else(|| {
            self.made += 1;
            format!("call_{}", self.made)
        })
    }
}

/// All messages of a conversation; `first` is the index of the first one.
pub(super) fn contents(f: Field, first: usize) -> Result<Vec<Message>> {
    let empty = f.error("must have at least one content");
    let unread = f.unread().clone();
    let mut calls = Calls::default();
    let mut out = Vec::new();
    for f in several(f)? {
        if f.is_string() {
            out.push(Message::text(Role::User, f.string()?));
            continue;
        }
        let mut o = f.object()?;
        o.camel_case();
        let role = o.take("role");
        // An answer that was ended early may have none.
        let parts = o.read("parts", several)?.unwrap_or_default();
        match role.as_ref().map(|f| f.as_str()) {
            None | Some(Some("user" | "function" | "tool" | "")) => user(parts, &mut calls, first, &mut out)?,
            Some(Some("model" | "assistant")) => model(parts, &mut calls, &mut out)?,
            Some(Some("system" | "developer")) => {
                let mut m = Message::empty(Role::System);
                read_parts(parts, &mut m.content)?;
                out.push(m);
            }
            Some(_) => {
                return Err(role.map_or(empty, |f| f.unsupported("; user, model and function are")));
            }
        }
        unread.place(first + out.len().saturating_sub(1));
        o.finish(&[])?;
    }
    if out.is_empty() { Err(empty) } else { Ok(out) }
}

/// Text content: instructions. May be a string.
pub(super) fn texts(f: Field) -> Result<Vec<Part>> {
    if f.is_string() {
        return Ok(vec![Part::text(f.string()?)]);
    }
    let unread = f.unread().clone();
    let mut o = f.object()?;
    o.camel_case();
    let mut out = Vec::new();
    read_parts(several(o.require("parts")?)?, &mut out)?;
    unread.refuse_unplaced()?;
    o.finish(&[&[("role", echo())]])?;
    out.retain(|p| p.as_text().is_none_or(|text| !text.is_empty()));
    Ok(out)
}

fn read_parts(parts: Vec<Field>, out: &mut Vec<Part>) -> Result<()> {
    for f in parts {
        let mut o = opened(f)?;
        out.extend(content_part(&mut o)?);
        finish(o)?;
    }
    Ok(())
}

fn opened(f: Field) -> Result<Object> {
    let mut o = f.object()?;
    o.camel_case();
    Ok(o)
}

/// A user turn. Function results become separate messages.
fn user(parts: Vec<Field>, calls: &mut Calls, first: usize, out: &mut Vec<Message>) -> Result<()> {
    let mut rest = Message::empty(Role::User);
    for f in parts {
        let unread = f.unread().clone();
        let mut o = opened(f)?;
        if let Some(f) = o.take("functionResponse") {
            if !rest.content.is_empty() {
                out.push(std::mem::replace(&mut rest, Message::empty(Role::User)));
            }
            out.push(result(f, calls)?);
            unread.place(first + out.len() - 1);
        } else {
            rest.content.extend(content_part(&mut o)?);
            unread.place(first + out.len());
        }
        // The signature of a client that sends back a model's part as its own.
        o.take("thoughtSignature");
        o.take("thought");
        finish(o)?;
    }
    if !rest.content.is_empty() {
        out.push(rest);
    }
    Ok(())
}

fn model(parts: Vec<Field>, calls: &mut Calls, out: &mut Vec<Message>) -> Result<()> {
    let mut m = Message::empty(Role::Assistant);
    for f in parts {
        let mut o = opened(f)?;
        let thought = o.read("thought", Field::bool)?.unwrap_or(false);
        let signature = o.read("thoughtSignature", Field::string)?.filter(|s| !s.is_empty());
        if thought {
            let text = o.read("text", Field::string)?.unwrap_or_default();
            think(&mut m, &text);
        } else if let Some(f) = o.take("functionCall") {
            let mut call = opened(f)?;
            let id = call.read("id", Field::name)?;
            let name = call.require("name")?.name()?;
            let arguments = call.read("args", Field::exact_map)?.unwrap_or_default();
            call.finish(&[])?;
            let id = calls.begin(id, &name);
            let arguments = digits::text(&arguments.into());
            m.tool_calls.push(ToolCall { id, name, arguments, cache: None });
        } else {
            let part = content_part(&mut o)?;
            m.content.extend(part.filter(|p| p.as_text().is_none_or(|text| !text.is_empty())));
        }
        for proof in signature.iter().flat_map(|s| proof::unwrap(s)) {
            prove(&mut m, proof);
        }
        finish(o)?;
    }
    if !(m.content.is_empty() && m.tool_calls.is_empty() && m.reasoning.is_empty()) {
        out.push(m);
    }
    Ok(())
}

/// Appends to the reasoning. Chunks of streamed reasoning come back as separate parts.
fn think(m: &mut Message, text: &str) {
    match m.reasoning.last_mut() {
        Some(ReasoningPart::Text { text: all, signature: None }) => all.push_str(text),
        _ if text.is_empty() => {}
        _ => m.reasoning.push(ReasoningPart::Text { text: text.into(), signature: None }),
    }
}

/// Adds a signature to the last reasoning.
fn prove(m: &mut Message, proof: ReasoningPart) {
    match (m.reasoning.last_mut(), proof) {
        (Some(ReasoningPart::Text { signature: open @ None, .. }), ReasoningPart::Text { signature, .. }) => {
            *open = signature
        }
        (_, proof) => m.reasoning.push(proof),
    }
}

/// The result of a function call.
fn result(f: Field, calls: &mut Calls) -> Result<Message> {
    let mut o = opened(f)?;
    let id = o.read("id", Field::name)?;
    let name = o.require("name")?.name()?;
    let response = o.read("response", Field::exact_map)?.unwrap_or_default();
    let mut m = Message::empty(Role::Tool);
    m.tool_call_id = Some(calls.answered(id, &name));
    m.name = Some(name);
    // These two keys mean the result, and an error.
    let only = if response.len() == 1 { response.iter().next() } else { None };
    let result = match only.map(|(key, value)| (key.as_str(), value)) {
        Some(("output" | "result", value)) => digits::bare(value),
        Some(("error", value)) => {
            m.is_error = true;
            digits::bare(value)
        }
        _ => digits::text(&response.into()),
    };
    m.content.push(Part::text(result));
    if let Some(f) = o.take("parts") {
        read_parts(several(f)?, &mut m.content)?;
    }
    o.finish(&[&[
        ("willContinue", tuning("answers wait for their functions")),
        ("scheduling", tuning("answers wait for their functions")),
    ]])?;
    Ok(m)
}

/// The content of a part; `None` if it is left out or empty.
fn content_part(o: &mut Object) -> Result<Option<Part>> {
    if let Some(f) = o.take("text") {
        return Ok(Some(Part::text(f.string()?)));
    }
    let at = o.path();
    if let Some(f) = o.take("inlineData") {
        return inline(o, f, at).map(Some);
    }
    if let Some(f) = o.take("fileData") {
        let mut data = opened(f)?;
        let uri = data.require("fileUri")?;
        if let Some(kind) = data.take("mimeType")
            && let Some(what) = kind.as_str().and_then(other_medium)
        {
            return Ok(Some(Part::text(o.unread(what, kind.unsupported(instead(what, "; pictures are"))))));
        }
        let source = ImageSource::Url(uri.name()?);
        data.finish(&[&[("displayName", echo())]])?;
        return Ok(Some(Part::Image { image: Image { source, detail: None, at, frame: None }, cache: None }));
    }
    Ok(None)
}

/// What is neither a picture nor a document.
fn other_medium(media_type: &str) -> Option<&'static str> {
    let known = [("audio/", "audio"), ("video/", "a video")];
    known.into_iter().find(|(family, _)| media_type.starts_with(family)).map(|(_, what)| what)
}

/// What to send instead of what [`other_medium`] names.
fn instead<'a>(what: &str, other: &'a str) -> &'a str {
    if what == "a video" { ": videos are not decoded here; send its frames as pictures" } else { other }
}

fn inline(part: &Object, f: Field, at: String) -> Result<Part> {
    let mut o = opened(f)?;
    let kind = o.require("mimeType")?;
    let media_type = kind.as_str().ok_or_else(|| kind.expected("a string"))?;
    let data = o.require("data")?;
    let text = data.as_str().ok_or_else(|| data.expected("a string"))?;
    let name = o.read("displayName", Field::string)?.filter(|name| !name.is_empty());
    o.finish(&[])?;
    if let Some(what) = other_medium(media_type) {
        let refusal = kind.unsupported(instead(what, "; texts, pictures and documents are"));
        return Ok(Part::text(part.unread(what, refusal)));
    }
    let head = name.map(|name| format!("{name}\n")).unwrap_or_default();
    File { media_type: Some(media_type), data: text, head, at, cache: None }.part(&data)
}

/// Parts that only their provider can read.
const THEIRS: [&str; 5] =
    ["executableCode", "codeExecutionResult", "toolCall", "toolResponse", "audioTranscription"];

fn finish(mut o: Object) -> Result<()> {
    for kind in THEIRS {
        if o.take(kind).is_some() {
            o.warn(format_args!("is left out: parts of the kind '{}' are not supported", shortened(kind)));
        }
    }
    o.finish(&[PART])?;
    Ok(())
}
