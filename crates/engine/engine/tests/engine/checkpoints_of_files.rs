//! Checkpoints with the weights of the zoo's GGUF files, whose golden files have transformers' logits.

use std::collections::BTreeSet;

use octet_testkit::{Golden, max_abs_diff, shared};
use octet_weights::Model;
use serde_json::{Value as Json, json};

use crate::architectures::{TOLERANCE, Tensor, checkpoint};
use crate::checkpoints::{Names, around_zero, config, in_halves, tensors};
use crate::common::{On, Run, exact_backends, limits, load};

/// Fails unless a checkpoint with the weights of a file of the zoo has the logits of its golden file.
pub fn compare_golden(name: &str, own: Names, fields: Json) {
    drop(compare_changed(name, own, |_| {}, fields));
}

/// The same with changes of the tensors. Returns names and shapes of tensors that only one of the two GGUF files has: the zoo's, which llama.cpp's
/// converter made, and that made of the checkpoint.
pub fn compare_changed(
    name: &str,
    own: Names,
    change: impl Fn(&mut Vec<Tensor>),
    fields: Json,
) -> Vec<(String, Vec<usize>)> {
    let Some(path) = shared(&format!("zoo/gguf/{name}.gguf")) else { return Vec::new() };
    let mut config = config(json!({
        "model_type": name, "vocab_size": 432, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "max_position_embeddings": 1024,
    }));
    fields.as_object().expect("fields").iter().for_each(|(field, value)| config[field] = value.clone());
    let converters = Model::open(&path).expect("a file");
    let mut tensors = tensors(&converters, own);
    change(&mut tensors);
    let file = || checkpoint(&tensors, &config).unwrap_or_else(|e| panic!("{name}: {e}"));
    let options = octet_quantize::Options::default();
    let made = octet_quantize::make(file(), options, &mut |_, _| {}).expect("a GGUF file");
    let forms =
        |m: &Model| m.tensors().iter().map(|t| (t.name.clone(), t.shape.clone())).collect::<BTreeSet<_>>();
    let others = forms(&converters).symmetric_difference(&forms(&made)).cloned().collect();
    let golden = Golden::open(&format!("zoo/golden/{name}.golden.safetensors")).expect("its golden");
    let (ids, rows) =
        (golden.ids("p1.ids").expect("a prompt"), golden.ids("p1.logit_rows").expect("its rows"));
    let width = golden.shape("p1.logits").expect("its logits")[1];
    for (file, what) in [(file(), "checkpoint"), (made, "file that is made of it")] {
        // Factors of rows are the backend's matter.
        let has_factors = file.metadata.get("octet.row_factors").is_some();
        let backends = if has_factors { exact_backends() } else { vec![On::Reference] };
        for on in backends {
            let mut run = Run::new(load(&file, on, limits()));
            let (vocab, whole) = (run.model.config().vocab, run.feed(&ids));
            // Some files lack the rows of padding.
            let n = width.min(vocab);
            let rows = rows.iter().flat_map(|r| &whole[*r as usize * vocab..][..n]);
            let got: Vec<f32> = rows.copied().collect();
            let want = golden.f32("p1.logits").expect("its logits");
            let want: Vec<f32> = want.chunks_exact(width).flat_map(|row| &row[..n]).copied().collect();
            let worst = max_abs_diff(&got, &want);
            assert!(worst <= TOLERANCE, "{name}, {what}, on {on:?}: differs by {worst}");
        }
    }
    others
}

#[test]
fn with_the_weights_of_files() {
    let layer_norm = |mut fields: Json| {
        fields["rms_norm_eps"] = json!(null);
        fields
    };
    let cohere = |mut fields: Json| {
        fields["layer_norm_eps"] = json!(1e-5);
        fields["logit_scale"] = json!(0.25);
        fields["tie_word_embeddings"] = json!(true);
        layer_norm(fields)
    };
    compare_golden("cohere", &[], cohere(json!({"num_hidden_layers": 3, "rope_theta": 75000.0})));
    // The older way to say which layers have windows.
    let windows = json!({"rope_theta": 50000.0, "sliding_window": 16, "sliding_window_pattern": 4});
    compare_golden("cohere2", &[], cohere(windows));
    let olmo = json!({"num_hidden_layers": 3, "num_key_value_heads": 4, "rope_theta": 500000.0});
    compare_golden("olmo2", &[], olmo);
    let kinds = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"];
    let olmo =
        json!({"num_key_value_heads": 4, "rope_theta": 500000.0, "sliding_window": 16, "layer_types": kinds});
    compare_golden("olmo3", &[], olmo);
    compare_golden("exaone4", &[], json!({"rope_theta": 1e6, "sliding_window": null}));
    let own: Names = &[
        ("post_attention_norm", "post_self_attn_layernorm"),
        ("post_ffw_norm", "post_mlp_layernorm"),
        ("ffn_up", "mlp.gate_up_proj"),
    ];
    let glm = json!({"num_hidden_layers": 3, "rms_norm_eps": 1.5625e-7, "partial_rotary_factor": 0.5, "attention_bias": true});
    compare_golden("glm4", own, glm);
    let own: Names = &[("ffn_up", "mlp.c_fc"), ("ffn_down", "mlp.c_proj")];
    let starcoder = json!({
        "num_hidden_layers": 3, "norm_epsilon": 1e-5, "rope_theta": 100000.0, "hidden_act": "gelu_pytorch_tanh", "use_bias": true,
        "tie_word_embeddings": true,
    });
    compare_golden("starcoder2", own, layer_norm(starcoder));
    let own: Names = &[("exp_probs_b", "mlp.moe_statics.e_score_correction_bias")];
    let ernie = json!({
        "intermediate_size": 64, "rope_theta": 500000.0, "moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 16, "moe_num_shared_experts": 2,
        "moe_layer_start_index": 1, "moe_layer_end_index": 3, "moe_layer_interval": 1, "use_bias": false, "tie_word_embeddings": true,
    });
    compare_golden("ernie4_5_moe", own, ernie);
    let rope = json!({"rope_type": "default", "rope_theta": 500000.0});
    let mellum = json!({
        "rms_norm_eps": 1e-6, "sliding_window": 16, "layer_types": kinds, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
        "norm_topk_prob": true, "mlp_only_layers": [], "rope_parameters": {"full_attention": rope, "sliding_attention": rope},
    });
    compare_golden("mellum", &[], mellum);
}

#[test]
fn of_older_families_with_the_weights_of_files() {
    let own: Names = &[("ffn_norm", "pre_feedforward_layernorm")];
    let gemma = json!({
        "rms_norm_eps": 1e-6, "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 16, "attn_logit_softcapping": 6.0,
        "final_logit_softcapping": 30.0, "sliding_window": 16, "tie_word_embeddings": true,
    });
    drop(compare_changed("gemma2", own, |tensors| around_zero(tensors), gemma));
    let dots = json!({
        "num_hidden_layers": 3, "num_key_value_heads": 4, "rms_norm_eps": 1e-6, "rope_theta": 1e7, "n_routed_experts": 6, "num_experts_per_tok": 2,
        "n_shared_experts": 1, "moe_intermediate_size": 16, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "norm_topk_prob": true,
        "routed_scaling_factor": 2.5, "scoring_func": "sigmoid",
    });
    compare_golden("dots1", &[("exp_probs_b", "mlp.gate.e_score_correction_bias")], dots);
    compare_golden("seed_oss", &[], json!({"num_hidden_layers": 3, "rms_norm_eps": 1e-6, "rope_theta": 1e7}));
    let smollm = json!({"rms_norm_eps": 1e-6, "rope_theta": 5e6, "no_rope_layers": [1, 1, 1, 0], "tie_word_embeddings": true});
    drop(compare_changed("smollm3", &[], |tensors| in_halves(tensors, 16), smollm));
    let own: Names = &[
        ("attn_q_norm", "self_attn.query_layernorm"),
        ("attn_k_norm", "self_attn.key_layernorm"),
        ("ffn_gate_inp", "mlp.gate.wg"),
        ("ffn_gate_shexp", "mlp.shared_mlp.gate_proj"),
        ("ffn_up_shexp", "mlp.shared_mlp.up_proj"),
        ("ffn_down_shexp", "mlp.shared_mlp.down_proj"),
    ];
    let rope = json!({"type": "dynamic", "alpha": 1000.0, "factor": 1.0, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0});
    let hunyuan = json!({
        "model_type": "hunyuan_v1_moe", "num_hidden_layers": 2, "hidden_size": 128, "intermediate_size": 16, "num_attention_heads": 1,
        "num_key_value_heads": 1, "head_dim": 128, "num_experts": 4, "moe_topk": [2, 2], "moe_intermediate_size": [16, 16],
        "num_shared_expert": [1, 1], "rope_scaling": rope, "tie_word_embeddings": true,
    });
    compare_golden("hunyuan_moe", own, hunyuan);
}
