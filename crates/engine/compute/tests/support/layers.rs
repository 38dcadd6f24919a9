//! A little model with one layer of each kind in any backend, and what its verbs compute: for the tests of this crate and of other backends.
#![allow(dead_code, missing_docs)] // each program uses a part

use octet_compute::ExpertCounts;
use octet_compute::backend::*;
use octet_compute::batch::{Batch, PAGE_TOKENS, Redo};
use octet_weights::{GgmlType, Matrix, quant};
use proptest::prelude::*;

/// Random inputs for both backends.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 40) as f32 / (1u64 << 24) as f32 - 0.5) * 2.0
    }
    pub fn vec(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.next()).collect()
    }
    pub fn near_one(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| 1.0 + 0.2 * self.next()).collect()
    }
    /// Rows of norm about 1, of another type if they are not whole blocks of `ty`.
    pub fn matrix(&mut self, ty: GgmlType, rows: usize, cols: usize) -> Matrix {
        let ty = if cols.is_multiple_of(ty.block_len()) { ty } else { GgmlType::Q8_0 };
        let mut data = vec![0; rows * cols / ty.block_len() * ty.block_bytes()];
        quant::random_blocks(ty, &mut self.0, 1.0 / (cols as f32).sqrt(), &mut data);
        Matrix::new(ty, rows, cols, data.into())
    }
    /// A projection, three times out of four with a bias.
    pub fn weight<B: Backend>(&mut self, be: &mut B, ty: GgmlType, rows: usize, cols: usize) -> B::Weight {
        let m = self.matrix(ty, rows, cols);
        let bias = (self.next() > -0.5).then(|| self.vec(rows));
        be.weight(&m, bias.as_deref()).unwrap()
    }
}

/// A little model with one layer of each kind, in one backend.
pub struct Layers<B: Backend> {
    pub be: B,
    pub attention: Attention<B>,
    pub gdn: Gdn<B>,
    pub glu: Glu<B::Weight>,
    pub moe: Moe<B>,
    /// The norms before the two.
    pub norms: [Norm<B>; 2],
    pub q: B::Weight,
    pub k: B::Weight,
    pub v: B::Weight,
    pub out: B::Weight,
    pub qkv: B::Weight,
    /// Keys and values of Kimi Delta Attention; `qkv` has the queries then.
    pub kimi: Option<[B::Weight; 2]>,
    pub z: B::Weight,
    pub b: B::Weight,
    pub alpha: B::Weight,
    pub gdn_out: B::Weight,
    pub norm: Norm<B>,
    pub head: B::Weight,
    pub embedding: B::Embedding,
    pub cache: B::Cache,
    pub counts: ExpertCounts,
    pub shape: Shape,
}

#[derive(Debug, Clone)]
pub struct Shape {
    pub seed: u64,
    pub ty: GgmlType,
    pub kv_heads: usize,
    pub group: usize,
    pub head_dim: usize,
    pub gated: bool,
    pub qk_norm: bool,
    pub whole_norm: bool,
    pub pairing: RopePairing,
    pub k_heads: usize,
    pub repeat: usize,
    pub gdn_dim: usize,
    pub order: HeadOrder,
    /// Kimi Delta Attention: three buffers, decays of rows, and another gate.
    pub kimi: bool,
    pub experts: usize,
    pub top_k: usize,
    pub shared: bool,
    pub norm_top_k: bool,
    pub kv: KvTypes,
}

impl Shape {
    /// Width of the residual stream: whole blocks.
    pub fn hidden(&self) -> usize {
        self.ty.block_len().max(64)
    }
    /// The cache of the attention layer.
    pub fn kv_cache(&self) -> LayerCache {
        let (kv_heads, dim) = (self.kv_heads, self.head_dim);
        LayerCache::Kv { kv_heads, k_dim: dim, v_dim: dim, group: PageGroup::All }
    }
    /// Decays of a token.
    pub fn decays(&self) -> usize {
        self.k_heads * self.repeat * if self.kimi { self.gdn_dim } else { 1 }
    }
    /// Width of the MLP and of each expert: whole blocks; for F32 not a whole number of the backend's groups of rows.
    pub fn inner(&self) -> usize {
        if self.ty == GgmlType::F32 { 88 } else { 96usize.next_multiple_of(self.ty.block_len()) }
    }
}

pub const VOCAB: usize = 75;
pub const PAGES: usize = 24;
pub const MAX_TOKENS: usize = 160;
pub const GUESSES: usize = 5;

pub fn layers<B: Backend>(mut be: B, s: &Shape) -> Layers<B> {
    let r = &mut Random(s.seed);
    let (heads, v_heads) = (s.kv_heads * s.group, s.k_heads * s.repeat);
    let (hidden, inner, values) = (s.hidden(), s.inner(), v_heads * s.gdn_dim);
    let keys = s.k_heads * s.gdn_dim;
    let channels = 2 * keys + values;
    let cache = CacheShape {
        layers: vec![
            s.kv_cache(),
            LayerCache::State {
                conv: 3 * channels,
                state: v_heads * s.gdn_dim * s.gdn_dim,
                inputs: channels + v_heads + s.decays(),
            },
        ],
        pages: PAGES,
        windowed: None,
        slots: 4,
        guesses: GUESSES,
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
        recurrent: [s.k_heads * s.gdn_dim, values, v_heads, s.gdn_dim, 0, s.decays()],
        ..StepShape::default()
    };
    let q_rows = heads * s.head_dim * if s.gated { 2 } else { 1 };
    let kv_rows = s.kv_heads * s.head_dim;
    let frequencies: Vec<f32> = (0..s.head_dim / 4).map(|j| 0.3f32.powi(j as i32)).collect();
    let decays: Vec<f32> = r.vec(s.decays()).iter().map(|x| -1.0 - 0.9 * x).collect();
    macro_rules! weight {
        ($rows:expr, $cols:expr) => {
            r.weight(&mut be, s.ty, $rows, $cols)
        };
    }
    macro_rules! experts {
        ($rows:expr, $cols:expr) => {{
            let m: Vec<Matrix> = (0..s.experts).map(|_| r.matrix(s.ty, $rows, $cols)).collect();
            be.experts(&m, None).unwrap()
        }};
    }
    Layers {
        attention: Attention {
            gated: s.gated,
            norms: {
                // All heads together, or each separately.
                let heads = if s.whole_norm { [heads, s.kv_heads] } else { [1, 1] };
                let [q, k] = heads.map(|n| s.qk_norm.then(|| r.near_one(n * s.head_dim)));
                let mut norm =
                    |w: Option<Vec<f32>>| w.map(|w| Norm::rms(be.vector(&w).unwrap(), w.len(), 1e-6));
                [norm(q), norm(k), None]
            },
            rope: Some(Rope {
                at: 0,
                dims: s.head_dim / 2,
                pairing: s.pairing,
                inv_freq: be.vector(&frequencies).unwrap(),
                scale: if s.qk_norm { 1.0 } else { 1.2 },
                axes: None,
            }),
            ..Attention::plain(heads, s.kv_heads, s.head_dim)
        },
        gdn: Gdn {
            k_heads: s.k_heads,
            v_heads,
            k_dim: s.gdn_dim,
            v_dim: s.gdn_dim,
            conv_kernel: 4,
            order: s.order,
            conv: be.vector(&r.vec(4 * channels)).unwrap(),
            row_decay: s.kimi,
            dt_bias: be.vector(&r.vec(s.decays())).unwrap(),
            a: be.vector(&decays).unwrap(),
            sigmoid_gate: s.kimi,
            norm: be.vector(&r.near_one(s.gdn_dim)).unwrap(),
            eps: 1e-6,
        },
        glu: Glu {
            gate: Some(weight!(inner, hidden)),
            up: weight!(inner, hidden),
            down: weight!(hidden, inner),
            act: Act::Silu,
        },
        moe: Moe {
            router: Router::softmax(
                r.weight(&mut be, GgmlType::F32, s.experts, hidden),
                s.experts,
                s.top_k,
                s.norm_top_k,
            ),
            experts: Glu {
                gate: Some(experts!(inner, hidden)),
                up: experts!(inner, hidden),
                down: experts!(hidden, inner),
                act: Act::Silu,
            },
            shared: s.shared.then(|| SharedExpert {
                gate: Some(be.vector(&r.vec(hidden)).unwrap()),
                glu: Glu {
                    gate: Some(weight!(inner, hidden)),
                    up: weight!(inner, hidden),
                    down: weight!(hidden, inner),
                    act: Act::Silu,
                },
            }),
        },
        norms: [(); 2].map(|()| Norm::rms(be.vector(&r.near_one(hidden)).unwrap(), hidden, 1e-6)),
        q: weight!(q_rows, hidden),
        k: weight!(kv_rows, hidden),
        v: weight!(kv_rows, hidden),
        out: weight!(hidden, heads * s.head_dim),
        qkv: weight!(if s.kimi { keys } else { channels }, hidden),
        kimi: s.kimi.then(|| [weight!(keys, hidden), weight!(values, hidden)]),
        z: weight!(values, hidden),
        b: weight!(v_heads, hidden),
        alpha: weight!(s.decays(), hidden),
        gdn_out: weight!(hidden, values),
        norm: Norm::rms(be.vector(&r.near_one(hidden)).unwrap(), hidden, 1e-6),
        head: weight!(VOCAB, hidden),
        embedding: be.embedding(&r.matrix(GgmlType::F32, VOCAB, hidden)).unwrap(),
        cache: be.cache(&cache, step).unwrap(),
        counts: ExpertCounts::new(2, s.experts).with_trace(2, step.tokens, s.top_k),
        shape: s.clone(),
        be,
    }
}

impl<B: Backend> Layers<B> {
    /// A pass through every verb; the residual stream after each part, the router's logits before [`MOE`], the logits.
    pub fn run(&mut self, batch: &Batch) -> Vec<Vec<f32>> {
        self.pass(batch, false)
    }

    /// The same as one step without reading intermediate results; returns the logits.
    pub fn step(&mut self, batch: &Batch) -> Vec<f32> {
        self.pass(batch, true).pop().expect("logits are read after it")
    }

    fn pass(&mut self, batch: &Batch, as_step: bool) -> Vec<Vec<f32>> {
        let n = batch.len();
        let s = self.shape.clone();
        let (heads, v_heads) = (s.kv_heads * s.group, s.k_heads * s.repeat);
        let (q_len, kv_len, values) = (heads * s.head_dim, s.kv_heads * s.head_dim, v_heads * s.gdn_dim);
        let (channels, hidden) = (self.gdn.channels(), s.hidden());
        let mut states = Vec::new();
        let [mut keys, mut vals] = [channels, values].map(|len| self.be.buf(n * len).unwrap());
        let lens = [
            hidden,
            2 * q_len,
            kv_len,
            kv_len,
            q_len,
            channels,
            values,
            v_heads,
            s.decays(),
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

        let Self {
            be,
            attention,
            gdn,
            glu,
            moe,
            norms,
            q: wq,
            k: wk,
            v: wv,
            out,
            qkv: wqkv,
            kimi,
            z: wz,
            b: wb,
            ..
        } = self;
        let (walpha, gdn_out, norm, head) = (&self.alpha, &self.gdn_out, &self.norm, &self.head);
        let (embedding, cache, counts) = (&self.embedding, &mut self.cache, &self.counts);
        let mut body = |be: &mut B, read: bool| {
            let mut keep = |be: &mut B, x: &B::Buf, len: usize| {
                if read {
                    let mut values = vec![0.0; len];
                    be.read(x, &mut values);
                    states.push(values);
                }
            };
            be.embed(batch, embedding, TableRow::Id, 1.0, &mut h);
            keep(be, &h, n * hidden);

            let (weights, outs) = ([&*wq, &*wk, &*wv], [&mut q, &mut k, &mut v]);
            be.project(n, &h, Some(norm), weights, outs);
            be.rope_store(batch, attention, 0, cache, &mut q, Some((&mut k, &v)));
            be.attend(batch, attention, 0, cache, &q, &mut mixed);
            be.linear(n, &mixed, out, Out::Add(&mut h, 1.0));
            keep(be, &h, n * hidden);

            let weights = [&*wqkv, &*wz, &*wb, &*walpha];
            be.project(n, &h, Some(norm), weights, [&mut qkv, &mut z, &mut b, &mut alpha]);
            if let Some([wk, wv]) = kimi {
                be.project(n, &h, Some(norm), [&*wk, &*wv], [&mut keys, &mut vals]);
            }
            let all: &[&B::Buf] = if kimi.is_some() { &[&qkv, &keys, &vals] } else { &[&qkv] };
            be.gdn(batch, gdn, 1, cache, all, &z, &b, &alpha, &mut delta);
            be.linear(n, &delta, gdn_out, Out::Add(&mut h, 1.0));
            keep(be, &h, n * hidden);

            be.glu(n, None, Some(&norms[0]), glu, Out::Add(&mut h, 1.0));
            keep(be, &h, n * hidden);
            be.project(n, &h, Some(&norms[1]), [&moe.router.weight], [&mut router]);
            keep(be, &router, n * s.experts);
            be.moe(n, None, Some(&norms[1]), moe, 1, counts, Out::Add(&mut h, 1.0));
            keep(be, &h, n * hidden);
            be.logits(batch, &h, &Head { norm, weight: head, scale: 1.0, softcap: None }, &mut logits);
            be.norm(n, Some(&h), norm, Out::Write(&mut normed));
            keep(be, &normed, n * hidden);
            be.norm_outputs(batch, &h, norm, &mut normed);
            keep(be, &normed, batch.outputs().len() * hidden);
            keep(be, &logits, batch.outputs().len() * VOCAB);
        };
        if as_step {
            be.step(Pass::Other, batch, |be| body(be, false)).expect("the step works");
            states.push(vec![0.0; batch.outputs().len() * VOCAB]);
            be.read(&logits, &mut states[0]);
        } else {
            body(be, true);
        }
        states
    }

    pub fn logits(&mut self, batch: &Batch) -> Vec<f32> {
        self.run(batch).pop().expect("logits come last")
    }

    /// Advances the state of a slot to the accepted guesses.
    pub fn redo(&mut self, slot: usize, redo: Redo) {
        let mut none = || self.be.buf(1).expect("memory for a value");
        let (qkv, z, b, alpha, mut out) = (none(), none(), none(), none(), none());
        let mut batch = Batch::default();
        batch.push_redo(slot, redo);
        self.be.gdn(&batch, &self.gdn, 1, &mut self.cache, &[&qkv], &z, &b, &alpha, &mut out);
    }

    pub fn reset(&mut self) {
        for slot in 0..4 {
            self.be.reset_slot(&mut self.cache, slot);
        }
    }
}

/// Pages of sequence `s` of three, in no particular order.
pub fn pages(s: usize) -> Vec<u32> {
    let each = PAGES as u32 / 3;
    (0..each).map(|p| (p * 5 % each) * 3 + s as u32).collect()
}

pub fn tokens(s: usize, n: usize) -> Vec<u32> {
    (0..n).map(|i| ((i * 31 + s * 17 + 5) % VOCAB) as u32).collect()
}

pub fn shapes() -> impl Strategy<Value = Shape> {
    use GgmlType::*;
    let types = prop::sample::select(vec![F32, F32, Q8_0, Q4_1, BF16, Q4_K, Q6_K, NVFP4, I4_Z, F8_32]);
    let attention = (1..3usize, 1..4usize, prop::sample::select(vec![16usize, 24, 32]));
    let flags = prop::array::uniform8(any::<bool>());
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
                whole_norm: flags[5] && !flags[0],
                pairing: if flags[2] { RopePairing::Half } else { RopePairing::Adjacent },
                k_heads,
                repeat,
                gdn_dim: dim(gdn_dim),
                order: if flags[3] { HeadOrder::Tiled } else { HeadOrder::Grouped },
                kimi: flags[7],
                experts,
                top_k,
                shared: flags[4],
                norm_top_k: flags[6],
                kv: KvTypes { keys: kv.0, values: kv.1 },
            }
        },
    )
}

pub fn worst(a: &[f32], b: &[f32]) -> f32 {
    a.iter()
        .zip(b)
        .map(|(x, y)| (x - y).abs())
        .fold(0.0, |m, d| if d.is_nan() { f32::INFINITY } else { m.max(d) })
}

/// Index of the state after the experts in what `run` returns; the router's logits come before it.
pub const MOE: usize = 5;

/// Tokens that must go to the same experts in both: no logit of the router differs by half of what lies between the
/// last expert that is chosen and the first that is not.
pub fn same_experts(got: &[f32], want: &[f32], s: &Shape) -> Vec<bool> {
    let token = |(got, want): (&[f32], &[f32])| {
        let mut order = want.to_vec();
        order.sort_by(|a, b| b.total_cmp(a));
        s.top_k >= s.experts || 2.0 * worst(got, want) < order[s.top_k - 1] - order[s.top_k]
    };
    got.chunks_exact(s.experts).zip(want.chunks_exact(s.experts)).map(token).collect()
}

/// The rows of the tokens that are to be kept.
pub fn rows(part: &[f32], keep: &[bool]) -> Vec<f32> {
    let rows = part.chunks_exact(part.len() / keep.len());
    rows.zip(keep).filter(|(_, keep)| **keep).flat_map(|(row, _)| row.to_vec()).collect()
}

/// Size of the difference in units of the size of `b`.
pub fn relative(a: &[f32], b: &[f32]) -> f32 {
    let square = |x: &mut dyn Iterator<Item = f32>| x.map(|x| x * x).sum::<f32>();
    (square(&mut a.iter().zip(b).map(|(x, y)| x - y)) / square(&mut b.iter().copied())).sqrt()
}

/// Three sequences: a long one, a short one, a single token; then each continues by one token.
pub fn two_steps(long: usize) -> [Batch; 2] {
    let (mut first, mut second) = (Batch::default(), Batch::default());
    for (s, n) in [long, 9, 1].into_iter().enumerate() {
        let t = tokens(s, n + 1);
        first.push(&t[..n], 0, s, &pages(s), n);
        second.push(&t[n..], n, s, &pages(s), 1);
    }
    [first, second]
}

pub fn plain_shape() -> Shape {
    Shape {
        seed: 1,
        ty: GgmlType::F32,
        kv_heads: 2,
        group: 2,
        head_dim: 16,
        gated: true,
        qk_norm: true,
        whole_norm: false,
        pairing: RopePairing::Half,
        k_heads: 2,
        repeat: 2,
        gdn_dim: 16,
        order: HeadOrder::Tiled,
        kimi: false,
        experts: 4,
        top_k: 2,
        shared: true,
        norm_top_k: true,
        kv: KvType::F16.into(),
    }
}

/// Logits of `tail` after `past` tokens.
pub fn go_on<B: Backend>(
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

/// States and pages that are saved, loaded and copied give the same bits.
pub fn survives_saving<B: Backend>(mut m: Layers<B>) {
    let all = tokens(0, PAGE_TOKENS + 10);
    let (head, tail) = all.split_at(PAGE_TOKENS + 3);
    let mut batch = Batch::default();
    batch.push(head, 0, 0, &pages(0), 1);
    m.run(&batch);
    let mut slot = vec![0; 4 * (3 * (2 * 2 * 16 + 4 * 16) + 4 * 16 * 16)];
    let s = &m.shape;
    let layer = s.kv_cache();
    let mut saved = vec![vec![0; layer.page_bytes(s.kv)]; 2];
    m.be.save_slot(&m.cache, 0, &mut slot);
    for (i, p) in saved.iter_mut().enumerate() {
        m.be.save_page(&m.cache, PageGroup::All, pages(0)[i] as usize, p);
    }
    // copied before the sequence continues
    m.be.copy_slot(&mut m.cache, 0, 3);
    m.be.copy_page(&mut m.cache, PageGroup::All, pages(0)[0] as usize, 1);
    m.be.copy_page(&mut m.cache, PageGroup::All, pages(0)[1] as usize, 4);
    let want = go_on(&mut m, tail, head.len(), 0, &pages(0));
    assert_eq!(go_on(&mut m, tail, head.len(), 3, &[1, 4]), want);
    m.be.load_slot(&mut m.cache, 2, &slot);
    m.be.load_page(&mut m.cache, PageGroup::All, 2, &saved[0]);
    m.be.load_page(&mut m.cache, PageGroup::All, 5, &saved[1]);
    assert_eq!(go_on(&mut m, tail, head.len(), 2, &[2, 5]), want);
}

/// Steps with guesses, right and wrong ones, give the same bits as the sequence alone: the logits of each token, and the state that
/// is saved at the end. `accepted` says how many of each step's guesses are right, at most; a state is saved now and then in between.
pub fn goes_back<B: Backend>(m: &mut Layers<B>, n: usize, certain: usize, accepted: &[usize]) {
    let all = tokens(0, n);
    let s = &m.shape;
    let values = s.k_heads * s.repeat * s.gdn_dim;
    let slot_bytes = 4 * (3 * (2 * s.k_heads * s.gdn_dim + values) + values * s.gdn_dim);
    let mut batch = Batch::default();
    batch.push(&all, 0, 0, &pages(0), n);
    let whole = m.logits(&batch);
    let mut want = vec![0; slot_bytes];
    m.be.save_slot(&m.cache, 0, &mut want);
    m.reset();

    let (mut at, mut redo, mut step) = (0, Redo::default(), 0);
    let check = |m: &mut Layers<B>, batch: &Batch, at: usize, right: usize| {
        let got = m.logits(batch);
        let mine = &got[got.len() - batch.spans().last().expect("it has one").len * VOCAB..];
        assert!(
            mine[..right * VOCAB] == whole[at * VOCAB..(at + right) * VOCAB],
            "{right} tokens from {at} on"
        );
    };
    while at < n {
        // sometimes a part of a prompt, otherwise one token
        let sure = if step % 3 == 0 { certain.min(n - at) } else { 1 };
        let right = accepted[step % accepted.len()].min(n - at - sure);
        let guesses = (right + step % 3).min(GUESSES);
        let mut span = all[at..at + sure + right].to_vec();
        span.extend((right..guesses).map(|i| all[(at + i + 7) % n] ^ 1).map(|t| t % VOCAB as u32));
        let mut batch = Batch::default();
        if step % 2 == 1 {
            batch.push(&tokens(1, 3), 0, 1, &pages(1), 0);
        }
        batch.push(&span, at, 0, &pages(0), span.len());
        batch.speculate(guesses, redo);
        check(m, &batch, at, sure + right);
        m.be.reset_slot(&mut m.cache, 1);
        at += sure + right;
        redo = Redo { first: 0, len: right };
        if step % 4 == 3 && right > 0 {
            // in two parts, so that a state is saved in between
            let half = right / 2;
            m.redo(0, Redo { first: 0, len: half });
            redo = Redo { first: half, len: right - half };
        }
        step += 1;
    }
    m.redo(0, redo);
    let mut got = vec![0; slot_bytes];
    m.be.save_slot(&m.cache, 0, &mut got);
    assert!(got == want, "the state after {n} tokens");
}
