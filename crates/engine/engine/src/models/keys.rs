//! Metadata keys that other programs support and Octet does not: a file with a value that would change the result is refused. Called
//! by `Config::read`.

use octet_weights::Value;

use super::config::Keys;
use crate::Error;

/// Keys below the architecture's prefix, and their values that change nothing. Keys of other architectures' own parts are not listed;
/// their tensors are refused while loading.
const NEUTRAL: &[(&str, &[f64])] = &[
    ("attn_logit_softcapping", &[0.0]),
    ("final_logit_softcapping", &[0.0]),
    ("router_logit_softcapping", &[0.0]),
    ("logit_scale", &[0.0, 1.0]),
    ("embedding_scale", &[0.0, 1.0]),
    ("residual_scale", &[0.0, 1.0]),
    ("attention.causal", &[1.0]),
    ("attention.clamp_kqv", &[0.0]),
    ("attention.max_alibi_bias", &[0.0]),
    ("attention.output_scale", &[0.0, 1.0]),
    ("attention.temperature_scale", &[0.0]),
    ("attention.kv_lora_rank", &[0.0]),
    ("attention.q_lora_rank", &[0.0]),
    ("attention.shared_kv_layers", &[0.0]),
    ("use_parallel_residual", &[0.0]),
    ("swin_norm", &[0.0]),
    // Experts in every layer, chosen by softmax from all of them.
    ("leading_dense_block_count", &[0.0]),
    ("interleave_moe_layer_step", &[0.0, 1.0]),
    ("moe_every_n_layers", &[0.0, 1.0]),
    ("expert_group_count", &[0.0, 1.0]),
    ("expert_group_used_count", &[0.0, 1.0]),
    ("expert_gating_func", &[0.0, 1.0]),
    ("expert_weights_scale", &[0.0, 1.0]),
];

/// Fails if a key has a value that is not neutral.
pub(super) fn refuse(k: &Keys, head_dim: usize) -> Result<(), Error> {
    for (key, neutral) in NEUTRAL {
        only(k, key, neutral)?;
    }
    // Attention divides by the square root of the head size.
    only(k, "attention.scale", &[0.0, 1.0 / (head_dim as f64).sqrt()])?;
    let theta = k.opt_f32("rope.freq_base")?.unwrap_or(10_000.0);
    only(k, "rope.freq_base_swa", &[f64::from(theta)])?;
    if k.opt_str("rope.scaling.type")? != Some("yarn") {
        only(k, "rope.scaling.attn_factor", &[0.0, 1.0])?;
    }
    Ok(())
}

/// Fails if `key` is present and none of `values`.
fn only(k: &Keys, key: &str, values: &[f64]) -> Result<(), Error> {
    let number = |v: &Value| match v {
        Value::F64(x) => Some(*x),
        Value::U64(x) => Some(*x as f64),
        Value::I64(x) => Some(*x as f64),
        Value::Bool(x) => Some(f64::from(u8::from(*x))),
        _ => None,
    };
    // Files store these as f32.
    let fits = |x: f64| values.iter().any(|v| (x - v).abs() <= 1e-5 * v.abs());
    let (fine, found) = match k.get(key) {
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
        format!("is {found}; only {known} is supported: the model's answers would differ without it"),
    ))
}
