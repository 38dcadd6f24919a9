//! Parses a client's messages request.

use std::collections::HashMap;

use serde_json::Value;

use super::content::{ToolChange, messages, texts};
use crate::breakpoint::cache_control;
use crate::core::{
    Chat, Effort, Family, GenerateRequest, Input, Message, Part, ResponseFormat, Role, Tool, ToolChoice,
    ToolOrigin,
};
use crate::json::{self, Field, Object, Result, shortened};
use crate::openai::{check_tool_choice, schema, stop, unique};
use crate::rules::{Rules, echo, only, refused, tuning, tuning_but};

/// Fields of the body. Tuning fields are forwarded to providers of this dialect.
const RULES: Rules = &[
    ("service_tier", tuning_but(r#"["auto", "standard_only"]"#, "there is one service tier")),
    ("cache_control", tuning("shared prefixes are found without it")),
    ("context_management", tuning_but(KEEP_ALL, "nothing is cut from a conversation")),
    ("inference_geo", tuning("answers are computed here")),
    ("speed", tuning_but(r#"["standard"]"#, "there is one speed")),
    ("user_profile_id", tuning("only a provider uses it")),
    ("workspace_id", tuning("only a provider uses it")),
    ("diagnostics", tuning("the header x-octet-explain-cache reports why a prompt was not in the cache")),
    ("betas", tuning("beta features are read where they are used")),
    ("anthropic_beta", tuning("beta features are read where they are used")),
    ("anthropic_version", tuning("there is one version")),
    ("container", tuning("this server runs no code")),
    ("thread", refused("send the whole conversation")),
    ("safeguards", tuning("this server does not check what tools are used for")),
    ("mcp_servers", tuning("this server calls no tools itself")),
    ("prompt", refused("it belongs to the older /v1/complete; send 'messages'")),
    ("max_tokens_to_sample", refused("it belongs to the older /v1/complete; send 'max_tokens'")),
];

/// Sent by Claude Code: keep all thinking, which is the behaviour here.
const KEEP_ALL: &str =
    r#"[{"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}, {"edits": []}, {}]"#;

/// Fields of messages that token counting does not have.
const ANSWER: Rules = &[
    ("max_tokens", echo()),
    ("stop_sequences", echo()),
    ("stream", echo()),
    ("temperature", echo()),
    ("top_p", echo()),
    ("top_k", echo()),
    ("metadata", echo()),
];

/// Parses the body of a `POST /v1/messages`.
///
/// # Errors
/// Fields that are unknown, not supported, of the wrong type or out of range, by name.
pub fn parse(body: &[u8]) -> Result<GenerateRequest> {
    let mut o = json::parse(body)?;
    let max_tokens = o.require("max_tokens")?.most(1)?;
    let mut r = request(&mut o)?;
    r.max_tokens = Some(max_tokens);
    r.stop = o
        .read("stop_sequences", |f| if f.is_array() { stop(f) } else { Err(f.expected("an array")) })?
        .unwrap_or_default();
    r.stream = o.read("stream", Field::bool)?.unwrap_or(false);
    r.sampling.temperature = o.read("temperature", |f| f.number(0.0..=f64::MAX))?;
    r.sampling.top_p = o.read("top_p", |f| f.number(0.0..=1.0))?;
    r.sampling.top_k = o.read("top_k", |f| f.count(0..=u32::MAX))?;
    r.user = metadata(&mut o)?;
    finish(o, &mut r, &[RULES])?;
    Ok(r)
}

fn finish(mut o: Object, r: &mut GenerateRequest, tables: &[Rules]) -> Result<()> {
    r.timeout = o.timeout()?;
    let warnings = o.warnings();
    r.extra = o.finish(tables)?;
    r.warnings = warnings.take();
    Ok(())
}

/// The same without the fields that concern the answer.
pub(in crate::anthropic) fn parse_to_count(body: &[u8]) -> Result<GenerateRequest> {
    let mut o = json::parse(body)?;
    let mut r = request(&mut o)?;
    finish(o, &mut r, &[RULES, ANSWER])?;
    Ok(r)
}

/// The first line of Claude Code's `system` is billing data for Anthropic, not an instruction. It differs between sessions, so prompts
/// that begin with it share no prefix with earlier sessions.
const BILLING: &str = "x-anthropic-billing-header:";

fn without_billing(mut content: Vec<Part>) -> Vec<Part> {
    if let Some(Part::Text { text, .. }) = content.first_mut()
        && text.starts_with(BILLING)
    {
        *text = text.split_once('\n').map_or("", |(_, rest)| rest.trim_start()).into();
        if text.is_empty() {
            content.remove(0);
        }
    }
    content
}

fn request(o: &mut Object) -> Result<GenerateRequest> {
    let model = o.model()?;
    let mut chat = Chat::default();
    if let Some(f) = o.take("system") {
        let content = without_billing(texts(f)?);
        if !content.is_empty() {
            chat.messages.push(Message { content, ..Message::empty(Role::System) });
        }
    }
    let first = chat.messages.len();
    let (messages, changes) = messages(o.require("messages")?, first)?;
    chat.messages.extend(messages);
    // In this dialect, the answer continues a last assistant message.
    chat.continue_final =
        chat.messages.last().is_some_and(|m| m.role == Role::Assistant && m.tool_calls.is_empty());
    o.settle_unread(&chat.current_turn())?;
    if let Some(f) = o.take("tools") {
        chat.tools = f.list(tool)?.into_iter().flatten().collect();
        unique(&chat.tools)?;
    }
    change_tools(&mut chat.tools, changes)?;
    if let Some(f) = o.take("tool_choice") {
        tool_choice(f, &mut chat)?;
        check_tool_choice(&chat)?;
    }
    if let Some(f) = o.take("thinking") {
        thinking(f, &mut chat)?;
    }
    let mut format = ResponseFormat::Text;
    if let Some(f) = o.take("output_config") {
        let mut config = f.object()?;
        chat.reasoning.effort = config.read("effort", |f| f.one_of(&Effort::NAMES))?;
        if let Some(f) = config.take("format") {
            format = output_format(f)?;
        }
        config.finish(&[&[("task_budget", tuning("there are no budgets over several requests"))]])?;
    }
    if let Some(f) = o.take("output_format") {
        format = output_format(f)?;
    }
    let mut r = GenerateRequest::new(model, Input::Chat(chat));
    r.response_format = format;
    r.include_usage = true;
    r.origin = Family::Anthropic;
    Ok(r)
}

/// Fields of tools.
const TOOL: Rules = &[
    // Arguments are always streamed as they are generated.
    ("eager_input_streaming", echo()),
    ("defer_loading", tuning("all tools are shown to the model at once")),
    ("allowed_callers", only(r#"[["direct"]]"#, "this server calls no tools itself")),
    ("input_examples", tuning("put examples into the description")),
];

/// A tool with its own schema. Hosted tools are left out: only the provider knows their schema, and most run there.
fn tool(f: Field) -> Result<Option<Tool>> {
    let mut o = f.object()?;
    if let Some(kind) = o.take("type")
        && kind.as_str() != Some("custom")
    {
        if !kind.is_string() {
            return Err(kind.expected("a string"));
        }
        o.warn(format_args!(
            "is left out: this server has no tool '{}'",
            shortened(kind.as_str().unwrap_or(""))
        ));
        return Ok(None);
    }
    // Where the model may call it directly, too, it does.
    if let Some(callers) = o.peek("allowed_callers").and_then(Value::as_array)
        && callers.len() > 1
        && callers.contains(&Value::from("direct"))
    {
        o.take("allowed_callers");
        o.warn_of("allowed_callers", "is read as [\"direct\"]: this server calls no tools itself");
    }
    let tool = Tool {
        name: o.require("name")?.name()?,
        description: o.read("description", Field::string)?,
        parameters: o.require("input_schema")?.map()?,
        strict: o.read("strict", Field::bool)?,
        cache: cache_control(&mut o)?,
        origin: ToolOrigin::default(),
    };
    o.finish(&[TOOL])?;
    Ok(Some(tool))
}

/// Adds and removes tools. They hold for the whole conversation: a prompt has one list.
fn change_tools(tools: &mut Vec<Tool>, changes: Vec<ToolChange>) -> Result<()> {
    if changes.is_empty() {
        return Ok(());
    }
    let mut all: Vec<(Tool, bool)> = tools.drain(..).map(|tool| (tool, true)).collect();
    let mut by_name: HashMap<String, usize> =
        all.iter().enumerate().map(|(at, (tool, _))| (tool.name.clone(), at)).collect();
    for change in changes {
        let (f, is_added) = match change {
            ToolChange::Added(f) => (f, true),
            ToolChange::Removed(f) => (f, false),
        };
        let mut o = f.object()?;
        let kind = o.require("type")?;
        match kind.as_str() {
            Some("tool_definition") if is_added => {
                if let Some(tool) = tool(o.require("definition")?)? {
                    if let Some(earlier) = by_name.insert(tool.name.clone(), all.len()) {
                        all[earlier].1 = false;
                    }
                    all.push((tool, true));
                }
            }
            Some("tool_reference") => {
                let name = o.require("name")?.name()?;
                match by_name.get(&name) {
                    Some(at) => all[*at].1 = is_added,
                    None => o.warn(format_args!("is left out: there is no tool '{}'", shortened(&name))),
                }
            }
            Some(other) => {
                o.warn(format_args!("is left out: '{}' is not supported there", shortened(other)));
                continue;
            }
            None => return Err(kind.expected("a string")),
        }
        o.finish(&[])?;
    }
    tools.extend(all.into_iter().filter(|(_, is_there)| *is_there).map(|(tool, _)| tool));
    Ok(())
}

fn tool_choice(f: Field, chat: &mut Chat) -> Result<()> {
    let mut o = f.object()?;
    let kind = o.require("type")?;
    chat.tool_choice = match kind.as_str() {
        Some("auto") => ToolChoice::Auto,
        Some("any") => ToolChoice::Required,
        Some("none") => ToolChoice::None,
        Some("tool") => ToolChoice::Named(o.require("name")?.name()?),
        _ => return Err(kind.expected("\"auto\", \"any\", \"tool\" or \"none\"")),
    };
    chat.parallel_tool_calls = o.read("disable_parallel_tool_use", Field::bool)?.map(|disable| !disable);
    o.finish(&[])?;
    Ok(())
}

fn thinking(f: Field, chat: &mut Chat) -> Result<()> {
    let mut o = f.object()?;
    let kind = o.require("type")?;
    match kind.as_str() {
        Some("enabled") => {
            chat.reasoning.enabled = Some(true);
            chat.reasoning.budget_tokens = Some(o.require("budget_tokens")?.count(0..=u32::MAX)?);
        }
        Some("adaptive" | "between_tools") => chat.reasoning.enabled = Some(true),
        Some("disabled") => chat.reasoning.enabled = Some(false),
        Some(_) => return Err(kind.unsupported("; enabled, adaptive and disabled are")),
        None => return Err(kind.expected("a string")),
    }
    if let Some(f) = o.take("display") {
        chat.reasoning.hide = f.one_of(&[("summarized", false), ("updates", false), ("omitted", true)])?;
    }
    o.finish(&[])?;
    Ok(())
}

fn output_format(f: Field) -> Result<ResponseFormat> {
    let mut o = f.object()?;
    let kind = o.require("type")?;
    if kind.as_str() != Some("json_schema") {
        return Err(kind.unsupported("; json_schema is"));
    }
    let schema = o.require("schema").and_then(schema)?;
    o.finish(&[])?;
    Ok(ResponseFormat::JsonSchema { name: None, description: None, schema, strict: None })
}

fn metadata(o: &mut Object) -> Result<Option<String>> {
    let Some(f) = o.take("metadata") else { return Ok(None) };
    let mut metadata = f.object()?;
    let user = metadata.read("user_id", Field::string)?;
    metadata.finish(&[])?;
    Ok(user)
}
