//! Rotary position embedding: the frequencies of a head's dimensions, and the scaling that files specify for contexts longer than the
//! trained one.

use std::f64::consts::PI;

use octet_compute::backend::{Axes, RopePairing};
use octet_weights::Value;

use super::keys::{CONTEXT_MAX, Keys};
use super::plan::RopeTable;
use crate::Error;

const TYPE: &str = "rope.scaling.type";
const FACTOR: &str = "rope.scaling.factor";
const ORIGINAL: &str = "rope.scaling.original_context_length";

/// What a rotation has besides the base of its frequencies.
#[derive(Debug, Clone, Copy)]
pub struct RopeRules {
    /// The key of the base.
    pub base: &'static str,
    /// Its default.
    pub default: f32,
    /// The file's scaling applies.
    pub scaled: bool,
    /// The divisors `rope_freqs.weight` apply, if the file has them.
    pub divided: bool,
    /// The ends of YaRN's ramp are rounded to whole pairs.
    pub rounds: bool,
    /// LongRoPE's tables may be used ([`longrope`]).
    pub long: bool,
    /// The file's factor of sines and cosines for YaRN is the whole one, and not relative to that which follows from the scaling.
    pub whole_factor: bool,
    /// What the file's multiplier of YaRN's logarithm is multiplied by (DeepSeek's converters store a tenth).
    pub log_unit: f32,
}

/// The rotation of most models.
pub const ROPE: RopeRules = RopeRules {
    base: "rope.freq_base",
    default: 10_000.0,
    scaled: true,
    divided: true,
    rounds: true,
    long: false,
    whole_factor: false,
    log_unit: 1.0,
};

/// The rotation of layers with windows, where it differs: never scaled.
pub const WINDOWED: RopeRules =
    RopeRules { base: "rope.freq_base_swa", scaled: false, divided: false, ..ROPE };

impl Keys<'_> {
    /// The rotation of most models: of the dimensions that `rope.dimension_count` says, or all of `head_dim`.
    pub fn rope(&self, head_dim: usize, gguf: RopePairing) -> Result<RopeTable, Error> {
        let dims = self.rope_dims("rope.dimension_count", head_dim)?;
        table(self, dims, self.pairing(gguf)?, ROPE)
    }
}

/// `theta^(-2j/dims)`, scaled as the file specifies.
pub fn table(k: &Keys, dims: usize, pairing: RopePairing, rules: RopeRules) -> Result<RopeTable, Error> {
    let theta = k.opt_f32(rules.base)?.unwrap_or(rules.default);
    if theta <= 1.0 {
        return Err(k.bad(rules.base, format!("is {theta}; expected more than 1")));
    }
    let inv_freq = (0..dims / 2).map(|j| 1.0 / theta.powf(2.0 * j as f32 / dims as f32)).collect();
    let mut rope = RopeTable { dims, pairing, inv_freq, scale: 1.0, axes: None };
    if rules.scaled {
        scale(k, f64::from(theta), rules, &mut rope)?;
    }
    if let Some(pairs) = k.opt_size("rope.turning_pairs", CONTEXT_MAX)?.filter(|_| rules.divided) {
        rope.inv_freq.iter_mut().skip(pairs).for_each(|f| *f = 0.0);
    }
    let divisors = "rope_freqs.weight";
    if rules.divided && k.has(divisors) {
        let divisors = k.model.tensor(divisors, &[dims / 2])?.to_f32();
        for (f, d) in rope.inv_freq.iter_mut().zip(&divisors) {
            *f /= d;
        }
    }
    if rope.inv_freq.iter().any(|f| !f.is_finite()) || !rope.scale.is_finite() {
        return Err(k.bad(rules.base, "gives frequencies that are not finite".into()));
    }
    Ok(rope)
}

/// A rotation of Qwen3-VL and later, whose pairs turn by time, row and column in turn (interleaved M-RoPE, arXiv 2511.21631): as many by row
/// and by column as the file says, the others by time.
pub fn interleaved(k: &Keys, rope: RopeTable) -> Result<RopeTable, Error> {
    by_axes(k, rope, |sections, j| match j % 3 {
        axis @ 1..=2 if j < 3 * sections[axis] => axis as u8,
        _ => 0,
    })
}

/// A rotation of Qwen2-VL (M-RoPE, arXiv 2409.12191): the first pairs turn by time, the next by row, then by column, as many as the file says.
pub fn in_sections(k: &Keys, rope: RopeTable) -> Result<RopeTable, Error> {
    by_axes(k, rope, |sections, j| match j {
        j if j < sections[0] => 0,
        j if j < sections[0] + sections[1] => 1,
        _ => 2,
    })
}

/// A rotation each of whose pairs has an axis, by the numbers of pairs that the file says.
fn by_axes(k: &Keys, rope: RopeTable, axis: impl Fn([usize; 3], usize) -> u8) -> Result<RopeTable, Error> {
    let key = "rope.dimension_sections";
    let sections = match k.get(key) {
        None => return Ok(rope),
        Some(Value::Ints(s)) if s.len() >= 3 && s.iter().all(|n| (0..=rope.dims as i64).contains(n)) => {
            [s[0], s[1], s[2]].map(|n| n as usize)
        }
        Some(_) => return Err(k.bad(key, "is not an array of 3 or 4 numbers of pairs".into())),
    };
    let axis = |j| axis(sections, j);
    let of_pair: Vec<u8> = (0..rope.dims / 2).map(axis).collect();
    let turns = of_pair.iter().any(|axis| *axis > 0);
    Ok(RopeTable { axes: turns.then_some(Axes { of_pair, parts: 1 }), ..rope })
}

/// The scaling factor that the file states; 1 without one.
pub fn factor(k: &Keys) -> Result<f32, Error> {
    // Older files have a single number for the scaling. 0 means none, as in llama.cpp.
    let given = match k.opt_f32(FACTOR)? {
        None => k.opt_f32("rope.scale_linear")?,
        factor => factor,
    };
    let factor = given.filter(|f| *f != 0.0).unwrap_or(1.0);
    if factor < 1.0 {
        return Err(k.bad(FACTOR, format!("is {factor}; expected at least 1")));
    }
    Ok(factor)
}

/// The context before scaling.
pub fn original_context(k: &Keys) -> Result<f32, Error> {
    let context = k.size("context_length", CONTEXT_MAX)?;
    let original = k.opt_f32(ORIGINAL)?.unwrap_or(context as f32);
    match original > 0.0 {
        true => Ok(original),
        false => Err(k.bad(ORIGINAL, format!("is {original}; expected more than 0"))),
    }
}

fn scale(k: &Keys, theta: f64, rules: RopeRules, rope: &mut RopeTable) -> Result<(), Error> {
    let factor = factor(k)?;
    // A factor without a type means linear scaling, as in llama.cpp.
    match k.opt_str(TYPE)?.unwrap_or("linear") {
        "none" | "default" => {}
        "linear" => rope.inv_freq.iter_mut().for_each(|f| *f /= factor),
        "llama3" => llama3(k, factor, &mut rope.inv_freq)?,
        "yarn" => yarn(k, theta, factor, rules, rope)?,
        "longrope" if rules.long => {}
        other => {
            let what = format!("is '{other}', which is not supported (known: none, linear, llama3, yarn)");
            return Err(k.bad(TYPE, what));
        }
    }
    Ok(())
}

/// LongRoPE (arXiv 2402.13753): pairs are divided by one of two tables. As in llama.cpp, the context of the file decides: keys in the cache
/// keep their rotation, so it cannot change when a sequence grows. Sines and cosines get the factor that the file states.
pub fn longrope(k: &Keys, rope: &mut RopeTable) -> Result<(), Error> {
    let context = k.size("context_length", CONTEXT_MAX)?;
    let is_long = context as f32 > original_context(k)?;
    let which = if is_long { "long" } else { "short" };
    let (tensor, key) = (format!("rope_factors_{which}.weight"), format!("rope.scaling.{which}_factor"));
    // GGUF files have the tables as tensors, checkpoints in their configuration.
    let divisors = if k.has(&tensor) {
        k.model.tensor(&tensor, &[rope.dims / 2])?.to_f32()
    } else {
        match k.get(&key) {
            None => return Ok(()),
            Some(Value::Floats(all)) if all.len() == rope.dims / 2 && all.iter().all(|d| *d > 0.0) => {
                all.iter().map(|d| *d as f32).collect()
            }
            Some(_) => {
                return Err(k.bad(&key, format!("is no list of {} positive numbers", rope.dims / 2)));
            }
        }
    };
    for (f, d) in rope.inv_freq.iter_mut().zip(&divisors) {
        *f /= d;
    }
    rope.scale = k.factor("rope.scaling.attn_factor", 1.0)?;
    Ok(())
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
fn yarn(k: &Keys, theta: f64, factor: f32, rules: RopeRules, rope: &mut RopeTable) -> Result<(), Error> {
    let positive = |key: &str, default: f32| {
        let value = k.opt_f32(key)?.unwrap_or(default);
        if value > 0.0 { Ok(value) } else { Err(k.bad(key, format!("is {value}; expected more than 0"))) }
    };
    let key = "rope.scaling.yarn_ext_factor";
    if let Some(value) = k.opt_f32(key)?.filter(|v| *v != 1.0) {
        return Err(k.bad(key, format!("is {value}; only 1 is supported")));
    }
    let original = original_context(k)?;
    let fast = positive("rope.scaling.yarn_beta_fast", 32.0)?;
    let slow = positive("rope.scaling.yarn_beta_slow", 1.0)?;
    if fast < slow {
        return Err(k.bad("rope.scaling.yarn_beta_fast", format!("is {fast}; expected at least {slow}")));
    }
    let dims = rope.dims as f64;
    // The pair with this number of rotations within the original context.
    let pair =
        |turns: f32| dims * (f64::from(original) / (f64::from(turns) * 2.0 * PI)).ln() / (2.0 * theta.ln());
    let rounds = rules.rounds && k.own("octet.yarn_ramp")? != Some("not rounded");
    let round = |x: f64, to: fn(f64) -> f64| if rounds { to(x) } else { x };
    let first = round(pair(fast), f64::floor).max(0.0);
    let last = round(pair(slow), f64::ceil).min(dims - 1.0);
    let width = if first == last { 0.001 } else { last - first };
    for (j, f) in rope.inv_freq.iter_mut().enumerate() {
        let ramp = ((j as f64 - first) / width).clamp(0.0, 1.0) as f32;
        *f = *f / factor * ramp + *f * (1.0 - ramp);
    }
    // Files state the factor relative to the one that follows from the scaling (llama.cpp's convention). A multiplier of the logarithm of all
    // dimensions scales attention instead (`log_scale`), and divides this factor; DeepSeek's models have the same multiplier in both.
    let stated = positive("rope.scaling.attn_factor", 1.0)? * positive("rope.scaling.yarn_attn_factor", 1.0)?;
    let own = 1.0 + 0.1 * factor.ln();
    if rules.whole_factor && k.peek("rope.scaling.yarn_attn_factor").is_some() {
        rope.scale = stated;
        return Ok(());
    }
    rope.scale = stated
        * match log_scale(k, rules.log_unit)? {
            None => own,
            Some(_) if rules.log_unit != 1.0 => 1.0,
            Some(all) => own / all,
        };
    Ok(())
}

/// YaRN's factor by the file's multiplier of the logarithm, in units of `unit`: `1 + 0.1 m ln(factor)`.
pub fn log_scale(k: &Keys, unit: f32) -> Result<Option<f32>, Error> {
    let multiplier = k.opt_f32("rope.scaling.yarn_log_multiplier")?.filter(|m| *m != 0.0);
    let factor = factor(k)?;
    Ok(multiplier.map(|m| 1.0 + 0.1 * (m * unit) * factor.ln()))
}
