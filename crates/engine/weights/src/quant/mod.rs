//! GGML tensor types: block layout, exact scalar dequantiser and plain quantiser of each. No SIMD here; see `compute`.
//!
//! A tensor's bytes are whole blocks, one after the other; a block holds [`GgmlType::block_len`] consecutive values of
//! a row. Each format's file documents its block as offset constants and has the dequantiser of one block.

mod fit;
pub mod float;
pub mod fp8;
pub mod ik;
pub mod ik_rows;
pub mod iq1;
pub mod iq2;
pub mod iq3;
pub mod iq4;
pub mod iq_grids;
pub mod legacy;
pub mod levels;
pub mod mxfp4;
pub mod nvfp4;
pub mod q1;
pub mod q2_k;
pub mod q3_k;
pub mod q4_k;
pub mod q5_k;
pub mod q6_k;
mod random;
pub mod tq;
pub mod zero_point;

use std::fmt;

use half::f16;

pub use random::{SCALE_MAX, random_blocks};

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
    NVFP4   = 40,  64, 36;
    Q1_0    = 41, 128, 18;
    Q2_0    = 42,  64, 18;
    // Of ik_llama.cpp.
    Q6_0    = 133, 32, 26;
    IQ2_K   = 137, 256, 76;
    IQ3_K   = 138, 256, 110;
    IQ4_K   = 139, 256, 144;
    IQ5_K   = 140, 256, 176;
    IQ6_K   = 141, 256, 212;
    // Types of checkpoints for which GGUF has none; their ids are Octet's own.
    F8_E4M3 = 0x1_0000,   1, 1;
    F8_128  = 0x1_0001, 128, 132;
    F8_32   = 0x1_0002,  32, 36;
    I4_Z    = 0x1_0003,  32, 19;
    I8_Z    = 0x1_0004,  32, 40;
    I8_M    = 0x1_0005,  32, 40;
    NF4     = 0x1_0006,  64, 36;
    FP4     = 0x1_0007,  64, 36;
    // Of ik_llama.cpp, without the scale that a row has in the file (`ik_rows`).
    IQ4_KS  = 0x1_0090, 256, 136;
    IQ2_KS  = 0x1_0091, 256, 70;
    IQ4_KSS = 0x1_0092, 256, 128;
    IQ5_KS  = 0x1_0098, 256, 168;
    IQ2_KT  = 0x1_0099, 256, 68;
    IQ3_KT  = 0x1_009a, 256, 100;
    IQ4_KT  = 0x1_009b, 256, 128;
    IQ3_KS  = 0x1_009c, 256, 102;
    IQ2_KL  = 0x1_009d, 256, 86;
    IQ1_KT  = 0x1_009e, 256, 56;
}

/// Ids of types that GGUF files cannot have begin here.
const OWN_IDS: u32 = 0x1_0000;

impl GgmlType {
    /// The type's id in GGUF files.
    pub const fn id(self) -> u32 {
        self as u32
    }

    /// Whether GGUF files hold the type's blocks as they are. The others come from safetensors checkpoints, or have scales of rows.
    pub const fn is_in_gguf(self) -> bool {
        self.id() < OWN_IDS
    }

    /// The type with this id in GGUF files, if it is one that holds weights. [`ik_rows::Row::of`] says whether its rows have scales there.
    pub fn from_id(id: u32) -> Option<Self> {
        let is = |t: &Self| {
            (t.id() == id && t.is_in_gguf()) || ik_rows::Row::of(*t).is_some_and(|row| row.id == id)
        };
        Self::ALL.iter().copied().find(is)
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
            Self::F32 => float::f32_from_le(data, out),
            Self::F16 => float::f16_to_f32(data, out),
            Self::BF16 => float::bf16_to_f32(data, out),
            Self::Q4_0 => decode(data, out, legacy::dequantize_q4_0),
            Self::Q4_1 => decode(data, out, legacy::dequantize_q4_1),
            Self::Q5_0 => decode(data, out, legacy::dequantize_q5_0),
            Self::Q5_1 => decode(data, out, legacy::dequantize_q5_1),
            Self::Q8_0 => decode(data, out, legacy::dequantize_q8_0),
            Self::Q2_K => decode(data, out, q2_k::dequantize),
            Self::Q3_K => decode(data, out, q3_k::dequantize),
            Self::Q4_K => decode(data, out, q4_k::dequantize),
            Self::Q5_K => decode(data, out, q5_k::dequantize),
            Self::Q6_K => decode(data, out, q6_k::dequantize),
            Self::IQ1_S => decode(data, out, iq1::dequantize_s),
            Self::IQ1_M => decode(data, out, iq1::dequantize_m),
            Self::IQ2_XXS => decode(data, out, iq2::dequantize_xxs),
            Self::IQ2_XS => decode(data, out, iq2::dequantize_xs),
            Self::IQ2_S => decode(data, out, iq2::dequantize_s),
            Self::IQ3_XXS => decode(data, out, iq3::dequantize_xxs),
            Self::IQ3_S => decode(data, out, iq3::dequantize_s),
            Self::IQ4_NL => decode(data, out, iq4::dequantize_nl),
            Self::IQ4_XS => decode(data, out, iq4::dequantize_xs),
            Self::TQ1_0 => decode(data, out, tq::dequantize_tq1),
            Self::TQ2_0 => decode(data, out, tq::dequantize_tq2),
            Self::MXFP4 => decode(data, out, mxfp4::dequantize),
            Self::NVFP4 => decode(data, out, nvfp4::dequantize),
            Self::Q1_0 => decode(data, out, q1::dequantize_q1),
            Self::Q2_0 => decode(data, out, q1::dequantize_q2),
            Self::F8_E4M3 => fp8::e4m3_to_f32(data, out),
            Self::F8_128 => decode(data, out, fp8::dequantize::<{ fp8::BYTES_128 }, 128>),
            Self::F8_32 => decode(data, out, fp8::dequantize::<{ fp8::BYTES_32 }, 32>),
            Self::I4_Z => decode(data, out, zero_point::dequantize),
            Self::I8_Z => decode(data, out, zero_point::dequantize_i8_z),
            Self::I8_M => decode(data, out, zero_point::dequantize_i8_m),
            Self::NF4 => decode(data, out, |block, out| levels::dequantize(&levels::NF4, block, out)),
            Self::FP4 => decode(data, out, |block, out| levels::dequantize(&levels::FP4, block, out)),
            Self::Q6_0 => decode(data, out, ik::dequantize_q6_0),
            Self::IQ2_K => decode(data, out, ik::dequantize_2),
            Self::IQ3_K => decode(data, out, ik::dequantize_3),
            Self::IQ4_K => decode(data, out, ik::dequantize_4),
            Self::IQ5_K => decode(data, out, ik::dequantize_5),
            Self::IQ6_K => decode(data, out, ik::dequantize_6),
            Self::IQ4_KS | Self::IQ2_KS | Self::IQ4_KSS | Self::IQ5_KS | Self::IQ3_KS | Self::IQ2_KL => {
                ik_rows::dequantize_scaled(self, data, 1.0, out);
            }
            Self::IQ1_KT | Self::IQ2_KT | Self::IQ3_KT | Self::IQ4_KT => {
                ik_rows::dequantize_scaled(self, data, 1.0, out);
            }
        }
    }
}

/// Why [`quantize`] refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("there is no quantiser for {0}")]
pub struct NoQuantizer(
    /// The type asked for.
    pub GgmlType,
);

/// Quantises `x` into whole blocks of `ty`, scalar.
///
/// F16 and BF16 round to the nearest; Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, TQ1_0, TQ2_0 and MXFP4 give the very bytes of ggml's
/// reference quantisers. Q2_K to Q6_K, IQ4_NL and IQ4_XS round to the nearest step of the range: sound, and made for
/// tests and synthetic models, but NOT llama.cpp's search, whose files are closer to the original. The codebook types
/// (IQ1, IQ2, IQ3) and those of checkpoints and of ik_llama.cpp have no quantiser.
///
/// # Panics
/// When the lengths do not fit each other or `x` is not whole blocks.
pub fn quantize(ty: GgmlType, x: &[f32], out: &mut [u8]) -> Result<(), NoQuantizer> {
    use GgmlType as T;
    match ty {
        T::F32 => float::f32_to_le(x, out),
        T::F16 => float::f32_to_f16(x, out),
        T::BF16 => float::f32_to_bf16(x, out),
        T::Q4_0 => encode(x, out, legacy::quantize_q4_0),
        T::Q4_1 => encode(x, out, legacy::quantize_q4_1),
        T::Q5_0 => encode(x, out, legacy::quantize_q5_0),
        T::Q5_1 => encode(x, out, legacy::quantize_q5_1),
        T::Q8_0 => encode(x, out, legacy::quantize_q8_0),
        T::Q2_K => encode(x, out, q2_k::quantize),
        T::Q3_K => encode(x, out, q3_k::quantize),
        T::Q4_K => encode(x, out, q4_k::quantize),
        T::Q5_K => encode(x, out, q5_k::quantize),
        T::Q6_K => encode(x, out, q6_k::quantize),
        T::IQ4_NL => encode(x, out, iq4::quantize_nl),
        T::IQ4_XS => encode(x, out, iq4::quantize_xs),
        T::TQ1_0 => encode(x, out, tq::quantize_tq1),
        T::TQ2_0 => encode(x, out, tq::quantize_tq2),
        T::MXFP4 => encode(x, out, mxfp4::quantize),
        T::IQ1_S | T::IQ1_M | T::IQ2_XXS | T::IQ2_XS | T::IQ2_S | T::IQ3_XXS | T::IQ3_S => {
            return Err(NoQuantizer(ty));
        }
        T::NVFP4 | T::Q1_0 | T::Q2_0 | T::F8_E4M3 | T::F8_128 | T::F8_32 => return Err(NoQuantizer(ty)),
        T::I4_Z | T::I8_Z | T::I8_M | T::NF4 | T::FP4 => return Err(NoQuantizer(ty)),
        T::Q6_0 | T::IQ2_K | T::IQ3_K | T::IQ4_K | T::IQ5_K | T::IQ6_K => return Err(NoQuantizer(ty)),
        T::IQ2_KS | T::IQ3_KS | T::IQ4_KS | T::IQ5_KS | T::IQ4_KSS | T::IQ2_KL => {
            return Err(NoQuantizer(ty));
        }
        T::IQ1_KT | T::IQ2_KT | T::IQ3_KT | T::IQ4_KT => return Err(NoQuantizer(ty)),
    }
    Ok(())
}

impl fmt::Display for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Calls `f` with each block of `BYTES` bytes and the place of its `LEN` values.
fn decode<const BYTES: usize, const LEN: usize>(
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

/// Calls `f` with each run of `LEN` values and the place of its block of `BYTES` bytes.
fn encode<const BYTES: usize, const LEN: usize>(
    x: &[f32],
    out: &mut [u8],
    f: impl Fn(&[f32; LEN], &mut [u8; BYTES]),
) {
    let (values, odd_values) = x.as_chunks::<LEN>();
    let (blocks, odd_bytes) = out.as_chunks_mut::<BYTES>();
    assert!(odd_bytes.is_empty() && odd_values.is_empty(), "whole blocks");
    assert_eq!(blocks.len(), values.len(), "as many blocks as the values need");
    for (values, block) in values.iter().zip(blocks) {
        f(values, block);
    }
}

/// The `N` bytes at byte `at` of a block.
#[inline(always)]
fn field<const N: usize>(block: &[u8], at: usize) -> &[u8; N] {
    block[at..at + N].try_into().expect("a slice of N bytes is N bytes")
}

/// The f16 at byte `at` of a block.
#[inline(always)]
fn read_f16(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes(*field(block, at)).to_f32()
}

/// Writes an f16 at byte `at` of a block.
#[inline(always)]
fn write_f16(block: &mut [u8], at: usize, v: f16) {
    block[at..at + 2].copy_from_slice(&v.to_le_bytes());
}
