//! Messages of a conversation, in no dialect. Part of a [`Chat`](super::Chat).

use serde_json::{Map, Value};

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said. Empty where an assistant only calls tools.
    pub content: Vec<Part>,
    /// What an assistant thought before.
    pub reasoning: Vec<ReasoningPart>,
    /// What an assistant calls.
    pub tool_calls: Vec<ToolCall>,
    /// Which call a tool's message answers.
    pub tool_call_id: Option<String>,
    /// The speaker's name; in a tool's message the tool's.
    pub name: Option<String>,
    /// A tool says that it failed. (Chat templates have no word for it: the content must say so too.)
    pub is_error: bool,
}

impl Message {
    /// A message without content.
    pub fn empty(role: Role) -> Self {
        Self {
            role,
            content: Vec::new(),
            reasoning: Vec::new(),
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

    /// What was thought, in one piece; `None` if nothing readable was.
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

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Instructions.
    System,
    /// Instructions, as newer OpenAI models name them.
    Developer,
    /// The person.
    User,
    /// The model.
    Assistant,
    /// What a called tool returned.
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

/// One part of a message.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    /// Text.
    Text {
        /// The text.
        text: String,
        /// The prompt up to here is worth keeping.
        cache: Option<CacheBreakpoint>,
    },
    /// A picture.
    Image {
        /// The picture.
        image: Image,
        /// The prompt up to here is worth keeping.
        cache: Option<CacheBreakpoint>,
    },
}

impl Part {
    /// Plain text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into(), cache: None }
    }

    /// Its text, if it is one.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text { text, .. } => Some(text),
            Self::Image { .. } => None,
        }
    }
}

/// A picture in a message. Local models do not see yet: [`Chat::template`](super::Chat::template) refuses it by name.
#[derive(Debug, Clone, PartialEq)]
pub struct Image {
    /// Where its bytes are.
    pub source: ImageSource,
    /// How closely to look: `low`, `high`, `auto`, `original`.
    pub detail: Option<String>,
    /// Where the client's request has it: `messages[3].content[0]`.
    pub at: String,
}

impl Image {
    /// The address as OpenAI's dialects have it, with the bytes in it if they are here.
    pub fn url(&self) -> String {
        match &self.source {
            ImageSource::Url(url) => url.clone(),
            ImageSource::Base64 { data, .. } => {
                format!("data:{};base64,{data}", self.media_type().unwrap_or(""))
            }
        }
    }

    /// Whether it is pages instead of a picture.
    pub fn is_document(&self) -> bool {
        matches!(&self.source, ImageSource::Base64 { media_type: Some(kind), .. } if !kind.starts_with("image/"))
    }

    /// What kind of picture it is: as the client says, else as its first bytes say; `None` for an address.
    pub fn media_type(&self) -> Option<&str> {
        let ImageSource::Base64 { media_type, data } = &self.source else { return None };
        // The files' magic numbers in base64.
        let magic = [
            ("iVBORw0KGgo", "image/png"),
            ("/9j/", "image/jpeg"),
            ("R0lGOD", "image/gif"),
            ("UklGR", "image/webp"),
        ];
        let sniffed = || magic.iter().find(|(beginning, _)| data.starts_with(beginning)).map(|m| m.1);
        media_type.as_deref().or_else(sniffed)
    }
}

/// Where a picture's bytes are.
#[derive(Debug, Clone, PartialEq)]
pub enum ImageSource {
    /// To be fetched.
    Url(String),
    /// Here, as base64.
    Base64 {
        /// `image/png`; `None` where the dialect does not say.
        media_type: Option<String>,
        /// The bytes.
        data: String,
    },
}

/// A client says that the prompt up to here will come again.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CacheBreakpoint {
    /// How long to keep it: `5m`, `1h`, ...
    pub ttl: Option<String>,
}

/// A piece of what an assistant thought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReasoningPart {
    /// Readable.
    Text {
        /// The text.
        text: String,
        /// The provider's proof that the text is its own. `None` for local models.
        signature: Option<String>,
    },
    /// Only its provider can read it.
    Redacted(String),
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// Names the call for its answer.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// As the client or the model wrote them: a JSON object as text. In a conversation's history it may be any text.
    pub arguments: String,
    /// The prompt up to here is worth keeping.
    pub cache: Option<CacheBreakpoint>,
}

impl ToolCall {
    /// The arguments as a JSON object. None at all is an empty one, as several clients send it. Text that is no JSON object is the only
    /// member, `arguments`: templates and providers take nothing else, and the model sees what it wrote.
    pub fn arguments_object(&self) -> Map<String, Value> {
        arguments_object(&self.arguments).unwrap_or_else(|_| {
            let mut out = Map::new();
            out.insert("arguments".into(), self.arguments.as_str().into());
            out
        })
    }
}

/// The text of a call's arguments as an object, or what it is instead.
pub(crate) fn arguments_object(text: &str) -> Result<Map<String, Value>, String> {
    if text.trim().is_empty() {
        return Ok(Map::new());
    }
    match serde_json::from_str(text) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(other) => Err(format!("no JSON object but {}", crate::json::describe(&other))),
        Err(e) => Err(format!("no JSON: {e}")),
    }
}
