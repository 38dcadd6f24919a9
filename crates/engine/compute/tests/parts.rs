//! Parts that few models have, on the CPU backend against the scalar oracle, on random shapes: routers, activations, norms, Mamba-2, short
//! convolutions, products by heads. And against itself: a token's result may not depend, to the bit, on the rest of the batch, on how a
//! prompt was split, or on guesses that were wrong.

use octet_compute::ExpertCounts;
use octet_compute::backend::*;
use octet_compute::batch::{Batch, Redo};
use octet_compute::cpu::isa::Isa;
use octet_compute::cpu::{Cpu, CpuOptions};
use octet_compute::reference::Reference;
use octet_weights::GgmlType;
use proptest::prelude::*;

#[path = "support/layers.rs"]
mod layers;

use layers::{Random, pages, tokens, worst};

const HIDDEN: usize = 64;
const INNER: usize = 88;
const TOKENS: usize = 48;
const GUESSES: usize = 4;

/// The choices of one model.
#[derive(Debug, Clone)]
struct Choices {
    seed: u64,
    act: Act,
    gated: bool,
    biased: bool,
    centred: bool,
    sigmoid: bool,
    choice_bias: bool,
    groups: bool,
    weighs_input: bool,
    own_input: bool,
    shared: bool,
    heads: usize,
    ssm_groups: usize,
    taps: usize,
    add: Option<f32>,
}

fn choices() -> impl Strategy<Value = Choices> {
    let acts = prop::sample::select(vec![
        Act::Silu,
        Act::Gelu,
        Act::GeluErf,
        Act::Relu2,
        Act::ClampedSwiglu { alpha: 1.702, limit: 1.0 },
    ]);
    let sizes = (1..4usize, 1..3usize, 2..5usize);
    let add = prop::option::of(prop::sample::select(vec![1.0f32, 0.22]));
    (0..1000u64, acts, prop::array::uniform9(any::<bool>()), sizes, add).prop_map(
        |(seed, act, f, (heads, ssm_groups, taps), add)| Choices {
            seed,
            act,
            gated: f[0] || matches!(act, Act::ClampedSwiglu { .. }),
            biased: f[1],
            centred: f[2],
            sigmoid: f[3],
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
struct Parts<B: Backend> {
    be: B,
    c: Choices,
    norm: Norm<B>,
    moe: Moe<B>,
    ssm: Ssm<B>,
    conv: ShortConv<B>,
    per_head: B::Experts,
    cache: B::Cache,
    counts: ExpertCounts,
}

const EXPERTS: usize = 8;
const DIM: usize = 12;
const STATE: usize = 20;
const REST: usize = 3;

fn parts<B: Backend>(mut be: B, c: &Choices) -> Parts<B> {
    let r = &mut Random(c.seed);
    let weight = |be: &mut B, r: &mut Random, rows, cols| {
        let m = r.matrix(GgmlType::F32, rows, cols);
        let bias = r.vec(rows);
        be.weight(&m, c.biased.then_some(&bias[..])).unwrap()
    };
    let stack = |be: &mut B, r: &mut Random, count: usize, rows, cols| {
        let all: Vec<_> = (0..count).map(|_| r.matrix(GgmlType::F32, rows, cols)).collect();
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
        score: if c.sigmoid { Score::Sigmoid } else { Score::Softmax },
        choice_bias: c.choice_bias.then(|| vector(&mut be, r.vec(EXPERTS))),
        groups: c.groups.then_some([4, 2]),
        scale: if c.sigmoid { 2.5 } else { 1.0 },
        per_expert: c.own_input.then(|| vector(&mut be, r.near_one(EXPERTS))),
        weighs_input: c.weighs_input,
        ..Router::softmax(weight(&mut be, r, EXPERTS, HIDDEN), EXPERTS, 3, !c.weighs_input)
    };
    let experts = Glu {
        gate: c.gated.then(|| stack(&mut be, r, EXPERTS, INNER, HIDDEN)),
        up: stack(&mut be, r, EXPERTS, INNER, HIDDEN),
        down: stack(&mut be, r, EXPERTS, HIDDEN, INNER),
        act: c.act,
    };
    let shared = c.shared.then(|| SharedExpert {
        gate: None,
        glu: Glu {
            gate: c.gated.then(|| weight(&mut be, r, INNER, HIDDEN)),
            up: weight(&mut be, r, INNER, HIDDEN),
            down: weight(&mut be, r, HIDDEN, INNER),
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
    let heads: Vec<_> = (0..c.heads).map(|_| r.matrix(GgmlType::F32, 40, DIM)).collect();
    let per_head = be.experts(&heads, None).unwrap();
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
        intermediate: INNER,
        experts: EXPERTS,
        top_k: 3,
        expert_intermediate: INNER,
        recurrent: [HIDDEN, channels.max(HIDDEN), c.heads, 0, DIM * (STATE + 1)],
        per_head: [c.heads, DIM],
        ..StepShape::default()
    };
    let cache = be.cache(&shape, step).unwrap();
    let counts = ExpertCounts::new(1, EXPERTS);
    Parts { be, c: c.clone(), norm, moe: Moe { router, experts, shared }, ssm, conv, per_head, cache, counts }
}

impl<B: Backend> Parts<B> {
    /// Rows of `width` values: a token has the same ones in every batch.
    fn input(&mut self, batch: &Batch, width: usize, seed: u64) -> B::Buf {
        let row = |t: &u32, p: &u32| Random(seed * 100_000 + u64::from(t * 997 + p)).vec(width);
        let rows = batch.tokens().iter().zip(batch.positions()).flat_map(|(t, p)| row(t, p));
        self.be.vector(&rows.collect::<Vec<f32>>()).unwrap()
    }

    /// The result of each part for all tokens.
    fn run(&mut self, batch: &Batch) -> Vec<Vec<f32>> {
        let (n, c) = (batch.len(), self.c.clone());
        let (inner, channels) = (c.heads * DIM, self.ssm.channels());
        let x = self.input(batch, HIDDEN, 1);
        let mut moe = self.input(batch, HIDDEN, 2);
        let [z, xbc, dt] =
            [(inner, 3), (channels, 4), (c.heads, 5)].map(|(width, seed)| self.input(batch, width, seed));
        let (bcx, heads) = (self.input(batch, 3 * HIDDEN, 6), self.input(batch, c.heads * (DIM + REST), 7));
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
        be.norm(n, Some(&x), &self.norm, Out::Add(&mut logits, 0.5));
        let read = |be: &mut B, buf: &B::Buf, len: usize| {
            let mut out = vec![0.0; n * len];
            be.read(buf, &mut out);
            out
        };
        vec![
            read(be, &moe, HIDDEN),
            read(be, &ssm, inner),
            read(be, &conv, HIDDEN),
            read(be, &product, c.heads * (40 + REST)),
            read(be, &logits, HIDDEN),
        ]
    }

    fn reset(&mut self) {
        (0..4).for_each(|slot| self.be.reset_slot(&mut self.cache, slot));
    }
}

fn cpu(isa: Isa, threads: usize) -> Cpu {
    let options = CpuOptions {
        threads: Some(threads),
        pin: false,
        isa: Some(isa),
        exact: true,
        ..CpuOptions::default()
    };
    Cpu::new(&options).unwrap()
}

fn isas() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|i| i.available())
}

/// `len` tokens of sequence 0 from `past` on, after a few of another sequence.
fn batch(all: &[u32], past: usize, len: usize, beside: bool) -> (Batch, usize) {
    let mut batch = Batch::default();
    if beside {
        batch.push(&tokens(1, 3), 0, 1, &pages(1), 0);
    }
    batch.push(&all[past..past + len], past, 0, &pages(0), len);
    (batch, if beside { 3 } else { 0 })
}

/// The rows of each part from `skip` on, `len` of them.
fn rows(parts: Vec<Vec<f32>>, n: usize, skip: usize, len: usize) -> Vec<Vec<f32>> {
    parts.into_iter().map(|p| p[p.len() / n * skip..p.len() / n * (skip + len)].to_vec()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn parts_equal_the_oracle(c in choices(), n in 1..40usize) {
        let (b, _) = batch(&tokens(0, n), 0, n, false);
        let want = parts(Reference, &c).run(&b);
        for (isa, threads) in isas().flat_map(|isa| [(isa, 1), (isa, 3)]) {
            let got = parts(cpu(isa, threads), &c).run(&b);
            for (part, (got, want)) in got.iter().zip(&want).enumerate() {
                let size = want.iter().fold(1.0f32, |m, x| m.max(x.abs()));
                let d = worst(got, want) / size;
                prop_assert!(d <= 2e-5, "{isa:?}, {threads} threads: part {part} differs by {d}");
            }
        }
    }

    #[test]
    fn parts_do_not_depend_on_the_batch_or_the_split(c in choices(), n in 2..40usize, cut in 1..39usize) {
        let (all, cut) = (tokens(0, n), cut.min(n - 1));
        for isa in isas() {
            let mut m = parts(cpu(isa, 2), &c);
            let whole = m.run(&batch(&all, 0, n, false).0);
            m.reset();
            let mut halves = vec![Vec::new(); whole.len()];
            for (past, len) in [(0, cut), (cut, n - cut)] {
                let (b, skip) = batch(&all, past, len, true);
                let got = rows(m.run(&b), b.len(), skip, len);
                halves.iter_mut().zip(got).for_each(|(all, part)| all.extend(part));
                m.be.reset_slot(&mut m.cache, 1);
            }
            prop_assert!(halves == whole, "{isa:?}: cut at {cut} of {n}");
        }
    }

    #[test]
    fn wrong_guesses_leave_no_trace(c in choices(), right in 0..3usize, wrong in 1..3usize) {
        let n = 9;
        let all = tokens(0, n);
        for isa in isas() {
            let mut m = parts(cpu(isa, 2), &c);
            let whole = m.run(&batch(&all, 0, n, false).0);
            m.reset();
            // Four tokens, then guesses of which some are right; the next step processes these again.
            let mut span = all[..4 + right].to_vec();
            span.extend((0..wrong).map(|i| (all[i] + 1) % 70));
            let mut b = Batch::default();
            b.push(&span, 0, 0, &pages(0), span.len());
            b.speculate(right + wrong, Redo::default());
            let first = m.run(&b);
            let len = 4 + right;
            prop_assert!(rows(first, span.len(), 0, len) == rows(whole.clone(), n, 0, len), "{isa:?}");
            let mut b = Batch::default();
            b.push(&all[len..], len, 0, &pages(0), n - len);
            b.speculate(0, Redo { first: 0, len: right });
            let rest = m.run(&b);
            prop_assert!(rest == rows(whole, n, len, n - len), "{isa:?}: after {right} right guesses");
        }
    }
}
