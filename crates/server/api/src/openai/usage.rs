//! Token counts and times in OpenAI's and llama.cpp's form.

use serde::{Deserialize, Serialize};

use crate::core::{Timings, Usage};

/// The token counts in a whole answer or a chunk, of chat, completions, Responses and embeddings. `None` if there are none. For
/// forwarded answers.
pub fn usage_in(json: &[u8]) -> Option<Usage> {
    #[derive(Deserialize)]
    struct Holder {
        #[serde(default)]
        usage: Option<AnyUsage>,
        #[serde(default)]
        response: Option<Inner>,
    }
    #[derive(Deserialize)]
    struct Inner {
        #[serde(default)]
        usage: Option<AnyUsage>,
    }
    let holder: Holder = serde_json::from_slice(json).ok()?;
    holder.usage.or(holder.response.and_then(|r| r.usage)).map(Usage::from)
}

/// The same for the object under `usage`.
pub fn usage_of(json: &str) -> Option<Usage> {
    serde_json::from_str::<AnyUsage>(json).ok().map(Usage::from)
}

/// `usage` of all endpoints: Responses use other names.
#[derive(Deserialize)]
pub(super) struct AnyUsage {
    #[serde(default, alias = "input_tokens")]
    prompt_tokens: u64,
    #[serde(default, alias = "output_tokens")]
    completion_tokens: u64,
    #[serde(default, alias = "input_tokens_details")]
    prompt_tokens_details: Option<PromptDetails>,
    #[serde(default, alias = "output_tokens_details")]
    completion_tokens_details: Option<CompletionDetails>,
}

impl From<AnyUsage> for Usage {
    fn from(u: AnyUsage) -> Self {
        let wire = WireUsage {
            prompt_tokens: u.prompt_tokens,
            completion_tokens: u.completion_tokens,
            total_tokens: 0,
            prompt_tokens_details: u.prompt_tokens_details,
            completion_tokens_details: u.completion_tokens_details,
        };
        wire.into()
    }
}

/// `usage` of chat and completions.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WireUsage {
    #[serde(default)]
    prompt_tokens: u64,
    #[serde(default)]
    completion_tokens: u64,
    #[serde(default)]
    total_tokens: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    prompt_tokens_details: Option<PromptDetails>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    completion_tokens_details: Option<CompletionDetails>,
}

#[derive(Debug, Serialize, Deserialize)]
struct PromptDetails {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cached_tokens: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cache_write_tokens: Option<u64>,
}

#[derive(Debug, Serialize, Deserialize)]
struct CompletionDetails {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reasoning_tokens: Option<u64>,
}

impl From<&Usage> for WireUsage {
    fn from(u: &Usage) -> Self {
        let cached = u.cached_tokens.is_some() || u.cache_written_tokens.is_some();
        Self {
            prompt_tokens: u.prompt_tokens,
            completion_tokens: u.completion_tokens,
            total_tokens: u.total_tokens(),
            prompt_tokens_details: cached.then_some(PromptDetails {
                cached_tokens: u.cached_tokens,
                cache_write_tokens: u.cache_written_tokens,
            }),
            completion_tokens_details: u
                .reasoning_tokens
                .map(|n| CompletionDetails { reasoning_tokens: Some(n) }),
        }
    }
}

impl From<WireUsage> for Usage {
    fn from(w: WireUsage) -> Self {
        let prompt = w.prompt_tokens_details.as_ref();
        Self {
            prompt_tokens: w.prompt_tokens,
            cached_tokens: prompt.and_then(|d| d.cached_tokens),
            cache_written_tokens: prompt.and_then(|d| d.cache_write_tokens),
            completion_tokens: w.completion_tokens,
            reasoning_tokens: w.completion_tokens_details.and_then(|d| d.reasoning_tokens),
        }
    }
}

/// `prompt_progress` of llama.cpp.
#[derive(Debug, Serialize)]
pub(crate) struct WireProgress {
    pub total: u64,
    pub cache: u64,
    pub processed: u64,
    pub time_ms: f64,
}

/// `timings` of llama.cpp.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct WireTimings {
    #[serde(default)]
    cache_n: u64,
    #[serde(default)]
    prompt_n: u64,
    #[serde(default)]
    prompt_ms: f64,
    #[serde(default)]
    prompt_per_token_ms: f64,
    #[serde(default)]
    prompt_per_second: f64,
    #[serde(default)]
    predicted_n: u64,
    #[serde(default)]
    predicted_ms: f64,
    #[serde(default)]
    predicted_per_token_ms: f64,
    #[serde(default)]
    predicted_per_second: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    draft_n: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    draft_n_accepted: Option<u64>,
}

impl From<&Timings> for WireTimings {
    fn from(t: &Timings) -> Self {
        let each = |n: u64, ms: f64| if n > 0 { ms / n as f64 } else { 0.0 };
        Self {
            cache_n: t.cache_n,
            prompt_n: t.prompt_n,
            prompt_ms: t.prompt_ms,
            prompt_per_token_ms: each(t.prompt_n, t.prompt_ms),
            prompt_per_second: t.prompt_per_second(),
            predicted_n: t.predicted_n,
            predicted_ms: t.predicted_ms,
            // Without the first token, as in `predicted_per_second`: it comes with the prompt.
            predicted_per_token_ms: each(t.predicted_n.saturating_sub(1), t.predicted_ms),
            predicted_per_second: t.predicted_per_second(),
            draft_n: t.draft.map(|d| d.0),
            draft_n_accepted: t.draft.map(|d| d.1),
        }
    }
}

impl From<WireTimings> for Timings {
    fn from(w: WireTimings) -> Self {
        Self {
            cache_n: w.cache_n,
            prompt_n: w.prompt_n,
            prompt_ms: w.prompt_ms,
            predicted_n: w.predicted_n,
            predicted_ms: w.predicted_ms,
            load_ms: 0.0,
            total_ms: w.prompt_ms + w.predicted_ms,
            draft: w.draft_n.zip(w.draft_n_accepted),
        }
    }
}
