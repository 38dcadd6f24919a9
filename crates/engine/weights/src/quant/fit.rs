//! Chooses scales for the simple quantisers of the super-block formats; called by `quant::{q2_k .. q6_k, iq4}`.
//!
//! Each sub-block's range determines its scale; llama.cpp searches for scales that reduce a weighted error, and its files are better
//! for it. These are for tests and synthetic models, where simplicity matters more.

use half::f16;

/// `numerator / denominator`, and 0 where the denominator is 0.
#[inline]
pub(super) fn divide(numerator: f32, denominator: f32) -> f32 {
    if denominator == 0.0 { 0.0 } else { numerator / denominator }
}

/// The value of largest magnitude, with its sign; the first of equals, 0 for none.
pub(super) fn extreme(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |m: f32, &v| if v.abs() > m.abs() { v } else { m })
}

/// The values of sub-block `s` of `N`.
fn sub_block<const N: usize>(x: &[f32; 256], s: usize) -> &[f32] {
    let len = 256 / N;
    &x[s * len..(s + 1) * len]
}

/// `x ~ d * scale * q - dmin * min` with unsigned quants, over `N` sub-blocks of a super-block.
pub(super) struct Affine<const N: usize> {
    pub d: f16,
    pub dmin: f16,
    pub scales: [u8; N],
    pub mins: [u8; N],
    q_max: f32,
}

impl<const N: usize> Affine<N> {
    /// Fits quants `0..=q_max` and fields (scales and minima) `0..=field_max`.
    pub fn new(x: &[f32; 256], q_max: f32, field_max: f32) -> Self {
        let largest = |x: &[f32]| x.iter().fold(0.0, |a: f32, &v| a.max(v));
        let least = |x: &[f32]| x.iter().fold(0.0, |a: f32, &v| a.min(v));
        // The format can only subtract, so a range always reaches down to 0 or below.
        let depths: [f32; N] = std::array::from_fn(|s| -least(sub_block::<N>(x, s)));
        let steps: [f32; N] = std::array::from_fn(|s| (largest(sub_block::<N>(x, s)) + depths[s]) / q_max);
        let d = f16::from_f32(largest(&steps) / field_max);
        let dmin = f16::from_f32(largest(&depths) / field_max);
        let field = |v: f32, unit: f16| divide(v, unit.to_f32()).round().clamp(0.0, field_max) as u8;
        Self { d, dmin, scales: steps.map(|v| field(v, d)), mins: depths.map(|v| field(v, dmin)), q_max }
    }

    /// The quant of `x` in sub-block `s`.
    pub fn quant(&self, s: usize, x: f32) -> u8 {
        let step = self.d.to_f32() * f32::from(self.scales[s]);
        let min = self.dmin.to_f32() * f32::from(self.mins[s]);
        divide(x + min, step).round().clamp(0.0, self.q_max) as u8
    }
}

/// `x ~ d * scale * q` with signed quants, over `N` sub-blocks of a super-block.
pub(super) struct Symmetric<const N: usize> {
    pub d: f16,
    pub scales: [i8; N],
    q_limit: f32,
}

impl<const N: usize> Symmetric<N> {
    /// Fits quants `-q_limit..q_limit` and scales `-field_limit..field_limit` (upper ends excluded). A sub-block's
    /// largest value becomes `-q_limit`, which reaches one further than the positive end.
    pub fn new(x: &[f32; 256], q_limit: f32, field_limit: f32) -> Self {
        let steps: [f32; N] = std::array::from_fn(|s| extreme(sub_block::<N>(x, s)) / -q_limit);
        let d = f16::from_f32(extreme(&steps) / -field_limit);
        let scales =
            steps.map(|v| divide(v, d.to_f32()).round().clamp(-field_limit, field_limit - 1.0) as i8);
        Self { d, scales, q_limit }
    }

    /// `x` in units of sub-block `s`'s step, not yet rounded.
    pub fn position(&self, s: usize, x: f32) -> f32 {
        divide(x, self.d.to_f32() * f32::from(self.scales[s]))
    }

    /// The quant of `x` in sub-block `s`.
    pub fn quant(&self, s: usize, x: f32) -> i8 {
        self.position(s, x).round().clamp(-self.q_limit, self.q_limit - 1.0) as i8
    }
}
