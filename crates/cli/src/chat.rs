//! The inputs of a prompt: chat template, variables, system message.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::Args;
use octet_engine::template::{ChatInput, ChatTemplate};
use octet_engine::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

use crate::maker::Opening;
use crate::stderr::note;

/// Flags for making prompts from messages.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Prompt")]
pub struct ChatArgs {
    /// System message. Also -sys.
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Jinja chat template instead of the model's own.
    #[arg(long, value_name = "FILE")]
    chat_template: Option<PathBuf>,
    /// Variables for the chat template, as a JSON object: '{"enable_thinking": false}'.
    #[arg(long, alias = "kwargs", alias = "default-chat-template-kwargs", value_name = "JSON", value_parser = object)]
    chat_template_kwargs: Option<Map<String, Value>>,
    /// Answer without thinking first (enable_thinking = false), if the model can.
    #[arg(long)]
    no_think: bool,
}

/// A JSON object as typed.
pub fn object(text: &str) -> Result<Map<String, Value>, String> {
    match serde_json::from_str(text) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(other) => Err(format!("expected a JSON object, got {other}")),
        Err(e) => Err(format!("not JSON: {e}")),
    }
}

impl ChatArgs {
    /// The conversation in a file, or an empty one, with the flags applied.
    pub fn conversation(&self, messages: Option<&Path>) -> anyhow::Result<Conversation> {
        let file = messages.map(Conversation::open).transpose()?;
        let mut chat = file.unwrap_or_default();
        chat.variables.extend(self.chat_template_kwargs.clone().unwrap_or_default());
        if self.no_think {
            chat.variables.insert("enable_thinking".into(), false.into());
        }
        chat.system = self.system.clone().or(chat.system);
        Ok(chat)
    }

    /// A template is given.
    pub fn has_template(&self) -> bool {
        self.chat_template.is_some()
    }

    /// The template from the flags, or the model's own.
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

/// Maximum size of a text; larger ones are surely mistakes.
pub const TEXT_BYTES_MAX: u64 = 64 << 20;

/// Reads a text; errors call its source `name`.
pub fn read_from(from: impl Read, name: &str) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    from.take(TEXT_BYTES_MAX + 1).read_to_end(&mut bytes).with_context(|| name.to_string())?;
    ensure!(bytes.len() as u64 <= TEXT_BYTES_MAX, "{name}: more than {} MiB of text", TEXT_BYTES_MAX >> 20);
    String::from_utf8(bytes).with_context(|| format!("{name}: not UTF-8"))
}

/// Standard input may stay open this long before a note says what the command waits for.
const STDIN_WAIT: Duration = Duration::from_secs(3);

/// Reads all of standard input. Says so if that takes long: programs that start this one often leave theirs open.
pub fn standard_input() -> anyhow::Result<String> {
    let (done, ended) = mpsc::channel::<()>();
    let note = std::thread::spawn(move || {
        if ended.recv_timeout(STDIN_WAIT) == Err(mpsc::RecvTimeoutError::Timeout) {
            note!("note: waiting for the end of standard input; `< /dev/null` gives it none");
        }
    });
    let text = read_from(std::io::stdin(), "standard input");
    drop(done);
    let _ = note.join();
    text
}

/// Reads a file's text.
pub fn read(path: &Path) -> anyhow::Result<String> {
    let name = path.display().to_string();
    read_from(std::fs::File::open(path).with_context(|| name.clone())?, &name)
}

/// Reads a file's text; `-` is standard input.
pub fn read_or_stdin(path: &Path) -> anyhow::Result<String> {
    if path == Path::new("-") { read_from(std::io::stdin().lock(), "standard input") } else { read(path) }
}

/// Reads a file's JSON.
pub fn read_json(path: &Path) -> anyhow::Result<Value> {
    serde_json::from_str(&read(path)?).with_context(|| format!("{}: not JSON", path.display()))
}

/// A conversation: all inputs of the template.
#[derive(Debug, Clone, Default)]
pub struct Conversation {
    /// The system message, if there is one.
    pub system: Option<String>,
    /// The messages that its model's maker begins it with.
    pub opening: Vec<Value>,
    /// The other messages.
    pub messages: Vec<Value>,
    /// JSON schemas of the tools.
    pub tools: Option<Vec<Value>>,
    /// Further variables.
    pub variables: Map<String, Value>,
}

impl Conversation {
    /// Appends a message.
    pub fn push(&mut self, role: &str, content: &str) {
        self.messages.push(json!({"role": role, "content": content}));
    }

    /// Appends a question about images, each a part of a message.
    pub fn ask(&mut self, images: Vec<Value>, text: &str) {
        if images.is_empty() {
            return self.push("user", text);
        }
        let text = json!({"type": "text", "text": text});
        let parts: Vec<Value> = images.into_iter().chain([text]).collect();
        self.messages.push(json!({"role": "user", "content": parts}));
    }

    /// The template's inputs.
    pub fn input(&self, add_generation_prompt: bool) -> ChatInput {
        let system = self.system.iter().map(|text| json!({"role": "system", "content": text}));
        ChatInput {
            messages: system.chain(self.opening.iter().chain(&self.messages).cloned()).collect(),
            tools: self.tools.clone(),
            add_generation_prompt,
            variables: self.variables.clone(),
            now_s: None,
        }
    }

    /// Takes a model's opening in place of that of another. What the user set stays.
    pub fn reopen(&mut self, before: &Opening, now: &Opening) {
        if self.system == before.system {
            self.system.clone_from(&now.system);
        }
        if self.opening == before.messages {
            self.opening.clone_from(&now.messages);
        }
    }

    /// Whether the last message is not the model's.
    pub fn is_waiting(&self) -> bool {
        self.messages.last().is_some_and(|m| m["role"] != "assistant")
    }

    /// The conversation in a form that [`Conversation::load`] and other programs read.
    pub fn save(&self) -> Value {
        json!({
            "messages": self.input(false).messages,
            "tools": self.tools,
            "chat_template_kwargs": self.variables,
        })
    }

    /// Opens a file for [`Conversation::load`].
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        Self::load(read_json(path)?).with_context(|| path.display().to_string())
    }

    /// Reads a list of messages, or an object with `messages` and optionally `tools` and `chat_template_kwargs`.
    pub fn load(file: Value) -> anyhow::Result<Self> {
        let mut chat = Self::default();
        let messages = match file {
            Value::Array(messages) => messages,
            Value::Object(mut o) => {
                match o.remove("tools") {
                    None | Some(Value::Null) => {}
                    Some(Value::Array(tools)) => chat.tools = Some(tools),
                    Some(_) => bail!("'tools' is not a list"),
                }
                match o.remove("chat_template_kwargs") {
                    None | Some(Value::Null) => {}
                    Some(Value::Object(variables)) => chat.variables = variables,
                    Some(_) => bail!("'chat_template_kwargs' is not an object"),
                }
                match o.remove("messages") {
                    Some(Value::Array(messages)) => messages,
                    _ => bail!("expected a list of messages in 'messages'"),
                }
            }
            _ => bail!("expected a list of messages, or an object with one in 'messages'"),
        };
        for (i, message) in messages.iter().enumerate() {
            check(message).with_context(|| format!("messages[{i}]"))?;
        }
        chat.messages = messages;
        // Flags may replace the first system message if it is plain text.
        let first = chat.messages.first();
        chat.system =
            first.filter(|m| m["role"] == "system").and_then(|m| m["content"].as_str()).map(String::from);
        if chat.system.is_some() {
            chat.messages.remove(0);
        }
        Ok(chat)
    }
}

/// Refuses a message that templates cannot render completely.
fn check(message: &Value) -> anyhow::Result<()> {
    ensure!(message["role"].is_string(), "has no role");
    match &message["content"] {
        Value::Null | Value::String(_) => {}
        Value::Array(parts) => {
            for (j, part) in parts.iter().enumerate() {
                let kind = part["type"].as_str().unwrap_or("unknown");
                if crate::images::is_image(part) {
                    crate::images::check(part).with_context(|| format!("content[{j}] (image_url)"))?;
                    continue;
                }
                ensure!(
                    kind == "text",
                    "content[{j}] is of type '{kind}'; only text and images are understood"
                );
                ensure!(part["text"].is_string(), "content[{j}] has no text");
            }
        }
        _ => bail!("its content is neither a text nor a list of parts"),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_can_be_loaded() {
        let mut c = Conversation { system: Some("Be brief.".into()), ..Default::default() };
        c.push("user", "Hi");
        c.messages.push(json!({"role": "assistant", "content": "Hello", "reasoning_content": "A greeting."}));
        c.tools = Some(vec![json!({"type": "function"})]);
        c.variables.insert("enable_thinking".into(), false.into());
        let d = Conversation::load(c.save()).unwrap();
        assert_eq!((d.system, d.messages), (c.system, c.messages));
        assert_eq!((d.tools, d.variables), (c.tools, c.variables));
    }

    #[test]
    fn files_that_are_no_conversation_are_refused() {
        let load = |v: Value| format!("{:#}", Conversation::load(v).unwrap_err());
        assert!(load(json!("hi")).contains("list of messages"));
        assert!(load(json!({"messages": 1})).contains("'messages'"));
        assert!(load(json!([{"content": "hi"}])).contains("messages[0]"));
        assert!(load(json!({"messages": [], "tools": 5})).contains("'tools'"));
        assert!(load(json!({"messages": [], "chat_template_kwargs": []})).contains("'chat_template_kwargs'"));
        assert!(load(json!([{"role": "user", "content": 7}])).contains("messages[0]"));
        let parts =
            json!([{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {}}]);
        let why = load(json!([{"role": "system", "content": ""}, {"role": "user", "content": parts}]));
        assert!(
            why.contains("messages[1]") && why.contains("content[1]") && why.contains("image_url"),
            "{why}"
        );
    }
}
