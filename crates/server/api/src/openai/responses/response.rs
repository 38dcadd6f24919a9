//! Writes a whole response.

use serde_json::{Map, Value, json};

use super::super::logprobs::Token;
use crate::ApiError;
use crate::core::{
    Answer, Block, Chat, FinishReason, GenerateRequest, ResponseFormat, TokenLogprob, Tool, ToolChoice,
    ToolOrigin, Usage,
};
use crate::dialect::with_prefix;

/// The response body. (For an answer with an `error`, use [`error::body`](crate::openai::error::body).)
pub fn response(request: &GenerateRequest, answer: &Answer) -> Vec<u8> {
    let mut frame = Frame::new(request);
    frame.begin(&answer.id, &answer.model, answer.created_s);
    let choice = answer.choices.first();
    let finish = choice.and_then(|c| c.finish.as_ref()).unwrap_or(&FinishReason::Length);
    let mut logprobs = choice.filter(|_| request.logprobs.is_some()).map_or(&[][..], |c| &c.logprobs);
    let blocks = choice.map_or(&[][..], |c| &c.blocks);
    let mut output: Vec<Value> = Vec::new();
    for (i, block) in blocks.iter().enumerate() {
        let status = if i + 1 == blocks.len() { item_status(finish) } else { "completed" };
        let n = output.len();
        match block {
            Block::Reasoning { text, .. } if request.shows_reasoning() => {
                output.push(reasoning_item(&frame.item_id("rs", n), Some(text), status));
            }
            Block::Text(text) if !text.is_empty() => {
                let part = text_part(text, std::mem::take(&mut logprobs));
                output.push(message_item(&frame.item_id("msg", n), Some(part), status));
            }
            Block::ToolCall { id, name, arguments, .. } => {
                let call = Call { id: id.clone(), origin: frame.origin(name), name: name.clone() };
                output.push(call.item(&frame.item_id(call.prefix(), n), Some(arguments), status));
            }
            _ => {}
        }
    }
    crate::json::to_bytes(&frame.finished(finish, output, answer.usage.as_ref()))
}

/// All fields of a response except its output: the request's settings and the answer's state.
#[derive(Debug)]
pub(super) struct Frame {
    fixed: Map<String, Value>,
    id: String,
    /// Tools that are not plain functions, by the names that the model knows.
    origins: Vec<(String, ToolOrigin)>,
}

impl Frame {
    pub(super) fn new(request: &GenerateRequest) -> Self {
        let nothing = Chat::default();
        let chat = request.chat().unwrap_or(&nothing);
        let extra = |name: &str| request.extra.get(name).cloned().unwrap_or(Value::Null);
        let fixed = json!({
            "id": "",
            "object": "response",
            "created_at": 0,
            "status": "in_progress",
            "background": false,
            "error": null,
            "incomplete_details": null,
            "instructions": extra("instructions"),
            "max_output_tokens": request.max_tokens,
            "max_tool_calls": null,
            "model": "",
            "output": [],
            "parallel_tool_calls": chat.parallel_tool_calls.unwrap_or(true),
            "previous_response_id": request.previous_response_id,
            "prompt_cache_key": extra("prompt_cache_key"),
            "reasoning": {"effort": effort(chat), "summary": null},
            "safety_identifier": extra("safety_identifier"),
            "store": request.store,
            "temperature": request.sampling.temperature,
            "text": {"format": format(&request.response_format)},
            "tool_choice": tool_choice(&chat.tool_choice),
            "tools": chat.tools.iter().map(tool).collect::<Vec<_>>(),
            "top_logprobs": request.logprobs.unwrap_or(0),
            "top_p": request.sampling.top_p,
            "truncation": "disabled",
            "usage": null,
            "user": request.user,
            "metadata": request.metadata,
        });
        let Value::Object(fixed) = fixed else { unreachable!("it is written as an object") };
        let named = |t: &&Tool| t.origin != ToolOrigin::default();
        let origins = chat.tools.iter().filter(named).map(|t| (t.name.clone(), t.origin.clone())).collect();
        Self { fixed, id: String::new(), origins }
    }

    pub(super) fn begin(&mut self, id: &str, model: &str, created_s: u64) {
        self.id = id.trim_start_matches("resp_").to_string();
        self.set("id", with_prefix("resp_", id));
        self.set("model", model);
        self.set("created_at", created_s);
    }

    fn set(&mut self, name: &str, value: impl Into<Value>) {
        self.fixed.insert(name.into(), value.into());
    }

    /// The client's form of a tool.
    pub(super) fn origin(&self, name: &str) -> ToolOrigin {
        self.origins.iter().find(|(n, _)| n == name).map(|(_, o)| o.clone()).unwrap_or_default()
    }

    /// An id for the `n`-th output item.
    pub(super) fn item_id(&self, prefix: &str, n: usize) -> String {
        format!("{prefix}_{}_{n}", self.id)
    }

    /// Its current value.
    pub(super) fn value(&self) -> &Map<String, Value> {
        &self.fixed
    }

    /// Its final value.
    pub(super) fn finished(
        &mut self,
        finish: &FinishReason,
        output: Vec<Value>,
        usage: Option<&Usage>,
    ) -> &Map<String, Value> {
        let incomplete = match finish {
            FinishReason::Length => Some("max_output_tokens"),
            FinishReason::ContentFilter => Some("content_filter"),
            _ => None,
        };
        self.set("status", if incomplete.is_some() { "incomplete" } else { "completed" });
        self.set("incomplete_details", incomplete.map_or(Value::Null, |reason| json!({"reason": reason})));
        self.set("output", output);
        self.set("usage", usage.map_or(Value::Null, usage_value));
        &self.fixed
    }

    /// Its value after a failure.
    pub(super) fn failed(&mut self, error: &ApiError, output: Vec<Value>) -> &Map<String, Value> {
        self.set("status", "failed");
        self.set("output", output);
        self.set("error", json!({"code": error_code(error), "message": error.message}));
        &self.fixed
    }
}

/// The error code, one of those that clients know.
fn error_code(error: &ApiError) -> &'static str {
    match error.status() {
        429 => "rate_limit_exceeded",
        400..=499 => "invalid_prompt",
        _ => "server_error",
    }
}

/// The status of the item with which an answer ends.
pub(super) fn item_status(finish: &FinishReason) -> &'static str {
    match finish {
        FinishReason::Length | FinishReason::ContentFilter => "incomplete",
        _ => "completed",
    }
}

pub(super) fn reasoning_part(text: &str) -> Value {
    json!({"type": "reasoning_text", "text": text})
}

pub(super) fn reasoning_item(id: &str, text: Option<&str>, status: &str) -> Value {
    let content: Vec<Value> = text.map(reasoning_part).into_iter().collect();
    json!({"id": id, "type": "reasoning", "summary": [], "content": content, "status": status})
}

pub(super) fn logprob_values(tokens: &[TokenLogprob]) -> Vec<Value> {
    tokens.iter().map(|t| serde_json::to_value(Token::new(t)).unwrap_or_default()).collect()
}

pub(super) fn text_part(text: &str, logprobs: &[TokenLogprob]) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": logprob_values(logprobs)})
}

pub(super) fn message_item(id: &str, part: Option<Value>, status: &str) -> Value {
    let content: Vec<Value> = part.into_iter().collect();
    json!({"id": id, "type": "message", "role": "assistant", "content": content, "status": status})
}

/// A call, and the client's form of its tool.
#[derive(Debug)]
pub(super) struct Call {
    pub id: String,
    /// The name that the model knows.
    pub name: String,
    pub origin: ToolOrigin,
}

impl Call {
    /// Prefix of its item id.
    pub(super) fn prefix(&self) -> &'static str {
        if self.origin.custom { "ctc" } else { "fc" }
    }

    /// The name that the client knows.
    pub(super) fn client_name(&self) -> &str {
        self.origin.namespace.as_ref().map_or(&self.name, |(_, name)| name)
    }

    /// The item, with or without arguments.
    pub(super) fn item(&self, id: &str, arguments: Option<&str>, status: &str) -> Value {
        let name = self.client_name();
        let mut out = if self.origin.custom {
            let input = arguments.map(ToolOrigin::input).unwrap_or_default();
            json!({"id": id, "type": "custom_tool_call", "call_id": self.id, "name": name, "input": input, "status": status})
        } else {
            let arguments = arguments.unwrap_or("");
            json!({"id": id, "type": "function_call", "call_id": self.id, "name": name, "arguments": arguments, "status": status})
        };
        if let Some((namespace, _)) = &self.origin.namespace {
            out["namespace"] = namespace.as_str().into();
        }
        out
    }
}

fn usage_value(u: &Usage) -> Value {
    json!({
        "input_tokens": u.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": u.cached_tokens.unwrap_or(0),
            "cache_write_tokens": u.cache_written_tokens.unwrap_or(0),
        },
        "output_tokens": u.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": u.reasoning_tokens.unwrap_or(0)},
        "total_tokens": u.total_tokens(),
    })
}

fn effort(chat: &Chat) -> Option<&'static str> {
    match chat.reasoning.enabled {
        Some(false) => Some("none"),
        _ => chat.reasoning.effort.map(|e| e.name()),
    }
}

fn tool(t: &Tool) -> Value {
    json!({
        "type": "function", "name": t.name, "description": t.description, "parameters": t.parameters,
        "strict": t.strict.unwrap_or(false),
    })
}

fn tool_choice(choice: &ToolChoice) -> Value {
    match choice {
        ToolChoice::Auto => "auto".into(),
        ToolChoice::None => "none".into(),
        ToolChoice::Required => "required".into(),
        ToolChoice::Named(name) => json!({"type": "function", "name": name}),
    }
}

/// The format in the client's form. (Formats of our extra fields are reported as text.)
fn format(format: &ResponseFormat) -> Value {
    match format {
        ResponseFormat::JsonObject => json!({"type": "json_object"}),
        ResponseFormat::JsonSchema { name, description, schema, strict } => json!({
            "type": "json_schema", "name": name.as_deref().unwrap_or("answer"), "description": description,
            "schema": schema, "strict": strict.unwrap_or(false),
        }),
        _ => json!({"type": "text"}),
    }
}
