//! Fields of a checkpoint's configuration and the metadata keys that they become: to translate them, and for messages about them.

/// The configuration's file.
pub const CONFIG: &str = "config.json";

/// Numbers: a key, and the names that configurations have for it. The first that is present and not null counts.
pub const COUNTS: &[(&str, &[&str])] = &[
    ("embedding_length", &["hidden_size", "n_embd"]),
    ("context_length", &["max_position_embeddings", "n_positions", "model_max_length"]),
    ("vocab_size", &["vocab_size"]),
    ("attention.head_count", &["num_attention_heads", "n_head"]),
    ("attention.q_lora_rank", &["q_lora_rank"]),
    ("attention.kv_lora_rank", &["kv_lora_rank"]),
    ("attention.value_length_mla", &["v_head_dim"]),
    ("attention.shared_kv_layers", &["num_kv_shared_layers"]),
    ("embedding_length_per_layer_input", &["hidden_size_per_layer_input"]),
    ("altup.num_inputs", &["altup_num_inputs"]),
    ("altup.active_idx", &["altup_active_idx"]),
    ("expert_count", &["n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts"]),
    (
        "expert_used_count",
        &["num_experts_per_tok", "top_k_experts", "num_experts_per_token", "moe_k", "moe_topk", "moe_top_k"],
    ),
    ("expert_feed_forward_length", &["moe_intermediate_size"]),
    (
        "expert_shared_count",
        &["n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert"],
    ),
    (
        "expert_shared_feed_forward_length",
        &[
            "moe_shared_expert_intermediate_size",
            "shared_expert_intermediate_size",
            "shared_intermediate_size",
            "share_expert_dim",
        ],
    ),
    ("expert_group_count", &["n_group", "num_expert_group"]),
    ("expert_group_used_count", &["topk_group"]),
    ("leading_dense_block_count", &["first_k_dense_replace", "num_dense_layers", "moe_layer_start_index"]),
    ("moe_latent_size", &["moe_latent_size"]),
    ("ssm.conv_kernel", &["linear_conv_kernel_dim", "conv_kernel", "mamba_d_conv"]),
    ("ssm.state_size", &["linear_key_head_dim", "ssm_state_size", "mamba_d_state"]),
    ("ssm.group_count", &["linear_num_key_heads", "n_groups", "mamba_n_groups"]),
    ("ssm.time_step_rank", &["linear_num_value_heads", "mamba_num_heads", "mamba_n_heads"]),
    ("shortconv.l_cache", &["conv_L_cache"]),
    ("attention.chunk_size", &["attention_chunk_size"]),
    ("interleave_moe_layer_step", &["interleave_moe_layer_step", "moe_layer_interval"]),
];

/// The same for numbers that need not be whole.
pub const NUMBERS: &[(&str, &[&str])] = &[
    (
        "attention.layer_norm_rms_epsilon",
        &["rms_norm_eps", "norm_eps", "layer_norm_epsilon", "layernorm_epsilon"],
    ),
    ("attention.layer_norm_epsilon", &["layer_norm_eps", "norm_epsilon"]),
    ("attn_logit_softcapping", &["attn_logit_softcapping"]),
    ("final_logit_softcapping", &["final_logit_softcapping"]),
    ("attention.scale", &["attention_multiplier"]),
    ("embedding_scale", &["embedding_multiplier"]),
    ("residual_scale", &["residual_multiplier"]),
    ("logit_scale", &["logits_scaling", "output_multiplier", "logit_scale", "lm_head_multiplier"]),
    ("router_logit_softcapping", &["moe_router_logit_softcapping"]),
    (
        "expert_weights_scale",
        &[
            "routed_scaling_factor",
            "moe_routed_scaling_factor",
            "route_scale",
            "moe_router_scaling_factor",
            "router_scaling_factor",
        ],
    ),
    ("attention.value_scale", &["attention_value_scale"]),
    ("attention.query_norm", &["qk_scale_factor"]),
    ("attention.temperature_scale", &["attn_scale"]),
    ("attention.temperature_length", &["floor_scale"]),
];

/// Keys of other tables than those of numbers, and their fields.
const OTHERS: &[(&str, &[&str])] = &[
    ("block_count", &["num_hidden_layers"]),
    ("nextn_predict_layers", &["num_nextn_predict_layers"]),
    ("attention.head_count_kv", &["num_key_value_heads"]),
    ("attention.key_length", &["head_dim"]),
    ("attention.value_length", &["head_dim"]),
    ("attention.key_length_swa", &["head_dim"]),
    ("attention.value_length_swa", &["head_dim"]),
    ("attention.key_length_mla", &["qk_nope_head_dim", "qk_rope_head_dim"]),
    ("attention.sliding_window", &["sliding_window"]),
    ("attention.sliding_window_pattern", &["layer_types", "sliding_window_pattern"]),
    ("attention.recurrent_layers", &["layer_types"]),
    ("feed_forward_length", &["intermediate_size"]),
    ("activation_sparsity_scale", &["activation_sparsity_pattern"]),
    ("expert_weights_norm", &["norm_topk_prob"]),
    ("expert_gating_func", &["scoring_func"]),
    ("rope.freq_base", &["rope_theta"]),
    ("rope.freq_base_swa", &["rope_local_base_freq", "rope_theta of sliding_attention"]),
    ("rope.dimension_count", &["partial_rotary_factor"]),
    ("rope.dimension_count_swa", &["partial_rotary_factor"]),
    ("rope.dimension_sections", &["mrope_section"]),
    ("rope.scaling.type", &["rope_type"]),
    ("rope.scaling.factor", &["factor"]),
    ("rope.scaling.original_context_length", &["original_max_position_embeddings"]),
    ("ssm.inner_size", &["linear_num_value_heads", "linear_value_head_dim", "mamba_d_ssm"]),
    ("full_attention_interval", &["full_attention_interval"]),
];

/// `'head_dim'` for the key `gemma3.attention.key_length`; two names if configurations have either, the usual one of more. `None` for keys that do not come
/// from a configuration.
pub fn fields_of(key: &str) -> Option<String> {
    let (arch, key) = key.split_once('.')?;
    // The width of latent keys and values, and of what rotates beside them.
    let latent: &[&str] = &["kv_lora_rank", "qk_rope_head_dim"];
    let of_latent = ["deepseek2", "kimi-linear", "mistral4"].contains(&arch);
    let fields = match key {
        "attention.key_length" if of_latent => latent,
        _ => COUNTS.iter().chain(NUMBERS).chain(OTHERS).find(|(k, _)| *k == key)?.1,
    };
    Some(match fields {
        [field] => format!("'{field}'"),
        [field, other] => format!("'{field}' or '{other}'"),
        // Too many for a message: the usual one.
        _ => format!("'{}' ({key})", fields.first()?),
    })
}
