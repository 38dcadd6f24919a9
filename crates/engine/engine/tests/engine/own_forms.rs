//! Checkpoints whose fields or tensors have forms of their own, with the weights of GGUF files whose logits are known, see `checkpoints.rs`:
//! fused projections, multipliers, stacks of experts under other names, lists of what each layer is.

use serde_json::{Value as Json, json};

use crate::architectures::{Tensor, checkpoint, file};
use crate::checkpoints::{Names, around_zero, case, compare, config, in_halves, tensors};
use crate::checkpoints_of_files::compare_changed;

/// What a configuration is refused for.
fn refused(tensors: &[Tensor], config: &Json, field: &str, value: Json) -> String {
    let mut config = config.clone();
    config[field] = value;
    checkpoint(tensors, &config).err().unwrap_or_else(|| panic!("{field} should be refused"))
}

/// Fails unless each of these fields is refused with this text.
fn refuses(tensors: &[Tensor], config: &Json, fields: &[(&str, Json, &str)]) {
    for (field, value, what) in fields {
        let e = refused(tensors, config, field, value.clone());
        assert!(e.contains(field) && e.contains(what), "{field}: {e}");
    }
}

/// Without a field that the usual configuration has.
fn without(mut config: Json, fields: &[&str]) -> Json {
    for field in fields {
        config.as_object_mut().expect("fields").remove(*field);
    }
    config
}

/// Rows of `heads` queries, and of `kv` keys and values, by key/value head.
fn grouped(rows: &[&[f32]], heads: usize, kv: usize, dim: usize) -> Vec<f32> {
    let (keys, values) = (heads * dim, (heads + kv) * dim);
    let each = heads / kv * dim;
    let of_head = |g: usize| {
        [&rows[g * each..][..each], &rows[keys + g * dim..][..dim], &rows[values + g * dim..][..dim]].concat()
    };
    (0..kv).flat_map(of_head).flatten().copied().collect()
}

/// Puts the rows of fused projections in groups.
fn in_groups(tensors: &mut [Tensor], [heads, kv, dim]: [usize; 3]) {
    for (_, shape, values) in tensors.iter_mut().filter(|t| t.0.contains("query_key_value")) {
        let width = shape.get(1).copied().unwrap_or(1);
        let rows: Vec<&[f32]> = values.chunks_exact(width).collect();
        *values = grouped(&rows, heads, kv, dim);
    }
}

/// Fuses the projections of each layer under `name`; in groups of so many heads, if given.
fn fused(all: Vec<Tensor>, name: &str, groups: Option<[usize; 3]>) -> Vec<Tensor> {
    let mut out: Vec<Tensor> = Vec::new();
    for (of, shape, values) in all {
        let part =
            ["q_proj", "k_proj", "v_proj"].into_iter().find(|p| of.contains(&format!("self_attn.{p}")));
        let Some(part) = part else {
            out.push((of, shape, values));
            continue;
        };
        let whole = of.replace(&format!("self_attn.{part}"), name);
        match out.iter_mut().find(|t| t.0 == whole) {
            Some((_, fused, rows)) => {
                fused[0] += shape[0];
                rows.extend(values);
            }
            None => out.push((whole, shape, values)),
        }
    }
    for (_, shape, values) in out.iter_mut().filter(|t| t.0.contains(name)) {
        if let Some([heads, kv, dim]) = groups {
            let rows: Vec<&[f32]> = values.chunks_exact(shape[1]).collect();
            *values = grouped(&rows, heads, kv, dim);
        }
    }
    out
}

/// Multipliers that llama.cpp's converter has put into the weights, taken out again: of matrices, of rows of the input projection.
fn without_multipliers(tensors: &mut [Tensor]) {
    let of_input = [0.5, 2.0, 0.75, 1.5, 0.25].map(|m: f32| m * 1.25);
    // Widths of the gate, the convolution's three parts and the time steps.
    let ends = [64, 128, 144, 160, 164];
    for (name, shape, values) in tensors {
        let factor = match name.rsplit('.').nth(1).expect("a part") {
            "embed_tokens" => 5.5,
            "lm_head" => 0.125,
            "q_proj" | "v_proj" => 0.5,
            "k_proj" => 0.5 * 0.375,
            "o_proj" => 0.875,
            "out_proj" => 0.25,
            "gate_proj" => 1.75,
            "down_proj" => 0.6,
            "in_proj" => {
                for (r, row) in values.chunks_exact_mut(shape[1]).enumerate() {
                    let part = ends.iter().position(|end| r < *end).expect("a row");
                    row.iter_mut().for_each(|x| *x /= of_input[part]);
                }
                1.0
            }
            _ if name.ends_with("A_log") => {
                values.iter_mut().for_each(|a| *a = (-*a).ln());
                1.0
            }
            _ => 1.0,
        };
        values.iter_mut().for_each(|x| *x /= factor);
    }
}

#[test]
fn of_falcon_h1() {
    let own: Names = &[
        ("output_norm", "final_layernorm"),
        ("ffn_norm", "pre_ff_layernorm"),
        ("ffn_gate", "feed_forward.gate_proj"),
        ("ffn_up", "feed_forward.up_proj"),
        ("ffn_down", "feed_forward.down_proj"),
        ("ssm_in", "mamba.in_proj"),
        ("ssm_out", "mamba.out_proj"),
        ("ssm_conv1d", "mamba.conv1d"),
        ("ssm_a", "mamba.A_log"),
        ("ssm_d", "mamba.D"),
        ("ssm_dt", "mamba.dt"),
    ];
    let fields = json!({
        "num_hidden_layers": 3, "rope_theta": 1e11, "mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 1,
        "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_rms_norm": false, "mamba_norm_before_gate": true, "mamba_expand": 2,
        "embedding_multiplier": 5.5, "lm_head_multiplier": 0.125, "attention_in_multiplier": 0.5, "key_multiplier": 0.375,
        "attention_out_multiplier": 0.875, "ssm_in_multiplier": 1.25, "ssm_out_multiplier": 0.25, "mlp_multipliers": [1.75, 0.6],
        "ssm_multipliers": [0.5, 2.0, 0.75, 1.5, 0.25], "projectors_bias": false, "time_step_limit": [0.0, {"__float__": "Infinity"}],
    });
    let others = compare_changed(
        "falcon_h1",
        own,
        |tensors| {
            without_multipliers(tensors);
            let dt = tensors.iter_mut().filter(|t| t.0.ends_with("mamba.dt.bias"));
            dt.for_each(|t| t.0 = t.0.replace("dt.bias", "dt_bias"));
        },
        fields,
    );
    assert!(others.is_empty(), "{others:?}");
    let config = config(json!({
        "model_type": "falcon_h1", "mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_d_conv": 4,
    }));
    refuses(
        &[],
        &config,
        &[
            ("mamba_d_head", json!(8), "is 8; 4 heads of it are not the width of 64"),
            ("attention_bias", json!(true), "is true; only false"),
            ("time_step_limit", json!([0.001, 0.1]), "only [0, infinity]"),
            ("mlp_multipliers", json!([1.0]), "is not an array of 2 numbers"),
            ("ssm_multipliers", json!([1.0, 1.0, 1.0, 1.0, null]), "is not an array of 5 numbers"),
            ("rope_theta", json!(null), "is missing"),
        ],
    );
    let e = refused(&[], &config, "mamba_rms_norm", json!(true));
    assert!(e.contains("mamba_norm_before_gate' is not false"), "{e}");
}

#[test]
fn of_mimo_2() {
    let own: Names = &[
        ("attn_sinks", "self_attn.attention_sink_bias"),
        ("exp_probs_b", "mlp.gate.e_score_correction_bias"),
    ];
    // Blocks for multi-token prediction are not used.
    let guesses = |tensors: &mut Vec<Tensor>| {
        tensors.push(("model.mtp.layers.0.eh_proj.weight".into(), vec![64, 128], vec![0.5; 64 * 128]));
    };
    let fields = json!({
        "model_type": "mimo_v2_flash", "head_dim": 24, "v_head_dim": 16, "swa_head_dim": 24, "swa_v_head_dim": 16, "num_key_value_heads": 2,
        "swa_num_key_value_heads": 4, "swa_num_attention_heads": 4, "hybrid_layer_pattern": [0, 1, 1, 0], "moe_layer_freq": [0, 1, 1, 1],
        "rope_theta": 5e6, "swa_rope_theta": 10000.0, "partial_rotary_factor": 0.334, "sliding_window": 15, "sliding_window_size": 15,
        "attention_chunk_size": 15, "add_swa_attention_sink_bias": true, "attention_value_scale": 0.707, "layernorm_epsilon": 1e-5,
        "rms_norm_eps": null, "n_routed_experts": 6, "n_shared_experts": null, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
        "n_group": 1, "topk_group": 1, "norm_topk_prob": true, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
        "routed_scaling_factor": null, "attention_projection_layout": "split",
    });
    let others = compare_changed("mimo_v2_flash", own, guesses, fields.clone());
    assert!(others.is_empty(), "{others:?}");
    // As transformers writes it.
    let mut newer = without(
        fields.clone(),
        &[
            "hybrid_layer_pattern",
            "moe_layer_freq",
            "rope_theta",
            "swa_rope_theta",
            "sliding_window_size",
            "swa_num_key_value_heads",
        ],
    );
    let rope =
        |theta: f64| json!({"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": 0.334});
    newer["sliding_window"] = json!(16);
    newer["layer_types"] =
        json!(["full_attention", "sliding_attention", "sliding_attention", "full_attention"]);
    newer["mlp_layer_types"] = json!(["dense", "sparse", "sparse", "sparse"]);
    newer["rope_parameters"] = json!({"full_attention": rope(5e6), "sliding_attention": rope(10000.0)});
    let others = compare_changed("mimo_v2_flash", own, |_| {}, newer);
    assert!(others.is_empty(), "{others:?}");
    let mut config = config(fields);
    config["num_hidden_layers"] = json!(4);
    refuses(
        &[],
        &config,
        &[
            ("attention_projection_layout", json!("fused_qkv"), "is 'fused_qkv'; only"),
            ("swa_head_dim", json!(16), "is not head_dim"),
            ("hybrid_layer_pattern", json!([0, 1, 2, 0]), "array of 4 numbers, 0 or 1"),
            ("hybrid_layer_pattern", json!(null), "is missing, and so is layer_types"),
            ("topk_method", json!("greedy"), "only 'noaux_tc'"),
        ],
    );
}

#[test]
fn of_hunyuan_3() {
    let own: Names = &[
        ("ffn_gate_inp", "mlp.router.gate"),
        ("exp_probs_b", "mlp.expert_bias"),
        ("ffn_gate_shexp", "mlp.shared_mlp.gate_proj"),
        ("ffn_up_shexp", "mlp.shared_mlp.up_proj"),
        ("ffn_down_shexp", "mlp.shared_mlp.down_proj"),
    ];
    let fields = json!({
        "num_hidden_layers": 3, "rope_theta": 11158840.0, "num_experts": 6, "num_experts_per_tok": 2, "num_shared_experts": 1,
        "moe_intermediate_size": 16, "router_scaling_factor": 2.826, "first_k_dense_replace": 1, "enable_moe_fp32_combine": true,
    });
    let others = compare_changed("hy_v3", own, |_| {}, fields);
    assert!(others.is_empty(), "{others:?}");
}

#[test]
fn of_ling() {
    let own: Names = &[
        ("token_embd", "word_embeddings"),
        ("attn_qkv", "attention.query_key_value"),
        ("attn_output", "attention.dense"),
        ("attn_q_norm", "attention.query_layernorm"),
        ("attn_k_norm", "attention.key_layernorm"),
        ("exp_probs_b", "mlp.gate.expert_bias"),
    ];
    let fields = json!({
        "model_type": "bailing_moe", "architectures": ["BailingMoeV2ForCausalLM"], "num_experts": 6, "num_experts_per_tok": 2,
        "num_shared_experts": 1, "moe_intermediate_size": 16, "first_k_dense_replace": 1, "n_group": 3, "topk_group": 2,
        "routed_scaling_factor": 2.5, "norm_topk_prob": true, "score_function": "sigmoid", "moe_router_enable_expert_bias": true,
        "use_qk_norm": true, "use_qkv_bias": false, "norm_head": false,
    });
    let second = case("bailingmoe2");
    let of_second = tensors(&file(&second), own);
    let fields = config(fields);
    compare(&second, &of_second, &fields);
    refuses(
        &of_second,
        &fields,
        &[
            ("n_group", json!(null), "is missing"),
            ("routed_scaling_factor", json!(null), "is missing"),
            ("norm_head", json!(true), "is true; only false"),
            ("score_function", json!("tanh"), "expected sigmoid or softmax"),
        ],
    );
    let first = case("bailingmoe");
    let mut tensors = tensors(&file(&first), own);
    in_halves(&mut tensors, 16);
    let tensors = fused(tensors, "attention.query_key_value", None);
    let fields = config(json!({
        "model_type": "bailing_moe", "architectures": ["BailingMoeForCausalLM"], "num_experts": 6, "num_experts_per_tok": 2,
        "num_shared_experts": 1, "moe_intermediate_size": 16, "first_k_dense_replace": 0, "norm_topk_prob": true,
    }));
    compare(&first, &tensors, &fields);
}

#[test]
fn of_step() {
    let own: Names = &[
        ("exp_probs_b", "moe.router_bias"),
        ("ffn_gate_inp", "moe.gate"),
        ("ffn_gate_exps", "moe.gate_proj"),
        ("ffn_up_exps", "moe.up_proj"),
        ("ffn_down_exps", "moe.down_proj"),
        ("ffn_gate_shexp", "share_expert.gate_proj"),
        ("ffn_up_shexp", "share_expert.up_proj"),
        ("ffn_down_shexp", "share_expert.down_proj"),
    ];
    let case = case("step35");
    let mut tensors = tensors(&file(&case), own);
    around_zero(&mut tensors);
    let kinds = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"];
    let scaling = json!({
        "rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 8.0, "original_max_position_embeddings": 64,
    });
    // As published: lists with entries of blocks for multi-token prediction.
    let fields = config(json!({
        "model_type": "step3p5", "num_hidden_layers": 4, "num_key_value_heads": null, "num_attention_groups": 2, "sliding_window": 8,
        "layer_types": [kinds[0], kinds[1], kinds[2], kinds[3], "sliding_attention"], "num_nextn_predict_layers": 1,
        "rope_theta": [500.0, 100.0, 100.0, 500.0, 100.0], "partial_rotary_factors": [0.5, 1.0, 1.0, 0.5, 1.0],
        "rope_scaling": scaling, "yarn_only_types": ["full_attention"], "use_rope_layers": [],
        "attention_other_setting": {"attention_type": "sliding_attention", "num_attention_heads": 6, "num_attention_groups": 2, "head_dim": 16},
        "moe_num_experts": 6, "moe_top_k": 2, "moe_intermediate_size": 16, "share_expert_dim": 32, "moe_router_scaling_factor": 3.0,
        "moe_router_activation": "sigmoid", "norm_expert_weight": true, "moe_layers_enum": "1,2,3", "use_head_wise_attn_gate": true,
        "swiglu_limits": [null, 0.0, 0.0, 0.02, 0.0], "swiglu_limits_shared": [0.05, 0.0, 0.0, 0.03, 0.0],
    }));
    compare(&case, &tensors, &fields);
    // As transformers writes it.
    let mut newer = without(
        fields.clone(),
        &[
            "rope_theta",
            "partial_rotary_factors",
            "rope_scaling",
            "attention_other_setting",
            "num_nextn_predict_layers",
        ],
    );
    let mut full = scaling.clone();
    (full["rope_theta"], full["partial_rotary_factor"]) = (json!(500.0), json!(0.5));
    newer["rope_parameters"] = json!({
        "full_attention": full, "sliding_attention": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 1.0},
    });
    newer["layer_types"] = json!(kinds);
    (newer["num_sliding_attention_heads"], newer["query_pre_attn_scalar"]) = (json!(6), json!(16));
    compare(&case, &tensors, &newer);
    refuses(
        &tensors,
        &fields,
        &[
            (
                "partial_rotary_factors",
                json!([1.0, 1.0, 1.0, 1.0, 1.0]),
                "is not 0.5 for layers with full_attention",
            ),
            (
                "rope_theta",
                json!([500.0, 100.0, 100.0, 501.0]),
                "not the same number for all layers of a kind",
            ),
            ("use_rope_layers", json!([1]), "is not empty"),
            ("yarn_only_types", json!(["sliding_attention"]), "only ['full_attention']"),
            ("swiglu_limits", json!([0.0]), "is not an array of 4 numbers or nulls"),
        ],
    );
}

#[test]
fn of_internlm_2() {
    let own: Names = &[
        ("token_embd", "tok_embeddings"),
        ("attn_norm", "attention_norm"),
        ("ffn_norm", "ffn_norm"),
        ("attn_output", "attention.wo"),
        ("ffn_gate", "feed_forward.w1"),
        ("ffn_up", "feed_forward.w3"),
        ("ffn_down", "feed_forward.w2"),
    ];
    let case = case("internlm2");
    let mut tensors = tensors(&file(&case), own);
    in_halves(&mut tensors, 16);
    let mut tensors = fused(tensors, "attention.wqkv", Some([4, 2, 16]));
    tensors.iter_mut().filter(|t| t.0.starts_with("lm_head")).for_each(|t| t.0 = "output.weight".into());
    let fields =
        json!({"model_type": "internlm2", "bias": false, "rope_scaling": {"type": "dynamic", "factor": 2.0}});
    compare(&case, &tensors, &config(fields));
}

#[test]
fn of_mimo_and_deepseek() {
    let mimo = case("exaone");
    let fields = json!({"model_type": "mimo", "attention_bias": true, "num_nextn_predict_layers": 1});
    let mut of_mimo = tensors(&file(&mimo), &[]);
    of_mimo.push(("model.mtp_layers.0.input_proj.weight".into(), vec![32, 64], vec![0.5; 2048]));
    compare(&mimo, &of_mimo, &config(fields));
    let case = case("deepseek");
    let mut tensors = tensors(&file(&case), &[]);
    in_halves(&mut tensors, 16);
    let fields = json!({
        "model_type": "deepseek", "n_routed_experts": 6, "num_experts_per_tok": 2, "n_shared_experts": 2, "moe_intermediate_size": 16,
        "first_k_dense_replace": 1, "moe_layer_freq": 1, "norm_topk_prob": false, "scoring_func": "softmax",
    });
    compare(&case, &tensors, &config(fields));
}

#[test]
fn of_nemotron_nas() {
    let case = case("deci");
    let mut tensors = tensors(&file(&case), &[]);
    // Widths are multiples of 256: further rows and columns of zeros.
    for (name, shape, values) in tensors.iter_mut().filter(|t| t.0.contains("mlp.")) {
        if name.contains("down_proj") {
            let zeros = vec![0.0; 256 - shape[1]];
            *values = values.chunks_exact(shape[1]).flat_map(|row| [row, &zeros].concat()).collect();
            shape[1] = 256;
        } else {
            values.resize(256 * shape[1], 0.0);
            shape[0] = 256;
        }
    }
    in_halves(&mut tensors, 16);
    let block = |group: Json, ffn: Json| {
        json!({"attention": {"n_heads_in_group": group, "no_op": group.is_null(), "replace_with_linear": false},
            "ffn": {"ffn_mult": ffn, "no_op": ffn.is_null(), "replace_with_linear": false}})
    };
    let blocks = [
        block(json!(2), json!(6.0)),
        block(json!(null), json!(12.0)),
        block(json!(2), json!(null)),
        block(json!(4), json!(0.5)),
    ];
    let mut config = config(json!({
        "model_type": "nemotron-nas", "num_hidden_layers": 4, "num_key_value_heads": null, "intermediate_size": null, "block_configs": blocks,
    }));
    compare(&case, &tensors, &config);
    config["block_configs"][1]["attention"]["replace_with_linear"] = json!(true);
    let e = checkpoint(&tensors, &config).err().expect("a refusal");
    assert!(
        e.contains("block_configs") && e.contains("one matrix in place of a part") && e.contains("layer 1"),
        "{e}"
    );
}

/// Names of GPT-NeoX's relatives.
const NEOX: Names = &[
    ("attn_qkv", "attention.query_key_value"),
    ("attn_output", "attention.dense"),
    ("ffn_up", "mlp.dense_h_to_4h"),
    ("ffn_down", "mlp.dense_4h_to_h"),
];

#[test]
fn of_falcon() {
    for (name, kv) in [("falcon", 1), ("falcon, large", 2)] {
        let case = case(name);
        let large: Names = &[("attn_norm", "ln_mlp"), ("attn_norm_2", "ln_attn")];
        let own = [NEOX, if kv == 2 { large } else { &[] }].concat();
        let mut tensors = tensors(&file(&case), own.leak());
        in_groups(&mut tensors, [4, kv, 8]);
        for t in &mut tensors {
            t.0 = t.0.replace("model.layers.", "transformer.h.").replace(".attention.", ".self_attention.");
            t.0 =
                t.0.replace("model.embed_tokens", "transformer.word_embeddings")
                    .replace("model.norm", "transformer.ln_f");
        }
        let fields = json!({
            "model_type": "falcon", "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "bias": false,
            "num_kv_heads": if kv == 2 { 2 } else { 4 }, "new_decoder_architecture": kv == 2, "multi_query": kv == 1, "parallel_attn": true, "alibi": false,
            "layer_norm_epsilon": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false,
        });
        compare(&case, &tensors, &fields);
        refuses(
            &tensors,
            &fields,
            &[("alibi", json!(true), "only false"), ("activation", json!("relu"), "only 'gelu'")],
        );
        if kv == 1 {
            refuses(&tensors, &fields, &[("parallel_attn", json!(false), "beside the feed-forward block")]);
            // The first generation's names.
            let old = json!({
                "model_type": "RefinedWebModel", "vocab_size": 64, "hidden_size": 32, "n_layer": 3, "n_head": 4, "bias": false,
                "multi_query": true, "parallel_attn": true, "alibi": false, "layer_norm_epsilon": 1e-5, "tie_word_embeddings": false,
            });
            compare(&case, &tensors, &old);
        }
    }
}

#[test]
fn of_gpt_neox() {
    for parallel in [true, false] {
        let case =
            case(&format!("gptneox, parallel {parallel}").replace("true", "True").replace("false", "False"));
        let mut tensors = tensors(&file(&case), NEOX);
        in_groups(&mut tensors, [4, 4, 8]);
        for t in &mut tensors {
            t.0 =
                t.0.replace("model.layers.", "gpt_neox.layers.")
                    .replace("model.embed_tokens", "gpt_neox.embed_in");
            t.0 = t.0.replace("model.norm", "gpt_neox.final_layer_norm").replace("lm_head", "embed_out");
        }
        // Masks of older files.
        tensors.push(("gpt_neox.layers.0.attention.bias".into(), vec![1, 1, 4, 4], vec![1.0; 16]));
        tensors.push(("gpt_neox.layers.0.attention.masked_bias".into(), vec![1], vec![-1e9]));
        let fields = json!({
            "model_type": "gpt_neox", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
            "num_attention_heads": 4, "max_position_embeddings": 128, "layer_norm_eps": 1e-5, "rotary_pct": 0.5, "rotary_emb_base": 10000,
            "hidden_act": "gelu", "use_parallel_residual": parallel, "tie_word_embeddings": false,
        });
        compare(&case, &tensors, &fields);
    }
}

#[test]
fn of_starcoder() {
    let case = case("starcoder");
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
    crate::checkpoints::of_transformer(&mut tensors);
    let fields = json!({
        "model_type": "gpt_bigcode", "vocab_size": 64, "n_embd": 32, "n_inner": 48, "n_layer": 3, "n_head": 4, "n_positions": 48,
        "layer_norm_epsilon": 1e-5, "activation_function": "gelu_pytorch_tanh", "multi_query": true, "tie_word_embeddings": false,
    });
    compare(&case, &tensors, &fields);
}
