//! I4_Z: 32 unsigned 4-bit integers under a scale and a zero point, `d * (q - z)`: what AWQ, GPTQ and compressed-tensors write where they
//! are not symmetric. Q4_1 cannot hold it: its minimum is an F16, and `d * z` has more bits. Kernels use the layout constants.
//!
//! Fields, 19 bytes: `d` f16; `z` u8; `qs` 16, whose low nibbles are the first 16 values and high nibbles the next 16.

use super::read_f16;

/// Values in a block.
pub const LEN: usize = 32;
/// Bytes of a block.
pub const BYTES: usize = 19;
/// The scale.
pub const D: usize = 0;
/// The zero point.
pub const Z: usize = 2;
/// The values' nibbles.
pub const QS: usize = 3;

/// One block's values.
pub fn dequantize(block: &[u8; BYTES], out: &mut [f32; LEN]) {
    let (d, z) = (read_f16(block, D), f32::from(block[Z]));
    let (low, high) = out.split_at_mut(16);
    for ((l, h), q) in low.iter_mut().zip(high).zip(&block[QS..]) {
        *l = d * (f32::from(q & 15) - z);
        *h = d * (f32::from(q >> 4) - z);
    }
}
