//! A conversation in the form that chat templates take. Called by the server before it renders a prompt.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::{Chat, Message, Part, Role, Tool};
use crate::ApiError;

/// How a message of several texts is given to the template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentForm {
    /// As a list of `{"type": "text", "text": ...}`, which most templates join without a break. transformers does this.
    Parts,
    /// As one string, a line each: for templates that take nothing else.
    Text,
}

/// What a chat template is rendered with.
#[derive(Debug, Clone, PartialEq)]
pub struct TemplateChat {
    /// `{"role", "content", ...}` each, arguments of calls as mappings.
    pub messages: Vec<Value>,
    /// `{"type": "function", "function": {"name", "description", "parameters"}}` each; `None` for none.
    pub tools: Option<Vec<Value>>,
    /// The client's variables, and `enable_thinking` and `reasoning_effort` where it set those otherwise.
    pub variables: Map<String, Value>,
    /// End with the beginning of an answer; else the prompt ends within the last message.
    pub add_generation_prompt: bool,
}

impl Chat {
    /// This conversation for a chat template.
    ///
    /// Developers' messages become the system's, and leading instructions become one message (a blank line between
    /// them): most templates know one system message, in front.
    ///
    /// # Errors
    /// Pictures are refused by name, and calls whose arguments are no JSON object.
    pub fn template(&self, form: ContentForm) -> Result<TemplateChat, ApiError> {
        let mut messages: Vec<Value> = Vec::with_capacity(self.messages.len());
        let leading = self.messages.iter().take_while(|m| is_instruction(m)).count();
        if leading > 1 {
            let texts: Vec<String> =
                self.messages[..leading].iter().map(|m| joined(m, "\n")).collect::<Result<_, _>>()?;
            messages.push(json!({"role": "system", "content": texts.join("\n\n")}));
        }
        let merged = if leading > 1 { leading } else { 0 };
        // The tools that were called, by the calls' ids: some templates name them with their answers.
        let mut called: HashMap<&str, &str> = HashMap::new();
        for message in &self.messages[merged..] {
            let mut json = json_message(message, form)?;
            called.extend(message.tool_calls.iter().map(|c| (c.id.as_str(), c.name.as_str())));
            if message.role == Role::Tool
                && message.name.is_none()
                && let Some(name) = message.tool_call_id.as_deref().and_then(|id| called.get(id))
            {
                json["name"] = (*name).into();
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
            add_generation_prompt: !self.continue_final,
        })
    }
}

fn is_instruction(message: &Message) -> bool {
    matches!(message.role, Role::System | Role::Developer)
}

/// The texts of a message.
fn texts(message: &Message) -> Result<Vec<&str>, ApiError> {
    message
        .content
        .iter()
        .map(|part| match part {
            Part::Text { text, .. } => Ok(text.as_str()),
            Part::Image { image, .. } => Err(ApiError::invalid(
                image.at.clone(),
                format!("{}: images are not supported yet; send text", image.at),
            )),
        })
        .collect()
}

fn joined(message: &Message, separator: &str) -> Result<String, ApiError> {
    Ok(texts(message)?.join(separator))
}

fn json_message(message: &Message, form: ContentForm) -> Result<Value, ApiError> {
    let texts = texts(message)?;
    let content = match (form, texts.as_slice()) {
        (_, []) => Value::from(""),
        (_, [one]) => Value::from(*one),
        (ContentForm::Text, many) => many.join("\n").into(),
        (ContentForm::Parts, many) => many.iter().map(|t| json!({"type": "text", "text": t})).collect(),
    };
    let role = if is_instruction(message) { Role::System } else { message.role };
    let mut out = json!({"role": role.name(), "content": content});
    if let Some(text) = message.reasoning_text() {
        out["reasoning_content"] = text.into();
    }
    if !message.tool_calls.is_empty() {
        out["tool_calls"] = message
            .tool_calls
            .iter()
            .map(|call| {
                let arguments = call.arguments_object()?;
                let function = json!({"name": call.name, "arguments": arguments});
                Ok(json!({"type": "function", "id": call.id, "function": function}))
            })
            .collect::<Result<_, ApiError>>()?;
    }
    if let Some(id) = &message.tool_call_id {
        out["tool_call_id"] = id.as_str().into();
    }
    if let Some(name) = &message.name {
        out["name"] = name.as_str().into();
    }
    Ok(out)
}

impl Tool {
    /// The tool as models are trained to see it: always these keys, in this order, so that the same tools make the same
    /// prompt in every dialect. The schema keeps the client's order.
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
