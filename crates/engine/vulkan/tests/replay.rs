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
        let Layers { be, mlp, moe, norm, head, embedding, counts, .. } = &mut m;
        be.step(pass, &batch, |be| {
            be.embed(embedding, batch.tokens(), &mut h);
            be.mlp(1, mlp, &mut h);
            be.moe(1, moe, 1, counts, &mut h);
            be.logits(&batch, &h, norm, 1e-6, head, &mut logits);
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
