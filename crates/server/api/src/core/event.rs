//! What happens while an answer is generated, in no dialect. Made by the engine's server or a provider's reader; written
//! by each dialect's stream writer, or gathered into an [`Answer`](super::Answer).

use serde_json::{Map, Value};

use crate::ApiError;

/// One step of an answer.
///
/// The order is: `Started`; for each choice reasoning, text and calls as they come, then its `Finished`; `Usage`;
/// `Timings`. Choices may be interleaved, calls of one choice may not: a call is complete where the next begins. An `Error`
/// ends everything. Later `Usage` and `Timings` replace earlier.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The answer begins.
    Started {
        /// Unique. Each dialect puts its own prefix before it.
        id: String,
        /// The model's name as the client knows it.
        model: String,
        /// Seconds since 1970 UTC.
        created_s: u64,
        /// What is known of the prompt already.
        usage: Option<Usage>,
    },
    /// Some of what the model thinks.
    Reasoning {
        /// Which answer.
        choice: u32,
        /// The next piece; never cut within a character.
        text: String,
    },
    /// The provider's proof that the reasoning before this is its own.
    ReasoningSignature {
        /// Which answer.
        choice: u32,
        /// Opaque.
        signature: String,
    },
    /// Reasoning that only its provider can read.
    RedactedReasoning {
        /// Which answer.
        choice: u32,
        /// Opaque.
        data: String,
    },
    /// Some of the answer.
    Text {
        /// Which answer.
        choice: u32,
        /// The next piece; never cut within a character.
        text: String,
    },
    /// A call begins.
    ToolCallStart {
        /// Which answer.
        choice: u32,
        /// Which call of it, from 0.
        index: u32,
        /// Names the call for its answer.
        id: String,
        /// The tool's name.
        name: String,
    },
    /// Some of a call's arguments.
    ToolCallArguments {
        /// Which answer.
        choice: u32,
        /// Which call of it: the last that began.
        index: u32,
        /// The next piece of a JSON object as text.
        text: String,
    },
    /// Log-probabilities of the tokens whose text comes next.
    Logprobs {
        /// Which answer.
        choice: u32,
        /// In order.
        tokens: Vec<TokenLogprob>,
    },
    /// Ids of the tokens whose text comes next, where [`Reporting::tokens`](super::Reporting) asks.
    Tokens {
        /// Which answer.
        choice: u32,
        /// In order.
        ids: Vec<u32>,
    },
    /// Experts of the tokens whose text comes next, where [`Reporting::experts`](super::Reporting) asks.
    RoutedExperts {
        /// Which answer.
        choice: u32,
        /// In order.
        tokens: RoutedExperts,
    },
    /// How far the prompts are processed, where [`Reporting::progress`](super::Reporting) asks.
    Progress {
        /// Tokens that are done, those from the cache included.
        done: u64,
        /// Tokens of all prompts.
        total: u64,
        /// Tokens that came from the cache.
        cached: u64,
        /// Time since work on them began.
        ms: f64,
    },
    /// What the request came to, where [`Reporting::applied`](super::Reporting) asks.
    Applied(Box<Applied>),
    /// An answer is complete.
    Finished {
        /// Which.
        choice: u32,
        /// Why it ends here.
        reason: FinishReason,
    },
    /// Tokens counted, over all choices.
    Usage(Usage),
    /// How long it took.
    Timings(Timings),
    /// It went wrong; nothing follows.
    Error(ApiError),
}

impl Event {
    /// A whole call at once.
    pub fn tool_call(choice: u32, index: u32, id: &str, name: &str, arguments: &str) -> [Self; 2] {
        [
            Self::ToolCallStart { choice, index, id: id.into(), name: name.into() },
            Self::ToolCallArguments { choice, index, text: arguments.into() },
        ]
    }
}

/// What a request came to.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Applied {
    /// The prompts as text.
    pub prompts: Vec<String>,
    /// The settings, in llama.cpp's names.
    pub settings: Map<String, Value>,
}

/// Why an answer ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FinishReason {
    /// The model is done.
    Stop,
    /// One of the request's stop texts came.
    StopSequence(String),
    /// The answer's or the context's limit.
    Length,
    /// The model waits for the tools that it called.
    ToolCalls,
    /// The provider, or the model, will not say more.
    ContentFilter,
}

/// Tokens counted. `None` where the source does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Of the prompt, cached ones included.
    pub prompt_tokens: u64,
    /// Of the prompt, not computed again.
    pub cached_tokens: Option<u64>,
    /// Of the prompt, newly put into a cache (providers bill these).
    pub cache_written_tokens: Option<u64>,
    /// Of the answers, reasoning included.
    pub completion_tokens: u64,
    /// Of the answers, spent on thinking.
    pub reasoning_tokens: Option<u64>,
}

impl Usage {
    /// Prompt and answers.
    pub fn total_tokens(&self) -> u64 {
        self.prompt_tokens.saturating_add(self.completion_tokens)
    }
}

/// How long an answer took, in llama.cpp's terms.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Timings {
    /// Prompt tokens that came from a cache.
    pub cache_n: u64,
    /// Prompt tokens that were computed.
    pub prompt_n: u64,
    /// Time for them.
    pub prompt_ms: f64,
    /// Tokens generated.
    pub predicted_n: u64,
    /// Time for them.
    pub predicted_ms: f64,
    /// Time to load the model; 0 if it was.
    pub load_ms: f64,
    /// From the request to the end of the answer.
    pub total_ms: f64,
    /// Tokens that were guessed ahead, and how many of them held.
    pub draft: Option<(u64, u64)>,
}

impl Timings {
    /// Prompt tokens a second, without those from the cache; 0 if there were none.
    pub fn prompt_per_second(&self) -> f64 {
        per_second(self.prompt_n, self.prompt_ms)
    }

    /// Generated tokens a second, without the first, which comes with the prompt; 0 if there were none.
    pub fn predicted_per_second(&self) -> f64 {
        per_second(self.predicted_n.saturating_sub(1), self.predicted_ms)
    }
}

fn per_second(n: u64, ms: f64) -> f64 {
    if ms > 0.0 { n as f64 * 1000.0 / ms } else { 0.0 }
}

/// The experts that chose tokens of an answer: those that the token before each was given to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RoutedExperts {
    /// Layers that have experts.
    pub layers: usize,
    /// Experts of each layer that a token is given to.
    pub per_token: usize,
    /// Texts of the tokens; U+FFFD where one is no whole character.
    pub tokens: Vec<String>,
    /// `[tokens, layers, per_token]`: numbers of the experts, the likeliest first.
    pub experts: Vec<u16>,
    /// `[tokens, layers]`: the weight of the shared expert, 255 is 1. All 0 where there is none.
    pub gates: Vec<u8>,
}

impl RoutedExperts {
    /// Adds those of the tokens that follow.
    pub fn extend(&mut self, next: &Self) {
        (self.layers, self.per_token) = (next.layers, next.per_token);
        self.tokens.extend(next.tokens.iter().cloned());
        self.experts.extend(&next.experts);
        self.gates.extend(&next.gates);
    }
}

/// A token of the answer and how probable it was.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprob {
    /// Its id, where that is known.
    pub id: Option<u32>,
    /// Its text; U+FFFD where it is no whole character.
    pub token: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Natural logarithm of its probability; `None` for the first token of a prompt.
    pub logprob: Option<f32>,
    /// The most probable tokens at this place, best first.
    pub top: Vec<TopLogprob>,
}

/// A token that might have been.
#[derive(Debug, Clone, PartialEq)]
pub struct TopLogprob {
    /// Its id, where that is known.
    pub id: Option<u32>,
    /// Its text.
    pub token: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Natural logarithm of its probability.
    pub logprob: f32,
}
