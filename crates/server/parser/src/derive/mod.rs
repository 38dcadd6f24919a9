//! Reads off a chat template how its model writes calls: small chats are rendered with made-up calls, and what becomes of them is
//! compared. Called by the server when it loads a model.
//!
//! A chat ends once with a text and once with calls: behind what both have in common stands what the model writes to call
//! (`Prober::region`). In it the made-up names, ids and values are found again, and what stands around them is the syntax (`split`).
//! What no rendering shows is in the table of `known`.

pub(crate) mod known;
mod split;

use serde_json::{Value, json};

use crate::reasoning::ReasoningTags;
use crate::syntax::{Arguments, CallSyntax, JsonType, Tagged};

/// What was read off a template.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Derived {
    /// How calls are written; `None` where neither the template nor the table tells.
    pub calls: Option<CallSyntax>,
    /// The variable by which tools reach the prompt; `None` where they do not.
    pub tools: Option<ToolsVariable>,
    /// The tags between which its model writes reasoning; `None` where it does not reason, or not between tags.
    pub reasoning: Option<ReasoningTags>,
    /// How to give the template earlier calls.
    pub history: History,
}

/// The variable that a template reads tools from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolsVariable {
    /// `tools`, as nearly all do.
    Tools,
    /// `xml_tools`, as SmolLM3 does.
    XmlTools,
}

/// How a template takes earlier calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct History {
    /// It does not write calls: they are given to it as text.
    pub as_text: bool,
    /// How it takes ids.
    pub ids: Ids,
    /// A message with calls and no text has `null` as its content, not an empty text.
    pub null_content: bool,
    /// A message has one call at most.
    pub single: bool,
    /// Where it reads a message's reasoning from.
    pub reasoning: ReasoningPlace,
}

/// Where a template reads a message's reasoning from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReasoningPlace {
    /// A key of the message.
    Key(&'static str),
    /// A part of its content, `{"type": "thinking", "thinking": ...}`: Mistral.
    Part,
}

impl Default for ReasoningPlace {
    /// As most do.
    fn default() -> Self {
        Self::Key("reasoning_content")
    }
}

impl ReasoningPlace {
    /// Puts a text where the template reads it.
    pub fn put(self, message: &mut Value, text: Value) {
        match self {
            Self::Key(key) => message[key] = text,
            Self::Part => {
                let said = match message["content"].take() {
                    Value::Array(parts) => parts,
                    Value::String(said) if !said.is_empty() => vec![json!({"type": "text", "text": said})],
                    _ => Vec::new(),
                };
                let thought = json!({"type": "thinking", "thinking": text});
                message["content"] = std::iter::once(thought).chain(said).collect();
            }
        }
    }
}

/// The form of the ids that a template takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Ids {
    /// Any.
    #[default]
    Any,
    /// Nine letters and digits: Mistral.
    Short,
    /// `functions.NAME:NUMBER`, which is all that the template writes of the name: Kimi K2.
    Numbered,
}

/// Renders messages with tools, given by the variable, to a prompt without the beginning of an answer; `None` where the template
/// refuses them.
pub type Render<'a> = &'a dyn Fn(&[Value], ToolsVariable, &[Value]) -> Option<String>;

/// Reads it off the template `source`, which `render` renders. `stops` are the texts of tokens that end an answer.
pub fn derive(source: &str, render: Render<'_>, stops: &[&str]) -> Derived {
    let shown = |variable: &ToolsVariable| {
        render(&[user()], *variable, &tools()).is_some_and(|p| NAMES.iter().all(|n| p.contains(n)))
    };
    let tools = [ToolsVariable::Tools, ToolsVariable::XmlTools].into_iter().find(shown);
    let mut prober = Prober {
        render,
        stops,
        variable: tools.unwrap_or(ToolsVariable::Tools),
        history: History::default(),
        reasoning_ends: None,
    };
    let (place, tags) = prober.reasoning();
    let reasoning = tags.or_else(|| ReasoningTags::named_in(source));
    prober.reasoning_ends = reasoning.as_ref().map(|r| r.close.clone());
    for ids in [Ids::Any, Ids::Numbered] {
        for null_content in [false, true] {
            prober.history = History { ids, null_content, ..History::default() };
            if let Some(calls) = prober.calls() {
                let mut history = prober.history;
                history.single = calls.separator.is_none();
                if ids == Ids::Any && !prober.takes_long_ids() {
                    history.ids = Ids::Short;
                }
                history.reasoning = place;
                return Derived { calls: Some(calls), tools, reasoning, history };
            }
        }
    }
    prober.history = History::default();
    let is_harmony = known::is_harmony(source);
    let history =
        History { as_text: !is_harmony, single: is_harmony, reasoning: place, ..History::default() };
    Derived { calls: known::named_in(source), tools, reasoning, history }
}

// Words that no template holds and no vocabulary knows as one.
const TEXT: &str = "zqtext";
const THOUGHT: &str = "zqthought";
const NAMES: [&str; 2] = ["zqalpha", "zqbeta"];
const IDS: [&str; 2] = ["zqid00001", "zqid00002"];
const KEYS: [&str; 2] = ["zqkey", "zqother"];
const VALUE: &str = "zqvalue";
const NUMBER: i64 = 73501;

fn user() -> Value {
    json!({"role": "user", "content": "hi"})
}

fn tools() -> Vec<Value> {
    let text = json!({"type": "string", "description": "-"});
    let properties = json!({KEYS[0]: text, KEYS[1]: {"type": "integer", "description": "-"}});
    let parameters = json!({"type": "object", "properties": properties, "required": []});
    let tool = |name: &&str| json!({"type": "function", "function": {"name": name, "description": "-", "parameters": parameters}});
    NAMES.iter().map(tool).collect()
}

/// One argument of the calls that are made up.
fn argument(value: impl Into<Value>) -> Value {
    json!({KEYS[0]: value.into()})
}

struct Prober<'a> {
    render: Render<'a>,
    stops: &'a [&'a str],
    variable: ToolsVariable,
    history: History,
    /// The tag behind reasoning: a call stands behind it.
    reasoning_ends: Option<String>,
}

impl Prober<'_> {
    fn prompt(&self, answer: Value) -> Option<String> {
        (self.render)(&[user(), answer], self.variable, &tools())
    }

    /// An answer that calls the made-up functions with these arguments.
    fn answer(&self, calls: &[Value], ids: [&str; 2]) -> Value {
        let call = |(i, arguments): (usize, &Value)| {
            let id = match self.history.ids {
                Ids::Numbered => format!("functions.{}:{i}", NAMES[i]),
                Ids::Any | Ids::Short => ids[i].to_string(),
            };
            json!({"type": "function", "id": id, "function": {"name": NAMES[i], "arguments": arguments}})
        };
        let calls: Vec<Value> = calls.iter().enumerate().map(call).collect();
        let content = if self.history.null_content { Value::Null } else { "".into() };
        json!({"role": "assistant", "content": content, "tool_calls": calls})
    }

    fn takes_long_ids(&self) -> bool {
        let long = ["call_0123456789abcdef0123456789abcdef", ""];
        self.prompt(self.answer(&[argument(VALUE)], long)).is_some()
    }

    /// Where the template reads reasoning from, and the tags that it writes around it. Some write it only in messages with calls.
    fn reasoning(&self) -> (ReasoningPlace, Option<ReasoningTags>) {
        let said = json!({"role": "assistant", "content": TEXT});
        let answers = [said, self.answer(&[argument(VALUE)], IDS)];
        let mut shown = None;
        let keys = ["reasoning_content", "thinking", "reasoning"].map(ReasoningPlace::Key);
        for place in keys.into_iter().chain([ReasoningPlace::Part]) {
            for answer in &answers {
                let mut answer = answer.clone();
                place.put(&mut answer, THOUGHT.into());
                let Some(prompt) = self.prompt(answer).filter(|p| p.contains(THOUGHT)) else { continue };
                if let Some(tags) = ReasoningTags::around(&prompt, THOUGHT) {
                    return (place, Some(tags));
                }
                // A list of parts may also be printed as it is.
                if place != ReasoningPlace::Part {
                    shown.get_or_insert(place);
                }
            }
        }
        (shown.unwrap_or_default(), None)
    }

    /// What the model writes to make these calls, white space around it left out.
    fn region(&self, calls: &[Value]) -> Option<String> {
        let text = self.prompt(json!({"role": "assistant", "content": TEXT}))?;
        let called = self.prompt(self.answer(calls, IDS))?;
        let same = text.bytes().zip(called.bytes()).take_while(|(a, b)| a == b).count();
        let mut from = called.floor_char_boundary(same);
        // Not in the middle of a tag.
        if let Some(at) = called[..from].rfind(['<', '['])
            && !called[at..from].contains(['>', ']', '\n'])
        {
            from = at;
        }
        let mut region = &called[from..];
        if let Some(end) = self.reasoning_ends.as_ref().and_then(|e| Some(region.find(e)? + e.len())) {
            region = &region[end..];
        }
        // It ends with what ends an answer of text, or any answer.
        let last = region.rfind("zq").or_else(|| region.rfind(&NUMBER.to_string()))?;
        let behind = text.rsplit_once(TEXT).map_or("", |(_, behind)| behind);
        let ends = self.stops.iter().copied().chain(split::first_tags(behind));
        let end = ends.filter_map(|e| Some(last + region[last..].find(e)?)).min().unwrap_or(region.len());
        Some(region[..end].trim().to_string())
    }

    fn calls(&self) -> Option<CallSyntax> {
        let one = self.region(&[argument(VALUE)])?;
        if known::is_harmony(&one) {
            return None; // its calls are messages of their own
        }
        if !one.contains(NAMES[0]) || !one.contains(VALUE) {
            return None;
        }
        let arguments = self.arguments(&one)?;
        let two = self.region(&[argument(VALUE), argument(VALUE)]);
        let two = two.filter(|t| NAMES.iter().all(|n| t.contains(n)));
        let syntax = split::syntax(&one, two.as_deref(), &arguments)?;
        // A call that begins like any text cannot be distinguished from text.
        let is_clear = syntax.trigger().starts_with(['<', '[', '{', ']']) || syntax.trigger().len() > 2;
        is_clear.then_some(syntax)
    }

    /// How arguments are written, by a call with one.
    fn arguments(&self, one: &str) -> Option<Arguments> {
        let (key, quotes) = (KEYS[0], ['\'', '"']);
        if split::json_at(one, |v| *v == argument(VALUE)).is_some() {
            return Some(Arguments::Json);
        }
        if quotes.iter().any(|q| one.contains(&format!("{key}={q}{VALUE}{q}"))) {
            return Some(Arguments::Python);
        }
        if one.contains(&format!("{key}:<|\"|>{VALUE}<|\"|>")) {
            return Some(Arguments::Gemma);
        }
        let two = self.region(&[json!({KEYS[0]: VALUE, KEYS[1]: VALUE})])?;
        let (open, close) = split::around_parameters(&two)?;
        let middle = |value: Value, written: &str| {
            let text = self.region(&[argument(value)])?;
            split::between(&text, key, written).filter(|m| !m.is_empty()).map(str::to_string)
        };
        let text = middle(VALUE.into(), VALUE)?;
        let mut others = Vec::new();
        for (of, value, written) in [
            (JsonType::Number, json!(NUMBER), "73501"),
            (JsonType::Boolean, json!([true]), "["),
            (JsonType::Array, json!([VALUE]), "["),
            (JsonType::Object, json!({VALUE: NUMBER}), "{"),
        ] {
            // A word like `true` may be in the tags: what stands before it stands before a list as well.
            others.push((of, middle(value, written)?));
        }
        Some(Arguments::Tagged(Tagged { open, text, others, close }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Format, ToolSyntax};

    #[test]
    fn tools_may_reach_the_prompt_by_another_variable() {
        let source = "{{ xml_tools }} call as <tool_call>{...}</tool_call>";
        let render = |messages: &[Value], variable: ToolsVariable, tools: &[Value]| {
            let shown =
                if variable == ToolsVariable::XmlTools { json!(tools).to_string() } else { String::new() };
            let texts = messages.iter().map(|m| m["content"].as_str().unwrap_or_default());
            Some(shown + &texts.collect::<Vec<_>>().join("\n"))
        };
        let derived = derive(source, &render, &[]);
        assert_eq!(derived.tools, Some(ToolsVariable::XmlTools));
        assert!(derived.history.as_text);
        assert_eq!(Format::derived(source, &derived).tools, ToolSyntax::Hermes);
    }

    #[test]
    fn a_template_without_calls_has_no_syntax() {
        let render = |messages: &[Value], _: ToolsVariable, _: &[Value]| {
            messages[0]["content"].as_str().map(String::from)
        };
        assert_eq!(derive("{{ messages[0].content }}", &render, &[]).calls, None);
        assert_eq!(derive("", &|_, _, _| None, &[]).tools, None);
    }
}
