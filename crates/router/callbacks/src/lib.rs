//! Finished requests, sent to OpenTelemetry collectors (Langfuse among them) and webhooks. Made by the server from the configuration;
//! told of each request when it is over.
//!
//! A request costs a place in a bounded queue for each receiver. A task sends what is there in batches, and tries again what was
//! not taken. What does not fit the queue, or is not taken after some tries, is dropped, counted, and told in the log.

mod context;
mod generic;
mod otlp;
mod queue;
mod record;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use octet_config::{Callback, CallbackForm};
use octet_upstream::Client;

pub use context::TraceContext;
use queue::Queue;
pub use record::{Answered, Attempt, Error, Record};

/// The receivers of a configuration. Dropping it sends what is left to send.
#[derive(Debug, Default)]
pub struct Callbacks {
    receivers: Vec<Receiver>,
    dropped: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Receiver {
    queue: Queue,
    on_success: bool,
    on_failure: bool,
    is_trace: bool,
}

impl Callbacks {
    /// Starts a task for each receiver. Belongs into a runtime of tokio's.
    ///
    /// # Errors
    /// What cannot stand in a request's head.
    pub fn start(settings: &[Callback], client: &Client) -> Result<Self, String> {
        let dropped = Arc::<AtomicU64>::default();
        let mut receivers = Vec::new();
        for callback in settings {
            receivers.push(Receiver {
                queue: Queue::start(callback, client.clone(), Arc::clone(&dropped))?,
                on_success: callback.on_success,
                on_failure: callback.on_failure,
                is_trace: matches!(callback.form, CallbackForm::Otlp { .. }),
            });
        }
        Ok(Self { receivers, dropped })
    }

    /// Whether nobody is to be told.
    pub fn is_empty(&self) -> bool {
        self.receivers.is_empty()
    }

    /// Whether somebody wants spans: then a request has a trace, and names it to whom it asks.
    pub fn traces(&self) -> bool {
        self.receivers.iter().any(|r| r.is_trace)
    }

    /// A request is over.
    pub fn record(&self, record: Record) {
        let (failed, sampled) = (record.error.is_some(), record.context.sampled);
        let wanted = |r: &&Receiver| {
            let is_sampled = !r.is_trace || sampled;
            is_sampled && if failed { r.on_failure } else { r.on_success }
        };
        let record = Arc::new(record);
        for receiver in self.receivers.iter().filter(wanted) {
            receiver.queue.add(Arc::clone(&record));
        }
    }

    /// Records that nobody got.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Sends what is there, for no longer than `most`.
    pub async fn flush(&self, most: Duration) {
        let all = async {
            for receiver in &self.receivers {
                receiver.queue.flush().await;
            }
        };
        if tokio::time::timeout(most, all).await.is_err() {
            tracing::warn!("callbacks: not all of the last requests could be sent");
        }
    }
}
