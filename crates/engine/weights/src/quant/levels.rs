//! NF4 and FP4 of bitsandbytes: 64 indices of 4 bits into a table of 16 numbers, under the block's largest magnitude. Kernels use the layout
//! constants and the tables.
//!
//! Fields, 36 bytes: `d` f32; `qs` 32, each with one value in its low nibble and the next one in its high nibble.

use super::field;

/// Values in a block.
pub const LEN: usize = 64;
/// Bytes of a block.
pub const BYTES: usize = 36;
/// The largest magnitude.
pub const D: usize = 0;
/// The values' nibbles.
pub const QS: usize = 4;

/// Quantiles of a normal distribution (Dettmers et al., QLoRA, 2023, appendix E).
pub const NF4: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// A sign, two bits of exponent and one of mantissa; the smallest magnitudes are the exception that bitsandbytes makes.
pub const FP4: [f32; 16] = fp4();

const fn fp4() -> [f32; 16] {
    let magnitudes = [0.0, 0.005_208_333_5, 0.666_666_7, 1.0, 0.333_333_34, 0.5, 0.166_666_67, 0.25];
    let mut all = [0.0; 16];
    let mut i = 0;
    while i < 8 {
        all[i] = magnitudes[i];
        all[i + 8] = -magnitudes[i];
        i += 1;
    }
    all
}

/// One block's values.
pub fn dequantize(levels: &[f32; 16], block: &[u8; BYTES], out: &mut [f32; LEN]) {
    let d = f32::from_le_bytes(*field(block, D));
    for (out, q) in out.as_chunks_mut::<2>().0.iter_mut().zip(&block[QS..]) {
        *out = [levels[usize::from(q & 15)] * d, levels[usize::from(q >> 4)] * d];
    }
}
