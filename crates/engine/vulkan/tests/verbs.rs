//! The Vulkan backend against the scalar oracle, verb by verb, on random shapes; and against itself: a token's result may not depend, to
//! the bit, on what else is in the batch or on how the prompt was cut.

#[path = "../../compute/tests/support/copies.rs"]
mod copies;
#[path = "../../compute/tests/support/layers.rs"]
mod layers;
#[path = "support/packed.rs"]
mod packed;
#[path = "../../compute/tests/support/rounding.rs"]
mod rounding;
#[path = "../../compute/tests/support/slots.rs"]
mod slots;

use copies::*;
use layers::*;
use octet_compute::backend::*;
use octet_compute::batch::Batch;
use octet_compute::picks::{Pick, picks};
use octet_compute::reference::Reference;
use octet_vulkan::{Vulkan, VulkanOptions};
use octet_weights::GgmlType;
use proptest::prelude::*;
use rounding::*;

fn vulkan() -> Option<Vulkan> {
    let index = octet_testkit::vulkan_device()?;
    Some(
        Vulkan::new(&VulkanOptions { index, shared_stripes: Some(true), ..VulkanOptions::default() })
            .expect("the device opens"),
    )
}

/// How each part of a pass differs from the oracle's, and how far it may where quantised weights meet 8-bit activations.
struct Difference {
    worst: f32,
    relative: f32,
    bound: f32,
}

fn differences(shape: &Shape, long: usize, be: Vulkan) -> Vec<Difference> {
    let batches = two_steps(long);
    let (mut oracle, mut be) = (layers(Reference, shape), layers(be, shape));
    let want: Passes = batches.iter().map(|b| oracle.run(b)).collect();
    let got = batches.iter().map(|b| be.run(b)).collect();
    let Compared { parts, same, tokens } = compare(&got, &want, shape);
    assert!(2 * same >= tokens, "only {same} of {tokens} tokens went the same way");
    let part = |((got, want), bound): ((Vec<f32>, Vec<f32>), f32)| Difference {
        worst: worst(&got, &want),
        relative: relative(&got, &want),
        bound,
    };
    parts.into_iter().zip(bounds(shape, &batches, &want)).map(part).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn every_verb_equals_the_oracle(shape in shapes(), long in 1..140usize) {
        let Some(be) = vulkan() else { return Ok(()) };
        let floats = matches!(shape.ty, GgmlType::F32 | GgmlType::BF16);
        let has = |ty| shape.kv.keys == ty || shape.kv.values == ty;
        for (part, Difference { worst, relative, bound }) in differences(&shape, long, be).into_iter().enumerate() {
            // keys and values may round to another neighbour
            let (d, bound) = match floats {
                true if has(KvType::Q8_0) => (relative, 1e-2),
                true => (worst, if has(KvType::F16) { 5e-3 } else { 3e-4 }),
                false => (relative, bound),
            };
            prop_assert!(d <= bound, "part {part} differs by {d}, more than {bound}");
        }
    }

    #[test]
    fn copied_rows_equal_the_source_matrix((seed, ty, shape, rows) in copies()) {
        let Some(be) = vulkan() else { return Ok(()) };
        copies_rows(be, seed, ty, shape, &rows);
    }

    #[test]
    fn results_do_not_depend_on_the_batch_or_the_chunking(shape in shapes(), n in 2..100usize, cut in 1..99usize) {
        let Some(be) = vulkan() else { return Ok(()) };
        let cut = cut.min(n - 1);
        let all = tokens(0, n);
        let mut be = layers(be, &shape);
        let mut batch = Batch::default();
        batch.push(&all, 0, 0, &pages(0), n);
        let whole = be.logits(&batch);

        be.reset();
        let mut parts = Vec::new();
        for (from, to) in [(0, cut), (cut, n)] {
            let mut batch = Batch::default();
            batch.push(&tokens(1, 3), 0, 1, &pages(1), 0);
            batch.push(&all[from..to], from, 0, &pages(0), to - from);
            parts.extend(be.logits(&batch));
            be.be.reset_slot(&mut be.cache, 1);
        }
        prop_assert!(parts == whole, "cut at {cut} of {n}");

        be.reset();
        let mut steps = Vec::new();
        for (i, t) in all.iter().enumerate() {
            let mut batch = Batch::default();
            batch.push(&[*t], i, 0, &pages(0), 1);
            steps.extend(be.logits(&batch));
        }
        prop_assert!(steps == whole, "step by step, {n} tokens");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    /// In a step the last workgroup of a stage does the norms and the routing of a few tokens. Where each verb's result is read, these are stages.
    #[test]
    fn a_step_equals_its_verbs_run_one_by_one(shape in shapes(), n in 1..7usize, past in 1..20usize) {
        let Some(be) = vulkan() else { return Ok(()) };
        let mut be = layers(be, &shape);
        let all = tokens(0, past + n + 1);
        let mut results = [Vec::new(), Vec::new()];
        for (in_step, result) in results.iter_mut().enumerate() {
            be.reset();
            for (from, to) in [(0, past), (past, past + n), (past + n, past + n + 1)] {
                let mut batch = Batch::default();
                batch.push(&all[from..to], from, 0, &pages(0), if from == past { n } else { 1 });
                result.push(if in_step == 1 { be.step(&batch) } else { be.logits(&batch) });
            }
        }
        prop_assert!(results[0] == results[1], "{n} tokens after {past}");
    }

    #[test]
    fn guesses_do_not_change_the_state(
        shape in shapes(),
        n in 2..40usize,
        certain in 1..20usize,
        accepted in prop::collection::vec(0..4usize, 1..6),
    ) {
        let shape = Shape { whole_norm: false, ..shape }; // refused
        let Some(be) = vulkan() else { return Ok(()) };
        goes_back(&mut layers(be, &shape), n, certain, &accepted);
    }

    #[test]
    fn a_state_may_start_in_another_slot(shape in shapes(), steps in slots::steps()) {
        let Some(be) = vulkan() else { return Ok(()) };
        slots::starts_in_another_slot(&mut layers(be, &shape), &steps);
    }
}

/// A prompt that is submitted stage by stage, so that no driver takes it for a hang, gives the same bits.
#[test]
fn a_prompt_in_many_submissions_gives_the_same_bits() {
    for slots in [None, Some(2)] {
        let Some(index) = octet_testkit::vulkan_device() else { return };
        let run = |by_stage: bool| {
            let options = VulkanOptions { index, expert_slots: slots, ..VulkanOptions::default() };
            let mut be = Vulkan::new(&options).expect("the device opens");
            if by_stage {
                be.submit_by_stage();
            }
            let mut be =
                layers(be, &Shape { head_dim: 32, gdn_dim: 32, ty: GgmlType::Q4_K, ..plain_shape() });
            let mut batch = Batch::default();
            batch.push(&tokens(0, 70), 0, 0, &pages(0), 70);
            be.step(&batch)
        };
        assert!(run(true) == run(false), "{slots:?}");
    }
}

/// Every type of weight that a file may have, those without a kernel of their own too.
#[test]
fn every_type_of_weights_equals_the_oracle() {
    use GgmlType::*;
    for ty in [
        F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K, Q3_K, Q2_K, IQ4_NL, IQ4_XS, MXFP4,
        NVFP4, I4_Z, F8_128,
    ] {
        let Some(be) = vulkan() else { return };
        let shape = Shape { ty, head_dim: 32, gdn_dim: 32, ..plain_shape() };
        for (part, Difference { relative, .. }) in differences(&shape, 20, be).into_iter().enumerate() {
            assert!(relative <= 0.1, "{ty}: part {part} differs by {relative}");
        }
    }
}

/// A device that has no instruction for the product of four bytes computes the same integers. Many tokens, few, and one.
#[test]
fn products_without_the_instruction_give_the_same_bits() {
    for ty in
        [GgmlType::Q4_K, GgmlType::Q5_K, GgmlType::Q6_K, GgmlType::Q8_0, GgmlType::Q3_K, GgmlType::IQ4_XS]
    {
        let run = |forgoes: bool| -> Option<Vec<Vec<f32>>> {
            let mut be = vulkan()?;
            if forgoes {
                be.forgo_dot_products();
            }
            let mut be = layers(be, &Shape { ty, head_dim: 32, gdn_dim: 32, ..plain_shape() });
            Some(two_steps(100).iter().map(|batch| be.logits(batch)).collect())
        };
        assert!(run(true) == run(false), "{ty}");
    }
}

#[test]
fn states_and_pages_survive_saving_and_loading() {
    let mixed = KvTypes { keys: KvType::Q8_0, values: KvType::F32 };
    for kv in [KvType::F16.into(), KvType::Q8_0.into(), mixed] {
        for has_copy_queue in [false, true] {
            let Some(mut be) = vulkan() else { return };
            if has_copy_queue {
                be.use_copy_queue().expect("it has memory");
            }
            survives_saving(layers(be, &Shape { head_dim: 32, kv, ..plain_shape() }));
        }
    }
}

/// A context of several chunks gives the same bits in one step and token by token.
#[test]
fn a_long_context_gives_the_same_bits_whole_and_in_parts() {
    let shape = Shape { head_dim: 32, kv: KvType::F16.into(), ..plain_shape() };
    let all = tokens(0, 1100);
    let table: Vec<u32> = (0..PAGES as u32).rev().collect();
    let run = |at_once: usize| -> Option<Vec<f32>> {
        let mut be = layers(vulkan()?, &shape);
        let mut last = Vec::new();
        for start in (0..all.len()).step_by(at_once) {
            let mut batch = Batch::default();
            let part = &all[start..(start + at_once).min(all.len())];
            batch.push(part, start, 0, &table, 1);
            last = be.logits(&batch);
        }
        Some(last)
    };
    assert_eq!(run(150), run(77));
}

#[test]
fn experts_are_counted_as_the_router_chooses() {
    let Some(be) = vulkan() else { return };
    let shape = Shape { seed: 3, experts: 7, top_k: 3, kv: KvType::F32.into(), ..plain_shape() };
    let (mut oracle, mut be) = (layers(Reference, &shape), layers(be, &shape));
    for batch in two_steps(100) {
        let (got, want) = (be.run(&batch), oracle.run(&batch));
        assert!(same_experts(&got[MOE - 1], &want[MOE - 1], &shape).iter().all(|s| *s), "too close to call");
    }
    be.be.count_experts(&be.counts);
    assert_eq!(be.counts.layers().collect::<Vec<_>>(), oracle.counts.layers().collect::<Vec<_>>());
}

#[test]
fn tokens_are_routed_as_by_the_oracle() {
    let Some(be) = vulkan() else { return };
    let shape =
        Shape { seed: 3, experts: 7, top_k: 3, kv: KvType::F32.into(), shared: true, ..plain_shape() };
    let (mut oracle, mut be) = (layers(Reference, &shape), layers(be, &shape));
    oracle.counts.trace(true);
    be.counts.trace(true);
    for batch in two_steps(20) {
        let _ = (be.step(&batch), oracle.run(&batch));
        be.be.count_experts(&be.counts);
        for t in 0..batch.len() {
            let [got, want] = [&be.counts, &oracle.counts].map(|c| c.routes(t).expect("they are asked for"));
            assert_eq!(got.experts, want.experts, "token {t}");
            assert!(got.gates.iter().zip(&want.gates).all(|(g, w)| g.abs_diff(*w) <= 1), "{got:?} {want:?}");
        }
    }
}

/// Results of two steps, and of one-token steps after them, with experts in slots of which there are fewer than the steps need.
#[test]
fn results_do_not_depend_on_where_experts_are_stored() {
    let Some(index) = octet_testkit::vulkan_device() else { return };
    for ty in [GgmlType::Q4_K, GgmlType::Q6_K, GgmlType::Q8_0, GgmlType::F8_128, GgmlType::F16] {
        let shape = Shape { ty, seed: 3, experts: 7, top_k: 3, head_dim: 32, gdn_dim: 32, ..plain_shape() };
        let run = |expert_slots| {
            let options = VulkanOptions { index, expert_slots, ..VulkanOptions::default() };
            let mut be = layers(Vulkan::new(&options).expect("the device opens"), &shape);
            let mut all: Vec<Vec<f32>> = two_steps(40).iter().map(|batch| be.logits(batch)).collect();
            for (i, token) in tokens(1, 12).into_iter().enumerate() {
                let mut batch = Batch::default();
                batch.push(&[token], 41 + i, 0, &pages(0), 1);
                all.push(be.logits(&batch));
            }
            all
        };
        let resident = run(None);
        // what is chosen does not depend on the type, where its bytes lie does
        for slots in if ty == GgmlType::Q4_K { &[1, 3, 4, 6][..] } else { &[3] } {
            assert!(run(Some(*slots)) == resident, "{ty}, {slots} slots for 7 experts");
        }
    }
}

/// Rows of logits with ties, both zeros and -inf, and the bits of what may be sampled.
fn rows_to_pick_from(
    seed: u64,
    rows: usize,
    vocab: usize,
    levels: u32,
    sparse: bool,
) -> (Vec<f32>, Vec<u32>) {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 32) as u32
    };
    let mut logit = || match next() % 50 {
        0 => f32::NEG_INFINITY,
        1 => -0.0,
        2 => 0.0,
        _ => ((next() % levels) as f32 - levels as f32 / 2.0) * 0.01,
    };
    let logits = (0..rows * vocab).map(|_| logit()).collect();
    let mut bits = || if sparse { next() & next() & next() & next() } else { next() | next() };
    (logits, (0..vocab.div_ceil(32)).map(|_| bits()).collect())
}

/// What the device picks of each row.
fn picked(be: &mut Vulkan, logits: &[f32], vocab: usize, sampleable: &[u32]) -> Vec<Option<Vec<Pick>>> {
    let rows = logits.len() / vocab;
    let buf = be.vector(logits).expect("room for logits");
    assert!(be.prepare_picks(rows, vocab, sampleable).expect("room for picks"));
    be.pick(rows, &buf);
    let mut out = Vec::new();
    (0..rows).map(|row| be.picks(row, &mut out).then(|| out.clone())).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// To the bit, those of equal logits with the lowest ids.
    #[test]
    fn picks_are_the_largest_logits(
        seed in any::<u64>(),
        rows in 1..4usize,
        vocab in 1..9000usize,
        levels in prop::sample::select(vec![2u32, 40, 100_000]),
        sparse in any::<bool>(),
    ) {
        let Some(mut be) = vulkan() else { return Ok(()) };
        let (logits, sampleable) = rows_to_pick_from(seed, rows, vocab, levels, sparse);
        let got = picked(&mut be, &logits, vocab, &sampleable);
        for (row, got) in logits.chunks_exact(vocab).zip(got) {
            let bits = |all: Vec<Pick>| all.into_iter().map(|p| (p.id, p.logit.to_bits())).collect::<Vec<_>>();
            prop_assert_eq!(got.map(bits), picks(row, &sampleable).map(bits));
        }
    }
}

#[test]
fn picks_handle_a_large_vocabulary_and_nan() {
    let Some(mut be) = vulkan() else { return };
    // Qwen3.5's, in 61 workgroups
    let vocab = 248_320;
    let (mut logits, mut sampleable) = rows_to_pick_from(7, 4, vocab, 100_000, false);
    logits[vocab + 5000] = f32::NAN;
    logits[2 * vocab + 9] = f32::INFINITY;
    sampleable[5000 / 32] |= 1 << (5000 % 32);
    sampleable[0] |= 1 << 9;
    // one that may not be sampled does not matter
    logits[3 * vocab + 77] = f32::NAN;
    sampleable[77 / 32] &= !(1 << (77 % 32));
    let got = picked(&mut be, &logits, vocab, &sampleable);
    let want: Vec<_> = logits.chunks_exact(vocab).map(|row| picks(row, &sampleable)).collect();
    assert_eq!(want.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false, false, true]);
    assert!(got == want);
    // more than a last workgroup can take
    assert!(!be.prepare_picks(1, 64 * 4096 + 1, &[]).expect("it is refused"));
}
