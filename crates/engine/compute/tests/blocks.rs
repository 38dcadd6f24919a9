//! What images need, on the CPU backend against the scalar oracle, on random shapes: tokens that see their whole block, rotations by several
//! coordinates, rows at given places. And against itself: a token has the same bits in every batch that has its whole block.

use octet_compute::backend::*;
use octet_compute::batch::Batch;
use octet_compute::cpu::isa::Isa;
use octet_compute::cpu::{Cpu, CpuOptions};
use octet_compute::reference::Reference;
use proptest::prelude::*;

#[path = "support/layers.rs"]
mod layers;

use layers::{Random, worst};

const TOKENS: usize = 700;

/// The choices of one layer, and the tokens of a sequence.
#[derive(Debug, Clone)]
struct Choices {
    seed: u64,
    heads: usize,
    kv_heads: usize,
    dim: usize,
    window: Window,
    parts: usize,
    pairing: RopePairing,
    norms: bool,
    /// Tokens before the block, in it, and after it.
    tokens: [usize; 3],
}

fn choices() -> impl Strategy<Value = Choices> {
    let windows =
        prop::sample::select(vec![Window::All, Window::Last(9), Window::Chunk(32), Window::Around(7)]);
    let pairings = prop::sample::select(vec![RopePairing::Half, RopePairing::Adjacent]);
    // One block in four reaches over a chunk of attention.
    let block = prop_oneof![3 => 1..90usize, 1 => 500..560usize];
    let tokens = (0..70usize, block, 1..50usize).prop_map(|(a, b, c)| [a, b, c]);
    let shape = (1..3usize, 1..3usize, prop::sample::select(vec![8usize, 16, 24, 72]));
    (0..1000u64, shape, windows, 1..3usize, pairings, any::<bool>(), tokens).prop_map(
        |(seed, (group, kv_heads, dim), window, parts, pairing, norms, tokens)| Choices {
            seed,
            heads: group * kv_heads,
            kv_heads,
            dim,
            window,
            parts,
            pairing,
            norms,
            tokens,
        },
    )
}

/// An attention layer in one backend.
struct Layer<B: Backend> {
    be: B,
    c: Choices,
    a: Attention<B>,
    cache: B::Cache,
}

impl<B: Backend> Layer<B> {
    fn new(mut be: B, c: &Choices) -> Self {
        let r = &mut Random(c.seed);
        let inv_freq: Vec<f32> = (0..c.dim / 2).map(|j| 0.7f32.powi(j as i32)).collect();
        let of_pair = (0..c.dim / 2).map(|j| (j % 3) as u8).collect();
        let norm =
            |be: &mut B, r: &mut Random| Norm::rms(be.vector(&r.near_one(c.dim)).unwrap(), c.dim, 1e-6);
        let rope = Rope {
            at: 0,
            dims: c.dim,
            pairing: c.pairing,
            inv_freq: be.vector(&inv_freq).unwrap(),
            scale: 1.0,
            axes: Some(Axes { of_pair, parts: c.parts }),
        };
        let a = Attention {
            window: c.window,
            two_way: true,
            rope: Some(rope),
            norms: [c.norms.then(|| norm(&mut be, r)), c.norms.then(|| norm(&mut be, r)), None],
            ..Attention::plain(c.heads, c.kv_heads, c.dim)
        };
        // Projections tell the backend how wide rows are.
        be.weight(&r.matrix(octet_weights::GgmlType::F32, c.heads * c.dim, c.heads * c.dim), None).unwrap();
        let shape = CacheShape {
            layers: vec![a.cache()],
            pages: 24,
            windowed: None,
            slots: 4,
            guesses: 0,
            kv: KvType::F32.into(),
        };
        let step = StepShape { tokens: TOKENS, outputs: 1, heads: c.heads, ..StepShape::default() };
        let cache = be.cache(&shape, step).unwrap();
        Self { be, c: c.clone(), a, cache }
    }

    /// Outputs of the attention of all tokens.
    fn run(&mut self, batch: &Batch) -> Vec<f32> {
        let c = self.c.clone();
        let mut rows = |seed: u64, width: usize| {
            let row = |t: &u32, p: &u32| Random(seed * 100_000 + u64::from(t * 997 + p)).vec(width);
            let all = batch.tokens().iter().zip(batch.positions()).flat_map(|(t, p)| row(t, p));
            self.be.vector(&all.collect::<Vec<f32>>()).unwrap()
        };
        let (mut q, mut k, v) =
            (rows(1, c.heads * c.dim), rows(2, c.kv_heads * c.dim), rows(3, c.kv_heads * c.dim));
        let n = batch.len() * c.heads * c.dim;
        let mut out = self.be.buf(n).unwrap();
        self.be.rope_store(batch, &self.a, 0, &mut self.cache, &mut q, Some((&mut k, &v)));
        self.be.attend(batch, &self.a, 0, &self.cache, &q, &mut out);
        let mut values = vec![0.0; n];
        self.be.read(&out, &mut values);
        values
    }
}

/// Pages of sequence `s`.
fn pages(s: u32) -> Vec<u32> {
    (12 * s..12 * (s + 1)).rev().collect()
}

/// Coordinates that differ from positions.
fn turn(position: usize) -> [u32; 3] {
    [position as u32, (position / 5) as u32, (3 * position % 11) as u32]
}

/// Tokens `range` of the sequence of the choices, perhaps after some of another one.
fn batch(c: &Choices, range: std::ops::Range<usize>, beside: bool) -> Batch {
    let mut batch = Batch::default();
    if beside {
        batch.push(&[3, 1, 2], 0, 1, &pages(1), 0);
    }
    let tokens: Vec<u32> = range.clone().map(|p| (p * 7 % 70) as u32).collect();
    batch.push(&tokens, range.start, 0, &pages(0), 0);
    batch.turn(range.clone().map(turn));
    let block = c.tokens[0]..c.tokens[0] + c.tokens[1];
    if block.start < range.end && range.start < block.end {
        batch.see(block);
    }
    batch
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn blocks_equal_the_oracle(c in choices()) {
        let all = batch(&c, 0..c.tokens.iter().sum(), false);
        let want = Layer::new(Reference, &c).run(&all);
        for (isa, threads) in isas().flat_map(|isa| [(isa, 1), (isa, 3)]) {
            let got = Layer::new(cpu(isa, threads), &c).run(&all);
            let d = worst(&got, &want);
            prop_assert!(d <= 2e-5, "{isa:?}, {threads} threads: differs by {d}");
        }
    }

    #[test]
    fn a_block_has_the_same_bits_in_every_batch(c in choices(), cut in 0..70usize, tail in 1..40usize) {
        let n: usize = c.tokens.iter().sum();
        // Before the block, or behind it.
        let (first, last) = (cut.min(c.tokens[0]), (n - tail.min(c.tokens[2])).max(c.tokens[0] + c.tokens[1]));
        for isa in isas() {
            let mut m = Layer::new(cpu(isa, 2), &c);
            let whole = m.run(&batch(&c, 0..n, false));
            let mut parts = Vec::new();
            for range in [0..first, first..last, last..n] {
                if range.is_empty() {
                    continue;
                }
                let got = m.run(&batch(&c, range.clone(), true));
                parts.extend_from_slice(&got[got.len() / (3 + range.len()) * 3..]);
            }
            prop_assert!(parts == whole, "{isa:?}: cut at {first} and {last} of {n}");
        }
    }

    #[test]
    fn a_block_may_be_resumed(c in choices(), cut in 1..500usize) {
        let n: usize = c.tokens.iter().sum();
        // The keys and values of all of it are in the cache: what is computed again sees them.
        let from = c.tokens[0] + cut % c.tokens[1];
        for isa in isas() {
            let mut m = Layer::new(cpu(isa, 2), &c);
            let whole = m.run(&batch(&c, 0..n, false));
            let rest = m.run(&batch(&c, from..n, false));
            prop_assert!(rest == whole[whole.len() / n * from..], "{isa:?}: from {from} of {n}");
        }
    }

    #[test]
    fn rows_are_placed(seed in 0..1000u64, rows in prop::collection::btree_set(0..20u32, 0..12), add in any::<bool>()) {
        let (width, stride, at) = (24, 60, 12);
        let to: Vec<u32> = rows.into_iter().collect();
        type Rotate<'a> = &'a mut dyn FnMut(&[f32], &[f32]) -> Vec<f32>;
        let run = |be: Rotate<'_>| {
            let r = &mut Random(seed);
            be(&r.vec(to.len().max(1) * stride), &r.vec(20 * width))
        };
        fn place<B: Backend>(be: &mut B, to: &[u32], sizes: [usize; 3], add: bool, x: &[f32], out: &[f32]) -> Vec<f32> {
            let [width, stride, at] = sizes;
            let (x, mut h) = (be.vector(x).unwrap(), be.vector(out).unwrap());
            let y = if add { Out::Add(&mut h, 0.5) } else { Out::Write(&mut h) };
            be.place(to, width, &x, [at, stride], y);
            let mut values = vec![0.0; out.len()];
            be.read(&h, &mut values);
            values
        }
        let sizes = [width, stride, at];
        let want = run(&mut |x, out| place(&mut Reference, &to, sizes, add, x, out));
        for isa in isas() {
            let mut be = cpu(isa, 2);
            let got = run(&mut |x, out| place(&mut be, &to, sizes, add, x, out));
            prop_assert!(worst(&got, &want) <= 1e-6, "{isa:?}");
        }
    }
}
