//! The input items of a stored response, in pages or by id.

use serde_json::{Value, json};

use super::body::{Item, item, items};
use crate::ApiError;
use crate::core::{Message, ReasoningPart, Role};
use crate::json::shortened;

/// Maximum and default number of items in a page.
const PAGE_MAX: usize = 100;
const PAGE: usize = 20;

/// Which page of input items is asked for.
#[derive(Debug)]
pub struct PageQuery {
    limit: usize,
    newest_first: bool,
    after: Option<String>,
}

impl PageQuery {
    /// Parses the query of `GET /v1/responses/{id}/input_items`: `limit`, `order` (`desc` by default), `after`.
    ///
    /// # Errors
    /// Unknown parameters and values.
    pub fn parse(query: Vec<(String, String)>) -> Result<Self, ApiError> {
        let mut out = Self { limit: PAGE, newest_first: true, after: None };
        for (name, value) in query {
            match name.as_str() {
                "limit" => {
                    let number = value.parse().ok().filter(|n| (1..=PAGE_MAX).contains(n));
                    let wrong =
                        || ApiError::invalid("limit", format!("'limit' must be from 1 to {PAGE_MAX}"));
                    out.limit = number.ok_or_else(wrong)?;
                }
                "order" if value == "asc" || value == "desc" => out.newest_first = value == "desc",
                "order" => return Err(ApiError::invalid("order", "'order' must be \"asc\" or \"desc\"")),
                "after" => out.after = Some(value),
                // Items have everything that there is of them.
                "include" | "include[]" => {}
                _ => {
                    let name = shortened(&name).into_owned();
                    let what = format!("'{name}' is not supported here; 'limit', 'order' and 'after' are");
                    return Err(ApiError::invalid(name, what));
                }
            }
        }
        Ok(out)
    }
}

/// Where the input items of a stored response are in its conversation, oldest first: all messages that its answer follows, those of
/// earlier responses too. Calls of custom tools and of tools in a namespace are function calls with the name that the model knows.
#[derive(Debug)]
pub struct InputItems(Vec<(usize, Item)>);

impl InputItems {
    /// The items of these messages, the first of the conversation.
    pub fn new(input: &[Message]) -> Self {
        let all = input.iter().enumerate().flat_map(|(n, message)| {
            let reasoning = shows_reasoning(message).then_some(Item::Reasoning);
            reasoning.into_iter().chain(items(message)).map(move |item| (n, item))
        });
        Self(all.collect())
    }

    /// The item with this id of a stored response.
    pub fn by_id(&self, response: &str, conversation: &[Message], id: &str) -> Option<Value> {
        self.value(response, conversation, self.position(response, id)?)
    }

    /// A page, of which only the items are built.
    ///
    /// # Errors
    /// An item to begin after that there is not.
    pub fn page(
        &self,
        response: &str,
        conversation: &[Message],
        query: &PageQuery,
    ) -> Result<Value, ApiError> {
        let count = self.0.len();
        let ordered = |n: usize| if query.newest_first { count - 1 - n } else { n };
        let start = match &query.after {
            None => 0,
            Some(id) => {
                let unknown =
                    || ApiError::invalid("after", format!("'after' names no item: '{}'", shortened(id)));
                ordered(self.position(response, id).ok_or_else(unknown)?) + 1
            }
        };
        let end = count.min(start + query.limit);
        let data: Vec<Value> =
            (start..end).filter_map(|n| self.value(response, conversation, ordered(n))).collect();
        let id = |item: Option<&Value>| item.map_or(Value::Null, |item| item["id"].clone());
        let (first, last) = (id(data.first()), id(data.last()));
        Ok(
            json!({"object": "list", "data": data, "first_id": first, "last_id": last, "has_more": end < count}),
        )
    }

    fn position(&self, response: &str, id: &str) -> Option<usize> {
        let n = id.rsplit_once("_in")?.1.parse().ok()?;
        (self.id(response, n)? == id).then_some(n)
    }

    fn id(&self, response: &str, n: usize) -> Option<String> {
        let prefix = match self.0.get(n)?.1 {
            Item::Message => "msg",
            Item::Reasoning => "rs",
            Item::Call(_) => "fc",
            Item::Output => "fco",
        };
        Some(format!("{prefix}_{}_in{n}", response.strip_prefix("resp_").unwrap_or(response)))
    }

    fn value(&self, response: &str, conversation: &[Message], n: usize) -> Option<Value> {
        let (message, part) = *self.0.get(n)?;
        let mut out = item(conversation.get(message)?, part);
        out["id"] = self.id(response, n)?.into();
        out["status"] = "completed".into();
        let parts = out.get_mut("content").and_then(Value::as_array_mut);
        for part in parts.into_iter().flatten().filter(|part| part["type"] == "output_text") {
            part["annotations"] = json!([]);
        }
        Some(out)
    }
}

/// Whether a message has reasoning that its client may see.
fn shows_reasoning(m: &Message) -> bool {
    let is_text = |part: &ReasoningPart| matches!(part, ReasoningPart::Text { .. });
    m.role == Role::Assistant && !m.hides_reasoning && m.reasoning.iter().any(is_text)
}
