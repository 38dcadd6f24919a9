//! The 4-bit formats with unevenly spaced levels, IQ4_NL (32 values) and IQ4_XS (256 values, 8 sub-blocks of 32). Kernels use [`LEVELS`]
//! and the layout constants.
//!
//! | type   | value                                    | fields                                             | bytes |
//! |--------|------------------------------------------|----------------------------------------------------|-------|
//! | IQ4_NL | `d * LEVELS[q]`                          | `d` f16; `qs` 16                                   | 18    |
//! | IQ4_XS | `d * (scale[s] - 32) * LEVELS[q]`        | `d` f16; `scales_h` u16 (little-endian): bits `2s..` are the high 2 bits of scale `s`; `scales_l` 4: its low 4 bits in nibble `s % 2` of byte `s / 2`; `qs` 128 | 136 |
//!
//! Of 16 bytes of `qs`, the low nibbles are 16 values and the high nibbles the next 16.

use std::ops::Range;

use super::fit::{Symmetric, divide, extreme};
use super::{field, read_f16, write_f16};

/// What the 4 bits stand for: denser around 0, where most weights are.
pub const LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Where `d` lies in both formats.
pub const D: usize = 0;
/// Values in an IQ4_NL block.
pub const LEN_NL: usize = 32;
/// Bytes of an IQ4_NL block.
pub const BYTES_NL: usize = 18;
/// Nibbles of IQ4_NL.
pub const QS_NL: Range<usize> = 2..18;
/// Values in an IQ4_XS block.
pub const LEN_XS: usize = 256;
/// Bytes of an IQ4_XS block.
pub const BYTES_XS: usize = 136;
/// High bits of the scales of IQ4_XS.
pub const SCALES_H_XS: usize = 2;
/// Low bits of the scales of IQ4_XS.
pub const SCALES_L_XS: Range<usize> = 4..8;
/// Nibbles of IQ4_XS.
pub const QS_XS: Range<usize> = 8..136;
const _: () = assert!(QS_NL.end == BYTES_NL && QS_XS.end == BYTES_XS);

/// The 8 scales of an IQ4_XS block, -32..=31.
#[inline(always)]
pub fn unpack_scales_xs(block: &[u8; BYTES_XS]) -> [i8; 8] {
    let high = u16::from_le_bytes(*field(block, SCALES_H_XS));
    let low: &[u8; 4] = field(block, SCALES_L_XS.start);
    std::array::from_fn(|s| {
        let (low, high) = (low[s / 2] >> (s % 2 * 4) & 15, (high >> (2 * s)) as u8 & 3);
        (low | high << 4) as i8 - 32
    })
}

/// 32 values of one scale from their 16 bytes.
#[inline(always)]
fn put(out: &mut [f32; 32], scale: f32, qs: &[u8; 16]) {
    let (low, high) = out.split_at_mut(16);
    for ((l, h), q) in low.iter_mut().zip(high).zip(qs) {
        *l = scale * f32::from(LEVELS[usize::from(q & 15)]);
        *h = scale * f32::from(LEVELS[usize::from(q >> 4)]);
    }
}

/// One IQ4_NL block.
pub fn dequantize_nl(block: &[u8; BYTES_NL], out: &mut [f32; LEN_NL]) {
    put(out, read_f16(block, D), field(block, QS_NL.start));
}

/// One IQ4_XS block.
pub fn dequantize_xs(block: &[u8; BYTES_XS], out: &mut [f32; LEN_XS]) {
    let d = read_f16(block, D);
    let scales = unpack_scales_xs(block);
    let qs = block[QS_XS].as_chunks::<16>().0;
    for ((out, qs), scale) in out.as_chunks_mut::<32>().0.iter_mut().zip(qs).zip(scales) {
        put(out, d * f32::from(scale), qs);
    }
}

/// The index of the level nearest to `x`; the lower one on a tie.
fn nearest(x: f32) -> u8 {
    let above = LEVELS.partition_point(|&l| f32::from(l) < x).clamp(1, 15);
    let (low, high) = (f32::from(LEVELS[above - 1]), f32::from(LEVELS[above]));
    (if x - low <= high - x { above - 1 } else { above }) as u8
}

/// A plain quantiser for IQ4_NL: the largest value becomes the lowest level, the others the nearest.
pub fn quantize_nl(x: &[f32; LEN_NL], block: &mut [u8; BYTES_NL]) {
    let d = half::f16::from_f32(extreme(x) / f32::from(LEVELS[0]));
    write_f16(block, D, d);
    for i in 0..16 {
        let q = |x: f32| nearest(divide(x, d.to_f32()));
        block[QS_NL.start + i] = q(x[i]) | q(x[16 + i]) << 4;
    }
}

/// A plain quantiser for IQ4_XS: each sub-block's largest value becomes the lowest level, the others the nearest.
pub fn quantize_xs(x: &[f32; LEN_XS], block: &mut [u8; BYTES_XS]) {
    let fit = Symmetric::<8>::new(x, -f32::from(LEVELS[0]), 32.0);
    *block = [0; BYTES_XS];
    write_f16(block, D, fit.d);
    for (s, x) in x.as_chunks::<32>().0.iter().enumerate() {
        let scale = (fit.scales[s] + 32) as u8;
        block[SCALES_H_XS + s / 4] |= scale >> 4 << (s % 4 * 2);
        block[SCALES_L_XS.start + s / 2] |= (scale & 15) << (s % 2 * 4);
        for i in 0..16 {
            let q = |x: f32| nearest(fit.position(s, x));
            block[QS_XS.start + 16 * s + i] = q(x[i]) | q(x[16 + i]) << 4;
        }
    }
}
