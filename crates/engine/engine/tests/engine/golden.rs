//! Logits, hidden states, greedy continuations and MTP predictions of tiny models against transformers' numbers.

use crate::common::{On, Run, exact_backends, log_softmax, open};
use octet_testkit::{Golden, max_abs_diff};

/// The bound that an engine computing in f32 must keep.
const TOLERANCE: f32 = 1e-4;

/// Rows of `logits` that the golden file has for prompt `p`.
fn golden_rows(g: &Golden, p: usize, tokens: usize) -> Vec<usize> {
    match g.ids(&format!("p{p}.logit_rows")) {
        Some(rows) => rows.into_iter().map(|r| r as usize).collect(),
        None => (0..tokens).collect(),
    }
}

fn check(model: &str, golden: &str) {
    let vulkan = octet_testkit::vulkan_device().map(On::Vulkan);
    for on in exact_backends().into_iter().chain(vulkan) {
        check_on(model, golden, on);
    }
}

fn check_on(model: &str, golden: &str, on: On) {
    let Some(g) = Golden::open(&format!("golden/tiny/{golden}.golden.safetensors")) else { return };
    let Some(model_on) = open(model, on) else { return };
    let mut run = Run::new(model_on);
    let vocab = run.model.config().vocab;
    let mut prompts = 0;
    for p in 0.. {
        let Some(ids) = g.ids(&format!("p{p}.ids")) else { break };
        prompts += 1;
        let want = g.f32(&format!("p{p}.logits")).expect("every prompt has logits");
        let rows = golden_rows(&g, p, ids.len());
        let pick = |logits: &[f32]| -> Vec<f32> {
            rows.iter().flat_map(|r| logits[r * vocab..(r + 1) * vocab].to_vec()).collect()
        };

        run.clear();
        let whole = run.feed(&ids);
        let worst = max_abs_diff(&pick(&whole), &want);
        assert!(worst <= TOLERANCE, "{model} on {on:?}: prompt {p} differs by {worst}");

        if let Some(want) = g.ids(&format!("p{p}.greedy_ids")) {
            let got = run.greedy(&whole[whole.len() - vocab..], want.len());
            assert_eq!(got, want, "{model} on {on:?}: greedy continuation of prompt {p}");
        }

        // A device in software takes a minute for the splits of all prompts, and has the same weights in two containers.
        if matches!(on, On::Vulkan(_)) && (p > 1 || model.ends_with(".gguf")) {
            continue;
        }
        // however the prompt is split, to the bit
        for cut in [1, 2, 3, ids.len() / 2, 64, ids.len() - 1] {
            if cut == 0 || cut >= ids.len() {
                continue;
            }
            run.clear();
            let mut parts = run.feed(&ids[..cut]);
            parts.extend(run.feed(&ids[cut..]));
            assert_eq!(parts, whole, "{model} on {on:?}: prompt {p} cut at {cut}");
        }
        run.clear();
        let steps: Vec<f32> = ids.iter().flat_map(|&id| run.feed(&[id])).collect();
        assert_eq!(steps, whole, "{model} on {on:?}: prompt {p} step by step");
    }
    assert!(prompts >= 4, "{golden} has prompts");
    check_hidden(model, &g, &mut run, on);
    check_mtp(model, &g, &mut run, on);
}

fn check_hidden(model: &str, g: &Golden, run: &mut Run, on: On) {
    let (ids, want) =
        (g.ids("p3.ids").expect("prompt 3"), g.f32("p3.hidden").expect("hidden states of prompt 3"));
    let layers = run.model.config().layers;
    let size = ids.len() * run.model.config().hidden;
    run.clear();
    run.prepare(&ids);
    let mut seen = Vec::new();
    let batch = std::mem::take(&mut run.batch);
    let traced = run.model.step_traced(&batch, &mut |layer, h| {
        // the golden file's last state is the one after the final norm, in place of the last layer's
        if layer != layers {
            let at = layer.min(layers) * size;
            let worst = max_abs_diff(h, &want[at..at + size]);
            assert!(worst <= TOLERANCE, "{model} on {on:?}: state {layer} differs by {worst}");
        }
        seen.push(layer);
    });
    traced.expect("memory for a trace");
    assert_eq!(seen, (0..layers + 2).collect::<Vec<_>>());
}

fn check_mtp(model: &str, g: &Golden, run: &mut Run, on: On) {
    for p in [2, 3] {
        let Some(want) = g.f32(&format!("p{p}.mtp_logits")) else { continue };
        let ids = g.ids(&format!("p{p}.ids")).expect("ids");
        run.clear();
        run.prepare(&ids);
        let last = run.model.config().layers + 1;
        let hidden = run.model.config().hidden;
        let mut state = Vec::new();
        let batch = std::mem::take(&mut run.batch);
        let traced = run.model.step_traced(&batch, &mut |layer, h| {
            if layer == last {
                state = h.to_vec();
            }
        });
        traced.expect("memory for a trace");
        // row t: the trunk's state of token t with token t + 1
        run.clear();
        run.prepare(&ids[1..]);
        let got = run.model.step_mtp(&run.batch, &state[..(ids.len() - 1) * hidden]);
        let got = got.expect("memory for a step").expect("the block was loaded");
        let worst = max_abs_diff(got, &want);
        assert!(worst <= TOLERANCE, "{model} on {on:?}: MTP of prompt {p} differs by {worst}");
    }
}

#[test]
fn qwen35_moe() {
    check("models/tiny-qwen3_5_moe", "tiny-qwen3_5_moe");
}

#[test]
fn qwen35_moe_gguf() {
    check("models/gguf/tiny-qwen3_5_moe.f32.gguf", "tiny-qwen3_5_moe");
}

#[test]
fn qwen35_dense() {
    check("models/tiny-qwen3_5", "tiny-qwen3_5");
}

#[test]
fn qwen35_dense_gguf() {
    check("models/gguf/tiny-qwen3_5.f32.gguf", "tiny-qwen3_5");
}

#[test]
fn qwen3_moe() {
    check("models/tiny-qwen3_moe", "tiny-qwen3_moe");
}

#[test]
fn qwen3_moe_gguf() {
    check("models/gguf/tiny-qwen3_moe.f32.gguf", "tiny-qwen3_moe");
}

#[test]
fn llama() {
    check("models/tiny-llama", "tiny-llama");
}

#[test]
fn llama_gguf() {
    check("models/gguf/tiny-llama.f32.gguf", "tiny-llama");
}

/// A mix of k-quants, computed with dequantised weights: log-probabilities within 1e-3.
#[test]
fn k_quants_dequantised() {
    for on in exact_backends() {
        let Some(g) = Golden::open("golden/tiny/kmix_dequant_f32.safetensors") else { return };
        let Some(model) = open("models/gguf/tiny-qwen3_5_moe-kmix.gguf", on) else { return };
        let mut run = Run::new(model);
        let vocab = run.model.config().vocab;
        for p in 0..4 {
            let ids = g.ids(&format!("p{p}.ids")).expect("ids");
            let want = g.f32(&format!("p{p}.logprobs")).expect("log-probabilities");
            let greedy = g.ids(&format!("p{p}.greedy_ids")).expect("greedy ids");
            run.clear();
            let logits = run.feed(&ids);
            let mut last = logits[logits.len() - vocab..].to_vec();
            for (i, (&id, want)) in greedy.iter().zip(want.chunks_exact(vocab)).enumerate() {
                let worst = max_abs_diff(&log_softmax(&last), want);
                assert!(worst <= 1e-3, "{on:?}: prompt {p}, step {i} differs by {worst}");
                last = run.feed(&[id]);
            }
        }
    }
}
