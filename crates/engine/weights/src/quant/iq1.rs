//! The ternary codebook formats IQ1_S and IQ1_M: 256 values, in groups of 8 trits that an index picks from [`iq_grids`]. Kernels use the
//! layout constants.
//!
//! A value is `d * (1 + 2 scale) * (trit + shift)` with trits -1, 0, 1 and a shift of 1/8 or -1/8. `k` counts the 32
//! groups, integers are little-endian.
//!
//! | type  | fields                                                                                      | bytes |
//! |-------|---------------------------------------------------------------------------------------------|-------|
//! | IQ1_S | `d` f16; `qs` 32: low 8 bits of the index; `qh` 8 u16, one for four groups: 4 times the index's high 3 bits, a 3-bit scale, the shift's sign | 50 |
//! | IQ1_M | `qs` 32 as above; `qh` 16: nibble `k % 2` of byte `k / 2` has the index's high 3 bits and the shift's sign; `scales` 4 u16: 4 times a 3-bit scale (of two groups), and in the top 4 bits a quarter of `d`, lowest first | 56 |

use std::ops::Range;

use half::f16;

use super::{field, iq_grids, read_f16};

/// Values in a block.
pub const LEN: usize = 256;
/// How far the trits of a group are moved up or down.
pub const SHIFT: f32 = 0.125;
/// Bytes of an IQ1_S block.
pub const BYTES_S: usize = 50;
/// Where `d` lies in IQ1_S.
pub const D_S: usize = 0;
/// Low bits of the indices of IQ1_S.
pub const QS_S: Range<usize> = 2..34;
/// High bits, scales and shifts of IQ1_S.
pub const QH_S: Range<usize> = 34..50;
/// Bytes of an IQ1_M block.
pub const BYTES_M: usize = 56;
/// Low bits of the indices of IQ1_M.
pub const QS_M: Range<usize> = 0..32;
/// High bits and shifts of IQ1_M.
pub const QH_M: Range<usize> = 32..48;
/// Scales and `d` of IQ1_M.
pub const SCALES_M: Range<usize> = 48..56;
const _: () = assert!(QH_S.end == BYTES_S && SCALES_M.end == BYTES_M);

/// Writes one group; its shift is negative where `down` is set.
#[inline(always)]
fn put(out: &mut [f32; 8], scale: f32, index: usize, down: bool) {
    let shift = if down { -SHIFT } else { SHIFT };
    for (y, &t) in out.iter_mut().zip(&iq_grids::IQ1[index]) {
        *y = scale * (f32::from(t as i8 - 1) + shift);
    }
}

/// One IQ1_S block.
pub fn dequantize_s(block: &[u8; BYTES_S], out: &mut [f32; LEN]) {
    let d = read_f16(block, D_S);
    let qs = block[QS_S].as_chunks::<4>().0;
    let qh = block[QH_S].as_chunks::<2>().0;
    for ((out, qs), &h) in out.as_chunks_mut::<32>().0.iter_mut().zip(qs).zip(qh) {
        let h = u16::from_le_bytes(h);
        let scale = d * f32::from(1 + 2 * (h >> 12 & 7));
        for (k, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let index = usize::from(qs[k]) | usize::from(h >> (3 * k) & 7) << 8;
            put(out, scale, index, h >> 15 != 0);
        }
    }
}

/// One IQ1_M block.
pub fn dequantize_m(block: &[u8; BYTES_M], out: &mut [f32; LEN]) {
    let (qs, qh): (&[u8; 32], &[u8; 16]) = (field(block, QS_M.start), field(block, QH_M.start));
    let scales: [u16; 4] = std::array::from_fn(|i| u16::from_le_bytes(*field(block, SCALES_M.start + 2 * i)));
    let d = scales.iter().rev().fold(0, |d, s| d << 4 | s >> 12);
    let d = f16::from_bits(d).to_f32();
    for (k, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let scale = d * f32::from(1 + 2 * (scales[k / 8] >> (k / 2 % 4 * 3) & 7));
        let high = qh[k / 2] >> (k % 2 * 4) & 15;
        put(out, scale, usize::from(qs[k]) | usize::from(high & 7) << 8, high & 8 != 0);
    }
}
