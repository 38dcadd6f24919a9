//! Checks a model's tool calls: the tool exists, and the arguments match its schema.

use std::sync::Arc;

use octet_api::core::{Event, GenerateRequest, Tool};
use serde_json::{Map, Value};

use crate::schema::{self, Stop};

/// Longer arguments are not checked.
const ARGUMENTS_BYTES_MAX: usize = 1 << 20;
/// Maximum steps of checking an answer's calls: schemas are untrusted, and a slow one would delay other requests. The worst cases within
/// this limit are patterns, on Zen 5: 40 ms of compiling, or 30 ms of matching one with many states (300 ns a step; see `schema`).
const STEPS_MAX: u64 = 100_000;
/// Steps of a call besides those of its schema.
const CALL_STEPS: u64 = 100;
/// Maximum characters of a path in the arguments, and of an error, in a trace.
const TRACED_CHARS_MAX: usize = 200;

/// Collects the calls of an answer.
#[derive(Debug, Clone)]
pub struct Calls {
    request: Arc<GenerateRequest>,
    calls: Vec<Called>,
    bytes: usize,
}

#[derive(Debug, Clone)]
struct Called {
    choice: u32,
    index: u32,
    name: String,
    arguments: String,
}

impl Calls {
    /// For an answer to `request`; `None` if it has no tools.
    pub fn new(request: &Arc<GenerateRequest>) -> Option<Self> {
        let any = request.chat().is_some_and(|c| !c.tools.is_empty());
        any.then(|| Self { request: Arc::clone(request), calls: Vec::new(), bytes: 0 })
    }

    /// The next event of the answer.
    pub fn observe(&mut self, event: &Event) {
        match event {
            Event::ToolCallStart { choice, index, name, .. } => self.calls.push(Called {
                choice: *choice,
                index: *index,
                name: name.clone(),
                arguments: String::new(),
            }),
            Event::ToolCallArguments { choice, index, text } => {
                self.bytes += text.len();
                let mut calls = self.calls.iter_mut().rev();
                if let Some(call) = calls.find(|c| (c.choice, c.index) == (*choice, *index))
                    && self.bytes <= ARGUMENTS_BYTES_MAX
                {
                    call.arguments.push_str(text);
                }
            }
            _ => {}
        }
    }

    /// Whether a tool was called.
    pub fn any(&self) -> bool {
        !self.calls.is_empty()
    }

    /// The error of the first invalid call.
    pub fn broken(&self) -> Option<String> {
        let tools = &self.request.chat()?.tools;
        if self.bytes > ARGUMENTS_BYTES_MAX {
            return None;
        }
        let mut steps_left = STEPS_MAX;
        self.calls.iter().find_map(|call| match tools.iter().find(|t| t.name == call.name) {
            None => Some(format!("no tool has the name '{}'", call.name)),
            Some(tool) => check(tool, &call.arguments, &mut steps_left),
        })
    }
}

/// The error of a call of `tool`. A schema that is invalid or too costly to check reports no error.
pub fn broken(tool: &Tool, arguments: &str) -> Option<String> {
    let mut steps_left = STEPS_MAX;
    check(tool, arguments, &mut steps_left)
}

fn check(tool: &Tool, arguments: &str, steps_left: &mut u64) -> Option<String> {
    // The tool takes plain text.
    if tool.origin.custom {
        return None;
    }
    let text = if arguments.trim().is_empty() { "{}" } else { arguments };
    let arguments: Map<String, Value> = match serde_json::from_str(text) {
        Ok(arguments) => arguments,
        Err(e) => return Some(format!("the arguments of '{}' are not a JSON object: {e}", tool.name)),
    };
    *steps_left = steps_left.checked_sub(CALL_STEPS)?;
    let mut schema = tool.parameters.clone();
    // References by it are not followed, and it may name a built-in schema.
    schema.retain(|key, v| !(v.is_string() && matches!(key.as_str(), "$id" | "id")));
    let Err(Stop::Broken { at, what }) =
        schema::check(&Value::Object(schema), &Value::Object(arguments), steps_left)
    else {
        return None;
    };
    // Bounded: it is logged and traced.
    let bounded = |text: String| text.chars().take(TRACED_CHARS_MAX).collect::<String>();
    let at = if at.is_empty() { at } else { format!(" at {}", bounded(at)) };
    Some(format!("the arguments of '{}' do not match its schema{at}: {}", tool.name, bounded(what)))
}
