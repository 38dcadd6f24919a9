//! NVFP4: 64 values of 4-bit floats (e2m1), every 16 under a scale in E4M3. A matrix has one more factor, which GGUF keeps as `NAME.scale`
//! and [`crate::Matrix::scales`] here. Kernels use [`half_scale`] and the layout constants.
//!
//! Fields, 36 bytes: `scales` 4; `qs` 4 times 8, whose low nibbles are the first 8 values of a group and high nibbles the next 8.

use std::ops::Range;

use super::fp8::E4M3;
use super::mxfp4::LEVELS;

/// Values in a block.
pub const LEN: usize = 64;
/// Bytes of a block.
pub const BYTES: usize = 36;
/// Values under one scale.
pub const GROUP: usize = 16;
/// The scales of the four groups.
pub const SCALES: Range<usize> = 0..4;
/// The values' nibbles.
pub const QS: Range<usize> = 4..36;
const _: () = assert!(QS.end == BYTES);

/// Half of each byte's scale, as [`LEVELS`] are twice the values. As in ggml the sign bit is ignored, 0x7F means 0, and 0xFF 480.
pub const HALF_SCALES: [f32; 256] = {
    let mut table = [0.0; 256];
    let mut i = 0;
    while i < 256 {
        table[i] = match i {
            0x7f => 0.0,
            0xff => 240.0,
            _ => 0.5 * E4M3[i & 0x7f],
        };
        i += 1;
    }
    table
};

/// Half of a scale.
#[inline(always)]
pub fn half_scale(byte: u8) -> f32 {
    HALF_SCALES[usize::from(byte)]
}

/// One block's values.
pub fn dequantize(block: &[u8; BYTES], out: &mut [f32; LEN]) {
    values(block, 1.0, out);
}

/// The values of whole blocks under a matrix's factor, which is multiplied with each group's scale first.
///
/// # Panics
/// When the lengths do not fit each other.
pub fn dequantize_scaled(data: &[u8], factor: f64, out: &mut [f32]) {
    super::decode(data, out, |block, out| values(block, factor, out));
}

fn values(block: &[u8; BYTES], factor: f64, out: &mut [f32; LEN]) {
    let groups = block[QS].as_chunks::<{ GROUP / 2 }>().0.iter().zip(out.as_chunks_mut::<GROUP>().0);
    for (&scale, (packed, out)) in block[SCALES].iter().zip(groups) {
        let scale = (f64::from(half_scale(scale)) * factor) as f32;
        let (low, high) = out.split_at_mut(GROUP / 2);
        for ((l, h), q) in low.iter_mut().zip(high).zip(packed) {
            *l = scale * f32::from(LEVELS[usize::from(q & 15)]);
            *h = scale * f32::from(LEVELS[usize::from(q >> 4)]);
        }
    }
}
