//! The rules of a chat's messages in OpenAI's dialect.

use octet_config::{Accepts, ReasoningForm};
use serde_json::{Map, Value, json};

use super::params::hash;
use super::{Report, names};

/// The names of earlier reasoning.
pub(super) const REASONING: [&str; 4] =
    ["reasoning_content", "reasoning", "reasoning_details", "thinking_blocks"];

/// Stands for images that were moved out of a tool's result.
const MOVED: &str = "(The image is in the next message.)";

pub(super) fn apply(accepts: &Accepts, json: &mut Map<String, Value>, report: &mut Report) {
    let Some(Value::Array(messages)) = json.get_mut("messages") else { return };
    for message in messages.iter_mut().filter_map(Value::as_object_mut) {
        role(accepts, message);
        if message.get("role").is_some_and(|role| role == "assistant") {
            reasoning(accepts.reasoning, message);
        }
        if let Some(length) = accepts.id_chars {
            ids(length, message);
        }
        fields(accepts, message, report);
    }
    if accepts.no_tool_images {
        move_images(messages);
    }
}

fn role(accepts: &Accepts, message: &mut Map<String, Value>) {
    let Some(role) = message.get("role").and_then(Value::as_str) else { return };
    if let Some((_, to)) = accepts.roles.iter().find(|(from, _)| from == role) {
        message.insert("role".into(), to.as_str().into());
    }
}

/// Writes earlier reasoning in the provider's form.
fn reasoning(form: Option<ReasoningForm>, message: &mut Map<String, Value>) {
    let Some(form) = form else { return };
    let mut taken = REASONING.iter().filter_map(|name| message.shift_remove(*name));
    let text = taken.find_map(|value| value.as_str().map(String::from)).filter(|text| !text.is_empty());
    taken.for_each(drop);
    let Some(text) = text else { return };
    match form {
        ReasoningForm::Omit => {}
        ReasoningForm::Reasoning => drop(message.insert("reasoning".into(), text.into())),
        ReasoningForm::ReasoningContent => drop(message.insert("reasoning_content".into(), text.into())),
        ReasoningForm::Parts => {
            let mut parts = vec![json!({"type": "thinking", "thinking": [{"type": "text", "text": text}]})];
            match message.shift_remove("content") {
                Some(Value::String(text)) if !text.is_empty() => {
                    parts.push(json!({"type": "text", "text": text}));
                }
                Some(Value::Array(more)) => parts.extend(more),
                _ => {}
            }
            message.insert("content".into(), parts.into());
        }
    }
}

/// Replaces ids of calls that have other characters or another length.
fn ids(length: usize, message: &mut Map<String, Value>) {
    let fit = |id: &mut Value| {
        if let Value::String(text) = id
            && (text.chars().count() != length || !text.chars().all(|c| c.is_ascii_alphanumeric()))
        {
            *text = hash(text.as_bytes()).chars().take(length).collect();
        }
    };
    message.get_mut("tool_call_id").into_iter().for_each(fit);
    let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
    calls.into_iter().flatten().filter_map(|call| call.get_mut("id")).for_each(fit);
}

/// Drops fields of a message that the provider refuses.
fn fields(accepts: &Accepts, message: &mut Map<String, Value>, report: &mut Report) {
    let known = &accepts.message_fields;
    if known.is_empty() {
        return;
    }
    let others: Vec<String> = message.keys().filter(|name| !known.contains(name)).cloned().collect();
    for name in others {
        let value = message.shift_remove(&name);
        if !matches!(value, None | Some(Value::Null)) && !REASONING.contains(&&*name) {
            report.warn(&format!("messages[].{name}"), "is left out: the model does not accept it");
        }
    }
}

/// Moves images in results of tools to a user message after the last of these results.
fn move_images(messages: &mut Vec<Value>) {
    let is_tool = |m: &Value| m["role"] == "tool";
    let mut at = 0;
    while at < messages.len() {
        if !is_tool(&messages[at]) {
            at += 1;
            continue;
        }
        let end = messages[at..].iter().position(|m| !is_tool(m)).map_or(messages.len(), |n| at + n);
        let images: Vec<Value> = messages[at..end].iter_mut().flat_map(take_images).collect();
        at = end;
        if images.is_empty() {
            continue;
        }
        match messages.get_mut(at).filter(|next| next["role"] == "user") {
            // Some providers refuse two user messages in a row.
            Some(next) => prepend(images, next),
            None => messages.insert(at, json!({"role": "user", "content": images})),
        }
        at += 1;
    }
}

/// Takes all parts that are not text out of a message.
fn take_images(message: &mut Value) -> Vec<Value> {
    let Some(Value::Array(parts)) = message.get_mut("content") else { return Vec::new() };
    let is_text = |part: &Value| matches!(part["type"].as_str(), None | Some("text" | "refusal"));
    let (mut texts, images): (Vec<Value>, Vec<Value>) = std::mem::take(parts).into_iter().partition(is_text);
    if !images.is_empty() && texts.is_empty() {
        texts.push(json!({"type": "text", "text": MOVED}));
    }
    message["content"] = match texts.as_slice() {
        [one] if !images.is_empty() => one["text"].clone(),
        _ => texts.into(),
    };
    images
}

fn prepend(images: Vec<Value>, message: &mut Value) {
    let mut parts = images;
    match message["content"].take() {
        Value::Array(more) => parts.extend(more),
        Value::String(text) => parts.push(json!({"type": "text", "text": text})),
        _ => {}
    }
    message["content"] = parts.into();
}

/// Whether the raw messages may need a change: a cheap look at their bytes.
pub(super) fn may_change(accepts: &Accepts, raw: &[u8]) -> bool {
    let has = |text: &str| memchr::memmem::find(raw, text.as_bytes()).is_some();
    let quoted = |text: &str| has(&format!("\"{text}\""));
    accepts.roles.iter().any(|(from, _)| quoted(from))
        || (accepts.no_tool_images && quoted("tool") && (quoted("image_url") || quoted("file")))
        || (accepts.reasoning.is_some() && REASONING.iter().any(|name| quoted(name)))
        || (accepts.id_chars.is_some() && (quoted("tool_calls") || quoted("tool_call_id")))
        || (!accepts.message_fields.is_empty() && names::has_other_keys(raw, &accepts.message_fields))
}
