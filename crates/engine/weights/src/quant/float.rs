//! Plain floats: F16 and BF16 to and from f32, by the slice.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// `half` has a fast path for slices only (F16C, NEON); bytes of a file are not aligned for it, so go by pieces.
const PIECE: usize = 64;

/// Little-endian F16 to f32, exact.
///
/// # Panics
/// When `data` is not two bytes for each value of `out`.
pub fn f16_to_f32(data: &[u8], out: &mut [f32]) {
    assert_eq!(data.len(), 2 * out.len(), "two bytes a value");
    let mut piece = [f16::ZERO; PIECE];
    for (bytes, values) in data.chunks(2 * PIECE).zip(out.chunks_mut(PIECE)) {
        let piece = &mut piece[..values.len()];
        for (h, &b) in piece.iter_mut().zip(bytes.as_chunks().0) {
            *h = f16::from_le_bytes(b);
        }
        piece.convert_to_f32_slice(values);
    }
}

/// f32 to little-endian F16, to the nearest (even on a tie); infinite above 65504.
///
/// # Panics
/// When `out` is not two bytes for each value.
pub fn f32_to_f16(x: &[f32], out: &mut [u8]) {
    assert_eq!(out.len(), 2 * x.len(), "two bytes a value");
    let mut piece = [f16::ZERO; PIECE];
    for (values, bytes) in x.chunks(PIECE).zip(out.chunks_mut(2 * PIECE)) {
        let piece = &mut piece[..values.len()];
        piece.convert_from_f32_slice(values);
        for (b, h) in bytes.as_chunks_mut().0.iter_mut().zip(piece) {
            *b = h.to_le_bytes();
        }
    }
}

/// Little-endian BF16 to f32, exact.
///
/// # Panics
/// When `data` is not two bytes for each value of `out`.
pub fn bf16_to_f32(data: &[u8], out: &mut [f32]) {
    assert_eq!(data.len(), 2 * out.len(), "two bytes a value");
    for (y, &b) in out.iter_mut().zip(data.as_chunks().0) {
        *y = f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16);
    }
}

/// f32 to little-endian BF16, to the nearest (even on a tie); NaN stays NaN.
///
/// # Panics
/// When `out` is not two bytes for each value.
pub fn f32_to_bf16(x: &[f32], out: &mut [u8]) {
    assert_eq!(out.len(), 2 * x.len(), "two bytes a value");
    for (b, &v) in out.as_chunks_mut().0.iter_mut().zip(x) {
        *b = bf16::from_f32(v).to_le_bytes();
    }
}

/// Little-endian f32 to f32.
///
/// # Panics
/// When `data` is not four bytes for each value of `out`.
pub fn f32_from_le(data: &[u8], out: &mut [f32]) {
    assert_eq!(data.len(), 4 * out.len(), "four bytes a value");
    for (y, &b) in out.iter_mut().zip(data.as_chunks().0) {
        *y = f32::from_le_bytes(b);
    }
}

/// f32 to little-endian f32.
///
/// # Panics
/// When `out` is not four bytes for each value.
pub fn f32_to_le(x: &[f32], out: &mut [u8]) {
    assert_eq!(out.len(), 4 * x.len(), "four bytes a value");
    for (b, v) in out.as_chunks_mut().0.iter_mut().zip(x) {
        *b = v.to_le_bytes();
    }
}
