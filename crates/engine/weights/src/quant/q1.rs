//! Q1_0 and Q2_0: one and two bits a value under one scale.
//!
//! | type | values | value               | block            | bytes |
//! |------|--------|---------------------|------------------|-------|
//! | Q1_0 | 128    | `d`, or `-d` for 0  | `d` f16, `qs` 16 | 18    |
//! | Q2_0 | 64     | `d * (q - 1)`       | `d` f16, `qs` 16 | 18    |
//!
//! Values follow one another from the lowest bits of a byte to its highest.

use super::read_f16;

/// Bytes of a block of either type.
pub const BYTES: usize = 18;
/// The scale.
pub const D: usize = 0;
/// The values' bits.
pub const QS: usize = 2;

/// One block of Q1_0.
pub fn dequantize_q1(block: &[u8; BYTES], out: &mut [f32; 128]) {
    let d = read_f16(block, D);
    for (i, v) in out.iter_mut().enumerate() {
        *v = if block[QS + i / 8] >> (i % 8) & 1 == 1 { d } else { -d };
    }
}

/// One block of Q2_0.
pub fn dequantize_q2(block: &[u8; BYTES], out: &mut [f32; 64]) {
    let d = read_f16(block, D);
    for (i, v) in out.iter_mut().enumerate() {
        let q = block[QS + i / 4] >> (2 * (i % 4)) & 3;
        *v = d * (f32::from(q) - 1.0);
    }
}
