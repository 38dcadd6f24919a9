//! The first GGML formats, 32 values a block under one scale: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0. Called by `quant` only;
//! kernels use the layout constants.
//!
//! | type | value                | block                                        | bytes |
//! |------|----------------------|----------------------------------------------|-------|
//! | Q4_0 | `d * (q - 8)`        | `d` f16, `qs` 16                             | 18    |
//! | Q4_1 | `d * q + m`          | `d` f16, `m` f16, `qs` 16                    | 20    |
//! | Q5_0 | `d * (q - 16)`       | `d` f16, `qh` u32, `qs` 16                   | 22    |
//! | Q5_1 | `d * q + m`          | `d` f16, `m` f16, `qh` u32, `qs` 16          | 24    |
//! | Q8_0 | `d * q`, q signed    | `d` f16, `qs` 32                             | 34    |
//!
//! Nibbles: value `i` of the first half is the low nibble of `qs[i]`, value `16 + i` its high nibble. Bit `i` of `qh`
//! (little-endian) is the fifth bit of value `i`.

use super::read_f16;

/// Values in a block.
pub const LEN: usize = 32;
/// Where `d` lies in each of these formats.
pub const D: usize = 0;
/// Where `m` lies in Q4_1 and Q5_1.
pub const M: usize = 2;
/// Where `qs` lies in Q4_0 and Q8_0.
pub const QS_0: usize = 2;
/// Where `qs` lies in Q4_1.
pub const QS_Q4_1: usize = 4;
/// Where `qh` lies in Q5_0.
pub const QH_Q5_0: usize = 2;
/// Where `qs` lies in Q5_0.
pub const QS_Q5_0: usize = 6;
/// Where `qh` lies in Q5_1.
pub const QH_Q5_1: usize = 4;
/// Where `qs` lies in Q5_1.
pub const QS_Q5_1: usize = 8;

/// The 32 nibbles of 16 bytes, in the order of their values.
#[inline(always)]
fn nibbles(qs: &[u8]) -> [u8; LEN] {
    std::array::from_fn(|i| if i < 16 { qs[i] & 15 } else { qs[i - 16] >> 4 })
}

/// The 32 five-bit numbers of a Q5 block whose fields start at `qh` and `qs`.
#[inline(always)]
fn five_bits(block: &[u8], qh: usize, qs: usize) -> [u8; LEN] {
    let low = nibbles(&block[qs..qs + 16]);
    std::array::from_fn(|i| low[i] | (block[qh + i / 8] >> (i % 8) & 1) << 4)
}

/// One Q4_0 block.
pub fn dequantize_q4_0(block: &[u8; 18], out: &mut [f32; LEN]) {
    let d = read_f16(block, D);
    for (y, q) in out.iter_mut().zip(nibbles(&block[QS_0..])) {
        *y = d * f32::from(q as i8 - 8);
    }
}

/// One Q4_1 block.
pub fn dequantize_q4_1(block: &[u8; 20], out: &mut [f32; LEN]) {
    let (d, m) = (read_f16(block, D), read_f16(block, M));
    for (y, q) in out.iter_mut().zip(nibbles(&block[QS_Q4_1..])) {
        *y = d * f32::from(q) + m;
    }
}

/// One Q5_0 block.
pub fn dequantize_q5_0(block: &[u8; 22], out: &mut [f32; LEN]) {
    let d = read_f16(block, D);
    for (y, q) in out.iter_mut().zip(five_bits(block, QH_Q5_0, QS_Q5_0)) {
        *y = d * f32::from(q as i8 - 16);
    }
}

/// One Q5_1 block.
pub fn dequantize_q5_1(block: &[u8; 24], out: &mut [f32; LEN]) {
    let (d, m) = (read_f16(block, D), read_f16(block, M));
    for (y, q) in out.iter_mut().zip(five_bits(block, QH_Q5_1, QS_Q5_1)) {
        *y = d * f32::from(q) + m;
    }
}

/// One Q8_0 block.
pub fn dequantize_q8_0(block: &[u8; 34], out: &mut [f32; LEN]) {
    let d = read_f16(block, D);
    for (y, &q) in out.iter_mut().zip(&block[QS_0..]) {
        *y = d * f32::from(q as i8);
    }
}
