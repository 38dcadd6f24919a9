//! Q5_K: 256 values, 8 sub-blocks of 32, 5 bits a value, 6-bit scales and minima. Kernels use the layout constants and [`unpack_scales`].
//!
//! Value `i` of sub-block `s` is `d * scale[s] * q - dmin * min[s]`. Fields, 176 bytes:
//!
//! | field    | bytes | content                                                               |
//! |----------|-------|-----------------------------------------------------------------------|
//! | `d`      | 2     | f16                                                                   |
//! | `dmin`   | 2     | f16                                                                   |
//! | `scales` | 12    | as in Q4_K                                                            |
//! | `qh`     | 32    | value `32 s + l`: the fifth bit is bit `s` of byte `l`                  |
//! | `qs`     | 128   | sub-blocks `2p` (low nibbles) and `2p + 1` (high nibbles) share 32 bytes |

use std::ops::Range;

use super::fit::Affine;
pub use super::q4_k::unpack_scales;
use super::{field, q4_k, read_f16, write_f16};

/// Values in a block.
pub const LEN: usize = 256;
/// Bytes of a block.
pub const BYTES: usize = 176;
/// Scale of the scales.
pub const D: usize = 0;
/// Scale of the minima.
pub const DMIN: usize = 2;
/// The packed scales and minima.
pub const SCALES: Range<usize> = 4..16;
/// The values' fifth bits.
pub const QH: Range<usize> = 16..48;
/// The values' low nibbles.
pub const QS: Range<usize> = 48..176;
const _: () = assert!(QS.end == BYTES);

/// One block's values.
pub fn dequantize(block: &[u8; BYTES], out: &mut [f32; LEN]) {
    let (d, dmin) = (read_f16(block, D), read_f16(block, DMIN));
    let (scales, mins) = unpack_scales(field(block, SCALES.start));
    let qh = &block[QH];
    let qs = block[QS].as_chunks::<32>().0;
    for (s, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, min) = (d * f32::from(scales[s]), dmin * f32::from(mins[s]));
        let shift = s % 2 * 4;
        for ((y, q), h) in out.iter_mut().zip(&qs[s / 2]).zip(qh) {
            *y = scale * f32::from((q >> shift & 15) | (h >> s & 1) << 4) - min;
        }
    }
}

/// A plain round-to-nearest quantiser: each sub-block's range, cut into 31 steps.
pub fn quantize(x: &[f32; LEN], block: &mut [u8; BYTES]) {
    let fit = Affine::<8>::new(x, 31.0, 63.0);
    *block = [0; BYTES];
    write_f16(block, D, fit.d);
    write_f16(block, DMIN, fit.dmin);
    block[SCALES].copy_from_slice(&q4_k::pack_scales(&fit.scales, &fit.mins));
    for (s, x) in x.as_chunks::<32>().0.iter().enumerate() {
        for (l, &x) in x.iter().enumerate() {
            let q = fit.quant(s, x);
            block[QS.start + s / 2 * 32 + l] |= (q & 15) << (s % 2 * 4);
            block[QH.start + l] |= q >> 4 << s;
        }
    }
}
