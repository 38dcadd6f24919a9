//! One model over several devices: the bits of one device, wherever weights and caches are; replays; a device that is lost. The same device is
//! opened several times.

#[path = "../../compute/tests/support/layers.rs"]
mod layers;

use layers::*;
use octet_compute::backend::*;
use octet_compute::batch::Batch;
use octet_compute::inspect::Inspect;
use octet_vulkan::{Share, Split, Vulkan, VulkanOptions};

fn options() -> Option<VulkanOptions> {
    Some(VulkanOptions { index: octet_testkit::vulkan_device()?, ..VulkanOptions::default() })
}

fn shares(options: &VulkanOptions, layers: &[usize]) -> Vec<Share> {
    layers.iter().map(|&layers| Share { device: options.clone(), layers }).collect()
}

/// The little model, with its weights on the device of `stage`, and its two layers' caches on the first two devices.
fn model(options: &VulkanOptions, shape: &Shape, layers: &[usize], stage: Stage) -> Layers<Split> {
    let mut device = Split::new(&shares(options, layers)).expect("the devices open");
    device.stage_next(stage);
    self::layers(device, shape)
}

/// A prompt, two sequences in one step, and a long step.
fn batches() -> Vec<Batch> {
    let mut all = vec![Batch::default(), Batch::default(), Batch::default()];
    all[0].push(&tokens(0, 5), 0, 0, &pages(0), 2);
    all[1].push(&tokens(1, 1), 5, 0, &pages(0), 1);
    all[1].push(&tokens(2, 3), 0, 1, &pages(1), 1);
    all[2].push(&tokens(3, 40), 3, 1, &pages(1), 4);
    all
}

#[test]
fn verbs_and_steps_give_the_bits_of_one_device() {
    let Some(options) = options() else { return };
    let kimi = Shape { gated: false, kimi: true, ..plain_shape() };
    let ways = [(&[1, 1][..], Stage::Embedding), (&[1, 1, 1], Stage::Head), (&[2, 3], Stage::Layer(1))];
    for (shape, ways) in [(plain_shape(), &ways[..]), (kimi, &ways[1..2])] {
        let one = || self::layers(Vulkan::new(&options).expect("the device opens"), &shape);
        let (mut verbs, mut steps) = (one(), one());
        let want: Vec<_> = batches().iter().map(|b| (verbs.run(b), steps.step(b))).collect();
        for (layers, stage) in ways {
            let mut verbs = model(&options, &shape, layers, *stage);
            let mut steps = model(&options, &shape, layers, *stage);
            for (i, (batch, want)) in batches().iter().zip(&want).enumerate() {
                assert_eq!(verbs.run(batch), want.0, "{layers:?}, {stage:?}, batch {i}: verb by verb");
                assert_eq!(steps.step(batch), want.1, "{layers:?}, {stage:?}, batch {i}: as a step");
            }
            assert!(!verbs.be.has_failed() && !steps.be.has_failed());
        }
    }
}

/// What is saved is in the order of the layers, and may be loaded by a backend of another number of devices.
#[test]
fn states_and_pages_are_those_of_one_device() {
    let Some(options) = options() else { return };
    let shape = Shape { kv: KvType::Q8_0.into(), head_dim: 32, ..plain_shape() };
    let mut one = self::layers(Vulkan::new(&options).expect("the device opens"), &shape);
    // the attention layer on the second device, the recurrent one on the first
    let mut device = Split::new(&shares(&options, &[1, 1])).expect("the devices open");
    device.stage_next(Stage::Head);
    device.cache_next(0);
    device.stage_next(Stage::Embedding);
    device.cache_next(1);
    let mut two = self::layers(device, &shape);
    let mut batch = Batch::default();
    batch.push(&tokens(0, 70), 0, 1, &pages(0), 1);
    assert_eq!(one.step(&batch), two.step(&batch));
    let page = pages(0)[0] as usize;
    let kv = shape.kv_cache().page_bytes(shape.kv);
    let state = one.gdn.cache().slot_bytes();
    let [mut from_one, mut from_two] = [(); 2].map(|()| (vec![0; state], vec![0; kv]));
    one.be.save_slot(&one.cache, 1, &mut from_one.0);
    one.be.save_page(&one.cache, PageGroup::All, page, &mut from_one.1);
    two.be.save_slot(&two.cache, 1, &mut from_two.0);
    two.be.save_page(&two.cache, PageGroup::All, page, &mut from_two.1);
    assert!(from_one == from_two, "both have the same states and pages");
    assert!(from_one.0.iter().any(|b| *b != 0) && from_one.1.iter().any(|b| *b != 0));
    // changed, and back
    two.be.reset_slot(&mut two.cache, 1);
    two.be.load_page(&mut two.cache, PageGroup::All, page, &vec![0; kv]);
    two.be.load_slot(&mut two.cache, 1, &from_one.0);
    two.be.load_page(&mut two.cache, PageGroup::All, page, &from_one.1);
    let mut next = Batch::default();
    next.push(&tokens(3, 2), 70, 1, &pages(0), 1);
    assert_eq!(one.step(&next), two.step(&next));
}

/// Decode steps of a shape are recorded once; the host copies between the devices in each.
#[test]
fn decode_steps_are_replayed_in_flat_memory() {
    let Some(options) = options() else { return };
    let run = |pass: Pass, steps: usize| {
        let mut m = model(&options, &plain_shape(), &[1, 1], Stage::Head);
        let [mut h, mut logits] = [m.shape.hidden(), VOCAB].map(|len| m.be.buf(len).expect("room"));
        let (mut all, mut memory, mut calls, mut submissions) = (Vec::new(), Vec::new(), 0, vec![]);
        for (i, token) in tokens(0, steps).into_iter().enumerate() {
            let mut batch = Batch::default();
            batch.push(&[token], i, 0, &pages(0), 1);
            let Layers { be, glu, moe, norms, norm, head, embedding, counts, .. } = &mut m;
            let before = be.submissions();
            be.step(pass, &batch, |be| {
                calls += 1;
                be.embed(&batch, embedding, TableRow::Id, 1.0, &mut h);
                be.glu(1, None, Some(&norms[0]), glu, Out::Add(&mut h, 1.0));
                be.moe(1, None, Some(&norms[1]), moe, 1, counts, Out::Add(&mut h, 1.0));
                be.logits(&batch, &h, &Head { norm, weight: head, scale: 1.0, softcap: None }, &mut logits);
            })
            .expect("the step works");
            submissions = be.submissions().iter().zip(before).map(|(now, before)| now - before).collect();
            let mut out = vec![0.0; VOCAB];
            be.read(&logits, &mut out);
            be.count_experts(counts);
            all.push(out);
            memory.push(be.memory_bytes());
        }
        let counted: u64 = m.counts.layers().flatten().sum();
        assert_eq!(counted, (steps * m.shape.top_k) as u64, "experts are counted once");
        assert_eq!(submissions, [1, 1], "one of each device");
        (all, memory, calls)
    };
    let (replayed, memory, calls) = run(Pass::Trunk, 100);
    let (recorded, _, all) = run(Pass::Other, 100);
    assert_eq!(replayed, recorded);
    assert_eq!((calls, all), (1, 100));
    assert_eq!(memory[10], memory[99], "bytes on the devices");
}

#[test]
fn a_lost_device_is_named_and_ends_the_step() {
    let Some(options) = options() else { return };
    for lost in 0..2 {
        let mut m = model(&options, &plain_shape(), &[1, 1], Stage::Head);
        m.step(&batches()[0]);
        let mut h = m.be.buf(m.shape.hidden()).expect("room");
        m.be.device_mut(lost).lose_device_after(0);
        let mut batch = Batch::default();
        batch.push(&[1], 5, 0, &pages(0), 1);
        let Layers { be, glu, norms, embedding, .. } = &mut m;
        let done = be.step(Pass::Trunk, &batch, |be| {
            be.embed(&batch, embedding, TableRow::Id, 1.0, &mut h);
            be.glu(1, None, Some(&norms[0]), glu, Out::Add(&mut h, 1.0));
        });
        let error = done.expect_err("the device is lost").to_string();
        let name = format!("device {} of 2", lost + 1);
        assert!(error.contains("lost") && error.contains(&name), "{error}");
        assert!(be.is_lost());
        be.read(&h, &mut [0.0; 4]);
    }
}

#[test]
fn a_fault_of_one_step_is_over_with_the_next() {
    use octet_vulkan::faults::{Fault, Faults};
    let Some(options) = options() else { return };
    let mut one = self::layers(Vulkan::new(&options).expect("the device opens"), &plain_shape());
    let mut two = model(&options, &plain_shape(), &[1, 1], Stage::Head);
    let (mut h, faults) =
        (two.be.buf(two.shape.hidden()).expect("room"), std::sync::Arc::<Faults>::default());
    two.be.device_mut(1).inject_faults(faults.clone());
    let mut batch = Batch::default();
    batch.push(&[1], 0, 0, &pages(0), 1);
    for is_faulty in [true, false, true] {
        if is_faulty {
            faults.inject(Fault::OutOfMemory);
        }
        let Layers { be, glu, norms, embedding, .. } = &mut two;
        let done = be.step(Pass::Trunk, &batch, |be| {
            be.embed(&batch, embedding, TableRow::Id, 1.0, &mut h);
            be.glu(1, None, Some(&norms[0]), glu, Out::Add(&mut h, 1.0));
        });
        assert_eq!(done.is_err(), is_faulty, "{done:?}");
    }
    assert!(!two.be.is_lost());
    assert_eq!(one.step(&batches()[0]), two.step(&batches()[0]));
}

#[test]
fn what_cannot_be_opened_is_named() {
    let Some(options) = options() else { return };
    let error = |shares: &[Share]| match Split::new(shares) {
        Err(e) => e.to_string(),
        Ok(_) => panic!("it opens"),
    };
    assert!(error(&[]).contains("0 are listed"));
    assert!(error(&shares(&options, &[1; 9])).contains("9 are listed"));
    assert!(error(&shares(&options, &[1, 0])).contains("has no layers"));
    let absent = VulkanOptions { index: 99, ..options.clone() };
    assert!(error(&[shares(&options, &[1]), shares(&absent, &[1])].concat()).contains("vulkan:99"));
    let slots = VulkanOptions { expert_slots: Some(3), ..options.clone() };
    assert_eq!(error(&shares(&slots, &[1, 1])), "experts in slots need one device");
}
