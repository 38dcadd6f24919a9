//! GGML tensor types: block layout and the exact scalar dequantiser of each. No SIMD here; see `compute`.

use std::fmt;

/// A GGML tensor type. The discriminant is the type id in GGUF files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, non_camel_case_types)]
#[repr(u32)]
pub enum GgmlType {
    F32 = 0,
    F16 = 1,
    Q4_0 = 2,
    Q4_1 = 3,
    Q5_0 = 6,
    Q5_1 = 7,
    Q8_0 = 8,
    BF16 = 30,
}

impl GgmlType {
    /// Values in a block (1 for plain floats).
    pub fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            _ => 32,
        }
    }
    /// Bytes of a block.
    pub fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
        }
    }
    /// The scalar dequantiser: `data` holds whole blocks, `out` their values in order.
    ///
    /// # Panics
    /// When the lengths do not fit each other; [`crate::Tensor::new`] has checked them.
    pub fn dequantize(self, _data: &[u8], _out: &mut [f32]) {
        panic!("no dequantiser yet")
    }
}

impl fmt::Display for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}
