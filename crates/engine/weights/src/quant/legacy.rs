//! The first GGML formats, 32 values a block under one scale: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0. Kernels use the layout constants.
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

use half::f16;

use super::fit::{divide, extreme};
use super::{GgmlType as T, read_f16, write_f16};

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
const _: () = assert!(QS_0 + 16 == T::Q4_0.block_bytes() && QS_0 + 32 == T::Q8_0.block_bytes());
const _: () = assert!(QS_Q4_1 + 16 == T::Q4_1.block_bytes());
const _: () = assert!(QH_Q5_0 + 4 == QS_Q5_0 && QS_Q5_0 + 16 == T::Q5_0.block_bytes());
const _: () = assert!(QH_Q5_1 + 4 == QS_Q5_1 && QS_Q5_1 + 16 == T::Q5_1.block_bytes());

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

/// Packs the halves' quants into nibbles; returns the fifth bits.
fn pack(qs: &mut [u8], q: impl Fn(usize) -> u8) -> u32 {
    let mut qh = 0;
    for (i, byte) in qs.iter_mut().enumerate() {
        let (low, high) = (q(i), q(16 + i));
        *byte = low & 15 | high << 4;
        qh |= u32::from(low >> 4) << i | u32::from(high >> 4) << (16 + i);
    }
    qh
}

/// `d` that maps the value of largest magnitude to `-limit`, and its inverse before `d` is rounded to f16.
fn symmetric(x: &[f32; LEN], limit: f32) -> (f16, f32) {
    let d = extreme(x) / -limit;
    (f16::from_f32(d), divide(1.0, d))
}

/// `d` that cuts the range into `steps`, its inverse before it is rounded, and the range's start.
fn affine(x: &[f32; LEN], steps: f32) -> (f16, f32, f32) {
    let min = x.iter().copied().fold(f32::INFINITY, f32::min);
    let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let d = (max - min) / steps;
    (f16::from_f32(d), divide(1.0, d), min)
}

/// ggml's reference quantiser for Q4_0.
pub fn quantize_q4_0(x: &[f32; LEN], block: &mut [u8; 18]) {
    let (d, inverse) = symmetric(x, 8.0);
    write_f16(block, D, d);
    pack(&mut block[QS_0..], |i| ((x[i] * inverse + 8.5) as u8).min(15));
}

/// ggml's reference quantiser for Q4_1.
pub fn quantize_q4_1(x: &[f32; LEN], block: &mut [u8; 20]) {
    let (d, inverse, min) = affine(x, 15.0);
    write_f16(block, D, d);
    write_f16(block, M, f16::from_f32(min));
    pack(&mut block[QS_Q4_1..], |i| (((x[i] - min) * inverse + 0.5) as u8).min(15));
}

/// ggml's reference quantiser for Q5_0.
pub fn quantize_q5_0(x: &[f32; LEN], block: &mut [u8; 22]) {
    let (d, inverse) = symmetric(x, 16.0);
    write_f16(block, D, d);
    let qh = pack(&mut block[QS_Q5_0..], |i| ((x[i] * inverse + 16.5) as u8).min(31));
    block[QH_Q5_0..QS_Q5_0].copy_from_slice(&qh.to_le_bytes());
}

/// ggml's reference quantiser for Q5_1.
pub fn quantize_q5_1(x: &[f32; LEN], block: &mut [u8; 24]) {
    let (d, inverse, min) = affine(x, 31.0);
    write_f16(block, D, d);
    write_f16(block, M, f16::from_f32(min));
    let qh = pack(&mut block[QS_Q5_1..], |i| (((x[i] - min) * inverse + 0.5) as u8).min(31));
    block[QH_Q5_1..QS_Q5_1].copy_from_slice(&qh.to_le_bytes());
}

/// ggml's reference quantiser for Q8_0.
pub fn quantize_q8_0(x: &[f32; LEN], block: &mut [u8; 34]) {
    let d = extreme(x).abs() / 127.0;
    let inverse = divide(1.0, d);
    write_f16(block, D, f16::from_f32(d));
    for (q, x) in block[QS_0..].iter_mut().zip(x) {
        *q = (x * inverse).round() as i8 as u8;
    }
}
