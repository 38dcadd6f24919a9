//! Checkpoints of families that the zoo lacks, with the weights of GGUF files whose logits are known, see `architectures.rs`.

use octet_weights::Model;
use serde_json::{Value as Json, json};

use crate::architectures::{TOLERANCE, Tensor, cases, checkpoint, difference, file, prompt};
use crate::common::encoders::text;
use crate::common::{On, Run, limits, load, try_load};

pub type Names = &'static [(&'static str, &'static str)];

/// Tensors outside of layers, and of a layer, in GGUF files and in checkpoints.
const NAMES: Names = &[
    ("token_embd", "embed_tokens"),
    ("output_norm", "norm"),
    ("attn_norm", "input_layernorm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("post_attention_norm", "post_attention_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_gate", "self_attn.g_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
    ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
    ("ffn_gate_exps", "mlp.experts.#.gate_proj"),
    ("ffn_up_exps", "mlp.experts.#.up_proj"),
    ("ffn_down_exps", "mlp.experts.#.down_proj"),
    ("ffn_gate_inp", "mlp.gate"),
    ("exp_probs_b", "mlp.e_score_correction_bias"),
];

/// The case of an architecture.
pub fn case(architecture: &str) -> Json {
    cases().into_iter().find(|c| text(&c["name"]) == architecture).expect("a case")
}

/// The tensors of a checkpoint; `own` are the names of its family that differ.
pub fn tensors(file: &Model, own: Names) -> Vec<Tensor> {
    let mut out: Vec<Tensor> = Vec::new();
    for t in file.tensors().iter().filter(|t| !t.name.starts_with("rope_f")) {
        let values = file.tensor(&t.name, &t.shape).expect("a tensor").to_f32();
        // Some names have no ending.
        let whole = match t.name.rsplit_once('.') {
            Some((_, "weight" | "bias")) => t.name.clone(),
            _ => format!("{}.weight", t.name),
        };
        let (stem, end) = whole.rsplit_once('.').expect("an ending");
        let (layer, stem) = match stem.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
            Some((i, stem)) => (format!("layers.{i}."), stem),
            None => (String::new(), stem),
        };
        if stem == "output" {
            out.push((format!("lm_head.{end}"), t.shape.clone(), values.to_vec()));
            continue;
        }
        let name = own.iter().chain(NAMES).find(|(gguf, _)| *gguf == stem).expect("a name").1;
        let name = format!("model.{layer}{name}");
        match &t.shape[..] {
            [_, rows, cols] if name.contains('#') => {
                for (e, one) in values.chunks_exact(rows * cols).enumerate() {
                    let name = format!("{}.{end}", name.replace('#', &e.to_string()));
                    out.push((name, vec![*rows, *cols], one.to_vec()));
                }
            }
            shape if ["_bias", "_scale", "A_log", ".D"].iter().any(|end| name.ends_with(end)) => {
                out.push((name, shape.to_vec(), values.to_vec()))
            }
            shape => out.push((format!("{name}.{end}"), shape.to_vec(), values.to_vec())),
        }
    }
    out
}

/// What the configurations have in common, with a family's fields.
pub fn config(own: Json) -> Json {
    let mut config = json!({
        "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": false,
    });
    own.as_object().expect("fields").iter().for_each(|(field, value)| config[field] = value.clone());
    config
}

/// Fails unless a checkpoint, and the GGUF file that is made of it, have the logits of a case.
pub fn compare(case: &Json, tensors: &[Tensor], config: &Json) {
    let file = || checkpoint(tensors, config).expect("a checkpoint");
    let options = octet_quantize::Options::default();
    let made = octet_quantize::make(file(), options, &mut |_, _| {}).expect("a GGUF file");
    for (file, what) in [(file(), "checkpoint"), (made, "file that is made of it")] {
        let whole = Run::new(load(&file, On::Reference, limits())).feed(&prompt());
        let worst = difference(case, &whole);
        assert!(worst <= TOLERANCE, "{}, {what}: differs by {worst}", config["model_type"]);
    }
}

#[test]
fn of_phimoe() {
    let case = case("phimoe");
    let own: Names = &[
        ("ffn_gate_inp", "block_sparse_moe.gate"),
        ("ffn_gate_exps", "block_sparse_moe.experts.#.w1"),
        ("ffn_up_exps", "block_sparse_moe.experts.#.w3"),
        ("ffn_down_exps", "block_sparse_moe.experts.#.w2"),
    ];
    let tensors = tensors(&file(&case), own);
    let factors = &case["values"]["rope_factors_long.weight"];
    // As published: the older name of the kind.
    let mut config = config(json!({
        "model_type": "phimoe", "head_dim": 8, "intermediate_size": 16, "num_local_experts": 6, "num_experts_per_tok": 2, "router_jitter_noise": 0.01,
        "attention_bias": true, "lm_head_bias": true, "max_position_embeddings": 131072, "sliding_window": 131072,
        "rope_scaling": {"type": "longrope", "long_factor": factors, "short_factor": factors, "long_mscale": 1.243163121016122,
            "short_mscale": 1.243163121016122, "original_max_position_embeddings": 4096},
    }));
    compare(&case, &tensors, &config);
    config["num_experts_per_tok"] = json!(1);
    let file = checkpoint(&tensors, &config).expect("a checkpoint");
    let e = try_load(&file, On::Reference, limits()).err().expect("a refusal");
    assert!(e.contains("'num_experts_per_tok' (expert_used_count) is 1; only 2"), "{e}");
}

#[test]
fn of_apertus() {
    let case = case("apertus");
    let own: Names = &[("attn_norm", "attention_layernorm"), ("ffn_norm", "feedforward_layernorm")];
    let mut tensors = tensors(&file(&case), own);
    for i in 0..3 {
        for name in ["alpha_p", "alpha_n", "beta", "eps"] {
            let value = case["own"][format!("xielu.{name}")][i].as_f64().expect("a number") as f32;
            // What is not learned has no dimension.
            let shape = if name.starts_with("alpha") { vec![1] } else { vec![] };
            tensors.push((format!("model.layers.{i}.mlp.act_fn.{name}"), shape, vec![value]));
        }
    }
    let config = config(json!({"model_type": "apertus", "hidden_act": "xielu"}));
    compare(&case, &tensors, &config);
    let refused = |tensors: &[Tensor]| {
        let file = checkpoint(tensors, &config).expect("a checkpoint");
        try_load(&file, On::Reference, limits()).err().expect("a refusal")
    };
    tensors.iter_mut().filter(|t| t.0.ends_with("1.mlp.act_fn.beta")).for_each(|t| t.2[0] = 0.25);
    assert!(refused(&tensors).contains("xielu.beta' is 0.25 in layer 1; only 0.5"), "{}", refused(&tensors));
    tensors.retain(|t| !t.0.ends_with("1.mlp.act_fn.beta"));
    assert!(refused(&tensors).contains("xielu.beta' has no number for layer 1"), "{}", refused(&tensors));
}

#[test]
fn of_exaone_moe() {
    let case = case("exaone-moe");
    let kinds = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"];
    let config = config(json!({
        "model_type": "exaone_moe", "num_hidden_layers": 4, "sliding_window": 8, "layer_types": kinds, "first_k_dense_replace": 1,
        "moe_intermediate_size": 16, "num_experts": 6, "num_experts_per_tok": 2, "num_shared_experts": 1, "norm_topk_prob": true,
        "routed_scaling_factor": 2.5, "n_group": 1, "topk_group": 1, "scoring_func": "sigmoid",
    }));
    compare(&case, &tensors(&file(&case), &[]), &config);
}

#[test]
fn of_jais2() {
    let case = case("jais2");
    let mut config = config(json!({
        "model_type": "jais2", "hidden_act": "relu2", "layer_norm_eps": 1e-5, "attention_bias": true, "mlp_bias": true,
    }));
    config.as_object_mut().expect("fields").remove("rms_norm_eps");
    compare(&case, &tensors(&file(&case), &[]), &config);
}

#[test]
fn of_gemma3n() {
    let case = case("gemma3n");
    let own: Names = &[
        ("per_layer_token_embd", "embed_tokens_per_layer"),
        ("per_layer_model_proj", "per_layer_model_projection"),
        ("per_layer_proj_norm", "per_layer_projection_norm"),
        ("altup_proj", "altup_projections.#"),
        ("altup_unembd_proj", "altup_unembed_projections.#"),
        ("ffn_norm", "pre_feedforward_layernorm"),
        ("altup_router", "altup.modality_router"),
        ("altup_router_norm", "altup.router_norm"),
        ("altup_predict_coef", "altup.prediction_coefs"),
        ("altup_correct_coef", "altup.correction_coefs"),
        ("altup_correct_scale", "altup.correct_output_scale"),
        ("laurel_l", "laurel.linear_left"),
        ("laurel_r", "laurel.linear_right"),
        ("laurel_post_norm", "laurel.post_laurel_norm"),
        ("inp_gate", "per_layer_input_gate"),
        ("proj", "per_layer_projection"),
        ("post_norm", "post_per_layer_input_norm"),
    ];
    // As published: below another model, with towers, and with keys and values that the last layers do not use.
    let mut tensors = tensors(&file(&case), own);
    tensors.iter_mut().for_each(|t| t.0 = t.0.replace("model.", "model.language_model."));
    let mut unused =
        |name: &str| tensors.push((format!("model.{name}.weight"), vec![32, 32], vec![0.5; 1024]));
    for name in [
        "vision_tower.timm_model.conv_stem.conv",
        "embed_vision.embedding",
        "audio_tower.conformer.0.norm",
        "language_model.layers.3.self_attn.k_proj",
        "language_model.layers.3.self_attn.v_proj",
    ] {
        unused(name);
    }
    let kinds =
        ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"];
    let text = config(json!({
        "model_type": "gemma3n_text", "num_hidden_layers": 5, "intermediate_size": [48, 48, 48, 64, 64], "layer_types": kinds, "sliding_window": 8,
        "num_kv_shared_layers": 2, "rope_theta": 500.0, "rope_local_base_freq": 100.0, "rope_scaling": null, "final_logit_softcapping": 30.0,
        "hidden_activation": "gelu_pytorch_tanh", "vocab_size_per_layer_input": 60, "hidden_size_per_layer_input": 8, "laurel_rank": 4,
        "altup_num_inputs": 4, "altup_active_idx": 0, "altup_correct_scale": true, "altup_coef_clip": 120.0, "query_pre_attn_scalar": 256, "tie_word_embeddings": true,
        "activation_sparsity_pattern": [0.9, 0.75, 0.0, 0.0, 0.0],
    }));
    let config = json!({"model_type": "gemma3n", "text_config": text, "vision_config": {"model_type": "gemma3n_vision"}});
    compare(&case, &tensors, &config);
    for (field, value, what) in [
        ("altup_correct_scale", json!(false), "is false; only true"),
        ("activation_sparsity_pattern", json!([0.9, 0.0]), "has 2 entries for 5 layers"),
        (
            "activation_sparsity_pattern",
            json!([0.9, 1.0, 0.0, 0.0, 0.0]),
            "numbers of at least 0 and below 1",
        ),
        ("intermediate_size", json!([48, -1]), "is not an array of whole numbers"),
    ] {
        let mut config = config.clone();
        config["text_config"][field] = value;
        let e = checkpoint(&tensors, &config).err().expect("a refusal");
        assert!(e.contains(field) && e.contains(what), "{field}: {e}");
    }
    // What no layer uses is refused.
    tensors.push(("model.language_model.layers.0.altup.other.weight".into(), vec![4], vec![0.0; 4]));
    let e = try_load(&checkpoint(&tensors, &config).expect("a checkpoint"), On::Reference, limits());
    let e = e.err().expect("a refusal");
    assert!(e.contains("altup.other") && e.contains("alternating updates"), "{e}");
}

/// Rows of queries and keys with rotated pairs half a head apart, as checkpoints have them, where GGUF files have pairs of neighbours.
pub fn in_halves(tensors: &mut [Tensor], head_dim: usize) {
    let half = head_dim / 2;
    for (name, shape, values) in tensors {
        if name.contains(".q_proj.") || name.contains(".k_proj.") {
            let (cols, old) = (shape[1], values.clone());
            for (r, row) in values.chunks_exact_mut(cols).enumerate() {
                let (head, i) = (r / head_dim * head_dim, r % head_dim);
                row.copy_from_slice(&old[(head + i % half * 2 + i / half) * cols..][..cols]);
            }
        }
    }
}

/// Norms that are stored around zero.
pub fn around_zero(tensors: &mut [Tensor]) {
    let norms = tensors.iter_mut().filter(|t| t.0.ends_with("norm.weight"));
    norms.for_each(|t| t.2.iter_mut().for_each(|x| *x -= 1.0));
}

/// The three projections of a fused one, of 4 query heads and 2 key/value heads.
fn apart(tensors: Vec<Tensor>, head_dim: usize) -> Vec<Tensor> {
    let (q, kv) = (4 * head_dim, 2 * head_dim);
    let parts = |(name, shape, values): Tensor| {
        let width = if shape.len() == 2 { shape[1] } else { 1 };
        let part = |n: &str, from: usize, rows: usize| {
            let shape = [&[rows][..], &shape[1..]].concat();
            (name.replace("qkv", n), shape, values[from * width..][..rows * width].to_vec())
        };
        match name.contains(".qkv_proj.") {
            true => vec![part("q", 0, q), part("k", q, kv), part("v", q + kv, kv)],
            false => vec![(name, shape, values)],
        }
    };
    tensors.into_iter().flat_map(parts).collect()
}

#[test]
fn of_llamas_relatives() {
    let of = |name: &str, own: Names| (case(name), tensors(&file(&case(name)), own));
    let without_rms = |own: Json| {
        let mut config = config(own);
        config.as_object_mut().expect("fields").remove("rms_norm_eps");
        config
    };
    let (gemma, mut tensors) = of("gemma", &[]);
    around_zero(&mut tensors);
    let own = json!({"model_type": "gemma", "hidden_act": "gelu", "hidden_activation": null, "tie_word_embeddings": true});
    compare(&gemma, &tensors, &config(own));
    let (nemotron, mut tensors) = of("nemotron", &[]);
    around_zero(&mut tensors);
    let own = json!({"model_type": "nemotron", "hidden_act": "relu2", "norm_eps": 1e-5, "partial_rotary_factor": 0.5});
    compare(&nemotron, &tensors, &without_rms(own));
    let (arcee, mut tensors) = of("arcee", &[]);
    in_halves(&mut tensors, 16);
    compare(&arcee, &tensors, &config(json!({"model_type": "arcee", "hidden_act": "relu2"})));
    let (minicpm, mut tensors) = of("minicpm", &[]);
    in_halves(&mut tensors, 16);
    let own = json!({"model_type": "minicpm", "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256});
    compare(&minicpm, &tensors, &config(own));
    let (olmo, mut tensors) = of("olmo", &[]);
    in_halves(&mut tensors, 8);
    compare(&olmo, &tensors, &without_rms(json!({"model_type": "olmo", "head_dim": null, "clip_qkv": null})));
    let (glm, tensors) = of("chatglm", &[("attn_qkv", "self_attn.qkv_proj"), ("ffn_up", "mlp.gate_up_proj")]);
    let own = json!({"model_type": "glm", "partial_rotary_factor": 0.5, "attention_bias": true});
    compare(&glm, &apart(tensors, 16), &config(own));
    let own: Names = &[
        ("output_norm", "final_layernorm"),
        ("attn_qkv", "self_attn.qkv_proj"),
        ("attn_output", "self_attn.dense"),
        ("ffn_up", "mlp.fc1"),
        ("ffn_down", "mlp.fc2"),
    ];
    let (phi, tensors) = of("phi2", own);
    let own = json!({
        "model_type": "phi", "head_dim": null, "layer_norm_eps": 1e-5, "partial_rotary_factor": 0.5, "hidden_act": "gelu_new",
    });
    compare(&phi, &apart(tensors, 8), &without_rms(own));
    let (stablelm, tensors) = of("stablelm", &[]);
    let own = json!({
        "model_type": "stablelm", "head_dim": null, "layer_norm_eps": 1e-5, "partial_rotary_factor": 0.5, "use_qkv_bias": true,
        "use_parallel_residual": false, "qk_layernorm": false,
    });
    compare(&stablelm, &tensors, &without_rms(own));
}

/// Names of GPT-2 and its relatives.
pub fn of_transformer(tensors: &mut [Tensor]) {
    let name = |name: &str| name.replace("model.layers.", "transformer.h.").replace("model.", "transformer.");
    tensors.iter_mut().for_each(|t| t.0 = name(&t.0));
}

#[test]
fn of_exaone() {
    let case = case("exaone");
    let own: Names = &[
        ("token_embd", "wte"),
        ("output_norm", "ln_f"),
        ("attn_norm", "ln_1"),
        ("ffn_norm", "ln_2"),
        ("attn_q", "attn.attention.q_proj"),
        ("attn_k", "attn.attention.k_proj"),
        ("attn_v", "attn.attention.v_proj"),
        ("attn_output", "attn.attention.out_proj"),
        ("ffn_gate", "mlp.c_fc_0"),
        ("ffn_up", "mlp.c_fc_1"),
        ("ffn_down", "mlp.c_proj"),
    ];
    let mut tensors = tensors(&file(&case), own);
    of_transformer(&mut tensors);
    let config = config(json!({
        "model_type": "exaone", "num_hidden_layers": null, "num_layers": 3, "rms_norm_eps": null, "layer_norm_epsilon": 1e-5,
        "activation_function": "silu",
    }));
    compare(&case, &tensors, &config);
}

#[test]
fn of_gpt2() {
    let case = case("gpt2");
    let own: Names = &[
        ("token_embd", "wte"),
        ("position_embd", "wpe"),
        ("output_norm", "ln_f"),
        ("attn_norm", "ln_1"),
        ("ffn_norm", "ln_2"),
        ("attn_qkv", "attn.c_attn"),
        ("attn_output", "attn.c_proj"),
        ("ffn_up", "mlp.c_fc"),
        ("ffn_down", "mlp.c_proj"),
    ];
    let mut tensors = tensors(&file(&case), own);
    of_transformer(&mut tensors);
    for (name, shape, values) in &mut tensors {
        if name.contains(".c_") && name.ends_with(".weight") {
            let (rows, cols) = (shape[0], shape[1]);
            *values = (0..rows * cols).map(|i| values[i % rows * cols + i / rows]).collect();
            shape.reverse();
        }
    }
    // Masks of older files.
    tensors.push(("transformer.h.0.attn.bias".into(), vec![1, 1, 4, 4], vec![1.0; 16]));
    let config = json!({
        "model_type": "gpt2", "vocab_size": 64, "n_embd": 32, "n_inner": 48, "n_layer": 3, "n_head": 4, "n_positions": 48, "layer_norm_epsilon": 1e-5,
        "activation_function": "gelu_new", "tie_word_embeddings": false,
    });
    compare(&case, &tensors, &config);
}

#[test]
fn of_laguna() {
    let own: Names = &[
        ("exp_probs_b", "mlp.experts.e_score_correction_bias"),
        ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
        ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
        ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
    ];
    for small in [true, false] {
        let kind = if small { "sliding_attention" } else { "full_attention" };
        let mut yarn = json!({
            "rope_type": "yarn", "rope_theta": 500.0, "partial_rotary_factor": if small { 0.5 } else { 1.0 }, "factor": 4.0, "beta_fast": 8.0,
            "beta_slow": 1.0, "original_max_position_embeddings": 32,
        });
        if small {
            yarn["attention_factor"] = json!(1.05);
        }
        let sliding = json!({"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 1.0});
        let wide = if small { 6 } else { 4 };
        let mut config = config(json!({
            "model_type": "laguna", "num_hidden_layers": 4, "sliding_window": 8, "gating": if small { json!(true) } else { json!("per-element") },
            "layer_types": ["full_attention", kind, kind, kind], "num_attention_heads_per_layer": [4, wide, wide, wide],
            "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"], "moe_intermediate_size": 16, "shared_expert_intermediate_size": 32,
            "num_experts": 6, "num_experts_per_tok": 2, "moe_routed_scaling_factor": 2.5, "moe_router_logit_softcapping": 0.0,
            "rope_parameters": {"full_attention": yarn, "sliding_attention": sliding},
        }));
        let case = case(if small { "laguna" } else { "laguna, M" });
        let tensors = tensors(&file(&case), own);
        compare(&case, &tensors, &config);
        config["mlp_layer_types"] = json!(["dense", "sparse", "dense", "sparse"]);
        let e = checkpoint(&tensors, &config).err().expect("a refusal");
        assert!(e.contains("mlp_layer_types") && e.contains("'sparse' up to layer 4"), "{e}");
    }
}

#[test]
fn of_afmoe() {
    let case = case("afmoe");
    let own: Names = &[
        ("attn_gate", "self_attn.gate_proj"),
        ("ffn_norm", "pre_mlp_layernorm"),
        ("post_ffw_norm", "post_mlp_layernorm"),
        ("ffn_gate_inp", "mlp.router.gate"),
        ("exp_probs_b", "mlp.expert_bias"),
    ];
    let tensors = tensors(&file(&case), own);
    let mut config = config(json!({
        "model_type": "afmoe", "num_hidden_layers": 5, "num_dense_layers": 1, "moe_intermediate_size": 16, "num_experts": 6,
        "num_experts_per_tok": 2, "num_shared_experts": 1, "route_scale": 2.826, "route_norm": true, "score_func": "sigmoid", "n_group": 1,
        "topk_group": 1, "sliding_window": 8, "global_attn_every_n_layers": 4, "mup_enabled": true,
    }));
    compare(&case, &tensors, &config);
    config["mup_enabled"] = json!(false);
    let e = checkpoint(&tensors, &config).err().expect("a refusal");
    assert!(e.contains("mup_enabled") && e.contains("only scaled embeddings"), "{e}");
}

#[test]
fn of_cohere2_moe() {
    let case = case("cohere2moe");
    let tensors = tensors(&file(&case), &[]);
    let config = config(json!({
        "model_type": "cohere2_moe", "num_hidden_layers": 4, "intermediate_size": 16, "prefix_dense_intermediate_size": 48, "layer_norm_eps": 1e-5,
        "rms_norm_eps": null, "logit_scale": 0.25, "sliding_window": 8, "num_experts": 6, "num_experts_per_tok": 2, "num_shared_experts": 1,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"], "expert_selection_fn": "sigmoid",
        "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"], "norm_topk_prob": true,
    }));
    compare(&case, &tensors, &config);
    for (field, value, what) in [
        ("expert_selection_fn", json!("softmax"), "is 'softmax'; only 'sigmoid'"),
        ("expert_selection_fn", json!(null), "is missing"),
        ("shared_expert_combination_strategy", json!("sum"), "is 'sum'; only 'average'"),
    ] {
        let mut config = config.clone();
        config[field] = value;
        let e = checkpoint(&tensors, &config).err().expect("a refusal");
        assert!(e.contains(field) && e.contains(what), "{field}: {e}");
    }
}
