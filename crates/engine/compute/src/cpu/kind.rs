//! Kinds of packed weights: their layout in memory, and the activations that their kernels read. `pack` writes this form,
//! `kernels` reads it.
//!
//! A matrix is cut into groups of [`ROWS`] rows, the last one padded with zeros. A group is contiguous and runs along
//! the columns in *blocks* of 256 (the last one may be shorter for types of 32 values a block). A block holds `n <= 8`
//! *sub-blocks* of 32 columns. Its parts stand in the order in which they are read, so that a group is one plain stream
//! of memory: head, scales, then quads and high bits of one sub-block after the other.
//!
//! | part  | vectors a sub-block | content                                                   |
//! |-------|---------------------|-----------------------------------------------------------|
//! | head  | (once a block)      | `d`, then `dmin` where the type has it, f16 of each row   |
//! | scale | see `Planes`        | scales of the sub-blocks of all rows                      |
//! | quads | 4, 8 or 2           | low 4 (8, 2) bits of the quants                           |
//! | high  | 0, 1 or 2           | the fifth (third; fifth and sixth) bits                   |
//!
//! A *quad* is four consecutive columns, `j` of 8 in a sub-block. A *vector* holds one quad of 32 rows, `[row][4]`: a load
//! of any width gives whole quads of consecutive rows, which are multiplied with one 32-bit broadcast of activations. In 4-bit planes
//! vector `v` of 4 holds quad `v` in the low nibbles and quad `v + 4` in the high ones. In 1-bit high planes bit `j` of a
//! byte belongs to quad `j`; in 2-bit planes bits `2j..` of vector `v` to quad `4v + j`.
//! Packed weights are as large as the file's, so decoding reads no byte more.

use octet_weights::GgmlType;

/// The forms of activations that kernels read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Form {
    /// 8-bit quants.
    pub ints: bool,
    /// The f32 values themselves.
    pub floats: bool,
}

impl Form {
    /// For integer kinds.
    pub const INTS: Self = Self { ints: true, floats: false };
    /// For float kinds and `Raw`.
    pub const FLOATS: Self = Self { ints: false, floats: true };

    /// The forms in either.
    pub fn and(self, other: Self) -> Self {
        Self { ints: self.ints || other.ints, floats: self.floats || other.floats }
    }
}

/// Rows of a group.
pub const ROWS: usize = 32;
/// Bytes of a quad of all rows.
pub(super) const VECTOR: usize = 4 * ROWS;
/// Columns of a sub-block.
pub(super) const SUB: usize = 32;
/// Sub-blocks of a whole block.
pub(super) const SUBS: usize = 8;
/// Columns that float kinds are padded to.
pub(super) const FLOAT_STEP: usize = 8;

/// The layout of packed weights, and so the kernel that reads them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, non_camel_case_types)]
#[repr(u8)]
pub enum Kind {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ4_NL,
    IQ4_XS,
    MXFP4,
    NVFP4,
    /// Four bits with a zero point.
    I4_Z,
    /// Bytes under a scale and a minimum in f32.
    I8_Z,
    /// The same.
    I8_M,
    /// 8-bit floats.
    F8_E4M3,
    /// The same with a scale of each 128 columns.
    F8_128,
    /// The same with a scale of each 32 columns.
    F8_32,
    /// Indices into the table of NF4, under a magnitude of each 64 columns.
    NF4,
    /// The same with the table of FP4.
    FP4,
    /// Rows in the file's layout, dequantised by the scalar code at each use: correct, not fast.
    Raw,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 26] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2_K,
        Self::Q3_K,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
        Self::IQ4_NL,
        Self::IQ4_XS,
        Self::MXFP4,
        Self::NVFP4,
        Self::I4_Z,
        Self::I8_Z,
        Self::I8_M,
        Self::F8_E4M3,
        Self::F8_128,
        Self::F8_32,
        Self::NF4,
        Self::FP4,
        Self::Raw,
    ];

    /// The kind that a tensor type is packed to.
    pub fn of(ty: GgmlType) -> Self {
        match ty {
            GgmlType::F32 => Self::F32,
            GgmlType::F16 => Self::F16,
            GgmlType::BF16 => Self::BF16,
            GgmlType::Q4_0 => Self::Q4_0,
            GgmlType::Q4_1 => Self::Q4_1,
            GgmlType::Q5_0 => Self::Q5_0,
            GgmlType::Q5_1 => Self::Q5_1,
            GgmlType::Q8_0 => Self::Q8_0,
            GgmlType::Q2_K => Self::Q2_K,
            GgmlType::Q3_K => Self::Q3_K,
            GgmlType::Q4_K => Self::Q4_K,
            GgmlType::Q5_K => Self::Q5_K,
            GgmlType::Q6_K => Self::Q6_K,
            GgmlType::IQ4_NL => Self::IQ4_NL,
            GgmlType::IQ4_XS => Self::IQ4_XS,
            GgmlType::MXFP4 => Self::MXFP4,
            GgmlType::NVFP4 => Self::NVFP4,
            GgmlType::I4_Z => Self::I4_Z,
            GgmlType::F8_E4M3 => Self::F8_E4M3,
            GgmlType::F8_128 => Self::F8_128,
            GgmlType::F8_32 => Self::F8_32,
            GgmlType::I8_Z => Self::I8_Z,
            GgmlType::I8_M => Self::I8_M,
            GgmlType::NF4 => Self::NF4,
            GgmlType::FP4 => Self::FP4,
            _ => Self::Raw,
        }
    }

    /// Which form of the activations its kernel reads.
    pub fn form(self) -> Form {
        match self.planes() {
            Some(_) => Form::INTS,
            None => Form::FLOATS,
        }
    }

    /// Columns under one scale of each row, for float kinds that have such scales: a group holds, for so many columns after the other,
    /// an f32 of each row, and then the columns.
    pub(super) const fn scaled_columns(self) -> Option<usize> {
        match self {
            Self::F8_128 => Some(128),
            Self::F8_32 => Some(32),
            Self::NF4 | Self::FP4 => Some(64),
            _ => None,
        }
    }

    /// Sizes of the planes of an integer kind.
    pub(super) const fn planes(self) -> Option<Planes> {
        // Vectors of quads and of high bits, bytes of scales of each row and block, f16 of each row in the head.
        let (quads, high, scale, head) = match self {
            Self::F32 | Self::F16 | Self::BF16 | Self::Raw => return None,
            Self::F8_E4M3 | Self::F8_128 | Self::F8_32 | Self::NF4 | Self::FP4 => return None,
            Self::Q4_0 | Self::IQ4_NL => (4, 0, 16, 0),
            Self::Q4_1 => (4, 0, 32, 0),
            Self::Q5_0 => (4, 1, 16, 0),
            Self::Q5_1 => (4, 1, 32, 0),
            Self::Q8_0 => (8, 0, 16, 0),
            Self::MXFP4 => (4, 0, 8, 0),
            Self::NVFP4 => (4, 0, 16, 0),
            Self::I4_Z => (4, 0, 24, 0),
            Self::I8_Z | Self::I8_M => (8, 0, 64, 0),
            Self::Q2_K => (2, 0, 16, 2),
            Self::Q3_K => (2, 1, 12, 1),
            Self::Q4_K => (4, 0, 12, 2),
            Self::Q5_K => (4, 1, 12, 2),
            Self::Q6_K => (4, 2, 16, 1),
            Self::IQ4_XS => (4, 0, 6, 1),
        };
        let (quads, high, scale, head) =
            (VECTOR * quads, VECTOR * high, scale * ROWS / SUBS, 2 * ROWS * head);
        Some(Planes { quads, high, scale, head })
    }
}

/// Bytes of each plane of a block, for one sub-block (`head`: for the block).
#[derive(Debug, Clone, Copy)]
pub(super) struct Planes {
    pub quads: usize,
    pub high: usize,
    /// Scales of one sub-block. In bytes of each row and sub-block:
    /// - 2: f16 `d` (types of 32 values a block), or two bytes (`[half][row]`; Q6_K, Q2_K);
    /// - 4: f16 `d` of all rows, then f16 `m` of all;
    /// - 1.5 (Q4_K, Q5_K): first `[sub-block][row]` of `scale & 15 | min << 4`; then the upper two bits of both,
    ///   `[sub-block % 4][row]`, the low nibble for sub-blocks 0 to 3 and the high one for 4 to 7;
    /// - 1.5 (Q3_K, 16 scales a row): first `[s % 8][row]` of low nibbles (those of `s >= 8` high); then the upper two bits,
    ///   `[s % 4][row]`, bits `2 * (s / 4)..`;
    /// - 0.75 (IQ4_XS): first low nibbles, `[sub-block % 4][row]` (sub-blocks 4 to 7 high); then the upper two bits,
    ///   `[sub-block % 2][row]`, bits `2 * (sub-block / 2)..`;
    /// - 1 (MXFP4): the exponent;
    /// - 2 (NVFP4): `[half][row]` of E4M3, without a sign;
    /// - 3 (I4_Z): f16 `d` of all rows, then the zero points of all;
    /// - 8 (I8_Z, I8_M): f32 `d` of all rows, then what is added to `d` times the signed quant.
    pub scale: usize,
    pub head: usize,
}

impl Planes {
    /// Where the scales of a block start: behind its head.
    pub const fn scale_at(self) -> usize {
        self.head
    }
    /// Where sub-block `i` of a block with `n` sub-blocks starts: its quads, and after them its high bits.
    pub const fn sub_at(self, n: usize, i: usize) -> usize {
        self.head + n * self.scale + i * self.sub_bytes()
    }
    /// Bytes of the quads and high bits of a sub-block.
    pub const fn sub_bytes(self) -> usize {
        self.quads + self.high
    }
    /// The size of a block with `n` sub-blocks.
    pub const fn block_bytes(self, n: usize) -> usize {
        self.sub_at(n, n)
    }
}
