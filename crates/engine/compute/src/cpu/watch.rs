//! Sums of squared inputs of projections, for importance matrices: where they are. `observe` adds to them.

use std::sync::{Arc, Mutex, PoisonError};

/// What was seen of a projection, or of a stack of experts.
#[derive(Debug, Clone, PartialEq)]
pub struct Watched {
    /// The tensor's name; empty if the loader does not name it.
    pub name: String,
    /// Values of an input.
    pub columns: usize,
    /// Sums of squared inputs `[experts, columns]`.
    pub sums: Vec<f32>,
    /// Inputs seen, of each expert.
    pub counts: Vec<u64>,
}

/// Everything that was seen, in the order of loading. Shared with the caller.
pub type Sink = Arc<Mutex<Vec<Watched>>>;

/// Watches the inputs of projections.
pub(super) struct Watch {
    pub sink: Sink,
    /// Name of the projection that is loaded next.
    pub next: String,
    /// Normalised inputs of the current verb.
    pub inputs: Vec<f32>,
}

impl Watch {
    pub fn name(&mut self, name: &str) {
        self.next = name.into();
    }

    /// A place for the sums of a projection; its number.
    pub fn add(&mut self, experts: usize, columns: usize) -> usize {
        let mut all = self.sink.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(Watched {
            name: std::mem::take(&mut self.next),
            columns,
            sums: vec![0.0; experts * columns],
            counts: vec![0; experts],
        });
        all.len() - 1
    }
}
