//! Unsigned integers under a scale and a zero point or a minimum, which GGML's types cannot hold.
//!
//! I4_Z: 32 unsigned 4-bit integers under a scale and a zero point, `d * (q - z)`: what AWQ, GPTQ and compressed-tensors write where they
//! are not symmetric. Q4_1 cannot hold it: its minimum is an F16, and `d * z` has more bits. Kernels use the layout constants.
//!
//! Fields, 19 bytes: `d` f16; `z` u8; `qs` 16, whose low nibbles are the first 16 values and high nibbles the next 16.
//!
//! I8_Z: 32 unsigned bytes, `d * (q - z)`, and I8_M: `d * q + m`, what MLX writes in 6 and 8 bits. Scales of any precision.
//!
//! Fields, 40 bytes: `d` f32; `z` or `m` f32; `qs` 32.

use super::{field, read_f16};

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

/// Bytes of a block of I8_Z or I8_M.
pub const BYTES_8: usize = 40;
/// Its scale.
pub const D_8: usize = 0;
/// The zero point of I8_Z, a whole number; the minimum of I8_M.
pub const M_8: usize = 4;
/// The values' bytes.
pub const QS_8: usize = 8;

/// The scale of a block of I8_Z or I8_M, and its zero point or minimum.
pub fn scales_8(block: &[u8; BYTES_8]) -> [f32; 2] {
    [D_8, M_8].map(|at| f32::from_le_bytes(*field(block, at)))
}

/// One block's values of I8_Z.
pub fn dequantize_i8_z(block: &[u8; BYTES_8], out: &mut [f32; LEN]) {
    let [d, z] = scales_8(block);
    out.iter_mut().zip(&block[QS_8..]).for_each(|(out, &q)| *out = d * (f32::from(q) - z));
}

/// One block's values of I8_M.
pub fn dequantize_i8_m(block: &[u8; BYTES_8], out: &mut [f32; LEN]) {
    let [d, m] = scales_8(block);
    out.iter_mut().zip(&block[QS_8..]).for_each(|(out, &q)| *out = f32::from(q) * d + m);
}
