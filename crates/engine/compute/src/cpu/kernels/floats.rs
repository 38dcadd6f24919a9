//! The kernel of kinds that are computed in f32, and of `Raw`: one group of rows times a list of tokens, in f32. Called through
//! `Kernels::group`. Each (row, token) is one chain of multiply-adds in the order of the columns, whatever the tile.
//!
//! Sums of `T` tokens and `V` vectors of rows stay in registers while columns go by. `V` covers a group.

#![allow(clippy::needless_range_loop)] // several arrays are walked by one index

use octet_weights::quant::levels;

use super::call::Call;
use super::lanes::Lanes;
use crate::cpu::kind::{FLOAT_STEP, ROWS};

/// Columns that are converted to f32 at a time, for several tiles of tokens.
const STRETCH: usize = 64;
/// Tokens that are multiplied with converted columns: their sums and their part of the columns fit the L1 cache.
const TOKENS: usize = 64;
/// Columns of `Raw` that are dequantised at a time: a block of every type.
const RAW_STRETCH: usize = 256;
/// Columns of the largest block under one scale.
const MOST_COLS: usize = 128;

/// A float type.
pub(super) trait Float {
    /// Bytes of a value.
    const BYTES: usize;
    /// What loaded values are multiplied with: a power of two, with which the activation is multiplied instead.
    const UNIT: f32 = 1.0;
    /// Whether they are read from memory, and so are prefetched.
    const STREAMED: bool = true;
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

/// Columns that were converted: they are in the cache.
struct Converted;
impl Float for Converted {
    const BYTES: usize = 4;
    const STREAMED: bool = false;
    #[inline(always)]
    unsafe fn load<S: Lanes>(p: *const u8) -> S::Floats {
        // SAFETY: the caller's.
        unsafe { S::floats(p.cast()) }
    }
}

/// 8-bit floats: an F16 holds each of them as a 256th.
pub(super) struct E4m3;
impl Float for E4m3 {
    const BYTES: usize = 1;
    const UNIT: f32 = 256.0;
    #[inline(always)]
    unsafe fn load<S: Lanes>(p: *const u8) -> S::Floats {
        // SAFETY: the caller's.
        unsafe { S::e4m3s(p) }
    }
}

/// # Safety
/// `Call`'s contract, for the kind of `F`; `S` is available.
#[inline(always)]
pub(super) unsafe fn group<S: Lanes, F: Float, const V: usize, const T: usize>(call: &Call<'_>) {
    let cols = call.layout.cols().next_multiple_of(FLOAT_STEP);
    // SAFETY: `out` holds `ROWS` sums of each token, the group `cols` columns of `ROWS` rows.
    unsafe {
        call.out.write_bytes(0, call.tokens.len() * ROWS);
        if F::BYTES == 4 || call.tokens.len() <= T {
            columns::<S, F, V, T>(call, call.tokens, call.group, 0, cols, call.out);
            return;
        }
        let mut stretch = Stretch([0.0; STRETCH * ROWS]);
        let mut out = call.out;
        for tokens in call.tokens.chunks(TOKENS) {
            let mut c = 0;
            while c < cols {
                let n = STRETCH.min(cols - c);
                convert::<S, F>(call.group.add(c * ROWS * F::BYTES), n, stretch.0.as_mut_ptr());
                columns::<S, Converted, V, T>(call, tokens, stretch.0.as_ptr().cast(), c, n, out);
                c += n;
            }
            out = out.add(tokens.len() * ROWS);
        }
    }
}

/// `n` columns of all rows as f32.
#[inline(always)]
unsafe fn convert<S: Lanes, F: Float>(weights: *const u8, n: usize, out: *mut f32) {
    let mut i = 0;
    while i < n * ROWS {
        // SAFETY: see `group`.
        unsafe {
            let values = F::load::<S>(weights.add(i * F::BYTES));
            S::store(out.add(i), if F::UNIT == 1.0 { values } else { S::mul(values, S::splat(F::UNIT)) });
        }
        i += S::ROWS;
    }
}

/// A block of columns under one scale of each row: of all rows the scales, then the columns.
pub(super) trait Block {
    /// Columns.
    const COLS: usize;
    /// Bytes of a row's columns.
    const BYTES: usize;
    /// The type of columns that are multiplied as they are where there are few tokens.
    type Float: Float;
    /// Whether there is such a type.
    const DIRECT: bool;
    /// The columns of all rows as f32, without the scales. `distance`: of the prefetch.
    ///
    /// # Safety
    /// As for [`Lanes`].
    unsafe fn convert<S: Lanes>(weights: *const u8, distance: usize, out: *mut f32);
}

/// 8-bit floats.
pub(super) struct F8<const COLS: usize>;
impl<const COLS: usize> Block for F8<COLS> {
    const COLS: usize = COLS;
    const BYTES: usize = COLS;
    type Float = E4m3;
    const DIRECT: bool = true;
    #[inline(always)]
    unsafe fn convert<S: Lanes>(weights: *const u8, _distance: usize, out: *mut f32) {
        // SAFETY: the caller's.
        unsafe { convert::<S, E4m3>(weights, COLS, out) }
    }
}

macro_rules! levels {
    ($name:ident, $table:expr) => {
        /// Indices into a table: a byte holds those of two columns, the first one in its low nibble.
        pub(super) struct $name;
        impl Block for $name {
            const COLS: usize = levels::LEN;
            const BYTES: usize = levels::LEN / 2;
            type Float = F32;
            const DIRECT: bool = false;
            #[inline(always)]
            unsafe fn convert<S: Lanes>(weights: *const u8, distance: usize, out: *mut f32) {
                for i in (0..Self::BYTES * ROWS).step_by(S::ROWS) {
                    let (pair, r) = (i / ROWS, i % ROWS);
                    // SAFETY: the caller's; prefetching takes any address.
                    unsafe {
                        if i % 64 == 0 {
                            S::prefetch(weights.wrapping_add(distance + i));
                        }
                        let [first, second] = S::levels($table, weights.add(i));
                        S::store(out.add(2 * pair * ROWS + r), first);
                        S::store(out.add((2 * pair + 1) * ROWS + r), second);
                    }
                }
            }
        }
    };
}
levels!(Nf4, &levels::NF4);
levels!(Fp4, &levels::FP4);

/// Columns under scales: the products of each block of them are summed, and then multiplied with their scale.
///
/// # Safety
/// `Call`'s contract, for a kind of such blocks; `S` is available.
#[inline(always)]
pub(super) unsafe fn scaled<S: Lanes, B: Block, const V: usize, const T: usize>(call: &Call<'_>) {
    const { assert!(B::COLS <= MOST_COLS, "room for a block") };
    let mut part = Stretch([0.0; TOKENS * ROWS]);
    let mut stretch = Stretch([0.0; MOST_COLS * ROWS]);
    let mut out = call.out;
    // SAFETY: `out` holds `ROWS` sums of each token, the group blocks of columns and the scales in front of each.
    unsafe {
        call.out.write_bytes(0, call.tokens.len() * ROWS);
        for tokens in call.tokens.chunks(TOKENS) {
            let mut p = call.group;
            for c in (0..call.layout.cols()).step_by(B::COLS) {
                let (scales, weights) = (p.cast::<f32>(), p.add(4 * ROWS));
                let sums = part.0.as_mut_ptr();
                sums.write_bytes(0, tokens.len() * ROWS);
                if B::DIRECT && tokens.len() <= T {
                    columns::<S, B::Float, V, T>(call, tokens, weights, c, B::COLS, sums);
                } else {
                    B::convert::<S>(weights, call.prefetch_distance(weights), stretch.0.as_mut_ptr());
                    columns::<S, Converted, V, T>(call, tokens, stretch.0.as_ptr().cast(), c, B::COLS, sums);
                }
                for i in (0..tokens.len() * ROWS).step_by(S::ROWS) {
                    let sum = S::mul_add(
                        S::floats(sums.add(i)),
                        S::floats(scales.add(i % ROWS)),
                        S::floats(out.add(i)),
                    );
                    S::store(out.add(i), sum);
                }
                p = p.add((B::BYTES + 4) * ROWS);
            }
            out = out.add(tokens.len() * ROWS);
        }
    }
}

/// Columns as f32.
#[repr(align(64))]
struct Stretch<const N: usize>([f32; N]);

/// Rows in the file's own layout: dequantised by the scalar code, a stretch of columns at a time.
///
/// # Safety
/// `Call`'s contract, for `Kind::Raw`; `S` is available.
#[inline(always)]
pub(super) unsafe fn raw<S: Lanes, const V: usize, const T: usize>(call: &Call<'_>) {
    let (ty, cols) = (call.layout.ty(), call.layout.cols());
    let row_bytes = cols / ty.block_len() * ty.block_bytes();
    let mut values = [0.0; RAW_STRETCH];
    let mut stretch = Stretch([0.0; RAW_STRETCH * ROWS]);
    // SAFETY: `out` holds `ROWS` sums of each token, the group `ROWS` rows of `row_bytes`.
    unsafe {
        call.out.write_bytes(0, call.tokens.len() * ROWS);
        let mut c = 0;
        while c < cols {
            let n = RAW_STRETCH.min(cols - c);
            let (at, bytes) = (c / ty.block_len() * ty.block_bytes(), n / ty.block_len() * ty.block_bytes());
            // The padding's bytes are 0, which some types read as another value.
            for r in 0..call.rows {
                let row = std::slice::from_raw_parts(call.group.add(r * row_bytes + at), bytes);
                ty.dequantize(row, &mut values[..n]);
                for (column, &v) in stretch.0.as_chunks_mut::<ROWS>().0.iter_mut().zip(&values[..n]) {
                    column[r] = v;
                }
            }
            columns::<S, Converted, V, T>(call, call.tokens, stretch.0.as_ptr().cast(), c, n, call.out);
            c += n;
        }
    }
}

/// Adds `cols` columns, from column `first` and at `weights`, to the sums of every token.
#[inline(always)]
unsafe fn columns<S: Lanes, F: Float, const V: usize, const T: usize>(
    call: &Call<'_>,
    tokens: &[u32],
    weights: *const u8,
    first: usize,
    cols: usize,
    out: *mut f32,
) {
    const { assert!(V * S::ROWS == ROWS, "a tile covers a group") };
    let (mut rest, mut out) = (tokens, out);
    // SAFETY: see `group`.
    unsafe {
        while !rest.is_empty() {
            let n = match rest.len() {
                n if n >= T => tile::<S, F, V, T>(call, rest, weights, first, cols, out),
                n if n >= 4 && T > 4 => tile::<S, F, V, 4>(call, rest, weights, first, cols, out),
                n if n >= 2 && T > 2 => tile::<S, F, V, 2>(call, rest, weights, first, cols, out),
                _ => tile::<S, F, V, 1>(call, rest, weights, first, cols, out),
            };
            rest = &rest[n..];
            out = out.add(n * ROWS);
        }
    }
}

/// The same for the first `T` tokens of a list; returns `T`.
#[inline(always)]
unsafe fn tile<S: Lanes, F: Float, const V: usize, const T: usize>(
    call: &Call<'_>,
    tokens: &[u32],
    weights: *const u8,
    first: usize,
    cols: usize,
    out: *mut f32,
) -> usize {
    // SAFETY: see `group`; there are at least `T` tokens.
    unsafe {
        let mut x = [std::ptr::null(); T];
        let mut sums = [[S::splat(0.0); V]; T];
        for t in 0..T {
            x[t] = call.acts.float_ptr(tokens[t] as usize).add(first);
            for v in 0..V {
                sums[t][v] = S::floats(out.add(t * ROWS + v * S::ROWS));
            }
        }
        let mut p = weights;
        for c in (0..cols).step_by(FLOAT_STEP) {
            let distance = call.prefetch_distance(p);
            for c in c..c + FLOAT_STEP {
                // With more tokens arithmetic is the limit, and prefetches would take load slots.
                if F::STREAMED && T == 1 && (F::BYTES > 1 || c % 2 == 0) {
                    for line in 0..(ROWS * F::BYTES).div_ceil(64) {
                        S::prefetch(p.wrapping_add(distance).wrapping_add(64 * line));
                    }
                }
                let mut a = [S::splat(0.0); T];
                for t in 0..T {
                    a[t] = S::splat(*x[t].add(c) * F::UNIT);
                }
                for v in 0..V {
                    let w = F::load::<S>(p.add(v * S::ROWS * F::BYTES));
                    for t in 0..T {
                        sums[t][v] = S::mul_add(w, a[t], sums[t][v]);
                    }
                }
                p = p.add(ROWS * F::BYTES);
            }
        }
        for t in 0..T {
            for v in 0..V {
                S::store(out.add(t * ROWS + v * S::ROWS), sums[t][v]);
            }
        }
    }
    T
}
