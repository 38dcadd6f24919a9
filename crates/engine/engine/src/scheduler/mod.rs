//! Runs an engine on its own thread, with handles for other threads.
//!
//! The thread owns model and caches and shares neither, so a step takes no lock. Requests are checked on the submitting thread and
//! sent through a channel; events go to each request's [`EventSink`].

mod handle;
mod work;

use std::time::Duration;

use crate::engine;
pub use crate::engine::{Event, EventSink, Request, Rules, SubmitError};
pub use handle::{Handle, ModelInfo, QueueSlot};

/// Settings of an engine's thread.
#[derive(Debug, Clone)]
pub struct Options {
    /// The model and its caches.
    pub engine: engine::Options,
    /// Maximum number of waiting sequences, besides the running ones; at least 1. Further requests are refused with
    /// [`SubmitError::QueueFull`].
    pub queue: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { engine: engine::Options { max_seqs: 8, ..engine::Options::default() }, queue: 128 }
    }
}

/// How to shut down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shutdown {
    /// Finish all accepted requests.
    Drain,
    /// Cancel all requests after the current step.
    Now,
}

/// The range of [`SubmitError::QueueFull::retry_after`].
const RETRY: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(60);
