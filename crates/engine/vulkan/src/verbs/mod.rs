//! The verbs as stages: kernels that do not depend on each other, and one barrier after them.

mod attention;
mod elements;
mod gdn;
mod linear;
mod moe;
mod recurrent;
mod streams;

use std::sync::Arc;

use octet_compute::Error;
use octet_compute::backend::{Backend, Out, Part, StepShape};

use crate::memory::{Buffer, Memory, Place};

/// Rows that projections read: 8-bit with a scale and a sum for 32, and as f32.
#[derive(Clone)]
pub(crate) struct Rows {
    pub(crate) quants: Arc<Buffer>,
    pub(crate) scales: Arc<Buffer>,
    pub(crate) floats: Arc<Buffer>,
}

impl Rows {
    fn new(memory: &Memory, rows: usize, cols: usize) -> Result<Self, Error> {
        let values = (rows * cols) as u64;
        Ok(Self {
            quants: memory.buffer(values, Place::Device)?,
            scales: memory.buffer(values.div_ceil(4), Place::Device)?,
            floats: memory.buffer(4 * values, Place::Device)?,
        })
    }
}

/// Scratch memory of a step.
pub(crate) struct Scratch {
    /// Inputs of a verb's projections.
    pub(crate) input: Rows,
    /// Gate and up of a dense block, or of the shared expert: `[tokens, intermediate]` each.
    pub(crate) gate: Arc<Buffer>,
    pub(crate) up: Arc<Buffer>,
    /// Their product.
    pub(crate) inner: Rows,
    /// The same of routed experts: `[tokens * top_k, intermediate]`.
    pub(crate) expert_gate: Arc<Buffer>,
    pub(crate) expert_up: Arc<Buffer>,
    pub(crate) expert_inner: Rows,
    /// Outputs of experts `[tokens * top_k, hidden]`, and of the shared one `[tokens, hidden]`.
    pub(crate) expert_out: Arc<Buffer>,
    pub(crate) shared_out: Arc<Buffer>,
    /// Logits of the router `[tokens, experts]`, and the chosen experts.
    pub(crate) router: Arc<Buffer>,
    pub(crate) chosen: Arc<Buffer>,
    pub(crate) share: Arc<Buffer>,
    pub(crate) shared_gate: Arc<Buffer>,
    pub(crate) tiles: Arc<Buffer>,
    pub(crate) pairs: Arc<Buffer>,
    /// Number of tokens that each expert of each layer got since the counts were last read. Then the routes of the last step: the experts of each
    /// layer and token, the most probable first, and the gate of the shared expert. Of the steps of either side.
    pub(crate) counts: [Arc<Buffer>; 2],
    /// The dimensions of `counts`: layers, experts of a layer, tokens of a step, experts of a token.
    pub(crate) counted: [usize; 4],
    /// Slots of experts: [`crate::experts`] has the layout; and those that a step fills.
    pub(crate) slots: Arc<Buffer>,
    pub(crate) fills: Arc<Buffer>,
    /// Rows of each head, in 8 bits: inputs of products by heads.
    pub(crate) heads: Rows,
    /// Queries, keys and values of Kimi Delta Attention side by side.
    pub(crate) channels: Arc<Buffer>,
    /// Factors of norms over all heads together, of queries `[tokens]` and of keys `[tokens]`.
    pub(crate) factors: Arc<Buffer>,
    /// Results of attention's chunks, before they are added up.
    pub(crate) partial: Arc<Buffer>,
    /// Number of workgroups of a stage that have finished, which tells the last one; 0 between stages. A part for each kind of stage.
    pub(crate) tickets: Arc<Buffer>,
    /// The first ticket of attention's heads.
    pub(crate) attention_tickets: u32,
}

/// For up to this many tokens, the last workgroup of a stage computes their norms, or chooses their experts: one after the other, so they
/// are few. They fit one tile of a projection.
pub(crate) const TAIL_TOKENS_MAX: usize = 4;
/// For up to this many tokens, the last workgroup of a head of Gated DeltaNet does its norm.
pub(crate) const HEAD_TAIL_TOKENS_MAX: usize = 16;
/// The first tickets of rows, of the router, and of heads: of Gated DeltaNet, then of attention.
pub(crate) const ROW_TICKETS: u32 = 0;
pub(crate) const ROUTER_TICKET: u32 = TAIL_TOKENS_MAX as u32;
pub(crate) const HEAD_TICKETS: u32 = ROUTER_TICKET + 1;

/// Bytes of [`Scratch::partial`]; long prompts are split to fit.
const PARTIAL_BYTES: u64 = 64 << 20;

impl Scratch {
    /// For steps of up to `step`, with inputs of up to `cols` columns, and `v_heads` heads of Gated DeltaNet. The tickets are not
    /// zeroed yet.
    pub(crate) fn new(
        memory: &Memory,
        step: &StepShape,
        cols: usize,
        layers: usize,
        v_heads: usize,
    ) -> Result<Self, Error> {
        let t = step.tokens;
        let pairs = t * step.top_k;
        let floats = |len: usize| memory.buffer(4 * len as u64, Place::Device);
        let words = layers * (step.experts + if step.experts > 0 { t * (step.top_k + 1) } else { 0 });
        let counts = || {
            let counts = memory.buffer(4 * words as u64, Place::Host)?;
            counts.write(0, &vec![0; counts.bytes as usize]);
            Ok::<_, Error>(counts)
        };
        let counts = [counts()?, counts()?];
        let counts_dummy = floats(1)?; // `slot_tables` has better ones where experts are paged
        let partial = if step.heads == 0 { 16 } else { PARTIAL_BYTES };
        let attention_tickets = HEAD_TICKETS as usize + HEAD_TAIL_TOKENS_MAX * v_heads;
        let [heads, head_cols] = step.per_head;
        let [keys, values, .., decays] = step.recurrent;
        let channels = if decays > v_heads { 2 * keys + values } else { 0 };
        Ok(Self {
            channels: floats((t * channels).max(1))?,
            heads: Rows {
                quants: memory.buffer((t * heads * head_cols) as u64, Place::Device)?,
                scales: memory.buffer((t * heads * head_cols).div_ceil(4) as u64, Place::Device)?,
                floats: counts_dummy.clone(),
            },
            input: Rows::new(memory, t, cols)?,
            gate: floats(t * step.intermediate)?,
            up: floats(t * step.intermediate)?,
            inner: Rows::new(memory, t, step.intermediate)?,
            expert_gate: floats(pairs * step.expert_intermediate)?,
            expert_up: floats(pairs * step.expert_intermediate)?,
            expert_inner: Rows::new(memory, pairs, step.expert_intermediate)?,
            expert_out: floats(pairs * cols)?,
            shared_out: floats(t * cols)?,
            router: floats(t * step.experts)?,
            chosen: floats(pairs)?,
            share: floats(pairs)?,
            shared_gate: floats(t)?,
            tiles: floats(1 + 3 * (pairs + 1))?,
            pairs: floats(pairs)?,
            counts,
            counted: [layers, step.experts, t, step.top_k],
            slots: counts_dummy.clone(),
            fills: counts_dummy,
            factors: floats(2 * t)?,
            partial: memory.buffer(partial, Place::Device)?,
            tickets: floats(attention_tickets + t * step.heads)?,
            attention_tickets: attention_tickets as u32,
        })
    }
}

/// What is done with several residual streams, by the numbers of `streams.comp`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Update {
    /// See [`Backend::predict_streams`].
    Predict,
    /// See [`Backend::correct_streams`].
    Correct,
}

/// Whether there are kernels for a part. A new one is decided here.
pub(crate) fn is_supported(part: Part) -> bool {
    use Part::*;
    match part {
        Encoder | Positions | Streams | SparseActivation | Windows | SoftCaps | Sinks | HeadSizes
        | LatentAttention | AttentionScale | ValueNorm | SharedKeys | NormAfterRotation | PositionScale
        | RopeByLayer | NoRotation | PrefixNorm | LayerNorm | PostNorm | ParallelBranches | Scales
        | Activation | RouterScores | ExpertBias | UngatedSharedExpert | OutputGate | PerLayerEmbedding
        | Mamba2 | ShortConvolution | Images | ImagesTogether | Bounds | RowDecay => true,
    }
}

/// A model is loaded only if the device supports its parts, so this is a defect.
pub(crate) fn unsupported() -> Error {
    Error("a part that `supports` denies was called".into())
}

/// Where a verb's result goes: one of the backend's buffers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target<'a, T> {
    pub(crate) buf: &'a T,
    /// The factor with which it is added; 0: it replaces what is there.
    pub(crate) add: f32,
}

impl<'a, T> Target<'a, T> {
    pub(crate) fn of<B: Backend<Buf = T>>(out: Out<'a, B>) -> Self {
        match out {
            Out::Write(buf) => Self { buf, add: 0.0 },
            // To add nothing is not to replace.
            Out::Add(buf, 0.0) => Self { buf, add: f32::MIN_POSITIVE },
            Out::Add(buf, add) => Self { buf, add },
        }
    }
}
