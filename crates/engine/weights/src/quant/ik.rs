//! ik_llama.cpp's types with a scale in each block: Q6_0, and IQ2_K to IQ6_K, 256 values with a scale and one of two tables for each 16.
//! [`super::ik_rows`] has those whose scale lies before a row.
//!
//! | type  | value                        | fields                                                                  | bytes |
//! |-------|------------------------------|-------------------------------------------------------------------------|-------|
//! | Q6_0  | `d * (q - 32)`               | `d` f16; `qh` 8: bits 4 and 5; `qs` 16: bits 0 to 3                     | 26    |
//! | IQ2_K | `d * (s - 8) * LEVELS_2[q]`  | `d` f16; `extra` u16; `scales` 8; `qs` 64                               | 76    |
//! | IQ3_K | `d * ±(2s + 1) * LEVELS_3[q]` | `d` f16; `extra` u16; signs of scales u16; `scales` 8; `qs` 64; `qh` 32 | 110   |
//! | IQ4_K | `d * (s - 32) * LEVELS_4[q]` | `d` f16; `extra` u16; high bits of scales 4; `scales` 8; `qs` 128       | 144   |
//! | IQ5_K | `d * (s - 32) * LEVELS_5[q]` | as IQ4_K; `qh` 32                                                       | 176   |
//! | IQ6_K | `d * s * (LEVELS_6[q] + e)`  | `d` f16; `extra` u16; `scales` 16, signed; `qs` 128; `qh` 64            | 212   |
//!
//! Bit `i` of `extra` chooses the second table for the values `16 i..`. The layouts are those of ik_llama.cpp's `ggml-common.h`, the values
//! those of its `iqk_quantize.cpp`.

use std::sync::LazyLock;

use super::{field, read_f16};

/// Values in a block, but for Q6_0.
pub const LEN: usize = 256;
/// Where `d` lies in all of them.
pub const D: usize = 0;
/// Bytes of the blocks.
pub const BYTES_Q6_0: usize = 26;
#[allow(missing_docs)]
pub const BYTES_2: usize = 76;
#[allow(missing_docs)]
pub const BYTES_3: usize = 110;
#[allow(missing_docs)]
pub const BYTES_4: usize = 144;
#[allow(missing_docs)]
pub const BYTES_5: usize = 176;
#[allow(missing_docs)]
pub const BYTES_6: usize = 212;

/// Two tables after each other.
pub(super) const LEVELS_2: [i8; 8] = [-31, -13, 1, 17, -26, -8, 6, 22];
pub(super) const LEVELS_3: [i8; 16] = [-63, -40, -23, -10, 1, 13, 28, 47, -59, -36, -19, -6, 5, 17, 32, 51];
pub(super) const LEVELS_4: [i8; 32] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113, //
    -123, -100, -79, -61, -45, -31, -18, -6, 5, 17, 29, 42, 57, 73, 93, 117,
];
pub(super) const LEVELS_5: [i8; 64] = [
    -126, -114, -103, -92, -83, -74, -65, -57, -50, -43, -36, -30, -24, -18, -12, -6, //
    -1, 5, 11, 17, 23, 29, 36, 43, 51, 59, 68, 77, 87, 97, 109, 121, //
    -124, -112, -101, -90, -81, -72, -63, -55, -48, -41, -34, -28, -22, -16, -10, -4, //
    1, 7, 13, 19, 25, 31, 38, 45, 53, 61, 70, 79, 89, 99, 111, 123,
];

/// The little-endian number at byte `at`.
pub(super) fn read_u16(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(*field(block, at))
}

/// Half `half` of a byte.
pub(super) fn nibble(byte: u8, half: usize) -> u8 {
    byte >> (4 * half) & 15
}

/// The value of `levels`, a number's table of them, times a scale.
pub(super) fn level(scale: f32, levels: &[i8], q: u8) -> f32 {
    scale * f32::from(levels[usize::from(q)])
}

/// One Q6_0 block.
pub fn dequantize_q6_0(block: &[u8; BYTES_Q6_0], out: &mut [f32; 32]) {
    let d = read_f16(block, D);
    let (qh, qs): (&[u8; 8], &[u8; 16]) = (field(block, 2), field(block, 10));
    for (i, out) in out.iter_mut().enumerate() {
        let (j, half) = (i % 16, i / 16);
        let high = qh[j % 8] >> (4 * (j / 8) + 2 * half) & 3;
        *out = d * f32::from((nibble(qs[j], half) | high << 4) as i8 - 32);
    }
}

/// Values 16 by 16: the scale and the levels of each, from `of`; `q` is the index of value `i`.
fn sixteens<'a>(
    block: &[u8],
    out: &mut [f32; LEN],
    of: impl Fn(usize) -> (i32, &'a [i8]),
    q: impl Fn(usize) -> u8,
) {
    let d = read_f16(block, D);
    for (s, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let (scale, levels) = of(s);
        let scale = d * scale as f32;
        out.iter_mut().enumerate().for_each(|(j, out)| *out = level(scale, levels, q(16 * s + j)));
    }
}

/// One of two tables, by a bit.
fn table<const N: usize>(levels: &[i8; N], extra: u16, bit: usize) -> &[i8] {
    let half = N / 2;
    &levels[half * usize::from(extra >> bit & 1)..][..half]
}

/// Two bits of value `i`: four bytes' worth of 32 values after each other in a byte.
pub(super) fn two_bits(qs: &[u8; 64], i: usize) -> u8 {
    qs[i / 128 * 32 + i % 32] >> (2 * (i / 32 % 4)) & 3
}

/// One IQ2_K block.
pub fn dequantize_2(block: &[u8; BYTES_2], out: &mut [f32; LEN]) {
    let (extra, scales, qs) = (read_u16(block, 2), field::<8>(block, 4), field(block, 12));
    let of = |s: usize| (i32::from(nibble(scales[s / 2], s % 2)) - 8, table(&LEVELS_2, extra, s));
    sixteens(block, out, of, |i| two_bits(qs, i));
}

/// One IQ3_K block.
pub fn dequantize_3(block: &[u8; BYTES_3], out: &mut [f32; LEN]) {
    let (extra, signs, scales) = (read_u16(block, 2), read_u16(block, 4), field::<8>(block, 6));
    let (qs, qh) = (field(block, 14), field::<32>(block, 78));
    let of = |s: usize| {
        let scale = 2 * i32::from(nibble(scales[s / 2], s % 2)) + 1;
        (if signs >> s & 1 == 1 { -scale } else { scale }, table(&LEVELS_3, extra, s))
    };
    sixteens(block, out, of, |i| two_bits(qs, i) | (qh[i % 32] >> (i / 32) & 1) << 2);
}

/// The scales of IQ4_K and IQ5_K.
fn six_bits(block: &[u8], s: usize) -> i32 {
    let (high, low) = (field::<4>(block, 4), field::<8>(block, 8));
    i32::from(nibble(low[s / 2], s % 2) | (high[s / 4] >> (2 * (s % 4)) & 3) << 4) - 32
}

/// One IQ4_K block.
pub fn dequantize_4(block: &[u8; BYTES_4], out: &mut [f32; LEN]) {
    let (extra, qs) = (read_u16(block, 2), field::<128>(block, 16));
    let of = |s: usize| (six_bits(block, s), table(&LEVELS_4, extra, s));
    sixteens(block, out, of, |i| nibble(qs[i / 32 * 16 + i % 16], i % 32 / 16));
}

/// One IQ5_K block.
pub fn dequantize_5(block: &[u8; BYTES_5], out: &mut [f32; LEN]) {
    let (extra, qs, qh) = (read_u16(block, 2), field::<128>(block, 16), field::<32>(block, 144));
    let of = |s: usize| (six_bits(block, s), table(&LEVELS_5, extra, s));
    sixteens(block, out, of, |i| {
        nibble(qs[i / 64 * 32 + i % 32], i % 64 / 32) | (qh[i % 32] >> (i / 32) & 1) << 4
    });
}

/// The levels of IQ6_K: a polynomial, in the library's rounding.
static LEVELS_6: LazyLock<[f32; 64]> = LazyLock::new(|| {
    std::array::from_fn(|q| {
        let q = q as f32;
        q.mul_add(q.mul_add(q.mul_add(0.001_197_2, -0.112_18), 6.2568), -127.0)
    })
});

/// One IQ6_K block: bits of `extra` add 1 to the levels.
pub fn dequantize_6(block: &[u8; BYTES_6], out: &mut [f32; LEN]) {
    let (d, extra, levels) = (read_f16(block, D), read_u16(block, 2), &*LEVELS_6);
    let (scales, qs, qh) = (field::<16>(block, 4), field::<128>(block, 20), field::<64>(block, 148));
    for (s, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let (scale, shift) = (d * f32::from(scales[s].cast_signed()), f32::from((extra >> s & 1) as u8));
        for (j, out) in out.iter_mut().enumerate() {
            let i = 16 * s + j;
            let low = nibble(qs[i / 64 * 32 + i % 32], i % 64 / 32);
            let high = qh[i / 128 * 32 + i % 32] >> (2 * (i % 128 / 32)) & 3;
            *out = scale * (levels[usize::from(low | high << 4)] + shift);
        }
    }
}
