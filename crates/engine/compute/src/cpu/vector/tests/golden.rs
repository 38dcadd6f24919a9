//! Gated DeltaNet and routing of layer 0 of the tiny Qwen3.5 MoE against transformers' intermediate results.

use octet_testkit::{Golden, max_abs_diff};

use super::all;
use super::gdn::Recurrence;
use crate::cpu::vector::{Conv, VectorKernels};

const K_HEADS: usize = 2;
const V_HEADS: usize = 4;
const DIM: usize = 32;
const CHANNELS: usize = 2 * K_HEADS * DIM + V_HEADS * DIM;
const TAPS: usize = 4;

/// A weight of the tiny model, stored as bf16 or f32.
fn weight(name: &str, len: usize) -> Option<Vec<f32>> {
    for part in 1..=2 {
        let file = format!("models/tiny-qwen3_5_moe/model-0000{part}-of-00002.safetensors");
        let Some(bytes) = Golden::open(&file)?.bytes(name) else { continue };
        let size = bytes.len() / len;
        return Some(
            bytes
                .chunks_exact(size)
                .map(|b| {
                    let mut word = [0; 4];
                    word[4 - size..].copy_from_slice(b);
                    f32::from_le_bytes(word)
                })
                .collect(),
        );
    }
    panic!("the tiny model has no tensor {name}");
}

fn linear(name: &str, len: usize) -> Option<Vec<f32>> {
    weight(&format!("model.language_model.layers.0.linear_attn.{name}"), len)
}

/// Values `[tokens, width]` of `x [tokens, stride]` from column `at` on.
fn columns(x: &[f32], stride: usize, at: usize, width: usize) -> Vec<f32> {
    x.chunks(stride).flat_map(|row| row[at..at + width].to_vec()).collect()
}

fn delta_net(k: VectorKernels, g: &Golden) -> Option<()> {
    let trace = |name: &str| g.f32(&format!("trace.{name}")).expect("the trace has it");
    let near = |what: &str, got: &[f32], want: &[f32], tolerance: f32| {
        let error = max_abs_diff(got, want);
        assert!(error <= tolerance, "{what}, {}: off by {error}", k.isa().name());
    };
    let input = trace("qkv_preconv");
    let tokens = input.len() / CHANNELS;
    let file = linear("conv1d.weight", CHANNELS * TAPS)?;
    let weights: Vec<f32> = (0..TAPS * CHANNELS).map(|i| file[i % CHANNELS * TAPS + i / CHANNELS]).collect();
    let (mut state, mut y) = (vec![0.0; (TAPS - 1) * CHANNELS], vec![0.0; tokens * CHANNELS]);
    let item = Conv {
        weights: weights.as_ptr(),
        weights_stride: CHANNELS,
        input: input.as_ptr(),
        input_stride: CHANNELS,
        state: state.as_mut_ptr(),
        state_stride: CHANNELS,
        out: y.as_mut_ptr(),
        out_stride: CHANNELS,
        tokens,
        guesses: 0,
        channels: CHANNELS,
        taps: TAPS,
        bias: std::ptr::null(),
        silu: true,
    };
    // SAFETY: all channels of all rows.
    unsafe { k.conv(&item) };
    near("convolution", &y, &trace("qkv_postconv"), 1e-5);

    let mut beta = vec![0.0; tokens * V_HEADS];
    k.gdn_beta(&mut beta, &trace("b"));
    near("beta", &beta, &trace("beta"), 1e-6);
    let bias = linear("dt_bias", V_HEADS)?;
    let a: Vec<f32> = linear("A_log", V_HEADS)?.iter().map(|x| -x.exp()).collect();
    let mut decay = vec![0.0; tokens * V_HEADS];
    for (out, alpha) in decay.chunks_mut(V_HEADS).zip(trace("a").chunks(V_HEADS)) {
        k.gdn_decay(out, alpha, &bias, &a);
    }
    near("decay", &decay, &trace("g").iter().map(|g| g.exp()).collect::<Vec<_>>(), 1e-6);

    let norm = linear("norm.weight", DIM)?;
    let (core, gated, z) = (trace("core_out"), trace("gated_norm"), trace("z"));
    let last = trace("state_kv");
    for h in 0..V_HEADS {
        let key_head = h / (V_HEADS / K_HEADS);
        let mut q = columns(&y, CHANNELS, key_head * DIM, DIM);
        let mut keys = columns(&y, CHANNELS, (K_HEADS + key_head) * DIM, DIM);
        k.gdn_keys(DIM, &mut q, &mut keys, &mut vec![0.0; tokens]);
        let r = Recurrence {
            k_dim: DIM,
            v_dim: DIM,
            tokens,
            q,
            k: keys,
            v: columns(&y, CHANNELS, (2 * K_HEADS + h) * DIM, DIM),
            beta: columns(&beta, V_HEADS, h, 1),
            decay: columns(&decay, V_HEADS, h, 1),
            state: vec![0.0; DIM * DIM],
        };
        let (out, state) = r.run(k, &[tokens], DIM, 0);
        near("core_out", &out, &columns(&core, V_HEADS * DIM, h * DIM, DIM), 1e-5);
        near("state_kv", &state, &last[h * DIM * DIM..][..DIM * DIM], 1e-5);
        let mut normed = vec![0.0; tokens * DIM];
        let z = columns(&z, V_HEADS * DIM, h * DIM, DIM);
        for t in 0..tokens {
            let row = t * DIM..(t + 1) * DIM;
            k.gated_rms_norm(&out[row.clone()], &norm, 1e-6, &z[row.clone()], &mut normed[row]);
        }
        near("gated_norm", &normed, &columns(&gated, V_HEADS * DIM, h * DIM, DIM), 1e-4);
    }
    Some(())
}

#[test]
fn gated_delta_net_agrees_with_transformers() {
    let Some(g) = Golden::open("golden/tiny/tiny-qwen3_5_moe.golden.safetensors") else { return };
    for k in all() {
        if delta_net(k, &g).is_none() {
            return;
        }
    }
}

#[test]
fn routing_agrees_with_transformers() {
    let Some(g) = Golden::open("golden/tiny/tiny-qwen3_5_moe.golden.safetensors") else { return };
    let logits = g.f32("trace.router_logits").expect("the trace has it");
    let weights = g.f32("trace.router_weights").expect("the trace has it");
    let indices = g.bytes("trace.router_idx").expect("the trace has it");
    let indices: Vec<u32> = indices.chunks_exact(8).map(|b| u32::from(b[0])).collect();
    for k in all() {
        for (t, logits) in logits.chunks(16).enumerate() {
            let (mut chosen, mut p) = ([0; 4], [0.0; 4]);
            k.route(&mut logits.to_vec(), &mut chosen, &mut p, true);
            assert_eq!(chosen, indices[t * 4..][..4], "token {t}");
            assert!(max_abs_diff(&p, &weights[t * 4..][..4]) < 1e-6);
        }
    }
}
