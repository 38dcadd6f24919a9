//! Working memory of the verbs. Allocated by `backend` when it makes the cache, used by every verb.

use super::activations::Activations;
use super::kind::ROWS;
use super::memory::Buf;
use super::plan::{Plan, TILE_QUERIES};
use super::routes::Routes;
use super::store::Round;
use super::vector::{attend_scratch_len, gdn_scratch_len, partial_len};
use crate::backend::{CacheShape, Error, LayerCache, StepShape};
use crate::batch::Batch;

/// Tokens that a chunk of weights is multiplied with before it is read again: their activations stay in the L2 cache.
pub(super) const TOKEN_BLOCK: usize = 128;
/// Up to this many tokens, every thread quantises all of them for itself, which is faster than a barrier.
pub(super) const PRIVATE_TOKENS: usize = 1;

/// Working memory of the verbs, allocated once for the largest step.
pub(super) struct Scratch {
    /// Normalised inputs of projections `[tokens]`.
    pub acts: Activations,
    /// Inputs of products by heads `[tokens, heads]`.
    pub head_acts: Activations,
    /// Hidden activations of the dense MLP or of the shared expert `[tokens]`.
    pub hidden_acts: Activations,
    /// Hidden activations of routed experts `[tokens * top_k]`.
    pub expert_acts: Activations,
    /// f32 rows before they are quantised: dense or shared `[tokens, intermediate]`.
    pub hidden: Buf,
    /// Routed `[tokens * top_k, intermediate]`.
    pub expert_hidden: Buf,
    /// `[tokens, experts]`
    pub router: Buf,
    /// Weight of the shared expert `[tokens]`.
    pub shared: Buf,
    /// Experts and weights of each token.
    pub routes: Routes,
    /// Two rounds of experts: one that is computed, and one that is read.
    pub rounds: [Round; 2],
    /// Convolved queries, keys and values, and their gates.
    pub delta: DeltaScratch,
    /// `0..`: the tokens of a step, and its assignments, as the kernels take them.
    pub tokens: Vec<u32>,
    pub assignments: Vec<u32>,
    /// Partial results of attention.
    pub partials: Buf,
    pub attend: Plan,
    /// `[threads, per_thread]`
    pub threads: Buf,
    pub per_thread: usize,
}

impl Scratch {
    /// For steps of up to `step` over a cache of this shape, by `threads` threads; `widest` is the widest input of any projection.
    pub fn new(shape: &CacheShape, step: StepShape, threads: usize, widest: usize) -> Result<Self, Error> {
        let tokens = step.tokens;
        let (routed, room) = (tokens * step.top_k, tokens.max(PRIVATE_TOKENS * threads));
        let chunk_rows = step.heads * Plan::chunk_rows(shape.pages, shape.slots);
        let mut per_thread = widest.max(2 * TOKEN_BLOCK * ROWS);
        let mut partials = 0;
        for l in &shape.layers {
            match *l {
                LayerCache::Kv { k_dim, v_dim, .. } => {
                    // Values in the keys are at most as wide as these.
                    let v_dim = if v_dim > 0 { v_dim } else { k_dim };
                    let queries = TILE_QUERIES.max(step.heads);
                    per_thread = per_thread.max(attend_scratch_len(queries, k_dim, v_dim));
                    partials = partials.max(chunk_rows * partial_len(v_dim));
                }
                LayerCache::State { .. } => {
                    per_thread = per_thread.max(gdn_scratch_len(step.recurrent[3])).max(step.recurrent[4]);
                }
                LayerCache::None => {}
            }
        }
        // A router's scores by which experts are chosen.
        per_thread = per_thread.max(2 * step.experts);
        let [heads, head_cols] = step.per_head;
        let per_thread = per_thread.next_multiple_of(16);
        Ok(Self {
            acts: Activations::new(room, widest)?,
            head_acts: Activations::new(room * heads, head_cols)?,
            hidden_acts: Activations::new(room, step.intermediate)?,
            expert_acts: Activations::new(room * step.top_k, step.expert_intermediate)?,
            hidden: Buf::zeroed(tokens * step.intermediate)?,
            expert_hidden: Buf::zeroed(routed * step.expert_intermediate)?,
            router: Buf::zeroed(tokens * step.experts)?,
            shared: Buf::zeroed(tokens)?,
            tokens: (0..tokens as u32).collect(),
            assignments: (0..routed as u32).collect(),
            routes: Routes::new(tokens, step.top_k, step.experts),
            rounds: [(); 2].map(|()| Round::with_capacity(step.experts)),
            delta: DeltaScratch::new(shape, step)?,
            partials: Buf::zeroed(partials)?,
            attend: Plan::new(tokens, step.heads, shape.pages, shape.slots),
            threads: Buf::zeroed(threads * per_thread)?,
            per_thread,
        })
    }
}

/// What lies between the phases, by head so that a head's tokens are contiguous.
pub(super) struct DeltaScratch {
    /// `[k_heads, tokens, k_dim]`
    pub q: Buf,
    /// `[k_heads, tokens, k_dim]`
    pub k: Buf,
    /// `k . q`: `[k_heads, tokens]`
    pub kq: Buf,
    /// Values, then outputs: `[v_heads, tokens, v_dim]`
    pub v: Buf,
    /// `[tokens, v_heads]`
    pub beta: Buf,
    /// `[tokens, v_heads]`, or `[tokens, v_heads, k_dim]`
    pub decay: Buf,
    /// Where each span's tokens start in the above, those to redo first.
    pub starts: Vec<usize>,
}

impl DeltaScratch {
    /// Assigns places to the tokens of each span, those to redo included; returns their number.
    pub fn place_spans(&mut self, batch: &Batch) -> usize {
        self.starts.clear();
        let mut tokens = 0;
        for span in batch.spans() {
            self.starts.push(tokens);
            tokens += span.recurrent_len();
        }
        tokens
    }

    pub fn new(shape: &CacheShape, step: StepShape) -> Result<Self, Error> {
        let [keys, values, heads, _, _, decays] = step.recurrent;
        let tokens = step.tokens + shape.slots * shape.guesses;
        let buf = |n: usize| Buf::zeroed(n * tokens);
        Ok(Self {
            starts: Vec::with_capacity(shape.slots),
            q: buf(keys)?,
            k: buf(keys)?,
            kq: buf(heads)?,
            v: buf(values)?,
            beta: buf(heads)?,
            decay: buf(decays)?,
        })
    }
}
