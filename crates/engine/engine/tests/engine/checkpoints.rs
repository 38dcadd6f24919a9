//! Checkpoints of families that the zoo lacks, with the weights of GGUF files whose logits are known, see `architectures.rs`.

use octet_weights::Model;
use serde_json::{Value as Json, json};

use crate::architectures::{TOLERANCE, Tensor, cases, checkpoint, difference, file, prompt};
use crate::common::encoders::text;
use crate::common::{On, Run, limits, load, try_load};

type Names = &'static [(&'static str, &'static str)];

/// Tensors outside of layers, and of a layer, in GGUF files and in checkpoints.
const NAMES: Names = &[
    ("token_embd", "embed_tokens"),
    ("output_norm", "norm"),
    ("attn_norm", "input_layernorm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
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
fn case(architecture: &str) -> Json {
    cases().into_iter().find(|c| text(&c["name"]) == architecture).expect("a case")
}

/// The tensors of a checkpoint; `own` are the names of its family that differ.
fn tensors(file: &Model, own: Names) -> Vec<Tensor> {
    let mut out: Vec<Tensor> = Vec::new();
    for t in file.tensors().iter().filter(|t| !t.name.starts_with("rope_f")) {
        let values = file.tensor(&t.name, &t.shape).expect("a tensor").to_f32();
        let (stem, end) = t.name.rsplit_once('.').expect("an ending");
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
            [_, rows, cols] => {
                for (e, one) in values.chunks_exact(rows * cols).enumerate() {
                    let name = format!("{}.{end}", name.replace('#', &e.to_string()));
                    out.push((name, vec![*rows, *cols], one.to_vec()));
                }
            }
            shape if name.ends_with("_bias") || name.ends_with("_scale") => {
                out.push((name, shape.to_vec(), values.to_vec()))
            }
            shape => out.push((format!("{name}.{end}"), shape.to_vec(), values.to_vec())),
        }
    }
    out
}

/// What the configurations have in common, with a family's fields.
fn config(own: Json) -> Json {
    let mut config = json!({
        "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": false,
    });
    own.as_object().expect("fields").iter().for_each(|(field, value)| config[field] = value.clone());
    config
}

/// Fails unless a checkpoint has the logits of a case.
fn compare(case: &Json, tensors: &[Tensor], config: &Json) {
    let file = checkpoint(tensors, config).expect("a checkpoint");
    let whole = Run::new(load(&file, On::Reference, limits())).feed(&prompt());
    let worst = difference(case, &whole);
    assert!(worst <= TOLERANCE, "{} differs by {worst}", config["model_type"]);
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
    assert!(e.contains("expert_used_count' is 1; only 2"), "{e}");
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
        ("post_attention_norm", "post_attention_layernorm"),
        ("ffn_norm", "pre_feedforward_layernorm"),
        ("post_ffw_norm", "post_feedforward_layernorm"),
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
        "altup_num_inputs": 4, "altup_active_idx": 0, "altup_correct_scale": true, "altup_coef_clip": 120.0, "tie_word_embeddings": true,
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
