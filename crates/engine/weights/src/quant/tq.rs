//! The ternary formats TQ1_0 and TQ2_0: 256 values `d * t` with `t` of -1, 0, 1. Kernels use the layout constants.
//!
//! | type  | fields                                    | bytes |
//! |-------|-------------------------------------------|-------|
//! | TQ1_0 | `qs` 48, `qh` 4, `d` f16                  | 54    |
//! | TQ2_0 | `qs` 64, `d` f16                          | 66    |
//!
//! TQ2_0 is 2 bits a value, `t + 1`: half `h` (128 values) has 32 bytes; value `32 j + l` of it is bits `2j..` of byte `l`.
//!
//! A byte of TQ1_0 is five trits (four in `qh`) as a fixed-point fraction: `t + 1` of the first is the first digit of
//! `byte / 256` in base 3, so trit `n` comes out as `(byte * 3^n mod 256) * 3 / 256`. The trits of the first 32 bytes are
//! 32 values apart, those of the next 16 bytes 16, those of `qh` 4.

use std::ops::Range;

use half::f16;

use super::fit::{divide, extreme};
use super::{read_f16, write_f16};

/// Values in a block.
pub const LEN: usize = 256;
/// Bytes of a TQ1_0 block.
pub const BYTES_TQ1: usize = 54;
/// Where `d` lies in TQ1_0.
pub const D_TQ1: usize = 52;
/// Bytes of a TQ2_0 block.
pub const BYTES_TQ2: usize = 66;
/// The 2-bit values of TQ2_0.
pub const QS_TQ2: Range<usize> = 0..64;
/// Where `d` lies in TQ2_0.
pub const D_TQ2: usize = 64;
const _: () = assert!(D_TQ1 + 2 == BYTES_TQ1 && D_TQ2 + 2 == BYTES_TQ2);

/// Trit groups of TQ1_0: first byte, number of bytes, first value, trits a byte.
const GROUPS_TQ1: [(usize, usize, usize, usize); 3] = [(0, 32, 0, 5), (32, 16, 160, 5), (48, 4, 240, 4)];

/// One TQ1_0 block.
pub fn dequantize_tq1(block: &[u8; BYTES_TQ1], out: &mut [f32; LEN]) {
    let d = read_f16(block, D_TQ1);
    for (byte, bytes, value, trits) in GROUPS_TQ1 {
        let mut power = 1u8;
        for out in out[value..value + bytes * trits].chunks_exact_mut(bytes) {
            for (y, q) in out.iter_mut().zip(&block[byte..byte + bytes]) {
                let digit = (u16::from(q.wrapping_mul(power)) * 3) >> 8;
                *y = d * f32::from(digit as i8 - 1);
            }
            power = power.wrapping_mul(3);
        }
    }
}

/// One TQ2_0 block.
pub fn dequantize_tq2(block: &[u8; BYTES_TQ2], out: &mut [f32; LEN]) {
    let d = read_f16(block, D_TQ2);
    let qs = block[QS_TQ2].as_chunks::<32>().0;
    for (i, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        for (y, q) in out.iter_mut().zip(&qs[i / 4]) {
            *y = d * f32::from((q >> (i % 4 * 2) & 3) as i8 - 1);
        }
    }
}

/// The block's `d` and a function from a value to its digit 0, 1, 2.
fn ternary(x: &[f32; LEN]) -> (f16, impl Fn(f32) -> u8) {
    let largest = extreme(x).abs();
    let inverse = divide(1.0, largest);
    (f16::from_f32(largest), move |x| ((x * inverse).round().clamp(-1.0, 1.0) as i8 + 1) as u8)
}

/// ggml's reference quantiser for TQ1_0.
pub fn quantize_tq1(x: &[f32; LEN], block: &mut [u8; BYTES_TQ1]) {
    let (d, digit) = ternary(x);
    write_f16(block, D_TQ1, d);
    pack_tq1(&x.map(digit), block);
}

/// Writes the trits of a TQ1_0 block, each one higher than its value.
pub fn pack_tq1(trits: &[u8; LEN], block: &mut [u8; BYTES_TQ1]) {
    for (byte, bytes, value, count) in GROUPS_TQ1 {
        for i in 0..bytes {
            let digits = (0..5).map(|n| if n < count { trits[value + n * bytes + i] } else { 0 });
            let number = digits.fold(0, |a, t| 3 * a + u16::from(t));
            // Rounded up, so that the digits come out again when the fraction is cut.
            block[byte + i] = (number * 256).div_ceil(243) as u8;
        }
    }
}

/// ggml's reference quantiser for TQ2_0.
pub fn quantize_tq2(x: &[f32; LEN], block: &mut [u8; BYTES_TQ2]) {
    let (d, digit) = ternary(x);
    *block = [0; BYTES_TQ2];
    write_f16(block, D_TQ2, d);
    for (i, &x) in x.iter().enumerate() {
        block[QS_TQ2.start + i / 128 * 32 + i % 32] |= digit(x) << (i / 32 % 4 * 2);
    }
}
