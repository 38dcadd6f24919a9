//! Files that Octet makes, in llama.cpp: they load there and give the same probabilities. Needs the network for its Python package.

#[allow(dead_code)]
#[path = "../../../server/serve/tests/common/python.rs"]
mod python;

use std::process::Command;

use crate::common::{Place, str};
use serde_json::Value;

/// llama.cpp in a wheel.
const PACKAGES: [&str; 1] = ["xllamacpp==2026.10.11549"];

/// Greedy text and log-probabilities of the first tokens after a prompt.
const SCRIPT: &str = r#"
import json, sys, xllamacpp as x
p = x.CommonParams()
p.model.path = sys.argv[1]
p.n_ctx = 256
p.n_parallel = 1
p.cpuparams.n_threads = 1
p.cpuparams_batch.n_threads = 1
p.warmup = False
s = x.Server(p)
r = s.handle_completions({"prompt": json.loads(sys.argv[2]), "max_tokens": 1, "temperature": 0.0, "logprobs": 8, "n_probs": 8})
print("RESULT " + json.dumps(r if isinstance(r, dict) else json.loads(r)))
"#;

/// The most probable tokens after `prompt` and their log-probabilities, as llama.cpp computes them.
fn theirs(python: &std::path::Path, model: &str, prompt: &[u32]) -> Vec<(u32, f64)> {
    let prompt = serde_json::to_string(prompt).unwrap();
    let output = Command::new(python).args(["-c", SCRIPT, model, &prompt]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find_map(|l| l.strip_prefix("RESULT "));
    let line = line.unwrap_or_else(|| panic!("{text}\n{}", String::from_utf8_lossy(&output.stderr)));
    let all: Value = serde_json::from_str(line).unwrap();
    let top = &all["choices"][0]["logprobs"]["content"][0]["top_logprobs"];
    let top = top.as_array().unwrap_or_else(|| panic!("{all}"));
    top.iter().map(|t| (t["id"].as_u64().unwrap() as u32, t["logprob"].as_f64().unwrap())).collect()
}

/// The same by Octet's engine, exactly.
fn ours(model: &str, prompt: &[u32]) -> Vec<f64> {
    use octet_engine::engine::Options;
    use octet_engine::score::{Scorer, negative_log_likelihood};
    let file = octet_weights::Model::open(model).unwrap();
    let mut options = Options { score_tokens: prompt.len(), ..Options::default() };
    options.cpu.exact = true;
    options.cpu.threads = Some(1);
    let mut scorer = Scorer::open(&file, &options, &mut |_, _| {}).unwrap();
    scorer.begin();
    let vocab = scorer.vocab();
    let logits = scorer.read(prompt).unwrap();
    let last = &logits[logits.len() - vocab..];
    (0..vocab as u32).map(|id| -negative_log_likelihood(last, id)).collect()
}

#[test]
fn files_give_the_same_probabilities_in_llama_cpp() {
    let Some(python) = python::python("xllamacpp", &PACKAGES) else { return };
    let prompt = [17, 80, 45, 3, 101, 64, 9, 33];
    for (name, types) in [
        ("tiny-llama", &["f32", "q8_0", "q4_k_m", "iq4_nl"][..]),
        ("tiny-qwen3_moe", &["bf16", "q5_0", "mxfp4_moe"]),
        ("tiny-qwen3_5_moe", &["f32", "q4_1"]),
    ] {
        let Some(path) = octet_testkit::shared(&format!("models/{name}")) else { return };
        let place = Place::new();
        for ty in types {
            place.octet(&["quantize", str(&path), "-o", "out.gguf", "--type", ty, "--force"]).ok();
            let file = place.path("out.gguf");
            let (theirs, ours) = (theirs(&python, str(&file), &prompt), ours(str(&file), &prompt));
            assert!(theirs.len() >= 5, "{name} {ty}: {theirs:?}");
            // With quantised weights llama.cpp's activations have 8 bits, which tiny models of random weights feel.
            let most = if matches!(*ty, "f32" | "bf16") { 0.03 } else { 0.25 };
            for (id, logprob) in theirs {
                let off = (ours[id as usize] - logprob).abs();
                assert!(off < most, "{name} {ty}: token {id}: {logprob} there, {} here", ours[id as usize]);
            }
        }
    }
}

/// Every encoder's blocks, decoded by ggml's own Python code.
#[test]
fn blocks_are_decoded_alike() {
    let Some(python) = python::python("gguf", &["gguf==0.19.0"]) else { return };
    let script = r#"
import sys, numpy as np
from gguf.quants import dequantize
from gguf.constants import GGMLQuantizationType as T
blocks = np.fromfile(sys.argv[2], np.uint8)[None]
dequantize(blocks, T[sys.argv[1]]).astype("<f4").tofile(sys.argv[3])
"#;
    let place = Place::new();
    let x: Vec<f32> = (0..2048).map(|i| ((i * 7919 % 1009) as f32 / 504.5 - 1.0).powi(3) * 0.1).collect();
    // gguf-py has no Q1_0 and Q2_0.
    let newer = ["Q1_0", "Q2_0"];
    for &ty in octet_quantize::TYPES.iter().filter(|t| t.block_len() > 1 && !newer.contains(&t.name())) {
        let mut blocks = vec![0; x.len() / ty.block_len() * ty.block_bytes()];
        octet_quantize::quantize(ty, &x, x.len(), None, &mut blocks);
        let mut ours = vec![0.0; x.len()];
        ty.dequantize(&blocks, &mut ours);
        let (input, output) = (place.path("blocks"), place.path("values"));
        std::fs::write(&input, blocks).unwrap();
        python::run(Command::new(&python).args(["-c", script, ty.name()]).args([&input, &output]));
        let theirs = std::fs::read(output).unwrap();
        let theirs: Vec<f32> = theirs.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        let largest = ours.iter().zip(&theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(ours.len() == theirs.len() && largest < 1e-6, "{ty}: {largest}");
    }
}
