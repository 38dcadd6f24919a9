//! The 3-bit codebook formats IQ3_XXS and IQ3_S: 256 values, in groups of 4 whose magnitudes an index picks from [`iq_grids`]. Kernels use
//! the layout constants.
//!
//! `k` counts the 64 groups, `t` the 8 runs of 32 values, integers are little-endian. A value is
//! `d * (0.5 + scale) / 2 * magnitude` (IQ3_XXS) or `d * (1 + 2 scale) * magnitude` (IQ3_S), negated by its sign bit.
//!
//! | type    | fields (both begin with `d`, f16)                                                           | bytes |
//! |---------|---------------------------------------------------------------------------------------------|-------|
//! | IQ3_XXS | `qs` 64: indices; 8 u32, one for each `t`: 4 times 7 sign bits (as in IQ2_XXS), a 4-bit scale   | 98    |
//! | IQ3_S   | `qs` 64: low 8 bits of the index; `qh` 8: bit `k % 8` of byte `k / 8` is its ninth; `signs` 32; `scales` 4: nibble `t % 2` of byte `t / 2` | 110 |

use std::ops::Range;

use super::iq2::{even_signs, put_signed};
use super::{field, iq_grids, read_f16};

/// Values in a block.
pub const LEN: usize = 256;
/// Where `d` lies in both formats.
pub const D: usize = 0;
/// Where the indices lie in both formats.
pub const QS: Range<usize> = 2..66;
/// Bytes of an IQ3_XXS block.
pub const BYTES_XXS: usize = 98;
/// Signs and scales of IQ3_XXS.
pub const SIGNS_XXS: Range<usize> = 66..98;
/// Bytes of an IQ3_S block.
pub const BYTES_S: usize = 110;
/// Ninth bits of the indices of IQ3_S.
pub const QH_S: Range<usize> = 66..74;
/// Signs of IQ3_S, bit `j` of byte `i` for value `8 i + j`.
pub const SIGNS_S: Range<usize> = 74..106;
/// Scales of IQ3_S.
pub const SCALES_S: Range<usize> = 106..110;
const _: () = assert!(SIGNS_XXS.end == BYTES_XXS && SCALES_S.end == BYTES_S);

/// One IQ3_XXS block.
pub fn dequantize_xxs(block: &[u8; BYTES_XXS], out: &mut [f32; LEN]) {
    let d = read_f16(block, D);
    let qs = block[QS].as_chunks::<8>().0;
    let bits = block[SIGNS_XXS].as_chunks::<4>().0;
    for ((out, qs), &bits) in out.as_chunks_mut::<32>().0.iter_mut().zip(qs).zip(bits) {
        let bits = u32::from_le_bytes(bits);
        let scale = d * (0.5 + (bits >> 28) as f32) * 0.5;
        for (k, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let signs = even_signs(bits >> (k / 2 * 7)) >> (k % 2 * 4);
            put_signed(out, scale, &iq_grids::IQ3_XXS[usize::from(qs[k])], signs);
        }
    }
}

/// One IQ3_S block.
pub fn dequantize_s(block: &[u8; BYTES_S], out: &mut [f32; LEN]) {
    let d = read_f16(block, D);
    let (qs, signs): (&[u8; 64], &[u8; 32]) = (field(block, QS.start), field(block, SIGNS_S.start));
    let (qh, scales): (&[u8; 8], &[u8; 4]) = (field(block, QH_S.start), field(block, SCALES_S.start));
    for (k, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let scale = d * f32::from(1 + 2 * (scales[k / 16] >> (k / 8 % 2 * 4) & 15));
        let index = usize::from(qs[k]) | usize::from(qh[k / 8] >> (k % 8) & 1) << 8;
        put_signed(out, scale, &iq_grids::IQ3_S[index], signs[k / 2] >> (k % 2 * 4));
    }
}
