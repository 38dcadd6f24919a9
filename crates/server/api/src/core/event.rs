//! Events of an answer in progress, independent of dialects. Emitted by the server or a provider's reader; written by each dialect's
//! stream writer, or collected into an [`Answer`](super::Answer).

use serde_json::{Map, Value};

use crate::ApiError;

/// An event of an answer.
///
/// The order is: `Started`; for each choice reasoning, text and calls in order, then its `Finished`; `Usage`; `Timings`. Choices may
/// be interleaved; calls of one choice are not: a call is complete when the next begins. Nothing follows an `Error`. Later `Usage` and
/// `Timings` replace earlier ones.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The answer begins.
    Started {
        /// A unique id. Each dialect adds its own prefix.
        id: String,
        /// The model's name as the client knows it.
        model: String,
        /// Seconds since 1970 UTC.
        created_s: u64,
        /// The counts known so far.
        usage: Option<Usage>,
    },
    /// A piece of reasoning.
    Reasoning {
        /// The choice.
        choice: u32,
        /// The next piece; never cut within a character.
        text: String,
    },
    /// The provider's signature of the preceding reasoning.
    ReasoningSignature {
        /// The choice.
        choice: u32,
        /// Opaque.
        signature: String,
    },
    /// Encrypted reasoning.
    RedactedReasoning {
        /// The choice.
        choice: u32,
        /// Opaque.
        data: String,
    },
    /// A piece of text.
    Text {
        /// The choice.
        choice: u32,
        /// The next piece; never cut within a character.
        text: String,
    },
    /// A call begins.
    ToolCallStart {
        /// The choice.
        choice: u32,
        /// The call's index in the choice, from 0.
        index: u32,
        /// The call's id.
        id: String,
        /// The tool's name.
        name: String,
    },
    /// A piece of a call's arguments.
    ToolCallArguments {
        /// The choice.
        choice: u32,
        /// The call's index: that of the last call.
        index: u32,
        /// The next piece of the JSON text.
        text: String,
    },
    /// Log-probabilities of the tokens of the next text.
    Logprobs {
        /// The choice.
        choice: u32,
        /// In order.
        tokens: Vec<TokenLogprob>,
    },
    /// Ids of the tokens of the next text, if [`Reporting::tokens`](super::Reporting).
    Tokens {
        /// The choice.
        choice: u32,
        /// In order.
        ids: Vec<u32>,
    },
    /// Experts of the tokens of the next text, if [`Reporting::experts`](super::Reporting).
    RoutedExperts {
        /// The choice.
        choice: u32,
        /// In order.
        tokens: RoutedExperts,
    },
    /// Progress of prompt processing, if [`Reporting::progress`](super::Reporting).
    Progress {
        /// Processed tokens, cached ones included.
        done: u64,
        /// Tokens of all prompts.
        total: u64,
        /// Tokens from the cache.
        cached: u64,
        /// Time since processing began.
        ms: f64,
    },
    /// The prompts and settings as applied, if [`Reporting::applied`](super::Reporting).
    Applied(Box<Applied>),
    /// A choice is complete.
    Finished {
        /// The choice.
        choice: u32,
        /// Why it ended.
        reason: FinishReason,
    },
    /// Token counts over all choices.
    Usage(Usage),
    /// Times.
    Timings(Timings),
    /// The request failed; nothing follows.
    Error(ApiError),
}

impl Event {
    /// The events of a complete call.
    pub fn tool_call(choice: u32, index: u32, id: &str, name: &str, arguments: &str) -> [Self; 2] {
        [
            Self::ToolCallStart { choice, index, id: id.into(), name: name.into() },
            Self::ToolCallArguments { choice, index, text: arguments.into() },
        ]
    }
}

/// The prompts and settings of a request, as applied.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Applied {
    /// The prompts as text.
    pub prompts: Vec<String>,
    /// The settings, in llama.cpp's names.
    pub settings: Map<String, Value>,
}

/// Why an answer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended it.
    Stop,
    /// This stop text was generated.
    StopSequence(String),
    /// The limit of the answer or the context was reached.
    Length,
    /// The model called tools.
    ToolCalls,
    /// The provider or the model refused to continue.
    ContentFilter,
}

/// Token counts. `None` where the source does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Prompt tokens, cached ones included.
    pub prompt_tokens: u64,
    /// Prompt tokens read from a cache.
    pub cached_tokens: Option<u64>,
    /// Prompt tokens written to a cache (providers bill these).
    pub cache_written_tokens: Option<u64>,
    /// Generated tokens, reasoning included.
    pub completion_tokens: u64,
    /// Reasoning tokens.
    pub reasoning_tokens: Option<u64>,
}

impl Usage {
    /// Prompt and generated tokens.
    pub fn total_tokens(&self) -> u64 {
        self.prompt_tokens.saturating_add(self.completion_tokens)
    }
}

/// Times of an answer, in llama.cpp's terms.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Timings {
    /// Prompt tokens from a cache.
    pub cache_n: u64,
    /// Prompt tokens that were computed.
    pub prompt_n: u64,
    /// Time for them.
    pub prompt_ms: f64,
    /// Tokens generated.
    pub predicted_n: u64,
    /// Time for them.
    pub predicted_ms: f64,
    /// Time to load the model; 0 if it was loaded.
    pub load_ms: f64,
    /// From the request to the end of the answer.
    pub total_ms: f64,
    /// Drafted tokens, and how many of them were accepted.
    pub draft: Option<(u64, u64)>,
}

impl Timings {
    /// Computed prompt tokens per second; 0 if there were none.
    pub fn prompt_per_second(&self) -> f64 {
        per_second(self.prompt_n, self.prompt_ms)
    }

    /// Generated tokens per second, without the first, which comes with the prompt; 0 if there were none.
    pub fn predicted_per_second(&self) -> f64 {
        per_second(self.predicted_n.saturating_sub(1), self.predicted_ms)
    }
}

fn per_second(n: u64, ms: f64) -> f64 {
    if ms > 0.0 { n as f64 * 1000.0 / ms } else { 0.0 }
}

/// The experts used for the tokens of an answer, those of the token before each.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RoutedExperts {
    /// Layers that have experts.
    pub layers: usize,
    /// Experts per token in each layer.
    pub per_token: usize,
    /// Texts of the tokens; U+FFFD for a token that is not a whole character.
    pub tokens: Vec<String>,
    /// `[tokens, layers, per_token]`: indices of the experts, the most probable first.
    pub experts: Vec<u16>,
    /// `[tokens, layers]`: the weight of the shared expert, 255 means 1. All 0 without a shared expert.
    pub gates: Vec<u8>,
}

impl RoutedExperts {
    /// Appends the next tokens' experts.
    pub fn extend(&mut self, next: &Self) {
        (self.layers, self.per_token) = (next.layers, next.per_token);
        self.tokens.extend(next.tokens.iter().cloned());
        self.experts.extend(&next.experts);
        self.gates.extend(&next.gates);
    }
}

/// A generated token and its probability.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprob {
    /// Its id, if known.
    pub id: Option<u32>,
    /// Its text; U+FFFD if it is not a whole character.
    pub token: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Natural logarithm of its probability; `None` for the first token of a prompt.
    pub logprob: Option<f32>,
    /// The most probable tokens at this position, best first.
    pub top: Vec<TopLogprob>,
}

/// An alternative token.
#[derive(Debug, Clone, PartialEq)]
pub struct TopLogprob {
    /// Its id, if known.
    pub id: Option<u32>,
    /// Its text.
    pub token: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Natural logarithm of its probability.
    pub logprob: f32,
}
