//! config.json to GGUF metadata keys.
//!
//! Keys and their meaning are llama.cpp's, below the architecture's prefix, so that the engine reads one dialect. Some
//! keys are ours and say where a checkpoint differs from what a GGUF converter writes:
//! `octet.rope_pairing` = "half", `octet.gdn_head_order` = "grouped", `octet.qkv_rows` = "grouped", `octet.gate_up_rows` =
//! "alternating" and `octet.yarn_ramp` = "not rounded".

use super::arch::{Arch, Keys, LAYERS_MAX, Layout, model_types};
use super::encoder;
use super::families::{self, BAILING_2, BOTH_WAYS};
use super::family_config::{self, ALL_POSITIONS, not_zero};
use super::family_own;
use super::json::Fields;
use super::layer_kinds::known_kinds;
use super::rope::{rope_scaling, sections};
use crate::{Error, Metadata, Value};

/// Values of `model_type` of models with a tower, whose text model may be of several families and has a type of its own.
const WRAPPERS: &[&str] = &["internvl", "llava", "glm46v"];

/// Fields of the text model: nested below `text_config` in multimodal checkpoints, else the whole file.
pub(super) fn text_fields<'a>(root: &Fields<'a>) -> Result<Fields<'a>, Error> {
    Ok(root.opt_object("text_config")?.unwrap_or_else(|| root.clone()))
}

/// Translates config.json. `has_mtp`: the checkpoint has multi-token-prediction tensors at all (many re-saved ones
/// lost them, while their config.json still counts the layers).
pub(super) fn translate(root: &Fields, has_mtp: bool, metadata: &mut Metadata) -> Result<Layout, Error> {
    let text = &text_fields(root)?;
    let model_type = match root.str("model_type")? {
        wrapper if WRAPPERS.contains(&wrapper) => text.str("model_type")?,
        "bailing_moe" if is_second_ling(root)? => BAILING_2,
        model_type => model_type,
    };
    let both_ways = text.get(BOTH_WAYS) == Some(&serde_json::Value::Bool(true));
    let Some(arch) = Arch::of(model_type, both_ways) else {
        let known = model_types().into_iter().map(|(name, _)| name).collect::<Vec<_>>().join(", ");
        return Err(
            root.bad("model_type", format!("is '{model_type}', which is not supported (known: {known})"))
        );
    };
    let arch = match arch {
        Arch::Other(family) if text.opt_u32("n_routed_experts")?.is_some_and(|n| n > 0) => {
            Arch::Other(families::with_experts(family))
        }
        Arch::Other(_) => arch,
        _ => {
            refuse(text)?;
            arch
        }
    };

    metadata.insert("general.architecture", Value::Str(arch.gguf_name().into()));
    metadata.insert("octet.rope_pairing", Value::Str("half".into()));
    let keys = &mut Keys { metadata, prefix: arch.gguf_name() };
    if let Arch::Other(family) = arch {
        let trunk = family_config::translate(text, family, keys)?;
        family_own::translate(text, family, trunk, keys)?;
        let (ranks, first_position) =
            if family.encoder { encoder::translate(text, family, keys)? } else { (false, 0) };
        // An encoder has no output head.
        let tied = if family.encoder { None } else { tied(root, text)? };
        return Ok(Layout {
            arch,
            trunk,
            mtp: 0,
            guessing: Vec::new(),
            tied,
            mlx: false,
            ranks,
            factors: family_own::row_factors(text, family)?,
            first_position,
        });
    }

    let trunk = text.u32("num_hidden_layers")?;
    let mtp = match text.opt_u32("mtp_num_hidden_layers")? {
        Some(n) if has_mtp && arch.is_qwen35() => n,
        _ => 0,
    };
    for (field, n) in [("num_hidden_layers", trunk), ("mtp_num_hidden_layers", mtp)] {
        if n > LAYERS_MAX || (field == "num_hidden_layers" && n == 0) {
            return Err(text.bad(field, format!("is {n}; expected 1 to {LAYERS_MAX}")));
        }
    }
    keys.put_u32("block_count", trunk + mtp);
    if mtp > 0 {
        keys.put_u32("nextn_predict_layers", mtp);
    }
    keys.put_u32("vocab_size", text.u32("vocab_size")?);
    keys.put_u32("context_length", text.u32("max_position_embeddings")?);
    windows(text, arch, trunk as usize, keys)?;
    let head_dim = attention(text, keys)?;
    rope(text, arch, head_dim, keys)?;
    feed_forward(text, arch, keys)?;
    if arch.is_qwen35() {
        gated_deltanet(text, trunk as usize, mtp as usize, keys)?;
        keys.metadata.insert("octet.gdn_head_order", Value::Str("grouped".into()));
    }
    let tied = tied(root, text)?;
    Ok(Layout {
        arch,
        trunk: trunk as usize,
        mtp: mtp as usize,
        guessing: Vec::new(),
        tied,
        mlx: false,
        ranks: false,
        factors: Vec::new(),
        first_position: 0,
    })
}

/// Whether a configuration of Ling is that of its second generation.
fn is_second_ling(root: &Fields) -> Result<bool, Error> {
    let classes = root.opt_strs("architectures")?.unwrap_or_default();
    Ok(classes.iter().any(|c| c.starts_with("BailingMoeV2")) || root.opt_bool("use_qk_norm")? == Some(true))
}

/// Whether the output head is the embedding table, where the file says so.
fn tied(root: &Fields, text: &Fields) -> Result<Option<bool>, Error> {
    let field = "tie_word_embeddings";
    Ok(match (text.opt_bool(field)?, root.opt_bool(field)?) {
        (Some(a), Some(b)) => Some(a || b),
        (a, b) => a.or(b),
    })
}

/// Refuses configurations that would load and compute something else.
fn refuse(text: &Fields) -> Result<(), Error> {
    if text.get(BOTH_WAYS) == Some(&serde_json::Value::Bool(true)) {
        return Err(text.bad(BOTH_WAYS, "is true; only attention to earlier tokens is supported"));
    }
    if let Some(act) = text.opt_str("hidden_act")?
        && act != "silu"
    {
        return Err(text.bad("hidden_act", format!("is '{act}'; only 'silu' is supported")));
    }
    if text.opt_bool("attn_output_gate")? == Some(false) {
        return Err(text.bad("attn_output_gate", "is false; only gated attention is supported"));
    }
    if let Some(step) = text.opt_u32("decoder_sparse_step")?
        && step != 1
    {
        return Err(
            text.bad("decoder_sparse_step", format!("is {step}; only 1 (experts everywhere) is supported"))
        );
    }
    if let Some(clip) = text.opt_f64("clip_qkv")? {
        return Err(text.bad("clip_qkv", format!("is {clip}; only null is supported")));
    }
    if text.opt_array("mlp_only_layers")?.is_some_and(|layers| !layers.is_empty()) {
        return Err(
            text.bad("mlp_only_layers", "is not empty; only models with experts everywhere are supported")
        );
    }
    Ok(())
}

/// The window of attention, and which layers have it. Qwen's configurations have a flag that disables it; Mistral's have no flag.
fn windows(text: &Fields, arch: Arch, layers: usize, keys: &mut Keys) -> Result<(), Error> {
    let kinds = text.opt_strs("layer_types")?;
    if let Some(kinds) = kinds.as_ref().filter(|_| !arch.is_qwen35()) {
        known_kinds(text, kinds, &["full_attention", "sliding_attention"])?;
    }
    let Some(window) = text.opt_u32("sliding_window")? else { return Ok(()) };
    let flag = text.opt_bool("use_sliding_window")?;
    let slides: Vec<bool> = if flag == Some(false) {
        return Ok(());
    } else if let Some(kinds) = kinds {
        if kinds.len() != layers {
            let what = format!("has {} entries for {layers} layers", kinds.len());
            return Err(text.bad("layer_types", what));
        }
        kinds.iter().map(|k| *k == "sliding_attention").collect()
    } else {
        let full = if flag.is_some() { text.opt_u32("max_window_layers")?.unwrap_or(0) } else { 0 };
        (0..layers).map(|i| i >= full as usize).collect()
    };
    if slides.contains(&true) {
        not_zero(text, "sliding_window", window, ALL_POSITIONS)?;
        keys.put_u32("attention.sliding_window", window);
        let pattern = slides.into_iter().map(Value::Bool).collect();
        keys.put("attention.sliding_window_pattern", Value::Array(pattern));
    }
    Ok(())
}

/// Dimensions of attention; gives those of a head.
fn attention(text: &Fields, keys: &mut Keys) -> Result<u32, Error> {
    let hidden = text.u32("hidden_size")?;
    let heads = text.u32("num_attention_heads")?;
    let head_dim = match text.opt_u32("head_dim")? {
        Some(d) => d,
        None if heads > 0 && hidden % heads == 0 => hidden / heads,
        None => {
            let what = format!("is missing, and hidden_size {hidden} does not divide by {heads} heads");
            return Err(text.bad("head_dim", what));
        }
    };
    keys.put_u32("embedding_length", hidden);
    keys.put_u32("attention.head_count", heads);
    // Absent in configs from before grouped-query attention: the number of query heads.
    keys.put_u32("attention.head_count_kv", text.opt_u32("num_key_value_heads")?.unwrap_or(heads));
    keys.put_u32("attention.key_length", head_dim);
    keys.put_u32("attention.value_length", head_dim);
    keys.put("attention.layer_norm_rms_epsilon", Value::F64(text.f64("rms_norm_eps")?));
    Ok(head_dim)
}

fn rope(text: &Fields, arch: Arch, head_dim: u32, keys: &mut Keys) -> Result<(), Error> {
    let nested = match text.opt_object("rope_parameters")? {
        Some(p) => Some(p),
        None => text.opt_object("rope_scaling")?,
    };
    // Older files have these beside the object, newer ones inside it.
    let number = |field: &str| match (&nested, text.opt_f64(field)?) {
        (Some(p), outside) => Ok::<_, Error>(p.opt_f64(field)?.or(outside)),
        (None, outside) => Ok(outside),
    };
    let theta = match number("rope_theta")? {
        // The first Llama, Mistral and OLMoE configs omit it; their code uses 10000.
        None if matches!(arch, Arch::Llama | Arch::Olmoe) => 10_000.0,
        theta => text.need("rope_theta", "a number, here or in rope_parameters", theta)?,
    };
    keys.put("rope.freq_base", Value::F64(theta));

    let default = if arch.is_qwen35() { 0.25 } else { 1.0 };
    let factor = number("partial_rotary_factor")?.unwrap_or(default);
    let dims = (f64::from(head_dim) * factor) as u32;
    if !(0.0..=1.0).contains(&factor) || dims == 0 || !dims.is_multiple_of(2) {
        let what =
            format!("is {factor}, which rotates {dims} of {head_dim} dimensions; expected an even number");
        return Err(text.bad("partial_rotary_factor", what));
    }
    keys.put_u32("rope.dimension_count", dims);

    let Some(p) = nested else { return Ok(()) };
    sections(&p, keys)?;
    rope_scaling(&p, keys)
}

fn feed_forward(text: &Fields, arch: Arch, keys: &mut Keys) -> Result<(), Error> {
    // Their experts are as wide as dense layers of others would be.
    let plain = matches!(arch, Arch::Mixtral | Arch::Olmoe);
    let experts = plain || matches!(arch, Arch::Qwen35Moe | Arch::Qwen3Moe | Arch::Qwen2Moe);
    if plain || !experts {
        keys.put_u32("feed_forward_length", text.u32("intermediate_size")?);
    }
    if !experts {
        return Ok(());
    }
    let experts = match text.opt_u32("num_experts")? {
        Some(n) => n,
        None => {
            let n = text.opt_u32("num_local_experts")?;
            text.need("num_experts", "an unsigned 32-bit integer (or num_local_experts)", n)?
        }
    };
    keys.put_u32("expert_count", experts);
    keys.put_u32("expert_used_count", text.u32("num_experts_per_tok")?);
    if !plain {
        keys.put_u32("expert_feed_forward_length", text.u32("moe_intermediate_size")?);
    }
    match arch {
        Arch::Qwen35Moe | Arch::Qwen2Moe => {
            let shared = text.u32("shared_expert_intermediate_size")?;
            keys.put_u32("expert_shared_feed_forward_length", shared);
        }
        Arch::Qwen3Moe => {
            // Unused by this model, but present in its GGUF files.
            if let Some(n) = text.opt_u32("intermediate_size")? {
                keys.put_u32("feed_forward_length", n);
            }
        }
        _ => {}
    }
    if matches!(arch, Arch::Qwen3Moe | Arch::Qwen2Moe | Arch::Olmoe) {
        // The default of all three in transformers.
        let norm = text.opt_bool("norm_topk_prob")?.unwrap_or(false);
        keys.put("expert_weights_norm", Value::Bool(norm));
    }
    Ok(())
}

fn gated_deltanet(text: &Fields, trunk: usize, mtp: usize, keys: &mut Keys) -> Result<(), Error> {
    let value_heads = text.u32("linear_num_value_heads")?;
    let value_dim = text.u32("linear_value_head_dim")?;
    let inner = value_heads.checked_mul(value_dim).ok_or_else(|| {
        text.bad("linear_value_head_dim", format!("is {value_dim}, too large for {value_heads} heads"))
    })?;
    keys.put_u32("ssm.conv_kernel", text.u32("linear_conv_kernel_dim")?);
    keys.put_u32("ssm.state_size", text.u32("linear_key_head_dim")?);
    keys.put_u32("ssm.group_count", text.u32("linear_num_key_heads")?);
    keys.put_u32("ssm.time_step_rank", value_heads);
    keys.put_u32("ssm.inner_size", inner);

    let interval = text.opt_u32("full_attention_interval")?;
    if interval == Some(0) {
        return Err(text.bad("full_attention_interval", "is 0; expected at least 1"));
    }
    if let Some(n) = interval {
        keys.put_u32("full_attention_interval", n);
    }
    let mut recurrent: Vec<bool> = match text.opt_strs("layer_types")? {
        Some(types) if types.len() == trunk => types
            .into_iter()
            .map(|t| match t {
                "linear_attention" => Ok(true),
                "full_attention" => Ok(false),
                other => Err(text.bad(
                    "layer_types",
                    format!("holds '{other}'; expected 'linear_attention' or 'full_attention'"),
                )),
            })
            .collect::<Result<_, _>>()?,
        Some(types) => {
            return Err(text.bad("layer_types", format!("has {} entries for {trunk} layers", types.len())));
        }
        // The default of the model's own code: every fourth layer has attention.
        None => (1..=trunk as u64).map(|i| i % u64::from(interval.unwrap_or(4)) != 0).collect(),
    };
    recurrent.resize(trunk + mtp, false); // multi-token-prediction layers always attend
    keys.put("attention.recurrent_layers", Value::Array(recurrent.into_iter().map(Value::Bool).collect()));
    Ok(())
}
