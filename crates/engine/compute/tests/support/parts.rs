//! Parts that few models have in any backend, and what their verbs compute: routers, activations, norms, Mamba-2, short convolutions, products
//! by heads. For the tests of this crate and of other backends.
#![allow(dead_code, missing_docs)] // each program uses a part

use octet_compute::ExpertCounts;
use octet_compute::backend::*;
use octet_compute::batch::Batch;
use octet_weights::GgmlType;
use proptest::prelude::*;

use crate::layers::{Random, pages, tokens};

pub const HIDDEN: usize = 64;
pub const TOKENS: usize = 48;
pub const GUESSES: usize = 4;

/// The choices of one model.
#[derive(Debug, Clone)]
pub struct Choices {
    pub seed: u64,
    /// Type of all weights but the router's.
    pub ty: GgmlType,
    pub act: Act,
    pub gated: bool,
    pub biased: bool,
    pub centred: bool,
    pub score: Score,
    pub choice_bias: bool,
    pub groups: bool,
    pub weighs_input: bool,
    pub own_input: bool,
    pub shared: bool,
    pub heads: usize,
    pub ssm_groups: usize,
    pub taps: usize,
    pub add: Option<f32>,
}

impl Choices {
    /// Width of feed-forward blocks: of f32 weights not a whole number of blocks.
    pub fn inner(&self) -> usize {
        if self.ty == GgmlType::F32 { 88 } else { 96 }
    }
    /// Columns of a product by heads.
    pub fn head_cols(&self) -> usize {
        if self.ty == GgmlType::F32 { DIM } else { 32 }
    }
}

pub fn choices() -> impl Strategy<Value = Choices> {
    let acts = prop::sample::select(vec![
        Act::Silu,
        Act::Gelu,
        Act::GeluErf,
        Act::Relu2,
        Act::ClampedSwiglu { alpha: 1.702, limit: 1.0 },
        Act::CappedSilu { limit: 0.25 },
        Act::Xielu { positive: 0.7, negative: 1.3 },
    ]);
    let scores = prop::sample::select(vec![Score::Softmax, Score::Sigmoid, Score::SparseMixer]);
    let sizes = (1..4usize, 1..3usize, 2..5usize);
    let add = prop::option::of(prop::sample::select(vec![1.0f32, 0.22]));
    (0..1000u64, acts, scores, prop::array::uniform9(any::<bool>()), sizes, add).prop_map(
        |(seed, act, score, f, (heads, ssm_groups, taps), add)| Choices {
            seed,
            ty: GgmlType::F32,
            act,
            gated: f[0] || matches!(act, Act::ClampedSwiglu { .. }),
            biased: f[1],
            centred: f[2],
            score,
            choice_bias: f[4],
            groups: f[5],
            weighs_input: f[6],
            own_input: f[7],
            shared: f[8],
            heads: heads * ssm_groups,
            ssm_groups,
            taps,
            add,
        },
    )
}

/// The parts with their weights in one backend.
pub struct Parts<B: Backend> {
    pub be: B,
    pub c: Choices,
    pub norm: Norm<B>,
    pub moe: Moe<B>,
    pub ssm: Ssm<B>,
    pub conv: ShortConv<B>,
    pub per_head: B::Experts,
    pub streams: AltUp<B>,
    pub cache: B::Cache,
    pub counts: ExpertCounts,
}

pub const EXPERTS: usize = 8;
pub const DIM: usize = 12;
pub const STATE: usize = 20;
pub const REST: usize = 3;
pub const STREAMS: usize = 3;
/// Width of the streams: more than the columns that the processor takes at a time, twice, and some.
pub const STREAM_WIDTH: usize = 1100;

pub fn parts<B: Backend>(mut be: B, c: &Choices) -> Parts<B> {
    let (r, inner) = (&mut Random(c.seed), c.inner());
    let weight = |be: &mut B, r: &mut Random, ty, rows, cols| {
        let m = r.matrix(ty, rows, cols);
        let bias = r.vec(rows);
        be.weight(&m, c.biased.then_some(&bias[..])).unwrap()
    };
    let stack = |be: &mut B, r: &mut Random, count: usize, rows, cols| {
        let all: Vec<_> = (0..count).map(|_| r.matrix(c.ty, rows, cols)).collect();
        let bias = r.vec(count * rows);
        be.experts(&all, c.biased.then_some(&bias[..])).unwrap()
    };
    let vector = |be: &mut B, values: Vec<f32>| be.vector(&values).unwrap();
    let norm = Norm {
        bias: c.centred.then(|| vector(&mut be, r.vec(HIDDEN))),
        centred: c.centred,
        ..Norm::rms(vector(&mut be, r.near_one(HIDDEN)), HIDDEN, 1e-5)
    };
    let router = Router {
        input: c.own_input.then(|| Norm::rms(vector(&mut be, r.near_one(HIDDEN)), HIDDEN, 1e-6)),
        score: c.score,
        choice_bias: c.choice_bias.then(|| vector(&mut be, r.vec(EXPERTS))),
        groups: c.groups.then_some([4, 2]),
        scale: if c.score == Score::Softmax { 1.0 } else { 2.5 },
        per_expert: c.own_input.then(|| vector(&mut be, r.near_one(EXPERTS))),
        weighs_input: c.weighs_input,
        ..Router::softmax(weight(&mut be, r, GgmlType::F32, EXPERTS, HIDDEN), EXPERTS, 3, !c.weighs_input)
    };
    let experts = Glu {
        gate: c.gated.then(|| stack(&mut be, r, EXPERTS, inner, HIDDEN)),
        up: stack(&mut be, r, EXPERTS, inner, HIDDEN),
        down: stack(&mut be, r, EXPERTS, HIDDEN, inner),
        act: c.act,
    };
    let shared = c.shared.then(|| SharedExpert {
        gate: None,
        glu: Glu {
            gate: c.gated.then(|| weight(&mut be, r, c.ty, inner, HIDDEN)),
            up: weight(&mut be, r, c.ty, inner, HIDDEN),
            down: weight(&mut be, r, c.ty, HIDDEN, inner),
            act: c.act,
        },
    });
    let channels = c.heads * DIM + 2 * c.ssm_groups * STATE;
    let a = r.vec(c.heads).iter().map(|x| -1.0 - 0.9 * x).collect();
    let ssm = Ssm {
        groups: c.ssm_groups,
        heads: c.heads,
        dim: DIM,
        state: STATE,
        taps: c.taps,
        conv: vector(&mut be, r.vec(c.taps * channels)),
        conv_bias: c.biased.then(|| vector(&mut be, r.vec(channels))),
        dt_bias: vector(&mut be, r.vec(c.heads)),
        a: vector(&mut be, a),
        d: vector(&mut be, r.vec(c.heads)),
        norm: c.gated.then(|| {
            let weight = vector(&mut be, r.near_one(c.heads * DIM));
            Norm::rms(weight, c.heads * DIM / c.ssm_groups, 1e-5)
        }),
    };
    let conv = ShortConv { width: HIDDEN, taps: c.taps, conv: vector(&mut be, r.vec(c.taps * HIDDEN)) };
    let heads: Vec<_> = (0..c.heads).map(|_| r.matrix(c.ty, 40, c.head_cols())).collect();
    let per_head = be.experts(&heads, None).unwrap();
    let streams = AltUp {
        streams: STREAMS,
        width: STREAM_WIDTH,
        predict: vector(&mut be, r.vec(STREAMS * STREAMS * STREAMS)),
        correct: vector(&mut be, r.vec(STREAMS * STREAMS)),
        scale: vector(&mut be, r.near_one(STREAM_WIDTH)),
    };
    let shape = CacheShape {
        layers: vec![ssm.cache(), conv.cache()],
        pages: 24,
        windowed: None,
        slots: 4,
        guesses: GUESSES,
        kv: KvType::F32.into(),
    };
    let step = StepShape {
        tokens: TOKENS,
        outputs: TOKENS,
        intermediate: inner,
        experts: EXPERTS,
        top_k: 3,
        expert_intermediate: inner,
        recurrent: [HIDDEN, channels.max(HIDDEN), c.heads, 0, DIM * (STATE + 1), 0],
        per_head: [c.heads, c.head_cols()],
        ..StepShape::default()
    };
    let cache = be.cache(&shape, step).unwrap();
    let counts = ExpertCounts::new(1, EXPERTS);
    let moe = Moe { router, experts, shared };
    Parts { be, c: c.clone(), norm, moe, ssm, conv, per_head, streams, cache, counts }
}

impl<B: Backend> Parts<B> {
    /// Rows of `width` values: a token has the same ones in every batch.
    pub fn input(&mut self, batch: &Batch, width: usize, seed: u64) -> B::Buf {
        let row = |t: &u32, p: &u32| Random(seed * 100_000 + u64::from(t * 997 + p)).vec(width);
        let rows = batch.tokens().iter().zip(batch.positions()).flat_map(|(t, p)| row(t, p));
        self.be.vector(&rows.collect::<Vec<f32>>()).unwrap()
    }

    /// The result of each part for all tokens.
    pub fn run(&mut self, batch: &Batch) -> Vec<Vec<f32>> {
        let (n, c) = (batch.len(), self.c.clone());
        let (inner, channels) = (c.heads * DIM, self.ssm.channels());
        let x = self.input(batch, HIDDEN, 1);
        let mut moe = self.input(batch, HIDDEN, 2);
        let [z, xbc, dt] =
            [(inner, 3), (channels, 4), (c.heads, 5)].map(|(width, seed)| self.input(batch, width, seed));
        let (bcx, heads) =
            (self.input(batch, 3 * HIDDEN, 6), self.input(batch, c.heads * (c.head_cols() + REST), 7));
        let mut logits = self.input(batch, HIDDEN, 8);
        let lens = [inner, HIDDEN, c.heads * (40 + REST)];
        let [mut ssm, mut conv, mut product] = lens.map(|len| self.be.buf(n * len).unwrap());
        let be = &mut self.be;
        match c.add {
            // Adds to its own input.
            Some(scale) => {
                let out = Out::Add(&mut moe, scale);
                be.moe(n, None, Some(&self.norm), &self.moe, 0, &self.counts, out);
            }
            None => {
                let out = Out::Write(&mut moe);
                be.moe(n, Some(&x), Some(&self.norm), &self.moe, 0, &self.counts, out);
            }
        }
        be.ssm(batch, &self.ssm, 0, &mut self.cache, &z, &xbc, &dt, &mut ssm);
        be.short_conv(batch, &self.conv, 1, &mut self.cache, &bcx, &mut conv);
        be.per_head(n, &heads, &self.per_head, REST, &mut product);
        be.multiply(n, HIDDEN, Times::Activated(c.act), &mut conv, &x, [0, HIDDEN]);
        be.clamp(n * HIDDEN, [-0.2, 0.3], &mut conv);
        be.multiply(n, HIDDEN, Times::Itself, &mut conv, &x, [0, HIDDEN]);
        for gate in [Gate::Sigmoid, Gate::Softplus] {
            be.multiply(n, HIDDEN, Times::Gated(gate), &mut conv, &x, [0, HIDDEN]);
            be.multiply(4 * n, HIDDEN / 4, Times::GatedByOne(gate), &mut conv, &x, [3, HIDDEN / 4]);
        }
        let rows: Vec<u32> = (0..n as u32).collect();
        be.place(&rows, HIDDEN, &x, [0, HIDDEN], Out::Add(&mut logits, 0.25));
        be.norm(n, Some(&x), &self.norm, Out::Add(&mut logits, 0.5));
        let read = |be: &mut B, buf: &B::Buf, len: usize| {
            let mut out = vec![0.0; n * len];
            be.read(buf, &mut out);
            out
        };
        let mut all = vec![
            read(be, &moe, HIDDEN),
            read(be, &ssm, inner),
            read(be, &conv, HIDDEN),
            read(be, &product, c.heads * (40 + REST)),
            read(be, &logits, HIDDEN),
        ];
        all.extend(self.run_streams(batch, c.act));
        all
    }

    /// Several residual streams, and products of rows that depend on whole rows.
    fn run_streams(&mut self, batch: &Batch, act: Act) -> Vec<Vec<f32>> {
        let (n, others) = (batch.len(), STREAMS - 1);
        let [routed, mut h, mut rest, y] =
            [(STREAMS, 9), (STREAM_WIDTH, 10), (others * STREAM_WIDTH, 11), (STREAM_WIDTH, 12)]
                .map(|(width, seed)| self.input(batch, width, seed));
        let be = &mut self.be;
        let mut kept = be.buf(n * STREAM_WIDTH).unwrap();
        be.predict_streams(n, &self.streams, &routed, &mut h, &mut rest, &mut kept);
        be.multiply(n, STREAM_WIDTH, Times::Itself, &mut h, &y, [0, STREAM_WIDTH]);
        be.correct_streams(n, &self.streams, &routed, &mut h, &mut rest, &mut kept);
        be.multiply(
            n,
            STREAM_WIDTH,
            Times::ActivatedAbove { deviations: 0.5, act },
            &mut kept,
            &y,
            [0, STREAM_WIDTH],
        );
        be.multiply(n, STREAM_WIDTH, Times::Levelled, &mut h, &y, [0, STREAM_WIDTH]);
        [(h, STREAM_WIDTH), (rest, others * STREAM_WIDTH), (kept, STREAM_WIDTH)]
            .into_iter()
            .map(|(buf, len)| {
                let mut out = vec![0.0; n * len];
                be.read(&buf, &mut out);
                out
            })
            .collect()
    }

    pub fn reset(&mut self) {
        (0..4).for_each(|slot| self.be.reset_slot(&mut self.cache, slot));
    }
}

/// `len` tokens of sequence 0 from `past` on, after a few of another sequence.
pub fn batch(all: &[u32], past: usize, len: usize, beside: bool) -> (Batch, usize) {
    let mut batch = Batch::default();
    if beside {
        batch.push(&tokens(1, 3), 0, 1, &pages(1), 0);
    }
    batch.push(&all[past..past + len], past, 0, &pages(0), len);
    (batch, if beside { 3 } else { 0 })
}

/// The rows of each part from `skip` on, `len` of them.
pub fn rows(parts: Vec<Vec<f32>>, n: usize, skip: usize, len: usize) -> Vec<Vec<f32>> {
    parts.into_iter().map(|p| p[p.len() / n * skip..p.len() / n * (skip + len)].to_vec()).collect()
}
