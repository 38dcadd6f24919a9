//! Signed reasoning in chats: LiteLLM's `thinking_blocks` and OpenRouter's `reasoning_details`.

use serde::Serialize;
use serde_json::{Value, json};

use crate::core::{Block, ReasoningPart};
use crate::proofs::{GEMINI, UNSIGNED};

/// The reasoning of one of the lists; of `blocks` if both have some.
pub(super) fn parts(blocks: Option<Vec<Value>>, details: Option<Vec<Value>>) -> Vec<ReasoningPart> {
    let list = blocks.filter(|b| !b.is_empty()).or(details).unwrap_or_default();
    list.iter().filter_map(part).collect()
}

fn part(item: &Value) -> Option<ReasoningPart> {
    let text = |name: &str| item[name].as_str().filter(|t| !t.is_empty()).map(String::from);
    // OpenRouter says whose reasoning it is. Without that it is Claude's, as in LiteLLM's proxy.
    let format = item["format"].as_str().unwrap_or("anthropic");
    let signature = text("signature").filter(|s| s != UNSIGNED).and_then(|s| match format {
        _ if format.starts_with("anthropic") => Some(s),
        _ if format.starts_with("google") => Some(format!("{GEMINI}{s}")),
        _ => None,
    });
    let readable = |name: &str| {
        let text = text(name).unwrap_or_default();
        let is_empty = text.is_empty() && signature.is_none();
        (!is_empty).then(|| ReasoningPart::Text { text, signature: signature.clone() })
    };
    match item["type"].as_str()? {
        "thinking" => readable("thinking"),
        "reasoning.text" => readable("text"),
        "reasoning.summary" => readable("summary"),
        "redacted_thinking" => text("data").map(ReasoningPart::Redacted),
        "reasoning.encrypted" if format.starts_with("anthropic") => text("data").map(ReasoningPart::Redacted),
        _ => None,
    }
}

/// Signed reasoning of an answer, in both forms.
#[derive(Debug, Default, Serialize)]
pub(super) struct Proofs {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    thinking_blocks: Vec<Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    reasoning_details: Vec<Value>,
}

impl Proofs {
    /// Those of an answer.
    pub fn of(answer: &[Block]) -> Self {
        let mut out = Self::default();
        for block in answer {
            match block {
                Block::Reasoning { text, signature: Some(signature) } => out.signed(text, signature),
                Block::Redacted(data) => out.encrypted(data),
                _ => {}
            }
        }
        out
    }

    /// Adds a signed text.
    pub fn signed(&mut self, text: &str, signature: &str) {
        self.thinking_blocks.push(json!({"type": "thinking", "thinking": text, "signature": signature}));
        let index = self.reasoning_details.len();
        self.reasoning_details.push(
            json!({"type": "reasoning.text", "text": text, "signature": signature, "format": FORMAT, "index": index}),
        );
    }

    /// Adds an encrypted text.
    pub fn encrypted(&mut self, data: &str) {
        self.thinking_blocks.push(json!({"type": "redacted_thinking", "data": data}));
        let index = self.reasoning_details.len();
        self.reasoning_details
            .push(json!({"type": "reasoning.encrypted", "data": data, "format": FORMAT, "index": index}));
    }
}

/// OpenRouter's name of Anthropic's signatures. Those of other providers have their own prefix here.
const FORMAT: &str = "anthropic-claude-v1";
