//! Responses stored for a later `previous_response_id`.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::fmt;

use serde::de::{IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer as _};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::core::{Answer, GenerateRequest, Input, Message};
use crate::dialect::with_prefix;

/// The conversation after an answer, for [`follow`]: everything except `instructions`, which apply to one request only.
pub fn conversation(request: &GenerateRequest, answer: &Answer) -> Vec<Message> {
    let messages = request.chat().map_or(&[][..], |c| &c.messages);
    let mut out = messages.get(instructions(request)..).unwrap_or_default().to_vec();
    let hides_reasoning = !request.shows_reasoning();
    out.extend(answer.choices.first().map(|c| Message { hides_reasoning, ..c.to_message() }));
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

/// The ids (without `resp_`) of all responses that the body of a request may refer to: as its `previous_response_id`, or by their items.
pub fn referenced(body: &[u8]) -> BTreeSet<String> {
    #[derive(Deserialize)]
    struct Body<'a> {
        #[serde(borrow, default)]
        input: Option<&'a RawValue>,
        #[serde(default)]
        previous_response_id: Option<String>,
    }
    let mut found = BTreeSet::new();
    let Ok(body) = serde_json::from_slice::<Body>(body) else { return found };
    found.extend(body.previous_response_id.map(|id| bare(&id).to_string()));
    if let Some(input) = body.input {
        // It fails if the input is a text.
        let _ = serde_json::Deserializer::from_str(input.get()).deserialize_seq(Search(&mut found));
    }
    found
}

/// The id of a response without its prefix.
pub fn bare(id: &str) -> &str {
    id.strip_prefix("resp_").unwrap_or(id)
}

/// Collects the responses that a list of items refers to.
struct Search<'f>(&'f mut BTreeSet<String>);

impl<'de> Visitor<'de> for Search<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a list of items")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while let Some(item) = items.next_element::<Item>()? {
            self.0.extend(item.reference().and_then(response_of).map(str::to_string));
        }
        Ok(())
    }
}

/// An item of the input, as far as it shows whether it is a reference.
#[derive(Deserialize)]
struct Item<'a> {
    #[serde(rename = "type", borrow, default)]
    kind: Option<Text<'a>>,
    #[serde(borrow, default)]
    id: Option<Text<'a>>,
    #[serde(default)]
    role: Option<IgnoredAny>,
}

/// A text that is borrowed if it has no escapes. (serde copies a plain `Option<Cow<str>>`.)
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl Item<'_> {
    /// The id of the item that it refers to. A reference may come without its type.
    fn reference(&self) -> Option<&str> {
        let is_reference = self.kind.as_ref().map_or(self.role.is_none(), |kind| kind.0 == "item_reference");
        self.id.as_ref().filter(|_| is_reference).map(|id| &*id.0)
    }
}

/// The answer to `DELETE /v1/responses/{id}`.
pub fn deleted(id: &str) -> Value {
    json!({"id": with_prefix("resp_", id), "object": "response", "deleted": true})
}
