//! The kernel of float kinds and of `Raw`: one group of 16 rows times a list of tokens, in f32. Called through
//! `Kernels::group`. Each (row, token) is one chain of multiply-adds in the order of the columns.

use super::Call;
use super::lanes::Lanes;
use crate::cpu::pack::{FLOAT_STEP, ROWS};

/// Tokens that meet a stretch of weights before the next.
const TILE: usize = 16;
/// Columns of `Raw` that are dequantised at a time: a block of every type.
const RAW_COLS: usize = 256;

/// A float type.
pub(super) trait Float {
    /// Bytes of a value.
    const BYTES: usize;
    /// Loads one column of `S::ROWS` rows.
    ///
    /// # Safety
    /// As for [`Lanes`].
    unsafe fn load<S: Lanes>(p: *const u8) -> S::Floats;
}

macro_rules! float {
    ($name:ident, $bytes:literal, $load:ident) => {
        pub(super) struct $name;
        impl Float for $name {
            const BYTES: usize = $bytes;
            #[inline(always)]
            unsafe fn load<S: Lanes>(p: *const u8) -> S::Floats {
                // SAFETY: the caller's.
                unsafe { S::$load(p.cast()) }
            }
        }
    };
}
float!(F32, 4, floats);
float!(F16, 2, f16s);
float!(Bf16, 2, bf16s);

/// # Safety
/// `Call`'s contract, for the kind of `F`; `S` is available.
#[inline(always)]
pub(super) unsafe fn group<S: Lanes, F: Float>(call: &Call<'_>) {
    let cols = call.layout.cols().next_multiple_of(FLOAT_STEP);
    let mut out = call.out;
    for tile in call.tokens.chunks(TILE) {
        // SAFETY: `out` holds 16 sums of each token, the group `cols` columns of 16 rows.
        unsafe {
            out.write_bytes(0, tile.len() * ROWS);
            columns::<S, F>(call, tile, call.group, 0, cols, out);
            out = out.add(tile.len() * ROWS);
        }
    }
}

/// Adds `cols` columns, from column `first` and at `weights`, to the sums of every token.
#[inline(always)]
unsafe fn columns<S: Lanes, F: Float>(
    call: &Call<'_>,
    tile: &[u32],
    weights: *const u8,
    first: usize,
    cols: usize,
    out: *mut f32,
) {
    let mut c = 0;
    while c < cols {
        let mut r = 0;
        while r < ROWS {
            // SAFETY: see `group`; padded columns of activations are zeros.
            unsafe {
                let p = weights.add((ROWS * c + r) * F::BYTES);
                let mut w = [S::splat(0.0); FLOAT_STEP];
                for (j, w) in w.iter_mut().enumerate() {
                    *w = F::load::<S>(p.add(ROWS * F::BYTES * j));
                }
                for (k, &t) in tile.iter().enumerate() {
                    let x = call.acts.float_ptr(t as usize).add(first + c);
                    let out = out.add(ROWS * k + r);
                    let mut sum = S::floats(out);
                    for (j, &w) in w.iter().enumerate() {
                        sum = S::mul_add(w, S::splat(*x.add(j)), sum);
                    }
                    S::store(out, sum);
                }
            }
            r += S::ROWS;
        }
        c += FLOAT_STEP;
    }
}

/// Rows in the file's own layout: dequantised by the scalar code, a stretch of columns at a time.
///
/// # Safety
/// `Call`'s contract, for `Kind::Raw`; `S` is available.
#[inline(always)]
pub(super) unsafe fn raw<S: Lanes>(call: &Call<'_>) {
    let (ty, cols) = (call.layout.ty(), call.layout.cols());
    let row_bytes = cols / ty.block_len() * ty.block_bytes();
    let mut values = [0.0; RAW_COLS];
    let mut stretch = [0.0; RAW_COLS * ROWS];
    // SAFETY: `out` holds 16 sums of each token, the group 16 rows of `row_bytes`.
    unsafe {
        call.out.write_bytes(0, call.tokens.len() * ROWS);
        let mut c = 0;
        while c < cols {
            let n = RAW_COLS.min(cols - c);
            let (at, bytes) = (c / ty.block_len() * ty.block_bytes(), n / ty.block_len() * ty.block_bytes());
            for r in 0..ROWS {
                let row = std::slice::from_raw_parts(call.group.add(r * row_bytes + at), bytes);
                ty.dequantize(row, &mut values[..n]);
                for (column, &v) in stretch.chunks_exact_mut(ROWS).zip(&values[..n]) {
                    column[r] = v;
                }
            }
            // A block length is a multiple of `FLOAT_STEP`.
            columns::<S, F32>(call, call.tokens, stretch.as_ptr().cast(), c, n, call.out);
            c += n;
        }
    }
}
