//! Parses tools of a chat request: functions, custom tools and the deprecated `functions`.

use serde_json::Value;

use super::super::custom::custom;
use super::super::fields;
use crate::breakpoint::cache_control;
use crate::core::{Chat, Tool, ToolChoice};
use crate::json::{Field, Object, Result, shortened};

/// `tools`, `tool_choice` and `parallel_tool_calls`; or the deprecated `functions` and `function_call`.
pub(super) fn tools(o: &mut Object, chat: &mut Chat) -> Result<()> {
    chat.parallel_tool_calls = o.read("parallel_tool_calls", Field::bool)?;
    if has_functions(o) {
        return functions(o, chat);
    }
    if let Some(f) = o.take("tools") {
        chat.tools = f.list(tool)?.into_iter().flatten().collect();
        fields::unique(&chat.tools)?;
    }
    tool_choice(o, chat)
}

/// `tool_choice`; `chat` has the tools.
pub(crate) fn tool_choice(o: &mut Object, chat: &mut Chat) -> Result<()> {
    if let Some(f) = o.take("tool_choice") {
        choice(f, chat)?;
        fields::check_tool_choice(chat)?;
    }
    Ok(())
}

fn has_functions(o: &Object) -> bool {
    o.has("functions") && o.peek("functions") != Some(&Value::Array(Vec::new()))
}

/// `functions` and `function_call`, as tools. An answer has one call at most.
fn functions(o: &mut Object, chat: &mut Chat) -> Result<()> {
    let f = o.require("functions")?;
    let both = f.error("and 'tools' exclude each other");
    chat.tools = f.list(|f| {
        let mut o = f.object()?;
        let mut tool = fields::tool(&mut o)?;
        o.finish(&[fields::TOOL])?;
        tool.origin.legacy = true;
        Ok(tool)
    })?;
    fields::unique(&chat.tools)?;
    if o.take("tools").is_some_and(|f| f.value().as_array().is_none_or(|list| !list.is_empty())) {
        return Err(both);
    }
    o.only("tool_choice", &["auto".into(), "none".into()], "send 'function_call' with 'functions'")?;
    chat.parallel_tool_calls = Some(false);
    let Some(f) = o.take("function_call") else { return Ok(()) };
    let unknown = f.error("names a function that is not in 'functions'");
    chat.tool_choice = fields::tool_choice(f, |o| o.require("name")?.name())?;
    match &chat.tool_choice {
        ToolChoice::Named(name) if !chat.tools.iter().any(|t| t.name == *name) => Err(unknown),
        _ => Ok(()),
    }
}

fn is_custom(o: &Object) -> bool {
    o.peek("type").and_then(Value::as_str) == Some("custom")
}

/// A tool. Those that a provider runs are left out with a warning.
fn tool(f: Field) -> Result<Option<Tool>> {
    let mut o = f.object()?;
    let hosted =
        o.peek("type").and_then(Value::as_str).filter(|kind| !["function", "custom", ""].contains(kind));
    if let Some(hosted) = hosted {
        o.warn(format_args!("is left out: this server has no tool '{}'", shortened(hosted)));
        return Ok(None);
    }
    if !is_custom(&o) {
        let cache = cache_control(&mut o)?;
        let tool = fields::function(o)?;
        return Ok(Some(Tool { cache: cache.or(tool.cache.clone()), ..tool }));
    }
    o.take("type");
    // The form of Responses, or of Anthropic, whose functions are custom tools.
    if !o.has("custom") && o.has("name") {
        let tool = if o.has("input_schema") { fields::tool(&mut o)? } else { custom(&mut o)? };
        o.finish(&[fields::TOOL])?;
        return Ok(Some(tool));
    }
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

/// The name of the chosen tool, also in the form of Responses.
fn named(o: &mut Object, is_custom: bool) -> Result<String> {
    if !o.has("function") && o.has("name") {
        return o.require("name")?.name();
    }
    let mut inner = o.require(if is_custom { "custom" } else { "function" })?.object()?;
    let name = inner.require("name")?.name()?;
    inner.finish(&[])?;
    Ok(name)
}
