//! Requests of several texts, which go to the engine one at a time, or to an encoder some at a time: a list of thousands does not block
//! others.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use octet_api::ApiError;
use octet_engine::engine::{Event, Request, SubmitError};
use octet_engine::scheduler::QueueSlot;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::errors::{engine_error, submit_error};
use super::run::{PromptEvent, QUEUE_PAUSE, Sink};
use crate::inference::Inference;
use crate::models::{Lease, Loaded};

/// A slot in the model's queue for the text of that index. The first may find the queue full; later ones wait, as their request was
/// accepted before.
async fn reserve(model: &Loaded, index: usize) -> Result<QueueSlot, ApiError> {
    loop {
        match model.handle.reserve() {
            Err(SubmitError::QueueFull { .. }) if index > 0 => tokio::time::sleep(QUEUE_PAUSE).await,
            slot => return slot.map_err(|e| submit_error(&e)),
        }
    }
}

/// How many texts of one request are with the engine at a time. An encoder computes several together; in other models, each would take the
/// place of an answer.
pub(super) fn texts_at_once(lease: &Lease) -> usize {
    let rules = lease.model().handle.rules();
    if rules.is_encoder { rules.max_seqs.max(1) } else { 1 }
}

/// What the engine answers to one text.
pub(super) struct Answered(UnboundedReceiver<PromptEvent>);

impl Answered {
    /// The next event; `None` after the last.
    pub(super) async fn next(&mut self) -> Result<Option<Event>, ApiError> {
        match self.0.recv().await {
            Some(PromptEvent { event: Event::Failed(e), .. }) => Err(engine_error(&e)),
            told => Ok(told.map(|t| t.event)),
        }
    }
}

/// Submits the text of that index, `bytes` long, as the request that `make` makes on a blocking thread. Also returns what else it made.
pub(super) async fn submit<T: Send + 'static>(
    inference: &Inference,
    lease: &Lease,
    (index, bytes): (usize, usize),
    make: impl FnOnce(&Loaded, &AtomicBool) -> Result<(Request, T), ApiError> + Send + 'static,
) -> Result<(T, Answered), ApiError> {
    let slot = reserve(lease.model(), index).await?;
    let model = Arc::clone(lease.model());
    let (to, events) = unbounded_channel();
    let submitted = inference.blocking_pool.run(bytes, move |gone| {
        let (request, made) = make(&model, gone)?;
        let sink = Box::new(Sink { prompt: 0, to });
        model.handle.submit_in(slot, request, sink).map_err(|e| submit_error(&e))?;
        Ok(made)
    });
    Ok((submitted.await?, Answered(events)))
}
