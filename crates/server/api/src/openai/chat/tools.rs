//! Parses tools of a chat request: functions and custom tools. Called by the request's parser.

use serde_json::Value;

use super::super::custom::custom;
use super::super::fields;
use crate::core::{Chat, Tool, ToolChoice};
use crate::json::{Field, Object, Result, shortened};

/// `tools` and `tool_choice`.
pub(super) fn tools(o: &mut Object, chat: &mut Chat) -> Result<()> {
    if let Some(f) = o.take("tools") {
        chat.tools = f.list(tool)?.into_iter().flatten().collect();
        fields::unique(&chat.tools)?;
    }
    if let Some(f) = o.take("tool_choice") {
        choice(f, chat)?;
        fields::check_tool_choice(chat)?;
    }
    Ok(())
}

fn is_custom(o: &Object) -> bool {
    o.peek("type").and_then(Value::as_str) == Some("custom")
}

/// A tool. Those that a provider runs are left out with a warning.
fn tool(f: Field) -> Result<Option<Tool>> {
    let mut o = f.object()?;
    let hosted = o.peek("type").and_then(Value::as_str).filter(|kind| !["function", "custom"].contains(kind));
    if let Some(hosted) = hosted {
        o.warn(format_args!("is left out: this server has no tool '{}'", shortened(hosted)));
        return Ok(None);
    }
    if !is_custom(&o) {
        return fields::function(o).map(Some);
    }
    o.take("type");
    let mut inner = o.require("custom")?.object()?;
    o.finish(&[fields::TOOL])?;
    let tool = custom(&mut inner)?;
    inner.finish(&[fields::TOOL])?;
    Ok(Some(tool))
}

fn choice(f: Field, chat: &mut Chat) -> Result<()> {
    let kind = if f.is_object() { f.value()["type"].as_str() } else { None };
    if kind != Some("allowed_tools") {
        let is_custom = kind == Some("custom");
        chat.tool_choice = fields::tool_choice(f, |o| named(o, is_custom))?;
        return Ok(());
    }
    let mut o = f.object()?;
    o.take("type");
    let mut allowed = o.require("allowed_tools")?.object()?;
    let must = allowed.require("mode")?.one_of(&[("auto", false), ("required", true)])?;
    chat.tool_choice = if must { ToolChoice::Required } else { ToolChoice::Auto };
    let names = allowed.require("tools")?.list(|f| {
        let mut o = f.object()?;
        let is_custom = is_custom(&o);
        o.take("type");
        let name = named(&mut o, is_custom)?;
        o.finish(&[])?;
        Ok(name)
    })?;
    allowed.finish(&[])?;
    o.finish(&[])?;
    chat.tools.retain(|t| names.contains(&t.name));
    Ok(())
}

/// The name of the chosen tool.
fn named(o: &mut Object, is_custom: bool) -> Result<String> {
    let mut inner = o.require(if is_custom { "custom" } else { "function" })?.object()?;
    let name = inner.require("name")?.name()?;
    inner.finish(&[])?;
    Ok(name)
}
