//! Parses tools of a Responses request: functions, functions in namespaces, custom tools. The answer writers restore their names.

use super::super::custom::custom;
use super::super::fields;
use crate::core::{Chat, Tool, ToolChoice, ToolOrigin};
use crate::json::{Field, Object, Result, shortened};
use crate::rules::echo;

/// `tools`, `tool_choice` and the tools added by `input`.
pub(super) fn tools(o: &mut Object, chat: &mut Chat, added: Vec<Tool>) -> Result<()> {
    if let Some(f) = o.take("tools") {
        read(f, &mut chat.tools)?;
    }
    chat.tools.extend(added);
    fields::unique(&chat.tools)?;
    if let Some(f) = o.take("tool_choice") {
        choice(f, chat)?;
        fields::check_tool_choice(chat)?;
    }
    chat.parallel_tool_calls = o.read("parallel_tool_calls", Field::bool)?;
    Ok(())
}

/// Parses a list of tools. Hosted tools are left out with a warning.
pub(super) fn read(f: Field, out: &mut Vec<Tool>) -> Result<()> {
    for f in f.array()? {
        let mut o = f.object()?;
        let kind = o.require("type")?;
        if kind.as_str() == Some("namespace") {
            let name = o.require("name")?.name()?;
            // The namespace's description applies to all of its tools; each has its own.
            o.take("description");
            for f in o.require("tools")?.array()? {
                let mut o = f.object()?;
                let kind = o.require("type")?;
                out.extend(one(kind, o)?.map(|tool| within(&name, tool)));
            }
            o.finish(&[])?;
        } else {
            out.extend(one(kind, o)?);
        }
    }
    Ok(())
}

/// Parses one tool, in a namespace or not.
fn one(kind: Field, mut o: Object) -> Result<Option<Tool>> {
    let tool = match kind.as_str() {
        Some("function") => fields::tool(&mut o)?,
        Some("custom") => custom(&mut o)?,
        Some(hosted) => {
            o.warn(format_args!("is left out: this server has no tool '{}'", shortened(hosted)));
            return Ok(None);
        }
        None => return Err(kind.expected("a string")),
    };
    o.finish(&[fields::TOOL])?;
    Ok(Some(tool))
}

/// The tool under a flat name, as in the model's prompt.
fn within(namespace: &str, tool: Tool) -> Tool {
    let origin = ToolOrigin { namespace: Some((namespace.into(), tool.name.clone())), ..tool.origin };
    Tool { name: flat(namespace, &tool.name), origin, ..tool }
}

/// The flat name of a namespace's tool.
pub(super) fn flat(namespace: &str, name: &str) -> String {
    if namespace.ends_with("__") { format!("{namespace}{name}") } else { format!("{namespace}__{name}") }
}

fn choice(f: Field, chat: &mut Chat) -> Result<()> {
    if !f.is_object() {
        chat.tool_choice = fields::tool_choice(f, |o| o.require("name")?.name())?;
        return Ok(());
    }
    let mut o = f.object()?;
    let kind = o.require("type")?;
    match kind.as_str() {
        Some("function" | "custom") => chat.tool_choice = ToolChoice::Named(named(&mut o)?),
        Some("allowed_tools") => {
            let must = o.require("mode")?.one_of(&[("auto", false), ("required", true)])?;
            chat.tool_choice = if must { ToolChoice::Required } else { ToolChoice::Auto };
            let names = o.require("tools")?.list(|f| {
                let mut o = f.object()?;
                // A hosted tool, which has been left out.
                let name = if o.has("name") { Some(named(&mut o)?) } else { None };
                o.finish(&[&[("type", echo()), ("server_label", echo())]])?;
                Ok(name)
            })?;
            chat.tools.retain(|t| names.iter().flatten().any(|n| *n == t.name));
        }
        _ => return Err(kind.unsupported("; function, custom and allowed_tools are")),
    }
    o.finish(&[])?;
    Ok(())
}

/// The name of the chosen tool.
fn named(o: &mut Object) -> Result<String> {
    let name = o.require("name")?.name()?;
    let namespace = o.read("namespace", Field::string)?;
    Ok(namespace.map_or(name.clone(), |namespace| flat(&namespace, &name)))
}
