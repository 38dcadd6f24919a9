//! An engine on a thread of its own, and handles by which any other thread gives it work. Used by `octet serve`.
//!
//! The thread owns model and caches; nothing of them is shared, so a step takes no lock. Requests are checked on the
//! thread that submits them and come through a channel; events go to each request's own [`EventSink`].

mod handle;
mod work;

use std::time::Duration;

use crate::engine;
pub use crate::engine::{Event, EventSink, Request, Rules, SubmitError};
pub use handle::{Handle, ModelInfo, Place};

/// How a model is served.
#[derive(Debug, Clone)]
pub struct Options {
    /// The model and its caches.
    pub engine: engine::Options,
    /// Most sequences that may wait, besides those that run; at least 1. More are refused with [`SubmitError::QueueFull`].
    pub queue: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { engine: engine::Options { max_seqs: 8, ..engine::Options::default() }, queue: 128 }
    }
}

/// How to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shutdown {
    /// Finish everything that was accepted.
    Drain,
    /// Cancel everything after the step that is running.
    Now,
}

/// Bounds of [`SubmitError::QueueFull::retry_after`].
const RETRY: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(60);
