//! Why a server cannot be had. Made by `processes` and `supervise`, told to clients by the router.

use std::time::Duration;

/// Why a server cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No entry has that name.
    #[error("there is no process '{0}'")]
    Unknown(String),
    /// It was started, and did not get ready.
    #[error("process '{id}' did not start: {why}{}", said(.log))]
    Start {
        /// The entry.
        id: String,
        /// What happened.
        why: String,
        /// The last lines that it wrote.
        log: Vec<String>,
    },
    /// It did not start just now, and is not tried again yet.
    #[error("process '{id}' did not start a moment ago, and is tried again in {} s at the earliest: {why}", .retry_after.as_secs() + 1)]
    Resting {
        /// The entry.
        id: String,
        /// What happened.
        why: String,
        /// When it may be tried again.
        retry_after: Duration,
    },
    /// Too many wait for it.
    #[error("{waiting} requests wait for process '{id}' already")]
    QueueFull {
        /// The entry.
        id: String,
        /// How many wait.
        waiting: usize,
    },
    /// The server ends, or the entry is no longer in the configuration.
    #[error("process '{0}' is being ended, and takes no more requests")]
    Ending(String),
    /// An entry that cannot be run.
    #[error("process '{id}': {why}")]
    Invalid {
        /// The entry.
        id: String,
        /// What is wrong, and what to do.
        why: String,
    },
    /// There is no runtime to run in.
    #[error("processes need a Tokio runtime to be made in")]
    NoRuntime,
}

fn said(log: &[String]) -> String {
    if log.is_empty() {
        "; it wrote nothing".into()
    } else {
        format!("; its last lines:\n  {}", log.join("\n  "))
    }
}
