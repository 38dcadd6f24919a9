//! Errors of starting servers. Created by `processes` and `supervise`, reported to clients by the router.

use std::time::Duration;

/// Why a server is unavailable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No entry has that name.
    #[error("there is no process '{0}'")]
    Unknown(String),
    /// It was started, but did not become ready.
    #[error("process '{id}' did not start: {why}{}", last_lines(.log))]
    Start {
        /// The entry.
        id: String,
        /// What happened.
        why: String,
        /// The last lines that it wrote.
        log: Vec<String>,
    },
    /// It failed to start recently, and is not retried yet.
    #[error("process '{id}' failed to start recently, and is retried after {} s: {why}", .retry_after.as_secs() + 1)]
    Resting {
        /// The entry.
        id: String,
        /// What happened.
        why: String,
        /// When it may be retried.
        retry_after: Duration,
    },
    /// Too many requests wait for it.
    #[error("{waiting} requests are already waiting for process '{id}'")]
    QueueFull {
        /// The entry.
        id: String,
        /// The number of waiting requests.
        waiting: usize,
    },
    /// The server is shutting down, or the entry was removed from the configuration.
    #[error("process '{0}' is stopping, and accepts no more requests")]
    Ending(String),
    /// The entry is invalid.
    #[error("process '{id}': {why}")]
    Invalid {
        /// The entry.
        id: String,
        /// What is wrong, and what to do.
        why: String,
    },
    /// There is no tokio runtime.
    #[error("processes must be created inside a Tokio runtime")]
    NoRuntime,
}

/// The end of what a process wrote, for its error.
fn last_lines(log: &[String]) -> String {
    if log.is_empty() {
        "; it wrote nothing".into()
    } else {
        format!("; its last lines:\n  {}", log.join("\n  "))
    }
}
