//! Writes a chat request for Ollama.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use crate::ApiError;
use crate::core::{
    Chat, Effort, GenerateRequest, ImageSource, KeepAlive, Message, Part, ResponseFormat, Role, ToolChoice,
};
use crate::dialect::Body;

/// The request for an Ollama whose name of the model is `model`. Asks it to refuse a prompt that is too long: by default Ollama cuts
/// it silently.
///
/// # Errors
/// Prompts without messages, calls whose arguments are not a JSON object, and images by URL: Ollama fetches none.
pub fn body(request: &GenerateRequest, model: &str) -> Result<Body, ApiError> {
    let chat = request.chat_only()?;
    let mut b = Body::new(model);
    // Results name the tool; other dialects' clients only give the call's id.
    let mut called: HashMap<&str, &str> = HashMap::new();
    let mut messages = Vec::with_capacity(chat.messages.len());
    for m in &chat.messages {
        called.extend(m.tool_calls.iter().map(|c| (c.id.as_str(), c.name.as_str())));
        messages.push(message(m, &called)?);
    }
    b.set("messages", Some(messages));
    tools(&mut b, chat);
    reasoning(&mut b, chat);
    match &request.response_format {
        ResponseFormat::Text => {}
        ResponseFormat::JsonObject => b.set("format", Some("json")),
        ResponseFormat::JsonSchema { schema: schema @ Value::Object(_), .. } => {
            b.set("format", Some(schema.clone()));
        }
        _ => b.drop_if(true, "response_format"),
    }
    b.set("logprobs", request.logprobs.map(|_| true));
    b.set("top_logprobs", request.logprobs.filter(|n| *n > 0));
    // Ollama streams by default.
    b.set("stream", Some(request.stream));
    b.set("truncate", Some(false));
    b.set("shift", Some(false));
    b.set("keep_alive", request.keep_alive.map(keep_alive));
    let options = options(&mut b, request);
    b.set("options", (!options.is_empty()).then_some(options));
    Ok(b)
}

fn options(b: &mut Body, r: &GenerateRequest) -> Map<String, Value> {
    let s = &r.sampling;
    let mut o = Body::empty();
    o.set("temperature", s.temperature);
    o.set("top_k", s.top_k);
    o.set("top_p", s.top_p);
    o.set("min_p", s.min_p);
    o.set("repeat_penalty", s.repetition_penalty);
    o.set("repeat_last_n", s.penalty_last_n);
    o.set("presence_penalty", s.presence_penalty);
    o.set("frequency_penalty", s.frequency_penalty);
    o.set("seed", s.seed.map(|n| n as i64));
    o.set("num_predict", r.max_tokens);
    o.set("stop", (!r.stop.is_empty()).then(|| r.stop.clone()));
    o.set("num_ctx", r.context_length);
    b.drop_if(!s.logit_bias.is_empty(), "logit_bias");
    s.more.fields().into_iter().for_each(|(name, _)| b.drop_if(true, name));
    b.drop_if(r.n > 1, "n");
    b.drop_if(r.min_tokens.is_some(), "min_tokens");
    b.drop_if(!r.stop_token_ids.is_empty(), "stop_token_ids");
    b.drop_if(r.ignore_eos, "ignore_eos");
    o.json
}

/// In Ollama's form: seconds, negative for forever.
pub(super) fn keep_alive(keep: KeepAlive) -> Value {
    match keep {
        KeepAlive::Forever => (-1).into(),
        KeepAlive::Seconds(s) if s.fract() == 0.0 && s < 1e15 => (s as i64).into(),
        KeepAlive::Seconds(s) => format!("{}ms", (s * 1e3).round()).into(),
    }
}

fn tools(b: &mut Body, chat: &Chat) {
    // The API has no `tool_choice`; a model cannot call tools that it does not see.
    let shown = !chat.tools.is_empty() && chat.tool_choice != ToolChoice::None;
    b.set("tools", shown.then(|| chat.tools.iter().map(|t| t.to_json()).collect::<Vec<_>>()));
    if !shown {
        return;
    }
    if matches!(chat.tool_choice, ToolChoice::Required | ToolChoice::Named(_)) {
        b.drop_tool_choice(chat);
    }
    b.drop_parallel_tool_calls(chat);
}

fn reasoning(b: &mut Body, chat: &Chat) {
    let r = &chat.reasoning;
    let others = chat.template_kwargs.keys().any(|k| k != "enable_thinking");
    b.drop_if(others, "chat_template_kwargs");
    let think = match (r.enabled, r.effort) {
        (Some(false), _) => Some(Value::Bool(false)),
        (_, Some(Effort::Minimal | Effort::Low)) => Some("low".into()),
        (_, Some(Effort::Medium)) => Some("medium".into()),
        (_, Some(_)) => Some("high".into()),
        (Some(true), None) => Some(Value::Bool(true)),
        (None, None) => r.budget_tokens.map(|n| Value::Bool(n > 0)),
    };
    b.set("think", think);
}

fn message(m: &Message, called: &HashMap<&str, &str>) -> Result<Value, ApiError> {
    let role = if m.role == Role::Developer { Role::System } else { m.role };
    let mut texts: Vec<&str> = Vec::new();
    let mut images: Vec<&str> = Vec::new();
    for part in &m.content {
        match part {
            Part::Text { text, .. } => texts.push(text),
            Part::Image { image, .. } => match &image.source {
                ImageSource::Base64 { data, .. } => images.push(data),
                ImageSource::Url(_) => {
                    let what = format!("{}: the provider does not download images; send the data", image.at);
                    return Err(ApiError::invalid(image.at.clone(), what));
                }
            },
        }
    }
    let mut out = json!({"role": role.name(), "content": texts.join("\n")});
    if let Some(text) = m.reasoning_text() {
        out["thinking"] = text.into();
    }
    if !images.is_empty() {
        out["images"] = images.into();
    }
    if !m.tool_calls.is_empty() {
        let call = |(i, c): (usize, &crate::core::ToolCall)| {
            let function = json!({"index": i, "name": c.name, "arguments": c.exact_arguments()});
            json!({"id": c.id, "function": function})
        };
        out["tool_calls"] = m.tool_calls.iter().enumerate().map(call).collect();
    }
    if m.role == Role::Tool {
        let id = m.tool_call_id.as_deref();
        if let Some(name) = id.and_then(|id| called.get(id).copied()).or(m.name.as_deref()) {
            out["tool_name"] = name.into();
        }
        if let Some(id) = id {
            out["tool_call_id"] = id.into();
        }
    }
    Ok(out)
}
