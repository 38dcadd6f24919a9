//! Counts of tokens per expert, and the routes of single tokens. Recorded by the verb `moe`; read by reports and answers.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU64, Ordering};

/// Number of tokens for which each expert of each layer was chosen, `[layers, experts]`. Only the thread that runs the steps writes; any
/// thread may read at the same time, without a lock.
#[derive(Debug)]
pub struct ExpertCounts {
    experts: usize,
    tokens: Box<[AtomicU64]>,
    trace: Trace,
}

/// The routes of each token of a step, if requested. As with the counts, one thread writes.
#[derive(Debug, Default)]
struct Trace {
    on: AtomicBool,
    layers: usize,
    tokens: usize,
    top_k: usize,
    /// Allocated at the first request.
    room: OnceLock<TraceRoom>,
}

#[derive(Debug)]
struct TraceRoom {
    /// `[tokens, layers, top_k]`
    experts: Box<[AtomicU16]>,
    /// `[tokens, layers]`: the weight of the shared expert, 255 is 1.
    gates: Box<[AtomicU8]>,
}

/// Where one token went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRoutes {
    /// `[layers, top_k]`: its experts, the most likely first.
    pub experts: Box<[u16]>,
    /// `[layers]`: the weight of the shared expert, 255 is 1. All 0 if there is none.
    pub gates: Box<[u8]>,
}

impl ExpertCounts {
    /// All counts are 0; without experts there is nothing to count.
    pub fn new(layers: usize, experts: usize) -> Self {
        let tokens = (0..layers * experts).map(|_| AtomicU64::new(0)).collect();
        Self { experts, tokens, trace: Trace::default() }
    }

    /// Enables [`ExpertCounts::trace`] for the first `layers` layers, in steps of up to `tokens` tokens with `top_k` experts each. For
    /// backends that call [`ExpertCounts::record`].
    pub fn with_trace(mut self, layers: usize, tokens: usize, top_k: usize) -> Self {
        self.trace = Trace { layers, tokens, top_k, ..Trace::default() };
        self
    }

    /// Turns the recording of routes on or off for the next steps. Called between steps.
    pub fn trace(&self, on: bool) {
        let t = &self.trace;
        let on = on && t.layers * t.tokens * t.top_k > 0;
        if on {
            t.room.get_or_init(|| TraceRoom {
                experts: (0..t.tokens * t.layers * t.top_k).map(|_| AtomicU16::new(0)).collect(),
                gates: (0..t.tokens * t.layers).map(|_| AtomicU8::new(0)).collect(),
            });
        }
        t.on.store(on, Ordering::Relaxed);
    }

    /// Whether routes are recorded.
    #[inline]
    pub fn is_traced(&self) -> bool {
        self.trace.on.load(Ordering::Relaxed)
    }

    /// Records the route of a token of the step in `layer`: its experts, the most likely first, and the weight of the shared one. Layers
    /// beyond the traced ones are ignored.
    pub fn record(&self, layer: usize, token: usize, experts: impl Iterator<Item = usize>, gate: f32) {
        let t = &self.trace;
        let Some(room) = t.room.get().filter(|_| layer < t.layers && token < t.tokens) else { return };
        let at = token * t.layers + layer;
        for (slot, expert) in room.experts[at * t.top_k..(at + 1) * t.top_k].iter().zip(experts) {
            slot.store(expert as u16, Ordering::Relaxed);
        }
        room.gates[at].store((gate * 255.0).round() as u8, Ordering::Relaxed);
    }

    /// The route of a token of the last step; `None` if routes were not recorded, or the backend does not support it.
    pub fn routes(&self, token: usize) -> Option<TokenRoutes> {
        let t = &self.trace;
        let room = t.room.get().filter(|_| self.is_traced() && token < t.tokens)?;
        let experts = &room.experts[token * t.layers * t.top_k..(token + 1) * t.layers * t.top_k];
        let gates = &room.gates[token * t.layers..(token + 1) * t.layers];
        Some(TokenRoutes {
            experts: experts.iter().map(|e| e.load(Ordering::Relaxed)).collect(),
            gates: gates.iter().map(|g| g.load(Ordering::Relaxed)).collect(),
        })
    }

    /// Number of experts of a layer.
    pub fn experts(&self) -> usize {
        self.experts
    }

    /// The current counts of each layer.
    pub fn layers(&self) -> impl Iterator<Item = Vec<u64>> {
        let layers = self.tokens.chunks_exact(self.experts.max(1));
        layers.map(|layer| layer.iter().map(|n| n.load(Ordering::Relaxed)).collect())
    }

    /// Resets all counts.
    pub fn clear(&self) {
        self.tokens.iter().for_each(|n| n.store(0, Ordering::Relaxed));
    }

    /// Adds to the count of an expert.
    #[inline]
    pub fn add(&self, layer: usize, expert: usize, tokens: usize) {
        let n = &self.tokens[layer * self.experts + expert];
        // No other thread writes, so a load and a store suffice; they are as fast as plain memory accesses.
        n.store(n.load(Ordering::Relaxed) + tokens as u64, Ordering::Relaxed);
    }
}
