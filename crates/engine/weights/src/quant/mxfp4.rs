//! MXFP4: 32 values of 4-bit floats (e2m1) under one power-of-two scale (e8m0), as in the OCP microscaling specification v1.0. Kernels use
//! [`LEVELS`], [`half_scale`] and the layout constants.
//!
//! A value is `2^(e - 128) * LEVELS[q]`; the levels are twice the e2m1 values, so that they are integers. Fields, 17 bytes:
//! `e` u8; `qs` 16, whose low nibbles are 16 values and high nibbles the next 16.

use std::ops::Range;

use super::fit::extreme;

/// Values in a block.
pub const LEN: usize = 32;
/// Bytes of a block.
pub const BYTES: usize = 17;
/// The scale's exponent.
pub const E: usize = 0;
/// The values' nibbles.
pub const QS: Range<usize> = 1..17;
const _: () = assert!(QS.end == BYTES);

/// Twice the e2m1 values.
pub const LEVELS: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Half of the e8m0 scale: `2^(e - 128)`, subnormal for `e` of 0 and 1.
#[inline(always)]
pub fn half_scale(e: u8) -> f32 {
    f32::from_bits(match e {
        0..2 => 0x0020_0000 << e,
        _ => u32::from(e - 1) << 23,
    })
}

/// One block's values.
pub fn dequantize(block: &[u8; BYTES], out: &mut [f32; LEN]) {
    let scale = half_scale(block[E]);
    let (low, high) = out.split_at_mut(16);
    for ((l, h), q) in low.iter_mut().zip(high).zip(&block[QS]) {
        *l = scale * f32::from(LEVELS[usize::from(q & 15)]);
        *h = scale * f32::from(LEVELS[usize::from(q >> 4)]);
    }
}

/// ggml's reference quantiser: the scale puts the largest value between 4 and 8 (levels of 8 to 16), every value becomes
/// the nearest level, the first of equals.
pub fn quantize(x: &[f32; LEN], block: &mut [u8; BYTES]) {
    let largest = extreme(x).abs();
    block[E] = if largest > 0.0 { (largest.log2().floor() - 2.0 + 127.0) as u8 } else { 0 };
    let scale = half_scale(block[E]);
    let nearest = |x: f32| {
        let error = |q: u8| (scale * f32::from(LEVELS[usize::from(q)]) - x).abs();
        (1..16).fold(0, |best, q| if error(q) < error(best) { q } else { best })
    };
    for i in 0..16 {
        block[QS.start + i] = nearest(x[i]) | nearest(x[16 + i]) << 4;
    }
}
