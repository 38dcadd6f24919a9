//! config.json of a family to GGUF metadata keys.

use super::arch::{Keys, LAYERS_MAX};
use super::families::{BOTH_WAYS, Family};
use super::json::Fields;
use super::layer_kinds::layer_kinds;
use super::rope::{rope_scaling, sections};
use super::sparse;
use crate::config_fields::{COUNTS, NUMBERS};
use crate::{Error, Value};

/// Metadata of a family; `text` has the fields of the text model. Returns the number of layers.
pub(super) fn translate(text: &Fields, family: &Family, keys: &mut Keys) -> Result<usize, Error> {
    refuse(text, family)?;
    for (key, fields) in COUNTS {
        if let Some(n) = first(fields, |f| count(text, f))? {
            keys.put_u32(key, n);
        }
    }
    for (key, fields) in NUMBERS {
        if let Some(x) = first(fields, |f| text.opt_f64(f))? {
            keys.put(key, Value::F64(x));
        }
    }
    let layers = need(text, &["num_hidden_layers", "n_layer", "num_layers"])?;
    if layers == 0 || layers > LAYERS_MAX {
        let what = format!("is {layers}; expected 1 to {}", LAYERS_MAX);
        return Err(text.bad("num_hidden_layers", what));
    }
    keys.put_u32("block_count", layers);
    if family.gguf == "olmo" {
        // Its code has no field for it.
        keys.put("attention.layer_norm_epsilon", Value::F64(1e-5));
    }
    if family.gguf == "minicpm" {
        multipliers(text, layers, keys)?;
    }
    leading_dense(text, layers as usize, keys)?;
    let kinds = layer_kinds(text, family, layers as usize)?;
    attention(text, &kinds, family, keys)?;
    recurrent(text, keys)?;
    feed_forward(text, &kinds, keys)?;
    if family.gguf == "gemma3n" {
        sparse::activations(text, layers as usize, keys)?;
    }
    if family.adjacent {
        keys.metadata.insert("octet.rope_pairing", Value::Str("adjacent".into()));
    }
    if family.alternating {
        keys.metadata.insert("octet.gate_up_rows", Value::Str("alternating".into()));
    }
    if family.gguf == "qwen3next" {
        keys.metadata.insert("octet.gdn_head_order", Value::Str("grouped".into()));
    }
    Ok(layers as usize)
}

/// MiniCPM's factors of embeddings, blocks and logits.
fn multipliers(text: &Fields, layers: u32, keys: &mut Keys) -> Result<(), Error> {
    let positive = |field: &str| match text.f64(field)? {
        x if x.is_finite() && x > 0.0 => Ok(x),
        x => Err(text.bad(field, format!("is {x}; expected a number above 0"))),
    };
    keys.put("embedding_scale", Value::F64(positive("scale_emb")?));
    keys.put("residual_scale", Value::F64(positive("scale_depth")? / f64::from(layers).sqrt()));
    let hidden = f64::from(text.u32("hidden_size")?);
    keys.put("logit_scale", Value::F64(hidden / positive("dim_model_base")?));
    match text.get("sparse_config") {
        Some(_) => Err(text.bad("sparse_config", "is there; sparse attention is not supported")),
        None => Ok(()),
    }
}

/// Layers without experts, where the configuration has a list: those at the front.
fn leading_dense(text: &Fields, layers: usize, keys: &mut Keys) -> Result<(), Error> {
    let field = "mlp_layer_types";
    if let Some(kinds) = text.opt_strs(field)? {
        let dense = kinds.iter().take_while(|k| **k == "dense").count();
        if kinds.len() != layers || kinds[dense..].iter().any(|k| *k != "sparse") {
            let what = format!("is not 'dense' for some layers, then 'sparse' up to layer {layers}");
            return Err(text.bad(field, what));
        }
        keys.put_u32("leading_dense_block_count", dense as u32);
    }
    let last = "moe_layer_end_index";
    match text.opt_i64(last)?.filter(|i| *i != -1 && *i != layers as i64 - 1) {
        Some(i) => Err(text.bad(last, format!("is {i}; only experts up to the last layer are supported"))),
        None => Ok(()),
    }
}

/// A limit of time steps that none exceeds.
const TIME_STEP_FREE: f64 = 1e15;

/// Refuses configurations that would load and compute something else.
fn refuse(text: &Fields, family: &Family) -> Result<(), Error> {
    let (field, act) = family.act;
    for (field, known) in [(field, act), ("mamba_hidden_act", "silu")] {
        if let Some(other) = text.opt_str(field)?.filter(|a| *a != known) {
            return Err(text.bad(field, format!("is '{other}'; only '{known}' is supported")));
        }
    }
    if text.get(BOTH_WAYS) == Some(&serde_json::Value::Bool(true)) && !family.encoder {
        return Err(text.bad(BOTH_WAYS, "is true; only attention to earlier tokens is supported"));
    }
    if let Some(step) = text.opt_u32("decoder_sparse_step")?.filter(|n| *n != 1) {
        let what = format!("is {step}; only 1 (experts everywhere) is supported");
        return Err(text.bad("decoder_sparse_step", what));
    }
    if text.opt_array("mlp_only_layers")?.is_some_and(|layers| !layers.is_empty()) {
        let what = "is not empty; only models with experts everywhere are supported";
        return Err(text.bad("mlp_only_layers", what));
    }
    if let Some(clip) = text.opt_f64("clip_qkv")? {
        return Err(text.bad("clip_qkv", format!("is {clip}; only null is supported")));
    }
    for field in ["moe_apply_router_weight_on_input", "scale_attn_by_inverse_layer_idx"] {
        if text.opt_bool(field)? == Some(true) {
            return Err(text.bad(field, "is true; only false is supported"));
        }
    }
    if let Some(limit) = text.opt_array("time_step_limit")? {
        // Infinity is read as null, and newer transformers write an object in its place.
        let is_free = |high: &serde_json::Value| {
            high.is_null()
                || high["__float__"] == "Infinity"
                || high.as_f64().is_some_and(|n| n >= TIME_STEP_FREE)
        };
        if !matches!(limit, [low, high] if low.as_f64() == Some(0.0) && is_free(high)) {
            let what =
                format!("is {}; only [0, infinity] is supported", serde_json::Value::from(limit.to_vec()));
            return Err(text.bad("time_step_limit", what));
        }
    }
    if text.opt_bool("scale_attn_weights")? == Some(false) {
        return Err(text.bad("scale_attn_weights", "is false; only true is supported"));
    }
    // DeepSeek V2's groups are chosen by their best expert, later ones by their two best.
    let groups = text.opt_u32("n_group")?.unwrap_or(1);
    if groups > 1 && text.opt_str("topk_method")? == Some("group_limited_greedy") {
        let what = format!("is 'group_limited_greedy' with {groups} groups; only 'noaux_tc' is supported");
        return Err(text.bad("topk_method", what));
    }
    refuse_of_family(text, family)
}

/// Refuses what only one family can say.
fn refuse_of_family(text: &Fields, family: &Family) -> Result<(), Error> {
    if let Some(rotate) = text.opt_array("no_rope_layers")?.filter(|_| family.gguf == "smollm3") {
        let is_usual = |(i, flag): (usize, &serde_json::Value)| flag.as_u64() == Some(u64::from(i % 4 != 3));
        if !rotate.iter().enumerate().all(is_usual) {
            return Err(text.bad("no_rope_layers", "is not 0 for each fourth layer and 1 for all others"));
        }
    }
    if ["cohere2moe", "laguna"].contains(&family.gguf) {
        text.need("layer_types", "the kind of each layer", text.opt_strs("layer_types")?)?;
    }
    if family.gguf == "afmoe" && text.opt_bool("mup_enabled")? != Some(true) {
        return Err(text.bad("mup_enabled", "is not true; only scaled embeddings are supported"));
    }
    if family.gguf == "cohere2moe" {
        let combined = text.opt_str("shared_expert_combination_strategy")?.unwrap_or("average");
        for (field, is, known) in [
            ("expert_selection_fn", text.str("expert_selection_fn")?, "sigmoid"),
            ("shared_expert_combination_strategy", combined, "average"),
        ] {
            if is != known {
                return Err(text.bad(field, format!("is '{is}'; only '{known}' is supported")));
            }
        }
    }
    // GGUF has no key for it.
    let jitter = text.opt_f64("router_jitter_noise")?.filter(|_| family.gguf == "phimoe");
    if let Some(jitter) = jitter.filter(|j| *j != 0.01) {
        let what = format!("is {jitter}; only 0.01 is supported, as it decides how experts are weighed");
        return Err(text.bad("router_jitter_noise", what));
    }
    Ok(())
}

/// A number, which some configurations repeat for each layer.
fn count(text: &Fields, field: &str) -> Result<Option<u32>, Error> {
    match text.get(field) {
        Some(serde_json::Value::Array(all)) => match &all[..] {
            [one, rest @ ..] if rest.iter().all(|n| n == one) => {
                match one.as_u64().and_then(|n| n.try_into().ok()) {
                    Some(n) => Ok(Some(n)),
                    None => Err(text.bad(field, "is not an array of unsigned 32-bit integers")),
                }
            }
            _ => Err(text.bad(field, "is not the same for all layers; only that is supported")),
        },
        _ => text.opt_u32(field),
    }
}

/// A number under one of these names.
fn need(text: &Fields, fields: &[&str]) -> Result<u32, Error> {
    first(fields, |f| text.opt_u32(f))?.map_or_else(|| text.u32(fields[0]), Ok)
}

fn first<'a, T>(
    fields: &[&'a str],
    get: impl Fn(&'a str) -> Result<Option<T>, Error>,
) -> Result<Option<T>, Error> {
    for field in fields {
        if let Some(x) = get(field)? {
            return Ok(Some(x));
        }
    }
    Ok(None)
}

fn attention(text: &Fields, kinds: &[String], family: &Family, keys: &mut Keys) -> Result<(), Error> {
    let hidden = need(text, &["hidden_size", "n_embd"])?;
    let heads = need(text, &["num_attention_heads", "n_head"])?;
    let head_dim = match text.opt_u32("head_dim")? {
        Some(d) => d,
        None if heads > 0 && hidden % heads == 0 => hidden / heads,
        None => {
            let what = format!("is missing, and hidden_size {hidden} does not divide by {heads} heads");
            return Err(text.bad("head_dim", what));
        }
    };
    let kv = first(&["num_key_value_heads", "num_attention_groups"], |f| text.opt_u32(f))?.unwrap_or(heads);
    let slides = |kind: &str| kind == "sliding_attention";
    let attends = |kind: &str| {
        slides(kind) || ["full_attention", "chunked_attention", "attention", "*"].contains(&kind)
    };
    // Gemma 4's layers without a window have heads of another size and number.
    let global = text.opt_u32("num_global_key_value_heads")?.unwrap_or(kv);
    let counts = kinds.iter().map(|k| match &**k {
        k if slides(k) || !attends(k) => {
            if attends(k) {
                kv
            } else {
                0
            }
        }
        _ => global,
    });
    let is_mixed = kinds.iter().any(|k| !attends(k)) || global != kv;
    if is_mixed && family.gguf != "qwen3next" {
        keys.put("attention.head_count_kv", Value::Ints(counts.map(i64::from).collect()));
    } else {
        keys.put_u32("attention.head_count_kv", kv);
    }
    if let Some(heads) = text.opt_array("num_attention_heads_per_layer")? {
        let heads: Option<Vec<i64>> =
            heads.iter().map(|n| u32::try_from(n.as_u64()?).ok().map(i64::from)).collect();
        let wrong = || text.bad("num_attention_heads_per_layer", "is not an array of numbers of heads");
        keys.put("attention.head_count", Value::Ints(heads.ok_or_else(wrong)?));
    }
    if let Some(nope) = text.opt_u32("qk_nope_head_dim")? {
        let rotated = text.u32("qk_rope_head_dim")?;
        keys.put_u32("attention.key_length_mla", nope.saturating_add(rotated));
        keys.put_u32("rope.dimension_count", rotated);
        keys.put_u32("attention.key_length", text.u32("kv_lora_rank")?.saturating_add(rotated));
    } else {
        let full = text.opt_u32("global_head_dim")?.unwrap_or(head_dim);
        keys.put_u32("attention.key_length", full);
        keys.put_u32("attention.value_length", full);
        if full != head_dim {
            keys.put_u32("attention.key_length_swa", head_dim);
            keys.put_u32("attention.value_length_swa", head_dim);
        }
    }
    // Gemma 3n's configurations have it, but its code does not read it.
    let scalar = text.opt_f64("query_pre_attn_scalar")?.filter(|_| family.gguf != "gemma3n");
    if let Some(scalar) = scalar {
        keys.put("attention.scale", Value::F64(1.0 / scalar.sqrt()));
    }
    windows(text, kinds, keys)?;
    if text.opt_str("position_embedding_type")? == Some("nope") {
        keys.put("rope.scaling.finetuned", Value::Bool(false));
    }
    if family.gguf == "qwen3next" && !kinds.is_empty() {
        let recurrent = kinds.iter().map(|k| Value::Bool(k == "linear_attention")).collect();
        keys.put("attention.recurrent_layers", Value::Array(recurrent));
    }
    rotation(text, head_dim, kinds, keys)
}

/// Windows or chunks of attention.
fn windows(text: &Fields, kinds: &[String], keys: &mut Keys) -> Result<(), Error> {
    let slides = |kind: &str| kind == "sliding_attention";
    if kinds.iter().any(|k| k == "chunked_attention") {
        let chunk = text.u32("attention_chunk_size")?;
        put_windows(kinds, |k| k == "chunked_attention", chunk, keys);
    }
    let disabled = text.opt_bool("use_sliding_window")? == Some(false);
    let named = |field: &'static str| Ok(text.opt_u32(field)?.map(|value| (field, value)));
    let window = first(&["sliding_window", "local_attention"], named)?;
    // Some configurations state a window that no layer has.
    let is_used = kinds.is_empty() || kinds.iter().any(|k| slides(k));
    if let Some((field, window)) = window.filter(|_| !disabled && is_used) {
        not_zero(text, field, window, ALL_POSITIONS)?;
        put_windows(kinds, slides, window, keys);
        // Older configurations say which layers have it by a period.
        if kinds.is_empty()
            && let Some((field, period)) =
                first(&["sliding_window_pattern", "global_attn_every_n_layers"], named)?
        {
            not_zero(text, field, period, "")?;
            keys.put_u32("attention.sliding_window_pattern", period);
        }
    }
    Ok(())
}

/// What a window may be else.
pub(super) const ALL_POSITIONS: &str = ", or null for attention to all positions";

/// In transformers a window of 0 hides all positions, and a period of 0 is an error.
pub(super) fn not_zero(text: &Fields, field: &str, value: u32, or: &str) -> Result<(), Error> {
    match value {
        0 => Err(text.bad(field, format!("is 0; expected at least 1{or}"))),
        _ => Ok(()),
    }
}

/// A window of the layers that have one; without kinds of layers, the architecture knows which.
pub(super) fn put_windows(kinds: &[String], slides: impl Fn(&str) -> bool, window: u32, keys: &mut Keys) {
    keys.put_u32("attention.sliding_window", window);
    if kinds.iter().any(|k| slides(k)) {
        let pattern = kinds.iter().map(|k| Value::Bool(slides(k))).collect();
        keys.put("attention.sliding_window_pattern", Value::Array(pattern));
    }
}

fn rotation(text: &Fields, head_dim: u32, kinds: &[String], keys: &mut Keys) -> Result<(), Error> {
    let parameters = match text.opt_object("rope_parameters")? {
        Some(p) => Some(p),
        None => text.opt_object("rope_scaling")?,
    };
    // Gemma has parameters of its own for layers with windows.
    let of = |kind: &str| parameters.as_ref().map_or(Ok(None), |p| p.opt_object(kind));
    let (full, windowed) = (of("full_attention")?, of("sliding_attention")?);
    let p = full.as_ref().or(parameters.as_ref());
    let number = |field: &str| match p.map_or(Ok(None), |p| p.opt_f64(field))? {
        None => of_kind(text, field, kinds, FULL),
        x => Ok(x),
    };
    let theta = match number("rope_theta")? {
        None => first(&["global_rope_theta", "rotary_emb_base"], |f| text.opt_f64(f))?,
        theta => theta,
    };
    if let Some(theta) = theta {
        keys.put("rope.freq_base", Value::F64(theta));
    }
    let local = match windowed.as_ref().map_or(Ok(None), |p| p.opt_f64("rope_theta"))? {
        None => first(&["rope_local_base_freq", "local_rope_theta", "swa_rope_theta"], |f| text.opt_f64(f))?,
        theta => theta,
    };
    // Step's configurations have a list.
    let local = match text.get("rope_theta").is_some_and(serde_json::Value::is_array) {
        true if local.is_none() => of_kind(text, "rope_theta", kinds, SLIDING)?,
        _ => local,
    };
    // OLMo 3 scales rotations in layers without a window only.
    let local = local.or(theta.filter(|_| keys.prefix == "olmo2" && text.get("sliding_window").is_some()));
    if let Some(factor) = windowed.map_or(Ok(None), |p| p.opt_f64("partial_rotary_factor"))? {
        keys.put_u32("rope.dimension_count_swa", (f64::from(head_dim) * factor) as u32);
    }
    if let Some(theta) = local {
        keys.put("rope.freq_base_swa", Value::F64(theta));
    }
    // Older configurations have the second name.
    let kind = p.map_or(Ok(None), |p| first(&["rope_type", "type"], |f| p.opt_str(f)))?;
    let factor = first(&["partial_rotary_factor", "rotary_pct"], number)?.unwrap_or(match keys.prefix {
        "bailingmoe2" | "chatglm" | "glm4" | "glm4moe" | "nemotron" | "phi2" => 0.5,
        "gptneox" | "qwen3next" | "stablelm" => 0.25,
        _ => 1.0,
    });
    if !(factor > 0.0 && factor <= 1.0) || (head_dim > 0 && f64::from(head_dim) * factor < 1.0) {
        let what = format!("is {factor}; expected the share of {head_dim} dimensions that rotate, up to 1");
        return Err(text.bad("partial_rotary_factor", what));
    }
    match text.opt_u32("rotary_dim")? {
        Some(dims) => keys.put_u32("rope.dimension_count", dims),
        // All dimensions are paired, and the first pairs turn.
        None if kind == Some("proportional") => {
            let pairs = text.opt_u32("global_head_dim")?.unwrap_or(head_dim) / 2;
            keys.put_u32("rope.turning_pairs", (f64::from(pairs) * factor) as u32);
        }
        None if text.opt_u32("qk_rope_head_dim")?.is_none() => {
            keys.put_u32("rope.dimension_count", (f64::from(head_dim) * factor) as u32);
        }
        None => {}
    }
    match (kind, p) {
        (Some("longrope" | "su"), Some(p)) => longrope(text, p, keys)?,
        // Hunyuan's: another base, whatever the length.
        (Some("dynamic"), Some(p)) if p.get("alpha").is_some() => {
            let (alpha, dims) = (p.f64("alpha")?, f64::from(head_dim));
            let theta = theta.unwrap_or(10_000.0) * alpha.powf(dims / (dims - 2.0));
            if !theta.is_finite() || theta <= 0.0 {
                return Err(p.bad("alpha", format!("is {alpha}, which gives a base of {theta}")));
            }
            keys.put("rope.freq_base", Value::F64(theta));
        }
        (Some("proportional") | None, _) | (_, None) => {}
        // It changes what is beyond the context of the configuration only.
        (Some("dynamic"), _) if text.opt_str("model_type")?.is_some_and(|t| t.starts_with("internlm")) => {}
        (_, Some(p)) => rope_scaling(p, keys)?,
    }
    let Some(p) = p else { return Ok(()) };
    sections(p, keys)?;
    if let Some(beta) = p.opt_f64("llama_4_scaling_beta")? {
        keys.put("attention.temperature_scale", Value::F64(beta));
    }
    if let (Some("yarn"), Some(all)) = (kind, p.opt_f64("mscale_all_dim")?) {
        // DeepSeek's converters store a tenth; the attention factor is then that of both multipliers.
        let unit = if text.get("kv_lora_rank").is_some() { 0.1 } else { 1.0 };
        keys.put("rope.scaling.yarn_log_multiplier", Value::F64(unit * all));
        keys.put("rope.scaling.attn_factor", Value::F64(1.0));
    }
    Ok(())
}

/// Kinds of layers.
pub(super) const FULL: &str = "full_attention";
pub(super) const SLIDING: &str = "sliding_attention";

/// A number; or where there is a list with one for each layer, that of the layers of `kind`.
pub(super) fn of_kind(
    text: &Fields,
    field: &str,
    kinds: &[String],
    kind: &str,
) -> Result<Option<f64>, Error> {
    let Some(list) = text.get(field).and_then(serde_json::Value::as_array) else {
        return text.opt_f64(field);
    };
    if list.len() < kinds.len() || kinds.is_empty() {
        let what = format!(
            "has {} numbers; expected one, or one for each of {} layer_types",
            list.len(),
            kinds.len()
        );
        return Err(text.bad(field, what));
    }
    let mut own = list.iter().zip(kinds).filter(|(_, k)| *k == kind).map(|(n, _)| n.as_f64());
    match own.next() {
        None => Ok(None),
        Some(Some(x)) if own.all(|n| n == Some(x)) => Ok(Some(x)),
        Some(_) => Err(text.bad(field, "is not the same number for all layers of a kind")),
    }
}

/// LongRoPE's two lists of divisors, and the factor of sines and cosines.
fn longrope(text: &Fields, p: &Fields, keys: &mut Keys) -> Result<(), Error> {
    for (field, key) in
        [("long_factor", "rope.scaling.long_factor"), ("short_factor", "rope.scaling.short_factor")]
    {
        let list = p.opt_array(field)?.unwrap_or_default().iter().map(|v| v.as_f64());
        let list: Option<Vec<f64>> = list.collect();
        keys.put(key, Value::Floats(list.ok_or_else(|| p.bad(field, "is not an array of numbers"))?));
    }
    let original = match p.opt_u32("original_max_position_embeddings")? {
        None => text.u32("original_max_position_embeddings")?,
        Some(n) => n,
    };
    let scale = f64::from(text.u32("max_position_embeddings")?) / f64::from(original.max(1));
    let factor = if scale <= 1.0 { 1.0 } else { (1.0 + scale.ln() / f64::from(original).ln()).sqrt() };
    keys.put("rope.scaling.type", Value::Str("longrope".into()));
    keys.put_u32("rope.scaling.original_context_length", original);
    // Phi-3.5-MoE states a factor for each list.
    let of_list = p.opt_f64(if scale > 1.0 { "long_mscale" } else { "short_mscale" })?;
    let stated = p.opt_f64("attention_factor")?.or(of_list);
    keys.put("rope.scaling.attn_factor", Value::F64(stated.unwrap_or(factor)));
    Ok(())
}

fn recurrent(text: &Fields, keys: &mut Keys) -> Result<(), Error> {
    if let Some(linear) = text.opt_object("linear_attn_config")? {
        let (heads, all) = (linear.u32("num_heads")?, text.u32("num_attention_heads")?);
        if heads != all {
            return Err(
                linear.bad("num_heads", format!("is {heads}; only num_attention_heads, {all}, is supported"))
            );
        }
        if text.opt_bool("mla_use_nope")? != Some(true) {
            return Err(text.bad("mla_use_nope", "is not true; only attention without rotation is supported"));
        }
        keys.put_u32("kda.head_dim", linear.u32("head_dim")?);
        keys.put_u32("ssm.conv_kernel", linear.u32("short_conv_kernel_size")?);
    }
    for (heads, dim) in [
        ("linear_num_value_heads", "linear_value_head_dim"),
        ("mamba_num_heads", "mamba_head_dim"),
        ("mamba_n_heads", "mamba_d_head"),
    ] {
        // Falcon-H1's may be "auto".
        if text.get(dim).is_some_and(serde_json::Value::is_string) {
            continue;
        }
        if let (Some(h), Some(d)) = (text.opt_u32(heads)?, text.opt_u32(dim)?) {
            let inner = h.checked_mul(d);
            keys.put_u32("ssm.inner_size", inner.ok_or_else(|| text.bad(dim, format!("is {d}, too large")))?);
        }
    }
    Ok(())
}

fn feed_forward(text: &Fields, kinds: &[String], keys: &mut Keys) -> Result<(), Error> {
    if keys.prefix == "gemma3n"
        && let Some(widths) = sparse::widths(text)?
    {
        keys.put("feed_forward_length", widths);
        return Ok(());
    }
    // Where experts have the usual name, dense layers have another one.
    let of_dense = first(&["intermediate_size_mlp", "prefix_dense_intermediate_size"], |f| text.opt_u32(f))?;
    let usual = match first(&["intermediate_size", "n_inner"], |f| text.opt_u32(f))? {
        Some(n) => n,
        // GPT-2's default.
        None => text.opt_u32("n_embd")?.unwrap_or(0).saturating_mul(4),
    };
    let inner = of_dense.unwrap_or(usual);
    if of_dense.is_some() {
        keys.put_u32("expert_feed_forward_length", text.u32("intermediate_size")?);
    }
    let expert = count(text, "moe_intermediate_size")?.unwrap_or(inner);
    let nemotron = text.opt_str("hybrid_override_pattern")?.is_some();
    let wide = text.opt_bool("use_double_wide_mlp")? == Some(true);
    if nemotron {
        let width = |k: &String| match &**k {
            "E" => i64::from(expert),
            "-" => i64::from(inner),
            _ => 0,
        };
        keys.put("feed_forward_length", Value::Ints(kinds.iter().map(width).collect()));
    } else if let (true, Some(shared)) = (wide, text.opt_u32("num_kv_shared_layers")?) {
        let own = kinds.len().saturating_sub(shared as usize);
        let width = |i: usize| i64::from(inner) * if i < own { 1 } else { 2 };
        keys.put("feed_forward_length", Value::Ints((0..kinds.len()).map(width).collect()));
    } else {
        keys.put_u32("feed_forward_length", inner);
    }
    let norms = ["norm_topk_prob", "moe_renormalize", "route_norm", "norm_expert_weight"];
    let norm = first(&norms, |f| text.opt_bool(f))?;
    if let Some(norm) = norm {
        keys.put("expert_weights_norm", Value::Bool(norm));
    }
    let fields = [
        "moe_router_activation_func",
        "moe_router_activation",
        "expert_selection_fn",
        "score_func",
        "score_function",
    ];
    let field = fields.into_iter().find(|f| text.get(f).is_some()).unwrap_or("scoring_func");
    let func = match text.opt_str(field)? {
        Some("sigmoid") => Some(2),
        Some("softmax") => Some(1),
        Some(other) => return Err(text.bad(field, format!("is '{other}'; expected sigmoid or softmax"))),
        None => None,
    };
    if let Some(func) = func {
        keys.put_u32("expert_gating_func", func);
    }
    Ok(())
}
