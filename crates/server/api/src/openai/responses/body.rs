//! Writes a chat as a Responses request, for providers configured for it.

use serde_json::{Map, Value, json};

use super::super::chat::effort;
use super::response::reasoning_item;
use crate::ApiError;
use crate::core::{Chat, Family, GenerateRequest, Message, Part, ResponseFormat, Role, Tool, ToolChoice};
use crate::dialect::Body;

/// Fields of chat completions that Responses have under the same name.
const SAME: &[&str] = &[
    "service_tier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prompt_cache_options",
    "safety_identifier",
];

/// OpenAI refuses a smaller limit here, but accepts it in chats.
const OUTPUT_TOKENS_MIN: u32 = 16;

/// The request for a provider whose name of the model is `model`. The provider does not store the response unless the client sets `store`.
///
/// Reasoning of earlier turns is omitted: only encrypted reasoning could be sent back.
///
/// # Errors
/// Prompts without messages: they belong to another endpoint.
pub fn body(request: &GenerateRequest, model: &str) -> Result<Body, ApiError> {
    let chat = request.chat_only()?;
    let mut b = Body::new(model);
    let input: Vec<Value> = chat.messages.iter().flat_map(|m| items(m).map(|i| item(m, i))).collect();
    b.set("input", Some(input));
    tools(&mut b, chat);
    b.set("reasoning", effort(&chat.reasoning).map(|effort| json!({"effort": effort})));
    b.set("temperature", request.sampling.temperature);
    b.set("top_p", request.sampling.top_p);
    b.set("max_output_tokens", request.max_tokens.map(|n| n.max(OUTPUT_TOKENS_MIN)));
    if let Some(n) = request.logprobs {
        b.set("top_logprobs", Some(n));
        b.set("include", Some(json!(["message.output_text.logprobs"])));
    }
    text(&mut b, request);
    b.set("stream", request.stream.then_some(true));
    let store = extra(request, "store").is_some_and(|v| *v == true);
    b.set("store", Some(store));
    if store && !request.metadata.is_empty() {
        b.set("metadata", Some(request.metadata.clone()));
    }
    b.set("user", request.user.as_deref());
    for name in SAME {
        b.set(name, extra(request, name).cloned());
    }
    dropped(&mut b, request, store);
    Ok(b)
}

/// A field that the client sent, if it has the same meaning here: other APIs have fields of the same names.
fn extra<'a>(request: &'a GenerateRequest, name: &str) -> Option<&'a Value> {
    request.extra.get(name).filter(|_| request.origin == Family::OpenAi)
}

/// Refuses fields that Responses do not have, or only for stored responses.
fn dropped(b: &mut Body, r: &GenerateRequest, is_stored: bool) {
    let s = &r.sampling;
    b.drop_if(s.top_k.is_some(), "top_k");
    b.drop_if(s.min_p.is_some(), "min_p");
    s.more.fields().into_iter().for_each(|(name, _)| b.drop_if(true, name));
    b.drop_if(s.repetition_penalty.is_some(), "repetition_penalty");
    b.drop_if(s.penalty_last_n.is_some(), "repeat_last_n");
    b.drop_if(s.presence_penalty.is_some(), "presence_penalty");
    b.drop_if(s.frequency_penalty.is_some(), "frequency_penalty");
    b.drop_if(s.seed.is_some(), "seed");
    b.drop_if(!s.logit_bias.is_empty(), "logit_bias");
    b.drop_if(!r.stop.is_empty(), "stop");
    b.drop_if(r.n > 1, "n");
    b.drop_if(r.min_tokens.is_some(), "min_tokens");
    b.drop_if(!r.stop_token_ids.is_empty(), "stop_token_ids");
    b.drop_if(r.ignore_eos, "ignore_eos");
    b.drop_if(r.report.experts, "return_routed_experts");
    b.drop_if(extra(r, "prediction").is_some(), "prediction");
    b.drop_if(!is_stored && !r.metadata.is_empty(), "metadata");
}

/// The format of the answer's text.
fn text(b: &mut Body, request: &GenerateRequest) {
    let mut out = Map::new();
    match &request.response_format {
        ResponseFormat::Text => {}
        ResponseFormat::JsonObject => drop(out.insert("format".into(), json!({"type": "json_object"}))),
        ResponseFormat::JsonSchema { name, description, schema, strict } => {
            let name = name.as_deref().unwrap_or("answer");
            let mut format = json!({"type": "json_schema", "name": name, "schema": schema});
            if let Some(text) = description {
                format["description"] = text.as_str().into();
            }
            if let Some(strict) = strict {
                format["strict"] = (*strict).into();
            }
            out.insert("format".into(), format);
        }
        ResponseFormat::Gbnf(_) => b.drop_if(true, "grammar"),
        ResponseFormat::Regex(_) | ResponseFormat::Grammar(_) | ResponseFormat::Choice(_) => {
            b.drop_if(true, "structured_outputs");
        }
    }
    if let Some(verbosity) = extra(request, "verbosity") {
        out.insert("verbosity".into(), verbosity.clone());
    }
    b.set("text", (!out.is_empty()).then_some(out));
}

fn tools(b: &mut Body, chat: &Chat) {
    if chat.tools.is_empty() {
        return;
    }
    let tool = |t: &Tool| {
        // Here functions are strict by default; in chats they are not.
        let strict = t.strict.unwrap_or(false);
        let mut out =
            json!({"type": "function", "name": t.name, "parameters": t.parameters, "strict": strict});
        if let Some(text) = &t.description {
            out["description"] = text.as_str().into();
        }
        out
    };
    b.set("tools", Some(chat.tools.iter().map(tool).collect::<Vec<_>>()));
    let choice = match &chat.tool_choice {
        ToolChoice::Auto => None,
        ToolChoice::None => Some(json!("none")),
        ToolChoice::Required => Some(json!("required")),
        ToolChoice::Named(name) => Some(json!({"type": "function", "name": name})),
    };
    b.set("tool_choice", choice);
    b.set("parallel_tool_calls", chat.parallel_tool_calls);
}

/// An item of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Item {
    /// An assistant's reasoning. Not sent to providers.
    Reasoning,
    /// Its content.
    Message,
    /// The call with this index.
    Call(usize),
    /// A tool's result.
    Output,
}

/// The items of a message, except reasoning: an assistant's calls are separate items.
pub(super) fn items(m: &Message) -> impl Iterator<Item = Item> + use<> {
    let (content, calls) = match m.role {
        Role::Tool => (Some(Item::Output), 0),
        Role::Assistant if m.content.is_empty() => (None, m.tool_calls.len()),
        _ => (Some(Item::Message), m.tool_calls.len()),
    };
    content.into_iter().chain((0..calls).map(Item::Call))
}

/// An item of a message as JSON.
pub(super) fn item(m: &Message, item: Item) -> Value {
    match item {
        Item::Reasoning => reasoning_item("", m.reasoning_text().as_deref(), "completed"),
        Item::Message => {
            let content = content(&m.content, m.role == Role::Assistant);
            json!({"type": "message", "role": m.role.name(), "content": content})
        }
        Item::Call(n) => {
            let c = &m.tool_calls[n];
            let arguments = if c.arguments.trim().is_empty() { "{}" } else { &c.arguments };
            json!({"type": "function_call", "call_id": c.id, "name": c.name, "arguments": arguments})
        }
        Item::Output => {
            let id = m.tool_call_id.as_deref().unwrap_or("");
            json!({"type": "function_call_output", "call_id": id, "output": output(&m.content)})
        }
    }
}

/// A tool's result: a text, unless it contains images.
fn output(parts: &[Part]) -> Value {
    match parts.iter().map(Part::as_text).collect::<Option<String>>() {
        Some(text) => text.into(),
        None => content(parts, false),
    }
}

/// Parts of a message. The frames of a video are one.
fn content(parts: &[Part], is_assistants: bool) -> Value {
    let frame = |p: &Part| p.as_image().and_then(|image| Some((image.url(), image.frame?)));
    let goes_on = |_: &Part, next: &Part| frame_number(next).is_some_and(|number| number > 0);
    let video_or_part = |run: &[Part]| match run.iter().map(frame).collect::<Option<Vec<_>>>() {
        Some(frames) => {
            let (urls, times_s): (Vec<_>, Vec<_>) = frames.into_iter().map(|(url, f)| (url, f.at_s)).unzip();
            json!({"type": "video", "video": urls, "times": times_s})
        }
        None => part(&run[0], is_assistants),
    };
    parts.chunk_by(goes_on).map(video_or_part).collect()
}

/// How many frames of its video are before this one, if it is one.
fn frame_number(p: &Part) -> Option<usize> {
    Some(p.as_image()?.frame?.number)
}

fn part(p: &Part, is_assistants: bool) -> Value {
    match p {
        Part::Text { text, .. } if is_assistants => json!({"type": "output_text", "text": text}),
        Part::Text { text, .. } => json!({"type": "input_text", "text": text}),
        Part::Image { image, .. } if image.is_document() => {
            json!({"type": "input_file", "filename": "document", "file_data": image.url()})
        }
        Part::Image { image, .. } => {
            let detail = image.detail.as_deref().unwrap_or("auto");
            json!({"type": "input_image", "image_url": image.url(), "detail": detail})
        }
    }
}
