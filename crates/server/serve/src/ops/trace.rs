//! The id and the figures of a request, filled in by the pipeline and the router, for the log and the list of requests.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Figures of a request, filled in by the pipeline.
#[derive(Debug, Clone, Default)]
pub struct Figures {
    /// The model's name.
    pub model: String,
    /// Time to the first token.
    pub ttft: Option<Duration>,
    /// Tokens per second after that.
    pub rate: Option<f64>,
    /// Prompt tokens from the cache.
    pub cached: u64,
    /// Prompt tokens.
    pub prompt: u64,
    /// Answer tokens.
    pub completion: u64,
    /// The route, if the router answered.
    pub route: Option<String>,
    /// The deployment that answered.
    pub deployment: Option<String>,
    /// The model that the client asked the router for.
    pub requested: Option<String>,
    /// The name of the client's key.
    pub key: Option<String>,
    /// The request's `user`.
    pub user: Option<String>,
    /// The cost in US dollars, if it is counted.
    pub cost: Option<f64>,
    /// An error after the answer had begun.
    pub error: Option<String>,
    /// Why the request was refused: error code and field.
    pub refused: Option<String>,
}

/// A request's id and figures, an extension of the request.
#[derive(Debug, Clone)]
pub struct Trace {
    /// The request id in logs, errors and answers.
    pub id: Arc<str>,
    figures: Arc<Mutex<Figures>>,
    /// When the request arrived.
    pub began: Instant,
}

impl Default for Trace {
    /// A new id. It need not be secret, so no system call for randomness is made for each request.
    fn default() -> Self {
        let id = format!("req_{:032x}", fastrand::u128(..));
        Self { id: id.into(), figures: Arc::default(), began: Instant::now() }
    }
}

impl Trace {
    pub(super) fn figures(&self) -> MutexGuard<'_, Figures> {
        self.figures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fills in figures.
    pub fn note(&self, with: impl FnOnce(&mut Figures)) {
        with(&mut self.figures());
    }

    /// Reads figures.
    pub fn read<T>(&self, with: impl FnOnce(&Figures) -> T) -> T {
        with(&self.figures())
    }
}
