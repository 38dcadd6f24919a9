//! Token counts in Anthropic's form: `input_tokens` excludes tokens read from or written to the cache.

use serde::{Deserialize, Serialize};

use crate::core::Usage;

/// Counts the tokens of answers that are forwarded unread; a stream reports them in two events.
#[derive(Debug, Default, Clone)]
pub struct UsageReader(WireUsage, bool);

impl UsageReader {
    /// Reads a whole answer, or the data of a `message_start` or `message_delta`.
    pub fn push(&mut self, json: &[u8]) {
        #[derive(Deserialize)]
        struct Holder {
            #[serde(default)]
            usage: Option<WireUsage>,
            #[serde(default)]
            message: Option<Inner>,
        }
        #[derive(Deserialize)]
        struct Inner {
            #[serde(default)]
            usage: Option<WireUsage>,
        }
        let Ok(holder) = serde_json::from_slice::<Holder>(json) else { return };
        if let Some(usage) = holder.usage.or(holder.message.and_then(|m| m.usage)) {
            self.0.update(usage);
            self.1 = true;
        }
    }

    /// The counts so far; `None` if there were none.
    pub fn usage(&self) -> Option<Usage> {
        self.1.then(|| self.0.to_usage())
    }
}

#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub(super) struct WireUsage {
    #[serde(default)]
    pub input_tokens: Option<u64>,
    #[serde(default)]
    pub cache_creation_input_tokens: Option<u64>,
    #[serde(default)]
    pub cache_read_input_tokens: Option<u64>,
    #[serde(default)]
    pub output_tokens: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_tokens_details: Option<OutputDetails>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct OutputDetails {
    #[serde(default)]
    pub thinking_tokens: u64,
}

impl From<&Usage> for WireUsage {
    fn from(u: &Usage) -> Self {
        let (read, written) = (u.cached_tokens.unwrap_or(0), u.cache_written_tokens.unwrap_or(0));
        Self {
            input_tokens: Some(u.prompt_tokens.saturating_sub(read).saturating_sub(written)),
            cache_creation_input_tokens: Some(written),
            cache_read_input_tokens: Some(read),
            output_tokens: Some(u.completion_tokens),
            output_tokens_details: u
                .reasoning_tokens
                .map(|thinking_tokens| OutputDetails { thinking_tokens }),
        }
    }
}

impl WireUsage {
    /// Applies a later count. Counts of a stream are totals; missing ones stay.
    pub(super) fn update(&mut self, later: WireUsage) {
        self.input_tokens = later.input_tokens.or(self.input_tokens);
        self.cache_creation_input_tokens =
            later.cache_creation_input_tokens.or(self.cache_creation_input_tokens);
        self.cache_read_input_tokens = later.cache_read_input_tokens.or(self.cache_read_input_tokens);
        self.output_tokens = later.output_tokens.or(self.output_tokens);
        if later.output_tokens_details.is_some() {
            self.output_tokens_details = later.output_tokens_details;
        }
    }

    pub(super) fn to_usage(&self) -> Usage {
        let parts = [self.input_tokens, self.cache_creation_input_tokens, self.cache_read_input_tokens];
        Usage {
            prompt_tokens: parts.into_iter().flatten().fold(0, u64::saturating_add),
            cached_tokens: self.cache_read_input_tokens,
            cache_written_tokens: self.cache_creation_input_tokens,
            completion_tokens: self.output_tokens.unwrap_or(0),
            reasoning_tokens: self.output_tokens_details.as_ref().map(|d| d.thinking_tokens),
        }
    }
}
