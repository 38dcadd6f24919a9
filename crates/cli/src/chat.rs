//! What a prompt is made with: the chat template, its variables, the system's message. Used by `run` and `template`.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use octet_engine::template::{ChatInput, ChatTemplate};
use octet_engine::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

/// How messages become a prompt.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Prompt")]
pub struct ChatArgs {
    /// Instructions that stand before the conversation. Also -sys.
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// A Jinja chat template instead of the model's own.
    #[arg(long, value_name = "FILE")]
    chat_template: Option<PathBuf>,
    /// Variables of the chat template, as a JSON object: '{"enable_thinking": false}'.
    #[arg(long, alias = "kwargs", alias = "default-chat-template-kwargs", value_name = "JSON", value_parser = object)]
    chat_template_kwargs: Option<Map<String, Value>>,
    /// Answer without thinking first (enable_thinking = false), where the model can.
    #[arg(long)]
    no_think: bool,
}

fn object(text: &str) -> Result<Map<String, Value>, String> {
    match serde_json::from_str(text) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(other) => Err(format!("expected a JSON object, got {other}")),
        Err(e) => Err(format!("not JSON: {e}")),
    }
}

impl ChatArgs {
    /// The template's own variables.
    pub fn variables(&self) -> Map<String, Value> {
        let mut variables = self.chat_template_kwargs.clone().unwrap_or_default();
        if self.no_think {
            variables.insert("enable_thinking".into(), false.into());
        }
        variables
    }

    /// The template that is asked for, or the model's own.
    pub fn template(
        &self,
        model: &octet_weights::Model,
        tokenizer: &Tokenizer,
    ) -> anyhow::Result<ChatTemplate> {
        match &self.chat_template {
            None => Ok(ChatTemplate::from_metadata(&model.metadata, tokenizer)?),
            Some(path) => ChatTemplate::new(&read(path)?, &model.metadata, tokenizer)
                .with_context(|| path.display().to_string()),
        }
    }
}

/// A file's text.
pub fn read(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| path.display().to_string())
}

/// A file's JSON.
pub fn read_json(path: &Path) -> anyhow::Result<Value> {
    serde_json::from_str(&read(path)?).with_context(|| format!("{}: not JSON", path.display()))
}

/// A conversation: everything that the template sees.
#[derive(Debug, Clone, Default)]
pub struct Conversation {
    /// Stands first, where there is one.
    pub system: Option<String>,
    /// Without the system's.
    pub messages: Vec<Value>,
    /// JSON schemas.
    pub tools: Option<Vec<Value>>,
    /// The template's own variables.
    pub variables: Map<String, Value>,
}

impl Conversation {
    /// A message at the end.
    pub fn say(&mut self, role: &str, content: &str) {
        self.messages.push(json!({"role": role, "content": content}));
    }

    /// What the template takes.
    pub fn input(&self, add_generation_prompt: bool) -> ChatInput {
        let system = self.system.iter().map(|text| json!({"role": "system", "content": text}));
        ChatInput {
            messages: system.chain(self.messages.iter().cloned()).collect(),
            tools: self.tools.clone(),
            add_generation_prompt,
            variables: self.variables.clone(),
            now_s: None,
        }
    }

    /// All of it in a form that [`Conversation::load`] and other programs read.
    pub fn save(&self) -> Value {
        json!({"messages": self.input(false).messages, "tools": self.tools})
    }

    /// Takes over the messages and tools of a file: a list of messages, or an object with `messages` and `tools`.
    pub fn load(&mut self, file: Value) -> anyhow::Result<()> {
        let (messages, tools) = match file {
            Value::Array(messages) => (messages, None),
            Value::Object(mut o) => match (o.remove("messages"), o.remove("tools")) {
                (Some(Value::Array(m)), Some(Value::Array(t))) => (m, Some(t)),
                (Some(Value::Array(m)), None | Some(Value::Null)) => (m, None),
                (Some(Value::Array(_)), Some(_)) => anyhow::bail!("'tools' is not a list"),
                _ => anyhow::bail!("expected a list of messages in 'messages'"),
            },
            _ => anyhow::bail!("expected a list of messages, or an object with one in 'messages'"),
        };
        self.messages = messages;
        if let Some(i) = self.messages.iter().position(|m| !m["role"].is_string()) {
            anyhow::bail!("messages[{i}] has no role");
        }
        // The first system message is ours to change; its text only, for a list of parts is more than that.
        let first = self.messages.first();
        let system =
            first.filter(|m| m["role"] == "system").and_then(|m| m["content"].as_str()).map(String::from);
        if system.is_some() {
            self.messages.remove(0);
            self.system = system;
        }
        if tools.is_some() {
            self.tools = tools;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_can_be_loaded() {
        let mut c = Conversation { system: Some("Be brief.".into()), ..Default::default() };
        c.say("user", "Hi");
        c.messages.push(json!({"role": "assistant", "content": "Hello", "reasoning_content": "A greeting."}));
        let mut d = Conversation::default();
        d.load(c.save()).unwrap();
        assert_eq!((d.system, d.messages), (c.system, c.messages));
    }

    #[test]
    fn files_that_are_no_conversation_are_refused() {
        let load = |v: Value| Conversation::default().load(v).unwrap_err().to_string();
        assert!(load(json!("hi")).contains("list of messages"));
        assert!(load(json!({"messages": 1})).contains("'messages'"));
        assert!(load(json!([{"content": "hi"}])).contains("messages[0]"));
        assert!(load(json!({"messages": [], "tools": 5})).contains("'tools'"));
    }
}
