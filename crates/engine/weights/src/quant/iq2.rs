//! The 2-bit codebook formats IQ2_XXS, IQ2_XS and IQ2_S: 256 values, in groups of 8 whose magnitudes an index picks from [`iq_grids`].
//! Kernels use the layout constants.
//!
//! A value is `d * (0.5 + scale) / 4 * magnitude`, negated by its sign bit. `k` counts the 32 groups, integers are
//! little-endian.
//!
//! | type    | fields (all begin with `d`, f16)                                                        | bytes |
//! |---------|-----------------------------------------------------------------------------------------|-------|
//! | IQ2_XXS | for every four groups 4 index bytes and a u32: 4 times 7 sign bits, then a 4-bit scale    | 66    |
//! | IQ2_XS  | `qs` 32 u16: 9 bits index, 7 sign bits; `scales` 8                                        | 74    |
//! | IQ2_S   | `qs` 32: low 8 bits of the index; `signs` 32; `qh` 8: bits `2 (k % 4)..` of byte `k / 4` are the index's high 2 bits; `scales` 8 | 82 |
//!
//! In IQ2_XS and IQ2_S two groups share a scale: nibble `k / 2 % 2` of byte `k / 4`. Seven sign bits stand for eight
//! signs, the last of which makes the number of negative values even.

use std::ops::Range;

use super::{field, iq_grids, read_f16};

/// Values in a block.
pub const LEN: usize = 256;
/// Where `d` lies in each of these formats.
pub const D: usize = 0;
/// Bytes of an IQ2_XXS block.
pub const BYTES_XXS: usize = 66;
/// Indices, signs and scales of IQ2_XXS, 8 bytes for every 32 values.
pub const QS_XXS: Range<usize> = 2..66;
/// Bytes of an IQ2_XS block.
pub const BYTES_XS: usize = 74;
/// Indices and signs of IQ2_XS.
pub const QS_XS: Range<usize> = 2..66;
/// Scales of IQ2_XS.
pub const SCALES_XS: Range<usize> = 66..74;
/// Bytes of an IQ2_S block.
pub const BYTES_S: usize = 82;
/// Low bits of the indices of IQ2_S.
pub const QS_S: Range<usize> = 2..34;
/// Signs of IQ2_S, bit `j` of byte `k` for value `j` of group `k`.
pub const SIGNS_S: Range<usize> = 34..66;
/// High bits of the indices of IQ2_S.
pub const QH_S: Range<usize> = 66..74;
/// Scales of IQ2_S.
pub const SCALES_S: Range<usize> = 74..82;
const _: () = assert!(QS_XXS.end == BYTES_XXS && SCALES_XS.end == BYTES_XS && SCALES_S.end == BYTES_S);

/// Eight signs from seven bits: the eighth makes the number of set bits even.
#[inline(always)]
pub const fn even_signs(seven: u32) -> u8 {
    let seven = seven as u8 & 127;
    seven | (seven.count_ones() as u8 & 1) << 7
}

/// Writes `scale * magnitude`, negative where `signs` has a bit.
#[inline(always)]
pub(super) fn put_signed<const N: usize>(out: &mut [f32; N], scale: f32, magnitudes: &[u8; N], signs: u8) {
    for (j, (y, &m)) in out.iter_mut().zip(magnitudes).enumerate() {
        let v = scale * f32::from(m);
        *y = f32::from_bits(v.to_bits() ^ (u32::from(signs >> j) & 1) << 31);
    }
}

/// The step of a group from its 4-bit scale.
#[inline(always)]
fn step(d: f32, scale: u8) -> f32 {
    d * (0.5 + f32::from(scale)) * 0.25
}

/// One IQ2_XXS block.
pub fn dequantize_xxs(block: &[u8; BYTES_XXS], out: &mut [f32; LEN]) {
    let d = read_f16(block, D);
    for (out, qs) in out.as_chunks_mut::<32>().0.iter_mut().zip(block[QS_XXS].as_chunks::<8>().0) {
        let bits = u32::from_le_bytes(*field(qs, 4));
        let scale = step(d, (bits >> 28) as u8);
        for (k, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            put_signed(out, scale, &iq_grids::IQ2_XXS[usize::from(qs[k])], even_signs(bits >> (7 * k)));
        }
    }
}

/// One IQ2_XS block.
pub fn dequantize_xs(block: &[u8; BYTES_XS], out: &mut [f32; LEN]) {
    let d = read_f16(block, D);
    let scales = &block[SCALES_XS];
    let qs = block[QS_XS].as_chunks::<2>().0;
    for (k, (out, &q)) in out.as_chunks_mut::<8>().0.iter_mut().zip(qs).enumerate() {
        let q = u16::from_le_bytes(q);
        let scale = step(d, scales[k / 4] >> (k / 2 % 2 * 4) & 15);
        put_signed(out, scale, &iq_grids::IQ2_XS[usize::from(q & 511)], even_signs(u32::from(q >> 9)));
    }
}

/// One IQ2_S block.
pub fn dequantize_s(block: &[u8; BYTES_S], out: &mut [f32; LEN]) {
    let d = read_f16(block, D);
    let (qs, signs): (&[u8; 32], &[u8; 32]) = (field(block, QS_S.start), field(block, SIGNS_S.start));
    let (qh, scales): (&[u8; 8], &[u8; 8]) = (field(block, QH_S.start), field(block, SCALES_S.start));
    for (k, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let scale = step(d, scales[k / 4] >> (k / 2 % 2 * 4) & 15);
        let index = usize::from(qs[k]) | usize::from(qh[k / 4] >> (k % 4 * 2) & 3) << 8;
        put_signed(out, scale, &iq_grids::IQ2_S[index], signs[k]);
    }
}
