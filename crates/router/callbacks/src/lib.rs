//! Reports finished requests to OpenTelemetry collectors (including Langfuse) and webhooks. Created by the server from the
//! configuration; called for each request when it ends.
//!
//! A request takes one place in a bounded queue per receiver. A task sends records in batches, and retries failed ones. Records that
//! do not fit the queue, or fail repeatedly, are dropped, counted, and logged.

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

/// The configured receivers. Dropping it sends the remaining records.
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
    /// Starts a task for each receiver. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// A setting that is not a valid HTTP header.
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

    /// Whether there are no receivers.
    pub fn is_empty(&self) -> bool {
        self.receivers.is_empty()
    }

    /// Whether a receiver wants spans: then each request gets a trace, which is sent to providers.
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

    /// Number of dropped records.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Sends the remaining records, for at most `most`.
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
