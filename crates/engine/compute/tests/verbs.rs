//! The CPU backend against the scalar oracle, verb by verb, on random shapes; and against itself: a token's result may
//! not depend, to the bit, on what else is in the batch or on how the prompt was cut.

use octet_compute::ExpertCounts;
use octet_compute::backend::*;
use octet_compute::batch::{Batch, PAGE_TOKENS};
use octet_compute::cpu::isa::Isa;
use octet_compute::cpu::{Cpu, CpuOptions};
use octet_compute::reference::Reference;
use octet_weights::{GgmlType, Matrix, quant};
use proptest::prelude::*;

/// Random numbers that both backends are given.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 40) as f32 / (1u64 << 24) as f32 - 0.5) * 2.0
    }
    fn vec(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.next()).collect()
    }
    fn near_one(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| 1.0 + 0.2 * self.next()).collect()
    }
    /// Rows of length 1 or so, of another type where they are not whole blocks of `ty`.
    fn matrix(&mut self, ty: GgmlType, rows: usize, cols: usize) -> Matrix {
        let ty = if cols.is_multiple_of(ty.block_len()) { ty } else { GgmlType::Q8_0 };
        let mut data = vec![0; rows * cols / ty.block_len() * ty.block_bytes()];
        quant::random_blocks(ty, &mut self.0, 1.0 / (cols as f32).sqrt(), &mut data);
        Matrix { ty, rows, cols, data: data.into() }
    }
    /// A projection, three times out of four with a bias.
    fn weight<B: Backend>(&mut self, be: &mut B, ty: GgmlType, rows: usize, cols: usize) -> B::Weight {
        let m = self.matrix(ty, rows, cols);
        let bias = (self.next() > -0.5).then(|| self.vec(rows));
        be.weight(&m, bias.as_deref()).unwrap()
    }
}

/// A little model with one layer of each kind, in one backend.
struct Layers<B: Backend> {
    be: B,
    attention: Attention<B>,
    gdn: Gdn<B>,
    mlp: Mlp<B>,
    moe: Moe<B>,
    q: B::Weight,
    k: B::Weight,
    v: B::Weight,
    out: B::Weight,
    qkv: B::Weight,
    z: B::Weight,
    b: B::Weight,
    alpha: B::Weight,
    gdn_out: B::Weight,
    norm: B::Buf,
    head: B::Weight,
    embedding: B::Embedding,
    cache: B::Cache,
    counts: ExpertCounts,
    shape: Shape,
}

#[derive(Debug, Clone)]
struct Shape {
    seed: u64,
    ty: GgmlType,
    kv_heads: usize,
    group: usize,
    head_dim: usize,
    gated: bool,
    qk_norm: bool,
    pairing: RopePairing,
    k_heads: usize,
    repeat: usize,
    gdn_dim: usize,
    order: HeadOrder,
    experts: usize,
    top_k: usize,
    shared: bool,
    kv: KvTypes,
}

impl Shape {
    /// Width of the residual stream: whole blocks.
    fn hidden(&self) -> usize {
        self.ty.block_len().max(64)
    }
    /// Width of the MLP and of each expert; for F32 not a whole number of the backend's groups of rows.
    fn inner(&self) -> usize {
        if self.ty == GgmlType::F32 { 88 } else { self.ty.block_len().max(96) }
    }
}

const VOCAB: usize = 75;
const PAGES: usize = 24;
const MAX_TOKENS: usize = 160;

fn layers<B: Backend>(mut be: B, s: &Shape) -> Layers<B> {
    let r = &mut Random(s.seed);
    let (heads, v_heads) = (s.kv_heads * s.group, s.k_heads * s.repeat);
    let (hidden, inner, values) = (s.hidden(), s.inner(), v_heads * s.gdn_dim);
    let channels = 2 * s.k_heads * s.gdn_dim + values;
    let cache = CacheShape {
        layers: vec![
            LayerCache::Kv { kv_heads: s.kv_heads, head_dim: s.head_dim },
            LayerCache::Gdn { conv_rows: 3, channels, v_heads, k_dim: s.gdn_dim, v_dim: s.gdn_dim },
        ],
        pages: PAGES,
        slots: 4,
        kv: s.kv,
    };
    let step = StepShape {
        tokens: MAX_TOKENS,
        outputs: MAX_TOKENS,
        heads,
        intermediate: inner,
        experts: s.experts,
        top_k: s.top_k,
        expert_intermediate: inner,
    };
    let q_rows = heads * s.head_dim * if s.gated { 2 } else { 1 };
    let kv_rows = s.kv_heads * s.head_dim;
    let frequencies: Vec<f32> = (0..s.head_dim / 4).map(|j| 0.3f32.powi(j as i32)).collect();
    let decays: Vec<f32> = r.vec(v_heads).iter().map(|x| -1.0 - 0.9 * x).collect();
    macro_rules! weight {
        ($rows:expr, $cols:expr) => {
            r.weight(&mut be, s.ty, $rows, $cols)
        };
    }
    macro_rules! experts {
        ($rows:expr, $cols:expr) => {{
            let m: Vec<Matrix> = (0..s.experts).map(|_| r.matrix(s.ty, $rows, $cols)).collect();
            be.experts(&m).unwrap()
        }};
    }
    Layers {
        attention: Attention {
            heads,
            kv_heads: s.kv_heads,
            head_dim: s.head_dim,
            gated: s.gated,
            qk_norm: s.qk_norm.then(|| {
                let (q, k) = (r.near_one(s.head_dim), r.near_one(s.head_dim));
                (be.vector(&q).unwrap(), be.vector(&k).unwrap())
            }),
            eps: 1e-6,
            rope_dims: s.head_dim / 2,
            rope_pairing: s.pairing,
            inv_freq: be.vector(&frequencies).unwrap(),
            rope_scale: if s.qk_norm { 1.0 } else { 1.2 },
        },
        gdn: Gdn {
            k_heads: s.k_heads,
            v_heads,
            k_dim: s.gdn_dim,
            v_dim: s.gdn_dim,
            conv_kernel: 4,
            order: s.order,
            conv: be.vector(&r.vec(4 * channels)).unwrap(),
            dt_bias: be.vector(&r.vec(v_heads)).unwrap(),
            a: be.vector(&decays).unwrap(),
            norm: be.vector(&r.near_one(s.gdn_dim)).unwrap(),
            eps: 1e-6,
        },
        mlp: Mlp {
            norm: be.vector(&r.near_one(hidden)).unwrap(),
            eps: 1e-6,
            gate: weight!(inner, hidden),
            up: weight!(inner, hidden),
            down: weight!(hidden, inner),
        },
        moe: Moe {
            norm: be.vector(&r.near_one(hidden)).unwrap(),
            eps: 1e-6,
            router: r.weight(&mut be, GgmlType::F32, s.experts, hidden),
            gate: experts!(inner, hidden),
            up: experts!(inner, hidden),
            down: experts!(hidden, inner),
            shared: s.shared.then(|| SharedExpert {
                router: be.vector(&r.vec(hidden)).unwrap(),
                gate: weight!(inner, hidden),
                up: weight!(inner, hidden),
                down: weight!(hidden, inner),
            }),
            experts: s.experts,
            top_k: s.top_k,
        },
        q: weight!(q_rows, hidden),
        k: weight!(kv_rows, hidden),
        v: weight!(kv_rows, hidden),
        out: weight!(hidden, heads * s.head_dim),
        qkv: weight!(channels, hidden),
        z: weight!(values, hidden),
        b: weight!(v_heads, hidden),
        alpha: weight!(v_heads, hidden),
        gdn_out: weight!(hidden, values),
        norm: be.vector(&r.near_one(hidden)).unwrap(),
        head: weight!(VOCAB, hidden),
        embedding: be.embedding(&r.matrix(GgmlType::F32, VOCAB, hidden)).unwrap(),
        cache: be.cache(&cache, step).unwrap(),
        counts: ExpertCounts::new(2, s.experts),
        shape: s.clone(),
        be,
    }
}

impl<B: Backend> Layers<B> {
    fn keep(&mut self, states: &mut Vec<Vec<f32>>, h: &B::Buf, len: usize) {
        let mut out = vec![0.0; len];
        self.be.read(h, &mut out);
        states.push(out);
    }

    /// A pass through every verb; the residual stream after each part, the router's logits before [`MOE`], the logits.
    fn run(&mut self, batch: &Batch) -> Vec<Vec<f32>> {
        let n = batch.len();
        let s = self.shape.clone();
        let (heads, v_heads) = (s.kv_heads * s.group, s.k_heads * s.repeat);
        let (q_len, kv_len, values) = (heads * s.head_dim, s.kv_heads * s.head_dim, v_heads * s.gdn_dim);
        let (channels, hidden) = (self.gdn.channels(), s.hidden());
        let mut states = Vec::new();
        let lens = [
            hidden,
            2 * q_len,
            kv_len,
            kv_len,
            q_len,
            channels,
            values,
            v_heads,
            v_heads,
            values,
            s.experts,
            VOCAB,
            hidden,
        ];
        let [
            mut h,
            mut q,
            mut k,
            mut v,
            mut mixed,
            mut qkv,
            mut z,
            mut b,
            mut alpha,
            mut delta,
            mut router,
            mut logits,
            mut normed,
        ] = lens.map(|len| self.be.buf(n * len).unwrap());

        self.be.embed(&self.embedding, &batch.tokens, &mut h);
        self.keep(&mut states, &h, n * hidden);

        let (weights, outs) = ([&self.q, &self.k, &self.v], [&mut q, &mut k, &mut v]);
        self.be.norm_linear(n, &h, &self.norm, 1e-6, weights, outs);
        self.be.rope_store(batch, &self.attention, 0, &mut self.cache, &mut q, &mut k, &v);
        self.be.attend(batch, &self.attention, 0, &self.cache, &q, &mut mixed);
        self.be.linear_add(n, &mixed, &self.out, &mut h);
        self.keep(&mut states, &h, n * hidden);

        let weights = [&self.qkv, &self.z, &self.b, &self.alpha];
        self.be.norm_linear(n, &h, &self.norm, 1e-6, weights, [&mut qkv, &mut z, &mut b, &mut alpha]);
        self.be.gdn(batch, &self.gdn, 1, &mut self.cache, &qkv, &z, &b, &alpha, &mut delta);
        self.be.linear_add(n, &delta, &self.gdn_out, &mut h);
        self.keep(&mut states, &h, n * hidden);

        self.be.mlp(n, &self.mlp, &mut h);
        self.keep(&mut states, &h, n * hidden);
        let (norm, weights) = (&self.moe.norm, [&self.moe.router]);
        self.be.norm_linear(n, &h, norm, self.moe.eps, weights, [&mut router]);
        self.keep(&mut states, &router, n * s.experts);
        self.be.moe(n, &self.moe, 1, &self.counts, &mut h);
        self.keep(&mut states, &h, n * hidden);
        self.be.norm(n, &h, &self.norm, 1e-6, &mut normed);
        self.keep(&mut states, &normed, n * hidden);
        self.be.logits(batch, &h, &self.norm, 1e-6, &self.head, &mut logits);
        self.keep(&mut states, &logits, batch.outputs.len() * VOCAB);
        states
    }

    fn logits(&mut self, batch: &Batch) -> Vec<f32> {
        self.run(batch).pop().expect("logits come last")
    }

    fn reset(&mut self) {
        for slot in 0..4 {
            self.be.reset_slot(&mut self.cache, slot);
        }
    }
}

/// Pages of sequence `s` of three, in no particular order.
fn pages(s: usize) -> Vec<u32> {
    let each = PAGES as u32 / 3;
    (0..each).map(|p| (p * 5 % each) * 3 + s as u32).collect()
}

fn tokens(s: usize, n: usize) -> Vec<u32> {
    (0..n).map(|i| ((i * 31 + s * 17 + 5) % VOCAB) as u32).collect()
}

fn shapes() -> impl Strategy<Value = Shape> {
    use GgmlType::*;
    let types = prop::sample::select(vec![F32, F32, Q8_0, Q4_1, BF16, Q4_K, Q6_K]);
    let attention = (1..3usize, 1..4usize, prop::sample::select(vec![16usize, 24, 32]));
    let flags = prop::array::uniform5(any::<bool>());
    let kv = prop::sample::select(vec![KvType::F32, KvType::F16, KvType::Q8_0, KvType::Q8_0]);
    let gdn = (1..3usize, 1..4usize, prop::sample::select(vec![8usize, 16, 20, 32]));
    (0..1000u64, types, attention, flags, gdn, 3..9usize, 1..4usize, (kv.clone(), kv)).prop_map(
        |(seed, ty, (kv_heads, group, head_dim), flags, (k_heads, repeat, gdn_dim), experts, top_k, kv)| {
            // rows of quantised types are whole blocks
            let dim = |d| if ty == F32 { d } else { 32 };
            Shape {
                seed,
                ty,
                kv_heads,
                group,
                head_dim: if kv.0 == KvType::Q8_0 || kv.1 == KvType::Q8_0 { 32 } else { dim(head_dim) },
                gated: flags[0],
                qk_norm: flags[1],
                pairing: if flags[2] { RopePairing::Half } else { RopePairing::Adjacent },
                k_heads,
                repeat,
                gdn_dim: dim(gdn_dim),
                order: if flags[3] { HeadOrder::Tiled } else { HeadOrder::Grouped },
                experts,
                top_k,
                shared: flags[4],
                kv: KvTypes { keys: kv.0, values: kv.1 },
            }
        },
    )
}

fn cpu(isa: Isa, threads: usize, exact: bool) -> Cpu {
    Cpu::new(&CpuOptions { threads: Some(threads), pin: false, isa: Some(isa), exact }).unwrap()
}

fn isas() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|i| i.available())
}

fn worst(a: &[f32], b: &[f32]) -> f32 {
    a.iter()
        .zip(b)
        .map(|(x, y)| (x - y).abs())
        .fold(0.0, |m, d| if d.is_nan() { f32::INFINITY } else { m.max(d) })
}

/// Index of the state after the experts in what `run` returns; the router's logits come before it.
const MOE: usize = 5;

/// Tokens that must go to the same experts in both: no logit of the router differs by half of what lies between the
/// last expert that is chosen and the first that is not.
fn same_experts(got: &[f32], want: &[f32], s: &Shape) -> Vec<bool> {
    let token = |(got, want): (&[f32], &[f32])| {
        let mut order = want.to_vec();
        order.sort_by(|a, b| b.total_cmp(a));
        s.top_k >= s.experts || 2.0 * worst(got, want) < order[s.top_k - 1] - order[s.top_k]
    };
    got.chunks_exact(s.experts).zip(want.chunks_exact(s.experts)).map(token).collect()
}

/// The rows of the tokens that are to be kept.
fn rows(part: &[f32], keep: &[bool]) -> Vec<f32> {
    let rows = part.chunks_exact(part.len() / keep.len());
    rows.zip(keep).filter(|(_, keep)| **keep).flat_map(|(row, _)| row.to_vec()).collect()
}

/// Size of the difference in units of the size of `b`.
fn relative(a: &[f32], b: &[f32]) -> f32 {
    let square = |x: &mut dyn Iterator<Item = f32>| x.map(|x| x * x).sum::<f32>();
    (square(&mut a.iter().zip(b).map(|(x, y)| x - y)) / square(&mut b.iter().copied())).sqrt()
}

/// Three sequences: a long one, a short one, a single token; then each goes on by one token.
fn two_steps(long: usize) -> [Batch; 2] {
    let (mut first, mut second) = (Batch::default(), Batch::default());
    for (s, n) in [long, 9, 1].into_iter().enumerate() {
        let t = tokens(s, n + 1);
        first.push(&t[..n], 0, s, &pages(s), n);
        second.push(&t[n..], n, s, &pages(s), 1);
    }
    [first, second]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn equals_the_oracle(shape in shapes(), long in 1..140usize) {
        let batches = two_steps(long);
        let mut oracle = layers(Reference, &shape);
        let want: Vec<_> = batches.iter().map(|b| oracle.run(b)).collect();
        for isa in isas() {
            for (threads, exact) in [(1, true), (3, false)] {
                let mut be = layers(cpu(isa, threads, exact), &shape);
                let floats = exact || matches!(shape.ty, GgmlType::F32 | GgmlType::BF16);
                // keys and values of other types may round to another neighbour
                let has = |ty| shape.kv.keys == ty || shape.kv.values == ty;
                let bound = if has(KvType::F16) { 5e-3 } else { 3e-4 };
                let (mut compared, mut all) = (0, 0);
                let mut parts = vec![(Vec::new(), Vec::new()); want[0].len()];
                for (batch, want) in batches.iter().zip(&want) {
                    let got = be.run(batch);
                    let same = same_experts(&got[MOE - 1], &want[MOE - 1], &shape);
                    compared += same.iter().filter(|s| **s).count();
                    all += same.len();
                    for (part, (all_got, all_want)) in parts.iter_mut().enumerate() {
                        // from the experts on, a token that went to others is another token
                        let keep = if part < MOE { vec![true; same.len()] } else { same.clone() };
                        all_got.extend(rows(&got[part], &keep));
                        all_want.extend(rows(&want[part], &keep));
                    }
                }
                prop_assert!(2 * compared >= all, "{isa:?}: only {compared} of {all} tokens went the same way");
                for (part, (got, want)) in parts.iter().enumerate() {
                    // quantised weights meet 8-bit activations
                    let (d, bound) = match floats {
                        true if has(KvType::Q8_0) => (relative(got, want), 1e-2),
                        true => (worst(got, want), bound),
                        false => (relative(got, want), 0.1),
                    };
                    prop_assert!(d <= bound, "{isa:?}, {threads} threads, exact {exact}: part {part} differs by {d}");
                }
            }
        }
    }

    #[test]
    fn does_not_depend_on_the_batch_or_the_cut(shape in shapes(), n in 2..150usize, cut in 1..149usize) {
        let cut = cut.min(n - 1);
        let all = tokens(0, n);
        for isa in isas() {
            let mut be = layers(cpu(isa, 2, false), &shape);
            let mut batch = Batch::default();
            batch.push(&all, 0, 0, &pages(0), n);
            let whole = be.logits(&batch);

            be.reset();
            let mut parts = Vec::new();
            for (from, to) in [(0, cut), (cut, n)] {
                let mut batch = Batch::default();
                // another sequence goes first in the batch
                batch.push(&tokens(1, 3), 0, 1, &pages(1), 0);
                batch.push(&all[from..to], from, 0, &pages(0), to - from);
                parts.extend(be.logits(&batch));
                be.be.reset_slot(&mut be.cache, 1);
            }
            prop_assert!(parts == whole, "{isa:?}: cut at {cut} of {n}");

            be.reset();
            let mut steps = Vec::new();
            for (i, t) in all.iter().enumerate() {
                let mut batch = Batch::default();
                batch.push(&[*t], i, 0, &pages(0), 1);
                steps.extend(be.logits(&batch));
            }
            prop_assert!(steps == whole, "{isa:?}: step by step, {n} tokens");
        }
    }
}

/// To the token, whatever the batch: the counts are the choices of the oracle's router.
#[test]
fn experts_are_counted_as_the_router_chooses() {
    for seed in [3, 4, 5] {
        let shape = Shape { seed, experts: 7, top_k: 3, kv: KvType::F32.into(), ..plain_shape() };
        let (batches, mut want) = (two_steps(100), vec![0; shape.experts]);
        let mut oracle = layers(Reference, &shape);
        let states: Vec<_> = batches.iter().map(|b| oracle.run(b)).collect();
        for logits in states.iter().flat_map(|s| s[MOE - 1].chunks_exact(shape.experts)) {
            let mut order: Vec<usize> = (0..shape.experts).collect();
            order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
            order[..shape.top_k].iter().for_each(|&e| want[e] += 1);
        }
        let want = [vec![0; shape.experts], want];
        assert!(oracle.counts.layers().eq(want.clone()), "the oracle's own");
        for (isa, threads) in isas().flat_map(|isa| [(isa, 1), (isa, 3)]) {
            let mut be = layers(cpu(isa, threads, true), &shape);
            for (batch, want) in batches.iter().zip(&states) {
                let same = same_experts(&be.run(batch)[MOE - 1], &want[MOE - 1], &shape);
                assert!(same.iter().all(|s| *s), "{isa:?}, seed {seed}: a choice is too close to call");
            }
            assert!(be.counts.layers().eq(want.clone()), "{isa:?}, {threads} threads, seed {seed}");
        }
    }
}

/// A context of several chunks is shared out among threads in decode and not in prefill.
#[test]
fn a_long_context_gives_the_same_bits_shared_out_or_not() {
    for (isa, ty) in isas().flat_map(|isa| [(isa, KvType::F16), (isa, KvType::Q8_0)]) {
        let shape = Shape { head_dim: 32, kv: ty.into(), ..plain_shape() };
        let n = 1200;
        let all = tokens(0, n);
        let table: Vec<u32> = (0..PAGES as u32).rev().collect();
        let run = |threads: usize| {
            let mut be = layers(cpu(isa, threads, false), &shape);
            let mut last = Vec::new();
            for start in (0..n - 1).step_by(150) {
                let mut batch = Batch::default();
                batch.push(&all[start..(start + 150).min(n - 1)], start, 0, &table, 0);
                be.run(&batch);
            }
            for _ in 0..2 {
                let mut batch = Batch::default();
                batch.push(&all[n - 1..], n - 1, 0, &table, 1);
                be.be.copy_slot(&mut be.cache, 0, 1);
                last.push(be.logits(&batch));
                be.be.copy_slot(&mut be.cache, 1, 0);
            }
            assert_eq!(last[0], last[1]);
            last.remove(0)
        };
        let alone = run(1);
        assert_eq!(alone, run(2), "{isa:?}");
        assert_eq!(alone, run(5), "{isa:?}");
    }
}

fn plain_shape() -> Shape {
    Shape {
        seed: 1,
        ty: GgmlType::F32,
        kv_heads: 2,
        group: 2,
        head_dim: 16,
        gated: true,
        qk_norm: true,
        pairing: RopePairing::Half,
        k_heads: 2,
        repeat: 2,
        gdn_dim: 16,
        order: HeadOrder::Tiled,
        experts: 4,
        top_k: 2,
        shared: true,
        kv: KvType::F16.into(),
    }
}

#[test]
fn states_and_pages_survive_saving_and_loading() {
    fn go_on<B: Backend>(
        m: &mut Layers<B>,
        tail: &[u32],
        past: usize,
        slot: usize,
        pages: &[u32],
    ) -> Vec<f32> {
        let mut batch = Batch::default();
        batch.push(tail, past, slot, pages, tail.len());
        m.logits(&batch)
    }
    fn check<B: Backend>(mut m: Layers<B>) {
        let all = tokens(0, PAGE_TOKENS + 10);
        let (head, tail) = all.split_at(PAGE_TOKENS + 3);
        let mut batch = Batch::default();
        batch.push(head, 0, 0, &pages(0), 1);
        m.run(&batch);
        let mut slot = vec![0; 4 * (3 * (2 * 2 * 16 + 4 * 16) + 4 * 16 * 16)];
        let s = &m.shape;
        let layer = LayerCache::Kv { kv_heads: s.kv_heads, head_dim: s.head_dim };
        let mut saved = vec![vec![0; layer.page_bytes(s.kv)]; 2];
        m.be.save_slot(&m.cache, 0, &mut slot);
        for (i, p) in saved.iter_mut().enumerate() {
            m.be.save_page(&m.cache, pages(0)[i] as usize, p);
        }
        // copied aside before the sequence goes on
        m.be.copy_slot(&mut m.cache, 0, 3);
        m.be.copy_page(&mut m.cache, pages(0)[0] as usize, 1);
        m.be.copy_page(&mut m.cache, pages(0)[1] as usize, 4);
        let want = go_on(&mut m, tail, head.len(), 0, &pages(0));
        assert_eq!(go_on(&mut m, tail, head.len(), 3, &[1, 4]), want);
        m.be.load_slot(&mut m.cache, 2, &slot);
        m.be.load_page(&mut m.cache, 2, &saved[0]);
        m.be.load_page(&mut m.cache, 5, &saved[1]);
        assert_eq!(go_on(&mut m, tail, head.len(), 2, &[2, 5]), want);
    }
    let mixed = KvTypes { keys: KvType::Q8_0, values: KvType::F32 };
    for kv in [KvType::F16.into(), KvType::Q8_0.into(), mixed] {
        let shape = Shape { head_dim: 32, kv, ..plain_shape() };
        check(layers(Reference, &shape));
        check(layers(cpu(Isa::detect(), 2, false), &shape));
    }
}
