//! Keys and values of the cache as f32.

use super::rows::{Q8_0_BYTES, Q8_0_LEN};
use super::simd::{MAX_LANES, Simd, padded};
use crate::backend::KvType;

/// Rows of a page that are converted to f32 at a time; they fit the L1 cache.
pub(super) const ROWS: usize = 16;

/// Keys or values of one layer, `[pages, kv_heads, PAGE_TOKENS, head_dim]`.
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub enum KvData<'a> {
    F32(&'a [f32]),
    /// Bits of half-precision values.
    F16(&'a [u16]),
    /// Blocks of ggml's Q8_0: an f16 scale, then 32 signed bytes.
    Q8_0(&'a [u8]),
}

/// Converts `ROWS` rows of keys or values, from row `first` of the cache on, to f32, padded with zeros: the first `dim` of `width` values
/// of each.
#[inline(always)]
pub(super) fn load_rows<S: Simd>(
    s: S,
    data: KvData,
    first: usize,
    [dim, width]: [usize; 2],
    out: &mut [f32],
) {
    let rows = out.chunks_exact_mut(padded(dim)).take(ROWS);
    match data {
        KvData::F32(x) => {
            let x = &x[first * width..][..ROWS * width];
            for (x, out) in x.chunks_exact(width).zip(rows) {
                out[..dim].copy_from_slice(&x[..dim]);
                out[dim..].fill(0.0);
            }
        }
        KvData::F16(x) => {
            let x = &x[first * width..][..ROWS * width];
            for (x, out) in x.chunks_exact(width).zip(rows) {
                let (mut x, mut out) = (x[..dim].chunks_exact(S::LANES), out.chunks_exact_mut(S::LANES));
                for (x, out) in x.by_ref().zip(out.by_ref()) {
                    // SAFETY: the chunk has LANES values.
                    s.write(out, unsafe { s.load_f16(x.as_ptr()) });
                }
                let mut tail = [0; MAX_LANES];
                tail[..x.remainder().len()].copy_from_slice(x.remainder());
                for out in out {
                    // SAFETY: the array has room for the lanes of every instruction set.
                    s.write(out, unsafe { s.load_f16(tail.as_ptr()) });
                    tail.fill(0);
                }
            }
        }
        KvData::Q8_0(x) => {
            let (row, bytes) = (KvType::Q8_0.row_bytes(width), KvType::Q8_0.row_bytes(dim));
            let x = &x[first * row..][..ROWS * row];
            for (x, out) in x.chunks_exact(row).zip(rows) {
                let (blocks, _) = x[..bytes].as_chunks::<Q8_0_BYTES>();
                let (values, _) = out.as_chunks_mut::<Q8_0_LEN>();
                for (block, out) in blocks.iter().zip(values) {
                    let d = s.splat(s.widen_f16(u16::from_le_bytes([block[0], block[1]])));
                    for (q, out) in block[2..].chunks_exact(S::LANES).zip(out.chunks_exact_mut(S::LANES)) {
                        // SAFETY: the chunk has LANES values.
                        s.write(out, s.mul(d, unsafe { s.load_i8(q.as_ptr().cast()) }));
                    }
                }
            }
        }
    }
}
