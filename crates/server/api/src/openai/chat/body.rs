//! Writes a chat request for a provider.

use serde_json::{Map, Value, json};

use super::super::fields::{PROVIDER, write_format};
use crate::ApiError;
use crate::core::{
    CacheBreakpoint, Chat, Effort, Family, GenerateRequest, Message, Part, Reasoning, ResponseFormat, Role,
    Tool, ToolChoice,
};
use crate::dialect::Body;

/// The fields that a provider knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavor {
    /// OpenAI's own.
    OpenAi,
    /// OpenAI's own, and earlier reasoning as `reasoning_content`.
    OpenAiWithReasoning,
    /// OpenAI's and those of vLLM and llama.cpp: `top_k`, `min_p`, `chat_template_kwargs`, ...
    Extended,
}

/// The effort level for a thinking budget, for providers without budgets.
fn effort_of(budget_tokens: u32) -> Effort {
    match budget_tokens {
        0..4096 => Effort::Low,
        4096..16384 => Effort::Medium,
        _ => Effort::High,
    }
}

/// The request for a provider whose name of the model is `model`. A stream always reports token counts at its end.
///
/// Fields that OpenAI does not have and that do not change the answer's meaning are omitted: reasoning of earlier turns, a tool's
/// `is_error`, Ollama's and Anthropic's hints for caches and loading.
///
/// # Errors
/// Prompts without messages: they belong to another endpoint.
pub fn body(request: &GenerateRequest, model: &str, flavor: Flavor) -> Result<Body, ApiError> {
    let chat = request.chat_only()?;
    let extended = flavor == Flavor::Extended;
    let mut b = Body::new(model);
    let breakpoints = request.origin == Family::OpenAi;
    let messages: Vec<Value> = chat.messages.iter().map(|m| message(m, flavor, breakpoints)).collect();
    b.set("messages", Some(messages));
    tools(&mut b, chat);
    reasoning(&mut b, chat, extended);
    b.set_if(extended, "continue_final_message", chat.continue_final.then_some(true));
    if chat.continue_final && extended {
        b.set("add_generation_prompt", Some(false));
    }
    sampling(&mut b, request, extended);

    b.set(if extended { "max_tokens" } else { "max_completion_tokens" }, request.max_tokens);
    b.set_if(extended, "min_tokens", request.min_tokens);
    b.set("stop", (!request.stop.is_empty()).then(|| request.stop.clone()));
    b.set_if(
        extended,
        "stop_token_ids",
        (!request.stop_token_ids.is_empty()).then(|| request.stop_token_ids.clone()),
    );
    b.set_if(extended, "ignore_eos", request.ignore_eos.then_some(true));
    b.set("n", (request.n != 1).then_some(request.n));
    b.set("logprobs", request.logprobs.map(|_| true));
    b.set("top_logprobs", request.logprobs.filter(|n| *n > 0));
    format(&mut b, &request.response_format, extended);
    if request.stream {
        b.set("stream", Some(true));
        b.set("stream_options", Some(json!({"include_usage": true})));
    }
    b.set_if(extended, "cache_prompt", request.cache.prompt);
    b.set_if(extended, "cache_salt", request.cache.salt.as_deref());
    b.set("user", request.user.as_deref());
    if extended && !request.metadata.is_empty() {
        // OpenAI accepts metadata only with stored answers.
        b.set("metadata", Some(request.metadata.clone()));
    }
    if request.origin == Family::OpenAi {
        for (name, value) in &request.extra {
            if PROVIDER.contains(&&**name) || extended {
                b.json.insert(name.clone(), value.clone());
            }
        }
    }
    Ok(b)
}

fn sampling(b: &mut Body, request: &GenerateRequest, extended: bool) {
    let s = &request.sampling;
    b.set("temperature", s.temperature);
    b.set("top_p", s.top_p);
    b.set_if(extended, "top_k", s.top_k);
    b.set_if(extended, "min_p", s.min_p);
    b.set_if(extended, "repetition_penalty", s.repetition_penalty);
    b.set_if(extended, "repeat_last_n", s.penalty_last_n);
    for (name, value) in s.more.fields() {
        b.set_if(extended, name, Some(value));
    }
    b.set("presence_penalty", s.presence_penalty);
    b.set("frequency_penalty", s.frequency_penalty);
    b.set("seed", s.seed.map(|n| n as i64)); // as every server has it; a negative one came as such
    if !s.logit_bias.is_empty() {
        // A banned token has an infinite one, which JSON does not have.
        let bias: Map<String, Value> =
            s.logit_bias.iter().map(|(id, bias)| (id.to_string(), bias.max(-100.0).into())).collect();
        b.set("logit_bias", Some(bias));
    }
}

/// The effort level for OpenAI's own models, if the request sets one. They have no thinking switch and no token budget.
pub(in crate::openai) fn effort(r: &Reasoning) -> Option<&'static str> {
    if r.enabled == Some(false) {
        return Some("none");
    }
    let effort = r.effort.or_else(|| match r.budget_tokens {
        Some(budget) => Some(effort_of(budget)),
        None => (r.enabled == Some(true)).then_some(Effort::Medium),
    });
    effort.map(Effort::name)
}

fn reasoning(b: &mut Body, chat: &Chat, extended: bool) {
    let r = &chat.reasoning;
    let on = r.enabled != Some(false);
    let own = r.effort.filter(|_| on).map(Effort::name);
    b.set("reasoning_effort", if extended { own } else { effort(r) });
    let mut kwargs = chat.template_kwargs.clone();
    if extended {
        b.set("thinking_token_budget", r.budget_tokens);
        b.set("include_reasoning", r.hide.then_some(false));
        if let Some(enabled) = r.enabled {
            kwargs.insert("enable_thinking".into(), enabled.into());
        }
    }
    b.set_if(extended, "chat_template_kwargs", (!kwargs.is_empty()).then_some(kwargs));
}

fn tools(b: &mut Body, chat: &Chat) {
    if chat.tools.is_empty() {
        return;
    }
    let tools: Vec<Value> = chat.tools.iter().map(tool).collect();
    b.set("tools", Some(tools));
    let choice = match &chat.tool_choice {
        ToolChoice::Auto => None,
        ToolChoice::None => Some(json!("none")),
        ToolChoice::Required => Some(json!("required")),
        ToolChoice::Named(name) => Some(json!({"type": "function", "function": {"name": name}})),
    };
    b.set("tool_choice", choice);
    b.set("parallel_tool_calls", chat.parallel_tool_calls);
}

fn tool(t: &Tool) -> Value {
    let mut out = t.to_json();
    if let Some(strict) = t.strict {
        out["function"]["strict"] = strict.into();
    }
    out
}

fn format(b: &mut Body, format: &ResponseFormat, extended: bool) {
    let named;
    let format = match format {
        // OpenAI requires a name.
        ResponseFormat::JsonSchema { name: None, description, schema, strict } if !extended => {
            named = ResponseFormat::JsonSchema {
                name: Some("answer".into()),
                description: description.clone(),
                schema: schema.clone(),
                strict: *strict,
            };
            &named
        }
        other => other,
    };
    if let Some((name, value)) = write_format(format) {
        b.set_if(extended || name == "response_format", name, Some(value));
    }
}

fn message(m: &Message, flavor: Flavor, breakpoints: bool) -> Value {
    let extended = flavor == Flavor::Extended;
    // Chat templates of other servers have no developer role.
    let role = if extended && m.role == Role::Developer { Role::System } else { m.role };
    let mut out = Map::new();
    out.insert("role".into(), role.name().into());
    let is_marked = |c: &Option<CacheBreakpoint>| breakpoints && c.as_ref().is_some_and(|c| c.openai_form);
    let content = match m.content.as_slice() {
        [] if m.role == Role::Assistant => Value::Null,
        [] => "".into(),
        [Part::Text { text, cache }] if !is_marked(cache) => text.as_str().into(),
        parts => parts.iter().map(|p| part(p, breakpoints)).collect(),
    };
    out.insert("content".into(), content);
    if let Some(name) = &m.name {
        out.insert("name".into(), name.as_str().into());
    }
    if let Some(text) = m.reasoning_text().filter(|_| flavor != Flavor::OpenAi) {
        out.insert("reasoning_content".into(), text.into());
    }
    if !m.tool_calls.is_empty() {
        let calls = m.tool_calls.iter().map(|c| {
            let arguments = if c.arguments.trim().is_empty() { "{}" } else { &c.arguments };
            json!({"id": c.id, "type": "function", "function": {"name": c.name, "arguments": arguments}})
        });
        out.insert("tool_calls".into(), calls.collect());
    }
    if m.role == Role::Tool {
        out.insert("tool_call_id".into(), m.tool_call_id.as_deref().unwrap_or("").into());
    }
    out.into()
}

fn part(p: &Part, breakpoints: bool) -> Value {
    let (mut out, cache) = match p {
        Part::Text { text, cache } => (json!({"type": "text", "text": text}), cache),
        Part::Image { image, cache } if image.is_document() => {
            let file = json!({"filename": "document.pdf", "file_data": image.url()});
            (json!({"type": "file", "file": file}), cache)
        }
        Part::Image { image, cache } => {
            let mut url = json!({"url": image.url()});
            if let Some(detail) = &image.detail {
                url["detail"] = detail.as_str().into();
            }
            (json!({"type": "image_url", "image_url": url}), cache)
        }
    };
    if let Some(CacheBreakpoint { ttl, .. }) = cache.as_ref().filter(|c| breakpoints && c.openai_form) {
        out["prompt_cache_breakpoint"] = match ttl {
            Some(ttl) => json!({"mode": "explicit", "ttl": ttl}),
            None => json!({"mode": "explicit"}),
        };
    }
    out
}
