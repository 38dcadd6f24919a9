//! The limits of a deployment, as `state` and `choose` know them of other processes. `shared` has how they are asked.

use std::fmt::Debug;
use std::time::Duration;

/// A limit of a deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitKind {
    /// Requests per minute.
    Rpm,
    /// Tokens per minute.
    Tpm,
    /// Tokens per minute, with what running requests may still take.
    Reserved,
    /// Concurrent requests.
    Parallel,
}

/// The tokens that a request may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExpectedTokens {
    /// Of its prompt, about.
    pub prompt: u64,
    /// Of its answers, at most. Reserved as long as it runs.
    pub answer: u64,
}

/// All processes together have reached a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exhausted {
    /// The limit.
    pub limit: LimitKind,
    /// When another request may be possible.
    pub retry_after: Duration,
}

/// A request that was counted for all processes; it ends when this is dropped.
pub trait SharedPermit: Debug + Send + Sync {
    /// It took this many tokens.
    fn answered(&mut self, tokens: u64);
}
