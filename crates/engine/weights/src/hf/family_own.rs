//! Fields of config.json that one family has, or reads in its own way.

use serde_json::Value as Json;

use super::arch::{Keys, RowFactors};
use super::families::Family;
use super::family_config::{FULL, SLIDING, of_kind, put_windows};
use super::json::Fields;
use super::layer_kinds::layer_kinds;
use crate::{Error, Value};

/// Says that queries, keys and values are in one tensor, by key/value head: its queries, its key, its value, then the next one's.
const QKV_ROWS: &str = "octet.qkv_rows";

/// Metadata of one family with so many layers.
pub(super) fn translate(text: &Fields, family: &Family, layers: usize, keys: &mut Keys) -> Result<(), Error> {
    let kinds = &layer_kinds(text, family, layers)?;
    match family.gguf {
        "falcon-h1" => falcon_h1(text, keys)?,
        "mimo2" => mimo2(text, kinds, keys)?,
        "bailingmoe" | "bailingmoe2" => bailing(text, family)?,
        // Without it, it is not 1.
        "hy_v3" => text.f64("router_scaling_factor").map(drop)?,
        "step35" => step35(text, kinds, keys)?,
        "internlm2" => grouped(keys),
        "deci" => deci(text, keys)?,
        "falcon" => falcon(text, keys)?,
        "gptneox" => {
            let parallel = text.opt_bool("use_parallel_residual")?.unwrap_or(true);
            keys.put("use_parallel_residual", Value::Bool(parallel));
            grouped(keys);
        }
        "gpt2" => layer_norm(text, keys)?,
        "starcoder" => {
            layer_norm(text, keys)?;
            match text.opt_bool("multi_query")?.unwrap_or(true) {
                true => keys.put_u32("attention.head_count_kv", 1),
                false => grouped(keys),
            }
        }
        _ => {}
    }
    // Their code's default is another one than the usual.
    let states_base = ["falcon-h1", "mimo2", "bailingmoe", "bailingmoe2", "step35", "hy_v3", "qwen2"];
    if states_base.contains(&family.gguf) && keys.get("rope.freq_base").is_none() {
        return Err(text.bad("rope_theta", "is missing; expected a number, here or in rope_parameters"));
    }
    Ok(())
}

fn grouped(keys: &mut Keys) {
    keys.metadata.insert(QKV_ROWS, Value::Str("grouped".into()));
}

/// Norms that subtract the mean, whose epsilon has the name of RMS norms in other families.
fn layer_norm(text: &Fields, keys: &mut Keys) -> Result<(), Error> {
    keys.remove("attention.layer_norm_rms_epsilon");
    keys.put("attention.layer_norm_epsilon", Value::F64(text.opt_f64("layer_norm_epsilon")?.unwrap_or(1e-5)));
    Ok(())
}

/// Fails if one of these fields is true.
fn only_false(text: &Fields, fields: &[&str]) -> Result<(), Error> {
    for field in fields {
        if text.opt_bool(field)? == Some(true) {
            return Err(text.bad(field, "is true; only false is supported"));
        }
    }
    Ok(())
}

fn falcon_h1(text: &Fields, keys: &mut Keys) -> Result<(), Error> {
    only_false(text, &["attention_bias", "mlp_bias", "projectors_bias", "mamba_proj_bias"])?;
    let has_norm = text.opt_bool("mamba_rms_norm")? == Some(true);
    if has_norm && text.opt_bool("mamba_norm_before_gate")? != Some(false) {
        let what = "is not false; only a norm after the gate is supported";
        return Err(text.bad("mamba_norm_before_gate", what));
    }
    let inner = inner_of_falcon_h1(text)?;
    let heads = text.u32("mamba_n_heads")?;
    if text.get("mamba_d_head").is_some_and(Json::is_u64) {
        let dim = text.u32("mamba_d_head")?;
        if dim.checked_mul(heads) != Some(inner) {
            let what = format!("is {dim}; {heads} heads of it are not the width of {inner}");
            return Err(text.bad("mamba_d_head", what));
        }
    }
    keys.put_u32("ssm.inner_size", inner);
    Ok(())
}

/// Width of Falcon-H1's recurrent part.
fn inner_of_falcon_h1(text: &Fields) -> Result<u32, Error> {
    match text.opt_u32("mamba_d_ssm")? {
        Some(inner) => Ok(inner),
        None => {
            let expand = text.u32("mamba_expand")?;
            let inner = expand.checked_mul(text.u32("hidden_size")?);
            inner.ok_or_else(|| text.bad("mamba_expand", format!("is {expand}, too large")))
        }
    }
}

/// The multipliers that a family's code applies where others have none.
pub(super) fn row_factors(text: &Fields, family: &Family) -> Result<Vec<RowFactors>, Error> {
    if family.gguf != "falcon-h1" {
        return Ok(Vec::new());
    }
    let one = |field: &str| Ok::<_, Error>(text.opt_f64(field)?.unwrap_or(1.0));
    let some = |field: &str, n: usize| match text.opt_array(field)? {
        None => Ok(vec![1.0; n]),
        Some(all) => {
            let all: Option<Vec<f64>> = all.iter().map(Json::as_f64).collect();
            all.filter(|all| all.len() == n)
                .ok_or_else(|| text.bad(field, format!("is not an array of {n} numbers")))
        }
    };
    let (attention, input) = (one("attention_in_multiplier")?, one("ssm_in_multiplier")?);
    let (of_mlp, of_input) = (some("mlp_multipliers", 2)?, some("ssm_multipliers", 5)?);
    let inner = inner_of_falcon_h1(text)? as usize;
    let groups = text.opt_u32("mamba_n_groups")?.unwrap_or(1) as usize;
    let state = groups.saturating_mul(text.u32("mamba_d_state")? as usize);
    // Of the gate, of the convolution's three parts, and of time steps.
    let rows = [inner, inner, state, state, usize::MAX];
    let all = |factor: f64| vec![(usize::MAX, factor)];
    let mut factors = vec![
        ("attn_q.weight", all(attention)),
        ("attn_k.weight", all(attention * one("key_multiplier")?)),
        ("attn_v.weight", all(attention)),
        ("attn_output.weight", all(one("attention_out_multiplier")?)),
        ("ssm_in.weight", rows.into_iter().zip(of_input.iter().map(|m| m * input)).collect()),
        ("ssm_out.weight", all(one("ssm_out_multiplier")?)),
        ("ffn_gate.weight", all(of_mlp[0])),
        ("ffn_down.weight", all(of_mlp[1])),
    ];
    factors.retain(|(_, parts)| parts.iter().any(|(_, factor)| *factor != 1.0));
    Ok(factors)
}

/// Layers with a window have more key/value heads, and a rotation of their own.
fn mimo2(text: &Fields, kinds: &[String], keys: &mut Keys) -> Result<(), Error> {
    if let Some(layout) = text.opt_str("attention_projection_layout")?.filter(|l| *l == "fused_qkv") {
        let what =
            format!("is '{layout}'; only queries, keys and values in tensors of their own are supported");
        return Err(text.bad("attention_projection_layout", what));
    }
    for (windowed, usual) in [
        ("swa_head_dim", "head_dim"),
        ("swa_v_head_dim", "v_head_dim"),
        ("swa_num_attention_heads", "num_attention_heads"),
    ] {
        let (a, b) = (text.opt_u32(windowed)?, text.opt_u32(usual)?);
        if a.is_some() && a != b {
            return Err(text.bad(windowed, format!("is not {usual}; only that is supported")));
        }
    }
    if let Some(method) = text.opt_str("topk_method")?.filter(|m| *m != "noaux_tc") {
        return Err(text.bad("topk_method", format!("is '{method}'; only 'noaux_tc' is supported")));
    }
    if kinds.is_empty() {
        let what = "is missing, and so is layer_types; expected which layers have windows";
        return Err(text.bad("hybrid_layer_pattern", what));
    }
    let kv = text.u32("num_key_value_heads")?;
    // The library's own configuration has no field for it.
    let windowed = text.opt_u32("swa_num_key_value_heads")?.unwrap_or(kv.saturating_mul(2));
    let heads = kinds.iter().map(|k| i64::from(if *k == SLIDING { windowed } else { kv }));
    keys.put("attention.head_count_kv", Value::Ints(heads.collect()));
    if let Some(dim) = text.opt_u32("v_head_dim")? {
        keys.put_u32("attention.value_length", dim);
    }
    for unused in ["attention.value_length_mla", "attention.chunk_size"] {
        keys.remove(unused);
    }
    if let (Some(dims), Some(turning)) =
        (keys.remove("rope.dimension_count_swa"), keys.get("rope.dimension_count"))
        && dims != *turning
    {
        let what = "differs between layers with and without windows; only the same is supported";
        return Err(text.bad("partial_rotary_factor", what));
    }
    // transformers: so many tokens before a token, and itself.
    if let Some(before) = text.opt_u32("sliding_window_size")? {
        put_windows(kinds, |kind| kind == SLIDING, before.saturating_add(1), keys);
    }
    Ok(())
}

fn bailing(text: &Fields, family: &Family) -> Result<(), Error> {
    only_false(text, &["norm_head", "multi_gate"])?;
    if family.gguf == "bailingmoe2" {
        // Other defaults than the usual ones.
        ["n_group", "topk_group"].into_iter().try_for_each(|field| text.u32(field).map(drop))?;
        text.f64("routed_scaling_factor")?;
    } else if text.opt_bool("norm_topk_prob")?.is_none() {
        return Err(text.bad(
            "norm_topk_prob",
            "is missing; expected whether the weights of a token's experts add up to 1",
        ));
    }
    Ok(())
}

/// Layers with a window have more query heads, and rotate whole heads instead of half.
fn step35(text: &Fields, kinds: &[String], keys: &mut Keys) -> Result<(), Error> {
    if text.opt_array("use_rope_layers")?.is_some_and(|layers| !layers.is_empty()) {
        return Err(text.bad("use_rope_layers", "is not empty; only rotations in all layers are supported"));
    }
    if let Some(kinds) = text.opt_strs("yarn_only_types")?.filter(|kinds| *kinds != [FULL])
        && text.get("rope_scaling").is_some()
    {
        let what = format!("is {kinds:?}; only ['{FULL}'] is supported");
        return Err(text.bad("yarn_only_types", what));
    }
    if kinds.is_empty() {
        return Err(text.bad("layer_types", "is missing; expected the kind of each layer"));
    }
    let parameters = text.opt_object("rope_parameters")?;
    for (kind, expected) in [(FULL, 0.5), (SLIDING, 1.0)] {
        let of = parameters.as_ref().map_or(Ok(None), |p| p.opt_object(kind))?;
        let factor = match of.map_or(Ok(None), |p| p.opt_f64("partial_rotary_factor"))? {
            None => of_kind(text, "partial_rotary_factors", kinds, kind)?,
            factor => factor,
        };
        if factor.unwrap_or(1.0) != expected && kinds.iter().any(|k| *k == kind) {
            let what = format!("is not {expected} for layers with {kind}; only that is supported");
            return Err(text.bad("partial_rotary_factors", what));
        }
    }
    // The part that rotates in layers with a window.
    keys.put_u32("rope.dimension_count", text.u32("head_dim")?);
    keys.remove("rope.dimension_count_swa");
    let (heads, kv) = (text.u32("num_attention_heads")?, kv_heads(text)?.unwrap_or(0));
    let other = text.opt_object("attention_other_setting")?;
    let of_other = |field: &str| other.as_ref().map_or(Ok(None), |o| o.opt_u32(field));
    let windowed = match of_other("num_attention_heads")? {
        None => text.opt_u32("num_sliding_attention_heads")?.unwrap_or(heads),
        Some(heads) => heads,
    };
    let of_kind = |windowed: u32, usual: u32| {
        let count = |k: &String| i64::from(if *k == SLIDING { windowed } else { usual });
        Value::Ints(kinds.iter().map(count).collect())
    };
    keys.put("attention.head_count", of_kind(windowed, heads));
    keys.put("attention.head_count_kv", of_kind(of_other("num_attention_groups")?.unwrap_or(kv), kv));
    for (field, key) in
        [("swiglu_limits", "swiglu_clamp_exp"), ("swiglu_limits_shared", "swiglu_clamp_shexp")]
    {
        let Some(limits) = text.opt_array(field)? else { continue };
        let limit = |limit: &Json| if limit.is_null() { Some(0.0) } else { limit.as_f64() };
        let limits: Option<Vec<f64>> = limits.iter().take(kinds.len()).map(limit).collect();
        let limits = limits
            .filter(|all| all.len() == kinds.len())
            .ok_or_else(|| text.bad(field, format!("is not an array of {} numbers or nulls", kinds.len())))?;
        keys.put(key, Value::Floats(limits));
    }
    Ok(())
}

fn kv_heads(text: &Fields) -> Result<Option<u32>, Error> {
    match text.opt_u32("num_attention_groups")? {
        None => text.opt_u32("num_key_value_heads"),
        groups => Ok(groups),
    }
}

/// What each layer has, in `block_configs`: attention with so many queries for a key, a feed-forward block of this width, or not.
fn deci(text: &Fields, keys: &mut Keys) -> Result<(), Error> {
    let layers = text.u32("num_hidden_layers")? as usize;
    let (all, hidden) = (text.u32("num_attention_heads")?, f64::from(text.u32("hidden_size")?));
    let blocks = text.opt_array("block_configs")?.unwrap_or_default();
    let bad = |i: usize, what: &str| text.bad("block_configs", format!("{what} in layer {i}"));
    if blocks.len() != layers {
        return Err(text.bad("block_configs", format!("has {} entries for {layers} layers", blocks.len())));
    }
    let (mut heads, mut kv, mut widths) = (Vec::new(), Vec::new(), Vec::new());
    for (i, block) in blocks.iter().enumerate() {
        let (attention, ffn) = (&block["attention"], &block["ffn"]);
        if [attention, ffn].into_iter().any(|part| part["replace_with_linear"] == Json::Bool(true)) {
            return Err(bad(
                i,
                "has one matrix in place of a part (replace_with_linear), which is not supported,",
            ));
        }
        for field in [
            "window_length",
            "num_sink_tokens",
            "use_prefill_window_in_sink_attention",
            "unshifted_sink",
            "sparsify",
        ] {
            if ![Json::Null, Json::Bool(false)].contains(&attention[field]) {
                return Err(bad(i, &format!("has {field}, which is not supported,")));
            }
        }
        let group = match &attention["n_heads_in_group"] {
            Json::Null => None,
            n => match n.as_u64().and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0 && all % n == 0) {
                Some(n) => Some(n),
                None => return Err(bad(i, &format!("has {n} heads in a group, of {all},"))),
            },
        };
        heads.push(i64::from(group.map_or(0, |_| all)));
        kv.push(i64::from(group.map_or(0, |n| all / n)));
        let width = match &ffn["ffn_mult"] {
            Json::Null => 0.0,
            m => match m.as_f64().filter(|m| m.is_finite() && *m >= 0.0) {
                // Rounded up to whole blocks, as the model's code does.
                Some(m) => ((2.0 * m * hidden / 3.0).floor() / 256.0).ceil() * 256.0,
                None => return Err(bad(i, &format!("has a width of {m} times the model's,"))),
            },
        };
        widths.push(width as i64);
    }
    keys.put("attention.head_count", Value::Ints(heads));
    keys.put("attention.head_count_kv", Value::Ints(kv));
    keys.put("feed_forward_length", Value::Ints(widths));
    Ok(())
}

fn falcon(text: &Fields, keys: &mut Keys) -> Result<(), Error> {
    only_false(text, &["alibi"])?;
    // The first ones of 40 billion have no flag.
    let is_new = match text.opt_bool("new_decoder_architecture")? {
        None => text.get("n_head_kv").is_some(),
        Some(flag) => flag,
    };
    if !is_new && text.opt_bool("parallel_attn")? == Some(false) {
        let what = "is false; only attention beside the feed-forward block is supported";
        return Err(text.bad("parallel_attn", what));
    }
    let number = |new: &str, old: &str| match text.opt_u32(new)? {
        None => text.opt_u32(old),
        n => Ok(n),
    };
    let heads = number("num_attention_heads", "n_head")?.unwrap_or(0);
    let kv = match text.opt_bool("multi_query")?.unwrap_or(true) {
        _ if is_new => number("num_kv_heads", "n_head_kv")?.unwrap_or(heads),
        true => 1,
        false => heads,
    };
    keys.put_u32("attention.head_count_kv", kv);
    let hidden = text.u32("hidden_size")?;
    let inner = text.opt_u32("ffn_hidden_size")?.unwrap_or(hidden.saturating_mul(4));
    keys.put_u32("feed_forward_length", inner);
    // Older configurations do not state it.
    keys.put_u32("context_length", text.opt_u32("max_position_embeddings")?.unwrap_or(2048));
    layer_norm(text, keys)?;
    grouped(keys);
    Ok(())
}
