//! Tensors of a family's checkpoints under GGUF's names.

use super::arch::Layout;
use super::encoder::is_projection;
use super::families::{AroundZero, Family};
use super::names::{EXPERT, Target, inner, numbered};
use crate::source::Convert;

/// Tensors outside of layers.
const TOP: &[(&str, &str)] = &[
    ("embed_tokens", "token_embd"),
    ("embeddings", "token_embd"),
    ("word_embeddings", "token_embd"),
    ("tok_embeddings", "token_embd"),
    ("embed_in", "token_embd"),
    ("norm", "output_norm"),
    ("norm_f", "output_norm"),
    ("embedding_norm", "token_embd_norm"),
    ("wte", "token_embd"),
    ("wpe", "position_embd"),
    ("ln_f", "output_norm"),
    ("final_layernorm", "output_norm"),
    ("final_layer_norm", "output_norm"),
    ("output", "output"),
    ("embed_out", "output"),
    ("embed_tokens_per_layer", "per_layer_token_embd"),
    ("per_layer_model_projection", "per_layer_model_proj"),
    ("per_layer_projection_norm", "per_layer_proj_norm"),
];

/// Stacks that checkpoints have in parts: `altup_projections.0` and so on.
const NUMBERED: &[(&str, &str)] =
    &[("altup_projections.", "altup_proj"), ("altup_unembed_projections.", "altup_unembd_proj")];

/// Parts of a layer with a weight and perhaps a bias.
const PARTS: &[(&str, &str)] = &[
    ("input_layernorm", "attn_norm"),
    ("ln_1", "attn_norm"),
    ("ln_2", "ffn_norm"),
    ("attn.c_attn", "attn_qkv"),
    ("attn.c_proj", "attn_output"),
    ("attn.attention.q_proj", "attn_q"),
    ("attn.attention.k_proj", "attn_k"),
    ("attn.attention.v_proj", "attn_v"),
    ("attn.attention.out_proj", "attn_output"),
    ("operator_norm", "attn_norm"),
    ("attention_layernorm", "attn_norm"),
    ("feedforward_layernorm", "ffn_norm"),
    ("ffn_norm", "ffn_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("pre_ff_layernorm", "ffn_norm"),
    ("attention_norm", "attn_norm"),
    ("ln_mlp", "attn_norm"),
    ("ln_attn", "attn_norm_2"),
    ("pre_mlp_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
    ("post_feedforward_layernorm_1", "post_ffw_norm_1"),
    ("pre_feedforward_layernorm_2", "pre_ffw_norm_2"),
    ("post_feedforward_layernorm_2", "post_ffw_norm_2"),
    ("post_self_attn_layernorm", "post_attention_norm"),
    ("post_mlp_layernorm", "post_ffw_norm"),
    ("post_per_layer_input_norm", "post_norm"),
    ("per_layer_input_gate", "inp_gate"),
    ("per_layer_projection", "proj"),
    ("altup.modality_router", "altup_router"),
    ("altup.router_norm", "altup_router_norm"),
    ("altup.prediction_coefs", "altup_predict_coef"),
    ("altup.correction_coefs", "altup_correct_coef"),
    ("laurel.linear_left", "laurel_l"),
    ("laurel.linear_right", "laurel_r"),
    ("laurel.post_laurel_norm", "laurel_post_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.out_proj", "attn_output"),
    ("self_attn.dense", "attn_output"),
    ("self_attn.qkv_proj", "attn_qkv"),
    ("self_attention.query_key_value", "attn_qkv"),
    ("self_attention.dense", "attn_output"),
    ("attention.query_key_value", "attn_qkv"),
    ("attention.dense", "attn_output"),
    ("attention.query_layernorm", "attn_q_norm"),
    ("attention.key_layernorm", "attn_k_norm"),
    ("attention.wqkv", "attn_qkv"),
    ("attention.wo", "attn_output"),
    ("self_attn.gate_proj", "attn_gate"),
    ("self_attn.g_proj", "attn_gate"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("self_attn.q_layernorm", "attn_q_norm"),
    ("self_attn.k_layernorm", "attn_k_norm"),
    ("self_attn.query_layernorm", "attn_q_norm"),
    ("self_attn.key_layernorm", "attn_k_norm"),
    ("self_attn.q_a_proj", "attn_q_a"),
    ("self_attn.q_b_proj", "attn_q_b"),
    ("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"),
    ("self_attn.kv_b_proj", "attn_kv_b"),
    ("self_attn.q_a_layernorm", "attn_q_a_norm"),
    ("self_attn.kv_a_layernorm", "attn_kv_a_norm"),
    ("self_attn.f_a_proj", "ssm_f_a"),
    ("self_attn.f_b_proj", "ssm_f_b"),
    ("self_attn.g_a_proj", "ssm_g_a"),
    ("self_attn.g_b_proj", "ssm_g_b"),
    ("self_attn.b_proj", "ssm_beta"),
    ("self_attn.o_norm", "ssm_norm"),
    ("linear_attn.in_proj_qkvz", "attn_qkvz"),
    ("linear_attn.in_proj_ba", "ssm_ba"),
    ("linear_attn.norm", "ssm_norm"),
    ("linear_attn.out_proj", "ssm_out"),
    ("conv.in_proj", "shortconv.in_proj"),
    ("conv.out_proj", "shortconv.out_proj"),
    ("mamba.in_proj", "ssm_in"),
    ("mamba.out_proj", "ssm_out"),
    ("mamba.norm", "ssm_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.gate_up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("mlp.c_fc_0", "ffn_gate"),
    ("mlp.c_fc_1", "ffn_up"),
    ("mlp.c_fc", "ffn_up"),
    ("mlp.c_proj", "ffn_down"),
    ("mlp.dense_h_to_4h", "ffn_up"),
    ("mlp.dense_4h_to_h", "ffn_down"),
    ("mlp.fc1", "ffn_up"),
    ("mlp.fc2", "ffn_down"),
    ("mlp.gate", "ffn_gate_inp"),
    ("mlp.gate.wg", "ffn_gate_inp"),
    ("mlp.router", "ffn_gate_inp"),
    ("mlp.router.gate", "ffn_gate_inp"),
    ("mlp.switch_mlp.gate_proj", "ffn_gate_exps"),
    ("mlp.switch_mlp.up_proj", "ffn_up_exps"),
    ("mlp.switch_mlp.down_proj", "ffn_down_exps"),
    ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
    ("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_expert.up_proj", "ffn_up_shexp"),
    ("mlp.shared_expert.down_proj", "ffn_down_shexp"),
    ("mlp.shared_mlp.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_mlp.up_proj", "ffn_up_shexp"),
    ("mlp.shared_mlp.down_proj", "ffn_down_shexp"),
    ("mlp.shared_experts.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_experts.up_proj", "ffn_up_shexp"),
    ("mlp.shared_experts.down_proj", "ffn_down_shexp"),
    ("moe.gate", "ffn_gate_inp"),
    ("moe.gate_proj", "ffn_gate_exps"),
    ("moe.up_proj", "ffn_up_exps"),
    ("moe.down_proj", "ffn_down_exps"),
    ("share_expert.gate_proj", "ffn_gate_shexp"),
    ("share_expert.up_proj", "ffn_up_shexp"),
    ("share_expert.down_proj", "ffn_down_shexp"),
    ("block_sparse_moe.gate", "ffn_gate_inp"),
    ("block_sparse_moe.shared_experts.gate_proj", "ffn_gate_shexp"),
    ("block_sparse_moe.shared_experts.up_proj", "ffn_up_shexp"),
    ("block_sparse_moe.shared_experts.down_proj", "ffn_down_shexp"),
    ("block_sparse_moe.router.layer", "ffn_gate_inp"),
    ("block_sparse_moe.input_linear", "ffn_gate_up_exps"),
    ("block_sparse_moe.output_linear", "ffn_down_exps"),
    ("shared_mlp.input_linear", "ffn_gate_up_shexp"),
    ("shared_mlp.output_linear", "ffn_down_shexp"),
    ("feed_forward.w1", "ffn_gate"),
    ("feed_forward.w3", "ffn_up"),
    ("feed_forward.w2", "ffn_down"),
    ("feed_forward.gate", "ffn_gate_inp"),
    ("feed_forward.router", "ffn_gate_inp"),
    ("feed_forward.gate_proj", "ffn_gate"),
    ("feed_forward.up_proj", "ffn_up"),
    ("feed_forward.down_proj", "ffn_down"),
    ("feed_forward.shared_expert.gate_proj", "ffn_gate_shexp"),
    ("feed_forward.shared_expert.up_proj", "ffn_up_shexp"),
    ("feed_forward.shared_expert.down_proj", "ffn_down_shexp"),
    ("router.proj", "ffn_gate_inp"),
];

/// Tensors of a layer by their whole names.
const WHOLE: &[(&str, &str, Convert, bool)] = &[
    ("layer_scalar", "layer_output_scale.weight", Convert::None, false),
    ("altup.correct_output_scale", "altup_correct_scale.weight", Convert::None, false),
    ("router.scale", "ffn_gate_inp.scale", Convert::None, false),
    ("router.per_expert_scale", "ffn_down_exps.scale", Convert::None, false),
    ("experts.gate_up_proj", "ffn_gate_up_exps.weight", Convert::None, false),
    ("experts.down_proj", "ffn_down_exps.weight", Convert::None, false),
    ("mlp.experts.gate_up_proj_bias", "ffn_gate_up_exps.bias", Convert::None, false),
    ("mlp.experts.down_proj_bias", "ffn_down_exps.bias", Convert::None, false),
    ("feed_forward.experts.gate_up_proj", "ffn_gate_up_exps.weight", Convert::None, false),
    ("feed_forward.experts.down_proj", "ffn_down_exps.weight", Convert::None, false),
    ("mlp.experts.gate_up_proj", "ffn_gate_up_exps.weight", Convert::None, false),
    ("mlp.experts.down_proj", "ffn_down_exps.weight", Convert::None, false),
    ("mlp.gate.e_score_correction_bias", "exp_probs_b.bias", Convert::None, false),
    ("mlp.e_score_correction_bias", "exp_probs_b.bias", Convert::None, false),
    ("mlp.expert_bias", "exp_probs_b.bias", Convert::None, false),
    ("mlp.gate.expert_bias", "exp_probs_b.bias", Convert::None, false),
    ("moe.router_bias", "exp_probs_b.bias", Convert::None, false),
    ("mlp.experts.e_score_correction_bias", "exp_probs_b.bias", Convert::None, false),
    ("mlp.moe_statics.e_score_correction_bias", "exp_probs_b.bias", Convert::None, false),
    ("block_sparse_moe.e_score_correction_bias", "exp_probs_b.bias", Convert::None, false),
    ("block_sparse_moe.gate.e_score_correction_bias", "exp_probs_b.bias", Convert::None, false),
    ("feed_forward.expert_bias", "exp_probs_b.bias", Convert::None, false),
    ("self_attn.sinks", "attn_sinks.weight", Convert::None, false),
    ("self_attn.attention_sink_bias", "attn_sinks.weight", Convert::None, false),
    ("mlp.act_fn.alpha_p", "xielu.alpha_p", Convert::None, false),
    ("mlp.act_fn.alpha_n", "xielu.alpha_n", Convert::None, false),
    ("mlp.act_fn.beta", "xielu.beta", Convert::None, false),
    ("mlp.act_fn.eps", "xielu.eps", Convert::None, false),
    ("conv.conv.weight", "shortconv.conv.weight", Convert::None, true),
    ("mamba.A_log", "ssm_a", Convert::NegExp, false),
    ("mamba.D", "ssm_d", Convert::None, false),
    ("mamba.dt_bias", "ssm_dt.bias", Convert::None, false),
    ("mamba.conv1d.weight", "ssm_conv1d.weight", Convert::None, true),
    ("mamba.conv1d.bias", "ssm_conv1d.bias", Convert::None, false),
    ("self_attn.A_log", "ssm_a", Convert::NegExp, false),
    ("self_attn.dt_bias", "ssm_dt.bias", Convert::None, false),
    ("self_attn.q_conv1d.weight", "ssm_conv1d_q.weight", Convert::None, true),
    ("self_attn.k_conv1d.weight", "ssm_conv1d_k.weight", Convert::None, true),
    ("self_attn.v_conv1d.weight", "ssm_conv1d_v.weight", Convert::None, true),
    ("linear_attn.A_log", "ssm_a", Convert::NegExp, false),
    ("linear_attn.dt_bias", "ssm_dt.bias", Convert::None, false),
    ("linear_attn.conv1d.weight", "ssm_conv1d.weight", Convert::None, true),
];

/// Parts of other kinds of input.
const TOWERS: &[&str] = &[
    "visual.",
    "vision_tower.",
    "vision_adapter.",
    "vision_projection.",
    "vision_model.",
    "audio_tower.",
    "multi_modal_projector.",
    "vit_large_projector.",
    "embed_vision.",
    "embed_audio.",
];

/// The number of a layer for multi-token prediction, if `hf` is a tensor that only such layers have: the projection of a token's embedding beside
/// the state before it, the norms of both, and a head of its own.
pub(super) fn guessing(hf: &str) -> Option<usize> {
    let (i, rest) = numbered(inner(hf).strip_prefix("layers.")?)?;
    ["eh_proj.", "enorm.", "hnorm.", "shared_head."].iter().any(|part| rest.starts_with(part)).then_some(i)
}

/// What tensor `hf` of a checkpoint of this family is.
pub(super) fn target(family: &Family, layout: &Layout, hf: &str) -> Target {
    let rest = inner(hf);
    let rest =
        ["backbone.", "transformer.", "gpt_neox."].iter().find_map(|p| rest.strip_prefix(p)).unwrap_or(rest);
    // ERNIE 4.5 and MiMo have blocks for multi-token prediction beside their layers.
    if TOWERS.iter().any(|t| rest.starts_with(t))
        || rest.starts_with("mtp_")
        || hf.starts_with("model.mtp.")
        || hf.ends_with("rotary_emb.inv_freq")
    {
        return Target::Unused;
    }
    let plain = |name: String| Target::Tensor { name, convert: Convert::None, squeeze: false };
    let norm = |name: String| {
        let is_layer = name.starts_with("blk.");
        let plus_one = match family.around_zero {
            AroundZero::None => false,
            AroundZero::Layers => is_layer,
            // MLX's own code for this family adds no 1.
            AroundZero::All => !(layout.mlx && family.gguf == "qwen3next"),
        };
        let convert = if plus_one { Convert::PlusOne } else { Convert::None };
        Target::Tensor { name, convert, squeeze: false }
    };
    if is_projection(hf) {
        return plain(hf.into());
    }
    // What it was trained with.
    if family.encoder && rest.starts_with("lm_head.") {
        return Target::Unused;
    }
    if let Some(end) = rest.strip_prefix("lm_head.").filter(|end| matches!(*end, "weight" | "bias")) {
        return plain(format!("output.{end}"));
    }
    let Some(layer) = rest.strip_prefix("layers.").or_else(|| rest.strip_prefix("h.")) else {
        let Some((stem, end)) = rest.rsplit_once('.') else { return Target::Unknown };
        let part = NUMBERED.iter().find_map(|(hf, gguf)| Some((stem.strip_prefix(hf)?, gguf)));
        if let (Some((i, stack)), "weight") = (part, end) {
            return plain(format!("{stack}.{i}.weight"));
        }
        return match (lookup(TOP, stem), end) {
            (Some(name), "weight") if name.contains("norm") => norm(format!("{name}.weight")),
            (Some(name), "weight") => plain(format!("{name}.weight")),
            (Some(name), "bias") if name.contains("norm") => plain(format!("{name}.bias")),
            _ => Target::Unknown,
        };
    };
    let Some((i, rest)) = numbered(layer) else { return Target::Unknown };
    if i >= layout.trunk {
        return if layout.guessing.contains(&i) { Target::Unused } else { Target::Unknown };
    }
    let masks: &[&str] = match family.gguf {
        "gpt2" | "starcoder" => &["attn.bias", "attn.masked_bias"],
        "gptneox" => &["attention.bias", "attention.masked_bias"],
        _ => &[],
    };
    if masks.contains(&rest) {
        return Target::Unused;
    }
    let rest = nemotron(family, rest);
    let found = in_layer(family, &rest);
    match found {
        None => Target::Unknown,
        Some((name, convert, squeeze)) => {
            let name = format!("blk.{i}.{name}");
            let is_norm = name.ends_with("norm.weight") && !name.contains("ssm_norm");
            if is_norm && convert == Convert::None {
                norm(name)
            } else {
                Target::Tensor { name, convert, squeeze }
            }
        }
    }
}

/// Nemotron's layers have one part, `mixer`, of any kind.
fn nemotron<'a>(family: &Family, rest: &'a str) -> std::borrow::Cow<'a, str> {
    let Some(part) = rest.strip_prefix("mixer.").filter(|_| family.gguf.starts_with("nemotron_h")) else {
        return if rest == "norm.weight" { "input_layernorm.weight".into() } else { rest.into() };
    };
    let folder = match part.split('.').next().unwrap_or_default() {
        "q_proj" | "k_proj" | "v_proj" | "o_proj" => "self_attn",
        "up_proj" | "down_proj" | "gate" | "experts" | "shared_experts" => "mlp",
        _ => "mamba",
    };
    format!("{folder}.{part}").into()
}

fn in_layer(family: &Family, rest: &str) -> Option<(String, Convert, bool)> {
    if let Some((_, name, convert, squeeze)) = WHOLE.iter().find(|(hf, ..)| *hf == rest) {
        let is_stack = name.ends_with("_exps.weight");
        let convert = if is_stack && family.inputs_first { Convert::Transpose } else { *convert };
        return Some((name.to_string(), convert, *squeeze));
    }
    let (stem, end) = rest.rsplit_once('.').filter(|(_, end)| matches!(*end, "weight" | "bias"))?;
    if stem == "post_attention_layernorm" {
        return Some((format!("{}.{end}", family.second_norm), Convert::None, false));
    }
    let experts = ["mlp.experts.", "block_sparse_moe.experts.", "feed_forward.experts."];
    let name = match experts.iter().find_map(|p| stem.strip_prefix(p)) {
        Some(expert) => {
            let (e, stem) = numbered(expert)?;
            format!("{}.{e}", lookup(EXPERT, stem)?)
        }
        None => lookup(PARTS, stem)?.to_string(),
    };
    // GPT-2's projections have their inputs first.
    let is_turned = family.gguf == "gpt2" && stem.contains(".c_") && end == "weight";
    let convert = if is_turned { Convert::Transpose } else { Convert::None };
    Some((format!("{name}.{end}"), convert, false))
}

fn lookup<'a>(table: &[(&str, &'a str)], stem: &str) -> Option<&'a str> {
    table.iter().find(|(hf, _)| *hf == stem).map(|(_, gguf)| *gguf)
}
