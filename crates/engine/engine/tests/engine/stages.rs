//! How many barriers a decode step has on a graphics device: what limits models of many small kernels. Not more than were counted.

use crate::common::{On, Run, load};
use octet_engine::models::Limits;
use octet_synth::{Mix, Shape, synthetic, tiny_shape};

/// Barriers and kernels of a decode step after a step with a prompt.
fn stages(shape: &Shape) -> Option<(u32, u32)> {
    let index = octet_testkit::vulkan_device()?;
    let file = synthetic(shape, Mix::Q4KM, None, 0).expect("a shape");
    let mut run = Run::new(load(&file, On::Vulkan(index), Limits::single(256)));
    for tokens in [&[1, 2, 3][..], &[4], &[5]] {
        run.pool.reserve(&mut run.seq, tokens.len()).expect("the prompt fits");
        run.batch.clear();
        run.batch.push(tokens, run.seq.tokens.len(), run.seq.slot, &run.seq.pages, 1);
        run.seq.tokens.extend_from_slice(tokens);
        run.model.step(&run.batch).expect("the step works");
    }
    run.model.backend().stages()
}

#[test]
fn a_decode_step_has_no_more_barriers_than_were_counted() {
    // 40 layers as Qwen3.6-35B-A3B has them: 30 of Gated DeltaNet with 6 each, 10 of attention with 7, 2 for embedding and first norm
    let shape = Shape { layers: 40, mtp: false, ..tiny_shape("qwen35moe").expect("a shape") };
    let Some((barriers, kernels)) = stages(&shape) else { return };
    assert!(barriers <= 252, "{barriers} barriers, {kernels} kernels");
    // 30 layers of a dense model: 4 for attention, 2 for the MLP
    let shape = Shape { layers: 30, ..tiny_shape("llama").expect("a shape") };
    let Some((barriers, kernels)) = stages(&shape) else { return };
    assert!(barriers <= 182, "{barriers} barriers, {kernels} kernels");
}
