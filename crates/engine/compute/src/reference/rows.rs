//! The oracle of what is done with whole rows: activations, products of two rows, several residual streams.

use super::{Reference, dot, gelu, sigmoid, silu, softplus};
use crate::backend::{Act, AltUp, Gate, LEVEL_MIN, Times};

/// A value of a gate.
pub(super) fn gated(gate: Gate, y: f32) -> f32 {
    match gate {
        Gate::Sigmoid => sigmoid(y),
        Gate::Softplus => softplus(y),
    }
}

/// An activation of a gate.
pub(super) fn activate(act: Act, x: f32) -> f32 {
    match act {
        Act::Silu => silu(x),
        Act::Gelu => {
            x * 0.5 * (1.0 + ((2.0 / std::f32::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh())
        }
        Act::GeluErf => gelu(x),
        Act::Relu2 => x.max(0.0).powi(2),
        Act::ClampedSwiglu { alpha, limit } => x.min(limit) * sigmoid(alpha * x.min(limit)),
        Act::CappedSilu { limit } => silu(x).min(limit),
        Act::Xielu { positive, .. } if x > 0.0 => positive * x * x + 0.5 * x,
        Act::Xielu { negative, .. } => negative * (x.exp_m1() - x) + 0.5 * x,
    }
}

/// What the activated gate is multiplied with.
pub(super) fn multiplier(act: Act, up: f32) -> f32 {
    match act {
        Act::ClampedSwiglu { limit, .. } => up.clamp(-limit, limit) + 1.0,
        Act::CappedSilu { limit } => up.clamp(-limit, limit),
        _ => up,
    }
}

/// `x = x times y`
pub(super) fn multiply(times: Times, x: &mut [f32], y: &[f32]) {
    let len = x.len() as f32;
    match times {
        Times::Itself => each(x, y, |x, y| x * y),
        Times::Gated(gate) => each(x, y, |x, y| x * gated(gate, y)),
        Times::GatedByOne(gate) => x.iter_mut().for_each(|x| *x *= gated(gate, y[0])),
        Times::Activated(act) => each(x, y, |x, y| activate(act, x) * multiplier(act, y)),
        Times::ActivatedAbove { deviations, act } => {
            let mean = x.iter().sum::<f32>() / len;
            let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / len;
            let bound = mean + deviations * variance.sqrt();
            each(x, y, |x, y| activate(act, (x - bound).max(0.0)) * multiplier(act, y));
        }
        Times::Levelled => {
            let square = |v: &[f32]| dot(v, v) / len;
            let factor = square(&y[..x.len()]).sqrt() / square(x).max(LEVEL_MIN).sqrt();
            x.iter_mut().for_each(|x| *x *= factor);
        }
    }
}

fn each(x: &mut [f32], y: &[f32], f: impl Fn(f32, f32) -> f32) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x = f(*x, *y));
}

/// `tanh` of what a token's router gave.
fn modes(a: &AltUp<Reference>, t: usize, routed: &[f32]) -> Vec<f32> {
    routed[t * a.streams..][..a.streams].iter().map(|x| x.tanh()).collect()
}

/// See [`crate::Backend::predict_streams`], of token `t`.
pub(super) fn predict(
    a: &AltUp<Reference>,
    t: usize,
    routed: &[f32],
    h: &mut [f32],
    rest: &mut [f32],
    kept: &mut [f32],
) {
    let (s, m) = (a.streams, modes(a, t, routed));
    for c in 0..a.width {
        let at = |i: usize| (t * (s - 1) + i - 1) * a.width + c;
        let old: Vec<f32> = (0..s).map(|i| if i == 0 { h[t * a.width + c] } else { rest[at(i)] }).collect();
        for (i, x) in old.iter().enumerate() {
            let weights = (0..s).map(|j| dot(&a.predict[(i * s + j) * s..][..s], &m));
            let new = x + weights.zip(&old).map(|(w, x)| w * x).sum::<f32>();
            match i {
                0 => (h[t * a.width + c], kept[t * a.width + c]) = (new, new),
                _ => rest[at(i)] = new,
            }
        }
    }
}

/// See [`crate::Backend::correct_streams`], of token `t`.
pub(super) fn correct(
    a: &AltUp<Reference>,
    t: usize,
    routed: &[f32],
    h: &mut [f32],
    rest: &mut [f32],
    kept: &mut [f32],
) {
    let (s, m) = (a.streams, modes(a, t, routed));
    let weight = |i: usize| 1.0 + dot(&a.correct[i * s..][..s], &m);
    for (c, scale) in a.scale.iter().enumerate() {
        let (h, kept) = (&mut h[t * a.width + c], &mut kept[t * a.width + c]);
        let change = *h - *kept;
        for i in 1..s {
            rest[(t * (s - 1) + i - 1) * a.width + c] += weight(i) * change;
        }
        *h = *kept + weight(0) * change;
        *kept = scale * *h;
    }
}
