//! Experts that are read when a step needs them: the same bits as with all of them in memory, whatever the slots, batches, threads and order;
//! and reads that fail.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use octet_compute::backend::*;
use octet_compute::cpu::{Cpu, CpuOptions};
use octet_compute::{Batch, ExpertCounts};
use octet_weights::{GgmlType, Matrix, quant};
use proptest::prelude::*;

const EXPERTS: usize = 12;
const TOKENS: usize = 40;
const HIDDEN: usize = 256;
const INNER: usize = 96;

/// Matrices in memory, whose reads may fail.
struct Kept {
    matrices: Vec<Matrix>,
    reads: Arc<AtomicUsize>,
    /// The first read that fails, and how many do.
    fails: Arc<AtomicUsize>,
    failing: Arc<AtomicUsize>,
}

impl StoredExperts for Kept {
    fn shape(&self) -> (GgmlType, usize, usize) {
        let m = &self.matrices[0];
        (m.ty, m.rows, m.cols)
    }
    fn count(&self) -> usize {
        self.matrices.len()
    }
    fn room(&self) -> usize {
        self.matrices[0].data.len() + 3
    }
    fn read(&self, expert: usize, room: &mut [u8]) -> Result<Range<usize>, Error> {
        let read = self.reads.fetch_add(1, SeqCst);
        let first = self.fails.load(SeqCst);
        if read >= first && read - first < self.failing.load(SeqCst) {
            // as much as a short read leaves
            room[..100].fill(0xff);
            return Err(Error(format!("read {read} fails")));
        }
        let data = &self.matrices[expert].data;
        room[3..3 + data.len()].copy_from_slice(data);
        Ok(3..3 + data.len())
    }
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 40) as f32 / (1u64 << 24) as f32 - 0.5) * 2.0
    }
    fn vec(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.next()).collect()
    }
    fn matrix(&mut self, ty: GgmlType, rows: usize, cols: usize) -> Matrix {
        let ty = if cols.is_multiple_of(ty.block_len()) { ty } else { GgmlType::Q8_0 };
        let mut data = vec![0; rows * cols / ty.block_len() * ty.block_bytes()];
        quant::random_blocks(ty, &mut self.0, 1.0 / (cols as f32).sqrt(), &mut data);
        Matrix::new(ty, rows, cols, data.into())
    }
}

#[derive(Debug, Clone)]
struct Shape {
    seed: u64,
    ty: GgmlType,
    top_k: usize,
    slots: usize,
    threads: usize,
    gated: bool,
    biased: bool,
    shared: bool,
    weighs_input: bool,
    /// Experts are guessed, from what they will get or from something else.
    guesses: Option<bool>,
    steps: Vec<usize>,
}

fn shapes() -> impl Strategy<Value = Shape> {
    let types = prop::sample::select(vec![GgmlType::Q4_K, GgmlType::Q8_0, GgmlType::F32, GgmlType::Q6_K]);
    let steps = prop::collection::vec(prop_oneof![3 => 1..=3usize, 1 => 1..=TOKENS], 1..6);
    (
        any::<u64>(),
        types,
        1..=4usize,
        0..=EXPERTS,
        1..=3usize,
        any::<[bool; 4]>(),
        any::<Option<bool>>(),
        steps,
    )
        .prop_map(
            |(seed, ty, top_k, more, threads, [gated, biased, shared, weighs_input], guesses, steps)| {
                let slots = (top_k + more).min(EXPERTS);
                Shape { seed, ty, top_k, slots, threads, gated, biased, shared, weighs_input, guesses, steps }
            },
        )
}

/// A layer, with its experts in memory or read when they are needed.
struct Layer {
    cpu: Cpu,
    moe: Moe<Cpu>,
    norm: Norm<Cpu>,
    counts: ExpertCounts,
    reads: Arc<AtomicUsize>,
    fails: Arc<AtomicUsize>,
    failing: Arc<AtomicUsize>,
    guesses: Option<bool>,
}

impl Layer {
    fn new(s: &Shape, stored: bool) -> Self {
        let r = &mut Random(s.seed);
        let options = CpuOptions {
            threads: Some(s.threads),
            pin: false,
            expert_slots: stored.then_some(s.slots),
            ..CpuOptions::default()
        };
        let mut cpu = Cpu::new(&options).expect("a CPU");
        let (reads, fails) = (Arc::<AtomicUsize>::default(), Arc::new(AtomicUsize::new(usize::MAX)));
        let failing = Arc::new(AtomicUsize::new(1));
        let mut all = |rows, cols| {
            let matrices: Vec<Matrix> = (0..EXPERTS).map(|_| r.matrix(s.ty, rows, cols)).collect();
            (matrices, s.biased.then(|| r.vec(EXPERTS * rows)))
        };
        let parts = [all(INNER, HIDDEN), all(INNER, HIDDEN), all(HIDDEN, INNER)];
        let experts = if stored {
            let [gate, up, down] = parts.map(|(matrices, bias)| StoredProjection {
                name: String::new(),
                source: Arc::new(Kept {
                    matrices,
                    reads: reads.clone(),
                    fails: fails.clone(),
                    failing: failing.clone(),
                }),
                bias,
            });
            let gate = s.gated.then_some(gate);
            cpu.stored_experts(Glu { gate, up, down, act: Act::Silu }).expect("slots")
        } else {
            let [gate, up, down] = parts.map(|(m, bias)| cpu.experts(&m, bias.as_deref()).expect("experts"));
            Glu { gate: s.gated.then_some(gate), up, down, act: Act::Silu }
        };
        let router = cpu.weight(&r.matrix(GgmlType::F32, EXPERTS, HIDDEN), None).expect("a router");
        let router =
            Router { weighs_input: s.weighs_input, ..Router::softmax(router, EXPERTS, s.top_k, true) };
        let shared = s.shared.then(|| {
            let gate = Some(cpu.vector(&r.vec(HIDDEN)).expect("memory"));
            let mut weight = |rows, cols| cpu.weight(&r.matrix(s.ty, rows, cols), None).expect("memory");
            let (up, down) = (weight(INNER, HIDDEN), weight(HIDDEN, INNER));
            SharedExpert { gate, glu: Glu { gate: None, up, down, act: Act::Silu } }
        });
        let norm = Norm::rms(cpu.vector(&vec![1.0; HIDDEN]).expect("memory"), HIDDEN, 1e-6);
        let shape = CacheShape {
            layers: vec![LayerCache::None],
            pages: 1,
            windowed: None,
            slots: 1,
            guesses: 0,
            kv: KvType::F16.into(),
        };
        let step = StepShape {
            tokens: TOKENS,
            outputs: 1,
            heads: 1,
            intermediate: INNER,
            experts: EXPERTS,
            top_k: s.top_k,
            expert_intermediate: INNER,
            ..StepShape::default()
        };
        cpu.cache(&shape, step).expect("memory");
        let moe = Moe { router, experts, shared };
        Self {
            cpu,
            moe,
            norm,
            counts: ExpertCounts::new(1, EXPERTS),
            reads,
            fails,
            failing,
            guesses: s.guesses,
        }
    }

    /// The block's output, written and then added.
    fn step(&mut self, n: usize, x: &[f32]) -> Result<Vec<u32>, Error> {
        let Self { cpu, moe, norm, counts, guesses, .. } = self;
        let x = cpu.vector(x)?;
        let other = cpu.vector(&x.iter().rev().copied().collect::<Vec<_>>())?;
        let mut out = cpu.buf(n * HIDDEN)?;
        cpu.step(Pass::Other, &Batch::default(), |cpu| {
            if let Some(right) = *guesses {
                cpu.foresee(n, if right { &x } else { &other }, Some(norm), moe);
            }
            cpu.moe(n, Some(&x), Some(norm), moe, 0, counts, Out::Write(&mut out));
            cpu.moe(n, None, Some(norm), moe, 0, counts, Out::Add(&mut out, 0.5));
        })?;
        Ok(out.iter().map(|v| v.to_bits()).collect())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn no_bit_depends_on_what_is_in_memory(shape in shapes()) {
        let (mut want, mut got) = (Layer::new(&shape, false), Layer::new(&shape, true));
        let r = &mut Random(shape.seed ^ 1);
        for &n in &shape.steps {
            let x = r.vec(n * HIDDEN);
            prop_assert!(got.step(n, &x).unwrap() == want.step(n, &x).unwrap(), "{n} tokens");
        }
        let stats = got.cpu.store_stats().unwrap();
        let parts = if shape.gated { 3 } else { 2 };
        prop_assert!(stats.reads == got.reads.load(SeqCst) as u64 && stats.reads >= parts * stats.misses);
        // With a slot for each, an expert is read once.
        if shape.slots == EXPERTS {
            prop_assert!(stats.misses <= EXPERTS as u64, "{stats:?}");
        }
        // Guesses from what the router gets are right.
        if shape.guesses == Some(true) && shape.slots == EXPERTS && shape.steps.iter().all(|n| *n <= 3) {
            prop_assert!(stats.guesses == stats.guessed, "{stats:?}");
        }
        prop_assert!(want.cpu.store_stats().is_none());
    }
}

/// The queue of reads has room for all layers' slots, and must not double with each.
#[test]
fn a_model_may_have_a_hundred_layers() {
    let mut cpu =
        Cpu::new(&CpuOptions { expert_slots: Some(3), pin: false, ..CpuOptions::default() }).expect("a CPU");
    let r = &mut Random(3);
    let mut kept = |rows, cols| {
        let matrices = (0..EXPERTS).map(|_| r.matrix(GgmlType::F32, rows, cols)).collect();
        let counts: [Arc<AtomicUsize>; 3] = Default::default();
        let [reads, fails, failing] = counts;
        Arc::new(Kept { matrices, reads, fails, failing })
    };
    let (up, down) = (kept(32, 32), kept(32, 32));
    for layer in 0..100 {
        let of =
            |source: &Arc<Kept>| StoredProjection { name: String::new(), source: source.clone(), bias: None };
        let glu = Glu { gate: None, up: of(&up), down: of(&down), act: Act::Silu };
        assert!(cpu.stored_experts(glu).is_ok(), "layer {layer}");
    }
}

#[test]
fn a_read_that_fails_fails_the_step_only() {
    let shape = Shape {
        seed: 7,
        ty: GgmlType::Q4_K,
        top_k: 3,
        slots: 5,
        threads: 2,
        gated: true,
        biased: false,
        shared: true,
        weighs_input: false,
        guesses: None,
        steps: Vec::new(),
    };
    let (mut want, mut got) = (Layer::new(&shape, false), Layer::new(&shape, true));
    let r = &mut Random(1);
    let mut failures = 0;
    for fails in 0..60 {
        let n = 1 + fails % 9;
        let x = r.vec(n * HIDDEN);
        let want = want.step(n, &x).unwrap();
        got.fails.store(got.reads.load(SeqCst) + fails / 2, SeqCst);
        match got.step(n, &x) {
            Ok(same) => assert!(same == want, "no read failed"),
            Err(e) => {
                assert!(e.to_string().contains("fails"), "{e}");
                failures += 1;
            }
        }
        got.fails.store(usize::MAX, SeqCst);
        assert!(got.step(n, &x).unwrap() == want, "after failure {fails}");
    }
    assert!(failures > 20, "only {failures} steps failed");
}

#[test]
fn a_guess_that_cannot_be_read_is_read_again_when_it_is_needed() {
    let shape = Shape {
        seed: 11,
        ty: GgmlType::Q8_0,
        top_k: 3,
        slots: 5,
        threads: 2,
        gated: true,
        biased: false,
        shared: false,
        weighs_input: false,
        guesses: Some(true),
        steps: Vec::new(),
    };
    // All that is read is guessed before: the block runs once, on what the guess was made from.
    let step = |layer: &mut Layer, x: &[f32]| -> Result<Vec<u32>, Error> {
        let Layer { cpu, moe, norm, counts, .. } = layer;
        let (x, mut out) = (cpu.vector(x)?, cpu.buf(HIDDEN)?);
        cpu.step(Pass::Other, &Batch::default(), |cpu| {
            cpu.foresee(1, &x, Some(norm), moe);
            cpu.moe(1, Some(&x), Some(norm), moe, 0, counts, Out::Write(&mut out));
        })?;
        Ok(out.iter().map(|v| v.to_bits()).collect())
    };
    let mut want = Layer::new(&shape, false);
    let r = &mut Random(2);
    let mut failed = 0;
    for first in 0..9 {
        // A new one each time: after many wrong guesses few are made.
        let mut got = Layer::new(&shape, true);
        let (x, other) = (r.vec(HIDDEN), r.vec(HIDDEN));
        got.fails.store(first, SeqCst);
        assert!(step(&mut got, &x).unwrap() == step(&mut want, &x).unwrap(), "guess {first} fails");
        // Three projections of three experts, and one of these experts again.
        let reads = got.reads.load(SeqCst);
        assert!((10..=12).contains(&reads), "{reads} reads");
        // What is needed and cannot be read either fails the step.
        got.failing.store(usize::MAX - 100_000, SeqCst);
        let answer = step(&mut got, &other);
        assert!(answer.is_err() || got.reads.load(SeqCst) == reads, "{answer:?}");
        failed += usize::from(answer.is_err());
        got.fails.store(usize::MAX, SeqCst);
        for x in [&other, &x] {
            assert!(step(&mut got, x).unwrap() == step(&mut want, x).unwrap(), "after that");
        }
    }
    assert!(failed > 4, "only {failed} steps failed");
}

#[test]
fn slots_are_filled_by_what_was_used_last() {
    let shape = Shape {
        seed: 3,
        ty: GgmlType::Q8_0,
        top_k: 2,
        slots: 4,
        threads: 1,
        gated: true,
        biased: false,
        shared: false,
        weighs_input: false,
        guesses: None,
        steps: Vec::new(),
    };
    let mut layer = Layer::new(&shape, true);
    let r = &mut Random(5);
    let (a, b) = (r.vec(HIDDEN), r.vec(HIDDEN));
    let mut reads = |x: &[f32]| {
        let before = layer.reads.load(SeqCst);
        layer.step(1, x).unwrap();
        layer.reads.load(SeqCst) - before
    };
    reads(&a);
    // The same token again needs nothing more, also with others in between that fit beside it.
    assert_eq!(reads(&a), 0);
    reads(&b);
    assert_eq!(reads(&b), 0);
}
