//! Hugging Face checkpoints in GGUF's terms: configs, tokenizer files, sharding, and what is refused. `twins.rs` holds
//! whole checkpoints against their GGUF conversions.

use std::collections::BTreeMap;

use crate::support::*;
use bytes::Bytes;
use octet_weights::{Error, GgmlType, Model, Value, hf};
use serde_json::{Value as Json, json};

/// Names and shapes.
type Tensors<'a> = &'a [(&'a str, &'a [usize])];
pub type Checkpoint = BTreeMap<String, Bytes>;

pub fn with(mut files: Checkpoint, name: &str, content: impl Into<Bytes>) -> Checkpoint {
    files.insert(name.into(), content.into());
    files
}

pub fn open(files: Checkpoint) -> Result<Model, Error> {
    hf::from_files("dir", files)
}

/// The tiny llama with `edit`'s fields on top of its config.json (`null` takes one away).
pub fn config(edit: Json) -> Checkpoint {
    let mut files = tiny_llama();
    let mut config: Json = serde_json::from_slice(&files["config.json"]).unwrap();
    for (k, v) in edit.as_object().unwrap() {
        config[k] = v.clone();
    }
    files.insert("config.json".into(), config.to_string().into());
    files
}

fn keys(m: &Model, prefix: &str) -> BTreeMap<String, Value> {
    m.metadata.iter().filter_map(|(k, v)| Some((k.strip_prefix(prefix)?.to_string(), v.clone()))).collect()
}

#[test]
fn a_llama() {
    let m = open(tiny_llama()).unwrap();
    assert_eq!(m.metadata.str("general.architecture").unwrap(), "llama");
    assert_eq!(m.metadata.str("general.name").unwrap(), "dir");
    assert_eq!(m.metadata.str("octet.rope_pairing").unwrap(), "half");
    assert_eq!(m.metadata.get("octet.gdn_head_order"), None);
    let u = |x| Value::U64(x);
    let want = [
        ("attention.head_count", u(2)),
        ("attention.head_count_kv", u(1)),
        ("attention.key_length", u(2)),
        ("attention.layer_norm_rms_epsilon", Value::F64(1e-5)),
        ("attention.value_length", u(2)),
        ("block_count", u(1)),
        ("context_length", u(64)),
        ("embedding_length", u(4)),
        ("feed_forward_length", u(8)),
        ("rope.dimension_count", u(2)),
        ("rope.freq_base", Value::F64(10_000.0)),
        ("vocab_size", u(6)),
    ];
    let want: BTreeMap<_, _> = want.into_iter().map(|(k, v)| (k.to_string(), v)).collect();
    assert_eq!(keys(&m, "llama."), want);
    let names: Vec<_> = m.tensors().iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names.len(), 4);
    for name in ["token_embd.weight", "output_norm.weight", "blk.0.attn_norm.weight", "blk.0.attn_q.weight"] {
        assert!(names.contains(&name), "{name}");
    }
    assert_eq!(m.tensor("blk.0.attn_q.weight", &[4, 4]).unwrap().to_f32()[15], 15.0);
    assert!(m.ignored().is_empty());
}

/// Fields of config.json that mean the same in different places, or switch something.
#[test]
fn config_variants() {
    let f = Value::F64;
    let u = Value::U64;
    for (edit, want) in [
        (json!({"rope_theta": 5e5}), vec![("rope.freq_base", f(5e5))]),
        (
            json!({"rope_parameters": {"rope_type": "default", "rope_theta": 7}}),
            vec![("rope.freq_base", f(7.0))],
        ),
        (json!({"rope_theta": 3, "rope_parameters": {"rope_theta": 7}}), vec![("rope.freq_base", f(7.0))]),
        (
            json!({"head_dim": 8, "partial_rotary_factor": 0.5}),
            vec![("attention.key_length", u(8)), ("rope.dimension_count", u(4))],
        ),
        (json!({"num_key_value_heads": null}), vec![("attention.head_count_kv", u(2))]),
        (
            json!({"model_type": "mistral", "sliding_window": 16}),
            vec![("context_length", u(64)), ("attention.sliding_window", u(16))],
        ),
        (json!({"model_type": "mistral", "sliding_window": null}), vec![("context_length", u(64))]),
        (json!({"sliding_window": 16, "use_sliding_window": false}), vec![("context_length", u(64))]),
        (
            json!({"sliding_window": 16, "use_sliding_window": true, "max_window_layers": 0}),
            vec![("attention.sliding_window_pattern", Value::Array(vec![Value::Bool(true)]))],
        ),
        (
            json!({"rope_scaling": {"type": "linear", "factor": 2}}),
            vec![("rope.scaling.type", Value::Str("linear".into())), ("rope.scaling.factor", f(2.0))],
        ),
        (
            json!({"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192}}),
            vec![
                ("rope.scaling.type", Value::Str("llama3".into())),
                ("rope.scaling.factor", f(8.0)),
                ("rope.scaling.low_freq_factor", f(1.0)),
                ("rope.scaling.high_freq_factor", f(4.0)),
                ("rope.scaling.original_context_length", u(8192)),
            ],
        ),
        (
            json!({"rope_scaling": {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 32768, "beta_fast": 32}}),
            vec![
                ("rope.scaling.type", Value::Str("yarn".into())),
                ("rope.scaling.original_context_length", u(32768)),
                ("rope.scaling.yarn_beta_fast", f(32.0)),
            ],
        ),
        (
            json!({"rope_scaling": {"rope_type": "yarn", "factor": 1, "attention_factor": 1.5, "mscale": 3}}),
            vec![("rope.scaling.attn_factor", f(1.5))],
        ),
        (
            json!({"rope_scaling": {"rope_type": "yarn", "factor": 4, "mscale": 0.7, "mscale_all_dim": 0.7}}),
            vec![("rope.scaling.attn_factor", f(1.0 / (1.0 + 0.1 * 4f64.ln())))],
        ),
        (
            json!({"model_type": "mixtral", "rope_theta": 1e6, "num_local_experts": 8, "num_experts_per_tok": 2}),
            vec![("expert_count", u(8)), ("expert_used_count", u(2)), ("feed_forward_length", u(8))],
        ),
    ] {
        let m = open(config(edit.clone())).unwrap();
        let keys = keys(&m, "llama.");
        for (k, v) in want {
            assert_eq!(keys.get(k), Some(&v), "{edit}: {k}");
        }
    }
}

#[test]
fn configs_that_are_refused() {
    for (edit, want) in [
        (
            json!({"model_type": "seed_oss", "scoring_func": "x"}),
            "field 'scoring_func' is 'x'; expected sigmoid or softmax",
        ),
        (
            json!({"model_type": "mamba"}),
            "field 'model_type' is 'mamba', which is not supported (known: qwen3_5_moe, ",
        ),
        (json!({"model_type": null}), "field 'model_type' is missing"),
        (json!({"model_type": 3}), "field 'model_type' is 3; expected a string"),
        (json!({"hidden_size": null}), "field 'hidden_size' is missing; expected an unsigned 32-bit integer"),
        (json!({"hidden_size": "4"}), "field 'hidden_size' is \"4\"; expected an unsigned 32-bit integer"),
        (json!({"hidden_size": 4.5}), "field 'hidden_size' is 4.5"),
        (json!({"hidden_size": -4}), "field 'hidden_size' is -4"),
        (json!({"hidden_size": 1u64 << 32}), "field 'hidden_size' is 4294967296"),
        (
            json!({"hidden_size": 5}),
            "field 'head_dim' is missing, and hidden_size 5 does not divide by 2 heads",
        ),
        (json!({"num_attention_heads": 0}), "field 'head_dim' is missing"),
        (json!({"num_hidden_layers": 0}), "field 'num_hidden_layers' is 0"),
        (json!({"num_hidden_layers": 4_000_000_000u32}), "field 'num_hidden_layers' is 4000000000"),
        (json!({"rms_norm_eps": null}), "field 'rms_norm_eps' is missing; expected a number"),
        (json!({"vocab_size": null}), "field 'vocab_size' is missing"),
        (json!({"intermediate_size": [1]}), "field 'intermediate_size' is an array"),
        (json!({"max_position_embeddings": null}), "field 'max_position_embeddings' is missing"),
        (json!({"hidden_act": "gelu"}), "field 'hidden_act' is 'gelu'"),
        (json!({"model_type": "granite", "hidden_act": "gelu"}), "field 'hidden_act' is 'gelu'; only 'silu'"),
        (
            json!({"model_type": "gemma3_text", "hidden_activation": "gelu"}),
            "field 'hidden_activation' is 'gelu'; only 'gelu_pytorch_tanh'",
        ),
        (json!({"use_bidirectional_attention": true}), "field 'use_bidirectional_attention' is true"),
        (json!({"model_type": "nemotron_h", "mlp_hidden_act": "silu"}), "field 'mlp_hidden_act' is 'silu'"),
        (json!({"model_type": "qwen3_next", "mlp_only_layers": [1]}), "field 'mlp_only_layers' is not empty"),
        (
            json!({"model_type": "deepseek_v2", "topk_method": "group_limited_greedy", "n_group": 8}),
            "field 'topk_method' is 'group_limited_greedy' with 8 groups",
        ),
        (
            json!({"model_type": "granite", "rope_scaling": {"type": "dynamic", "factor": 2}}),
            "field 'rope_scaling.type' is 'dynamic'",
        ),
        (
            json!({"model_type": "phimoe", "router_jitter_noise": 0.1}),
            "field 'router_jitter_noise' is 0.1; only 0.01",
        ),
        (json!({"partial_rotary_factor": 0.1}), "field 'partial_rotary_factor' is 0.1, which rotates 0 of 2"),
        (json!({"partial_rotary_factor": 4}), "field 'partial_rotary_factor' is 4"),
        (
            json!({"quantization_config": {"quant_method": "exl3"}}),
            "field 'quantization_config.quant_method' is 'exl3', which is not supported",
        ),
        (
            json!({"rope_scaling": {"type": "longrope", "factor": 2}}),
            "field 'rope_scaling.type' is 'longrope'",
        ),
        (
            json!({"rope_scaling": {"factor": 2}}),
            "field 'rope_scaling.type' is missing, and there is a factor",
        ),
        (json!({"rope_scaling": {"rope_type": "linear"}}), "field 'rope_scaling.factor' is missing"),
        (
            json!({"rope_scaling": {"rope_type": "llama3", "factor": 8}}),
            "field 'rope_scaling.low_freq_factor' is missing",
        ),
        (json!({"rope_scaling": 3}), "field 'rope_scaling' is 3; expected an object"),
        (json!({"model_type": "qwen3"}), "field 'rope_theta' is missing"),
        (json!({"model_type": "qwen3_moe", "rope_theta": 1e6}), "field 'num_experts' is missing"),
        (
            json!({"model_type": "qwen3_moe", "rope_theta": 1e6, "decoder_sparse_step": 2}),
            "field 'decoder_sparse_step' is 2",
        ),
        (
            json!({"model_type": "qwen3_moe", "rope_theta": 1e6, "mlp_only_layers": [1]}),
            "field 'mlp_only_layers' is not empty",
        ),
        (json!({"model_type": "olmoe", "clip_qkv": 8.0}), "field 'clip_qkv' is 8"),
        (
            json!({"model_type": "gpt2", "activation_function": "gelu_new", "scale_attn_weights": false}),
            "field 'scale_attn_weights' is false",
        ),
        (json!({"model_type": "glm4", "partial_rotary_factor": -1.0}), "field 'partial_rotary_factor' is -1"),
        (
            json!({"model_type": "ernie4_5_moe", "moe_layer_end_index": i64::MAX}),
            "field 'moe_layer_end_index' is 9223372036854775807",
        ),
        (
            json!({"model_type": "qwen3_5", "rope_theta": 1e7, "head_dim": 8, "attn_output_gate": false}),
            "field 'attn_output_gate' is false",
        ),
        (
            json!({"model_type": "qwen3_5", "rope_theta": 1e7, "head_dim": 8}),
            "field 'linear_num_value_heads' is missing",
        ),
        (json!({"text_config": {"hidden_size": 4}}), "field 'text_config.num_hidden_layers' is missing"),
        (
            json!({"compression_config": {"transform_config": {"config_groups": {"R1": {}}}}}),
            "field 'compression_config.transform_config' rotates activations",
        ),
        (
            json!({"tie_word_embeddings": "no"}),
            "field 'tie_word_embeddings' is \"no\"; expected true or false",
        ),
        (json!({"eos_token_id": [1, "x"]}), "field 'eos_token_id' is an array; expected a token id"),
    ] {
        let said = refusal(open(config(edit.clone())));
        assert!(said.starts_with(&format!("dir/config.json: {want}")), "{edit}: {said}");
    }
    for (text, want) in [("[]", "is not a JSON object"), ("{", "is not JSON"), ("", "is not JSON")] {
        let said = refusal(open(with(tiny_llama(), "config.json", text)));
        assert!(said.starts_with("dir/config.json: ") && said.contains(want), "{said}");
    }
    let said = refusal(open(with(tiny_llama(), "config.json", &b"{\"a\":\"\xff\"}"[..])));
    assert!(said.starts_with("dir/config.json: is not UTF-8"), "{said}");
    let mut none = tiny_llama();
    none.remove("config.json");
    assert!(refusal(open(none)).starts_with("dir/config.json: is missing"));
}

#[test]
fn embedding_models_say_how_they_pool() {
    const FILE: &str = "1_Pooling/config.json";
    let pooled = |text: &'static str| {
        // Such a checkpoint has no head, whatever its config says.
        open(with(config(json!({"tie_word_embeddings": false})), FILE, text))
    };
    let last = pooled(r#"{"word_embedding_dimension": 4, "pooling_mode_lasttoken": true}"#).unwrap();
    assert_eq!(last.metadata.get("llama.pooling_type"), Some(&Value::U64(3)));
    let mean = pooled(r#"{"pooling_mode_mean_tokens": true, "pooling_mode_cls_token": false}"#).unwrap();
    assert_eq!(mean.metadata.get("llama.pooling_type"), Some(&Value::U64(1)));
    for none in ["{}", r#"{"pooling_mode_max_tokens": true}"#] {
        assert!(refusal(pooled(none)).contains("does not choose one of pooling_mode_mean_tokens"));
    }
}

/// A Qwen3.5 with two layers, of which `layer_types` says more.
fn qwen35(edit: Json) -> Checkpoint {
    let mut fields = json!({
        "model_type": "qwen3_5", "rope_parameters": {"rope_theta": 1e7, "mrope_section": [1, 1, 0]}, "head_dim": 8,
        "num_hidden_layers": 2, "linear_num_value_heads": 4, "linear_value_head_dim": 2, "linear_num_key_heads": 2,
        "linear_key_head_dim": 2, "linear_conv_kernel_dim": 4, "mtp_num_hidden_layers": 1,
    });
    for (k, v) in edit.as_object().unwrap() {
        fields[k] = v.clone();
    }
    let tensors: Tensors = &[
        ("model.language_model.embed_tokens.weight", &[6, 4]),
        ("model.language_model.norm.weight", &[4]),
        ("model.language_model.layers.0.linear_attn.A_log", &[4]),
        ("model.language_model.layers.0.linear_attn.norm.weight", &[2]),
        ("model.language_model.layers.0.linear_attn.conv1d.weight", &[16, 1, 4]),
        ("model.language_model.layers.0.linear_attn.surprise", &[3]),
        ("model.visual.patch_embed.proj.weight", &[2]),
        ("mtp.norm.weight", &[4]),
    ];
    with(config(fields), "model.safetensors", safetensors_file(tensors))
}

#[test]
fn qwen35_conventions() {
    let m = open(qwen35(json!({"layer_types": ["linear_attention", "full_attention"]}))).unwrap();
    let bools = |b: &[bool]| Value::Array(b.iter().map(|&b| Value::Bool(b)).collect());
    let k = keys(&m, "qwen35.");
    assert_eq!(k["block_count"], Value::U64(3));
    assert_eq!(k["nextn_predict_layers"], Value::U64(1));
    assert_eq!(k["attention.recurrent_layers"], bools(&[true, false, false]));
    assert_eq!(k["rope.dimension_count"], Value::U64(2));
    assert_eq!(k["rope.dimension_sections"], Value::Ints(vec![1, 1, 0, 0]));
    assert_eq!(k["ssm.inner_size"], Value::U64(8));
    assert_eq!(m.metadata.str("octet.gdn_head_order").unwrap(), "grouped");
    assert_eq!(m.tensor("output_norm.weight", &[4]).unwrap().to_f32(), [1.0, 2.0, 3.0, 4.0]);
    assert_eq!(m.tensor("blk.2.nextn.shared_head_norm.weight", &[4]).unwrap().to_f32(), [1.0, 2.0, 3.0, 4.0]);
    assert_eq!(m.tensor("blk.0.ssm_norm.weight", &[2]).unwrap().to_f32(), [0.0, 1.0]);
    assert_eq!(m.tensor("blk.0.ssm_a", &[4]).unwrap().to_f32(), [0f64, 1., 2., 3.].map(|x| -x.exp() as f32));
    assert_eq!(m.info("blk.0.ssm_conv1d.weight").unwrap().shape, [16, 4]);
    assert_eq!(m.ignored(), ["model.language_model.layers.0.linear_attn.surprise"]);
    m.release("output_norm.weight");

    // Without a list, every fourth layer attends, or as the interval says.
    let m = open(qwen35(json!({"num_hidden_layers": 5}))).unwrap();
    let recurrent = bools(&[true, true, true, false, true, false]);
    assert_eq!(keys(&m, "qwen35.")["attention.recurrent_layers"], recurrent);
    let m = open(qwen35(json!({"full_attention_interval": 2}))).unwrap();
    assert_eq!(keys(&m, "qwen35.")["attention.recurrent_layers"], bools(&[true, false, false]));

    // A re-saved checkpoint has lost its multi-token-prediction tensors; config.json still counts the layer.
    let lost = with(
        qwen35(json!({})),
        "model.safetensors",
        safetensors_file(&[("model.embed_tokens.weight", &[6, 4])]),
    );
    let k = keys(&open(lost).unwrap(), "qwen35.");
    assert_eq!((&k["block_count"], k.get("nextn_predict_layers")), (&Value::U64(2), None));

    for (edit, want) in [
        (json!({"layer_types": ["linear_attention"]}), "field 'layer_types' has 1 entries for 2 layers"),
        (json!({"layer_types": ["linear_attention", "mamba"]}), "field 'layer_types' holds 'mamba'"),
        (json!({"layer_types": [1, 2]}), "field 'layer_types' is an array; expected an array of strings"),
        (json!({"full_attention_interval": 0}), "field 'full_attention_interval' is 0"),
        (
            json!({"linear_value_head_dim": 4_000_000_000u32}),
            "field 'linear_value_head_dim' is 4000000000, too large",
        ),
        (json!({"mtp_num_hidden_layers": 4_000_000_000u32}), "field 'mtp_num_hidden_layers' is 4000000000"),
        (
            json!({"rope_parameters": {"rope_theta": 1, "mrope_section": [1, 1, 1, 1, 1]}}),
            "field 'rope_parameters.mrope_section' is not an array of at most 4",
        ),
    ] {
        let said = refusal(open(qwen35(edit.clone())));
        assert!(said.starts_with(&format!("dir/config.json: {want}")), "{edit}: {said}");
    }
}

#[test]
fn tokenizer_and_generation() {
    let files = [
        ("tokenizer.json", json!({"model": {}})),
        (
            "tokenizer_config.json",
            json!({
                "add_bos_token": true, "bos_token": {"content": "<s>"}, "pad_token": "<p>", "eos_token": "<e>",
                "added_tokens_decoder": {"1": {"content": "<s>"}, "2": {"content": "<p>"}, "3": {"content": "<e>"}},
                "chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}],
            }),
        ),
        (
            "generation_config.json",
            json!({"eos_token_id": [5, 4], "pad_token_id": -1, "temperature": 0.6, "top_k": 20, "top_p": 0.95,
                   "min_p": 0, "repetition_penalty": 1.05}),
        ),
    ];
    let files = files.iter().fold(tiny_llama(), |f, (name, json)| with(f, name, json.to_string()));
    let m = open(files.clone()).unwrap();
    let f = Value::F64;
    for (k, want) in [
        ("tokenizer.huggingface.json", Value::Str(r#"{"model":{}}"#.into())),
        ("tokenizer.ggml.add_bos_token", Value::Bool(true)),
        ("tokenizer.ggml.bos_token_id", Value::U64(1)),
        ("tokenizer.ggml.padding_token_id", Value::U64(2)),
        ("tokenizer.ggml.eos_token_id", Value::U64(5)),
        ("tokenizer.ggml.eos_token_ids", Value::Ints(vec![5, 4])),
        ("tokenizer.chat_template", Value::Str("D".into())),
        ("tokenizer.chat_template.tool_use", Value::Str("T".into())),
        ("general.sampling.temp", f(0.6)),
        ("general.sampling.top_k", Value::U64(20)),
        ("general.sampling.top_p", f(0.95)),
        ("general.sampling.min_p", f(0.0)),
        ("general.sampling.penalty_repeat", f(1.05)),
    ] {
        assert_eq!(m.metadata.get(k), Some(&want), "{k}");
    }

    // Without tokenizer.json, the files of Mistral and Kimi.
    let mut others = files.clone();
    others.remove("tokenizer.json");
    let others = with(others, "tiktoken.model", "YQ== 0\n");
    let m = open(others.clone()).unwrap();
    assert_eq!(m.metadata.str("tokenizer.tiktoken.model").unwrap(), "YQ== 0\n");
    assert_eq!(m.metadata.str("tokenizer.ggml.pre").unwrap(), "kimi-k2");
    assert!(m.metadata.str("tokenizer.tiktoken.added").unwrap().contains(r#""2":{"content":"<p>"}"#));
    let m = open(with(others, "tekken.json", "{}")).unwrap();
    assert_eq!(m.metadata.str("tokenizer.tekken.json").unwrap(), "{}");
    assert!(m.metadata.get("tokenizer.tiktoken.model").is_none());
    let mut spm = files.clone();
    spm.remove("tokenizer.json");
    let refused = refusal(open(with(spm, "tokenizer.model", "no protobuf")));
    assert!(refused.starts_with("dir/tokenizer.model: "), "{refused}");

    // config.json's ids take precedence over the named token's; greedy models have no sampling defaults.
    let mut fewer =
        with(files.clone(), "generation_config.json", r#"{"do_sample": false, "temperature": 1}"#);
    fewer.insert("config.json".into(), config(json!({"eos_token_id": 9}))["config.json"].clone());
    let m = open(fewer).unwrap();
    assert_eq!(m.metadata.opt_ints("tokenizer.ggml.eos_token_ids").unwrap(), Some(&[9][..]));
    assert!(keys(&m, "general.sampling.").is_empty());
    let mut named = files.clone();
    named.remove("generation_config.json");
    assert_eq!(open(named).unwrap().metadata.u32("tokenizer.ggml.eos_token_id").unwrap(), 3);

    // A template's own file takes precedence.
    let m = open(with(files.clone(), "chat_template.json", r#"{"chat_template": "P"}"#)).unwrap();
    assert_eq!(m.metadata.str("tokenizer.chat_template").unwrap(), "P");
    let m = open(with(files.clone(), "chat_template.jinja", "J")).unwrap();
    assert_eq!(m.metadata.str("tokenizer.chat_template").unwrap(), "J");

    for (name, text, want) in [
        (
            "generation_config.json",
            r#"{"temperature": "hot"}"#,
            "field 'temperature' is \"hot\"; expected a number",
        ),
        (
            "generation_config.json",
            r#"{"eos_token_id": 1.5}"#,
            "field 'eos_token_id' is 1.5; expected a token id",
        ),
        ("generation_config.json", "{", "is not JSON"),
        ("tokenizer_config.json", r#"{"chat_template": 1}"#, "field 'chat_template' is neither a string"),
        (
            "tokenizer_config.json",
            r#"{"chat_template": [{"name": "x"}]}"#,
            "field 'chat_template' holds an entry without",
        ),
        (
            "tokenizer_config.json",
            r#"{"add_bos_token": 1}"#,
            "field 'add_bos_token' is 1; expected true or false",
        ),
        (
            "tokenizer_config.json",
            r#"{"bos_token": "b", "added_tokens_decoder": {"x": {"content": "b"}}}"#,
            "field 'added_tokens_decoder' has the key 'x'",
        ),
    ] {
        let said = refusal(open(with(files.clone(), name, text)));
        assert!(said.starts_with(&format!("dir/{name}: {want}")), "{said}");
    }
}

/// The tiny llama in two shards with an index.
fn sharded() -> Checkpoint {
    let mut files = tiny_llama();
    files.remove("model.safetensors");
    let shards: [(&str, Tensors); 2] = [
        ("a.safetensors", &[("model.embed_tokens.weight", &[6, 4]), ("model.norm.weight", &[4])]),
        ("b.safetensors", &[("model.layers.0.input_layernorm.weight", &[4])]),
    ];
    let mut map = serde_json::Map::new();
    for (shard, tensors) in shards {
        files.insert(shard.into(), safetensors_file(tensors).into());
        map.extend(tensors.iter().map(|(name, _)| (name.to_string(), shard.into())));
    }
    with(files, "model.safetensors.index.json", json!({"metadata": {}, "weight_map": map}).to_string())
}

#[test]
fn shards() {
    let m = open(sharded()).unwrap();
    assert_eq!(m.tensors().len(), 3);
    assert_eq!(m.tensor("blk.0.attn_norm.weight", &[4]).unwrap().to_f32(), [0.0, 1.0, 2.0, 3.0]);

    let index = "dir/model.safetensors.index.json: ";
    let mut missing = sharded();
    missing.remove("b.safetensors");
    let said = refusal(open(missing));
    assert!(said.starts_with(index), "{said}");
    assert!(
        said.contains(
            "tensor 'model.layers.0.input_layernorm.weight' is listed in b.safetensors, which is missing"
        ),
        "{said}"
    );

    let swapped = with(sharded(), "b.safetensors", safetensors_file(&[("other", &[1])]));
    let said = refusal(open(swapped));
    assert!(
        said.starts_with(index) && said.contains("is listed in dir/b.safetensors, which does not have it"),
        "{said}"
    );

    let twice: Tensors = &[("model.layers.0.input_layernorm.weight", &[4]), ("model.norm.weight", &[4])];
    let said = refusal(open(with(sharded(), "b.safetensors", safetensors_file(twice))));
    assert!(
        said.contains("safetensors: tensor 'model.norm.weight' is the same as 'model.norm.weight' in dir/"),
        "{said}"
    );

    let cut = sharded()["b.safetensors"].slice(..8 + 96 + 15);
    let said = refusal(open(with(sharded(), "b.safetensors", cut)));
    assert!(
        said.starts_with("dir/b.safetensors: tensor 'model.layers.0.input_layernorm.weight' needs bytes"),
        "{said}"
    );
}

#[test]
fn tensors_that_are_refused() {
    let st = |header: Json, data: usize| {
        let header = header.to_string();
        let mut out = (header.len() as u64).to_le_bytes().to_vec();
        out.extend(header.as_bytes());
        out.resize(out.len() + data, 0);
        with(tiny_llama(), "model.safetensors", out)
    };
    let one = |name: &str, dtype: &str, shape: &[u64], bytes: usize| {
        st(json!({name: {"dtype": dtype, "shape": shape, "data_offsets": [0, bytes]}}), bytes)
    };
    let norm = "model.norm.weight";
    for (files, want) in [
        (
            one(norm, "F8_E4M3", &[4], 4),
            "tensor 'model.norm.weight' is stored as F8_E4M3 [4] beside nothing that says how it is scaled",
        ),
        (one(norm, "F64", &[4], 32), "tensor 'model.norm.weight' is stored as F64"),
        (one(norm, "I64", &[4], 32), "tensor 'model.norm.weight' is stored as I64"),
        (one(norm, "F32", &[], 4), "tensor 'model.norm.weight' has shape []"),
        (one(norm, "F32", &[0], 0), "tensor 'model.norm.weight' has shape [0]"),
        (one(norm, "F32", &[1, 1, 1, 1, 1], 4), "tensor 'model.norm.weight' has shape [1, 1, 1, 1, 1]"),
        (one(norm, "F32", &[u64::MAX, 0], 0), "tensor 'model.norm.weight' has 0 bytes"),
    ] {
        let said = refusal(open(files));
        assert!(said.starts_with(&format!("dir/model.safetensors: {want}")), "{said}");
    }
    // Unused tensors may have any type.
    let m = open(one("position_ids", "I64", &[4], 32)).unwrap();
    assert_eq!((m.tensors().len(), m.ignored()), (0, &["position_ids".to_string()][..]));
    // BF16 and F16 stay as they are.
    for (dtype, ty) in [("BF16", GgmlType::BF16), ("F16", GgmlType::F16)] {
        assert_eq!(open(one(norm, dtype, &[4], 8)).unwrap().tensors()[0].ty, ty);
    }

    // The same tensor under both prefixes.
    let both = safetensors_file(&[(norm, &[4]), ("model.language_model.norm.weight", &[4])]);
    let said = refusal(open(with(tiny_llama(), "model.safetensors", both)));
    assert!(said.contains("only one may be there"), "{said}");

    let conv = safetensors_file(&[("model.layers.0.linear_attn.conv1d.weight", &[16, 2, 4])]);
    let said = refusal(open(with(qwen35(json!({})), "model.safetensors", conv)));
    assert!(
        said.ends_with(
            "'model.layers.0.linear_attn.conv1d.weight' has shape [16, 2, 4]; expected [channels, 1, taps]"
        ),
        "{said}"
    );

    let said = refusal(open(config(json!({"tie_word_embeddings": false}))));
    assert!(said.starts_with("dir: tensor 'lm_head.weight' is missing"), "{said}");
}

/// On disk: the same through mapped files, and the name of a model in the hub's cache.
#[test]
fn directories() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("models--Owner--Some-Model/snapshots/0123abc");
    std::fs::create_dir_all(&dir).unwrap();
    for (name, bytes) in sharded() {
        std::fs::write(dir.join(name), bytes).unwrap();
    }
    let m = Model::open(&dir).unwrap();
    assert_eq!(m.metadata.str("general.name").unwrap(), "Owner/Some-Model");
    assert_eq!(m.tensors(), open(sharded()).unwrap().tensors());
    assert_eq!(m.tensor("output_norm.weight", &[4]).unwrap().to_f32(), [0.0, 1.0, 2.0, 3.0]);
    m.release("output_norm.weight");

    std::fs::remove_file(dir.join("a.safetensors")).unwrap();
    let said = refusal(Model::open(&dir));
    assert!(
        said.contains(
            "index.json: tensor 'model.embed_tokens.weight' is listed in a.safetensors, which is missing"
        ),
        "{said}"
    );
}
