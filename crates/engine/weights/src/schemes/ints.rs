//! Matrices of integers under scales, in every layout: what GPTQ, AWQ, compressed-tensors, MLX and bitsandbytes have in common. Made by
//! their schemes; re-blocks rows into types of GGML.

use std::ops::Range;

use half::f16;

use super::group::Floats;
use super::quantised::Read;
use crate::GgmlType;
use crate::quant::{legacy, zero_point};

/// Where the integers are; each is unsigned, less [`Ints::middle`] if nothing else is said.
pub(super) enum Quants {
    /// `[rows][bytes]`: each row is a string of bits.
    Rows { row_bytes: usize },
    /// `[words][rows]`: each column of words is a string of bits along the row.
    Columns,
    /// `[columns][rows / 8]` words of eight rows each, in AWQ's order.
    Awq,
    /// `[rows][columns]`, signed.
    Bytes,
}

/// Where the zero points are, if not in the middle of the range.
pub(super) enum Zeros {
    Middle,
    /// `[groups][words]`: strings of bits along the rows. `add`: stored less one.
    Columns {
        add: bool,
    },
    /// `[groups][rows / 8]` words in AWQ's order.
    Awq,
    /// `[words][groups]`: strings of bits along the rows.
    Packed,
    /// `[rows][groups]`, signed.
    Bytes,
    /// A minimum that is added: `[rows][groups]`.
    Minimum(Floats),
}

/// Which group a column belongs to.
pub(super) enum Groups {
    /// Groups of this size, the last of which may be shorter.
    Size(usize),
    /// One by one.
    Index(Vec<u32>),
}

/// Where the scales are.
pub(super) struct Scales {
    pub floats: Floats,
    /// Groups of a row.
    pub groups: usize,
    /// `[groups][rows]`, not `[rows][groups]`.
    pub by_group: bool,
    /// One for the whole matrix.
    pub single: bool,
    /// Multiplied with each (bitsandbytes: its scales are maxima).
    pub divisor: f32,
}

/// A matrix of integers. Parts: the integers, the scales, and the zero points if they are not in the middle.
pub(super) struct Ints {
    pub rows: usize,
    pub cols: usize,
    pub bits: u32,
    pub quants: Quants,
    pub zeros: Zeros,
    pub scales: Scales,
    pub groups: Groups,
}

/// The row of eight that nibble `i` of a word of AWQ holds.
const AWQ: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

/// A piece of rows, taken apart.
struct Piece {
    /// `[rows][columns]`
    q: Vec<u8>,
    /// `[rows][groups]`
    scales: Vec<f32>,
    /// The same, where there are zero points.
    zeros: Vec<i32>,
    /// The same, where there are minimums.
    minimums: Vec<f32>,
}

type Bad = (usize, String);

impl Ints {
    /// Whether a row has one scale, and an F16 does not hold it: then it is kept beside the blocks, in which the scale is 1.
    fn is_scaled_by_row(&self) -> bool {
        let fits = self.scales.floats.is_half() && self.scales.divisor == 1.0;
        self.scales.groups == 1 && !fits && !matches!(self.zeros, Zeros::Minimum(_))
    }

    /// The type that holds its values.
    pub fn ty(&self) -> GgmlType {
        let whole_blocks = self.cols.is_multiple_of(32)
            && match self.groups {
                Groups::Size(size) => size.is_multiple_of(32) || size >= self.cols,
                Groups::Index(_) => false,
            };
        if !whole_blocks {
            return GgmlType::F32;
        }
        let fits = self.scales.floats.is_half() && self.scales.divisor == 1.0;
        match (&self.zeros, self.bits) {
            (Zeros::Minimum(_), _) if !fits => GgmlType::I8_M,
            _ if !fits && !self.is_scaled_by_row() => GgmlType::I8_Z,
            (Zeros::Middle, 0..=4) => GgmlType::Q4_0,
            (Zeros::Middle, 5) => GgmlType::Q5_0,
            (Zeros::Middle, _) => GgmlType::Q8_0,
            (Zeros::Minimum(Floats::F16 | Floats::Bf16), 0..=4) => GgmlType::Q4_1,
            (Zeros::Minimum(Floats::F16 | Floats::Bf16), 5) => GgmlType::Q5_1,
            (Zeros::Columns { .. } | Zeros::Awq | Zeros::Packed | Zeros::Bytes, 0..=4) => GgmlType::I4_Z,
            (Zeros::Minimum(_), _) => GgmlType::I8_M,
            _ => GgmlType::I8_Z,
        }
    }

    /// The integer that stands for 0.
    fn middle(&self) -> i32 {
        1 << (self.bits - 1)
    }

    fn group(&self, col: usize) -> usize {
        match &self.groups {
            Groups::Size(size) => col / size,
            Groups::Index(of) => of[col] as usize,
        }
    }

    fn piece(&self, parts: &[&[u8]], rows: &Range<usize>) -> Result<Piece, Bad> {
        let mut q = vec![0; rows.len() * self.cols];
        self.quants(parts[0], rows, &mut q);
        let cells = rows.len() * self.scales.groups;
        let (mut zeros, mut minimums) = (Vec::new(), Vec::new());
        match &self.zeros {
            Zeros::Middle => {}
            Zeros::Minimum(floats) => {
                minimums = vec![0.0; cells];
                floats.read(parts[2], rows.start * self.scales.groups, &mut minimums);
                finite(&minimums, 2, "a minimum")?;
            }
            _ => {
                zeros = vec![0; cells];
                self.zeros(parts[2], rows, &mut zeros);
            }
        }
        Ok(Piece { q, scales: self.scales_of(parts[1], rows)?, zeros, minimums })
    }

    /// Scales of some rows, `[rows][groups]`.
    fn scales_of(&self, bytes: &[u8], rows: &Range<usize>) -> Result<Vec<f32>, Bad> {
        let s = &self.scales;
        let mut out = vec![0.0; rows.len() * s.groups];
        if s.single {
            let mut one = [0.0];
            s.floats.read(bytes, 0, &mut one);
            out.fill(one[0]);
        } else if s.by_group {
            let mut line = vec![0.0; rows.len()];
            for g in 0..s.groups {
                s.floats.read(bytes, g * self.rows + rows.start, &mut line);
                line.iter().enumerate().for_each(|(r, v)| out[r * s.groups + g] = *v);
            }
        } else {
            s.floats.read(bytes, rows.start * s.groups, &mut out);
        }
        finite(&out, 1, "a scale")?;
        if s.divisor != 1.0 {
            out.iter_mut().for_each(|v| *v /= s.divisor);
        }
        Ok(out)
    }

    /// Integers of some rows, `[rows][columns]`.
    fn quants(&self, bytes: &[u8], rows: &Range<usize>, out: &mut [u8]) {
        let (cols, bits) = (self.cols, self.bits as usize);
        match self.quants {
            Quants::Rows { row_bytes } => {
                for (row, out) in bytes[rows.start * row_bytes..].chunks(row_bytes).zip(out.chunks_mut(cols))
                {
                    out.iter_mut().enumerate().for_each(|(i, q)| *q = bits_at(row, i * bits, bits));
                }
            }
            Quants::Bytes => {
                let bytes = &bytes[rows.start * cols..rows.end * cols];
                out.iter_mut().zip(bytes).for_each(|(q, b)| *q = b ^ 0x80);
            }
            Quants::Columns => {
                let lines: Vec<&[u8]> = bytes.chunks(4 * self.rows).collect();
                for c in 0..cols {
                    let (line, shift) = (c * bits / 32, c * bits % 32);
                    let word = |line: usize, r: usize| word(lines[line], r);
                    for (r, out) in rows.clone().zip(out.chunks_mut(cols)) {
                        let low = word(line, r) >> shift;
                        let high = if shift + bits > 32 { word(line + 1, r) << (32 - shift) } else { 0 };
                        out[c] = ((low | high) & ((1 << bits) - 1)) as u8;
                    }
                }
            }
            Quants::Awq => {
                for (c, line) in bytes.chunks(self.rows / 2).enumerate() {
                    for first in (rows.start..rows.end).step_by(8) {
                        let word = word(line, first / 8);
                        for (i, r) in AWQ.into_iter().enumerate() {
                            out[(first - rows.start + r) * cols + c] = (word >> (4 * i) & 15) as u8;
                        }
                    }
                }
            }
        }
    }

    /// Zero points of some rows, `[rows][groups]`.
    fn zeros(&self, bytes: &[u8], rows: &Range<usize>, out: &mut [i32]) {
        let (groups, bits) = (self.scales.groups, self.bits as usize);
        for (r, out) in rows.clone().zip(out.chunks_mut(groups)) {
            for (g, z) in out.iter_mut().enumerate() {
                *z = match self.zeros {
                    Zeros::Middle | Zeros::Minimum(_) => self.middle(),
                    Zeros::Bytes => i32::from(bytes[r * groups + g] ^ 0x80),
                    Zeros::Awq => {
                        let word = word(&bytes[g * self.rows / 2..], r / 8);
                        let nibble = AWQ.iter().position(|&k| k == r % 8).unwrap_or(0);
                        (word >> (4 * nibble) & 15) as i32
                    }
                    Zeros::Packed => {
                        let (line, shift) = (r * bits / 32, r * bits % 32);
                        let low = word(&bytes[4 * line * groups..], g) >> shift;
                        let high = if shift + bits > 32 {
                            word(&bytes[4 * (line + 1) * groups..], g) << (32 - shift)
                        } else {
                            0
                        };
                        ((low | high) & ((1 << bits) - 1)) as i32
                    }
                    Zeros::Columns { add } => zero_of_gptq(bytes, self.rows, g, r, bits, add),
                };
            }
        }
    }

    /// One row as blocks of the type.
    fn row(&self, piece: &Piece, r: usize, out: &mut [u8]) -> Result<(), Bad> {
        let groups = self.scales.groups;
        let q = &piece.q[r * self.cols..(r + 1) * self.cols];
        let scales = &piece.scales[r * groups..(r + 1) * groups];
        let zeros = piece.zeros.get(r * groups..(r + 1) * groups);
        let minimums = piece.minimums.get(r * groups..(r + 1) * groups);
        let ty = self.ty();
        if ty == GgmlType::F32 {
            for ((c, &q), out) in q.iter().enumerate().zip(out.as_chunks_mut().0) {
                let g = self.group(c);
                let value = match minimums {
                    Some(min) => f32::from(q) * scales[g] + min[g],
                    None => (i32::from(q) - zeros.map_or(self.middle(), |z| z[g])) as f32 * scales[g],
                };
                *out = value.to_le_bytes();
            }
            return Ok(());
        }
        for (i, (q, out)) in
            q.as_chunks::<32>().0.iter().zip(out.chunks_exact_mut(ty.block_bytes())).enumerate()
        {
            let g = self.group(32 * i);
            if matches!(ty, GgmlType::I8_Z | GgmlType::I8_M) {
                let zero = || zeros.map_or(self.middle(), |z| z[g]) as f32;
                Block { q, out }.bytes_under(scales[g], minimums.map_or_else(zero, |m| m[g]));
                continue;
            }
            let d = match self.is_scaled_by_row() {
                true => f16::ONE,
                false => half_of(scales[g]).map_err(|what| (1, what))?,
            };
            out[..2].copy_from_slice(&d.to_le_bytes());
            let block = Block { q, out };
            match (ty, minimums, zeros) {
                (GgmlType::Q4_0, ..) => block.nibbles(legacy::QS_0, 8 - self.middle()),
                (GgmlType::Q5_0, ..) => block.five_bits(legacy::QH_Q5_0, legacy::QS_Q5_0),
                (GgmlType::Q8_0, ..) => block.bytes(self.middle()),
                (GgmlType::I4_Z, _, Some(zeros)) => block.zero_point(zeros[g]),
                (_, Some(min), _) => {
                    let m = half_of(min[g]).map_err(|what| (2, what))?;
                    block.out[legacy::M..legacy::M + 2].copy_from_slice(&m.to_le_bytes());
                    match ty {
                        GgmlType::Q5_1 => block.five_bits(legacy::QH_Q5_1, legacy::QS_Q5_1),
                        _ => block.nibbles(legacy::QS_Q4_1, 0),
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}

impl Read for Ints {
    fn rows(&self, parts: &[&[u8]], rows: Range<usize>, out: &mut [u8]) -> Result<(), Bad> {
        let piece = self.piece(parts, &rows)?;
        let row_bytes = out.len() / rows.len().max(1);
        out.chunks_exact_mut(row_bytes.max(1)).enumerate().try_for_each(|(r, out)| self.row(&piece, r, out))
    }

    fn scales(&self, parts: &[&[u8]]) -> Result<Option<Vec<f64>>, Bad> {
        let has_own = matches!(self.ty(), GgmlType::F32 | GgmlType::I8_Z | GgmlType::I8_M);
        if has_own || !self.is_scaled_by_row() {
            return Ok(None);
        }
        Ok(Some(self.scales_of(parts[1], &(0..self.rows))?.into_iter().map(f64::from).collect()))
    }
}

/// 32 integers, and the block that they go into.
struct Block<'a> {
    q: &'a [u8; 32],
    out: &'a mut [u8],
}

impl Block<'_> {
    /// Nibbles, each `add` larger than the integer: the first half low, the second high.
    fn nibbles(self, at: usize, add: i32) {
        let add = add as u8;
        let (low, high) = self.q.split_at(16);
        for ((out, l), h) in self.out[at..].iter_mut().zip(low).zip(high) {
            *out = (l + add) | (h + add) << 4;
        }
    }
    /// Nibbles and fifth bits.
    fn five_bits(self, high_at: usize, at: usize) {
        let high = self.q.iter().enumerate().fold(0u32, |bits, (i, q)| bits | u32::from(q >> 4 & 1) << i);
        self.out[high_at..high_at + 4].copy_from_slice(&high.to_le_bytes());
        let low = self.q.map(|q| q & 15);
        Block { q: &low, out: self.out }.nibbles(at, 0);
    }
    /// Signed bytes.
    fn bytes(self, middle: i32) {
        for (out, &q) in self.out[legacy::QS_0..].iter_mut().zip(self.q) {
            *out = (i32::from(q) - middle) as i8 as u8;
        }
    }
    /// Bytes as they are, under a scale and a zero point or a minimum.
    fn bytes_under(self, d: f32, m: f32) {
        self.out[zero_point::D_8..][..4].copy_from_slice(&d.to_le_bytes());
        self.out[zero_point::M_8..][..4].copy_from_slice(&m.to_le_bytes());
        self.out[zero_point::QS_8..].copy_from_slice(self.q);
    }
    fn zero_point(self, z: i32) {
        self.out[zero_point::Z] = z as u8;
        self.nibbles(zero_point::QS, 0);
    }
}

/// A scale as F16. Those of a BF16 below 2^-17 may lose bits, of which no weight has a use: the error is below 2^-25 a step.
fn half_of(scale: f32) -> Result<f16, String> {
    let half = f16::from_f32(scale);
    if half.is_infinite() {
        return Err(format!("holds a scale of {scale}, which is larger than an F16 can be"));
    }
    Ok(half)
}

fn finite(values: &[f32], part: usize, what: &str) -> Result<(), Bad> {
    match values.iter().find(|v| !v.is_finite()) {
        None => Ok(()),
        Some(v) => Err((part, format!("holds {what} of {v}; expected finite numbers"))),
    }
}

/// Word `i`.
fn word(bytes: &[u8], i: usize) -> u32 {
    u32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]])
}

/// `bits` (at most 8) bits from bit `at` of a string of bytes.
fn bits_at(bytes: &[u8], at: usize, bits: usize) -> u8 {
    let low = u16::from(bytes[at / 8]);
    let high = u16::from(bytes.get(at / 8 + 1).copied().unwrap_or(0));
    ((low | high << 8) >> (at % 8)) as u8 & (0xff >> (8 - bits))
}

/// The zero point of group `g` and row `r` of `rows`. Writers subtract one from whole words, so that a zero point of 0 borrows from its
/// neighbour: adding one to the whole word gives it back.
fn zero_of_gptq(bytes: &[u8], rows: usize, g: usize, r: usize, bits: usize, add: bool) -> i32 {
    let words = (rows * bits).div_ceil(32);
    let (line, shift) = (g * words + r * bits / 32, r * bits % 32);
    if !32usize.is_multiple_of(bits) {
        let high = if shift + bits > 32 { word(bytes, line + 1) << (32 - shift) } else { 0 };
        return ((word(bytes, line) >> shift | high) & ((1 << bits) - 1)) as i32 + i32::from(add);
    }
    let ones = if add { u32::MAX / ((1 << bits) - 1) } else { 0 };
    (word(bytes, line).wrapping_add(ones) >> shift & ((1 << bits) - 1)) as i32
}
