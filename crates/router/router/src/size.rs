//! Features of a request: its length and content. Used for limits, by the rules of cascades, and for prefix affinity.

use octet_api::core::{GenerateRequest, ImageSource, Input, Message, Part, Prompt, ReasoningPart, Role};
use serde_json::Value;

use crate::hash;

/// Approximate bytes of text per token.
const BYTES_PER_TOKEN: u64 = 4;
/// Upper bound of bytes per token.
const BYTES_PER_TOKEN_MAX: u64 = 16;

/// A request's size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Size {
    /// Text of the conversation and of the tools; 4 bytes for each token that is given as an id.
    pub bytes: u64,
}

impl Size {
    /// The size of `request`.
    pub fn of(request: &GenerateRequest) -> Self {
        let bytes = match &request.input {
            Input::Chat(chat) => {
                let tools = chat.tools.iter().map(|t| {
                    let parameters: usize = t.parameters.iter().map(|(k, v)| k.len() + json_bytes(v)).sum();
                    t.name.len() + t.description.as_ref().map_or(0, String::len) + parameters
                });
                chat.messages.iter().map(message_bytes).sum::<usize>() + tools.sum::<usize>()
            }
            Input::Completion(completion) => completion.prompts.iter().map(Prompt::bytes).sum(),
        };
        Self { bytes: bytes as u64 }
    }

    /// Approximate number of tokens.
    pub fn tokens(&self) -> u64 {
        self.bytes.div_ceil(BYTES_PER_TOKEN)
    }

    /// Lower bound of the number of tokens.
    pub fn tokens_min(&self) -> u64 {
        self.bytes / BYTES_PER_TOKEN_MAX
    }

    /// Upper bound of the number of tokens, without the template's own.
    pub fn tokens_max(&self) -> u64 {
        self.bytes
    }
}

/// Number of answers that a request asks for.
pub fn answers(request: &GenerateRequest) -> u64 {
    let prompts = match &request.input {
        Input::Chat(_) => 1,
        // A request of which only a part was read has none.
        Input::Completion(completion) => completion.prompts.len().max(1) as u64,
    };
    u64::from(request.n.max(1)).saturating_mul(prompts)
}

/// Assumed tokens of an answer without a limit.
const ANSWER_GUESS: u64 = 1024;

/// Upper bound of the tokens of all answers, of a model that gives at most `most` for each: what the request allows, or a guess.
pub fn answer_tokens(request: &GenerateRequest, most: Option<u64>) -> u64 {
    // Embeddings and the like have no prompt here, and no answer in tokens.
    if matches!(&request.input, Input::Completion(c) if c.prompts.is_empty()) {
        return 0;
    }
    let asked = request.max_tokens.map(u64::from);
    let each = asked.into_iter().chain(most).min().unwrap_or(ANSWER_GUESS);
    each.saturating_mul(answers(request))
}

fn message_bytes(message: &Message) -> usize {
    let content: usize = message.content.iter().filter_map(text).map(str::len).sum();
    let reasoning: usize = message
        .reasoning
        .iter()
        .map(|r| match r {
            ReasoningPart::Text { text, .. } => text.len(),
            ReasoningPart::Redacted(_) => 0,
        })
        .sum();
    let calls: usize = message.tool_calls.iter().map(|c| c.name.len() + c.arguments.len()).sum();
    content + reasoning + calls
}

fn text(part: &Part) -> Option<&str> {
    match part {
        Part::Text { text, .. } => Some(text),
        Part::Image { .. } => None,
    }
}

/// Approximate size of a value as JSON.
fn json_bytes(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 4,
        Value::String(s) => s.len() + 2,
        Value::Array(all) => 2 + all.iter().map(json_bytes).sum::<usize>(),
        Value::Object(all) => 2 + all.iter().map(|(k, v)| k.len() + 4 + json_bytes(v)).sum::<usize>(),
    }
}

/// The instructions, one per line.
pub fn system_text(request: &GenerateRequest) -> String {
    let messages = request.chat().map_or(&[][..], |c| &c.messages);
    let instructions = messages.iter().filter(|m| matches!(m.role, Role::System | Role::Developer));
    instructions.flat_map(|m| m.content.iter().filter_map(text)).collect::<Vec<_>>().join("\n")
}

/// The user's last message.
pub fn last_user_text(request: &GenerateRequest) -> String {
    match &request.input {
        Input::Chat(chat) => {
            let last = chat.messages.iter().rev().find(|m| m.role == Role::User);
            let parts = last.into_iter().flat_map(|m| m.content.iter().filter_map(text));
            parts.collect::<Vec<_>>().join("\n")
        }
        Input::Completion(c) => match c.prompts.last() {
            Some(Prompt::Text(text)) => text.clone(),
            _ => String::new(),
        },
    }
}

/// Whether a user message has a code fence.
pub fn has_code(request: &GenerateRequest) -> bool {
    match &request.input {
        Input::Chat(chat) => {
            let mut parts = chat.messages.iter().filter(|m| m.role == Role::User).flat_map(|m| &m.content);
            parts.any(|part| text(part).is_some_and(|t| t.contains("```") || t.contains("~~~")))
        }
        Input::Completion(c) => {
            c.prompts.iter().any(|p| matches!(p, Prompt::Text(t) if t.contains("```") || t.contains("~~~")))
        }
    }
}

/// Its size in bytes with its images: what reading or writing it takes, not what a model makes of it.
pub fn bytes_with_images(request: &GenerateRequest) -> usize {
    let messages = request.chat().map_or(&[][..], |c| &c.messages);
    let images = messages.iter().flat_map(|m| &m.content).map(|part| match part {
        Part::Image { image, .. } => match &image.source {
            ImageSource::Base64 { data, .. } => data.len(),
            ImageSource::Url(url) => url.len(),
        },
        Part::Text { .. } => 0,
    });
    images.sum::<usize>().saturating_add(usize::try_from(Size::of(request).bytes).unwrap_or(usize::MAX))
}

/// Whether it has images.
pub fn has_images(request: &GenerateRequest) -> bool {
    let messages = request.chat().map_or(&[][..], |c| &c.messages);
    messages.iter().flat_map(|m| &m.content).any(|part| matches!(part, Part::Image { .. }))
}

/// Bytes of one text that are hashed, while other requests wait.
const PREFIX_BYTES_MAX: usize = 64 << 10;

fn beginning(text: &str, bytes_max: usize) -> &[u8] {
    &text.as_bytes()[..text.len().min(bytes_max)]
}

/// Identifies the beginning of the prompt: tools, instructions and the first question stay the same during a conversation. Of each long
/// text, the beginning. `None` if it is empty.
pub fn prefix(request: &GenerateRequest) -> Option<u64> {
    let mut parts: Vec<&[u8]> = Vec::new();
    match &request.input {
        Input::Chat(chat) => {
            parts.extend(chat.tools.iter().map(|t| t.name.as_bytes()));
            for message in &chat.messages {
                parts.extend(
                    message.content.iter().filter_map(text).map(|text| beginning(text, PREFIX_BYTES_MAX)),
                );
                if message.role == Role::User {
                    break;
                }
            }
        }
        Input::Completion(c) => {
            if let Some(Prompt::Text(text)) = c.prompts.first() {
                parts.push(beginning(text, 512));
            }
        }
    }
    (!parts.is_empty()).then(|| hash::hash(&parts))
}
