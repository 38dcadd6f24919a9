//! Responses stored for a later `previous_response_id`. Called by the server, which stores them.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::core::{Answer, GenerateRequest, Input, Message};
use crate::dialect::with_prefix;

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

/// The id of the response that an output item belongs to: items are called `fc_RESPONSE_0`, ...
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

/// The answer to `DELETE /v1/responses/{id}`.
pub fn deleted(id: &str) -> Value {
    json!({"id": with_prefix("resp_", id), "object": "response", "deleted": true})
}
