//! ik_llama.cpp's types that have a scale before each row, and blocks of 256 values without one.
//!
//! In a GGUF file a row is its scale (f16 or f32) and then its blocks. Octet keeps the scales beside the blocks ([`crate::Matrix::scales`]),
//! so in memory these types have ids of their own. A block's values are those of the file, times [`Row::unit`], with which they are near 1;
//! the scales are divided by it.
//!
//! | type    | id  | scale | value of a block                    | fields                                                                    | bytes |
//! |---------|-----|-------|-------------------------------------|---------------------------------------------------------------------------|-------|
//! | IQ4_KS  | 144 | f32   | `((s & 254) - 127) * LEVELS_4[q]`   | `scales` 8, bit 0 chooses the table; `qs` 128                             | 136   |
//! | IQ2_KS  | 145 | f16   | `(s - 16) * LEVELS_2[q]`            | tables and high bits of scales u16; `scales` 4; `qs` 64                   | 70    |
//! | IQ4_KSS | 146 | f32   | as IQ4_KS                           | 64 words u16: bit 0 is one of the scale's, the rest Gray codes of `q`     | 128   |
//! | IQ5_KS  | 152 | f32   | `((s & 254) - 127) * LEVELS_5[q]`   | `scales` 8; `qs` 128; `qh` 32                                             | 168   |
//! | IQ2_KT  | 153 | f32   | `LEVELS_4[s] * walk(q)`             | `scales` 4; `q` u16 x 32, of 8 values                                     | 68    |
//! | IQ3_KT  | 154 | f32   | `s * ±abs(walk(q))`                 | `scales` 4; `q` u16 x 32, of 8 values; signs 32                           | 100   |
//! | IQ4_KT  | 155 | f32   | `(s - 64) * walk(q)`                | u32 x 8: a scale and high bits; `ql` 64; `qh` 32; `q` of 4 values         | 128   |
//! | IQ3_KS  | 156 | f16   | `(s - 16) * LEVELS_3[q]`            | high bits of scales and tables u16; `scales` 4; `qs` 64; `qh` 32          | 102   |
//! | IQ2_KL  | 157 | f16   | `(s - 32) * PAIRS[q]`, two values   | high bits of scales u16; `scales` 4; `qs` 64; `qh` 16                     | 86    |
//! | IQ1_KT  | 158 | f32   | `LEVELS_4[s] * walk(q)`             | `sh` 8: a scale and high bits; `ql` 32; `qh` 16; `q` of 8 values          | 56    |
//!
//! `walk` gives the values of a trellis code: a multiplicative generator starts at `q`, and each value is the sum of the four bytes of its
//! state (their low 6 bits), less the middle.

use half::f16;

use super::ik::{LEN, LEVELS_2, LEVELS_3, LEVELS_4, LEVELS_5, level, nibble, read_u16, two_bits};
use super::{GgmlType, field};

/// How a type's rows begin.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row {
    /// The type's id in GGUF files.
    pub id: u32,
    /// Bytes of the scale: of an f16 or an f32.
    pub scale_bytes: usize,
    /// What a block's values have been multiplied with, a power of two.
    pub unit: f32,
}

impl Row {
    /// Of a type that has such rows.
    pub fn of(ty: GgmlType) -> Option<Self> {
        let (id, scale_bytes, log2) = match ty {
            GgmlType::IQ4_KS => (144, 4, -12),
            GgmlType::IQ2_KS => (145, 2, -7),
            GgmlType::IQ4_KSS => (146, 4, -12),
            GgmlType::IQ5_KS => (152, 4, -12),
            GgmlType::IQ2_KT => (153, 4, -11),
            GgmlType::IQ3_KT => (154, 4, -8),
            GgmlType::IQ4_KT => (155, 4, -10),
            GgmlType::IQ3_KS => (156, 2, -8),
            GgmlType::IQ2_KL => (157, 2, -9),
            GgmlType::IQ1_KT => (158, 4, -11),
            _ => return None,
        };
        Some(Self { id, scale_bytes, unit: 2f32.powi(log2) })
    }

    /// The scale at a row's beginning, for the values of its blocks.
    pub fn scale(self, row: &[u8]) -> f64 {
        let stored = match self.scale_bytes {
            2 => f16::from_le_bytes(*field(row, 0)).to_f32(),
            _ => f32::from_le_bytes(*field(row, 0)),
        };
        f64::from(stored) / f64::from(self.unit)
    }
}

/// Values of whole blocks under a row's scale, in the library's order of products.
///
/// # Panics
/// When the lengths do not fit each other, or the type has no such rows.
pub fn dequantize_scaled(ty: GgmlType, data: &[u8], scale: f64, out: &mut [f32]) {
    let Some(row) = Row::of(ty) else { panic!("{ty} has no scale of a row") };
    let d = (scale * f64::from(row.unit)) as f32;
    match ty {
        GgmlType::IQ2_KS => super::decode(data, out, |b, out| ks_2(b, d, out)),
        GgmlType::IQ3_KS => super::decode(data, out, |b, out| ks_3(b, d, out)),
        GgmlType::IQ4_KS => super::decode(data, out, |b, out| ks_4(b, d, out)),
        GgmlType::IQ4_KSS => super::decode(data, out, |b, out| kss_4(b, d, out)),
        GgmlType::IQ5_KS => super::decode(data, out, |b, out| ks_5(b, d, out)),
        GgmlType::IQ2_KL => super::decode(data, out, |b, out| kl_2(b, d, out)),
        GgmlType::IQ1_KT => super::decode(data, out, |b, out| kt_1(b, d, out)),
        GgmlType::IQ2_KT => super::decode(data, out, |b, out| kt_2(b, d, out)),
        GgmlType::IQ3_KT => super::decode(data, out, |b, out| kt_3(b, d, out)),
        _ => super::decode(data, out, |b, out| kt_4(b, d, out)),
    }
}

/// Values 32 by 32: the scale of each, and the value of a number under it.
fn by_32(
    out: &mut [f32; LEN],
    d: f32,
    scale: impl Fn(usize) -> i32,
    value: impl Fn(usize, usize, f32) -> f32,
) {
    for (b, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let scale = d * scale(b) as f32;
        out.iter_mut().enumerate().for_each(|(j, out)| *out = value(b, j, scale));
    }
}

fn ks_2(block: &[u8; 70], d: f32, out: &mut [f32; LEN]) {
    let (extra, scales, qs) = (read_u16(block, 0), field::<4>(block, 2), field(block, 6));
    let scale = |b: usize| i32::from(nibble(scales[b / 2], b % 2) | ((extra >> (8 + b) & 1) as u8) << 4) - 16;
    by_32(out, d, scale, |b, j, scale| {
        level(scale, &LEVELS_2[4 * usize::from(extra >> b & 1)..], two_bits(qs, 32 * b + j))
    });
}

fn ks_3(block: &[u8; 102], d: f32, out: &mut [f32; LEN]) {
    let (extra, scales) = (read_u16(block, 0), field::<4>(block, 2));
    let (qs, qh) = (field(block, 6), field::<32>(block, 70));
    let scale = |b: usize| i32::from(nibble(scales[b % 4], b / 4) | ((extra >> b & 1) as u8) << 4) - 16;
    by_32(out, d, scale, |b, j, scale| {
        let q = two_bits(qs, 32 * b + j) | (qh[j] >> b & 1) << 2;
        level(scale, &LEVELS_3[8 * usize::from(extra >> (8 + b) & 1)..], q)
    });
}

fn ks_4(block: &[u8; 136], d: f32, out: &mut [f32; LEN]) {
    let (scales, qs) = (field::<8>(block, 0), field::<128>(block, 8));
    by_32(
        out,
        d,
        |b| i32::from(scales[b] & 254) - 127,
        |b, j, scale| {
            level(scale, &LEVELS_4[16 * usize::from(scales[b] & 1)..], nibble(qs[16 * b + j % 16], j / 16))
        },
    );
}

fn kss_4(block: &[u8; 128], d: f32, out: &mut [f32; LEN]) {
    let word = |b: usize, k: usize| read_u16(block, 2 * (8 * b + k));
    let scale = |b: usize| (0..8).fold(0, |s, k| s | i32::from(word(b, k) & 1) << k);
    by_32(
        out,
        d,
        |b| (scale(b) & 254) - 127,
        |b, j, value| {
            let gray = word(b, j % 16 / 2) & 0xfffe;
            let byte = (gray ^ gray >> 1).to_le_bytes()[j % 2];
            level(value, &LEVELS_4[16 * (scale(b) & 1) as usize..], nibble(byte, j / 16))
        },
    );
}

fn ks_5(block: &[u8; 168], d: f32, out: &mut [f32; LEN]) {
    let (scales, qs, qh) = (field::<8>(block, 0), field::<128>(block, 8), field::<32>(block, 136));
    by_32(
        out,
        d,
        |b| i32::from(scales[b] & 254) - 127,
        |b, j, scale| {
            let q = nibble(qs[b / 2 * 32 + j], b % 2) | (qh[j] >> b & 1) << 4;
            level(scale, &LEVELS_5[32 * usize::from(scales[b] & 1)..], q)
        },
    );
}

/// Pairs of the levels of three bits.
const PAIRS: [[i8; 2]; 32] = [
    [-63, -23],
    [-63, 13],
    [-40, -63],
    [-40, -10],
    [-40, 13],
    [-40, 47],
    [-23, -40],
    [-23, -23],
    [-23, 1],
    [-23, 13],
    [-23, 28],
    [-10, -63],
    [-10, 1],
    [-10, 13],
    [-10, 47],
    [1, -23],
    [1, -10],
    [1, 1],
    [1, 13],
    [1, 28],
    [13, -40],
    [13, -23],
    [13, -10],
    [13, 1],
    [13, 13],
    [28, -63],
    [28, -23],
    [28, 1],
    [28, 28],
    [28, 47],
    [47, -23],
    [47, 13],
];

fn kl_2(block: &[u8; 86], d: f32, out: &mut [f32; LEN]) {
    let (high, scales) = (read_u16(block, 0), field::<4>(block, 2));
    let (qs, qh) = (field::<64>(block, 6), field::<16>(block, 70));
    let scale = |b: usize| i32::from(nibble(scales[b % 4], b / 4) | ((high >> (2 * b) & 3) as u8) << 4) - 32;
    by_32(out, d, scale, |b, j, scale| {
        let q = nibble(qs[b / 2 * 16 + j / 2], b % 2) | (qh[j / 2] >> b & 1) << 4;
        scale * f32::from(PAIRS[usize::from(q)][j % 2])
    });
}

/// Value `j` of the code `q`, without a scale.
fn walk(q: u32, j: usize) -> f32 {
    let state = (0..=j).fold(q, |x, _| x.wrapping_mul(0xcbac_1fed)) & 0x3f3f_3f3f;
    state.to_le_bytes().iter().map(|&b| f32::from(b)).sum::<f32>() - 126.0
}

/// What is added to a code.
const START: u32 = 4096;

fn kt_1(block: &[u8; 56], d: f32, out: &mut [f32; LEN]) {
    let (sh, ql, qh) = (field::<8>(block, 0), field::<32>(block, 8), field::<16>(block, 40));
    by_32(
        out,
        d,
        |b| LEVELS_4[usize::from(sh[b] & 15)].into(),
        |b, j, scale| {
            let g = j / 8;
            let high =
                u32::from(nibble(qh[b % 4 * 4 + g], b / 4)) << 8 | u32::from(sh[b] >> (4 + g) & 1) << 12;
            scale * walk((u32::from(ql[4 * b + g]) | high) + START, j % 8)
        },
    );
}

/// The code of value `j` of 32, of IQ2_KT and IQ3_KT.
fn code(block: &[u8], b: usize, j: usize) -> u32 {
    u32::from(read_u16(block, 4 + 2 * (4 * b + j / 8))) + START
}

fn kt_2(block: &[u8; 68], d: f32, out: &mut [f32; LEN]) {
    let scale = |b: usize| LEVELS_4[usize::from(nibble(block[b % 4], b / 4))].into();
    by_32(out, d, scale, |b, j, scale| scale * walk(code(block, b, j), j % 8));
}

fn kt_3(block: &[u8; 100], d: f32, out: &mut [f32; LEN]) {
    let signs = field::<32>(block, 68);
    by_32(
        out,
        d,
        |b| nibble(block[b % 4], b / 4).into(),
        |b, j, scale| {
            let value = scale * walk(code(block, b, j), j % 8).abs();
            if signs[j] >> b & 1 == 1 { -value } else { value }
        },
    );
}

fn kt_4(block: &[u8; 128], d: f32, out: &mut [f32; LEN]) {
    let (ql, qh) = (field::<64>(block, 32), field::<32>(block, 96));
    let head = |b: usize| u32::from_le_bytes(*field(block, 4 * b));
    by_32(
        out,
        d,
        |b| ((head(b) & 255) >> 1) as i32 - 64,
        |b, j, scale| {
            let g = 8 * b + j / 4;
            let high = u32::from(nibble(qh[g % 32], g / 32)) << 8 | (head(b) >> (8 + 3 * (j / 4)) & 7) << 12;
            let start = if head(b) & 1 == 1 { START + 32768 } else { START };
            scale * walk((u32::from(ql[g]) | high) + start, j % 4)
        },
    );
}
