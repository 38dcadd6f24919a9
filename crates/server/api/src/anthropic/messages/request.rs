//! A client's request for messages. Called by the server and the gateway.

use serde_json::{Value, json};

use super::content::{cache_control, messages, texts};
use crate::core::{
    Chat, Effort, Family, GenerateRequest, Input, Message, ResponseFormat, Role, Tool, ToolChoice,
};
use crate::json::{self, Accepted, Field, Object, Result};
use crate::openai::{check_tool_choice, schema, stop, unique};

/// Fields that have no effect here, and why it is right to take them. They are handed on to Anthropic-like providers.
pub(super) const ACCEPTED: &[Accepted] = &[
    ("service_tier", "names a queue of the provider's"),
    ("cache_control", "our cache finds shared prefixes by itself"),
    ("inference_geo", "where a provider computes; here it is here"),
    ("speed", "how fast a provider computes, at what price"),
    ("user_profile_id", "names the person behind a request, for the provider"),
    ("workspace_id", "names the client's account with the provider"),
    ("diagnostics", "asks a provider why its cache missed"),
    ("betas", "names features that a client may use; those that it does use are read where they stand"),
    ("anthropic_beta", "the same, as Bedrock has it"),
    ("anthropic_version", "the version of this dialect, as Bedrock and Vertex have it"),
];

const REFUSED: &[Accepted] = &[
    ("container", "this server runs no code"),
    ("mcp_servers", "this server calls no tools itself"),
    ("prompt", "it belongs to the older /v1/complete; send 'messages'"),
    ("max_tokens_to_sample", "it belongs to the older /v1/complete; send 'max_tokens'"),
];

/// Reads the body of a `POST /v1/messages`.
///
/// # Errors
/// Fields that are unknown, not supported, of the wrong type or out of range, by name.
pub fn parse(body: &[u8]) -> Result<GenerateRequest> {
    let mut o = json::parse(body)?;
    let max_tokens = o.require("max_tokens")?.count(1..=u32::MAX)?;
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
    o.finish(REFUSED)?;
    Ok(r)
}

/// The same without what concerns the answer.
pub(in crate::anthropic) fn parse_to_count(body: &[u8]) -> Result<GenerateRequest> {
    let mut o = json::parse(body)?;
    let r = request(&mut o)?;
    o.finish(REFUSED)?;
    Ok(r)
}

fn request(o: &mut Object) -> Result<GenerateRequest> {
    let model = o.require("model")?.name()?;
    let mut chat = Chat::default();
    if let Some(f) = o.take("system") {
        let content = texts(f)?;
        if !content.is_empty() {
            chat.messages.push(Message { content, ..Message::empty(Role::System) });
        }
    }
    chat.messages.extend(messages(o.require("messages")?)?);
    // In this dialect an answer goes on with a last message of the assistant.
    chat.continue_final =
        chat.messages.last().is_some_and(|m| m.role == Role::Assistant && m.tool_calls.is_empty());
    if let Some(f) = o.take("tools") {
        chat.tools = f.list(tool)?;
        unique(&chat.tools)?;
    }
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
        config.finish(&[("task_budget", "budgets over several requests are not supported")])?;
    }
    if let Some(f) = o.take("output_format") {
        format = output_format(f)?;
    }
    let management = context_management(o)?;
    let why = "this server calls no tools itself";
    o.only("mcp_servers", &[json!([])], why)?;
    let mut r = GenerateRequest::new(model, Input::Chat(chat));
    r.response_format = format;
    r.include_usage = true;
    r.origin = Family::Anthropic;
    r.extra = o.accept(ACCEPTED);
    if let Some(value) = management {
        r.extra.insert("context_management".into(), value);
    }
    Ok(r)
}

fn tool(f: Field) -> Result<Tool> {
    let mut o = f.object()?;
    if let Some(kind) = o.take("type")
        && kind.as_str() != Some("custom")
    {
        return Err(kind.unsupported("; only tools with a schema of their own are (type 'custom')"));
    }
    let tool = Tool {
        name: o.require("name")?.name()?,
        description: o.read("description", Field::string)?,
        parameters: o.require("input_schema")?.map()?,
        strict: o.read("strict", Field::bool)?,
        cache: cache_control(&mut o)?,
    };
    // Arguments always come as they are generated.
    o.read("eager_input_streaming", Field::bool)?;
    o.only("defer_loading", &[false.into()], "all tools are shown to the model")?;
    o.only("allowed_callers", &[json!(["direct"])], "this server calls no tools itself")?;
    o.finish(&[("input_examples", "put examples into the description")])?;
    Ok(tool)
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
    o.finish(&[])
}

fn thinking(f: Field, chat: &mut Chat) -> Result<()> {
    let mut o = f.object()?;
    let kind = o.require("type")?;
    match kind.as_str() {
        Some("enabled") => {
            chat.reasoning.enabled = Some(true);
            chat.reasoning.budget_tokens = Some(o.require("budget_tokens")?.count(0..=u32::MAX)?);
        }
        Some("adaptive") => chat.reasoning.enabled = Some(true),
        Some("disabled") => chat.reasoning.enabled = Some(false),
        Some(_) => return Err(kind.unsupported("; enabled, adaptive and disabled are")),
        None => return Err(kind.expected("a string")),
    }
    if let Some(f) = o.take("display") {
        chat.reasoning.hide = f.one_of(&[("summarized", false), ("omitted", true)])?;
    }
    o.finish(&[])
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

/// What a provider shall cut from the conversation. Claude Code asks to keep all reasoning, which is what happens.
fn context_management(o: &mut Object) -> Result<Option<Value>> {
    let Some(f) = o.take("context_management") else { return Ok(None) };
    let value = f.value().clone();
    let mut management = f.object()?;
    let edits = management.read("edits", Field::array)?.into_iter().flatten();
    for edit in edits {
        let nothing = edit.value()["type"].as_str().is_some_and(|t| t.starts_with("clear_thinking_"))
            && edit.value()["keep"] == "all";
        if !nothing {
            return Err(edit.error(
                "is not supported: nothing is cut from a conversation (clear_thinking with 'keep': 'all' is)",
            ));
        }
    }
    management.finish(&[])?;
    Ok(Some(value))
}

fn metadata(o: &mut Object) -> Result<Option<String>> {
    let Some(f) = o.take("metadata") else { return Ok(None) };
    let mut metadata = f.object()?;
    let user = metadata.read("user_id", Field::string)?;
    metadata.finish(&[])?;
    Ok(user)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_cut_from_conversations() {
        let with = |edits: Value| {
            let body = json!({"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "a"}],
                "context_management": {"edits": edits}});
            parse(body.to_string().as_bytes())
        };
        assert!(
            with(json!([{"type": "clear_thinking_20251015", "keep": "all"}]))
                .unwrap()
                .extra
                .contains_key("context_management")
        );
        let e = with(json!([{"type": "clear_tool_uses_20250919"}])).unwrap_err();
        assert_eq!(e.param.as_deref(), Some("context_management.edits[0]"));
    }
}
