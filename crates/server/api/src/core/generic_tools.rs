//! Tool calls for models whose chat template has no known syntax: tools are described in the instructions, and calls and results are text
//! in Hermes' syntax.

use std::borrow::Cow;

use serde_json::{Value, json};

use super::{Chat, Message, Part, Role, Tool, ToolChoice};
use crate::rules::Warning;

/// Writes a value as JSON text, as the model knows it from its training.
pub type WriteJson = fn(&Value) -> String;

impl Chat {
    /// This conversation with its tools, calls and results as text.
    ///
    /// The tools are described in the first instructions, which are added if necessary. A call is `<tool_call>`, a JSON object with
    /// `name` and `arguments`, `</tool_call>`, after the text of its message. The results are one user turn, each between
    /// `<tool_response>` tags. A conversation without any of these is unchanged.
    pub fn with_generic_tools(&self, write: WriteJson) -> (Cow<'_, Self>, Option<Warning>) {
        let offered = !self.tools.is_empty() && self.tool_choice != ToolChoice::None;
        let has_history = self.messages.iter().any(|m| m.role == Role::Tool || !m.tool_calls.is_empty());
        if !offered && !has_history {
            let mut without = Cow::Borrowed(self);
            if !self.tools.is_empty() {
                without.to_mut().tools.clear();
            }
            return (without, None);
        }
        let mut messages: Vec<Message> = Vec::with_capacity(self.messages.len() + 1);
        let mut answers_open = false;
        for message in &self.messages {
            let mut message = message.clone();
            if message.role == Role::Tool {
                let answer = format!("<tool_response>\n{}\n</tool_response>", text_of(&message));
                message.content.retain(|part| matches!(part, Part::Image { .. }));
                if answers_open && let Some(last) = messages.last_mut() {
                    last.content.push(Part::text(format!("\n{answer}")));
                } else {
                    messages.push(Message::text(Role::User, answer));
                }
                // Its images follow it.
                messages.last_mut().into_iter().for_each(|last| last.content.append(&mut message.content));
                answers_open = true;
                continue;
            }
            answers_open = false;
            for (i, call) in std::mem::take(&mut message.tool_calls).iter().enumerate() {
                let call = write(&json!({"name": call.name, "arguments": call.arguments_object()}));
                let separator = if i == 0 && message.content.is_empty() { "" } else { "\n" };
                message.content.push(Part::text(format!("{separator}<tool_call>\n{call}\n</tool_call>")));
            }
            messages.push(message);
        }
        if offered {
            describe(&mut messages, &self.tools, write, HERMES, "comes between <tool_response> tags");
        }
        let what = "is described in the instructions, in Hermes' syntax: the model's chat template has no known call syntax";
        let chat = Self { messages, tools: Vec::new(), ..self.clone() };
        (Cow::Owned(chat), Some(Warning::new("tools", what)))
    }

    /// This conversation with its tools described in the first instructions; `example` is a call in the model's syntax. Calls and
    /// results are unchanged.
    pub fn with_described_tools(&self, write: WriteJson, example: &str) -> (Cow<'_, Self>, Option<Warning>) {
        if self.tools.is_empty() {
            return (Cow::Borrowed(self), None);
        }
        let mut chat = Self { tools: Vec::new(), ..self.clone() };
        if self.tool_choice == ToolChoice::None {
            return (Cow::Owned(chat), None);
        }
        describe(&mut chat.messages, &self.tools, write, example, "comes in the next turn");
        let what = "is described in the instructions: the model's chat template has a call syntax but shows the model no tools";
        (Cow::Owned(chat), Some(Warning::new("tools", what)))
    }
}

/// A call in Hermes' syntax.
const HERMES: &str =
    "<tool_call>\n{\"name\": \"tool's name\", \"arguments\": {\"argument's name\": \"value\"}}\n</tool_call>";

/// The text of a message, without its images.
fn text_of(message: &Message) -> String {
    message.content.iter().filter_map(Part::as_text).collect()
}

/// Adds the tools to the first instructions, with an example call and the form of results.
fn describe(messages: &mut Vec<Message>, tools: &[Tool], write: WriteJson, example: &str, answers: &str) {
    let mut text = String::from("You can call these tools. Each is described by a JSON object:\n<tools>\n");
    for tool in tools {
        let mut function = json!({"name": tool.name});
        if let Some(description) = &tool.description {
            function["description"] = description.as_str().into();
        }
        function["parameters"] = Value::Object(tool.parameters.clone());
        text.push_str(&write(&function));
        text.push('\n');
    }
    text.push_str(&format!(
        "</tools>\nTo call a tool, write its name and its arguments in this form, and nothing after it:\n{example}\n\
         What the tool returned {answers}. Answer without a call if no tool helps."
    ));
    match messages.first_mut().filter(|m| matches!(m.role, Role::System | Role::Developer)) {
        Some(first) => first.content.push(Part::text(format!("\n\n{text}"))),
        None => messages.insert(0, Message::text(Role::System, text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{ToolCall, ToolOrigin};

    fn compact(value: &Value) -> String {
        value.to_string()
    }

    fn weather() -> Tool {
        let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}});
        Tool {
            name: "weather".into(),
            description: Some("The weather of a city".into()),
            parameters: parameters.as_object().expect("an object").clone(),
            strict: None,
            cache: None,
            origin: ToolOrigin::default(),
        }
    }

    #[test]
    fn tools_calls_and_answers_become_text() {
        let mut call = Message::text(Role::Assistant, "Let me look.");
        call.tool_calls = vec![ToolCall {
            id: "1".into(),
            name: "weather".into(),
            arguments: "{\"city\":\"Köln\"}".into(),
            cache: None,
        }];
        let answer =
            |text: &str| Message { tool_call_id: Some("1".into()), ..Message::text(Role::Tool, text) };
        let messages = vec![Message::text(Role::User, "And?"), call, answer("rain"), answer("12 °C")];
        let chat = Chat { messages, tools: vec![weather()], ..Chat::default() };
        let (chat, warning) = chat.with_generic_tools(compact);
        assert!(warning.expect("it says so").message.starts_with("'tools' is described"));
        assert!(chat.tools.is_empty());
        let texts: Vec<(Role, String)> = chat.messages.iter().map(|m| (m.role, text_of(m))).collect();
        assert!(texts[0].0 == Role::System && texts[0].1.contains("{\"name\":\"weather\",\"description\""));
        assert_eq!(texts[1], (Role::User, "And?".into()));
        let called = "Let me look.\n<tool_call>\n{\"name\":\"weather\",\"arguments\":{\"city\":\"Köln\"}}\n</tool_call>";
        assert_eq!(texts[2], (Role::Assistant, called.into()));
        let answers = "<tool_response>\nrain\n</tool_response>\n<tool_response>\n12 °C\n</tool_response>";
        assert_eq!(texts[3], (Role::User, answers.into()));
        assert_eq!(texts.len(), 4);
        assert!(chat.messages.iter().all(|m| m.tool_calls.is_empty()));
    }

    #[test]
    fn a_conversation_without_tools_stays() {
        let chat = Chat { messages: vec![Message::text(Role::User, "Hi")], ..Chat::default() };
        assert_eq!(chat.with_generic_tools(compact), (Cow::Borrowed(&chat), None));
        let refused = Chat { tools: vec![weather()], tool_choice: ToolChoice::None, ..chat.clone() };
        assert_eq!(refused.with_generic_tools(compact).0.into_owned().messages, chat.messages);
    }
}
