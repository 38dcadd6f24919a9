//! GGML tensor types: block layout and the exact scalar dequantiser of each. No SIMD here; see `compute`.
//!
//! A tensor's bytes are whole blocks, one after the other; a block holds [`GgmlType::block_len`] consecutive values of
//! a row. Each format's file documents its block as offset constants and has the dequantiser of one block.

pub mod legacy;

use std::fmt;

use half::{f16, slice::HalfFloatSliceExt};

/// One line a type: name = id in GGUF files, values in a block, bytes of a block.
macro_rules! ggml_types {
    ($($name:ident = $id:literal, $len:literal, $bytes:expr;)*) => {
        /// A GGML tensor type. The discriminant is the type's id in GGUF files.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(missing_docs, non_camel_case_types)]
        #[repr(u32)]
        pub enum GgmlType { $($name = $id,)* }

        impl GgmlType {
            /// Every type, in the order of their ids.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// Values in a block (1 for plain floats).
            pub const fn block_len(self) -> usize {
                match self { $(Self::$name => $len,)* }
            }
            /// Bytes of a block.
            pub const fn block_bytes(self) -> usize {
                match self { $(Self::$name => $bytes,)* }
            }
            /// The type's name as GGUF tools write it, `Q4_K`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }
        }
    };
}

ggml_types! {
    F32     =  0,   1, 4;
    F16     =  1,   1, 2;
    Q4_0    =  2,  32, 18;
    Q4_1    =  3,  32, 20;
    Q5_0    =  6,  32, 22;
    Q5_1    =  7,  32, 24;
    Q8_0    =  8,  32, 34;
    Q2_K    = 10, 256, 84;
    Q3_K    = 11, 256, 110;
    Q4_K    = 12, 256, 144;
    Q5_K    = 13, 256, 176;
    Q6_K    = 14, 256, 210;
    IQ2_XXS = 16, 256, 66;
    IQ2_XS  = 17, 256, 74;
    IQ3_XXS = 18, 256, 98;
    IQ1_S   = 19, 256, 50;
    IQ4_NL  = 20,  32, 18;
    IQ3_S   = 21, 256, 110;
    IQ2_S   = 22, 256, 82;
    IQ4_XS  = 23, 256, 136;
    IQ1_M   = 29, 256, 56;
    BF16    = 30,   1, 2;
    TQ1_0   = 34, 256, 54;
    TQ2_0   = 35, 256, 66;
    MXFP4   = 39,  32, 17;
}

impl GgmlType {
    /// The type's id in GGUF files.
    pub const fn id(self) -> u32 {
        self as u32
    }

    /// The type with this id in GGUF files, if it is one that holds weights.
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.iter().copied().find(|t| t.id() == id)
    }

    /// The type of this name, in upper or lower case: `Q4_K`, `q4_k`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|t| t.name().eq_ignore_ascii_case(name))
    }

    /// The scalar dequantiser: `data` holds whole blocks, `out` their values in order. Any bytes are fine (a scale
    /// may be NaN or infinite).
    ///
    /// # Panics
    /// When the lengths do not fit each other; [`crate::Tensor::new`] has checked them.
    pub fn dequantize(self, data: &[u8], out: &mut [f32]) {
        match self {
            Self::F32 => each_block(data, out, |b, [y]| *y = f32::from_le_bytes(*b)),
            Self::F16 => f16_to_f32(data, out),
            Self::BF16 => each_block(data, out, |&[lo, hi], [y]| *y = f32::from_le_bytes([0, 0, lo, hi])),
            Self::Q4_0 => each_block(data, out, legacy::dequantize_q4_0),
            Self::Q4_1 => each_block(data, out, legacy::dequantize_q4_1),
            Self::Q5_0 => each_block(data, out, legacy::dequantize_q5_0),
            Self::Q5_1 => each_block(data, out, legacy::dequantize_q5_1),
            Self::Q8_0 => each_block(data, out, legacy::dequantize_q8_0),
            _ => panic!("no dequantiser for {self} yet"),
        }
    }
}

impl fmt::Display for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Calls `f` with each block of `BYTES` bytes and its `LEN` values.
fn each_block<const BYTES: usize, const LEN: usize>(
    data: &[u8],
    out: &mut [f32],
    f: impl Fn(&[u8; BYTES], &mut [f32; LEN]),
) {
    let (blocks, odd_bytes) = data.as_chunks::<BYTES>();
    let (values, odd_values) = out.as_chunks_mut::<LEN>();
    assert!(odd_bytes.is_empty() && odd_values.is_empty(), "whole blocks");
    assert_eq!(blocks.len(), values.len(), "as many values as the blocks hold");
    for (block, values) in blocks.iter().zip(values) {
        f(block, values);
    }
}

/// `half` has a fast path for slices only (F16C, NEON); bytes of a file are not aligned for it, so go by pieces.
fn f16_to_f32(data: &[u8], out: &mut [f32]) {
    const PIECE: usize = 64;
    assert_eq!(data.len(), 2 * out.len(), "as many values as the bytes hold");
    let mut piece = [f16::ZERO; PIECE];
    for (bytes, values) in data.chunks(2 * PIECE).zip(out.chunks_mut(PIECE)) {
        let piece = &mut piece[..values.len()];
        for (h, b) in piece.iter_mut().zip(bytes.as_chunks().0) {
            *h = f16::from_le_bytes(*b);
        }
        piece.convert_to_f32_slice(values);
    }
}

/// The f16 at byte `at` of a block.
#[inline(always)]
fn read_f16(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}
