//! The events that a request's sink receives, in this order: `Admitted`; `PromptProgress`; `PromptLogprobs` or `Embedding` if
//! requested; `Token`s; one `Done` per choice. `Failed` may come at any time, as the last one.

use std::ops::ControlFlow;
use std::sync::mpsc::Sender;
use std::time::Duration;

use octet_compute::TokenRoutes;

use crate::Error;
pub use crate::cache::{Miss, MissReport};

/// An event of a request.
#[derive(Debug)]
pub enum Event {
    /// It left the queue and is being computed.
    Admitted {
        /// Cached prompt tokens.
        cached_tokens: usize,
        /// The seed of the first choice: the same request with this seed gives the same answer.
        seed: u64,
        /// Why not more were cached, if [`super::Request::explain_miss`].
        miss: Option<Box<MissReport>>,
    },
    /// A part of the prompt is computed.
    PromptProgress {
        /// Tokens in the cache, reused ones included.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// Log-probabilities of the prompt's tokens from the second on, each given those before it.
    PromptLogprobs(Vec<TokenLogprob>),
    /// The hidden state after the last norm, pooled, `[hidden]`; not normalised to length 1.
    Embedding(Vec<f32>),
    /// A token of the answer.
    Token {
        /// The choice, less than [`super::Request::n`].
        choice: u32,
        /// The token.
        id: u32,
        /// Text that is complete with it: whole characters, without any part of a stop string. Often empty; the last token of an
        /// answer includes all held-back text.
        text: String,
        /// If requested.
        logprob: Option<TokenLogprob>,
        /// The experts of the token before it, from whose logits it was chosen: if [`super::Request::routes`], the model has experts,
        /// and its device reports them. For all layers except the block for multi-token prediction.
        routes: Option<Box<TokenRoutes>>,
    },
    /// A choice is finished.
    Done {
        /// The choice.
        choice: u32,
        /// Why.
        finish: Finish,
        /// The stop string that ended it.
        stop: Option<String>,
        /// Token counts.
        usage: Usage,
        /// Times.
        timings: Timings,
    },
    /// The request failed. Nothing follows.
    Failed(Error),
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// The model ended it, or its constraint is complete.
    EndOfText,
    /// A stop string.
    StopString,
    /// One of [`super::Request::stop_token_ids`].
    StopToken,
    /// `max_tokens` or the context was reached.
    Length,
    /// The caller cancelled it.
    Cancelled,
}

/// A token's log-probability, and those of the most probable alternatives.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub struct TokenLogprob {
    pub id: u32,
    pub logprob: f32,
    pub top: Vec<(u32, f32)>,
}

/// Token counts of a choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Cached ones among them.
    pub cached_tokens: usize,
    /// Tokens of the answer, the last one included even if it is not text.
    pub completion_tokens: usize,
}

/// Times of a choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Timings {
    /// In the queue.
    pub queued: Duration,
    /// From there to the first token.
    pub prompt: Duration,
    /// From the first token to the last.
    pub generation: Duration,
    /// Computed guesses (speculative decoding).
    pub drafted: usize,
    /// Accepted guesses.
    pub accepted: usize,
}

/// Receives a request's events. Called on the engine's thread between steps: it must not block.
pub trait EventSink: Send {
    /// Receives an event; `Break` cancels the request.
    fn send(&mut self, event: Event) -> ControlFlow<()>;
    /// True if the receiver is gone: the request is cancelled before the next step, even in the queue.
    fn is_closed(&self) -> bool {
        false
    }
}

/// A standard channel. Its sender notices a dropped receiver only when it sends.
impl EventSink for Sender<Event> {
    fn send(&mut self, event: Event) -> ControlFlow<()> {
        match Sender::send(self, event) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    }
}
