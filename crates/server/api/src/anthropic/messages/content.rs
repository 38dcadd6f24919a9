//! Messages and their blocks.

use crate::breakpoint::cache_control;
use crate::core::{Image, ImageSource, Message, Part, ReasoningPart, Role, ToolCall};
use crate::file::File;
use crate::json::{Field, Object, Result, shortened};
use crate::openai::chat::any_arguments;
use crate::proofs::UNSIGNED;
use crate::rules::{Rules, echo, tuning, tuning_but};

/// A block of a system message that changes the tools.
pub(super) enum ToolChange {
    /// The tool, or its name.
    Added(Field),
    /// Its name.
    Removed(Field),
}

/// All messages, and what they change of the tools; `first` is the index of the first message in the conversation.
pub(super) fn messages(f: Field, first: usize) -> Result<(Vec<Message>, Vec<ToolChange>)> {
    let empty = f.error("must have at least one message");
    let unread = f.unread().clone();
    let (mut out, mut changes) = (Vec::new(), Vec::new());
    for f in f.array()? {
        let mut o = f.object()?;
        let role = o.require("role")?;
        let content = o.require("content")?;
        match role.as_str() {
            Some("user") => user(content, first, &mut out)?,
            Some("assistant") => out.push(assistant(content)?),
            Some("system" | "developer") => out.extend(system(content, &mut changes)?),
            Some(_) => return Err(role.unsupported("; user, assistant and system are")),
            None => return Err(role.expected("a string")),
        }
        unread.place(first + out.len().saturating_sub(1));
        o.finish(&[MESSAGE])?;
    }
    if out.is_empty() { Err(empty) } else { Ok((out, changes)) }
}

/// A system message; `None` if it only changes the tools.
fn system(f: Field, changes: &mut Vec<ToolChange>) -> Result<Option<Message>> {
    let mut m = Message::empty(Role::System);
    if f.is_string() {
        m.content.push(Part::text(f.string()?));
        return Ok(Some(m));
    }
    let before = changes.len();
    for mut block in blocks(f)? {
        let change = match block.kind.as_str() {
            Some("tool_addition") => ToolChange::Added,
            Some("tool_removal") => ToolChange::Removed,
            _ => {
                block.part(&mut m.content)?;
                continue;
            }
        };
        changes.push(change(block.o.require("tool")?));
        block.o.finish(&[BLOCK])?;
    }
    Ok((before == changes.len() || !m.content.is_empty()).then_some(m))
}

/// Fields of an answer's message that clients send back.
const MESSAGE: Rules = &[
    ("id", echo()),
    ("type", echo()),
    ("model", echo()),
    ("container", echo()),
    ("context_management", echo()),
    ("stop_reason", echo()),
    ("stop_sequence", echo()),
    ("stop_details", echo()),
    ("usage", echo()),
    ("cache_control", tuning("shared prefixes are found without it")),
];

/// A string, or a list of text blocks.
pub(super) fn texts(f: Field) -> Result<Vec<Part>> {
    if f.is_string() {
        return Ok(vec![Part::text(f.string()?)]);
    }
    let mut out = Vec::new();
    for block in blocks(f)? {
        block.part(&mut out)?;
    }
    Ok(out)
}

/// A user's message. Tool results become separate messages.
fn user(f: Field, first: usize, out: &mut Vec<Message>) -> Result<()> {
    if f.is_string() {
        out.push(Message::text(Role::User, f.string()?));
        return Ok(());
    }
    let empty = f.expected("a string or an array of at least one block");
    let unread = f.unread().clone();
    let before = out.len();
    let mut rest = Message::empty(Role::User);
    let mut has_part = false;
    for block in blocks(f)? {
        if block.kind.as_str() == Some("tool_result") {
            if !rest.content.is_empty() {
                out.push(std::mem::replace(&mut rest, Message::empty(Role::User)));
            }
            out.push(block.tool_result()?);
            unread.place(first + out.len() - 1);
            continue;
        }
        block.part(&mut rest.content)?;
        unread.place(first + out.len());
        // It may be a block that is left out.
        has_part = true;
    }
    if !rest.content.is_empty() {
        out.push(rest);
    }
    if out.len() == before && !has_part { Err(empty) } else { Ok(()) }
}

fn assistant(f: Field) -> Result<Message> {
    if f.is_string() {
        return Ok(Message::text(Role::Assistant, f.string()?));
    }
    let mut m = Message::empty(Role::Assistant);
    for mut block in blocks(f)? {
        match block.kind.as_str() {
            Some("thinking") => {
                let text = block.o.require("thinking")?.string()?;
                let signature = block.o.read("signature", Field::string)?;
                let signature = signature.filter(|s| !s.is_empty() && s != UNSIGNED);
                block.o.finish(&[BLOCK])?;
                m.reasoning.push(ReasoningPart::Text { text, signature });
            }
            Some("redacted_thinking") => {
                m.reasoning.push(ReasoningPart::Redacted(block.o.require("data")?.string()?));
                block.o.finish(&[BLOCK])?;
            }
            Some("tool_use") => m.tool_calls.push(block.tool_use()?),
            _ => {
                block.part(&mut m.content)?;
            }
        }
    }
    Ok(m)
}

/// Blocks that are read elsewhere, and are errors here.
const PLACED: &[&str] = &["tool_use", "tool_result", "thinking", "redacted_thinking"];

/// Fields of a block besides its content.
const BLOCK: Rules = &[
    ("cache_control", tuning("shared prefixes are found without it")),
    // Citations of an answer that clients send back, or a request for some.
    ("citations", tuning_but(r#"[{"enabled": false}]"#, "answers cite nothing")),
    ("caller", tuning_but(r#"[{"type": "direct"}]"#, "this server runs no tools of its own")),
    ("toolset_name", tuning("there are no toolsets")),
];

/// A block whose type has been read.
struct Block {
    kind: Field,
    o: Object,
}

fn blocks(f: Field) -> Result<Vec<Block>> {
    if !f.is_array() {
        return Err(f.expected("a string or an array of blocks"));
    }
    f.list(|f| {
        let mut o = f.object()?;
        let kind = o.require("type")?;
        if kind.is_string() { Ok(Block { kind, o }) } else { Err(kind.expected("a string")) }
    })
}

impl Block {
    /// Adds a block to a message. False if it is left out; that has been warned about.
    fn part(mut self, out: &mut Vec<Part>) -> Result<bool> {
        match self.kind.as_str() {
            Some("text") => out.push(self.text()?),
            Some("image") => out.push(self.image()?),
            Some("document") => self.document(out)?,
            Some("search_result") => {
                let o = &mut self.o;
                let mut text =
                    format!("{}\n{}\n", o.require("title")?.string()?, o.require("source")?.string()?);
                let parts = texts(o.require("content")?)?;
                text.extend(parts.iter().filter_map(Part::as_text));
                let cache = cache_control(o)?;
                self.o.finish(&[BLOCK])?;
                out.push(Part::Text { text, cache });
            }
            Some("tool_reference") => {
                let name = self.o.require("tool_name")?.name()?;
                self.o.finish(&[BLOCK])?;
                out.push(Part::text(format!("The tool '{name}' is available.")));
            }
            // A summary of the conversation before it.
            Some("compaction") => {
                let text = self.o.read("content", Field::string)?;
                let cache = cache_control(&mut self.o)?;
                out.extend(text.map(|text| Part::Text { text, cache }));
            }
            Some(kind) if PLACED.contains(&kind) => return Err(self.kind.unsupported(" here")),
            // Most are hosted tools: calls and their results.
            other => {
                let kind = shortened(other.unwrap_or_default());
                self.o.warn(format_args!("is left out: blocks of the type '{kind}' are not supported"));
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn text(mut self) -> Result<Part> {
        let text = self.o.require("text")?.string()?;
        let cache = cache_control(&mut self.o)?;
        // Citations of an earlier answer.
        self.o.take("citations");
        self.o.finish(&[BLOCK])?;
        Ok(Part::Text { text, cache })
    }

    /// A document as text: its title, the client's context, the text.
    fn document(mut self, out: &mut Vec<Part>) -> Result<()> {
        let at = self.o.path();
        let o = &mut self.o;
        let mut head = String::new();
        for name in ["title", "context"] {
            if let Some(text) = o.read(name, Field::string)? {
                head += &text;
                head.push('\n');
            }
        }
        let mut source = o.require("source")?.object()?;
        let kind = source.require("type")?;
        let cache = cache_control(o)?;
        match kind.as_str() {
            Some("text") => {
                let text = source.require("data")?.string()?;
                source.read("media_type", Field::string)?;
                out.push(Part::Text { text: head + &text, cache });
            }
            Some("content") => {
                let content = source.require("content")?;
                if !head.is_empty() {
                    out.push(Part::text(head));
                }
                if content.is_string() {
                    out.push(Part::Text { text: content.string()?, cache });
                } else {
                    for block in blocks(content)? {
                        block.part(out)?;
                    }
                }
            }
            Some("base64") => {
                let media_type = source.read("media_type", Field::name)?;
                let f = source.require("data")?;
                let data = f.as_str().ok_or_else(|| f.expected("a string"))?;
                let file = File { media_type: media_type.as_deref(), data, head, at, cache };
                out.push(file.part(&f)?);
            }
            Some("url") => {
                let source = ImageSource::Url(source.require("url")?.name()?);
                out.push(Part::Image { image: Image { source, detail: None, at, frame: None }, cache });
            }
            Some(_) => {
                let refusal = kind.unsupported("; text, content, base64 and url are");
                out.push(Part::text(self.o.unread("a document", refusal)));
                return Ok(());
            }
            None => return Err(kind.expected("a string")),
        }
        source.finish(&[])?;
        self.o.finish(&[BLOCK])?;
        Ok(())
    }

    fn image(mut self) -> Result<Part> {
        let at = self.o.path();
        let mut source = self.o.require("source")?.object()?;
        let kind = source.require("type")?;
        let from = match kind.as_str() {
            Some("url") => ImageSource::Url(source.require("url")?.name()?),
            Some("base64") => {
                let media_type = source.require("media_type")?.name()?;
                ImageSource::base64(&source.require("data")?, Some(&media_type))?
            }
            Some(_) => {
                let refusal = kind.unsupported("; url and base64 are");
                return Ok(Part::text(self.o.unread("an image", refusal)));
            }
            None => return Err(kind.expected("a string")),
        };
        source.finish(&[])?;
        let cache = cache_control(&mut self.o)?;
        self.o.finish(&[BLOCK])?;
        Ok(Part::Image { image: Image { source: from, detail: None, at, frame: None }, cache })
    }

    fn tool_result(mut self) -> Result<Message> {
        let mut m = Message::empty(Role::Tool);
        m.tool_call_id = Some(self.o.require("tool_use_id")?.name()?);
        m.is_error = self.o.read("is_error", Field::bool)?.unwrap_or(false);
        if let Some(f) = self.o.take("content") {
            m.content = if f.is_string() {
                vec![Part::text(f.string()?)]
            } else {
                let mut parts = Vec::new();
                for block in blocks(f)? {
                    block.part(&mut parts)?;
                }
                parts
            };
        }
        let breakpoint = cache_control(&mut self.o)?;
        if let (Some(_), Some(Part::Text { cache, .. } | Part::Image { cache, .. })) =
            (&breakpoint, m.content.last_mut())
        {
            *cache = breakpoint;
        }
        self.o.finish(&[BLOCK])?;
        Ok(m)
    }

    fn tool_use(mut self) -> Result<ToolCall> {
        let o = &mut self.o;
        let call = ToolCall {
            id: o.require("id")?.name()?,
            name: o.require("name")?.name()?,
            arguments: o.take("input").map(any_arguments).unwrap_or_default(),
            cache: cache_control(o)?,
        };
        self.o.finish(&[BLOCK])?;
        Ok(call)
    }
}
