//! Token counts in Gemini's form: reasoning is counted separately from the answer.

use serde::{Deserialize, Serialize};

use crate::core::Usage;

/// `usageMetadata`.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Counts {
    #[serde(default)]
    prompt_token_count: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cached_content_token_count: Option<u64>,
    #[serde(default)]
    candidates_token_count: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    thoughts_token_count: Option<u64>,
    #[serde(default, skip_serializing_if = "is_zero")]
    tool_use_prompt_token_count: u64,
    #[serde(default)]
    total_token_count: u64,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

impl From<Counts> for Usage {
    fn from(c: Counts) -> Self {
        Self {
            prompt_tokens: c.prompt_token_count.saturating_add(c.tool_use_prompt_token_count),
            cached_tokens: c.cached_content_token_count,
            cache_written_tokens: None,
            completion_tokens: c.candidates_token_count.saturating_add(c.thoughts_token_count.unwrap_or(0)),
            reasoning_tokens: c.thoughts_token_count,
        }
    }
}

impl From<&Usage> for Counts {
    fn from(u: &Usage) -> Self {
        Self {
            prompt_token_count: u.prompt_tokens,
            cached_content_token_count: u.cached_tokens.filter(|n| *n > 0),
            candidates_token_count: u.completion_tokens.saturating_sub(u.reasoning_tokens.unwrap_or(0)),
            thoughts_token_count: u.reasoning_tokens.filter(|n| *n > 0),
            tool_use_prompt_token_count: 0,
            total_token_count: u.total_tokens(),
        }
    }
}

/// The counts in an answer or a chunk; `None` if it has none.
pub fn usage_in(json: &[u8]) -> Option<Usage> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Holder {
        #[serde(default)]
        usage_metadata: Option<Counts>,
    }
    serde_json::from_slice::<Holder>(json).ok()?.usage_metadata.map(Usage::from)
}
