//! Bytes of weights, states, keys and values read by steps, counted as in the CPU backend: each once per verb, even if a kernel reads
//! something twice. The verbs add to it; `steps` stores it with the recording.

use octet_compute::batch::Batch;

use crate::backend::Weight;
use crate::cache::{Cache, LayerStore, device_row_bytes};
use crate::weights::row_bytes;

/// The reads of a step, by what they depend on. Routed experts are counted after the step, by the chosen ones.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Traffic {
    /// The same in each step of a shape: weights, rows of embeddings.
    fixed: u64,
    /// Keys and values of a position.
    position: u64,
    /// States of a sequence, read and written.
    span: u64,
    /// Routed experts, as many as a step of its tokens chooses at most. [`Traffic::of`] has none of them.
    routed: u64,
}

impl Traffic {
    pub(crate) fn add(&mut self, bytes: u64) {
        self.fixed += bytes;
    }

    pub(crate) fn add_weights(&mut self, weights: &[&Weight]) {
        self.fixed += weights.iter().map(|w| w.bytes()).sum::<u64>();
    }

    /// A verb works on the cache of this layer.
    pub(crate) fn add_layer(&mut self, cache: &Cache, layer: usize) {
        match &cache.layers[layer] {
            LayerStore::Kv { heads, dims, .. } => {
                let types = [cache.kv.keys, cache.kv.values];
                let rows: usize =
                    types.into_iter().zip(dims).map(|(ty, dim)| device_row_bytes(ty, *dim)).sum();
                self.position += (heads * rows) as u64;
            }
            LayerStore::None => {}
            LayerStore::State { conv_bytes, state_bytes, .. } => self.span += 2 * (conv_bytes + state_bytes),
        }
    }

    /// A stage reads the matrix of `experts` of its experts.
    pub(crate) fn add_routed(&mut self, weight: &Weight, experts: usize) {
        self.routed += weight.bytes() * experts as u64;
    }

    /// Bytes that were added since `before`, in a step with so many positions and sequences.
    pub(crate) fn since(&self, before: &Self, positions: u64, sequences: u64) -> u64 {
        let once = (self.fixed - before.fixed) + (self.routed - before.routed);
        once + (self.position - before.position) * positions + (self.span - before.span) * sequences
    }

    /// Bytes of a step with this batch.
    pub(crate) fn of(self, batch: &Batch) -> u64 {
        let positions: usize = batch.spans().iter().map(|s| s.past + s.len).sum();
        self.fixed + self.position * positions as u64 + self.span * batch.spans().len() as u64
    }
}

impl Weight {
    /// Bytes of the matrix, or of one expert's.
    pub(crate) fn bytes(&self) -> u64 {
        row_bytes(self.ty, self.cols).iter().sum::<u64>() * self.rows as u64
    }
}
