//! Whether a model's tool calls can be carried out: the tool exists, and the arguments fit its schema. Used by `confidence`, and by
//! `octet route calibrate`.

use std::sync::Arc;

use jsonschema::PatternOptions;
use octet_api::core::{Event, GenerateRequest, Tool};
use serde_json::{Map, Value};

/// Arguments that are longer are not checked.
const ARGUMENTS_BYTES_MAX: usize = 1 << 20;
/// Memory of a schema's regular expression.
const PATTERN_BYTES_MAX: usize = 1 << 20;
/// Steps of a check, about: schemas are the client's, and some take forever.
const STEPS_MAX: u64 = 50_000_000;
/// Steps of a schema for one value, references followed.
const SCHEMA_STEPS_MAX: u64 = 100_000;
/// Deepest nesting of a schema, references followed.
const DEPTH_MAX: usize = 256;

/// Gathers the calls of an answer.
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
    /// Of an answer to `request`; `None` where no tool can be called.
    pub fn new(request: &Arc<GenerateRequest>) -> Option<Self> {
        let any = request.chat().is_some_and(|c| !c.tools.is_empty());
        any.then(|| Self { request: Arc::clone(request), calls: Vec::new(), bytes: 0 })
    }

    /// The next event of the answer.
    pub fn see(&mut self, event: &Event) {
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

    /// Whether something was called.
    pub fn any(&self) -> bool {
        !self.calls.is_empty()
    }

    /// What is wrong with the first call that cannot be carried out.
    pub fn broken(&self) -> Option<String> {
        let tools = &self.request.chat()?.tools;
        if self.bytes > ARGUMENTS_BYTES_MAX {
            return None;
        }
        self.calls.iter().find_map(|call| match tools.iter().find(|t| t.name == call.name) {
            None => Some(format!("no tool has the name '{}'", call.name)),
            Some(tool) => broken(tool, &call.arguments),
        })
    }
}

/// What is wrong with a call of `tool`. A schema that is not valid, or too costly to check, finds nothing.
pub fn broken(tool: &Tool, arguments: &str) -> Option<String> {
    // It takes a text.
    if tool.origin.custom {
        return None;
    }
    let text = if arguments.trim().is_empty() { "{}" } else { arguments };
    let arguments: Map<String, Value> = match serde_json::from_str(text) {
        Ok(arguments) => arguments,
        Err(e) => return Some(format!("the arguments of '{}' are not a JSON object: {e}", tool.name)),
    };
    let schema = Value::Object(tool.parameters.clone());
    if cost(&schema)?.saturating_mul(text.len() as u64) > STEPS_MAX {
        return None;
    }
    // Linear in time, whatever the client's patterns are.
    let patterns = PatternOptions::regex().size_limit(PATTERN_BYTES_MAX).dfa_size_limit(PATTERN_BYTES_MAX);
    let validator = jsonschema::options().with_pattern_options(patterns).build(&schema).ok()?;
    let arguments = Value::Object(arguments);
    let error = validator.iter_errors(&arguments).next()?;
    let at = error.instance_path().to_string();
    let at = if at.is_empty() { String::new() } else { format!(" at {at}") };
    Some(format!("the arguments of '{}' break its schema{at}: {error}", tool.name))
}

/// Steps that a schema takes for each value, at most; `None` where that is not bounded by the schema alone: it refers to itself, to
/// what is not in it, or keeps account of what was evaluated.
fn cost(schema: &Value) -> Option<u64> {
    fn of(root: &Value, at: &Value, above: &mut Vec<*const Value>) -> Option<u64> {
        if above.len() >= DEPTH_MAX {
            return None;
        }
        match at {
            Value::Array(all) => {
                above.push(at);
                let sum = all.iter().try_fold(1u64, |sum, v| Some(sum.saturating_add(of(root, v, above)?)));
                above.pop();
                sum.filter(|n| *n <= SCHEMA_STEPS_MAX)
            }
            Value::Object(keys) => {
                if above.contains(&std::ptr::from_ref(at)) {
                    return None;
                }
                above.push(at);
                let sum = keys.iter().try_fold(1u64, |sum, (key, v)| {
                    let more = match key.as_str() {
                        "$ref" => match v.as_str()?.strip_prefix('#') {
                            Some(pointer) => of(root, root.pointer(pointer)?, above)?,
                            None => return None,
                        },
                        "$dynamicRef" | "$recursiveRef" | "unevaluatedProperties" | "unevaluatedItems" => {
                            return None;
                        }
                        _ => of(root, v, above)?,
                    };
                    // Bounded here, and not only at the end: references multiply.
                    Some(sum.saturating_add(more)).filter(|n| *n <= SCHEMA_STEPS_MAX)
                });
                above.pop();
                sum
            }
            _ => Some(1),
        }
    }
    of(schema, schema, &mut Vec::new())
}
