//! Metadata keys that change a model's output. A file is refused if it has a value of one that its architecture did not read.

use octet_weights::Value;

use super::derive;
use super::keys::Keys;
use super::plan::Plan;
use crate::Error;

/// Keys below the architecture's prefix, the values that change nothing, and what they mean. Keys of parts with tensors of their own are not
/// listed: tensors that no part uses are refused while loading.
const NEUTRAL: &[(&str, &[f64], &str)] = &[
    ("attn_logit_softcapping", &[0.0], "soft-capped scores"),
    ("final_logit_softcapping", &[0.0], "soft-capped logits"),
    ("router_logit_softcapping", &[0.0], "soft-capped router logits"),
    ("logit_scale", &[0.0, 1.0], "a scale of logits"),
    ("embedding_scale", &[0.0, 1.0], "a scale of embeddings"),
    ("residual_scale", &[0.0, 1.0], "a scale of blocks"),
    ("attention.causal", &[1.0], "attention in both directions"),
    ("attention.clamp_kqv", &[0.0], "clamped queries, keys and values"),
    ("attention.max_alibi_bias", &[0.0], "ALiBi"),
    ("attention.output_scale", &[0.0, 1.0], "a scale of attention's output"),
    ("attention.value_scale", &[0.0, 1.0], "a scale of values"),
    ("attention.temperature_scale", &[0.0], "queries scaled by position"),
    ("attention.kv_lora_rank", &[0.0], "multi-head latent attention"),
    ("attention.q_lora_rank", &[0.0], "queries of low rank"),
    ("attention.shared_kv_layers", &[0.0], "keys and values shared by layers"),
    ("attention.sliding_window", &[0.0], "sliding windows"),
    ("use_parallel_residual", &[0.0], "blocks side by side"),
    ("swin_norm", &[0.0], "norms of another place"),
    ("leading_dense_block_count", &[0.0], "leading layers without experts"),
    ("interleave_moe_layer_step", &[0.0, 1.0], "layers without experts between others"),
    ("moe_every_n_layers", &[0.0, 1.0], "layers without experts between others"),
    ("moe_latent_size", &[0.0], "experts in a latent space"),
    ("expert_group_count", &[0.0, 1.0], "groups of experts"),
    ("expert_gating_func", &[0.0, 1.0], "a router other than softmax"),
    ("expert_weights_scale", &[0.0, 1.0], "a scale of experts"),
    ("swiglu_clamp_exp", &[0.0], "bounded activations of experts"),
    ("swiglu_clamp_shexp", &[0.0], "bounded activations"),
    ("embedding_length_per_layer_input", &[0.0], "embeddings of each layer"),
    ("altup.num_inputs", &[0.0, 1.0], "several residual streams"),
    ("activation_sparsity_scale", &[f64::NEG_INFINITY], "sparse activations"),
];

/// Fails if a key that was not read has a value that is not neutral. `context` is the model's context, `head_dim` the dimensions of a head.
pub(super) fn refuse(k: &Keys, head_dim: usize, context: usize) -> Result<(), Error> {
    for (key, neutral, what) in NEUTRAL.iter().filter(|(key, ..)| !k.is_read(key)) {
        // Within its window, attention with a window is attention to all.
        let fits = *key == "attention.sliding_window"
            && matches!(k.peek(key), Some(Value::U64(w)) if *w >= context as u64);
        if !fits {
            only(k, key, neutral, what)?;
        }
    }
    if !k.is_read("attention.scale") {
        // Attention divides by the square root of the head size.
        only(k, "attention.scale", &[0.0, 1.0 / (head_dim as f64).sqrt()], "a scale of scores")?;
    }
    if !k.is_read("rope.freq_base_swa") {
        let theta = k.opt_f32("rope.freq_base")?.unwrap_or(10_000.0);
        only(k, "rope.freq_base_swa", &[f64::from(theta)], "rotations that differ by layer")?;
    }
    if !k.is_read("rope.scaling.attn_factor") {
        only(k, "rope.scaling.attn_factor", &[0.0, 1.0], "a factor of the rotation")?;
    }
    Ok(())
}

/// Fails if the context exceeds a window that the model's plan does not have: [`refuse`] accepts one as long as the model's own context.
pub fn check_window(file: &octet_weights::Model, plan: &Plan, context: usize) -> Result<(), Error> {
    let architecture = file.metadata.str("general.architecture")?;
    let window = file.metadata.opt_u32(&format!("{architecture}.attention.sliding_window"))?;
    match window.map(|w| w as usize) {
        Some(window) if window > 0 && context > window && !derive::has_windows(plan) => {
            Err(Error::BeyondWindow { context, window })
        }
        _ => Ok(()),
    }
}

/// Fails if `key` is present and none of `values`.
fn only(k: &Keys, key: &str, values: &[f64], what: &str) -> Result<(), Error> {
    let number = |v: &Value| match v {
        Value::F64(x) => Some(*x),
        Value::U64(x) => Some(*x as f64),
        Value::I64(x) => Some(*x as f64),
        Value::Bool(x) => Some(f64::from(u8::from(*x))),
        _ => None,
    };
    // Files store these as f32.
    let fits = |x: f64| values.iter().any(|v| x == *v || v.is_finite() && (x - v).abs() <= 1e-5 * v.abs());
    let (fine, found) = match k.peek(key) {
        None => return Ok(()),
        Some(Value::Ints(all)) => (all.iter().all(|&x| fits(x as f64)), "an array with other values".into()),
        Some(Value::Floats(all)) => (all.iter().all(|&x| fits(x)), "an array with other values".into()),
        Some(Value::Array(all)) => {
            (all.iter().all(|v| number(v).is_some_and(fits)), "an array with other values".into())
        }
        Some(v) => match number(v) {
            Some(x) => (fits(x), x.to_string()),
            None => (false, "no number".to_string()),
        },
    };
    if fine {
        return Ok(());
    }
    let known = values.iter().map(f64::to_string).collect::<Vec<_>>().join(" or ");
    Err(k.bad(
        key,
        format!(
            "is {found}; only {known} is supported: {what} are not supported for architecture '{}'",
            k.arch
        ),
    ))
}
