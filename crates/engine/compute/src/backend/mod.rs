//! The verbs: the operations of a forward pass, which every backend implements. Start reading here.
//!
//! A verb is as large as one parallel region on a CPU, or one to a few kernels on a GPU. It writes into buffers
//! that the caller owns, and allocates nothing. Loading and whole steps can fail; a verb cannot. Activations are f32,
//! row-major, one row per token. A product `w . x` includes the bias of `w`, if it was loaded with one; the stacked
//! projections of experts have none. `reference.rs` is the oracle that every backend is tested against, verb by verb.
//!
//! Every verb computes each token's result independently of what else is in the batch, in the same order of
//! floating-point operations. That makes greedy output the same whatever the batch, the chunking or the cache hit.

mod attention;
mod cache;
mod feed_forward;
mod part;
mod recurrent;
mod stage;
mod stored;
mod streams;

use octet_weights::{GgmlType, Matrix, Piece};

pub use attention::*;
pub use cache::*;
pub use feed_forward::*;
pub use part::Part;
pub use recurrent::*;
pub use stage::*;
pub use stored::*;
pub use streams::*;

use crate::picks::Pick;
use crate::{Batch, ExpertCounts};

/// Why weights cannot be loaded into a backend, or memory cannot be allocated.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Error(pub String);

/// A norm of rows: `weight * x / sqrt(mean(x^2) + eps) + bias` (RMSNorm), of `x` minus its mean where `centred` (LayerNorm).
pub struct Norm<B: Backend> {
    /// `[len]`; ones for a norm without a weight.
    pub weight: B::Buf,
    /// `[len]`
    pub bias: Option<B::Buf>,
    /// Added to the mean square.
    pub eps: f32,
    /// The mean is subtracted first.
    pub centred: bool,
    /// Length of a row.
    pub len: usize,
}

impl<B: Backend> Norm<B> {
    /// An RMS norm.
    pub fn rms(weight: B::Buf, len: usize, eps: f32) -> Self {
        Self { weight, bias: None, eps, centred: false, len }
    }
}

/// Where a verb's result `y` goes.
pub enum Out<'a, B: Backend> {
    /// `out = y`
    Write(&'a mut B::Buf),
    /// `out += scale * y`
    Add(&'a mut B::Buf, f32),
}

/// The output head with the norm before it.
pub struct Head<'a, B: Backend> {
    /// The norm.
    pub norm: &'a Norm<B>,
    /// `[vocabulary, hidden]`
    pub weight: &'a B::Weight,
    /// Factor of the logits.
    pub scale: f32,
    /// Logits become `cap * tanh(logit / cap)`.
    pub softcap: Option<f32>,
}

/// The row of an embedding table that a token takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableRow {
    /// That of its id; the first one if the table ends before it.
    Id,
    /// That of its position in the sequence.
    Position,
    /// That of its type; the last one if the table ends before it.
    Type,
}

impl TableRow {
    /// The row of token `t` of a batch, in a table of `rows` rows.
    pub fn of(self, batch: &Batch, t: usize, rows: usize) -> usize {
        match self {
            Self::Id => Some(batch.tokens()[t] as usize).filter(|row| *row < rows).unwrap_or(0),
            Self::Position => batch.positions()[t] as usize,
            Self::Type => (batch.types()[t] as usize).min(rows.saturating_sub(1)),
        }
    }
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
    /// Packs the same projection of every expert; all have one shape. `bias` has the rows of all, one expert after the other.
    fn experts(&mut self, m: &[Matrix], bias: Option<&[f32]>) -> Result<Self::Experts, Error>;
    /// The name of the tensor that the next projection or stack of experts comes from, for backends that report about them.
    fn name_next(&mut self, _name: &str) {}
    /// The part of the model that is loaded from now on, for backends of several devices. Vectors and embedding tables belong to no part.
    fn stage_next(&mut self, _stage: Stage) {}
    /// The part that is being loaded has the cache of this index ([`CacheShape::layers`]).
    fn cache_next(&mut self, _index: usize) {}
    /// Number of experts of each layer for which there is memory, if not for all: [`Backend::stored_experts`] then reads the others when a step
    /// needs them.
    fn expert_slots(&self) -> Option<usize> {
        None
    }
    /// A verb of a step, right before that of another block with experts: `moe` is the next such block's, and `x` the input of the one before it.
    /// Starts to read the experts that it will probably choose. Changes no result.
    fn foresee(&mut self, _n: usize, _x: &Self::Buf, _norm: Option<&Norm<Self>>, _moe: &Moe<Self>) {}
    /// Memory for [`Backend::expert_slots`] of a layer's experts, which are read when a step needs them. If a read fails, so does the step.
    fn stored_experts(&mut self, _: Glu<StoredProjection>) -> Result<Glu<Self::Experts>, Error> {
        Err(Error("this backend keeps all experts in memory".into()))
    }
    /// A model is loaded from files that `id` identifies: a backend may keep its packed weights for the next time.
    fn begin_load(&mut self, _id: &FileId) {}
    /// The packed projection `[rows, cols]` called `name`, which is its own in this model, if it was kept. Otherwise the next call of
    /// [`Backend::weight`] is for it.
    ///
    /// # Errors
    /// If what was kept is damaged: [`Backend::discard_kept`], and load the model again.
    fn kept_weight(
        &mut self,
        _name: &str,
        _ty: GgmlType,
        _shape: [usize; 2],
        _bias: Option<&[f32]>,
    ) -> Result<Option<Self::Weight>, Error> {
        Ok(None)
    }
    /// The same of a stack `[experts, rows, cols]` that [`Backend::moe`] uses.
    fn kept_experts(
        &mut self,
        _name: &str,
        _ty: GgmlType,
        _shape: [usize; 3],
        _bias: Option<&[f32]>,
    ) -> Result<Option<Self::Experts>, Error> {
        Ok(None)
    }
    /// All is loaded.
    ///
    /// # Errors
    /// As [`Backend::kept_weight`].
    fn end_load(&mut self) -> Result<(), Error> {
        Ok(())
    }
    /// Forgets what was kept of this model if it is damaged, and says whether it was.
    fn discard_kept(&mut self) -> bool {
        false
    }
    /// Whether the backend can compute a part of a model; asked for each before any weight is loaded.
    fn supports(&self, _part: Part) -> bool {
        true
    }
    /// Loads an embedding table.
    fn embedding(&mut self, m: &Matrix) -> Result<Self::Embedding, Error>;
    /// The same table where `place` says that it lies in the model's file, if that saves time: its rows are read there until it was copied,
    /// beside the first steps. `None`: it is to be loaded.
    fn embedding_in_file(
        &mut self,
        _m: &Matrix,
        _place: &dyn Fn() -> Option<Piece>,
    ) -> Option<Self::Embedding> {
        None
    }
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
    /// Copies page `from` to page `to`, in all layers of a group.
    fn copy_page(&mut self, cache: &mut Self::Cache, group: PageGroup, from: usize, to: usize);
    /// Copies row `from` of one projection to row `to` of another, for each `(from, to)`. Both have the same number of columns and were
    /// packed from the same type; each `to` occurs once. Biases are not copied. Called between steps.
    fn copy_rows(&mut self, from: &Self::Weight, to: &mut Self::Weight, rows: &[(u32, u32)]);
    /// Writes the state of a slot into `out`, whose length is [`CacheShape::slot_bytes`].
    fn save_slot(&mut self, cache: &Self::Cache, slot: usize, out: &mut [u8]);
    /// The inverse of [`Backend::save_slot`].
    fn load_slot(&mut self, cache: &mut Self::Cache, slot: usize, data: &[u8]);
    /// Writes a page of all layers of a group into `out`, whose length is [`CacheShape::page_bytes`].
    fn save_page(&mut self, cache: &Self::Cache, group: PageGroup, page: usize, out: &mut [u8]);
    /// The inverse of [`Backend::save_page`].
    fn load_page(&mut self, cache: &mut Self::Cache, group: PageGroup, page: usize, data: &[u8]);

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

    /// `out[t] = scale * table[row]`, `[n, hidden]`, for each token of the batch.
    fn embed(
        &mut self,
        batch: &Batch,
        table: &Self::Embedding,
        row: TableRow,
        scale: f32,
        out: &mut Self::Buf,
    );

    /// `y[to[i]] = x[i][at..at + width]`: some rows of `out`, of `width` values. Row `i` of `x` begins at `i * stride`, where
    /// `[at, stride] = place`.
    fn place(&mut self, to: &[u32], width: usize, x: &Self::Buf, place: [usize; 2], out: Out<Self>);

    /// `out[i][t] = w[i] . norm(x[t])`: several projections of one input.
    fn project<const N: usize>(
        &mut self,
        n: usize,
        x: &Self::Buf,
        norm: Option<&Norm<Self>>,
        w: [&Self::Weight; N],
        out: [&mut Self::Buf; N],
    );

    /// `y[t] = w . x[t]`
    fn linear(&mut self, n: usize, x: &Self::Buf, w: &Self::Weight, out: Out<Self>);

    /// A projection of each head, without biases: `out[t][h] = [w[h] . x[t][h][..cols] | x[t][h][cols..]]`, where `x` is `[n, heads, cols + rest]` and `out`
    /// `[n, heads, rows + rest]`.
    fn per_head(&mut self, n: usize, x: &Self::Buf, w: &Self::Experts, rest: usize, out: &mut Self::Buf);

    /// Normalises and rotates queries and keys, and stores keys and values in the cache.
    /// `q` is `[n, heads, k_dim]`, or `[n, heads, 2, k_dim]` when gated (the gate is left as it is), changed in place. `kv` are keys
    /// `[n, kv_heads, k_dim]`, changed in place, and values `[n, kv_heads, v_dim]` (unused if they are in the keys); `None` stores nothing.
    fn rope_store(
        &mut self,
        batch: &Batch,
        a: &Attention<Self>,
        layer: usize,
        cache: &mut Self::Cache,
        q: &mut Self::Buf,
        kv: Option<(&mut Self::Buf, &Self::Buf)>,
    );

    /// Softmax attention of each token over its sequence's cache of `layer`; `out` is `[n, heads, v_dim]`, multiplied by `sigmoid(gate)` when
    /// gated.
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
    /// `qkv` is `[n, channels]` (q heads | k heads | v heads), or three buffers with these parts; `z` `[n, v_heads, v_dim]`, `b` `[n, v_heads]`, `alpha`
    /// `[n, v_heads]` or `[n, v_heads, k_dim]` ([`Gdn::row_decay`]), `out` `[n, v_heads, v_dim]`. With `y = silu(conv(qkv))`, per value head:
    /// `q, k = l2norm(y_q) * k_dim^-0.5, l2norm(y_k)`; `S *= exp(a * softplus(alpha + dt_bias))`, by rows where there is a decay of each;
    /// `d = sigmoid(b) * (v - S^T k)`; `S += k d^T`; `o = S^T q`; `out = rms_norm(o, norm) * silu(z)`, or `* sigmoid(z)` ([`Gdn::sigmoid_gate`]).
    /// The l2 norm adds 1e-6 to the sum of squares.
    fn gdn(
        &mut self,
        batch: &Batch,
        g: &Gdn<Self>,
        layer: usize,
        cache: &mut Self::Cache,
        qkv: &[&Self::Buf],
        z: &Self::Buf,
        b: &Self::Buf,
        alpha: &Self::Buf,
        out: &mut Self::Buf,
    );

    /// Convolution, recurrence and gated norm of a Mamba-2 layer; spans, slots and guesses as for [`Backend::gdn`]. `z` is
    /// `[n, heads * dim]`, `xbc` `[n, channels]`, `dt` `[n, heads]`, `out` `[n, heads * dim]`. With `[x, B, C] = silu(conv(xbc) + bias)` and
    /// `t = softplus(dt + dt_bias)`, per head: `S *= exp(a t)`; `S += t x B^T`; `y = S C + d x`; `out = norm(y * silu(z))`.
    fn ssm(
        &mut self,
        batch: &Batch,
        s: &Ssm<Self>,
        layer: usize,
        cache: &mut Self::Cache,
        z: &Self::Buf,
        xbc: &Self::Buf,
        dt: &Self::Buf,
        out: &mut Self::Buf,
    );

    /// A gated short convolution; spans, slots and guesses as for [`Backend::gdn`]. `bcx` is `[n, 3, width]`, `out` `[n, width]`:
    /// `out = c * conv(b * x)`.
    fn short_conv(
        &mut self,
        batch: &Batch,
        s: &ShortConv<Self>,
        layer: usize,
        cache: &mut Self::Cache,
        bcx: &Self::Buf,
        out: &mut Self::Buf,
    );

    /// `x[t] = x[t] times y[t]` with rows of `width` values. Row `t` of `y` begins at `t * stride + at`, where `[at, stride] = place`; it has
    /// `width` values, or one.
    fn multiply(
        &mut self,
        n: usize,
        width: usize,
        times: Times,
        x: &mut Self::Buf,
        y: &Self::Buf,
        place: [usize; 2],
    );

    /// A feed-forward block: `y[t] = glu(norm(x[t]))`. Without `x` it reads the buffer of `out`, the residual stream, which must be
    /// [`Out::Add`].
    fn glu(
        &mut self,
        n: usize,
        x: Option<&Self::Buf>,
        norm: Option<&Norm<Self>>,
        g: &Glu<Self::Weight>,
        out: Out<Self>,
    );

    /// A mixture of experts: `y[t] = sum_e p_e expert_e(norm(x[t])) + shared(norm(x[t]))`, where the router chooses the experts and their
    /// weights `p_e` (the lower index first on a tie). `x` and `out` as for [`Backend::glu`]. Adds 1 for each of a token's experts in `layer`
    /// of `counts`.
    fn moe(
        &mut self,
        n: usize,
        x: Option<&Self::Buf>,
        norm: Option<&Norm<Self>>,
        m: &Moe<Self>,
        layer: usize,
        counts: &ExpertCounts,
        out: Out<Self>,
    );

    /// `out[i] = cap(scale * head . norm(h[outputs[i]]))`, `[outputs, vocabulary]`, where `cap(x) = c tanh(x / c)`.
    fn logits(&mut self, batch: &Batch, h: &Self::Buf, head: &Head<Self>, out: &mut Self::Buf);

    /// `out[i] = norm(h[outputs[i]])`, `[outputs, hidden]`. Called within a step with the step's batch, or outside of one with any.
    fn norm_outputs(&mut self, batch: &Batch, h: &Self::Buf, norm: &Norm<Self>, out: &mut Self::Buf);

    /// `y[t] = norm(x[t])`, `n` rows of the norm's length. Without `x` it reads the buffer of `out`.
    fn norm(&mut self, n: usize, x: Option<&Self::Buf>, norm: &Norm<Self>, out: Out<Self>);

    /// `out += scale * x`, or without `x` `out *= scale`: the first `len` values.
    fn add(&mut self, len: usize, x: Option<&Self::Buf>, scale: f32, out: &mut Self::Buf);

    /// `x = min(max(x, bounds[0]), bounds[1])`: the first `len` values. Only where [`Part::Bounds`] is supported.
    fn clamp(&mut self, len: usize, bounds: [f32; 2], x: &mut Self::Buf);

    /// Predicts the streams of a layer, the first of which is `h` `[n, width]`, and the others `rest` `[n, streams - 1, width]`: with
    /// `m = tanh(routed[t])` `[streams]`, `x_i += sum_j (predict[i, j] . m) x_j`. `kept` `[n, width]` is then a copy of `h`. Only where
    /// [`Part::Streams`] is supported.
    fn predict_streams(
        &mut self,
        _n: usize,
        _a: &AltUp<Self>,
        _routed: &Self::Buf,
        _h: &mut Self::Buf,
        _rest: &mut Self::Buf,
        _kept: &mut Self::Buf,
    ) {
        unreachable!("a model with this part is not loaded")
    }

    /// Corrects the streams after a layer's blocks, which changed `h` from `kept`: with `m = tanh(routed[t])` and `d = h - kept`, `h` becomes
    /// `kept + (1 + correct[0] . m) d`, and the others `x_i += (1 + correct[i] . m) d`. `kept` is then `scale * h`. Only where
    /// [`Part::Streams`] is supported.
    fn correct_streams(
        &mut self,
        _n: usize,
        _a: &AltUp<Self>,
        _routed: &Self::Buf,
        _h: &mut Self::Buf,
        _rest: &mut Self::Buf,
        _kept: &mut Self::Buf,
    ) {
        unreachable!("a model with this part is not loaded")
    }
}
