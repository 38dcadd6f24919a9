//! Q3_K: 256 values, 16 sub-blocks of 16, 3 bits a value, signed 6-bit scales. Kernels use the layout constants.
//!
//! Value `i` of sub-block `s` is `d * (scale[s] - 32) * (q - 4)`. Fields, 110 bytes:
//!
//! | field    | bytes | content                                                                             |
//! |----------|-------|-------------------------------------------------------------------------------------|
//! | `hmask`  | 32    | value `32 k + l`: the third bit of `q` is bit `k` of byte `l`                         |
//! | `qs`     | 64    | half `h` (128 values) has 32 bytes; value `32 j + l` of it is bits `2j..` of byte `l` |
//! | `scales` | 12    | scale `s`: low 4 bits in byte `s % 8` (nibble `s / 8`), high 2 bits in byte `8 + s % 4` (bits `2 (s / 4)..`) |
//! | `d`      | 2     | f16                                                                                 |

use std::ops::Range;

use super::fit::Symmetric;
use super::{field, read_f16, write_f16};

/// Values in a block.
pub const LEN: usize = 256;
/// Bytes of a block.
pub const BYTES: usize = 110;
/// The values' highest bit.
pub const HMASK: Range<usize> = 0..32;
/// The values' low 2 bits.
pub const QS: Range<usize> = 32..96;
/// The packed scales.
pub const SCALES: Range<usize> = 96..108;
/// Scale of the scales.
pub const D: usize = 108;
const _: () = assert!(D + 2 == BYTES);

/// The 16 scales, -32..=31, from the 12 bytes of `scales`.
#[inline(always)]
pub fn unpack_scales(packed: &[u8; 12]) -> [i8; 16] {
    std::array::from_fn(|s| {
        let low = packed[s % 8] >> (s / 8 * 4) & 15;
        let high = packed[8 + s % 4] >> (s / 4 * 2) & 3;
        (low | high << 4) as i8 - 32
    })
}

/// One block's values.
pub fn dequantize(block: &[u8; BYTES], out: &mut [f32; LEN]) {
    let d = read_f16(block, D);
    let scales = unpack_scales(field(block, SCALES.start));
    let hmask = block[HMASK].as_chunks::<16>().0;
    let qs = block[QS].as_chunks::<32>().0;
    for (s, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * f32::from(scales[s]);
        let (shift, bit) = (s / 2 % 4 * 2, s / 2);
        let qs = &qs[s / 8].as_chunks::<16>().0[s % 2];
        for ((y, q), h) in out.iter_mut().zip(qs).zip(&hmask[s % 2]) {
            let q = (q >> shift & 3) | (h >> bit & 1) << 2;
            *y = scale * f32::from(q as i8 - 4);
        }
    }
}

/// A plain round-to-nearest quantiser: each sub-block's largest value becomes -4.
pub fn quantize(x: &[f32; LEN], block: &mut [u8; BYTES]) {
    let fit = Symmetric::<16>::new(x, 4.0, 32.0);
    *block = [0; BYTES];
    write_f16(block, D, fit.d);
    for (s, x) in x.as_chunks::<16>().0.iter().enumerate() {
        let scale = (fit.scales[s] + 32) as u8;
        block[SCALES.start + s % 8] |= (scale & 15) << (s / 8 * 4);
        block[SCALES.start + 8 + s % 4] |= scale >> 4 << (s / 4 * 2);
        for (l, &x) in x.iter().enumerate() {
            let q = (fit.quant(s, x) + 4) as u8;
            block[QS.start + s / 8 * 32 + s % 2 * 16 + l] |= (q & 3) << (s / 2 % 4 * 2);
            block[HMASK.start + s % 2 * 16 + l] |= q >> 2 << (s / 2);
        }
    }
}
