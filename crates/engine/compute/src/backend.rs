//! The verbs: the operations of a forward pass, which every backend implements. Start reading here.
//!
//! A verb is as large as one parallel region on a CPU, or one to a few kernels on a GPU. It writes into buffers
//! that the caller owns, and allocates nothing. Loading and whole steps can fail; a verb cannot. Activations are f32,
//! row-major, one row per token. A product `w . x` includes the bias of `w`, if it was loaded with one; the stacked
//! projections of experts have none. `reference.rs` is the oracle that every backend is tested against, verb by verb.
//!
//! Every verb computes each token's result independently of what else is in the batch, in the same order of
//! floating-point operations. That makes greedy output the same whatever the batch, the chunking or the cache hit.

use octet_weights::{GgmlType, Matrix};

use crate::picks::Pick;
use crate::{Batch, ExpertCounts};

/// Why weights cannot be loaded into a backend, or memory cannot be allocated.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Error(pub String);

/// How rotary position embedding pairs up the dimensions of a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopePairing {
    /// Pairs `(j, j + dims/2)`: GPT-NeoX style, all Hugging Face checkpoints and qwen GGUFs.
    Half,
    /// Pairs `(2j, 2j + 1)`: GGUF files of architecture `llama`.
    Adjacent,
}

/// Which key/query head a Gated DeltaNet value head uses, when there are more value heads than key heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadOrder {
    /// Value head `h` uses key head `h / (v_heads / k_heads)`: Hugging Face checkpoints.
    Grouped,
    /// Value head `h` uses key head `h % k_heads`: GGUF files.
    Tiled,
}

/// Type of keys or of values in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum KvType {
    F32,
    F16,
    /// Blocks of 32 values of a head, quantised as ggml does: an f16 scale, then signed bytes.
    Q8_0,
}

impl KvType {
    /// The tensor type with the same blocks.
    pub const fn tensor_type(self) -> GgmlType {
        match self {
            Self::F32 => GgmlType::F32,
            Self::F16 => GgmlType::F16,
            Self::Q8_0 => GgmlType::Q8_0,
        }
    }
    /// Bytes of one head of `head_dim` values, which are whole blocks.
    pub const fn row_bytes(self, head_dim: usize) -> usize {
        let ty = self.tensor_type();
        head_dim.div_ceil(ty.block_len()) * ty.block_bytes()
    }
}

impl std::fmt::Display for KvType {
    /// The name in options: `q8_0`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(&self.tensor_type().name().to_ascii_lowercase())
    }
}

/// Types of the keys and of the values in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct KvTypes {
    pub keys: KvType,
    pub values: KvType,
}

impl KvTypes {
    /// Fails if heads of `head_dim` values are not whole blocks of both types.
    pub fn check(self, head_dim: usize) -> Result<(), Error> {
        for (what, ty) in [("keys", self.keys), ("values", self.values)] {
            let block = ty.tensor_type().block_len();
            if !head_dim.is_multiple_of(block) {
                return Err(Error(format!(
                    "{what} of type {ty} need heads of a multiple of {block} values, and this model's have {head_dim}; \
                     f16 and f32 take any"
                )));
            }
        }
        Ok(())
    }
}

impl From<KvType> for KvTypes {
    /// Both of one type.
    fn from(ty: KvType) -> Self {
        Self { keys: ty, values: ty }
    }
}

impl std::fmt::Display for KvTypes {
    /// `f16`, or keys and values: `q8_0/f16`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.keys == self.values {
            return self.keys.fmt(f);
        }
        f.pad(&format!("{}/{}", self.keys, self.values))
    }
}

/// Softmax attention of one layer. `q`, `k`, `v` come from their projections un-normalised and un-rotated.
pub struct Attention<B: Backend> {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; query head `h` uses `h / (heads / kv_heads)`.
    pub kv_heads: usize,
    /// Dimensions of a head.
    pub head_dim: usize,
    /// Each query head's projection is `[q (head_dim) | gate (head_dim)]`, and the output is multiplied by `sigmoid(gate)`.
    pub gated: bool,
    /// Weights of the RMS norms of queries and keys, applied before the rotation: of each head `[head_dim]`, or of all heads of
    /// a token together `[heads, head_dim]` and `[kv_heads, head_dim]` (OLMoE; not where `gated`).
    pub qk_norm: Option<(B::Buf, B::Buf)>,
    /// Epsilon of those norms.
    pub eps: f32,
    /// Number of leading dimensions of each head that are rotated (even).
    pub rope_dims: usize,
    /// How dimensions are paired.
    pub rope_pairing: RopePairing,
    /// Inverse frequency of each pair `[rope_dims / 2]`, radians per position.
    pub inv_freq: B::Buf,
    /// Factor of sines and cosines: YaRN's attention factor; 1 for all others.
    pub rope_scale: f32,
}

/// Gated DeltaNet of one layer, after its four input projections (arXiv 2412.06464, section 3).
pub struct Gdn<B: Backend> {
    /// Query/key heads.
    pub k_heads: usize,
    /// Value heads, a multiple of `k_heads`.
    pub v_heads: usize,
    /// Dimensions of a key head.
    pub k_dim: usize,
    /// Dimensions of a value head.
    pub v_dim: usize,
    /// Taps of the causal convolution, at most [`MAX_CONV`].
    pub conv_kernel: usize,
    /// Which key head serves a value head.
    pub order: HeadOrder,
    /// Convolution taps, `[conv_kernel, channels]`; the last row multiplies the current token.
    pub conv: B::Buf,
    /// `[v_heads]`
    pub dt_bias: B::Buf,
    /// `-exp(A_log)`, `[v_heads]`
    pub a: B::Buf,
    /// Weight of the gated RMS norm `[v_dim]`.
    pub norm: B::Buf,
    /// Its epsilon.
    pub eps: f32,
}

/// Maximum number of taps of a convolution.
pub const MAX_CONV: usize = 8;

impl<B: Backend> Gdn<B> {
    /// Channels of the convolution: queries, keys and values.
    pub fn channels(&self) -> usize {
        2 * self.k_heads * self.k_dim + self.v_heads * self.v_dim
    }
}

/// A dense SwiGLU block with the norm before it. All three projections may have biases.
pub struct Mlp<B: Backend> {
    /// RMS norm weight `[hidden]`.
    pub norm: B::Buf,
    /// Its epsilon.
    pub eps: f32,
    /// `[intermediate, hidden]`
    pub gate: B::Weight,
    /// `[intermediate, hidden]`
    pub up: B::Weight,
    /// `[hidden, intermediate]`
    pub down: B::Weight,
}

/// A mixture of SwiGLU experts with the norm before it. A bias of the router is part of its logits, and so of the choice of experts and
/// of their weights: the softmax over all experts, of which those of the `top_k` chosen ones are used.
pub struct Moe<B: Backend> {
    /// RMS norm weight `[hidden]`.
    pub norm: B::Buf,
    /// Its epsilon.
    pub eps: f32,
    /// `[experts, hidden]`
    pub router: B::Weight,
    /// Each `[intermediate, hidden]`.
    pub gate: B::Experts,
    /// Each `[intermediate, hidden]`.
    pub up: B::Experts,
    /// Each `[hidden, intermediate]`.
    pub down: B::Experts,
    /// An expert that processes every token.
    pub shared: Option<SharedExpert<B>>,
    /// Number of experts, at most [`MAX_EXPERTS`].
    pub experts: usize,
    /// Experts routed to per token, at most [`MAX_TOP_K`].
    pub top_k: usize,
    /// The chosen experts' weights are divided by their sum (transformers' `norm_topk_prob`).
    pub norm_top_k: bool,
}

/// Maximum number of experts of a layer.
pub const MAX_EXPERTS: usize = 1024;
/// Maximum number of experts per token.
pub const MAX_TOP_K: usize = 32;

/// The shared expert: its output, biases included, is multiplied by `sigmoid(router . x)`; this router has no bias.
pub struct SharedExpert<B: Backend> {
    /// `[hidden]`
    pub router: B::Buf,
    /// `[intermediate, hidden]`
    pub gate: B::Weight,
    /// `[intermediate, hidden]`
    pub up: B::Weight,
    /// `[hidden, intermediate]`
    pub down: B::Weight,
}

/// The state of a layer between steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerCache {
    /// Keys and values `[pages, kv_heads, PAGE_TOKENS, head_dim]` each, rows of a head in blocks of their type.
    Kv {
        /// Key/value heads.
        kv_heads: usize,
        /// Dimensions of a head.
        head_dim: usize,
    },
    /// The last `conv_kernel - 1` inputs of the convolution `[slots, conv_kernel - 1, channels]` (oldest first), and
    /// the state `[slots, v_heads, k_dim, v_dim]`, both f32.
    Gdn {
        /// Rows of the convolution state.
        conv_rows: usize,
        /// Channels of the convolution.
        channels: usize,
        /// Value heads.
        v_heads: usize,
        /// Dimensions of a key head.
        k_dim: usize,
        /// Dimensions of a value head.
        v_dim: usize,
    },
}

impl LayerCache {
    /// Bytes of the keys of one page, and of its values (KV layers; 0 for others).
    pub fn page_parts(self, kv: KvTypes) -> [usize; 2] {
        match self {
            Self::Kv { kv_heads, head_dim } => {
                [kv.keys, kv.values].map(|ty| kv_heads * crate::batch::PAGE_TOKENS * ty.row_bytes(head_dim))
            }
            Self::Gdn { .. } => [0, 0],
        }
    }
    /// Bytes of one page (KV layers; 0 for others).
    pub fn page_bytes(self, kv: KvTypes) -> usize {
        self.page_parts(kv).iter().sum()
    }
    /// Bytes of one state slot (Gated DeltaNet layers; 0 for others).
    pub fn slot_bytes(self) -> usize {
        match self {
            Self::Kv { .. } => 0,
            Self::Gdn { conv_rows, channels, v_heads, k_dim, v_dim } => {
                4 * (conv_rows * channels + v_heads * k_dim * v_dim)
            }
        }
    }
}

impl LayerCache {
    /// Bytes of the inputs of one guess (Gated DeltaNet layers; 0 for others): rows of `qkv`, `b` and `alpha`.
    pub fn guess_bytes(self) -> usize {
        match self {
            Self::Kv { .. } => 0,
            Self::Gdn { channels, v_heads, .. } => 4 * (channels + 2 * v_heads),
        }
    }
}

/// Size of a model's cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheShape {
    /// One entry per layer.
    pub layers: Vec<LayerCache>,
    /// Pages, shared by all KV layers: page `p` holds the same positions in each.
    pub pages: usize,
    /// State slots: one for each running sequence.
    pub slots: usize,
    /// Maximum number of guesses of a span ([`crate::batch::Span::guesses`]).
    pub guesses: usize,
    /// Types of keys and values.
    pub kv: KvTypes,
}

impl CacheShape {
    /// Fails if a layer's heads cannot be stored in the types of keys and values.
    pub fn check(&self) -> Result<(), Error> {
        self.layers.iter().try_for_each(|l| match *l {
            LayerCache::Kv { head_dim, .. } => self.kv.check(head_dim),
            LayerCache::Gdn { .. } => Ok(()),
        })
    }
    /// Bytes of one page over all layers.
    pub fn page_bytes(&self) -> usize {
        self.layers.iter().map(|l| l.page_bytes(self.kv)).sum()
    }
    /// Bytes of one state slot over all layers.
    pub fn slot_bytes(&self) -> usize {
        self.layers.iter().map(|l| l.slot_bytes()).sum()
    }
}

/// The largest possible step, for which a backend allocates its scratch memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepShape {
    /// Tokens of a step.
    pub tokens: usize,
    /// Rows of logits of a step.
    pub outputs: usize,
    /// Query heads of an attention layer; 0 without one.
    pub heads: usize,
    /// Widest intermediate row of a dense MLP or a shared expert; 0 without either.
    pub intermediate: usize,
    /// Experts of a layer; 0 without experts.
    pub experts: usize,
    /// Experts that a token is routed to; 0 without experts.
    pub top_k: usize,
    /// Intermediate row of a routed expert; 0 without experts.
    pub expert_intermediate: usize,
}

/// What a step computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pass {
    /// The model's forward pass: the same verbs on the same buffers in each step.
    Trunk,
    /// Anything else, which may differ from step to step.
    Other,
}

/// A device that runs forward passes.
pub trait Backend: Send + Sized + 'static {
    /// f32 values in the backend's memory.
    type Buf: Send;
    /// A projection `[rows, cols]`, packed for this backend's kernels, with its bias if it has one.
    type Weight: Send;
    /// Projections of one shape, one for each expert.
    type Experts: Send;
    /// An embedding table `[vocabulary, hidden]`.
    type Embedding: Send;
    /// KV pages and state slots of all layers.
    type Cache: Send;

    // ---- loading: the only part that can fail

    /// A zeroed buffer of `len` values.
    fn buf(&mut self, len: usize) -> Result<Self::Buf, Error>;
    /// A buffer with these values.
    fn vector(&mut self, values: &[f32]) -> Result<Self::Buf, Error>;
    /// Packs a projection; `bias` has `m.rows` values.
    fn weight(&mut self, m: &Matrix, bias: Option<&[f32]>) -> Result<Self::Weight, Error>;
    /// Packs the same projection of every expert; all have one shape.
    fn experts(&mut self, m: &[Matrix]) -> Result<Self::Experts, Error>;
    /// Loads an embedding table.
    fn embedding(&mut self, m: &Matrix) -> Result<Self::Embedding, Error>;
    /// An empty cache, and room for steps of up to `step`. Called last, when all weights are loaded.
    fn cache(&mut self, shape: &CacheShape, step: StepShape) -> Result<Self::Cache, Error>;

    // ---- moving data

    /// Copies `out.len()` values from the start of `src`.
    fn read(&mut self, src: &Self::Buf, out: &mut [f32]);
    /// The values of `buf`, if this thread can read its memory, which saves a copy.
    fn borrow<'a>(&'a self, buf: &'a Self::Buf) -> Option<&'a [f32]>;
    /// Calls `work` once with each number below `count` and the values of `buf`, on all threads of the backend. Returns false without
    /// calling it if there are none, or if `buf` is in device memory.
    fn share(&mut self, _buf: &Self::Buf, _count: usize, _work: &(dyn Fn(usize, &[f32]) + Sync)) -> bool {
        false
    }
    /// Makes slot `slot` the state of an empty sequence.
    fn reset_slot(&mut self, cache: &mut Self::Cache, slot: usize);
    /// Copies the state `from` one slot `to` another, without the kept inputs of guesses.
    fn copy_slot(&mut self, cache: &mut Self::Cache, from: usize, to: usize);
    /// Copies page `from` to page `to`, in all layers.
    fn copy_page(&mut self, cache: &mut Self::Cache, from: usize, to: usize);
    /// Copies row `from` of one projection to row `to` of another, for each `(from, to)`. Both have the same number of columns and were
    /// packed from the same type; each `to` occurs once. Biases are not copied. Called between steps.
    fn copy_rows(&mut self, from: &Self::Weight, to: &mut Self::Weight, rows: &[(u32, u32)]);
    /// Writes the state of a slot into `out`, whose length is [`CacheShape::slot_bytes`].
    fn save_slot(&mut self, cache: &Self::Cache, slot: usize, out: &mut [u8]);
    /// The inverse of [`Backend::save_slot`].
    fn load_slot(&mut self, cache: &mut Self::Cache, slot: usize, data: &[u8]);
    /// Writes a page of all layers into `out`, whose length is [`CacheShape::page_bytes`].
    fn save_page(&mut self, cache: &Self::Cache, page: usize, out: &mut [u8]);
    /// The inverse of [`Backend::save_page`].
    fn load_page(&mut self, cache: &mut Self::Cache, page: usize, data: &[u8]);

    // ---- a step

    /// Runs one step over `batch`. `body` calls the verbs. A backend may instead replay its recording of an earlier step of the same `pass`
    /// with the same numbers of tokens, spans and outputs, so a [`Pass::Trunk`] must call the same verbs on the same buffers each time. The
    /// CPU backend pins the calling thread during the step.
    ///
    /// # Errors
    /// If the device failed in this step or before it: the step's results are undefined.
    fn step(&mut self, pass: Pass, batch: &Batch, body: impl FnOnce(&mut Self)) -> Result<(), Error>;

    // ---- steps that are submitted before the one before has ended

    /// Whether there are such steps. They need [`Backend::can_follow`], too.
    const RUNS_AHEAD: bool = false;
    /// Whether a step of `rows` tokens can follow one that picked as many rows. The first time, copies the table to where the device reads it; if
    /// the machine lacks the memory for that, says so once.
    fn can_follow(&mut self, _table: &mut Self::Embedding, _rows: usize) -> bool {
        false
    }
    /// Submits a step of [`Pass::Trunk`], whose results are there after [`Backend::wait`]. If it `follows`, the step before may still run: its token
    /// `i` is the one with the largest logit (the lower id of equal ones) that [`Backend::pick`] finds in row `i` of that step, and the tokens in
    /// `batch` do not count. At most two steps are submitted and not waited for. Only where [`Backend::can_follow`].
    ///
    /// # Errors
    /// As [`Backend::step`]. The steps before are not affected, unless the device is lost.
    fn submit(&mut self, batch: &Batch, _follows: bool, body: impl FnOnce(&mut Self)) -> Result<(), Error> {
        self.step(Pass::Trunk, batch, body)
    }
    /// Waits for the oldest submitted step, and returns whether it was still running. Until the next call, [`Backend::picks`] and
    /// [`Backend::count_experts`] are about this step; what else a step leaves is the newest one's.
    ///
    /// # Errors
    /// As [`Backend::step`]. No submitted step is then left.
    fn wait(&mut self) -> Result<bool, Error> {
        Ok(true)
    }
    /// Waits for all submitted steps. Their results, counts of experts and failures are dropped. [`Backend::step`] does this, too.
    ///
    /// # Errors
    /// If the device is lost.
    fn discard(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// Compiles the kernels that `steps` uses, so that no step waits for that later. `steps` calls [`Backend::step`] as for real steps, but nothing
    /// is computed, and what is in caches and buffers stays. Called once, when all is loaded. Does nothing in a backend without kernels.
    ///
    /// # Errors
    /// If the device does not support a verb of these steps, or its driver cannot compile a kernel.
    fn compile_kernels(&mut self, _steps: impl FnOnce(&mut Self)) -> Result<(), Error> {
        Ok(())
    }

    /// Whether something outside of a step has failed since the last one: data read or saved since then is undefined, and the next step
    /// returns the error.
    fn has_failed(&self) -> bool {
        false
    }

    /// Adds what [`Backend::moe`] has counted on the device since the last call to `counts`. Called after each step; does nothing if `moe`
    /// adds to `counts` itself.
    fn count_experts(&mut self, _counts: &ExpertCounts) {}

    /// Whether [`Backend::moe`] calls [`ExpertCounts::record`].
    fn records_routes(&self) -> bool {
        false
    }

    // ---- the choice of tokens, if logits are in device memory

    /// Prepares [`Backend::pick`] for up to `rows` rows of `vocab` logits, of those whose bit is set in `sampleable` (bit `i % 32` of word
    /// `i / 32`). Returns false if the host can read logits directly, or the device does not support it; then `pick` is not called.
    fn prepare_picks(&mut self, _rows: usize, _vocab: usize, _sampleable: &[u32]) -> Result<bool, Error> {
        Ok(false)
    }
    /// A verb of a step: finds the largest logits of each of the first `rows` rows, as [`crate::picks::picks`] does. Does nothing for more
    /// rows than were prepared.
    fn pick(&mut self, _rows: usize, _logits: &Self::Buf) {}
    /// Copies what [`Backend::pick`] found in a row of the last step, in the order of the ids. If a logit is NaN or +inf, copies only the first of
    /// these, and returns false.
    fn picks(&mut self, _row: usize, _out: &mut Vec<Pick>) -> bool {
        false
    }

    // ---- the verbs; `n` is the number of tokens (rows of `x`)

    /// `out[t] = table[tokens[t]]`, `[n, hidden]`.
    fn embed(&mut self, table: &Self::Embedding, tokens: &[u32], out: &mut Self::Buf);

    /// `out[i][t] = w[i] . rms_norm(x[t], norm, eps)`: several projections that share a norm.
    fn norm_linear<const N: usize>(
        &mut self,
        n: usize,
        x: &Self::Buf,
        norm: &Self::Buf,
        eps: f32,
        w: [&Self::Weight; N],
        out: [&mut Self::Buf; N],
    );

    /// Normalises (if the layer has `qk_norm`) and rotates queries and keys, and stores keys and values in the cache.
    /// `q` is `[n, heads, head_dim]`, or `[n, heads, 2, head_dim]` when gated (the gate is left as it is), changed in
    /// place; `k` and `v` are `[n, kv_heads, head_dim]`.
    fn rope_store(
        &mut self,
        batch: &Batch,
        a: &Attention<Self>,
        layer: usize,
        cache: &mut Self::Cache,
        q: &mut Self::Buf,
        k: &mut Self::Buf,
        v: &Self::Buf,
    );

    /// Causal softmax attention of each token over its sequence's cache, scaled by `head_dim^-0.5`; `out` is
    /// `[n, heads, head_dim]`, multiplied by `sigmoid(gate)` when gated.
    fn attend(
        &mut self,
        batch: &Batch,
        a: &Attention<Self>,
        layer: usize,
        cache: &Self::Cache,
        q: &Self::Buf,
        out: &mut Self::Buf,
    );

    /// Convolution, delta rule and gated norm of a Gated DeltaNet layer. Each span starts with the state of its slot
    /// [`crate::batch::Span::from`], and writes that of its own slot, advanced by the kept inputs of [`crate::batch::Span::redo`], then by its tokens up to its guesses. Also computes the guesses' outputs, and keeps their inputs (rows of
    /// `qkv`, `b`, `alpha`) for a later step. A span without tokens only processes `redo`.
    /// `qkv` is `[n, channels]` (q heads | k heads | v heads), `z` `[n, v_heads, v_dim]`, `b` and `alpha`
    /// `[n, v_heads]`, `out` `[n, v_heads, v_dim]`. With `y = silu(conv(qkv))`, per value head:
    /// `q, k = l2norm(y_q) * k_dim^-0.5, l2norm(y_k)`; `S *= exp(a * softplus(alpha + dt_bias))`;
    /// `d = sigmoid(b) * (v - S^T k)`; `S += k d^T`; `o = S^T q`; `out = rms_norm(o, norm) * silu(z)`.
    /// The l2 norm adds 1e-6 to the sum of squares.
    fn gdn(
        &mut self,
        batch: &Batch,
        g: &Gdn<Self>,
        layer: usize,
        cache: &mut Self::Cache,
        qkv: &Self::Buf,
        z: &Self::Buf,
        b: &Self::Buf,
        alpha: &Self::Buf,
        out: &mut Self::Buf,
    );

    /// `h[t] += w . x[t]`.
    fn linear_add(&mut self, n: usize, x: &Self::Buf, w: &Self::Weight, h: &mut Self::Buf);

    /// `h[t] += down . (silu(gate . y) * (up . y))` with `y = rms_norm(h[t])`.
    fn mlp(&mut self, n: usize, m: &Mlp<Self>, h: &mut Self::Buf);

    /// `h[t] += sum_e p_e expert_e(y) + sigmoid(shared.router . y) * shared(y)` with `y = rms_norm(h[t])` and `p` the
    /// softmax of `router . y` over all experts, of which the `top_k` largest count (the lower index first on a tie),
    /// divided by their sum. Adds 1 for each of a token's experts in `layer` of `counts`.
    fn moe(&mut self, n: usize, m: &Moe<Self>, layer: usize, counts: &ExpertCounts, h: &mut Self::Buf);

    /// `out[i] = head . rms_norm(h[outputs[i]], norm, eps)`, `[outputs, vocabulary]`.
    fn logits(
        &mut self,
        batch: &Batch,
        h: &Self::Buf,
        norm: &Self::Buf,
        eps: f32,
        head: &Self::Weight,
        out: &mut Self::Buf,
    );

    /// `out[i] = rms_norm(h[outputs[i]], norm, eps)`, `[outputs, hidden]`. Called within a step with the step's batch, or outside of
    /// one with any.
    fn norm_outputs(&mut self, batch: &Batch, h: &Self::Buf, norm: &Self::Buf, eps: f32, out: &mut Self::Buf);

    /// `out[t] = rms_norm(h[t], norm, eps)`: the hidden state after the last norm (embeddings, MTP, traces).
    fn norm(&mut self, n: usize, h: &Self::Buf, norm: &Self::Buf, eps: f32, out: &mut Self::Buf);
}
