//! Writes a messages request for a provider.

use serde_json::{Map, Value, json};

use crate::ApiError;
use crate::core::{
    CacheBreakpoint, Chat, Effort, Family, GenerateRequest, Image, ImageSource, Message, Part, ReasoningPart,
    ResponseFormat, Role, Tool, ToolCall, ToolChoice,
};
use crate::dialect::Body;
use crate::proofs::is_own_proof;

/// Anthropic's minimum thinking budget.
const BUDGET_TOKENS_MIN: u32 = 1024;
/// What is left at least for the answer beside the smallest budget.
const ANSWER_TOKENS_MIN: u32 = 256;

/// Tokens of an answer besides its thinking, where the model's limit is not known.
const ANSWER_TOKENS: u32 = 8192;

/// Properties of a provider and its model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Provider {
    /// The answer's limit if the client gives none: the API requires one.
    pub max_tokens: u32,
    /// `max_tokens` is the model's own limit. Otherwise a thinking budget is added to it.
    pub is_limit: bool,
    /// The model controls its thinking itself, guided by an effort level. Older models get a budget.
    pub adaptive: bool,
}

/// The request for a provider whose name of the model is `model`.
///
/// Reasoning of earlier turns is sent only if the provider signed it. If a chain of tool calls began with unsigned reasoning, this
/// request disables thinking: the provider requires its own.
///
/// # Errors
/// Prompts without messages, and calls whose arguments are not a JSON object.
pub fn body(request: &GenerateRequest, model: &str, provider: Provider) -> Result<Body, ApiError> {
    let chat = request.chat_only()?;
    let own = request.origin == Family::Anthropic;
    let mut b = Body::new(model);
    conversation(&mut b, chat, own)?;
    tools(&mut b, chat);
    let (thinks, max_tokens) = thinking(
        &mut b,
        chat,
        request.max_tokens,
        Provider { adaptive: provider.adaptive || own, ..provider },
    );
    b.set("max_tokens", Some(max_tokens));
    sampling(&mut b, request, thinks && !own);
    output_config(&mut b, request, provider.adaptive || own);
    b.set("stop_sequences", (!request.stop.is_empty()).then(|| request.stop.clone()));
    b.set("stream", request.stream.then_some(true));
    b.set("metadata", request.user.as_ref().map(|user| json!({"user_id": user})));
    if own {
        b.json.extend(request.extra.iter().map(|(k, v)| (k.clone(), v.clone())));
    }
    Ok(b)
}

fn sampling(b: &mut Body, request: &GenerateRequest, fixed: bool) {
    let s = &request.sampling;
    // With thinking, the provider only accepts its default temperature; and never one above 1.
    let out_of_range = s.temperature.is_some_and(|t| t > 1.0);
    b.drop_if(out_of_range || (fixed && s.temperature.is_some_and(|t| t != 1.0)), "temperature");
    b.set("temperature", s.temperature.filter(|_| !fixed).map(|t| t.min(1.0)));
    b.drop_if(fixed && s.top_k.is_some(), "top_k");
    b.set("top_k", s.top_k.filter(|k| *k > 0 && !fixed));
    b.drop_if(fixed && s.top_p.is_some(), "top_p");
    b.set("top_p", s.top_p.filter(|_| !fixed));
    b.drop_all_but_the_basics(request);
}

fn output_config(b: &mut Body, request: &GenerateRequest, efforts: bool) {
    let mut config = Map::new();
    if let Some(effort) = request.chat().and_then(|c| c.reasoning.effort).filter(|_| efforts) {
        let effort = if effort == Effort::Minimal { Effort::Low } else { effort };
        config.insert("effort".into(), effort.name().into());
    }
    match &request.response_format {
        ResponseFormat::Text => {}
        ResponseFormat::JsonSchema { schema, .. } => {
            config.insert("format".into(), json!({"type": "json_schema", "schema": schema}));
        }
        _ => b.drop_if(true, "response_format"),
    }
    b.set("output_config", (!config.is_empty()).then_some(config));
}

/// Sets `thinking`. Returns whether the model will think, and the answer's maximum, which includes its thinking.
fn thinking(b: &mut Body, chat: &Chat, asked: Option<u32>, provider: Provider) -> (bool, u32) {
    let r = &chat.reasoning;
    let plain = (false, asked.unwrap_or(provider.max_tokens));
    b.drop_if(!chat.template_kwargs.is_empty(), "chat_template_kwargs");
    let wanted = r.enabled.unwrap_or(r.budget_tokens.is_some_and(|n| n > 0));
    if !wanted {
        b.set("thinking", (r.enabled == Some(false)).then(|| json!({"type": "disabled"})));
        return plain;
    }
    let is_adaptive = provider.adaptive && r.budget_tokens.is_none();
    if !is_adaptive && !continues_own_reasoning(chat) {
        // The client could not avoid it: other dialects have no signatures.
        return plain;
    }
    let mut max_tokens = plain.1;
    let mut value = json!({"type": "adaptive"});
    if !is_adaptive {
        let wanted = r.budget_tokens.unwrap_or_else(|| budget_of(r.effort)).max(BUDGET_TOKENS_MIN);
        if asked.is_none() && !provider.is_limit {
            max_tokens = max_tokens.max(wanted.saturating_add(ANSWER_TOKENS));
        }
        let Some(budget) = fitting(wanted, max_tokens, r.budget_tokens.is_some()) else {
            let field = if r.effort.is_some() { "reasoning_effort" } else { "thinking" };
            let needed = BUDGET_TOKENS_MIN + ANSWER_TOKENS_MIN;
            b.drop_because(
                field,
                format!("'{field}' needs max_tokens of {needed} or more, not {max_tokens}"),
            );
            return plain;
        };
        value = json!({"type": "enabled", "budget_tokens": budget});
    }
    if r.hide {
        value["display"] = "omitted".into();
    }
    b.set("thinking", Some(value));
    (true, max_tokens)
}

/// A thinking budget that leaves room for an answer; `None` if even the smallest one does not. A client's own budget stays if it is below
/// the answer's maximum.
fn fitting(wanted: u32, max_tokens: u32, is_clients: bool) -> Option<u32> {
    if is_clients && wanted < max_tokens {
        return Some(wanted);
    }
    let is_enough = max_tokens >= BUDGET_TOKENS_MIN + ANSWER_TOKENS_MIN;
    is_enough.then(|| wanted.min((max_tokens / 2).max(BUDGET_TOKENS_MIN)))
}

/// The budget for an effort level, for models without effort levels.
fn budget_of(effort: Option<Effort>) -> u32 {
    match effort {
        Some(Effort::Minimal) => BUDGET_TOKENS_MIN,
        Some(Effort::Low) => 2048,
        None | Some(Effort::Medium) => 8192,
        Some(Effort::High) => 16384,
        Some(Effort::XHigh | Effort::Max) => 32000,
    }
}

/// Thinking is possible unless a tool call without signed reasoning is being answered.
fn continues_own_reasoning(chat: &Chat) -> bool {
    let after_call = chat.messages.last().is_some_and(|m| m.role == Role::Tool);
    let caller = chat.messages.iter().rev().find(|m| m.role == Role::Assistant);
    !after_call
        || caller.is_none_or(|m| {
            m.reasoning.iter().any(|r| match r {
                ReasoningPart::Text { signature, .. } => signature.as_deref().is_some_and(is_own_proof),
                ReasoningPart::Redacted(data) => is_own_proof(data),
            })
        })
}

fn tools(b: &mut Body, chat: &Chat) {
    if chat.tools.is_empty() {
        return;
    }
    let tools: Vec<Value> = chat.tools.iter().map(tool).collect();
    b.set("tools", Some(tools));
    let mut choice = match &chat.tool_choice {
        ToolChoice::Auto if chat.parallel_tool_calls.is_none() => return,
        ToolChoice::Auto => json!({"type": "auto"}),
        ToolChoice::None => json!({"type": "none"}),
        ToolChoice::Required => json!({"type": "any"}),
        ToolChoice::Named(name) => json!({"type": "tool", "name": name}),
    };
    if let Some(parallel) = chat.parallel_tool_calls.filter(|_| chat.tool_choice != ToolChoice::None) {
        choice["disable_parallel_tool_use"] = (!parallel).into();
    }
    b.set("tool_choice", Some(choice));
}

fn tool(t: &Tool) -> Value {
    let mut out = Map::new();
    out.insert("name".into(), t.name.as_str().into());
    if let Some(text) = &t.description {
        out.insert("description".into(), text.as_str().into());
    }
    let mut schema = t.parameters.clone();
    schema.entry("type").or_insert("object".into());
    out.insert("input_schema".into(), schema.into());
    if let Some(strict) = t.strict {
        out.insert("strict".into(), strict.into());
    }
    breakpoint(&mut out, t.cache.as_ref());
    out.into()
}

fn breakpoint(block: &mut Map<String, Value>, cache: Option<&CacheBreakpoint>) {
    let Some(cache) = cache else { return };
    let known = cache.ttl.as_deref().filter(|t| matches!(*t, "5m" | "1h"));
    let value = match known {
        Some(ttl) => json!({"type": "ephemeral", "ttl": ttl}),
        None => json!({"type": "ephemeral"}),
    };
    block.insert("cache_control".into(), value);
}

/// Writes `system` and `messages`. Tool results are user messages here, and adjacent messages of one role are merged.
fn conversation(b: &mut Body, chat: &Chat, own: bool) -> Result<(), ApiError> {
    let mut system = Vec::new();
    let mut messages: Vec<(&str, Vec<Value>)> = Vec::new();
    for m in &chat.messages {
        let (role, blocks) = match m.role {
            // Instructions within a conversation: only newer models accept them, and their clients know.
            Role::System | Role::Developer if own && !messages.is_empty() => ("system", parts(m)),
            Role::System | Role::Developer => {
                system.extend(parts(m));
                continue;
            }
            Role::User => ("user", parts(m)),
            Role::Tool => ("user", vec![tool_result(m)]),
            Role::Assistant => ("assistant", assistant(m)?),
        };
        match messages.last_mut() {
            Some((last, all)) if *last == role => all.extend(blocks),
            _ if blocks.is_empty() => {}
            _ => messages.push((role, blocks)),
        }
    }
    b.set("system", (!system.is_empty()).then(|| short(system)));
    let messages: Vec<Value> =
        messages.into_iter().map(|(role, blocks)| json!({"role": role, "content": short(blocks)})).collect();
    b.set("messages", Some(messages));
    Ok(())
}

/// A single plain text as a string.
fn short(blocks: Vec<Value>) -> Value {
    match blocks.as_slice() {
        [one] if one["type"] == "text" && one.get("cache_control").is_none() => one["text"].clone(),
        _ => blocks.into(),
    }
}

fn parts(m: &Message) -> Vec<Value> {
    m.content.iter().filter_map(part).collect()
}

/// `None` for an empty text, which the provider refuses.
fn part(p: &Part) -> Option<Value> {
    let mut block = Map::new();
    let cache = match p {
        Part::Text { text, .. } if text.is_empty() => return None,
        Part::Text { text, cache } => {
            block.insert("type".into(), "text".into());
            block.insert("text".into(), text.as_str().into());
            cache
        }
        Part::Image { image, cache } => {
            block.insert("type".into(), if image.is_document() { "document" } else { "image" }.into());
            block.insert("source".into(), image_source(image));
            cache
        }
    };
    breakpoint(&mut block, cache.as_ref());
    Some(block.into())
}

fn image_source(image: &Image) -> Value {
    match &image.source {
        ImageSource::Url(url) => json!({"type": "url", "url": url}),
        ImageSource::Base64 { data, .. } => {
            json!({"type": "base64", "media_type": image.media_type().unwrap_or(""), "data": data})
        }
    }
}

fn tool_result(m: &Message) -> Value {
    let id = safe_id(m.tool_call_id.as_deref().unwrap_or(""));
    let mut block = json!({"type": "tool_result", "tool_use_id": id});
    let content = parts(m);
    if !content.is_empty() {
        block["content"] = short(content);
    }
    if m.is_error {
        block["is_error"] = true.into();
    }
    block
}

fn assistant(m: &Message) -> Result<Vec<Value>, ApiError> {
    let mut blocks = Vec::new();
    for r in &m.reasoning {
        match r {
            ReasoningPart::Text { text, signature: Some(signature) } if is_own_proof(signature) => {
                blocks.push(json!({"type": "thinking", "thinking": text, "signature": signature}));
            }
            ReasoningPart::Redacted(data) if !is_own_proof(data) => {}
            ReasoningPart::Text { .. } => {}
            ReasoningPart::Redacted(data) => blocks.push(json!({"type": "redacted_thinking", "data": data})),
        }
    }
    blocks.extend(parts(m));
    for call in &m.tool_calls {
        blocks.push(tool_use(call));
    }
    Ok(blocks)
}

fn tool_use(call: &ToolCall) -> Value {
    let input = call.exact_arguments();
    let mut block = Map::new();
    block.insert("type".into(), "tool_use".into());
    block.insert("id".into(), safe_id(&call.id).into());
    block.insert("name".into(), call.name.as_str().into());
    block.insert("input".into(), input.into());
    breakpoint(&mut block, call.cache.as_ref());
    block.into()
}

/// An id with only the characters that the provider allows; other servers also use `:` and `.`.
fn safe_id(id: &str) -> String {
    id.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' || c == '-' { c } else { '_' }).collect()
}
