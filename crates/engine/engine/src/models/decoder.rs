//! The forward pass: a pre-norm decoder whose layers mix tokens by attention or Gated DeltaNet, and then feed forward, dense or
//! through experts. Each architecture is described in these terms (`architectures.rs`).

use octet_compute::backend::{Attention, Backend, CacheShape, Gdn, KvTypes, LayerCache, Mlp, Moe, StepShape};
use octet_compute::{Batch, Error as BackendError, ExpertCounts};

/// How a layer mixes tokens, with the norm in front of it.
pub enum Mixer<B: Backend> {
    /// Softmax attention, `o = out . attend(q, k, v)`.
    #[allow(missing_docs)]
    Attention { norm: B::Buf, q: B::Weight, k: B::Weight, v: B::Weight, out: B::Weight, spec: Attention<B> },
    /// Gated DeltaNet: `qkv`, the output gate `z`, and the per-head inputs of `beta` and of the decay.
    #[allow(missing_docs)]
    Gdn {
        norm: B::Buf,
        qkv: B::Weight,
        z: B::Weight,
        beta: B::Weight,
        alpha: B::Weight,
        out: B::Weight,
        spec: Gdn<B>,
    },
}

/// What follows the mixer, with the norm in front of it.
#[allow(missing_docs)]
pub enum FeedForward<B: Backend> {
    Dense(Mlp<B>),
    Experts(Moe<B>),
}

/// One decoder layer: `h += mixer(h); h += feed_forward(h)`.
#[allow(missing_docs)]
pub struct Layer<B: Backend> {
    pub mixer: Mixer<B>,
    pub feed_forward: FeedForward<B>,
}

/// The multi-token-prediction block (`nextn`): a layer over `fc . [norm(embed(next token)) | norm(hidden)]`.
pub struct Mtp<B: Backend> {
    /// Norm of the next token's embedding.
    pub embed_norm: B::Buf,
    /// Norm of the trunk's hidden state (after its last norm).
    pub hidden_norm: B::Buf,
    /// Columns of the projection that take the embedding `[hidden, hidden]`.
    pub fc_embed: B::Weight,
    /// Columns that take the hidden state `[hidden, hidden]`.
    pub fc_hidden: B::Weight,
    /// The decoder layer.
    pub layer: Layer<B>,
    /// Norm before the shared head.
    pub norm: B::Buf,
    /// Its own part of the head for drafts; `None` if the model's head is small enough.
    pub head: Option<DraftHead<B>>,
}

/// Some rows of a model's head.
pub struct DraftHead<B: Backend> {
    /// The rows.
    pub weight: B::Weight,
    /// The token of each of the first rows; the others are for recent tokens of the text (`models/recent.rs`).
    pub ids: Vec<u32>,
    /// Number of the other rows.
    pub recent: usize,
}

/// All weights of a model.
#[allow(missing_docs)]
pub struct Decoder<B: Backend> {
    pub hidden: usize,
    pub vocab: usize,
    pub eps: f32,
    pub embedding: B::Embedding,
    pub layers: Vec<Layer<B>>,
    pub norm: B::Buf,
    pub head: B::Weight,
    pub mtp: Option<Mtp<B>>,
    /// Steps find the largest logits of each row on the device.
    pub picks: bool,
}

/// All activations of a step, allocated once; `n` tokens each.
pub struct Scratch<B: Backend> {
    /// The residual stream `[n, hidden]`.
    pub h: B::Buf,
    /// `[n, heads, head_dim (* 2 when gated)]`, or the convolution's channels.
    qkv: B::Buf,
    /// `[n, kv_heads, head_dim]`
    k: B::Buf,
    /// `[n, kv_heads, head_dim]`
    v: B::Buf,
    /// Gate of a Gated DeltaNet layer `[n, v_heads, v_dim]`.
    z: B::Buf,
    /// `[n, v_heads]`
    beta: B::Buf,
    /// `[n, v_heads]`
    alpha: B::Buf,
    /// The mixer's output before its projection.
    mixer_out: B::Buf,
    /// `[outputs, vocab]`
    pub logits: B::Buf,
}

impl<B: Backend> Layer<B> {
    /// The data that this layer keeps between steps.
    pub fn cache(&self) -> LayerCache {
        match &self.mixer {
            Mixer::Attention { spec, .. } => {
                LayerCache::Kv { kv_heads: spec.kv_heads, head_dim: spec.head_dim }
            }
            Mixer::Gdn { spec, .. } => LayerCache::Gdn {
                conv_rows: spec.conv_kernel - 1,
                channels: spec.channels(),
                v_heads: spec.v_heads,
                k_dim: spec.k_dim,
                v_dim: spec.v_dim,
            },
        }
    }

    fn forward(
        &self,
        be: &mut B,
        s: &mut Scratch<B>,
        cache: &mut B::Cache,
        counts: &ExpertCounts,
        index: usize,
        eps: f32,
        batch: &Batch,
    ) {
        let n = batch.len();
        match &self.mixer {
            Mixer::Attention { norm, q, k, v, out, spec } => {
                be.norm_linear(n, &s.h, norm, eps, [q, k, v], [&mut s.qkv, &mut s.k, &mut s.v]);
                be.rope_store(batch, spec, index, cache, &mut s.qkv, &mut s.k, &s.v);
                be.attend(batch, spec, index, cache, &s.qkv, &mut s.mixer_out);
                be.linear_add(n, &s.mixer_out, out, &mut s.h);
            }
            Mixer::Gdn { norm, qkv, z, beta, alpha, out, spec } => {
                let outs = [&mut s.qkv, &mut s.z, &mut s.beta, &mut s.alpha];
                be.norm_linear(n, &s.h, norm, eps, [qkv, z, beta, alpha], outs);
                be.gdn(batch, spec, index, cache, &s.qkv, &s.z, &s.beta, &s.alpha, &mut s.mixer_out);
                be.linear_add(n, &s.mixer_out, out, &mut s.h);
            }
        }
        match &self.feed_forward {
            FeedForward::Dense(mlp) => be.mlp(n, mlp, &mut s.h),
            FeedForward::Experts(moe) => be.moe(n, moe, index, counts, &mut s.h),
        }
    }

    /// Widths of `Scratch::{qkv, k and v, z and mixer_out, beta and alpha}`.
    fn widths(&self) -> [usize; 4] {
        match &self.mixer {
            Mixer::Attention { spec: a, .. } => {
                let q = a.heads * a.head_dim;
                [if a.gated { 2 * q } else { q }, a.kv_heads * a.head_dim, q, 0]
            }
            Mixer::Gdn { spec: g, .. } => [g.channels(), 0, g.v_heads * g.v_dim, g.v_heads],
        }
    }
}

impl<B: Backend> Decoder<B> {
    /// Decoder layers and, where loaded, the multi-token-prediction layer after them.
    fn all_layers(&self) -> impl Iterator<Item = &Layer<B>> {
        self.layers.iter().chain(self.mtp.iter().map(|m| &m.layer))
    }

    /// The cache for `pages` pages and `slots` running sequences with up to `guesses` guesses per step each.
    pub fn cache_shape(&self, pages: usize, slots: usize, guesses: usize, kv: KvTypes) -> CacheShape {
        CacheShape { layers: self.all_layers().map(Layer::cache).collect(), pages, slots, guesses, kv }
    }

    /// Counters for all layers with `experts` experts each; including routes of tokens if `be` records them.
    pub fn expert_counts(&self, be: &B, experts: usize, step: &StepShape) -> ExpertCounts {
        let counts = ExpertCounts::new(self.all_layers().count(), experts);
        let layers = if be.records_routes() { self.layers.len() } else { 0 };
        counts.with_trace(layers, step.tokens, step.top_k)
    }

    /// Buffers for `tokens` tokens and `outputs` rows of logits.
    pub fn scratch(&self, be: &mut B, tokens: usize, outputs: usize) -> Result<Scratch<B>, BackendError> {
        let mut width = [0; 4];
        for l in self.all_layers() {
            for (w, x) in width.iter_mut().zip(l.widths()) {
                *w = (*w).max(x);
            }
        }
        let [qkv, kv, mixer_out, heads] = width.map(|w| w * tokens);
        Ok(Scratch {
            h: be.buf(tokens * self.hidden)?,
            qkv: be.buf(qkv)?,
            k: be.buf(kv)?,
            v: be.buf(kv)?,
            z: be.buf(mixer_out)?,
            beta: be.buf(heads)?,
            alpha: be.buf(heads)?,
            mixer_out: be.buf(mixer_out)?,
            logits: be.buf(outputs * self.vocab)?,
        })
    }

    /// One step: afterwards `s.logits` has the logits of `batch.outputs`, and `s.h` the residual stream before the last norm. `probe`
    /// receives the residual stream after the embedding (0) and after each layer (1..).
    pub fn forward(
        &self,
        be: &mut B,
        s: &mut Scratch<B>,
        cache: &mut B::Cache,
        counts: &ExpertCounts,
        batch: &Batch,
        probe: &mut dyn FnMut(&mut B, usize, &B::Buf),
    ) {
        be.embed(&self.embedding, batch.tokens(), &mut s.h);
        probe(be, 0, &s.h);
        for (i, layer) in self.layers.iter().enumerate() {
            layer.forward(be, s, cache, counts, i, self.eps, batch);
            probe(be, i + 1, &s.h);
        }
        if !batch.outputs().is_empty() {
            be.logits(batch, &s.h, &self.norm, self.eps, &self.head, &mut s.logits);
            if self.picks {
                be.pick(batch.outputs().len(), &s.logits);
            }
        }
    }

    /// Updates the recurrent states of the slots of `batch`, which has no tokens, by accepted guesses.
    pub fn redo(&self, be: &mut B, s: &mut Scratch<B>, cache: &mut B::Cache, batch: &Batch) {
        for (i, layer) in self.layers.iter().enumerate() {
            if let Mixer::Gdn { spec, .. } = &layer.mixer {
                be.gdn(batch, spec, i, cache, &s.qkv, &s.z, &s.beta, &s.alpha, &mut s.mixer_out);
            }
        }
    }

    /// The multi-token-prediction block: row `t` of `hidden` is the trunk's state of token `t` after the last norm (or the block's
    /// own), `batch.tokens[t]` the token that follows it. `logits` then holds predictions of the token after that, for
    /// `batch.outputs`: of all tokens, or of those of [`Mtp::head`] where `own_head`.
    /// `hidden` and `work` are `[n, hidden]`; `work` is left holding the block's own state after its last norm.
    pub fn forward_mtp(
        &self,
        mtp: &Mtp<B>,
        be: &mut B,
        s: &mut Scratch<B>,
        cache: &mut B::Cache,
        counts: &ExpertCounts,
        batch: &Batch,
        hidden: &B::Buf,
        work: &mut B::Buf,
        own_head: bool,
    ) {
        let n = batch.len();
        self.mtp_input(mtp, be, s, batch, hidden, work);
        mtp.layer.forward(be, s, cache, counts, self.layers.len(), self.eps, batch);
        let head = mtp.head.as_ref().filter(|_| own_head).map_or(&self.head, |h| &h.weight);
        be.logits(batch, &s.h, &mtp.norm, self.eps, head, &mut s.logits);
        be.norm(n, &s.h, &mtp.norm, self.eps, work);
    }

    /// Computes only the block's keys and values, which later tokens attend to: a fraction of its work.
    pub fn fill_mtp(
        &self,
        mtp: &Mtp<B>,
        be: &mut B,
        s: &mut Scratch<B>,
        cache: &mut B::Cache,
        batch: &Batch,
        hidden: &B::Buf,
        work: &mut B::Buf,
    ) {
        self.mtp_input(mtp, be, s, batch, hidden, work);
        if let Mixer::Attention { norm, k, v, spec, .. } = &mtp.layer.mixer {
            be.norm_linear(batch.len(), &s.h, norm, self.eps, [k, v], [&mut s.k, &mut s.v]);
            // Queries are computed into a buffer that nothing reads.
            be.rope_store(batch, spec, self.layers.len(), cache, &mut s.qkv, &mut s.k, &s.v);
        }
    }

    fn mtp_input(
        &self,
        mtp: &Mtp<B>,
        be: &mut B,
        s: &mut Scratch<B>,
        batch: &Batch,
        hidden: &B::Buf,
        work: &mut B::Buf,
    ) {
        let n = batch.len();
        be.embed(&self.embedding, batch.tokens(), work);
        be.norm_linear(n, work, &mtp.embed_norm, self.eps, [&mtp.fc_embed], [&mut s.h]);
        be.norm(n, hidden, &mtp.hidden_norm, self.eps, work);
        be.linear_add(n, work, &mtp.fc_hidden, &mut s.h);
    }
}
