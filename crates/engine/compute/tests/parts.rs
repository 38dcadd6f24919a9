//! Parts that few models have, on the CPU backend against the scalar oracle, on random shapes: routers, activations, norms, Mamba-2, short
//! convolutions, products by heads. And against itself: a token's result may not depend, to the bit, on the rest of the batch, on how a
//! prompt was split, or on guesses that were wrong.

use std::sync::atomic::{AtomicUsize, Ordering};

use octet_compute::backend::Backend;
use octet_compute::batch::{Batch, Redo};
use octet_compute::cpu::isa::Isa;
use octet_compute::cpu::{Cpu, CpuOptions};
use octet_compute::reference::Reference;
use proptest::prelude::*;

#[path = "support/layers.rs"]
mod layers;
#[path = "support/parts.rs"]
mod parts;

use layers::{pages, tokens, worst};
use parts::*;

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
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn parts_equal_the_oracle(c in choices(), n in 1..40usize) {
        let (b, _) = batch(&tokens(0, n), 0, n, false);
        let want = parts(Reference, &c).run(&b);
        for (isa, threads) in isas().flat_map(|isa| [(isa, 1), (isa, 3)]) {
            let got = parts(cpu(isa, threads), &c).run(&b);
            prop_assert_eq!(got.len(), want.len());
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

#[test]
fn each_item_is_computed_once() {
    let options = CpuOptions { threads: Some(3), pin: false, ..CpuOptions::default() };
    let mut cpu = Cpu::new(&options).expect("a CPU");
    let buf = cpu.vector(&[1.0, 2.0, 3.0]).expect("memory");
    for count in [0, 1, 2, 40] {
        let calls: Vec<AtomicUsize> = (0..40).map(|_| AtomicUsize::new(0)).collect();
        let shared = cpu.share(&buf, count, &|i, values| {
            assert_eq!(values, [1.0, 2.0, 3.0]);
            calls[i].fetch_add(1, Ordering::Relaxed);
        });
        let calls: Vec<usize> = calls.iter().map(|n| n.load(Ordering::Relaxed)).collect();
        assert!(shared && calls.iter().enumerate().all(|(i, n)| *n == usize::from(i < count)), "{calls:?}");
    }
}
