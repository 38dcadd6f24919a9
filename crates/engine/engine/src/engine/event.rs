//! The events that a request's listener gets, in this order: `Admitted`, some `PromptProgress`, `PromptLogprobs` or `Embedding`
//! where they were asked for, `Token`s, one `Done` for each choice. Or `Failed`, at any point and as the last.

use std::ops::ControlFlow;
use std::sync::mpsc::Sender;
use std::time::Duration;

use octet_compute::TokenRoutes;

use crate::Error;
pub use crate::cache::{Miss, MissReport};

/// Something happened to a request.
#[derive(Debug)]
pub enum Event {
    /// It left the queue and is being computed.
    Admitted {
        /// Tokens of the prompt that are not computed again.
        cached_tokens: usize,
        /// The seed that the first choice is drawn with: the same request with this seed gives the same answer.
        seed: u64,
        /// Why not more of them, where [`super::Request::explain_miss`] asks.
        miss: Option<Box<MissReport>>,
    },
    /// A part of the prompt is done.
    PromptProgress {
        /// Tokens in the cache, those found there included.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// Log-probabilities of the prompt's tokens from the second on, each given those before it.
    PromptLogprobs(Vec<TokenLogprob>),
    /// The state after the last norm, pooled, `[hidden]`; not normalised to length 1.
    Embedding(Vec<f32>),
    /// A token of the answer.
    Token {
        /// Which of [`super::Request::n`] answers.
        choice: u32,
        /// The token.
        id: u32,
        /// Text that is certain with it: whole characters, no part of a stop string. Often empty, and then holds
        /// nothing back for good: the last token of an answer brings what was held.
        text: String,
        /// Where they were asked for.
        logprob: Option<TokenLogprob>,
        /// Where the token before it went, whose logits it was chosen from: where [`super::Request::routes`] asks, the model has
        /// experts and its device says. With all layers but the block for multi-token prediction.
        routes: Option<Box<TokenRoutes>>,
    },
    /// A choice is finished.
    Done {
        /// Which.
        choice: u32,
        /// Why.
        finish: Finish,
        /// The stop string that was found.
        stop: Option<String>,
        /// What it took.
        usage: Usage,
        /// How long it took.
        timings: Timings,
    },
    /// The request cannot be finished. Nothing follows.
    Failed(Error),
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// The model said that it is done, or a constraint was satisfied and allows nothing more.
    EndOfText,
    /// A stop string came.
    StopString,
    /// One of [`super::Request::stop_token_ids`] came.
    StopToken,
    /// `max_tokens` or the context is used up.
    Length,
    /// The caller asked for it.
    Cancelled,
}

/// A token's log-probability, and those of its likeliest rivals.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub struct TokenLogprob {
    pub id: u32,
    pub logprob: f32,
    pub top: Vec<(u32, f32)>,
}

/// Tokens that a choice took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Those of them that were not computed for this request.
    pub cached_tokens: usize,
    /// Tokens of the answer, the one that ended it included.
    pub completion_tokens: usize,
}

/// Where the time went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Timings {
    /// In the queue.
    pub queued: Duration,
    /// From there to the first token of the answer.
    pub prompt: Duration,
    /// From the first token to the last.
    pub generation: Duration,
    /// Guesses that were computed (speculative decoding).
    pub drafted: usize,
    /// Accepted guesses: tokens that needed no step of their own.
    pub accepted: usize,
}

/// Where events go. Called from the engine's thread, between steps: it must not wait.
pub trait EventSink: Send {
    /// Takes the next event; `Break` cancels the request.
    fn send(&mut self, event: Event) -> ControlFlow<()>;
    /// True when nobody listens any more: the request is cancelled before the next step, even in the queue.
    fn is_closed(&self) -> bool {
        false
    }
}

/// A channel of the standard library. Its sender cannot see that the receiver is gone until it sends.
impl EventSink for Sender<Event> {
    fn send(&mut self, event: Event) -> ControlFlow<()> {
        match Sender::send(self, event) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    }
}
