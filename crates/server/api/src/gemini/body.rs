//! Writes a request for Gemini.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::SIGNED;
use crate::ApiError;
use crate::core::{
    Chat, Effort, Family, GenerateRequest, ImageSource, Message, Part, ReasoningPart, ResponseFormat, Role,
    Tool, ToolChoice,
};
use crate::dialect::Body;
use crate::digits;

/// Properties of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Provider {
    /// It takes a thinking level instead of a budget, and refuses calls in a conversation that it has not signed: Gemini 3 and later.
    pub levels: bool,
    /// Its thinking cannot be turned off: Gemini 2.5 Pro, and Gemini 3.
    pub always_thinks: bool,
}

/// Gemini 2.5 Pro's smallest budget.
const BUDGET_TOKENS_MIN: u32 = 128;

/// Documented by Google as the signature of calls that Gemini did not make.
const NOT_OURS: &str = "skip_thought_signature_validator";

/// The request. The model and streaming are in the URL.
///
/// # Errors
/// Prompts without messages, and calls whose arguments are not a JSON object.
pub fn body(request: &GenerateRequest, provider: Provider) -> Result<Body, ApiError> {
    let chat = request.chat_only()?;
    let mut b = Body::empty();
    contents(&mut b, chat, provider)?;
    tools(&mut b, chat);
    let config = config(&mut b, request, chat, provider);
    b.set("generationConfig", (!config.is_empty()).then_some(config));
    if request.origin == Family::Gemini {
        b.json.extend(request.extra.iter().map(|(k, v)| (k.clone(), v.clone())));
    }
    Ok(b)
}

fn config(b: &mut Body, r: &GenerateRequest, chat: &Chat, provider: Provider) -> Map<String, Value> {
    let s = &r.sampling;
    let mut c = Body::empty();
    c.set("temperature", s.temperature);
    c.set("topP", s.top_p);
    c.set("topK", s.top_k.filter(|k| *k > 0));
    c.set("maxOutputTokens", r.max_tokens);
    c.set("stopSequences", (!r.stop.is_empty()).then(|| r.stop.clone()));
    c.set("candidateCount", (r.n != 1).then_some(r.n));
    c.set("presencePenalty", s.presence_penalty);
    c.set("frequencyPenalty", s.frequency_penalty);
    // A signed 32-bit number.
    b.drop_if(s.seed.is_some_and(|n| i32::try_from(n as i64).is_err()), "seed");
    c.set("seed", s.seed.and_then(|n| i32::try_from(n as i64).ok()));
    c.set("responseLogprobs", r.logprobs.map(|_| true));
    c.set("logprobs", r.logprobs.filter(|n| *n > 0));
    match &r.response_format {
        ResponseFormat::Text => {}
        ResponseFormat::JsonObject => c.set("responseMimeType", Some("application/json")),
        ResponseFormat::JsonSchema { schema, .. } => {
            c.set("responseMimeType", Some("application/json"));
            c.set("responseJsonSchema", Some(schema.clone()));
        }
        _ => b.drop_if(true, "response_format"),
    }
    c.set("thinkingConfig", thinking(b, chat, provider));
    b.drop_if(s.min_p.is_some(), "min_p");
    s.more.fields().into_iter().for_each(|(name, _)| b.drop_if(true, name));
    b.drop_if(s.repetition_penalty.is_some(), "repetition_penalty");
    b.drop_if(!s.logit_bias.is_empty(), "logit_bias");
    b.drop_if(r.min_tokens.is_some(), "min_tokens");
    b.drop_if(!r.stop_token_ids.is_empty(), "stop_token_ids");
    b.drop_if(r.ignore_eos, "ignore_eos");
    c.json
}

fn thinking(b: &mut Body, chat: &Chat, provider: Provider) -> Option<Value> {
    let r = &chat.reasoning;
    let others = chat.template_kwargs.keys().any(|k| k != "enable_thinking");
    b.drop_if(others, "chat_template_kwargs");
    if r.enabled == Some(false) {
        // Gemini 3 always thinks; this is the minimum.
        return Some(match provider {
            Provider { levels: true, .. } => json!({"thinkingLevel": "low"}),
            Provider { always_thinks: true, .. } => json!({"thinkingBudget": BUDGET_TOKENS_MIN}),
            _ => json!({"thinkingBudget": 0}),
        });
    }
    if r.enabled.is_none() && r.effort.is_none() && r.budget_tokens.is_none() {
        return None;
    }
    let mut out = json!({"includeThoughts": !r.hide});
    if provider.levels {
        let level = match (r.effort, r.budget_tokens) {
            (Some(Effort::Minimal | Effort::Low), _) => Some("low"),
            (Some(Effort::Medium), _) => Some("medium"),
            (Some(_), _) => Some("high"),
            (None, Some(0..4096)) => Some("low"),
            (None, Some(_)) => Some("high"),
            (None, None) => None,
        };
        if let Some(level) = level {
            out["thinkingLevel"] = level.into();
        }
    } else if let Some(budget) = r.budget_tokens.or_else(|| r.effort.map(budget_of)) {
        out["thinkingBudget"] = budget.into();
    }
    Some(out)
}

/// The budget for an effort level; no model of the family takes more than the highest.
fn budget_of(effort: Effort) -> u32 {
    match effort {
        Effort::Minimal => 512,
        Effort::Low => 2048,
        Effort::Medium => 8192,
        Effort::High => 16384,
        Effort::XHigh | Effort::Max => 24576,
    }
}

fn tools(b: &mut Body, chat: &Chat) {
    if chat.tools.is_empty() {
        return;
    }
    let declarations: Vec<Value> = chat.tools.iter().map(tool).collect();
    b.set("tools", Some(json!([{"functionDeclarations": declarations}])));
    let choice = match &chat.tool_choice {
        ToolChoice::Auto => None,
        ToolChoice::None => Some(json!({"mode": "NONE"})),
        ToolChoice::Required => Some(json!({"mode": "ANY"})),
        ToolChoice::Named(name) => Some(json!({"mode": "ANY", "allowedFunctionNames": [name]})),
    };
    b.set("toolConfig", choice.map(|c| json!({"functionCallingConfig": c})));
    b.drop_parallel_tool_calls(chat);
}

fn tool(t: &Tool) -> Value {
    let mut out = json!({"name": t.name});
    if let Some(text) = &t.description {
        out["description"] = text.as_str().into();
    }
    // A function without parameters must not have a schema: an object without properties is refused.
    let any = t.parameters.get("properties").and_then(Value::as_object).is_some_and(|p| !p.is_empty());
    if any || t.parameters.keys().any(|k| !matches!(&**k, "type" | "properties" | "additionalProperties")) {
        out["parametersJsonSchema"] = t.parameters.clone().into();
    }
    out
}

/// Writes `systemInstruction` and `contents`. Tool results are user messages here, and adjacent messages of one role are merged.
fn contents(b: &mut Body, chat: &Chat, provider: Provider) -> Result<(), ApiError> {
    let mut system = Vec::new();
    let mut contents: Vec<(&str, Vec<Value>)> = Vec::new();
    // Results name the called function; many clients only give the call's id.
    let mut called: HashMap<&str, &str> = HashMap::new();
    for m in &chat.messages {
        called.extend(m.tool_calls.iter().map(|c| (c.id.as_str(), c.name.as_str())));
        let (role, parts) = match m.role {
            Role::System | Role::Developer => {
                system.extend(parts(m));
                continue;
            }
            Role::User => ("user", parts(m)),
            Role::Tool => ("user", tool_result(m, &called)),
            Role::Assistant => ("model", assistant(m, provider)?),
        };
        match contents.last_mut() {
            Some((last, all)) if *last == role => all.extend(parts),
            _ if parts.is_empty() => {}
            _ => contents.push((role, parts)),
        }
    }
    b.set("systemInstruction", (!system.is_empty()).then(|| json!({"parts": system})));
    let contents: Vec<Value> =
        contents.into_iter().map(|(role, parts)| json!({"role": role, "parts": parts})).collect();
    b.set("contents", Some(contents));
    Ok(())
}

fn parts(m: &Message) -> Vec<Value> {
    m.content.iter().filter_map(part).collect()
}

/// `None` for an empty text, which the provider refuses.
fn part(p: &Part) -> Option<Value> {
    Some(match p {
        Part::Text { text, .. } if text.is_empty() => return None,
        Part::Text { text, .. } => json!({"text": text}),
        Part::Image { image, .. } => match &image.source {
            ImageSource::Url(url) => json!({"fileData": {"fileUri": url}}),
            ImageSource::Base64 { data, .. } => {
                json!({"inlineData": {"mimeType": image.media_type().unwrap_or(""), "data": data}})
            }
        },
    })
}

fn tool_result(m: &Message, called: &HashMap<&str, &str>) -> Vec<Value> {
    let id = m.tool_call_id.as_deref().unwrap_or("");
    let name = called.get(id).copied().or(m.name.as_deref()).unwrap_or(id);
    let texts =
        m.content.iter().filter_map(|p| if let Part::Text { text, .. } = p { Some(text) } else { None });
    let text = texts.map(String::as_str).collect::<Vec<_>>().join("\n");
    let response = match serde_json::from_str(&digits::marked(&text)) {
        Ok(Value::Object(object)) if !m.is_error => object.into(),
        _ if m.is_error => json!({"error": text}),
        _ => json!({"output": text}),
    };
    let mut out = vec![json!({"functionResponse": {"name": name, "response": response}})];
    // An image that a tool returned follows its text.
    out.extend(m.content.iter().filter(|p| matches!(p, Part::Image { .. })).filter_map(part));
    out
}

fn assistant(m: &Message, provider: Provider) -> Result<Vec<Value>, ApiError> {
    let signature = m.reasoning.iter().rev().find_map(|r| match r {
        ReasoningPart::Text { signature: Some(s), .. } => s.strip_prefix(SIGNED),
        _ => None,
    });
    let mut out = parts(m);
    let calls = out.len();
    for call in &m.tool_calls {
        out.push(json!({"functionCall": {"name": call.name, "args": call.exact_arguments()}}));
    }
    // The signature belongs to the first call, or else to the text.
    let signed = if calls < out.len() { out.get_mut(calls) } else { out.first_mut() };
    if let Some(part) = signed {
        if let Some(signature) = signature {
            part["thoughtSignature"] = signature.into();
        } else if provider.levels && !m.tool_calls.is_empty() {
            part["thoughtSignature"] = NOT_OURS.into();
        }
    }
    Ok(out)
}
