//! Responses stored for a later `previous_response_id`. Called by the server, which stores them.

use std::borrow::Cow;
use std::collections::HashMap;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::body::items;
use super::response::reasoning_item;
use crate::ApiError;
use crate::core::{Answer, GenerateRequest, Input, Message, Role};
use crate::dialect::with_prefix;
use crate::json::shortened;

/// The conversation after an answer, for [`follow`]: everything except `instructions`, which apply to one request only.
pub fn conversation(request: &GenerateRequest, answer: &Answer) -> Vec<Message> {
    let messages = request.chat().map_or(&[][..], |c| &c.messages);
    let mut out = messages.get(instructions(request)..).unwrap_or_default().to_vec();
    out.extend(answer.choices.first().map(|c| c.to_message()));
    out
}

/// Inserts the conversation of `previous_response_id` between the `instructions` and the messages of `request`.
pub fn follow(request: &mut GenerateRequest, conversation: Vec<Message>) {
    let at = instructions(request);
    if let Input::Chat(chat) = &mut request.input {
        let at = at.min(chat.messages.len());
        chat.messages.splice(at..at, conversation);
    }
}

/// The number of leading messages that are the request's own instructions.
fn instructions(request: &GenerateRequest) -> usize {
    usize::from(request.extra.contains_key("instructions"))
}

/// The number of messages in [`conversation`] before the answer.
pub fn input_len(request: &GenerateRequest) -> usize {
    request.chat().map_or(0, |c| c.messages.len().saturating_sub(instructions(request)))
}

/// The id of the response that an item belongs to: output items are called `fc_RESPONSE_0`, input items `msg_RESPONSE_in0`, ...
pub fn response_of(item: &str) -> Option<&str> {
    let (_, rest) = item.split_once('_')?;
    Some(rest.rsplit_once('_')?.0)
}

/// The output items of a stored response's body by their ids.
pub fn output_items(body: &[u8]) -> HashMap<String, Value> {
    #[derive(serde::Deserialize)]
    struct Output {
        output: Vec<Value>,
    }
    let output = serde_json::from_slice::<Output>(body).map(|stored| stored.output).unwrap_or_default();
    output.into_iter().filter_map(|item| Some((item["id"].as_str()?.to_string(), item))).collect()
}

/// The input items of a stored response, oldest first: all messages that its answer follows, those of earlier responses too. Calls
/// of custom tools and of tools in a namespace are function calls with the name that the model knows.
pub fn input_items(response: &str, input: &[Message]) -> Vec<Value> {
    let response = response.strip_prefix("resp_").unwrap_or(response);
    let mut out: Vec<Value> = Vec::new();
    for message in input {
        if message.role == Role::Assistant
            && let Some(text) = message.reasoning_text()
        {
            out.push(reasoning_item("", Some(&text), "completed"));
        }
        out.extend(items(message));
    }
    for (n, item) in out.iter_mut().enumerate() {
        let prefix = match item["type"].as_str() {
            Some("message") => "msg",
            Some("reasoning") => "rs",
            Some("function_call") => "fc",
            _ => "fco",
        };
        item["id"] = format!("{prefix}_{response}_in{n}").into();
        item["status"] = "completed".into();
        let parts = item.get_mut("content").and_then(Value::as_array_mut);
        for part in parts.into_iter().flatten().filter(|part| part["type"] == "output_text") {
            part["annotations"] = json!([]);
        }
    }
    out
}

/// Maximum and default number of items in a page.
const PAGE_MAX: usize = 100;
const PAGE: usize = 20;

/// A page of input items, as the query of `GET /v1/responses/{id}/input_items` asks for: `limit`, `order` (`desc` by default), `after`.
///
/// # Errors
/// Unknown parameters and values.
pub fn input_page(mut items: Vec<Value>, query: &[(String, String)]) -> Result<Value, ApiError> {
    let (mut limit, mut order, mut after) = (PAGE, "desc", None);
    for (name, value) in query {
        match name.as_str() {
            "limit" => {
                let number = value.parse().ok().filter(|n| (1..=PAGE_MAX).contains(n));
                let wrong = || ApiError::invalid("limit", format!("'limit' must be from 1 to {PAGE_MAX}"));
                limit = number.ok_or_else(wrong)?;
            }
            "order" if value == "asc" || value == "desc" => order = value,
            "order" => return Err(ApiError::invalid("order", "'order' must be \"asc\" or \"desc\"")),
            "after" => after = Some(value),
            // Items have everything that there is of them.
            "include" | "include[]" => {}
            _ => {
                let name = shortened(name).into_owned();
                let what = format!("'{name}' is not supported here; 'limit', 'order' and 'after' are");
                return Err(ApiError::invalid(name, what));
            }
        }
    }
    if order == "desc" {
        items.reverse();
    }
    if let Some(after) = after {
        let at = items.iter().position(|item| item["id"] == *after);
        let unknown = || ApiError::invalid("after", format!("'after' names no item: '{}'", shortened(after)));
        items.drain(..=at.ok_or_else(unknown)?);
    }
    let has_more = items.len() > limit;
    items.truncate(limit);
    let id = |item: Option<&Value>| item.map_or(Value::Null, |item| item["id"].clone());
    let (first, last) = (id(items.first()), id(items.last()));
    Ok(json!({"object": "list", "data": items, "first_id": first, "last_id": last, "has_more": has_more}))
}

/// Whether an item that `is_kept` knows is referred to in the body of a request.
pub fn references(body: &[u8], is_kept: impl Fn(&str) -> bool) -> bool {
    #[derive(Deserialize)]
    struct Body<'a> {
        #[serde(borrow)]
        input: &'a RawValue,
    }
    #[derive(Deserialize)]
    struct Item<'a> {
        #[serde(rename = "type", borrow, default)]
        kind: Option<Cow<'a, str>>,
        #[serde(borrow, default)]
        id: Option<Cow<'a, str>>,
        #[serde(default)]
        role: Option<IgnoredAny>,
    }
    let Ok(body) = serde_json::from_slice::<Body>(body) else { return false };
    let Ok(items) = serde_json::from_str::<Vec<Item>>(body.input.get()) else { return false };
    let is_reference = |item: &&Item| match item.kind.as_deref() {
        Some(kind) => kind == "item_reference",
        None => item.role.is_none(),
    };
    items.iter().filter(is_reference).filter_map(|item| item.id.as_deref()).any(is_kept)
}

/// The answer to `DELETE /v1/responses/{id}`.
pub fn deleted(id: &str) -> Value {
    json!({"id": with_prefix("resp_", id), "object": "response", "deleted": true})
}
