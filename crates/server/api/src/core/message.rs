//! Messages of a conversation, independent of dialects. Part of a [`Chat`](super::Chat). As JSON they are stored in databases: a new field
//! needs a default.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Image;

/// A message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// Its author.
    pub role: Role,
    /// Its content. Empty for an assistant message with calls only.
    pub content: Vec<Part>,
    /// An assistant's reasoning before the content.
    pub reasoning: Vec<ReasoningPart>,
    /// The client asked not to see it: the stored conversation has it for the model only.
    pub hides_reasoning: bool,
    /// An assistant's tool calls.
    pub tool_calls: Vec<ToolCall>,
    /// The call that a tool message answers.
    pub tool_call_id: Option<String>,
    /// The author's name; the tool's name in a tool message.
    pub name: Option<String>,
    /// The tool reported an error. (Chat templates cannot express it: the content must say so too.)
    pub is_error: bool,
}

impl Message {
    /// A message without content.
    pub fn empty(role: Role) -> Self {
        Self {
            role,
            content: Vec::new(),
            reasoning: Vec::new(),
            hides_reasoning: false,
            tool_calls: Vec::new(),
            tool_call_id: None,
            name: None,
            is_error: false,
        }
    }

    /// A message of one text.
    pub fn text(role: Role, text: impl Into<String>) -> Self {
        Self { content: vec![Part::text(text)], ..Self::empty(role) }
    }

    /// The readable reasoning as one text; `None` if there is none.
    pub fn reasoning_text(&self) -> Option<String> {
        let mut out: Option<String> = None;
        for part in &self.reasoning {
            if let ReasoningPart::Text { text, .. } = part {
                out.get_or_insert_default().push_str(text);
            }
        }
        out
    }
}

/// The author of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// Instructions.
    System,
    /// Instructions, in newer OpenAI models.
    Developer,
    /// The user.
    User,
    /// The model.
    Assistant,
    /// The result of a tool call.
    Tool,
}

impl Role {
    /// Its name in OpenAI's and Ollama's dialects, and in chat templates.
    pub fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Developer => "developer",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

/// A part of a message's content.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Part {
    /// Text.
    Text {
        /// The text.
        text: String,
        /// A cache breakpoint after this part.
        cache: Option<CacheBreakpoint>,
    },
    /// An image.
    Image {
        /// The image.
        image: Image,
        /// A cache breakpoint after this part.
        cache: Option<CacheBreakpoint>,
    },
}

impl Part {
    /// Plain text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into(), cache: None }
    }

    /// Its text, if it is a text.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text { text, .. } => Some(text),
            Self::Image { .. } => None,
        }
    }

    /// Its image or document, if it is one.
    pub fn as_image(&self) -> Option<&Image> {
        if let Self::Image { image, .. } = self { Some(image) } else { None }
    }

    pub(super) fn as_image_mut(&mut self) -> Option<&mut Image> {
        if let Self::Image { image, .. } = self { Some(image) } else { None }
    }
}

/// A client's hint that the prompt up to here will be repeated.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CacheBreakpoint {
    /// Requested lifetime: `5m`, `1h`, ...
    pub ttl: Option<String>,
    /// It has the form of OpenAI's dialect, `prompt_cache_breakpoint`; otherwise Anthropic's, `cache_control`.
    pub openai_form: bool,
}

/// A piece of an assistant's reasoning.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReasoningPart {
    /// Readable.
    Text {
        /// The text.
        text: String,
        /// The provider's signature. `None` for local models.
        signature: Option<String>,
    },
    /// Encrypted; only its provider can read it.
    Redacted(String),
}

/// A tool call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// Its id.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// The arguments as written: a JSON object as text. In the history it may be any text.
    pub arguments: String,
    /// A cache breakpoint after this call.
    pub cache: Option<CacheBreakpoint>,
}

impl ToolCall {
    /// The arguments as a JSON object. An empty text is an empty object, as several clients send it. Text that is not a JSON object
    /// becomes the member `arguments`: templates and providers require an object, and the model sees what it wrote.
    pub fn arguments_object(&self) -> Map<String, Value> {
        self.object(false)
    }

    /// The same for a provider's body, which [`crate::digits::text`] writes: numbers keep all their digits.
    pub(crate) fn exact_arguments(&self) -> Map<String, Value> {
        self.object(true)
    }

    fn object(&self, all_digits: bool) -> Map<String, Value> {
        super::arguments::arguments_object(&self.arguments, all_digits).unwrap_or_else(|_| {
            let mut out = Map::new();
            out.insert("arguments".into(), self.arguments.as_str().into());
            out
        })
    }
}
