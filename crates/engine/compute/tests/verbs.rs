//! The CPU backend against the scalar oracle, verb by verb, on random shapes; and against itself: a token's result may
//! not depend, to the bit, on the rest of the batch or on how the prompt was split.

use octet_compute::backend::*;
use octet_compute::batch::Batch;
use octet_compute::cpu::isa::Isa;
use octet_compute::cpu::{Cpu, CpuOptions};
use octet_compute::reference::Reference;
use octet_weights::GgmlType;
use proptest::prelude::*;

#[path = "support/copies.rs"]
mod copies;
#[path = "support/layers.rs"]
mod layers;
#[path = "support/rounding.rs"]
mod rounding;
#[path = "support/slots.rs"]
mod slots;

use copies::*;
use layers::*;
use rounding::*;

fn cpu(isa: Isa, threads: usize, exact: bool) -> Cpu {
    Cpu::new(&CpuOptions {
        threads: Some(threads),
        pin: false,
        isa: Some(isa),
        exact,
        ..CpuOptions::default()
    })
    .unwrap()
}

fn isas() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|i| i.available())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn equals_the_oracle(shape in shapes(), long in 1..140usize) {
        let batches = two_steps(long);
        let mut oracle = layers(Reference, &shape);
        let want: Passes = batches.iter().map(|b| oracle.run(b)).collect();
        let floats = matches!(shape.ty, GgmlType::F32 | GgmlType::BF16);
        // quantised weights meet 8-bit activations
        let rounded = if floats { Vec::new() } else { bounds(&shape, &batches, &want) };
        for isa in isas() {
            for (threads, exact) in [(1, true), (3, false)] {
                let mut be = layers(cpu(isa, threads, exact), &shape);
                let got = batches.iter().map(|b| be.run(b)).collect();
                let Compared { parts, same, tokens } = compare(&got, &want, &shape);
                prop_assert!(2 * same >= tokens, "{isa:?}: only {same} of {tokens} tokens went the same way");
                // keys and values of other types may round to another neighbour
                let has = |ty| shape.kv.keys == ty || shape.kv.values == ty;
                for (part, (got, want)) in parts.iter().enumerate() {
                    let (d, bound) = match exact || floats {
                        true if has(KvType::Q8_0) => (relative(got, want), 1e-2),
                        true => (worst(got, want), if has(KvType::F16) { 5e-3 } else { 3e-4 }),
                        false => (relative(got, want), rounded[part]),
                    };
                    prop_assert!(
                        d <= bound,
                        "{isa:?}, {threads} threads, exact {exact}: part {part} differs by {d}, more than {bound}"
                    );
                }
            }
        }
    }

    #[test]
    fn does_not_depend_on_the_batch_or_the_split(shape in shapes(), n in 2..150usize, cut in 1..149usize) {
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
                // another sequence is first in the batch
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn rejected_guesses_leave_no_trace(
        shape in shapes(),
        n in 2..60usize,
        certain in 1..30usize,
        accepted in prop::collection::vec(0..4usize, 1..6),
    ) {
        goes_back(&mut layers(Reference, &shape), n, certain, &accepted);
        for isa in isas() {
            goes_back(&mut layers(cpu(isa, 2, false), &shape), n, certain, &accepted);
        }
    }

    #[test]
    fn a_state_may_start_in_another_slot(shape in shapes(), steps in slots::steps()) {
        slots::starts_in_another_slot(&mut layers(Reference, &shape), &steps);
        for isa in isas() {
            slots::starts_in_another_slot(&mut layers(cpu(isa, 2, false), &shape), &steps);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn rows_that_are_copied_are_those_of_the_other_matrix((seed, ty, shape, rows) in copies()) {
        copies_rows(Reference, seed, ty, shape, &rows);
        for isa in isas() {
            copies_rows(cpu(isa, 2, false), seed, ty, shape, &rows);
        }
        copies_rows(cpu(Isa::detect(), 1, true), seed, ty, shape, &rows);
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
fn a_long_context_gives_the_same_bits_with_any_number_of_threads() {
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

#[test]
fn states_and_pages_survive_saving_and_loading() {
    let mixed = KvTypes { keys: KvType::Q8_0, values: KvType::F32 };
    for kv in [KvType::F16.into(), KvType::Q8_0.into(), mixed] {
        let shape = Shape { head_dim: 32, kv, ..plain_shape() };
        survives_saving(layers(Reference, &shape));
        survives_saving(layers(cpu(Isa::detect(), 2, false), &shape));
    }
}
