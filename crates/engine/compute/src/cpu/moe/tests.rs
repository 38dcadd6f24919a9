//! Experts in a file are compared with their checksums by the step that first uses them: all of their groups, once, and no others.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Arc, Mutex};

use octet_weights::{GgmlType, Matrix, quant};

use crate::backend::*;
use crate::cpu::pack::Checks;
use crate::cpu::{Cpu, CpuOptions};
use crate::{Batch, ExpertCounts};

const EXPERTS: usize = 12;
const TOP_K: usize = 3;
const TOKENS: usize = 5;
const HIDDEN: usize = 512;
const INNER: usize = 256;

/// Notes what is to be compared.
struct Seen {
    groups: Mutex<Vec<usize>>,
    checked: Vec<AtomicBool>,
}

impl Checks for Seen {
    fn check(&self, _: usize) {
        unreachable!("a step compares groups");
    }
    fn check_groups(&self, groups: Range<usize>) {
        self.groups.lock().expect("no panic").extend(groups);
    }
    fn set_checked(&self, matrix: usize) {
        self.checked[matrix].store(true, Release);
    }
    fn is_checked(&self, matrix: usize) -> bool {
        self.checked[matrix].load(Acquire)
    }
    fn is_done(&self) -> bool {
        false
    }
}

fn matrix(rows: usize, cols: usize, seed: &mut u64) -> Matrix {
    let ty = GgmlType::Q4_K;
    let mut data = vec![0; rows * cols / ty.block_len() * ty.block_bytes()];
    quant::random_blocks(ty, seed, 1.0 / (cols as f32).sqrt(), &mut data);
    Matrix::new(ty, rows, cols, data.into())
}

fn block(cpu: &mut Cpu) -> Moe<Cpu> {
    let seed = &mut 5;
    let router = cpu.weight(&matrix(EXPERTS, HIDDEN, seed), None).expect("a router");
    let mut stack = |rows, cols| {
        let all: Vec<Matrix> = (0..EXPERTS).map(|_| matrix(rows, cols, seed)).collect();
        cpu.experts(&all, None).expect("experts")
    };
    let (gate, up, down) = (stack(INNER, HIDDEN), stack(INNER, HIDDEN), stack(HIDDEN, INNER));
    let experts = Glu { gate: Some(gate), up, down, act: Act::Silu };
    let step = StepShape {
        tokens: TOKENS,
        outputs: 1,
        heads: 1,
        experts: EXPERTS,
        top_k: TOP_K,
        expert_intermediate: INNER,
        ..StepShape::default()
    };
    let shape = CacheShape {
        layers: vec![LayerCache::None],
        pages: 1,
        windowed: None,
        slots: 1,
        guesses: 0,
        kv: KvType::F16.into(),
    };
    cpu.cache(&shape, step).expect("memory");
    Moe { router: Router::softmax(router, EXPERTS, TOP_K, true), experts, shared: None }
}

#[test]
fn each_group_of_an_expert_is_compared_by_the_step_that_first_uses_it() {
    for threads in 1..=3 {
        let options = CpuOptions { threads: Some(threads), pin: false, ..CpuOptions::default() };
        let mut cpu = Cpu::new(&options).expect("a CPU");
        let mut moe = block(&mut cpu);
        let seen = [(); 3].map(|()| {
            let checked = (0..EXPERTS).map(|_| AtomicBool::new(false)).collect();
            Arc::new(Seen { groups: Mutex::default(), checked })
        });
        let parts = moe.experts.gate.iter_mut().chain([&mut moe.experts.up, &mut moe.experts.down]);
        let groups = parts.zip(&seen).map(|(part, seen)| {
            part.packed.set_checks(seen.clone());
            part.packed.layout().groups()
        });
        let groups: Vec<usize> = groups.collect();
        assert!(groups.iter().all(|&n| n > 1));
        let mut before = [false; EXPERTS];
        // One token, then several, whose experts are partly the same ones.
        for (step, n) in [1, TOKENS, TOKENS, 1].into_iter().enumerate() {
            let counts = ExpertCounts::new(1, EXPERTS);
            let x: Vec<f32> = (0..n * HIDDEN).map(|i| ((i + step % 3 * 77) as f32 * 0.37).sin()).collect();
            let (x, mut out) = (cpu.vector(&x).expect("memory"), cpu.buf(n * HIDDEN).expect("memory"));
            cpu.step(Pass::Other, &Batch::default(), |cpu| {
                cpu.moe(n, Some(&x), None, &moe, 0, &counts, Out::Write(&mut out));
            })
            .expect("a step");
            let used = counts.layers().next().expect("a layer");
            let new: Vec<usize> = (0..EXPERTS).filter(|&e| used[e] > 0 && !before[e]).collect();
            assert!(step != 0 || new.len() == TOP_K, "{new:?}");
            for (part, of_expert) in seen.iter().zip(&groups) {
                let mut got = std::mem::take(&mut *part.groups.lock().expect("no panic"));
                got.sort_unstable();
                let want: Vec<usize> = new.iter().flat_map(|e| e * of_expert..(e + 1) * of_expert).collect();
                assert_eq!(got, want, "{threads} threads, step {step}, experts {new:?}");
            }
            new.iter().for_each(|&e| before[e] = true);
            for part in &seen {
                assert!((0..EXPERTS).all(|e| part.is_checked(e) == before[e]));
            }
        }
    }
}
