//! Architectures that the zoo lacks, against transformers' numbers for tiny models whose weights follow from the names of their
//! tensors: `fixtures/architectures.py` and `further.py` made these. And Kimi Linear's checkpoints, of which the zoo has a GGUF file.

use std::collections::BTreeMap;

use octet_engine::engine;
use octet_engine::models::config::Config;
use octet_testkit::{Golden, max_abs_diff, shared};
use octet_weights::gguf::{self, Writer};
use octet_weights::{GgmlType, Metadata, Model, TensorInfo, Value, hf};
use serde_json::{Map, Value as Json, json};

use crate::common::encoders::{text, values};
use crate::common::{On, Run, exact_backends, limits, load, try_load};

pub const TOLERANCE: f32 = 1e-4;
const VOCAB: usize = 64;
/// Rows of the prompt whose logits are known, each fourth of them.
const ROWS: [usize; 3] = [0, 19, 39];

fn value(json: &Json) -> Value {
    match json {
        Json::Bool(b) => Value::Bool(*b),
        Json::String(text) => Value::Str(text.as_str().into()),
        Json::Array(all) => match all.iter().map(Json::as_i64).collect() {
            Some(ints) => Value::Ints(ints),
            None => Value::Floats(all.iter().map(number).collect()),
        },
        n => n.as_u64().map_or_else(|| Value::F64(n.as_f64().expect("a number")), Value::U64),
    }
}

/// A number; `null` is minus infinity, which JSON lacks.
fn number(json: &Json) -> f64 {
    if json.is_null() { f64::NEG_INFINITY } else { json.as_f64().expect("a number") }
}

/// The GGUF file of a case.
pub fn file(case: &Json) -> Model {
    let mut metadata = Metadata::default();
    metadata.insert("general.architecture", Value::Str(text(&case["arch"]).into()));
    for (key, json) in case["keys"].as_object().expect("keys") {
        metadata.insert(&format!("{}.{key}", text(&case["arch"])), value(json));
    }
    for (key, json) in case["own"].as_object().into_iter().flatten() {
        metadata.insert(key, value(json));
    }
    let tensors = case["tensors"].as_object().expect("tensors").iter().map(|(name, shape)| TensorInfo {
        name: name.clone(),
        ty: GgmlType::F32,
        shape: shape
            .as_array()
            .expect("a shape")
            .iter()
            .map(|d| d.as_u64().expect("a size") as usize)
            .collect(),
    });
    let tensors: Vec<_> = tensors.collect();
    let mut writer = Writer::new(Vec::new(), &metadata, tensors.clone()).expect("a header");
    for t in &tensors {
        let base = if t.name.ends_with("norm.weight") { 1.0 } else { 0.0 };
        let values: Vec<f32> = match case["values"][&t.name].as_array() {
            Some(all) => all.iter().map(|x| x.as_f64().expect("a number") as f32).collect(),
            None => values(&t.name, t.shape.iter().product()).map(|x| base + x / 4.0).collect(),
        };
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        writer.append(&bytes).expect("its bytes");
    }
    gguf::from_bytes(text(&case["name"]), writer.finish().expect("all tensors").into()).expect("a file")
}

/// The tiny models.
pub fn cases() -> Vec<Json> {
    let files = [include_str!("../fixtures/architectures.json"), include_str!("../fixtures/further.json")];
    files.into_iter().flat_map(|text| serde_json::from_str::<Vec<Json>>(text).expect("JSON")).collect()
}

/// The prompt.
pub fn prompt() -> Vec<u32> {
    (0..40).map(|i| (7 * i + 3) % VOCAB as u32).collect()
}

/// How far the logits of the whole prompt are from those of a case.
pub fn difference(case: &Json, whole: &[f32]) -> f32 {
    let got = ROWS.iter().flat_map(|r| whole[r * VOCAB..(r + 1) * VOCAB].iter().step_by(4).copied());
    let want = case["logits"].as_array().expect("rows").iter();
    let want =
        want.flat_map(|row| row.as_array().expect("a row").iter().map(|x| x.as_f64().expect("a number")));
    let (got, want): (Vec<f32>, Vec<f32>) = (got.collect(), want.map(|x| x as f32).collect());
    assert_eq!(got.len(), want.len());
    max_abs_diff(&got, &want)
}

/// Compares all decoders on one backend.
fn check(on: On) {
    let prompt = prompt();
    for case in cases().iter().filter(|c| c["logits"].is_array()) {
        let name = text(&case["name"]);
        let mut run = Run::new(load(&file(case), on, limits()));
        let whole = run.feed(&prompt);
        let worst = difference(case, &whole);
        assert!(worst <= TOLERANCE, "{name} on {on:?} differs by {worst}");
        // The last ones in steps of one token, which a device replays.
        for cuts in [&[1][..], &[17], &[37, 38, 39]] {
            run.clear();
            let ends = cuts.iter().copied().chain([prompt.len()]);
            let mut start = 0;
            let parts = ends.flat_map(|end| run.feed(&prompt[std::mem::replace(&mut start, end)..end]));
            assert!(parts.eq(whole.iter().copied()), "{name} on {on:?}: cut at {cuts:?}, other bits");
        }
    }
}

#[test]
fn agree_with_transformers() {
    exact_backends().into_iter().for_each(check);
}

#[test]
fn agree_with_transformers_on_a_graphics_device() {
    if let Some(index) = octet_testkit::vulkan_device() {
        check(On::ExactVulkan(index));
    }
}

#[test]
fn refuse_what_they_do_not_compute() {
    let cases = cases();
    for (name, key, value, what) in [
        ("step35", "swiglu_clamp_exp", json!([0.0, -1.0, 0.0, 0.0]), "is no list of 4 bounds"),
        ("exaone-moe", "swiglu_clamp_exp", json!([0.0, 7.0, 0.0, 7.0]), "bounded activations of experts"),
        ("olmo", "attention.clamp_kqv", json!(8.0), "clamped queries, keys and values are not supported"),
        ("laguna", "router_logit_softcapping", json!(30.0), "soft-capped router logits are not supported"),
        ("falcon", "attention.max_alibi_bias", json!(8.0), "ALiBi are not supported"),
        ("phimoe", "expert_used_count", json!(3), "is 3; only 2 is supported"),
        ("gemma3n", "altup.active_idx", json!(1), "is 1; only 0 is supported"),
        ("gemma3n", "altup.num_inputs", json!(1), "is 1; expected 2 to 8"),
        ("gemma3n", "activation_sparsity_scale", json!([1.5, 0.5]), "is no array of 5 numbers"),
        (
            "olmo",
            "activation_sparsity_scale",
            json!([null, 0.5, null]),
            "sparse activations are not supported",
        ),
    ] {
        let mut case = cases.iter().find(|c| c["name"] == name).expect(name).clone();
        case["keys"][key] = value;
        let e = try_load(&file(&case), On::Reference, limits()).err().expect(key);
        assert!(e.contains(key) && e.contains(what), "{name}: {e}");
    }
}

/// A case of this name, changed.
fn changed(name: &str, change: impl FnOnce(&mut Json)) -> Json {
    let mut case = cases().into_iter().find(|c| c["name"] == name).expect(name);
    change(&mut case);
    case
}

#[test]
fn read_other_forms_of_the_same_settings() {
    // Another converter's divisors: those of the pairs that turn, and ones.
    let half = changed("step35", |case| {
        let all = case["values"]["rope_freqs.weight"].as_array_mut().expect("divisors");
        let len = all.len();
        *all = all.iter().step_by(2).cloned().collect();
        all.resize(len, json!(1.0));
    });
    // A file has both kinds of epsilon, of which one is 0.
    let epsilon = changed("cohere2moe", |case| {
        case["keys"]["attention.layer_norm_rms_epsilon"] = json!(0.0);
    });
    // Layers 0 and 3 see all.
    let period = changed("cohere2moe", |case| {
        case["keys"]["attention.sliding_window_pattern"] = json!(3);
    });
    // As Ollama's converter writes it: without the cap of logits.
    let cap = changed("gemma3n", |case| {
        case["keys"].as_object_mut().expect("keys").remove("final_logit_softcapping").expect("a cap");
    });
    for (what, case) in [("divisors", half), ("epsilon", epsilon), ("period", period), ("cap", cap)] {
        let mut run = Run::new(try_load(&file(&case), On::Reference, limits()).expect(what));
        let worst = difference(&case, &run.feed(&prompt()));
        assert!(worst <= TOLERANCE, "{what}: {worst}");
    }
}

#[test]
fn learned_positions_bound_the_context() {
    let context = |name: &str, context| {
        let config = Config::read(&file(&changed(name, |_| {}))).expect(name);
        engine::Options { context, ..engine::Options::default() }.for_config(&config).context
    };
    for name in ["gpt2", "starcoder"] {
        assert_eq!([None, Some(0), Some(64), Some(20)].map(|c| context(name, c)), [48, 48, 48, 20].map(Some));
    }
    assert_eq!(context("falcon", Some(1000)), Some(1000));
}

/// Names in a checkpoint of Kimi Linear, and in a GGUF file, of a layer.
const KIMI: &[(&str, &str)] = &[
    ("input_layernorm.weight", "attn_norm.weight"),
    ("post_attention_layernorm.weight", "ffn_norm.weight"),
    ("self_attn.q_proj.weight", "attn_q.weight"),
    ("self_attn.k_proj.weight", "attn_k.weight"),
    ("self_attn.v_proj.weight", "attn_v.weight"),
    ("self_attn.o_proj.weight", "attn_output.weight"),
    ("self_attn.q_conv1d.weight", "ssm_conv1d_q.weight"),
    ("self_attn.k_conv1d.weight", "ssm_conv1d_k.weight"),
    ("self_attn.v_conv1d.weight", "ssm_conv1d_v.weight"),
    ("self_attn.A_log", "ssm_a"),
    ("self_attn.dt_bias", "ssm_dt.bias"),
    ("self_attn.f_a_proj.weight", "ssm_f_a.weight"),
    ("self_attn.f_b_proj.weight", "ssm_f_b.weight"),
    ("self_attn.g_a_proj.weight", "ssm_g_a.weight"),
    ("self_attn.g_b_proj.weight", "ssm_g_b.weight"),
    ("self_attn.b_proj.weight", "ssm_beta.weight"),
    ("self_attn.o_norm.weight", "ssm_norm.weight"),
    ("self_attn.kv_a_proj_with_mqa.weight", "attn_kv_a_mqa.weight"),
    ("self_attn.kv_a_layernorm.weight", "attn_kv_a_norm.weight"),
    ("mlp.gate_proj.weight", "ffn_gate.weight"),
    ("mlp.up_proj.weight", "ffn_up.weight"),
    ("mlp.down_proj.weight", "ffn_down.weight"),
    ("block_sparse_moe.gate.weight", "ffn_gate_inp.weight"),
    ("block_sparse_moe.gate.e_score_correction_bias", "exp_probs_b.bias"),
    ("block_sparse_moe.shared_experts.gate_proj.weight", "ffn_gate_shexp.weight"),
    ("block_sparse_moe.shared_experts.up_proj.weight", "ffn_up_shexp.weight"),
    ("block_sparse_moe.shared_experts.down_proj.weight", "ffn_down_shexp.weight"),
];

/// A tensor's name, shape and values.
pub type Tensor = (String, Vec<usize>, Vec<f32>);

/// The tensors of a checkpoint with the weights of a GGUF file of Kimi Linear.
fn kimi_tensors(file: &Model) -> Vec<Tensor> {
    let read = |name: &str| -> (Vec<usize>, Vec<f32>) {
        let info = file.info(name).expect(name);
        (info.shape.clone(), file.tensor(name, &info.shape).expect(name).to_f32())
    };
    let mut out: Vec<Tensor> = Vec::new();
    for (name, gguf) in
        [("model.embed_tokens", "token_embd"), ("model.norm", "output_norm"), ("lm_head", "output")]
    {
        let (shape, values) = read(&format!("{gguf}.weight"));
        out.push((format!("{name}.weight"), shape, values));
    }
    for i in 0..4 {
        let (ours, theirs) = (|n: &str| format!("blk.{i}.{n}"), |n: &str| format!("model.layers.{i}.{n}"));
        for (hf, gguf) in KIMI.iter().filter(|(_, gguf)| file.info(&ours(gguf)).is_some()) {
            let (mut shape, mut values) = read(&ours(gguf));
            if hf.ends_with("A_log") {
                values.iter_mut().for_each(|a| *a = (-*a).ln());
                shape = vec![1, 1, values.len(), 1];
            } else if hf.ends_with("conv1d.weight") {
                shape = vec![values.len() / 4, 1, 4];
            }
            out.push((theirs(hf), shape, values));
        }
        if file.info(&ours("attn_k_b.weight")).is_some() {
            // Of each head the transposed keys' matrix, then the values'.
            let ((k, keys), (v, of_values)) =
                (read(&ours("attn_k_b.weight")), read(&ours("attn_v_b.weight")));
            let (heads, rank, nope, value) = (k[0], k[1], k[2], v[1]);
            let mut all = Vec::new();
            for h in 0..heads {
                let head = &keys[h * rank * nope..][..rank * nope];
                all.extend((0..nope * rank).map(|j| head[j % rank * nope + j / rank]));
                all.extend(&of_values[h * value * rank..][..value * rank]);
            }
            out.push((theirs("self_attn.kv_b_proj.weight"), vec![heads * (nope + value), rank], all));
        }
        for (w, part) in [("w1", "gate"), ("w3", "up"), ("w2", "down")] {
            let stack = ours(&format!("ffn_{part}_exps.weight"));
            if file.info(&stack).is_none() {
                continue;
            }
            let (shape, values) = read(&stack);
            for (e, one) in values.chunks_exact(shape[1] * shape[2]).enumerate() {
                let name = theirs(&format!("block_sparse_moe.experts.{e}.{w}.weight"));
                out.push((name, shape[1..].to_vec(), one.to_vec()));
            }
        }
    }
    out
}

fn kimi_config() -> Json {
    json!({
        "model_type": "kimi_linear", "vocab_size": 432, "hidden_size": 64, "num_hidden_layers": 4, "intermediate_size": 96,
        "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16, "kv_lora_rank": 32, "q_lora_rank": null,
        "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32, "mla_use_nope": true, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "rope_scaling": null, "model_max_length": 1024, "tie_word_embeddings": false,
        "hidden_act": "silu", "first_k_dense_replace": 1, "moe_layer_freq": 1, "moe_intermediate_size": 16,
        "num_experts": 6, "num_experts_per_token": 2, "num_shared_experts": 1, "moe_renormalize": true,
        "moe_router_activation_func": "sigmoid", "num_expert_group": 1, "topk_group": 1, "routed_scaling_factor": 2.446,
        "use_grouped_topk": true, "num_nextn_predict_layers": 0,
        "linear_attn_config": {"kda_layers": [1, 2, 3], "full_attn_layers": [4], "head_dim": 16, "num_heads": 4,
            "short_conv_kernel_size": 4},
    })
}

/// A checkpoint with these tensors.
pub fn checkpoint(tensors: &[Tensor], config: &Json) -> Result<Model, String> {
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, shape, values) in tensors {
        let start = data.len();
        values.iter().for_each(|x| data.extend(x.to_le_bytes()));
        let entry = json!({"dtype": "F32", "shape": shape, "data_offsets": [start, data.len()]});
        header.insert(name.clone(), entry);
    }
    let header = Json::Object(header).to_string();
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
    let files = [("config.json", config.to_string().into_bytes()), ("model.safetensors", file)];
    let files: BTreeMap<_, _> = files.into_iter().map(|(n, bytes)| (n.to_string(), bytes.into())).collect();
    hf::from_files("tiny", files).map_err(|e| e.to_string())
}

#[test]
fn checkpoints_of_kimi_linear() {
    let Some(path) = shared("zoo/gguf/kimi_linear.gguf") else { return };
    let tensors = kimi_tensors(&Model::open(&path).expect("a file"));
    let file = checkpoint(&tensors, &kimi_config()).expect("a checkpoint");
    let golden = Golden::open("zoo/golden/kimi_linear.golden.safetensors").expect("its golden");
    let ids = golden.ids("p0.ids").expect("a prompt");
    let want = golden.f32("p0.logits").expect("its logits");
    let got = Run::new(load(&file, On::Reference, limits())).feed(&ids);
    let worst = max_abs_diff(&got[..want.len()], &want);
    assert!(worst <= 3e-4, "differs by {worst}");
    for (field, value, what) in [
        ("mla_use_nope", json!(false), "only attention without rotation"),
        ("moe_router_activation_func", json!("relu"), "expected sigmoid or softmax"),
        ("linear_attn_config", json!({"kda_layers": [1, 2], "full_attn_layers": [4]}), "what layer 3 is"),
        ("linear_attn_config", json!({"kda_layers": [0]}), "numbers from 1 to 4"),
        (
            "linear_attn_config",
            json!({"kda_layers": [1, 2, 3], "full_attn_layers": [4], "num_heads": 2}),
            "is 2; only",
        ),
    ] {
        let mut config = kimi_config();
        config[field] = value;
        let e = checkpoint(&tensors, &config).err().expect("a refusal");
        assert!(e.contains(what), "{field}: {e}");
    }
}
