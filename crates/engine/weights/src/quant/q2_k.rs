//! Q2_K: 256 values, 16 sub-blocks of 16, 2 bits a value, 4-bit scales and minima. Kernels use the layout constants.
//!
//! Value `i` of sub-block `s` is `d * scale[s] * q - dmin * min[s]`. Fields, 84 bytes:
//!
//! | field    | bytes | content                                                                             |
//! |----------|-------|-------------------------------------------------------------------------------------|
//! | `scales` | 16    | sub-block `s`: scale in the low nibble, minimum in the high nibble of byte `s`       |
//! | `qs`     | 64    | half `h` (128 values) has 32 bytes; value `32 j + l` of it is bits `2j..` of byte `l` |
//! | `d`      | 2     | f16                                                                                 |
//! | `dmin`   | 2     | f16                                                                                 |

use std::ops::Range;

use super::fit::Affine;
use super::{read_f16, write_f16};

/// Values in a block.
pub const LEN: usize = 256;
/// Bytes of a block.
pub const BYTES: usize = 84;
/// Scale and minimum of each sub-block.
pub const SCALES: Range<usize> = 0..16;
/// The values' 2 bits.
pub const QS: Range<usize> = 16..80;
/// Scale of the scales.
pub const D: usize = 80;
/// Scale of the minima.
pub const DMIN: usize = 82;
const _: () = assert!(DMIN + 2 == BYTES);

/// One block's values.
pub fn dequantize(block: &[u8; BYTES], out: &mut [f32; LEN]) {
    let (d, dmin) = (read_f16(block, D), read_f16(block, DMIN));
    let qs = block[QS].as_chunks::<32>().0;
    let scales = &block[SCALES];
    for (s, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * f32::from(scales[s] & 15);
        let min = dmin * f32::from(scales[s] >> 4);
        let shift = s / 2 % 4 * 2;
        let qs = &qs[s / 8].as_chunks::<16>().0[s % 2];
        for (y, q) in out.iter_mut().zip(qs) {
            *y = scale * f32::from(q >> shift & 3) - min;
        }
    }
}

/// A plain round-to-nearest quantiser: each sub-block's range, cut into three steps.
pub fn quantize(x: &[f32; LEN], block: &mut [u8; BYTES]) {
    let fit = Affine::<16>::new(x, 3.0, 15.0);
    write_f16(block, D, fit.d);
    write_f16(block, DMIN, fit.dmin);
    block[QS].fill(0);
    for (s, x) in x.as_chunks::<16>().0.iter().enumerate() {
        block[s] = fit.scales[s] | fit.mins[s] << 4;
        for (l, &x) in x.iter().enumerate() {
            block[QS.start + s / 8 * 32 + s % 2 * 16 + l] |= fit.quant(s, x) << (s / 2 % 4 * 2);
        }
    }
}
