//! Parts that few models have, on the Vulkan backend against the scalar oracle, on random shapes: routers, activations, norms, Mamba-2, short
//! convolutions, products by heads, several residual streams. And against itself: a token's result may not depend, to the bit, on the rest of the batch, on how a
//! prompt was split, or on guesses that were wrong.

#[path = "../../compute/tests/support/layers.rs"]
mod layers;
#[path = "../../compute/tests/support/parts.rs"]
mod parts;

use layers::{pages, relative, tokens, worst};
use octet_compute::backend::Backend;
use octet_compute::batch::{Batch, Redo};
use octet_compute::reference::Reference;
use octet_vulkan::{Vulkan, VulkanOptions};
use octet_weights::GgmlType;
use parts::*;
use proptest::prelude::*;

fn vulkan() -> Option<Vulkan> {
    let index = octet_testkit::vulkan_device()?;
    Some(
        Vulkan::new(&VulkanOptions { index, shared_stripes: Some(true), ..VulkanOptions::default() })
            .expect("the device opens"),
    )
}

/// With f32 weights, with narrow floats, and with quantised ones that meet 8-bit activations.
fn any_type() -> impl Strategy<Value = Choices> {
    let types = prop::sample::select(vec![GgmlType::F32, GgmlType::F8_32, GgmlType::Q8_0, GgmlType::MXFP4]);
    (choices(), types).prop_map(|(c, ty)| Choices { ty, ..c })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn parts_equal_the_oracle(c in any_type(), n in 1..40usize) {
        let Some(be) = vulkan() else { return Ok(()) };
        let (b, _) = batch(&tokens(0, n), 0, n, false);
        let (want, got) = (parts(Reference, &c).run(&b), parts(be, &c).run(&b));
        prop_assert_eq!(got.len(), want.len());
        for (part, (got, want)) in got.iter().zip(&want).enumerate() {
            let size = want.iter().fold(1.0f32, |m, x| m.max(x.abs()));
            let (d, bound) = match c.ty {
                GgmlType::F32 | GgmlType::F8_32 => (worst(got, want) / size, 2e-5),
                _ => (relative(got, want), 0.1),
            };
            prop_assert!(d <= bound, "part {part} differs by {d}");
        }
    }

    #[test]
    fn parts_do_not_depend_on_the_batch_or_the_split(c in any_type(), n in 2..40usize, cut in 1..39usize) {
        let Some(be) = vulkan() else { return Ok(()) };
        let (all, cut) = (tokens(0, n), cut.min(n - 1));
        let mut m = parts(be, &c);
        let whole = m.run(&batch(&all, 0, n, false).0);
        m.reset();
        let mut halves = vec![Vec::new(); whole.len()];
        for (past, len) in [(0, cut), (cut, n - cut)] {
            let (b, skip) = batch(&all, past, len, true);
            let got = rows(m.run(&b), b.len(), skip, len);
            halves.iter_mut().zip(got).for_each(|(all, part)| all.extend(part));
            m.be.reset_slot(&mut m.cache, 1);
        }
        for (part, (halves, whole)) in halves.iter().zip(&whole).enumerate() {
            prop_assert!(halves == whole, "part {part}: cut at {cut} of {n}");
        }
    }

    #[test]
    fn wrong_guesses_leave_no_trace(c in any_type(), right in 0..3usize, wrong in 1..3usize) {
        let Some(be) = vulkan() else { return Ok(()) };
        let n = 9;
        let all = tokens(0, n);
        let mut m = parts(be, &c);
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
        prop_assert!(rows(first, span.len(), 0, len) == rows(whole.clone(), n, 0, len));
        let mut b = Batch::default();
        b.push(&all[len..], len, 0, &pages(0), n - len);
        b.speculate(0, Redo { first: 0, len: right });
        let rest = m.run(&b);
        prop_assert!(rest == rows(whole, n, len, n - len), "after {right} right guesses");
    }
}
