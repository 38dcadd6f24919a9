//! How many tokens each expert was chosen for: counted by the verb `moe`, read by whoever wants to know.

use std::sync::atomic::{AtomicU64, Ordering};

/// Tokens that each expert of each layer was chosen for, `[layers, experts]`. One thread counts, the one that runs the
/// steps; any may read meanwhile, and no one waits for another.
#[derive(Debug)]
pub struct ExpertCounts {
    experts: usize,
    tokens: Box<[AtomicU64]>,
}

impl ExpertCounts {
    /// All at 0; with no experts there is nothing to count.
    pub fn new(layers: usize, experts: usize) -> Self {
        Self { experts, tokens: (0..layers * experts).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Experts of a layer.
    pub fn experts(&self) -> usize {
        self.experts
    }

    /// The counts of each layer, as they are now.
    pub fn layers(&self) -> impl Iterator<Item = Vec<u64>> {
        let layers = self.tokens.chunks_exact(self.experts.max(1));
        layers.map(|layer| layer.iter().map(|n| n.load(Ordering::Relaxed)).collect())
    }

    /// Counts tokens that are on their way to an expert. Called by backends, on the thread that runs the steps.
    #[inline]
    pub fn add(&self, layer: usize, expert: usize, tokens: usize) {
        let n = &self.tokens[layer * self.experts + expert];
        // No other thread writes: a load and a store do, which cost what plain memory costs.
        n.store(n.load(Ordering::Relaxed) + tokens as u64, Ordering::Relaxed);
    }
}
