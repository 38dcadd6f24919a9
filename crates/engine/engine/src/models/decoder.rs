//! The forward pass: a walk over the residual blocks of a plan, whose weights a backend has packed.

use octet_compute::backend::{
    Act, Attention, Backend, Glu, Head, LayerCache, Moe, Norm, Out, ShortConv, Ssm, StepShape, TableRow,
    Times,
};
use octet_compute::{Batch, Error as BackendError, ExpertCounts};

use super::delta::{Buffers, Delta};
use super::pool::{Added, PerLayer, Pool};
use super::streams::{self, Streams};

/// Projections of queries, keys and values.
#[allow(missing_docs)]
pub enum Project<B: Backend> {
    /// Without `k`, the layer uses another one's keys and values; without `v`, values are the keys before their norm.
    Direct { q: B::Weight, k: Option<B::Weight>, v: Option<B::Weight> },
    /// Multi-head latent attention: queries, perhaps by a projection of low rank and a norm; keys and values as one latent row; and products
    /// by heads with which queries reach the latent space and values leave it.
    Latent {
        down_q: Option<(B::Weight, Norm<B>)>,
        q: B::Weight,
        down_kv: B::Weight,
        heads_k: B::Experts,
        heads_v: B::Experts,
        rotated: usize,
    },
}

/// An operation with its weights.
#[allow(missing_docs)]
pub enum Op<B: Backend> {
    /// `o = out . attend(q, k, v)`, gated if there is a gate.
    Attention {
        spec: Attention<B>,
        project: Project<B>,
        gate: Option<(B::Weight, Times)>,
        out: B::Weight,
        cache: usize,
    },
    Delta(Delta<B>),
    Ssm {
        spec: Ssm<B>,
        z: B::Weight,
        xbc: B::Weight,
        dt: B::Weight,
        out: B::Weight,
        cache: usize,
    },
    ShortConv {
        spec: ShortConv<B>,
        bcx: B::Weight,
        out: B::Weight,
        cache: usize,
    },
    Glu(Glu<B::Weight>),
    /// With a gate, whose products have `inner` rows.
    SparseGlu {
        gate: B::Weight,
        up: B::Weight,
        down: B::Weight,
        times: Times,
        inner: usize,
    },
    LowRank {
        down: B::Weight,
        up: B::Weight,
    },
    Norm(Norm<B>),
    Moe(Moe<B>),
    PerLayer {
        gate: B::Weight,
        out: B::Weight,
        act: Act,
    },
}

/// `post(op(pre(h)))`
#[allow(missing_docs)]
pub struct Branch<B: Backend> {
    pub pre: Option<Norm<B>>,
    pub op: Op<B>,
    pub post: Option<Norm<B>>,
}

/// `h = norm((h + add * post(sum of branches)) * keep)`
#[allow(missing_docs)]
pub struct Block<B: Backend> {
    pub layer: usize,
    pub branches: Vec<Branch<B>>,
    pub post: Option<Norm<B>>,
    pub add: f32,
    pub keep: f32,
    pub norm: Option<Norm<B>>,
}

/// The multi-token-prediction block (`nextn`): a layer over `fc . [norm(embed(next token)) | norm(hidden)]`.
pub struct Mtp<B: Backend> {
    /// Norm of the next token's embedding.
    pub embed_norm: Norm<B>,
    /// Norm of the trunk's hidden state (after its last norm).
    pub hidden_norm: Norm<B>,
    /// Columns of the projection that take the embedding `[hidden, hidden]`.
    pub fc_embed: B::Weight,
    /// Columns that take the hidden state `[hidden, hidden]`.
    pub fc_hidden: B::Weight,
    /// The blocks of the layer.
    pub blocks: Vec<Block<B>>,
    /// Norm before the shared head.
    pub norm: Norm<B>,
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
    pub layers: usize,
    pub embedding: B::Embedding,
    pub embed_scale: f32,
    pub added: Vec<Added<B>>,
    pub embed_norm: Option<Norm<B>>,
    pub per_layer: Option<PerLayer<B>>,
    pub blocks: Vec<Block<B>>,
    pub streams: Option<Streams<B>>,
    pub norm: Norm<B>,
    /// `None` in an encoder.
    pub head: Option<B::Weight>,
    pub pool: Pool<B>,
    pub head_scale: f32,
    pub softcap: Option<f32>,
    pub mtp: Option<Mtp<B>>,
    /// The cache of each layer.
    pub caches: Vec<LayerCache>,
    /// Steps find the largest logits of each row on the device.
    pub picks: bool,
}

/// All activations of a step, allocated once; `n` tokens each.
pub struct Scratch<B: Backend> {
    /// The residual stream `[n, hidden]`.
    pub h: B::Buf,
    /// Queries `[n, heads, k_dim (* 2 when gated)]`, or the convolution's channels.
    pub(super) qkv: B::Buf,
    /// Keys `[n, kv_heads, k_dim]`
    pub(super) k: B::Buf,
    /// Values `[n, kv_heads, v_dim]`; queries of low rank.
    pub(super) v: B::Buf,
    /// Gate of the mixer's output; queries before they reach the latent space.
    z: B::Buf,
    /// `[n, v_heads]`
    beta: B::Buf,
    /// `[n, v_heads]`, or `[n, v_heads, k_dim]`
    alpha: B::Buf,
    /// The mixer's output before its projection.
    mixer_out: B::Buf,
    /// The sum of branches before it is added `[n, hidden]`, and one branch of several; empty if no block needs them.
    sum: B::Buf,
    part: B::Buf,
    /// Numbers of rows.
    rows: Vec<u32>,
    /// Embeddings of each layer `[n, layers, width]`, their projection, and the width.
    per_layer: B::Buf,
    projected: B::Buf,
    per_layer_width: usize,
    /// Other residual streams.
    streams: streams::Buffers<B>,
    /// `[outputs, vocab]`
    pub logits: B::Buf,
}

/// Widths of the buffers of [`Scratch`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Widths {
    pub qkv: usize,
    pub kv: [usize; 2],
    pub z: usize,
    pub heads: usize,
    pub decays: usize,
    pub out: usize,
    pub sum: usize,
    pub part: usize,
    pub per_layer: usize,
    /// Of the other streams together, and their number with that of the blocks.
    pub streams: [usize; 2],
}

/// What a forward pass works on besides the backend and the scratch memory.
pub(super) struct Step<'a> {
    batch: &'a Batch,
    counts: &'a ExpertCounts,
    layers: usize,
    hidden: usize,
}

/// Embeddings that a batch gives for some of its tokens ([`Batch::give`]), and what is added to these after the first layers.
struct Given<'a, B: Backend> {
    tokens: &'a [u32],
    rows: &'a B::Buf,
    hidden: usize,
    /// Layers after which something is added.
    layers: usize,
}

impl<'a, B: Backend> Given<'a, B> {
    fn new(batch: &'a Batch, rows: &'a B::Buf, hidden: usize) -> Self {
        let (tokens, values) = batch.given();
        Self { tokens, rows, hidden, layers: values.len() / (tokens.len() * hidden) - 1 }
    }

    fn place(&self, be: &mut B, part: usize, out: Out<B>) {
        let place = [part * self.hidden, (1 + self.layers) * self.hidden];
        be.place(self.tokens, self.hidden, self.rows, place, out);
    }
}

/// Where a branch's result goes.
#[derive(Clone, Copy)]
enum Target {
    /// The residual stream, times this.
    Stream(f32),
    /// [`Scratch::sum`], of which it is the first part or a further one.
    Sum { first: bool },
    /// [`Scratch::part`]
    Part,
}

impl<B: Backend> Block<B> {
    /// Its experts and the norm before them, if it has some.
    fn experts(&self) -> Option<(Option<&Norm<B>>, &Moe<B>)> {
        self.branches.iter().find_map(|branch| match &branch.op {
            Op::Moe(moe) => Some((branch.pre.as_ref(), moe)),
            _ => None,
        })
    }

    pub(super) fn forward(&self, be: &mut B, s: &mut Scratch<B>, cache: &mut B::Cache, step: &Step) {
        let n = step.batch.len();
        if let ([branch], None) = (&self.branches[..], &self.post)
            && branch.post.is_none()
        {
            branch.forward(be, s, cache, step, self.layer, Target::Stream(self.add));
        } else {
            for (i, branch) in self.branches.iter().enumerate() {
                let first = i == 0;
                let target = if branch.post.is_some() { Target::Part } else { Target::Sum { first } };
                branch.forward(be, s, cache, step, self.layer, target);
                if let Some(norm) = &branch.post {
                    let out = if first { Out::Write(&mut s.sum) } else { Out::Add(&mut s.sum, 1.0) };
                    be.norm(n, Some(&s.part), norm, out);
                }
            }
            match &self.post {
                Some(norm) => be.norm(n, Some(&s.sum), norm, Out::Add(&mut s.h, self.add)),
                None => be.add(n * step.hidden, Some(&s.sum), self.add, &mut s.h),
            }
        }
        if self.keep != 1.0 {
            be.add(n * step.hidden, None, self.keep, &mut s.h);
        }
        if let Some(norm) = &self.norm {
            be.norm(n, None, norm, Out::Write(&mut s.h));
        }
    }
}

impl<B: Backend> Branch<B> {
    fn forward(
        &self,
        be: &mut B,
        s: &mut Scratch<B>,
        cache: &mut B::Cache,
        step: &Step,
        layer: usize,
        target: Target,
    ) {
        let (n, batch, pre) = (step.batch.len(), step.batch, self.pre.as_ref());
        let (projected, weight) = match &self.op {
            Op::Attention { spec, project, gate, out, cache: at } => {
                (project.attend(be, s, cache, batch, pre, (spec, gate.as_ref()), *at), out)
            }
            Op::Delta(delta) => {
                let (h, mut buffers) = s.delta();
                delta.project(be, n, h, pre, &mut buffers);
                delta.recur(be, batch, cache, buffers);
                (Projected::Mixer, &delta.out)
            }
            Op::Ssm { spec, z, xbc, dt, out, cache: at } => {
                be.project(n, &s.h, pre, [z, xbc, dt], [&mut s.z, &mut s.qkv, &mut s.beta]);
                be.ssm(batch, spec, *at, cache, &s.z, &s.qkv, &s.beta, &mut s.mixer_out);
                (Projected::Mixer, out)
            }
            Op::ShortConv { spec, bcx, out, cache: at } => {
                be.project(n, &s.h, pre, [bcx], [&mut s.qkv]);
                be.short_conv(batch, spec, *at, cache, &s.qkv, &mut s.mixer_out);
                (Projected::Mixer, out)
            }
            Op::PerLayer { gate, out, act } => {
                be.project(n, &s.h, pre, [gate], [&mut s.z]);
                let place = [layer * s.per_layer_width, step.layers * s.per_layer_width];
                be.multiply(n, s.per_layer_width, Times::Activated(*act), &mut s.z, &s.per_layer, place);
                (Projected::Gate, out)
            }
            Op::SparseGlu { gate, up, down, times, inner } => {
                be.project(n, &s.h, pre, [gate, up], [&mut s.z, &mut s.qkv]);
                be.multiply(n, *inner, *times, &mut s.z, &s.qkv, [0, *inner]);
                (Projected::Gate, down)
            }
            Op::LowRank { down, up } => {
                be.project(n, &s.h, pre, [down], [&mut s.z]);
                (Projected::Gate, up)
            }
            Op::Norm(norm) => {
                let (x, out) = s.split(target);
                return be.norm(n, x, norm, out);
            }
            Op::Glu(glu) => {
                let (x, out) = s.split(target);
                return be.glu(n, x, pre, glu, out);
            }
            Op::Moe(moe) => {
                let (x, out) = s.split(target);
                return be.moe(n, x, pre, moe, layer, step.counts, out);
            }
        };
        let (x, out) = s.mixed(projected, target);
        be.linear(n, x, weight, out);
    }
}

/// The buffer that has what an operation's last projection reads.
#[derive(Clone, Copy)]
enum Projected {
    Mixer,
    Gate,
}

impl<B: Backend> Project<B> {
    /// Attention up to its last projection.
    fn attend(
        &self,
        be: &mut B,
        s: &mut Scratch<B>,
        cache: &mut B::Cache,
        batch: &Batch,
        pre: Option<&Norm<B>>,
        (spec, gate): (&Attention<B>, Option<&(B::Weight, Times)>),
        at: usize,
    ) -> Projected {
        let n = batch.len();
        let projected = match self {
            Self::Direct { q, k: Some(k), v } => {
                let weights = [q, k, v.as_ref().unwrap_or(k)];
                be.project(n, &s.h, pre, weights, [&mut s.qkv, &mut s.k, &mut s.v]);
                be.rope_store(batch, spec, at, cache, &mut s.qkv, Some((&mut s.k, &s.v)));
                be.attend(batch, spec, at, cache, &s.qkv, &mut s.mixer_out);
                Projected::Mixer
            }
            Self::Direct { q, k: None, .. } => {
                be.project(n, &s.h, pre, [q], [&mut s.qkv]);
                be.rope_store(batch, spec, at, cache, &mut s.qkv, None);
                be.attend(batch, spec, at, cache, &s.qkv, &mut s.mixer_out);
                Projected::Mixer
            }
            Self::Latent { down_q, q, down_kv, heads_k, heads_v, rotated } => {
                match down_q {
                    None => be.project(n, &s.h, pre, [q, down_kv], [&mut s.z, &mut s.k]),
                    Some((down, norm)) => {
                        be.project(n, &s.h, pre, [down, down_kv], [&mut s.v, &mut s.k]);
                        be.project(n, &s.v, Some(norm), [q], [&mut s.z]);
                    }
                }
                be.per_head(n, &s.z, heads_k, *rotated, &mut s.qkv);
                be.rope_store(batch, spec, at, cache, &mut s.qkv, Some((&mut s.k, &s.v)));
                be.attend(batch, spec, at, cache, &s.qkv, &mut s.mixer_out);
                be.per_head(n, &s.mixer_out, heads_v, 0, &mut s.z);
                Projected::Gate
            }
        };
        if let Some((gate, times)) = gate {
            be.project(n, &s.h, pre, [gate], [&mut s.z]);
            let (rows, width, stride) = match times {
                Times::GatedByOne(_) => (n * spec.heads, spec.v_dim, 1),
                _ => (n, spec.heads * spec.v_dim, spec.heads * spec.v_dim),
            };
            be.multiply(rows, width, *times, &mut s.mixer_out, &s.z, [0, stride]);
        }
        projected
    }
}

impl<B: Backend> Scratch<B> {
    /// The residual stream, and the buffers of Gated DeltaNet.
    fn delta(&mut self) -> (&B::Buf, Buffers<'_, B>) {
        let Self { h, qkv, k, v, z, beta, alpha, mixer_out: out, .. } = self;
        (h, Buffers { qkv, k, v, z, beta, alpha, out })
    }

    /// The residual streams, and what their updates need.
    fn with_streams(&mut self) -> streams::Room<'_, B> {
        let Self { h, streams, rows, z, sum, per_layer, per_layer_width: width, .. } = self;
        streams::Room { h, streams, rows, z, sum, per_layer, width: *width }
    }

    /// The input of a feed-forward block and its output. If the block adds to its own input, `None` and that.
    fn split(&mut self, target: Target) -> (Option<&B::Buf>, Out<'_, B>) {
        match target {
            Target::Stream(add) => (None, Out::Add(&mut self.h, add)),
            Target::Sum { first: true } => (Some(&self.h), Out::Write(&mut self.sum)),
            Target::Sum { first: false } => (Some(&self.h), Out::Add(&mut self.sum, 1.0)),
            Target::Part => (Some(&self.h), Out::Write(&mut self.part)),
        }
    }

    /// The input of an operation's last projection and its output.
    fn mixed(&mut self, from: Projected, target: Target) -> (&B::Buf, Out<'_, B>) {
        let x = match from {
            Projected::Mixer => &self.mixer_out,
            Projected::Gate => &self.z,
        };
        let out = match target {
            Target::Stream(add) => Out::Add(&mut self.h, add),
            Target::Sum { first: true } => Out::Write(&mut self.sum),
            Target::Sum { first: false } => Out::Add(&mut self.sum, 1.0),
            Target::Part => Out::Write(&mut self.part),
        };
        (x, out)
    }
}

impl<B: Backend> Decoder<B> {
    /// Layers, and that of the multi-token-prediction block if it is loaded.
    pub fn all_layers(&self) -> usize {
        self.layers + usize::from(self.mtp.is_some())
    }

    /// Counters for all layers with `experts` experts each; including routes of tokens if `be` records them.
    pub fn expert_counts(&self, be: &B, step: &StepShape) -> ExpertCounts {
        let counts = ExpertCounts::new(self.all_layers(), step.experts);
        let layers = if be.records_routes() { self.layers } else { 0 };
        counts.with_trace(layers, step.tokens, step.top_k)
    }

    /// Buffers for `tokens` tokens and `outputs` rows of logits.
    pub fn scratch(
        &self,
        be: &mut B,
        w: Widths,
        tokens: usize,
        outputs: usize,
    ) -> Result<Scratch<B>, BackendError> {
        Ok(Scratch {
            h: be.buf(tokens * self.hidden)?,
            qkv: be.buf(tokens * w.qkv)?,
            k: be.buf(tokens * w.kv[0])?,
            v: be.buf(tokens * w.kv[1])?,
            z: be.buf(tokens * w.z)?,
            beta: be.buf(tokens * w.heads)?,
            alpha: be.buf(tokens * w.decays)?,
            mixer_out: be.buf(tokens * w.out)?,
            sum: be.buf(tokens * w.sum)?,
            part: be.buf(tokens * w.part)?,
            rows: Vec::with_capacity(tokens),
            per_layer: be.buf(tokens * w.per_layer)?,
            projected: be.buf(tokens * w.per_layer)?,
            per_layer_width: self.per_layer.as_ref().map_or(0, |p| p.width),
            streams: streams::Buffers::new(be, tokens, self.hidden, w.streams)?,
            logits: be.buf(if self.head.is_some() { outputs * self.vocab } else { 0 })?,
        })
    }

    pub(super) fn step<'a>(&self, batch: &'a Batch, counts: &'a ExpertCounts) -> Step<'a> {
        Step { batch, counts, layers: self.layers, hidden: self.hidden }
    }

    /// The head with a norm before it.
    pub(super) fn head<'a>(&'a self, norm: &'a Norm<B>, weight: &'a B::Weight) -> Head<'a, B> {
        Head { norm, weight, scale: self.head_scale, softcap: self.softcap }
    }

    /// One step: afterwards `s.logits` has the logits of `batch.outputs`, and `s.h` the residual stream before the last norm. `probe`
    /// receives the residual stream after the embedding (0) and after each layer (1..). `given` are the batch's given embeddings, if it has any.
    pub fn forward(
        &self,
        be: &mut B,
        s: &mut Scratch<B>,
        cache: &mut B::Cache,
        counts: &ExpertCounts,
        batch: &Batch,
        given: Option<&B::Buf>,
        probe: &mut dyn FnMut(&mut B, usize, &B::Buf),
    ) {
        let given = given.map(|rows| Given::new(batch, rows, self.hidden));
        self.embed(be, s, batch, given.as_ref());
        probe(be, 0, &s.h);
        let step = self.step(batch, counts);
        let reads_ahead = be.expert_slots().is_some();
        for (i, block) in self.blocks.iter().enumerate() {
            if reads_ahead && block.experts().is_some() {
                let next = self.blocks[i + 1..].iter().find_map(Block::experts);
                next.into_iter().for_each(|(norm, moe)| be.foresee(batch.len(), &s.h, norm, moe));
            }
            let is_first = i == 0 || self.blocks[i - 1].layer != block.layer;
            if let Some(all) = self.streams.as_ref().filter(|_| is_first) {
                all.predict(be, batch.len(), block.layer, s.with_streams());
            }
            block.forward(be, s, cache, &step);
            if self.blocks.get(i + 1).is_none_or(|next| next.layer != block.layer) {
                if let Some(given) = given.as_ref().filter(|g| block.layer < g.layers) {
                    given.place(be, 1 + block.layer, Out::Add(&mut s.h, 1.0));
                }
                if let Some(all) = &self.streams {
                    all.correct(be, batch.len(), block.layer, s.with_streams());
                }
                probe(be, block.layer + 1, &s.h);
            }
        }
        if let Some(all) = &self.streams {
            all.merge(be, batch.len(), s.with_streams());
        }
        if let Some(head) = self.head.as_ref().filter(|_| !batch.outputs().is_empty()) {
            be.logits(batch, &s.h, &self.head(&self.norm, head), &mut s.logits);
            if self.picks {
                be.pick(batch.outputs().len(), &s.logits);
            }
        }
    }

    /// Tokens to the residual stream, and to the embeddings of each layer.
    fn embed(&self, be: &mut B, s: &mut Scratch<B>, batch: &Batch, given: Option<&Given<B>>) {
        let n = batch.len();
        be.embed(batch, &self.embedding, TableRow::Id, self.embed_scale, &mut s.h);
        if let Some(given) = given {
            given.place(be, 0, Out::Write(&mut s.h));
        }
        self.added.iter().for_each(|a| a.add(be, batch, &mut s.sum, &mut s.h));
        if let Some(norm) = &self.embed_norm {
            be.norm(n, None, norm, Out::Write(&mut s.h));
        }
        if let Some(p) = &self.per_layer {
            let len = self.layers * p.width;
            be.embed(batch, &p.table, TableRow::Id, p.scales[0], &mut s.per_layer);
            be.project(n, &s.h, None, [&p.project], [&mut s.projected]);
            be.norm(n * self.layers, Some(&s.projected), &p.norm, Out::Add(&mut s.per_layer, 1.0));
            be.add(n * len, None, p.scales[2], &mut s.per_layer);
        }
        if let Some(all) = &self.streams {
            all.expand(be, n, s.with_streams());
        }
    }

    /// Updates the recurrent states of the slots of `batch`, which has no tokens, by accepted guesses.
    pub fn redo(&self, be: &mut B, s: &mut Scratch<B>, cache: &mut B::Cache, batch: &Batch) {
        for branch in self.blocks.iter().flat_map(|b| &b.branches) {
            match &branch.op {
                Op::Delta(delta) => delta.recur(be, batch, cache, s.delta().1),
                Op::Ssm { spec, cache: at, .. } => {
                    be.ssm(batch, spec, *at, cache, &s.z, &s.qkv, &s.beta, &mut s.mixer_out);
                }
                Op::ShortConv { spec, cache: at, .. } => {
                    be.short_conv(batch, spec, *at, cache, &s.qkv, &mut s.mixer_out);
                }
                _ => {}
            }
        }
    }
}
