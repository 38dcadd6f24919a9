//! GELU by the error function.

/// The error function: its power series, or for large `x` the continued fraction of its complement, in f64.
fn erf(x: f64) -> f64 {
    let z = x.abs();
    if z > 3.0 {
        let tail = (1..60).rev().fold(z, |t, k| z + f64::from(k) / 2.0 / t);
        return x.signum() * (1.0 - (-z * z).exp() / (tail * std::f64::consts::PI.sqrt()));
    }
    let (mut term, mut sum) = (x, x);
    for k in 1..80 {
        term *= -x * x / f64::from(k);
        sum += term / f64::from(2 * k + 1);
    }
    sum * std::f64::consts::FRAC_2_SQRT_PI
}

/// `x * (1 + erf(x / sqrt(2))) / 2`
pub fn gelu(x: f32) -> f32 {
    (f64::from(x) * 0.5 * (1.0 + erf(f64::from(x) / std::f64::consts::SQRT_2))) as f32
}
