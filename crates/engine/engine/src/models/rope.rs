//! Rotary position embedding: the frequencies of a head's dimensions, and the scaling that files specify for contexts longer than the
//! trained one. Called by `Config::read`.

use std::f64::consts::PI;

use octet_weights::Model;

use super::config::Keys;
use crate::Error;

const TYPE: &str = "rope.scaling.type";
const FACTOR: &str = "rope.scaling.factor";
const ORIGINAL: &str = "rope.scaling.original_context_length";

/// Rotary position embedding of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// Rotated dimensions of each head.
    pub dims: usize,
    /// Radians per position of each pair of them `[dims / 2]`.
    pub inv_freq: Vec<f32>,
    /// Factor of sines and cosines: YaRN's attention factor, otherwise 1.
    pub scale: f32,
}

/// `theta^(-2j/dims)`, scaled as the file specifies. `context` is the file's context length.
pub(super) fn read(model: &Model, k: &Keys, dims: usize, context: usize) -> Result<Rope, Error> {
    let theta = k.opt_f32("rope.freq_base")?.unwrap_or(10_000.0);
    if theta <= 1.0 {
        return Err(k.bad("rope.freq_base", format!("is {theta}; expected more than 1")));
    }
    let inv_freq = (0..dims / 2).map(|j| 1.0 / theta.powf(2.0 * j as f32 / dims as f32)).collect();
    let mut rope = Rope { dims, inv_freq, scale: 1.0 };
    // Older files have a single number for the scaling. 0 means none, as in llama.cpp.
    let given = match k.opt_f32(FACTOR)? {
        None => k.opt_f32("rope.scale_linear")?,
        factor => factor,
    };
    let factor = given.filter(|f| *f != 0.0).unwrap_or(1.0);
    if factor < 1.0 {
        return Err(k.bad(FACTOR, format!("is {factor}; expected at least 1")));
    }
    // A factor without a type means linear scaling, as in llama.cpp.
    match k.opt_str(TYPE)?.unwrap_or("linear") {
        "none" | "default" => {}
        "linear" => rope.inv_freq.iter_mut().for_each(|f| *f /= factor),
        "llama3" => llama3(k, factor, &mut rope.inv_freq)?,
        "yarn" => {
            let original = k.opt_f32(ORIGINAL)?.unwrap_or(context as f32);
            yarn(k, f64::from(theta), factor, original, &mut rope)?;
        }
        other => {
            let what = format!("is '{other}', which is not supported (known: none, linear, llama3, yarn)");
            return Err(k.bad(TYPE, what));
        }
    }
    if model.info("rope_freqs.weight").is_some() {
        let divisors = model.tensor("rope_freqs.weight", &[dims / 2])?.to_f32();
        for (f, d) in rope.inv_freq.iter_mut().zip(&divisors) {
            *f /= d;
        }
    }
    if rope.inv_freq.iter().any(|f| !f.is_finite()) || !rope.scale.is_finite() {
        return Err(k.bad("rope.freq_base", "gives frequencies that are not finite".into()));
    }
    Ok(rope)
}

/// Llama 3.1's frequency scaling: low frequencies are divided by `factor`, high ones kept, with a linear ramp between.
fn llama3(k: &Keys, factor: f32, freq: &mut [f32]) -> Result<(), Error> {
    let need = |key: &str| {
        k.opt_f32(key)?.filter(|x| *x > 0.0).ok_or_else(|| k.bad(key, "is missing or not positive".into()))
    };
    let low = need("rope.scaling.low_freq_factor")?;
    let high = need("rope.scaling.high_freq_factor")?;
    let original = need(ORIGINAL)?;
    if high <= low {
        return Err(k.bad("rope.scaling.high_freq_factor", format!("is {high}; expected more than {low}")));
    }
    for f in freq {
        let waves = original * *f / (2.0 * std::f32::consts::PI);
        let ramp = ((waves - low) / (high - low)).clamp(0.0, 1.0);
        *f = *f / factor * (1.0 - ramp) + *f * ramp;
    }
    Ok(())
}

/// YaRN (arXiv 2309.00071): pairs with fewer than `beta_slow` rotations within the `original` context are divided by `factor`, those
/// with more than `beta_fast` are kept, with a ramp between; and attention is scaled.
fn yarn(k: &Keys, theta: f64, factor: f32, original: f32, rope: &mut Rope) -> Result<(), Error> {
    let positive = |key: &str, default: f32| {
        let value = k.opt_f32(key)?.unwrap_or(default);
        if value > 0.0 { Ok(value) } else { Err(k.bad(key, format!("is {value}; expected more than 0"))) }
    };
    for (key, only) in [("yarn_ext_factor", 1.0), ("yarn_log_multiplier", 0.0)] {
        let key = format!("rope.scaling.{key}");
        if let Some(value) = k.opt_f32(&key)?.filter(|v| *v != only) {
            return Err(k.bad(&key, format!("is {value}; only {only} is supported")));
        }
    }
    if original <= 0.0 {
        return Err(k.bad(ORIGINAL, format!("is {original}; expected more than 0")));
    }
    let fast = positive("rope.scaling.yarn_beta_fast", 32.0)?;
    let slow = positive("rope.scaling.yarn_beta_slow", 1.0)?;
    if fast < slow {
        return Err(k.bad("rope.scaling.yarn_beta_fast", format!("is {fast}; expected at least {slow}")));
    }
    let dims = rope.dims as f64;
    // The pair with this number of rotations within the original context.
    let pair =
        |turns: f32| dims * (f64::from(original) / (f64::from(turns) * 2.0 * PI)).ln() / (2.0 * theta.ln());
    let first = pair(fast).floor().max(0.0);
    let last = pair(slow).ceil().min(dims - 1.0);
    let width = if first == last { 0.001 } else { last - first };
    for (j, f) in rope.inv_freq.iter_mut().enumerate() {
        let ramp = ((j as f64 - first) / width).clamp(0.0, 1.0) as f32;
        *f = *f / factor * ramp + *f * (1.0 - ramp);
    }
    // Files state the factor relative to the one that follows from the scaling (llama.cpp's convention).
    let stated = positive("rope.scaling.attn_factor", 1.0)? * positive("rope.scaling.yarn_attn_factor", 1.0)?;
    rope.scale = stated * (1.0 + 0.1 * factor.ln());
    Ok(())
}
