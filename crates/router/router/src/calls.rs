//! Whether a model's tool calls can be carried out: the tool exists, and the arguments fit its schema. Used by `confidence`, and by
//! `octet route calibrate`.

use std::collections::BTreeSet;
use std::sync::Arc;

use jsonschema::PatternOptions;
use octet_api::core::{Event, GenerateRequest, Tool};
use serde_json::{Map, Value};

/// Arguments that are longer are not checked.
const ARGUMENTS_BYTES_MAX: usize = 1 << 20;
/// Memory of a schema's regular expression.
const PATTERN_BYTES_MAX: usize = 1 << 17;
/// Regular expressions of a schema: they are compiled before the first is used.
const PATTERNS_MAX: usize = 32;
/// Steps of the checks of an answer's calls, about: schemas are the client's, some take forever, and others wait meanwhile. Measured on
/// Zen 5, so many take at most 3 ms for building a schema, 15 ms for checking values, 40 ms for compiling the worst of patterns.
const STEPS_MAX: u64 = 1_000_000;
/// Steps of a call beside those of its schema.
const CALL_STEPS: u64 = 1_000;
/// Steps of building a step of a schema.
const BUILD_STEPS: u64 = 100;
/// Steps of compiling a byte of a regular expression.
const PATTERN_BYTE_STEPS: u64 = 2_000;
/// Steps of a schema for one value, references followed.
const SCHEMA_STEPS_MAX: u64 = STEPS_MAX / BUILD_STEPS;
/// Deepest nesting of a schema, references followed.
const DEPTH_MAX: usize = 256;
/// Characters of a place in the arguments, and of what is wrong there, in a trace.
const CHARS_SAID_MAX: usize = 200;

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
        let mut steps_left = STEPS_MAX;
        self.calls.iter().find_map(|call| match tools.iter().find(|t| t.name == call.name) {
            None => Some(format!("no tool has the name '{}'", call.name)),
            Some(tool) => check(tool, &call.arguments, &mut steps_left),
        })
    }
}

/// What is wrong with a call of `tool`. A schema that is not valid, or too costly to check, finds nothing.
pub fn broken(tool: &Tool, arguments: &str) -> Option<String> {
    let mut steps_left = STEPS_MAX;
    check(tool, arguments, &mut steps_left)
}

fn check(tool: &Tool, arguments: &str, steps_left: &mut u64) -> Option<String> {
    // It takes a text.
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
    // References by it are not followed, and it may be the name of a schema that is built in.
    schema.retain(|key, v| !(v.is_string() && matches!(key.as_str(), "$id" | "id")));
    let schema = Value::Object(schema);
    *steps_left = steps_left.checked_sub(steps(&schema, text.len())?)?;
    // Linear in time, whatever the client's patterns are.
    let patterns = PatternOptions::regex().size_limit(PATTERN_BYTES_MAX).dfa_size_limit(PATTERN_BYTES_MAX);
    let validator = jsonschema::options().with_pattern_options(patterns).build(&schema).ok()?;
    let arguments = Value::Object(arguments);
    let error = validator.validate(&arguments).err()?;
    // Bounded, and without the values: it stands in the log and in traces.
    let bounded = |text: String| text.chars().take(CHARS_SAID_MAX).collect::<String>();
    let at = bounded(error.instance_path().to_string());
    let at = if at.is_empty() { at } else { format!(" at {at}") };
    Some(format!(
        "the arguments of '{}' break its schema{at}: {}",
        tool.name,
        bounded(error.masked().to_string())
    ))
}

/// Steps of building `schema`, and of checking `bytes` of arguments, at most; `None` where the schema alone does not bound them.
fn steps(schema: &Value, bytes: usize) -> Option<u64> {
    let draft = schema["$schema"].as_str().unwrap_or_default();
    let mut walk = Walk {
        root: schema,
        id_is_keyword: draft.contains("draft-04"),
        above: Vec::new(),
        patterns: BTreeSet::new(),
    };
    let of_a_value = walk.cost(schema)?;
    let patterns =
        walk.patterns.iter().map(|p| p.len() as u64).sum::<u64>().saturating_mul(PATTERN_BYTE_STEPS);
    Some(of_a_value.saturating_mul(bytes as u64 + BUILD_STEPS).saturating_add(patterns))
}

/// Counts what a schema takes.
struct Walk<'a> {
    root: &'a Value,
    /// In draft 4 alone `id` is what `$id` is in the others.
    id_is_keyword: bool,
    /// Where it is, references followed.
    above: Vec<*const Value>,
    patterns: BTreeSet<&'a str>,
}

impl<'a> Walk<'a> {
    /// Steps of `at` for each value, at most; `None` where there are too many, or the schema alone does not bound them.
    fn cost(&mut self, at: &'a Value) -> Option<u64> {
        if self.above.len() >= DEPTH_MAX {
            return None;
        }
        match at {
            Value::Array(all) => {
                self.above.push(at);
                let sum = all.iter().try_fold(1u64, |sum, v| Some(sum.saturating_add(self.cost(v)?)));
                self.above.pop();
                sum.filter(|n| *n <= SCHEMA_STEPS_MAX)
            }
            Value::Object(keys) => {
                if self.above.contains(&std::ptr::from_ref(at)) {
                    return None;
                }
                self.above.push(at);
                // Bounded here, and not only at the end: references multiply.
                let sum = keys.iter().try_fold(1u64, |sum, (key, v)| {
                    Some(sum.saturating_add(self.keyword(key, v)?)).filter(|n| *n <= SCHEMA_STEPS_MAX)
                });
                self.above.pop();
                sum
            }
            _ => Some(1),
        }
    }

    fn keyword(&mut self, key: &str, v: &'a Value) -> Option<u64> {
        let is_below = self.above.len() > 1;
        match key {
            "$ref" => {
                let pointer = v.as_str()?.strip_prefix('#')?;
                // `%24` would be read as `$`, and `/%24defs` is another place.
                if pointer.contains('%') {
                    return None;
                }
                self.cost(self.root.pointer(pointer)?)
            }
            // Pointers start here, and not at the root; or other keywords hold.
            "$id" | "$schema" if is_below && v.is_string() => None,
            "id" if is_below && v.is_string() && self.id_is_keyword => None,
            // It keeps account of what was evaluated, or refers to what is known only while it checks.
            "$dynamicRef" | "$recursiveRef" | "unevaluatedProperties" | "unevaluatedItems" => None,
            // It compiles what the model wrote.
            "format" if v == "regex" => None,
            "pattern" if let Some(pattern) = v.as_str() => self.pattern(pattern),
            "patternProperties" if let Some(keys) = v.as_object() => {
                let patterns =
                    keys.keys().try_fold(0u64, |sum, key| Some(sum.saturating_add(self.pattern(key)?)))?;
                Some(patterns.saturating_add(self.cost(v)?))
            }
            _ => self.cost(v),
        }
    }

    fn pattern(&mut self, pattern: &'a str) -> Option<u64> {
        self.patterns.insert(pattern);
        (self.patterns.len() <= PATTERNS_MAX).then(|| (pattern.len() as u64).saturating_add(1))
    }
}
