//! Messages about fields of config.json, and layers beyond those that it counts.

use octet_weights::Error;
use serde_json::json;

use crate::hf::{config, open, with};
use crate::support::*;

#[test]
fn fields_that_make_no_sense_are_refused_by_their_names() {
    let slides = json!(["sliding_attention"]);
    let n3 = |share: f64| json!({"model_type": "gemma3n_text", "activation_sparsity_pattern": [share]});
    for (edit, want) in [
        (
            json!({"layer_types": ["chunked_attention"]}),
            "field 'layer_types' has 'chunked_attention' for layer 0; expected 'full_attention' or 'sliding_attention'",
        ),
        (json!({"model_type": "granite", "layer_types": ["x"]}), "field 'layer_types' has 'x' for layer 0"),
        (
            json!({"model_type": "lfm2", "layer_types": ["sliding_attention"]}),
            "expected 'conv' or 'full_attention'",
        ),
        (
            json!({"model_type": "nemotron_h", "mlp_hidden_act": "relu2", "hybrid_override_pattern": "X"}),
            "field 'hybrid_override_pattern' has the letter 'X'; expected M, *, - or E",
        ),
        (
            json!({"model_type": "mistral", "sliding_window": 0}),
            "field 'sliding_window' is 0; expected at least 1, or null",
        ),
        (
            json!({"model_type": "gemma3_text", "sliding_window": 0, "layer_types": slides}),
            "field 'sliding_window' is 0; expected at least 1, or null",
        ),
        (
            json!({"model_type": "gemma3_text", "sliding_window": 8, "sliding_window_pattern": 0}),
            "field 'sliding_window_pattern' is 0; expected at least 1",
        ),
        // 1 in single precision: an infinite number of deviations.
        (
            n3(0.999_999_999),
            "field 'activation_sparsity_pattern' is not an array of numbers of at least 0 and below 1",
        ),
    ] {
        let e = open(config(edit.clone())).map(drop).unwrap_err().to_string();
        assert!(e.contains(want), "{edit}: {e}");
    }
    // A window that no layer has is not used.
    open(config(json!({"sliding_window": 0, "use_sliding_window": false}))).unwrap();
    open(config(json!({"model_type": "granite", "sliding_window": 0, "layer_types": ["full_attention"]})))
        .unwrap();
}

/// What is found wrong later, in terms of GGUF's keys, is about the field that was read.
#[test]
fn keys_are_named_as_the_configuration_has_them() {
    for (key, want) in [
        ("gemma3.attention.key_length", "field 'head_dim' is 3"),
        ("deepseek2.attention.key_length", "field 'kv_lora_rank' or 'qk_rope_head_dim' is 3"),
        ("llama.block_count", "field 'num_hidden_layers' is 3"),
        ("gpt2.embedding_length", "field 'hidden_size' or 'n_embd' is 3"),
        ("phimoe.expert_used_count", "field 'num_experts_per_tok' (expert_used_count) is 3"),
        ("tokenizer.ggml.model", "metadata key 'tokenizer.ggml.model' is 3"),
    ] {
        let e = Error::key("a/config.json", key, "is 3").to_string();
        assert_eq!(e, format!("a/config.json: {want}"));
        let e = Error::key("a.gguf", key, "is 3").to_string();
        assert_eq!(e, format!("a.gguf: metadata key '{key}' is 3"));
    }
    // Too large for single precision.
    let m = open(config(json!({"model_type": "granite", "rope_theta": 1e39}))).unwrap();
    let e = m.metadata.f32("granite.rope.freq_base").unwrap_err().to_string();
    assert!(e.contains("field 'rope_theta' is not a finite number"), "{e}");
}

/// Layers for multi-token prediction have what no other layer has; any other one would be missed.
#[test]
fn layers_beyond_those_that_are_counted() {
    let with_layer = |model_type: &str, further: &str| {
        let tensors: &[(&str, &[usize])] = &[
            ("model.embed_tokens.weight", &[6, 4]),
            ("model.norm.weight", &[4]),
            ("model.layers.0.input_layernorm.weight", &[4]),
            ("model.layers.1.input_layernorm.weight", &[4]),
            (further, &[4]),
        ];
        let files = config(json!({"model_type": model_type, "num_nextn_predict_layers": 1}));
        open(with(files, "model.safetensors", safetensors_file(tensors))).unwrap().ignored().to_vec()
    };
    for family in ["granite", "glm4_moe", "minimax_m2", "phi3"] {
        let plain = with_layer(family, "model.layers.1.mlp.down_proj.weight");
        assert_eq!(plain.len(), 2, "{family}: {plain:?}");
        assert!(plain.iter().all(|name| name.starts_with("model.layers.1.")), "{family}: {plain:?}");
    }
    for part in ["eh_proj", "enorm", "hnorm"] {
        let ignored = with_layer("glm4_moe", &format!("model.layers.1.{part}.weight"));
        assert!(ignored.is_empty(), "{part}: {ignored:?}");
    }
}
