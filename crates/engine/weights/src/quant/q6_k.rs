//! Q6_K: 256 values, 16 sub-blocks of 16, 6 bits a value, signed 8-bit scales. Kernels use the layout constants.
//!
//! Value `i` of sub-block `s` is `d * scale[s] * (q - 32)`. Fields, 210 bytes; half `h` has 128 values:
//!
//! | field    | bytes | content                                                                                   |
//! |----------|-------|-------------------------------------------------------------------------------------------|
//! | `ql`     | 128   | half `h` has 64 bytes; value `32 j + l`: nibble `j / 2` of byte `32 (j % 2) + l`, the low 4 bits |
//! | `qh`     | 64    | half `h` has 32 bytes; value `32 j + l`: bits `2j..` of byte `l`, the high 2 bits            |
//! | `scales` | 16    | i8 each                                                                                   |
//! | `d`      | 2     | f16                                                                                       |

use std::ops::Range;

use super::fit::Symmetric;
use super::{read_f16, write_f16};

/// Values in a block.
pub const LEN: usize = 256;
/// Bytes of a block.
pub const BYTES: usize = 210;
/// The values' low 4 bits.
pub const QL: Range<usize> = 0..128;
/// The values' high 2 bits.
pub const QH: Range<usize> = 128..192;
/// The sub-blocks' scales.
pub const SCALES: Range<usize> = 192..208;
/// Scale of the scales.
pub const D: usize = 208;
const _: () = assert!(D + 2 == BYTES);

/// One block's values.
pub fn dequantize(block: &[u8; BYTES], out: &mut [f32; LEN]) {
    let d = read_f16(block, D);
    let ql = block[QL].as_chunks::<16>().0;
    let qh = block[QH].as_chunks::<16>().0;
    let scales = &block[SCALES];
    for (s, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * f32::from(scales[s] as i8);
        let (half, j, part) = (s / 8, s / 2 % 4, s % 2);
        let low = &ql[4 * half + j % 2 * 2 + part];
        let high = &qh[2 * half + part];
        for ((y, l), h) in out.iter_mut().zip(low).zip(high) {
            let q = (l >> (j / 2 * 4) & 15) | (h >> (j * 2) & 3) << 4;
            *y = scale * f32::from(q as i8 - 32);
        }
    }
}

/// A plain round-to-nearest quantiser: each sub-block's largest value becomes -32.
pub fn quantize(x: &[f32; LEN], block: &mut [u8; BYTES]) {
    let fit = Symmetric::<16>::new(x, 32.0, 128.0);
    *block = [0; BYTES];
    write_f16(block, D, fit.d);
    for (s, x) in x.as_chunks::<16>().0.iter().enumerate() {
        let (half, j, part) = (s / 8, s / 2 % 4, s % 2);
        block[SCALES.start + s] = fit.scales[s] as u8;
        for (l, &x) in x.iter().enumerate() {
            let q = (fit.quant(s, x) + 32) as u8;
            block[QL.start + 64 * half + j % 2 * 32 + 16 * part + l] |= (q & 15) << (j / 2 * 4);
            block[QH.start + 32 * half + 16 * part + l] |= q >> 4 << (j * 2);
        }
    }
}
