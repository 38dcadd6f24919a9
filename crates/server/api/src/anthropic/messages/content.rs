//! Messages and their blocks. Called by the request's parser.

use crate::anthropic::UNSIGNED;
use crate::core::{CacheBreakpoint, Image, ImageSource, Message, Part, ReasoningPart, Role, ToolCall};
use crate::json::{Field, Object, Result};

pub(super) fn messages(f: Field) -> Result<Vec<Message>> {
    let empty = f.error("must have at least one message");
    let mut out = Vec::new();
    for f in f.array()? {
        let mut o = f.object()?;
        let role = o.require("role")?;
        let content = o.require("content")?;
        match role.as_str() {
            Some("user") => user(content, &mut out)?,
            Some("assistant") => out.push(assistant(content)?),
            Some("system") => {
                out.push(Message { content: texts(content)?, ..Message::empty(Role::System) });
            }
            Some(_) => return Err(role.unsupported("; user, assistant and system are")),
            None => return Err(role.expected("a string")),
        }
        o.finish(&[])?;
    }
    if out.is_empty() { Err(empty) } else { Ok(out) }
}

/// A string, or a list of text blocks.
pub(super) fn texts(f: Field) -> Result<Vec<Part>> {
    if f.is_string() {
        return Ok(vec![Part::text(f.string()?)]);
    }
    blocks(f)?
        .into_iter()
        .map(|block| match block.kind.as_str() {
            Some("text") => block.text(),
            _ => Err(block.kind.unsupported("; text is")),
        })
        .collect()
}

/// A user's message. What tools returned becomes messages of its own.
fn user(f: Field, out: &mut Vec<Message>) -> Result<()> {
    if f.is_string() {
        out.push(Message::text(Role::User, f.string()?));
        return Ok(());
    }
    let empty = f.expected("a string or an array of at least one block");
    let before = out.len();
    let mut rest = Message::empty(Role::User);
    for block in blocks(f)? {
        match block.kind.as_str() {
            Some("text") => rest.content.push(block.text()?),
            Some("image") => rest.content.push(block.image()?),
            Some("tool_result") => {
                if !rest.content.is_empty() {
                    out.push(std::mem::replace(&mut rest, Message::empty(Role::User)));
                }
                out.push(block.tool_result()?);
            }
            _ => return Err(block.kind.unsupported("; text, image and tool_result are")),
        }
    }
    if !rest.content.is_empty() {
        out.push(rest);
    }
    if out.len() == before { Err(empty) } else { Ok(()) }
}

fn assistant(f: Field) -> Result<Message> {
    if f.is_string() {
        return Ok(Message::text(Role::Assistant, f.string()?));
    }
    let mut m = Message::empty(Role::Assistant);
    for mut block in blocks(f)? {
        match block.kind.as_str() {
            Some("text") => m.content.push(block.text()?),
            Some("thinking") => {
                let text = block.o.require("thinking")?.string()?;
                let signature = block.o.read("signature", Field::string)?;
                let signature = signature.filter(|s| !s.is_empty() && s != UNSIGNED);
                block.o.finish(&[])?;
                m.reasoning.push(ReasoningPart::Text { text, signature });
            }
            Some("redacted_thinking") => {
                m.reasoning.push(ReasoningPart::Redacted(block.o.require("data")?.string()?));
                block.o.finish(&[])?;
            }
            Some("tool_use") => m.tool_calls.push(block.tool_use()?),
            _ => return Err(block.kind.unsupported("; text, thinking, redacted_thinking and tool_use are")),
        }
    }
    Ok(m)
}

/// A block whose type has been looked at.
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
    fn text(mut self) -> Result<Part> {
        let text = self.o.require("text")?.string()?;
        let cache = cache_control(&mut self.o)?;
        self.o.only("citations", &[serde_json::json!([])], "nothing is cited")?;
        self.o.finish(&[])?;
        Ok(Part::Text { text, cache })
    }

    fn image(mut self) -> Result<Part> {
        let at = self.o.path();
        let mut source = self.o.require("source")?.object()?;
        let kind = source.require("type")?;
        let from = match kind.as_str() {
            Some("url") => ImageSource::Url(source.require("url")?.name()?),
            Some("base64") => ImageSource::Base64 {
                media_type: Some(source.require("media_type")?.name()?),
                data: source.require("data")?.string()?,
            },
            _ => return Err(kind.unsupported("; url and base64 are")),
        };
        source.finish(&[])?;
        let cache = cache_control(&mut self.o)?;
        self.o.finish(&[])?;
        Ok(Part::Image { image: Image { source: from, detail: None, at }, cache })
    }

    fn tool_result(mut self) -> Result<Message> {
        let mut m = Message::empty(Role::Tool);
        m.tool_call_id = Some(self.o.require("tool_use_id")?.name()?);
        m.is_error = self.o.read("is_error", Field::bool)?.unwrap_or(false);
        if let Some(f) = self.o.take("content") {
            m.content = if f.is_string() {
                vec![Part::text(f.string()?)]
            } else {
                blocks(f)?
                    .into_iter()
                    .map(|block| match block.kind.as_str() {
                        Some("text") => block.text(),
                        Some("image") => block.image(),
                        _ => Err(block.kind.unsupported("; text and image are")),
                    })
                    .collect::<Result<_>>()?
            };
        }
        let breakpoint = cache_control(&mut self.o)?;
        if let (Some(_), Some(Part::Text { cache, .. } | Part::Image { cache, .. })) =
            (&breakpoint, m.content.last_mut())
        {
            *cache = breakpoint;
        }
        self.o.finish(&[("toolset_name", "there are no toolsets")])?;
        Ok(m)
    }

    fn tool_use(mut self) -> Result<ToolCall> {
        let o = &mut self.o;
        let call = ToolCall {
            id: o.require("id")?.name()?,
            name: o.require("name")?.name()?,
            arguments: serde_json::Value::from(o.require("input")?.map()?).to_string(),
            cache: cache_control(o)?,
        };
        let why = "this server runs no tools of its own";
        o.only("caller", &[serde_json::json!({"type": "direct"})], why)?;
        self.o.finish(&[("toolset_name", "there are no toolsets")])?;
        Ok(call)
    }
}

/// `cache_control` of a block or a tool.
pub(super) fn cache_control(o: &mut Object) -> Result<Option<CacheBreakpoint>> {
    o.read("cache_control", |f| {
        let mut o = f.object()?;
        o.only("type", &["ephemeral".into()], "there is one kind of cache")?;
        let ttl = o.read("ttl", Field::string)?;
        o.accept(&[("scope", "who shares a cache, which providers know")]);
        o.finish(&[])?;
        Ok(CacheBreakpoint { ttl })
    })
}
