//! Experts whose weights are not divided by their sum (Qwen1.5-MoE, OLMoE), against numbers of transformers 5.23.0, which
//! `moe_golden.py` made from the same weights.

use std::collections::BTreeMap;

use crate::common::encoders::values;
use crate::common::{Run, exact_backends, limits, load};
use octet_weights::{Model, hf};
use serde_json::{Value, json};

/// What `moe_golden.py` printed: rows of the prompt, and each twelfth of their logits.
type Want = [(usize, [f32; 8]); 3];

const QWEN2_MOE: Want = [
    (0, [0.32195, 0.94602, -1.37231, 0.17677, 2.58843, -1.52006, 1.40719, -0.70867]),
    (20, [0.30472, -0.17822, 2.17899, -1.48544, 0.99689, -2.00188, 1.37663, 0.48556]),
    (39, [-0.79755, 2.05842, -0.02473, -1.68431, -0.5331, -1.30833, -0.63542, -0.16226]),
];
const OLMOE: Want = [
    (0, [-0.44848, -0.51303, -0.10338, -1.19201, 0.87633, -0.37653, -0.10567, 0.98215]),
    (20, [-0.38976, 2.39887, 0.77779, -0.91011, -1.98748, -1.16348, -1.14529, 1.75013]),
    (39, [-2.37488, 2.36681, 1.62754, 0.34565, -0.56206, 1.32667, -2.2354, 1.90564]),
];

const VOCAB: usize = 96;
const HIDDEN: usize = 64;
const EXPERTS: usize = 8;

/// A checkpoint with these tensors, filled as `moe_golden.py` fills them.
fn checkpoint(mut config: Value, tensors: &[(String, Vec<usize>)]) -> Model {
    let common = json!({
        "vocab_size": VOCAB, "hidden_size": HIDDEN, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_experts": EXPERTS, "num_experts_per_tok": 3, "norm_topk_prob": false, "max_position_embeddings": 256,
        "tie_word_embeddings": false, "rope_theta": 10000.0,
    });
    let (Value::Object(config), Value::Object(common)) = (&mut config, common) else { panic!("two objects") };
    config.extend(common);
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, shape) in tensors {
        let start = data.len();
        let fill = |x: f32| match shape.len() {
            _ if name.contains("norm") => 1.0 + 0.25 * x,
            1 => 0.5 * x,
            _ => 0.25 * x,
        };
        values(name, shape.iter().product()).for_each(|x| data.extend(fill(x).to_le_bytes()));
        let entry = json!({"dtype": "F32", "shape": shape, "data_offsets": [start, data.len()]});
        header.insert(name.clone(), entry);
    }
    let header = Value::Object(header).to_string();
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
    let config = serde_json::to_vec(config).expect("an object");
    let files = [("config.json", config), ("model.safetensors", file)];
    let files: BTreeMap<_, _> = files.into_iter().map(|(n, bytes)| (n.to_string(), bytes.into())).collect();
    hf::from_files("tiny", files).expect("a checkpoint")
}

/// Names and shapes of what both have; `kv` rows of keys and values, `inner` rows of an expert.
fn tensors(kv: usize, inner: usize) -> Vec<(String, Vec<usize>)> {
    let mut all = vec![
        ("model.embed_tokens.weight".to_string(), vec![VOCAB, HIDDEN]),
        ("model.norm.weight".into(), vec![HIDDEN]),
        ("lm_head.weight".into(), vec![VOCAB, HIDDEN]),
    ];
    for i in 0..2 {
        let mut put =
            |name: &str, shape: &[usize]| all.push((format!("model.layers.{i}.{name}"), shape.to_vec()));
        put("input_layernorm.weight", &[HIDDEN]);
        put("post_attention_layernorm.weight", &[HIDDEN]);
        for (name, rows) in [("q", HIDDEN), ("k", kv), ("v", kv), ("o", HIDDEN)] {
            put(&format!("self_attn.{name}_proj.weight"), &[rows, HIDDEN]);
        }
        put("mlp.gate.weight", &[EXPERTS, HIDDEN]);
        for e in 0..EXPERTS {
            put(&format!("mlp.experts.{e}.gate_proj.weight"), &[inner, HIDDEN]);
            put(&format!("mlp.experts.{e}.up_proj.weight"), &[inner, HIDDEN]);
            put(&format!("mlp.experts.{e}.down_proj.weight"), &[HIDDEN, inner]);
        }
    }
    all
}

fn check(file: &Model, want: &Want) {
    let prompt: Vec<u32> = (0..40).map(|i| (7 * i + 3) % VOCAB as u32).collect();
    for on in exact_backends() {
        let logits = Run::new(load(file, on, limits())).feed(&prompt);
        for (row, want) in want {
            let got = logits[row * VOCAB..].iter().step_by(12);
            for (got, want) in got.zip(want) {
                assert!((got - want).abs() < 2e-4, "{on:?}, row {row}: {got} {want}");
            }
        }
    }
}

#[test]
fn qwen2_moe_agrees_with_transformers() {
    let config = json!({
        "model_type": "qwen2_moe", "num_key_value_heads": 2, "intermediate_size": 96, "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 96, "rms_norm_eps": 1e-6,
    });
    let mut all = tensors(HIDDEN / 2, 64);
    for i in 0..2 {
        let mut put =
            |name: &str, shape: &[usize]| all.push((format!("model.layers.{i}.{name}"), shape.to_vec()));
        for (name, rows) in [("q", HIDDEN), ("k", HIDDEN / 2), ("v", HIDDEN / 2)] {
            put(&format!("self_attn.{name}_proj.bias"), &[rows]);
        }
        put("mlp.shared_expert_gate.weight", &[1, HIDDEN]);
        put("mlp.shared_expert.gate_proj.weight", &[96, HIDDEN]);
        put("mlp.shared_expert.up_proj.weight", &[96, HIDDEN]);
        put("mlp.shared_expert.down_proj.weight", &[HIDDEN, 96]);
    }
    check(&checkpoint(config, &all), &QWEN2_MOE);
}

#[test]
fn olmoe_agrees_with_transformers() {
    let config = json!({
        "model_type": "olmoe", "num_key_value_heads": 4, "intermediate_size": 64, "rms_norm_eps": 1e-5,
        "clip_qkv": null,
    });
    let mut all = tensors(HIDDEN, 64);
    for i in 0..2 {
        for name in ["q", "k"] {
            all.push((format!("model.layers.{i}.self_attn.{name}_norm.weight"), vec![HIDDEN]));
        }
    }
    check(&checkpoint(config, &all), &OLMOE);
}
