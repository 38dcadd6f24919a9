//! Bytes of weights, states, keys and values read by steps, counted as in the CPU backend: each once per verb, even if a kernel reads
//! something twice. The verbs add to it (`reads`); `steps` stores it with the recording.

use octet_compute::batch::Batch;

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

    /// So many bytes for each position.
    pub(crate) fn add_per_position(&mut self, bytes: u64) {
        self.position += bytes;
    }

    /// So many bytes for each sequence.
    pub(crate) fn add_per_sequence(&mut self, bytes: u64) {
        self.span += bytes;
    }

    /// So many bytes of routed experts.
    pub(crate) fn add_of_experts(&mut self, bytes: u64) {
        self.routed += bytes;
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
