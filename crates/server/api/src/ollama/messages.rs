//! Parses messages of a chat.

use serde_json::Value;

use crate::core::{Image, ImageSource, Message, Part, ReasoningPart, Role, ToolCall};
use crate::json::{Field, Object, Result};
use crate::rules::{Rules, tuning};

pub(super) fn messages(f: Field) -> Result<Vec<Message>> {
    let mut out = Vec::new();
    // Calls without a result so far: most clients give no ids.
    let mut open: Vec<(String, String)> = Vec::new();
    for (i, f) in f.array()?.enumerate() {
        let mut m = message(f, i)?;
        open.extend(m.tool_calls.iter().map(|c| (c.id.clone(), c.name.clone())));
        if m.role == Role::Tool {
            let answered = |(id, name): &(String, String)| match (&m.tool_call_id, &m.name) {
                (Some(of), _) => of == id,
                (None, Some(of)) => of == name,
                (None, None) => true,
            };
            if let Some(at) = open.iter().position(answered) {
                m.tool_call_id = Some(open.remove(at).0);
            }
        }
        out.push(m);
    }
    Ok(out)
}

/// Fields of messages of other roles: clients send them, often empty, with every message.
const MESSAGE: Rules = &[
    ("tool_name", tuning("only a tool's message has it")),
    ("tool_call_id", tuning("only a tool's message has it")),
    ("thinking", tuning("only an assistant's message has it")),
];

fn message(f: Field, place: usize) -> Result<Message> {
    let mut o = f.object()?;
    let role = o.require("role")?.one_of(&[
        ("system", Role::System),
        ("developer", Role::Developer),
        ("user", Role::User),
        ("assistant", Role::Assistant),
        ("tool", Role::Tool),
    ])?;
    let mut m = Message::empty(role);
    if let Some(text) = o.read("content", Field::string)?.filter(|t| !t.is_empty() || role != Role::Assistant)
    {
        m.content.push(Part::text(text));
    }
    m.content.extend(images(&mut o)?);
    if role == Role::Tool {
        m.name = o.take_any(&["tool_name", "name"])?.map(Field::name).transpose()?;
        m.tool_call_id = o.read("tool_call_id", Field::name)?;
    }
    if role == Role::Assistant {
        if let Some(text) = o.read("thinking", Field::string)?.filter(|t| !t.is_empty()) {
            m.reasoning.push(ReasoningPart::Text { text, signature: None });
        }
        let calls = o.read("tool_calls", Field::array)?.into_iter().flatten();
        let call = |(i, f)| tool_call(f, || format!("call_{place}_{i}"));
        m.tool_calls = calls.into_iter().enumerate().map(call).collect::<Result<_>>()?;
    } else {
        o.only("tool_calls", &[Value::Array(Vec::new())], "only an assistant's message has it")?;
    }
    o.finish(&[MESSAGE])?;
    Ok(m)
}

/// `images`, as base64.
pub(super) fn images(o: &mut Object) -> Result<Vec<Part>> {
    let Some(f) = o.take("images") else { return Ok(Vec::new()) };
    f.list(|f| {
        let at = f.path();
        // Some clients send data URLs.
        let is_url = f.as_str().is_some_and(|data| data.starts_with("data:"));
        let source = if is_url { ImageSource::url(f)? } else { ImageSource::base64(&f, None)? };
        Ok(Part::Image { image: Image { source, detail: None, at, frame: None }, cache: None })
    })
}

fn tool_call(f: Field, unnamed: impl FnOnce() -> String) -> Result<ToolCall> {
    let mut o = f.object()?;
    crate::openai::function_type(&mut o)?;
    let id = o.read("id", Field::string)?.filter(|id| !id.is_empty()).unwrap_or_else(unnamed);
    let mut function = o.require("function")?.object()?;
    let name = function.require("name")?.name()?;
    let arguments = function.read("arguments", crate::openai::chat::arguments)?.unwrap_or_default();
    function.read("index", |f| f.count(0..=u32::MAX))?;
    function.read("description", Field::string)?;
    function.finish(&[])?;
    o.finish(&[])?;
    Ok(ToolCall { id, name, arguments, cache: None })
}
