//! Feed-forward blocks that differ by layer, as Gemma 3n's configurations say it: widths, and shares of activations that become 0.

use super::arch::Keys;
use super::json::Fields;
use crate::{Error, Value};

/// The width of each layer's block, where the configuration has a list.
pub(super) fn widths(text: &Fields) -> Result<Option<Value>, Error> {
    let field = "intermediate_size";
    if !text.get(field).is_some_and(serde_json::Value::is_array) {
        return Ok(None);
    }
    let all = text.opt_array(field)?.unwrap_or_default().iter().map(|v| v.as_u64()?.try_into().ok());
    let all: Option<Vec<i64>> = all.collect();
    Ok(Some(Value::Ints(all.ok_or_else(|| text.bad(field, "is not an array of whole numbers"))?)))
}

/// Layers whose activations are sparse, and how sparse, if the configuration does not say.
const SPARSE: (usize, f64) = (10, 0.95);

/// The share of a layer's activations that become 0, as standard deviations above the mean of normally distributed ones; minus infinity for none.
pub(super) fn activations(text: &Fields, layers: usize, keys: &mut Keys) -> Result<(), Error> {
    for (field, known) in [("altup_correct_scale", true), ("attention_bias", false)] {
        if text.opt_bool(field)? == Some(!known) {
            return Err(text.bad(field, format!("is {}; only {known} is supported", !known)));
        }
    }
    let field = "activation_sparsity_pattern";
    let shares: Vec<f64> = match text.opt_array(field)? {
        Some(all) if all.len() != layers => {
            return Err(text.bad(field, format!("has {} entries for {layers} layers", all.len())));
        }
        Some(all) => {
            let share = |v: &serde_json::Value| v.as_f64().filter(|x| (0.0..1.0).contains(&(*x as f32)));
            let shares: Option<_> = all.iter().map(share).collect();
            shares.ok_or_else(|| text.bad(field, "is not an array of numbers of at least 0 and below 1"))?
        }
        None => {
            let (first, share) = SPARSE;
            (0..layers).map(|i| if layers > first && i < first { share } else { 0.0 }).collect()
        }
    };
    // The model's own code has shares in single precision.
    let scales = shares.into_iter().map(|share| quantile(f64::from(share as f32)));
    keys.put("activation_sparsity_scale", Value::Floats(scales.collect()));
    Ok(())
}

/// The number below which a share `p` of normally distributed ones lies.
fn quantile(p: f64) -> f64 {
    if p <= 0.0 {
        return f64::NEG_INFINITY;
    }
    if p < 0.5 {
        return -quantile(1.0 - p);
    }
    if p >= 1.0 {
        return f64::INFINITY;
    }
    // Newton's method comes from below, as the distribution is concave there.
    let mut x = 0.0;
    for _ in 0..100 {
        let (below, density) = normal(x);
        let next = x + (p - below) / density;
        if next <= x {
            break;
        }
        x = next;
    }
    x
}

/// The share of normally distributed numbers below `x`, and their density there: the series of the integral, divided by the density.
fn normal(x: f64) -> (f64, f64) {
    let density = (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let (mut term, mut sum, mut n) = (x, x, 1.0);
    while term > sum * 1e-17 {
        n += 2.0;
        term *= x * x / n;
        sum += term;
    }
    (0.5 + density * sum, density)
}

#[cfg(test)]
mod tests {
    use super::quantile;

    /// Values of Python's `statistics.NormalDist().inv_cdf`.
    #[test]
    fn quantiles_of_the_normal_distribution() {
        for (p, want) in [
            (0.0, f64::NEG_INFINITY),
            (0.05, -1.6448536269514726),
            (0.5, 0.0),
            (0.8, 0.8416212335729144),
            (0.95, 1.6448536269514715),
            (0.99, 2.3263478740408408),
            (1.0, f64::INFINITY),
            (0.9999999, 5.199337582290662),
        ] {
            let got = quantile(p);
            assert!(got == want || (got - want).abs() < 2e-9, "{p}: {got}");
        }
    }
}
