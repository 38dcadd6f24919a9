//! Q4_K: 256 values, 8 sub-blocks of 32, 4 bits a value, 6-bit scales and minima. Kernels use the layout constants and [`unpack_scales`]
//! (Q5_K has the same scales).
//!
//! Value `i` of sub-block `s` is `d * scale[s] * q - dmin * min[s]`. Fields, 144 bytes:
//!
//! | field    | bytes | content                                                                            |
//! |----------|-------|------------------------------------------------------------------------------------|
//! | `d`      | 2     | f16                                                                                |
//! | `dmin`   | 2     | f16                                                                                |
//! | `scales` | 12    | `s < 4`: scale and minimum are the low 6 bits of bytes `s` and `4 + s`; the others' low 4 bits are the nibbles of byte `4 + s`, their high 2 bits the top of bytes `s - 4` and `s` |
//! | `qs`     | 128   | sub-blocks `2p` (low nibbles) and `2p + 1` (high nibbles) share 32 bytes             |

use std::ops::Range;

use super::fit::Affine;
use super::{field, read_f16, write_f16};

/// Values in a block.
pub const LEN: usize = 256;
/// Bytes of a block.
pub const BYTES: usize = 144;
/// Scale of the scales.
pub const D: usize = 0;
/// Scale of the minima.
pub const DMIN: usize = 2;
/// The packed scales and minima.
pub const SCALES: Range<usize> = 4..16;
/// The values' nibbles.
pub const QS: Range<usize> = 16..144;
const _: () = assert!(QS.end == BYTES);

/// The 8 scales and the 8 minima, 0..=63, from the 12 bytes of `scales`.
#[inline(always)]
pub fn unpack_scales(packed: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let p = packed;
    let scales = std::array::from_fn(|s| match s {
        0..4 => p[s] & 63,
        _ => p[4 + s] & 15 | p[s - 4] >> 6 << 4,
    });
    let mins = std::array::from_fn(|s| match s {
        0..4 => p[4 + s] & 63,
        _ => p[4 + s] >> 4 | p[s] >> 6 << 4,
    });
    (scales, mins)
}

/// The inverse of [`unpack_scales`].
pub fn pack_scales(scales: &[u8; 8], mins: &[u8; 8]) -> [u8; 12] {
    std::array::from_fn(|i| match i {
        0..4 => scales[i] | scales[i + 4] >> 4 << 6,
        4..8 => mins[i - 4] | mins[i] >> 4 << 6,
        _ => scales[i - 4] & 15 | (mins[i - 4] & 15) << 4,
    })
}

/// One block's values.
pub fn dequantize(block: &[u8; BYTES], out: &mut [f32; LEN]) {
    let (d, dmin) = (read_f16(block, D), read_f16(block, DMIN));
    let (scales, mins) = unpack_scales(field(block, SCALES.start));
    let qs = block[QS].as_chunks::<32>().0;
    for (p, (out, qs)) in out.as_chunks_mut::<64>().0.iter_mut().zip(qs).enumerate() {
        let (low, high) = out.split_at_mut(32);
        let (scale, min) = (d * f32::from(scales[2 * p]), dmin * f32::from(mins[2 * p]));
        for (y, q) in low.iter_mut().zip(qs) {
            *y = scale * f32::from(q & 15) - min;
        }
        let (scale, min) = (d * f32::from(scales[2 * p + 1]), dmin * f32::from(mins[2 * p + 1]));
        for (y, q) in high.iter_mut().zip(qs) {
            *y = scale * f32::from(q >> 4) - min;
        }
    }
}

/// A plain round-to-nearest quantiser: each sub-block's range, cut into fifteen steps.
pub fn quantize(x: &[f32; LEN], block: &mut [u8; BYTES]) {
    let fit = Affine::<8>::new(x, 15.0, 63.0);
    write_f16(block, D, fit.d);
    write_f16(block, DMIN, fit.dmin);
    block[SCALES].copy_from_slice(&pack_scales(&fit.scales, &fit.mins));
    for (p, x) in x.as_chunks::<64>().0.iter().enumerate() {
        for l in 0..32 {
            block[QS.start + 32 * p + l] = fit.quant(2 * p, x[l]) | fit.quant(2 * p + 1, x[32 + l]) << 4;
        }
    }
}
