//! Converts a conversation to the form that chat templates take. Called by the server before it renders a prompt.

use std::borrow::Cow;
use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::{Chat, Message, Part, Role, Tool, ToolCall};
use crate::ApiError;
use crate::rules::{self, Warning};

/// The roles that a template accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Roles {
    /// Where it accepts instructions.
    pub system: SystemPlace,
    /// It refuses two adjacent user messages.
    pub alternating: bool,
    /// After a tool result it accepts the model's answer only: it refuses a user message there.
    pub answers_results: bool,
}

/// Where a template accepts instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SystemPlace {
    /// Anywhere.
    Anywhere,
    /// As the first message only.
    First,
    /// Nowhere: it has no system role.
    Nowhere,
}

impl Default for Roles {
    fn default() -> Self {
        Self { system: SystemPlace::Anywhere, alternating: false, answers_results: false }
    }
}

/// The inputs of a chat template.
#[derive(Debug, Clone, PartialEq)]
pub struct TemplateChat {
    /// `{"role", "content", ...}` each; arguments of calls are mappings.
    pub messages: Vec<Value>,
    /// `{"type": "function", "function": {"name", "description", "parameters"}}` each; `None` for none.
    pub tools: Option<Vec<Value>>,
    /// The client's variables, with `enable_thinking` and `reasoning_effort` from its other settings.
    pub variables: Map<String, Value>,
    /// End the prompt with the beginning of an answer; else it ends with the last message, or within it.
    pub add_generation_prompt: bool,
    /// Parts of the conversation that the model does not see.
    pub warnings: Vec<Warning>,
}

/// A message being converted.
struct Turn<'a> {
    role: Role,
    texts: Vec<Cow<'a, str>>,
    /// The source of its calls, reasoning and names.
    message: Option<&'a Message>,
}

impl Chat {
    /// Converts this conversation for a chat template.
    ///
    /// Instructions (system and developer messages) stay where they are, with these exceptions. All but the last depend only on the
    /// messages before them, so a longer conversation keeps the shorter one's prompt as its prefix:
    ///
    /// - Leading instructions are merged, separated by a blank line.
    /// - A later one becomes a user message within `<system>` and `</system>`, if the template accepts instructions only at the
    ///   beginning.
    /// - Leading ones are prepended to the first user message, if the template accepts none.
    /// - Adjacent user messages are merged, if the template refuses them.
    /// - A user message after tool results is appended to that of the last call, within `<user>` and `</user>`, if the template refuses
    ///   it there. It comes before the template's end of the result. Lines of results that begin with such a mark begin with `&lt;`
    ///   instead of `<`, so that results cannot contain what looks like the user's words.
    ///
    /// Several texts of a message are a list of `{"type": "text", "text": ...}`. An image is replaced by a text that says that it is
    /// not shown.
    ///
    /// # Errors
    /// An image in the current user message: the answer would ignore it.
    pub fn template(&self, roles: Roles) -> Result<TemplateChat, ApiError> {
        let mut warnings = Vec::new();
        let turns = self.turns(roles, &mut warnings)?;
        let mut messages: Vec<Value> = Vec::with_capacity(turns.len());
        // The called tools by call id: some templates name them with the results.
        let mut called: HashMap<&str, &str> = HashMap::new();
        for turn in turns {
            let mut json = turn.to_json();
            if let Some(message) = turn.message {
                called.extend(message.tool_calls.iter().map(|c| (c.id.as_str(), c.name.as_str())));
                if message.role == Role::Tool
                    && message.name.is_none()
                    && let Some(name) = message.tool_call_id.as_deref().and_then(|id| called.get(id))
                {
                    json["name"] = (*name).into();
                }
            }
            messages.push(json);
        }
        let mut variables = self.template_kwargs.clone();
        if let Some(enabled) = self.reasoning.enabled {
            variables.entry("enable_thinking").or_insert(enabled.into());
        }
        if let Some(effort) = self.reasoning.effort {
            variables.entry("reasoning_effort").or_insert(effort.name().into());
        }
        Ok(TemplateChat {
            messages,
            tools: (!self.tools.is_empty()).then(|| self.tools.iter().map(Tool::to_json).collect()),
            variables,
            add_generation_prompt: !self.continue_final && !self.no_answer,
            warnings,
        })
    }

    /// The messages as a template with these roles accepts them.
    fn turns(&self, roles: Roles, warnings: &mut Vec<Warning>) -> Result<Vec<Turn<'_>>, ApiError> {
        let asked = self.current_turn();
        let leading = self.messages.iter().take_while(|m| is_instruction(m)).count();
        let mut out: Vec<Turn<'_>> = Vec::with_capacity(self.messages.len());
        let mut instructions = Vec::new();
        for message in &self.messages[..leading] {
            instructions.push(texts(message, false, warnings)?);
        }
        // A single one keeps its parts: the template has a form for them.
        let mut system = match instructions.len() {
            0 => None,
            1 => instructions.pop(),
            _ => {
                let texts: Vec<String> = instructions.iter().map(|t| t.join("\n")).collect();
                Some(vec![texts.join("\n\n").into()])
            }
        };
        if roles.system != SystemPlace::Nowhere
            && let Some(texts) = system.take()
        {
            out.push(Turn { role: Role::System, texts, message: None });
        }
        for (i, message) in self.messages.iter().enumerate().skip(leading) {
            let mut texts = texts(message, asked.contains(&i), warnings)?;
            if roles.answers_results && message.role == Role::Tool {
                texts.iter_mut().for_each(escape_marks);
            }
            let mut turn = if !is_instruction(message) {
                Turn { role: message.role, texts, message: Some(message) }
            } else if roles.system == SystemPlace::Anywhere {
                Turn { role: Role::System, texts, message: None }
            } else {
                let text = format!("<system>\n{}\n</system>", texts.join("\n"));
                Turn { role: Role::User, texts: vec![text.into()], message: None }
            };
            if turn.role == Role::User
                && let Some(texts) = system.take()
            {
                turn.prepend(texts);
            }
            if roles.answers_results
                && turn.role == Role::User
                && out.last().is_some_and(|last| last.role == Role::Tool)
            {
                sort_last_results(&mut out);
                let Some(result) = out.last_mut() else { continue };
                result.append(&turn);
                continue;
            }
            match out
                .last_mut()
                .filter(|last| roles.alternating && last.role == Role::User && turn.role == Role::User)
            {
                Some(last) => {
                    turn.prepend(std::mem::take(&mut last.texts));
                    last.texts = turn.texts;
                }
                None => out.push(turn),
            }
        }
        // There is no user message yet.
        out.extend(system.map(|texts| Turn { role: Role::User, texts, message: None }));
        Ok(out)
    }

    /// The messages of the current user turn: those after the last answer, tool results included.
    fn current_turn(&self) -> std::ops::Range<usize> {
        let end = self.messages.len() - usize::from(self.continue_final && !self.messages.is_empty());
        let answered = self.messages[..end].iter().rposition(|m| m.role == Role::Assistant);
        let begin = answered.map_or(0, |i| i + 1);
        let tools = self.messages[begin..end].iter().position(|m| m.role == Role::Tool);
        begin..tools.map_or(end, |n| begin + n)
    }
}

fn is_instruction(message: &Message) -> bool {
    matches!(message.role, Role::System | Role::Developer)
}

/// The texts of a message. An image in the current turn is refused, others are replaced by a text.
fn texts<'a>(
    message: &'a Message,
    is_asked: bool,
    warnings: &mut Vec<Warning>,
) -> Result<Vec<Cow<'a, str>>, ApiError> {
    let text = |part: &'a Part| match part {
        Part::Text { text, .. } => Ok(Cow::Borrowed(text.as_str())),
        Part::Image { image, .. } => {
            let what = if image.is_document() { "a document" } else { "an image" };
            let why = format!("is {what}, and this model reads text only");
            if is_asked {
                return Err(ApiError::invalid(image.at.clone(), format!("'{}' {why}; send text", image.at)));
            }
            rules::warn(warnings, Warning::new(image.at.clone(), format_args!("{why}: it is left out")));
            Ok(Cow::Owned(format!("[Here was {what}. This model reads text only.]")))
        }
    };
    message.content.iter().map(text).collect()
}

/// Escapes what begins a line like the marks around users' words and instructions.
fn escape_marks(text: &mut Cow<'_, str>) {
    const MARKS: [&str; 4] = ["<user>", "</user>", "<system>", "</system>"];
    let is_mark = |line: &str| MARKS.iter().any(|mark| line.starts_with(mark));
    let lines = || text.split_inclusive(['\n', '\r']);
    if lines().any(is_mark) {
        let escaped =
            lines().map(|line| if is_mark(line) { format!("&lt;{}", &line[1..]) } else { line.into() });
        *text = Cow::Owned(escaped.collect());
    }
}

/// Sorts the tool results at the end as their calls are: templates for single calls move each result to its call.
fn sort_last_results(turns: &mut [Turn<'_>]) {
    let first = turns.iter().rposition(|turn| turn.role != Role::Tool).map_or(0, |i| i + 1);
    let (before, results) = turns.split_at_mut(first);
    let Some(message) = before.last().and_then(|turn| turn.message) else { return };
    let places: HashMap<&str, usize> =
        message.tool_calls.iter().enumerate().map(|(i, call)| (call.id.as_str(), i)).collect();
    results.sort_by_key(|result| {
        let id = result.message.and_then(|m| m.tool_call_id.as_deref());
        id.and_then(|id| places.get(id)).copied().unwrap_or(usize::MAX)
    });
}

impl<'a> Turn<'a> {
    /// Prepends texts, separated by a blank line.
    fn prepend(&mut self, mut before: Vec<Cow<'a, str>>) {
        before.append(&mut self.texts);
        self.texts = vec![before.join("\n\n").into()];
    }

    /// Adds a user message to this tool result. Instructions are marked already.
    fn append(&mut self, message: &Turn<'_>) {
        let text = message.texts.join("\n");
        let marked = if message.message.is_some() { format!("<user>\n{text}\n</user>") } else { text };
        self.texts = vec![format!("{}\n\n{marked}", self.texts.join("\n")).into()];
    }

    fn to_json(&self) -> Value {
        let content = match self.texts.as_slice() {
            [] => Value::from(""),
            [one] => Value::from(one.as_ref()),
            many => many.iter().map(|t| json!({"type": "text", "text": t})).collect(),
        };
        let mut out = json!({"role": self.role.name(), "content": content});
        let Some(message) = self.message else { return out };
        if let Some(text) = message.reasoning_text() {
            out["reasoning_content"] = text.into();
        }
        if !message.tool_calls.is_empty() {
            let call = |call: &ToolCall| {
                let function = json!({"name": call.name, "arguments": call.arguments_object()});
                json!({"type": "function", "id": call.id, "function": function})
            };
            out["tool_calls"] = message.tool_calls.iter().map(call).collect();
        }
        if let Some(id) = &message.tool_call_id {
            out["tool_call_id"] = id.as_str().into();
        }
        if let Some(name) = &message.name {
            out["name"] = name.as_str().into();
        }
        out
    }
}

impl Tool {
    /// The tool in the form that models are trained on: always these keys, in this order, so that the same tools make the same prompt
    /// in every dialect. The schema keeps the client's order.
    pub fn to_json(&self) -> Value {
        let mut function = Map::new();
        function.insert("name".into(), self.name.as_str().into());
        if let Some(description) = &self.description {
            function.insert("description".into(), description.as_str().into());
        }
        function.insert("parameters".into(), self.parameters.clone().into());
        json!({"type": "function", "function": function})
    }
}
