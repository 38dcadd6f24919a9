//! Steps that run again from a recording: the same bits as steps that were recorded afresh, and memory that does not grow.

#[path = "../../compute/tests/support/layers.rs"]
mod layers;

use layers::*;
use octet_compute::backend::*;
use octet_compute::batch::Batch;
use octet_vulkan::{Vulkan, VulkanOptions};

/// Logits of a few hundred decode steps through the backend's `step`, over buffers that stay the same.
fn decode(pass: Pass, steps: usize) -> Option<(Vec<Vec<f32>>, Vec<u64>)> {
    let index = octet_testkit::vulkan_device()?;
    let device = Vulkan::new(&VulkanOptions { index, ..VulkanOptions::default() }).expect("the device opens");
    let mut m = layers(device, &plain_shape());
    let hidden = m.shape.hidden();
    let [mut h, mut logits] = [hidden, VOCAB].map(|len| m.be.buf(len).expect("room"));
    let mut all = Vec::new();
    let mut memory = Vec::new();
    for (i, token) in tokens(0, steps).into_iter().enumerate() {
        let mut batch = Batch::default();
        batch.push(&[token], i, 0, &pages(0), 1);
        let Layers { be, glu, moe, norms, norm, head, embedding, counts, .. } = &mut m;
        be.step(pass, &batch, |be| {
            be.embed(&batch, embedding, TableRow::Id, 1.0, &mut h);
            be.glu(1, None, Some(&norms[0]), glu, Out::Add(&mut h, 1.0));
            be.moe(1, None, Some(&norms[1]), moe, 1, counts, Out::Add(&mut h, 1.0));
            be.logits(&batch, &h, &Head { norm, weight: head, scale: 1.0, softcap: None }, &mut logits);
        })
        .expect("the step works");
        let mut out = vec![0.0; VOCAB];
        be.read(&logits, &mut out);
        all.push(out);
        memory.push(be.memory_bytes());
    }
    Some((all, memory))
}

#[test]
fn replayed_steps_give_the_bits_of_recorded_ones_in_flat_memory() {
    let Some((replayed, memory)) = decode(Pass::Trunk, 300) else { return };
    let (recorded, _) = decode(Pass::Other, 300).expect("there is a device");
    assert_eq!(replayed, recorded);
    assert_eq!(memory[10], memory[299], "bytes on the device");
}

/// Takes minutes: `cargo test -p octet-vulkan --test replay -- --ignored`.
#[test]
#[ignore = "takes minutes"]
fn a_hundred_thousand_replayed_steps_take_no_more_memory() {
    let Some(index) = octet_testkit::vulkan_device() else { return };
    let device = Vulkan::new(&VulkanOptions { index, ..VulkanOptions::default() }).expect("the device opens");
    let mut m = layers(device, &plain_shape());
    let [mut h, mut logits] = [m.shape.hidden(), VOCAB].map(|len| m.be.buf(len).expect("room"));
    let mut out = vec![0.0; VOCAB];
    let mut first = Vec::new();
    let mut before = (0, 0);
    for i in 0..100_000 {
        let mut batch = Batch::default();
        batch.push(&[(i % VOCAB) as u32], i % 500, 0, &pages(0), 1);
        let Layers { be, glu, moe, norms, norm, head, embedding, counts, .. } = &mut m;
        be.step(Pass::Trunk, &batch, |be| {
            be.embed(&batch, embedding, TableRow::Id, 1.0, &mut h);
            be.glu(1, None, Some(&norms[0]), glu, Out::Add(&mut h, 1.0));
            be.moe(1, None, Some(&norms[1]), moe, 1, counts, Out::Add(&mut h, 1.0));
            be.logits(&batch, &h, &Head { norm, weight: head, scale: 1.0, softcap: None }, &mut logits);
        })
        .expect("the step works");
        be.read(&logits, &mut out);
        be.count_experts(counts);
        if i < VOCAB {
            first.push(out.clone());
        } else {
            assert_eq!(out, first[i % VOCAB], "step {i}");
        }
        if i == 10_000 {
            before = (m.be.memory_bytes(), octet_testkit::resident_bytes());
        }
    }
    let after = (m.be.memory_bytes(), octet_testkit::resident_bytes());
    println!("after 10,000 and 100,000 steps: {before:?}, {after:?} bytes on the device and of the process");
    assert_eq!(before.0, after.0);
    assert!(after.1 < before.1 + (4 << 20), "{before:?} and then {after:?}");
}
