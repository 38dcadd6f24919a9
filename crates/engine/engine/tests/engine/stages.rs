//! The number of barriers of a decode step on a graphics device, which limits models with many small kernels: it must not grow. And the
//! bytes that steps read.

use crate::common::{On, Run, load};
use octet_compute::cpu::isa::Isa;
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

/// Bytes that each of four steps reads: a prompt, then one token after the other.
fn bytes(shape: &Shape, on: On) -> Vec<u64> {
    let file = synthetic(shape, Mix::Q4KM, None, 0).expect("a shape");
    let mut run = Run::new(load(&file, on, Limits::single(256)));
    let mut all = vec![0];
    for tokens in [&[1, 2, 3][..], &[4], &[5], &[6]] {
        run.pool.reserve(&mut run.seq, tokens.len()).expect("the prompt fits");
        run.batch.clear();
        run.batch.push(tokens, run.seq.tokens.len(), run.seq.slot, &run.seq.pages, 1);
        run.seq.tokens.extend_from_slice(tokens);
        run.model.step(&run.batch).expect("the step works");
        all.push(run.model.backend().bytes_read().expect("they are counted"));
    }
    all.windows(2).map(|w| w[1] - w[0]).collect()
}

#[test]
fn steps_read_as_many_bytes_as_on_the_processor() {
    let Some(index) = octet_testkit::vulkan_device() else { return };
    for architecture in ["llama", "qwen35moe"] {
        let shape = Shape { mtp: false, ..tiny_shape(architecture).expect("a shape") };
        let (device, processor) = (bytes(&shape, On::Vulkan(index)), bytes(&shape, On::Cpu(Isa::detect())));
        // the layouts of weights differ by a few per cent
        for (step, (d, p)) in device.iter().zip(&processor).enumerate() {
            let off = d.abs_diff(*p) as f64 / *p as f64;
            assert!(off < 0.1, "{architecture}, step {step}: {device:?} and {processor:?}");
        }
        // of steps that run again from a recording, each reads one position more
        assert!(device[2] <= device[3] && device[1] <= device[2], "{device:?}");
    }
}

#[test]
fn stages_that_are_measured_compute_the_same_and_read_all_bytes() {
    let Some(index) = octet_testkit::vulkan_device() else { return };
    for architecture in ["llama", "qwen3moe", "qwen35moe"] {
        let shape = Shape { mtp: false, ..tiny_shape(architecture).expect("a shape") };
        let file = synthetic(&shape, Mix::Q4KM, None, 0).expect("a shape");
        let steps = |timed: &[bool]| {
            let mut run = Run::new(load(&file, On::Vulkan(index), Limits::single(256)));
            let mut all = Vec::new();
            for (tokens, on) in [&[1, 2, 3][..], &[4], &[5], &[6]].into_iter().zip(timed) {
                assert_eq!(run.model.backend().time_stages(*on).expect("the device works"), *on);
                run.pool.reserve(&mut run.seq, tokens.len()).expect("the prompt fits");
                run.batch.clear();
                run.batch.push(tokens, run.seq.tokens.len(), run.seq.slot, &run.seq.pages, 1);
                run.seq.tokens.extend_from_slice(tokens);
                let before = run.model.backend().bytes_read();
                run.model.step(&run.batch).expect("the step works");
                let read = run.model.backend().bytes_read().zip(before).map(|(a, b)| a - b);
                let logits: Vec<u32> = run.model.last_logits().iter().map(|x| x.to_bits()).collect();
                let barriers = run.model.backend().stages().expect("they are counted").0;
                all.push((logits, read.expect("it is counted"), barriers, run.model.backend().take_stages()));
            }
            all
        };
        let (plain, timed) = (steps(&[false; 4]), steps(&[true, true, true, false]));
        for (step, (a, b)) in plain.iter().zip(&timed).enumerate() {
            assert!(a.0 == b.0 && a.3.is_empty(), "{architecture}, step {step}");
            let (read, barriers, stages) = (b.1, b.2 as usize, &b.3);
            if step == 3 {
                assert!(stages.is_empty());
                continue;
            }
            assert!((barriers..barriers + 3).contains(&stages.len()), "{} of {barriers}", stages.len());
            let bytes: u64 = stages.iter().map(|s| s.bytes).sum();
            // Of several tokens, some may choose the same experts.
            assert!(
                bytes == read || step == 0 && bytes > read,
                "{architecture}, step {step}: {bytes}, {read}"
            );
            assert!(stages.iter().any(|s| !s.time.is_zero()), "{architecture}, step {step}");
            assert!(stages.iter().any(|s| s.kernels.contains(&"linear") && s.groups > 0 && s.bytes > 0));
        }
    }
}
