//! The kernel of kinds that are computed in f32, and of `Raw`: one group of rows times a list of tokens, in f32. Called through
//! `Kernels::group`. Each (row, token) is one chain of multiply-adds in the order of the columns, whatever the tile.
//!
//! Sums of `T` tokens and `V` vectors of rows stay in registers while columns go by. `V` covers a group.

#![allow(clippy::needless_range_loop)] // several arrays are walked by one index

use octet_weights::quant::levels;

use super::call::Call;
use super::lanes::{Lanes, Levels};
use crate::cpu::kind::{FLOAT_STEP, ROWS};

/// Columns that are converted to f32 at a time, for several tiles of tokens.
const STRETCH: usize = 64;
/// Tokens that are multiplied with converted columns: their sums and their part of the columns fit the L1 cache.
const TOKENS: usize = 64;
/// Columns of `Raw` that are dequantised at a time: a block of every type.
const RAW_STRETCH: usize = 256;

/// Numbers as they are stored, one column of a group's rows after the other.
pub(super) trait Float {
    /// Bytes of a column.
    const COLUMN: usize;
    /// Whether they are read from memory, and so are prefetched.
    const STREAMED: bool = true;
    /// What loaded values are to be multiplied with, a power of two: activations are multiplied with a part of it, and sums with the rest.
    /// So neither overflows.
    fn unit<S: Lanes>() -> Unit {
        Unit { acts: 1.0, sums: 1.0 }
    }
    /// Whether the vectors of a column have parts in common, and so are loaded before one is used. One after the other takes fewer registers.
    /// Only these have a unit, and an order of their own.
    const WHOLE: bool = false;
    /// Loads column `i` of those that start at `p`. The rows are in an order of their own.
    ///
    /// # Safety
    /// As for [`Lanes`].
    unsafe fn column<S: Lanes, const V: usize>(p: *const u8, i: usize) -> [S::Floats; V];
    /// Numbers of a group's rows in the order of [`Float::column`], or from it `back` in their own.
    ///
    /// # Safety
    /// As for [`Lanes`].
    #[inline(always)]
    unsafe fn order<S: Lanes, const V: usize>(rows: [S::Floats; V], _back: bool) -> [S::Floats; V] {
        rows
    }
}

/// A power of two in two parts.
pub(super) struct Unit {
    acts: f32,
    sums: f32,
}

macro_rules! float {
    ($name:ident, $bytes:literal, $load:ident) => {
        pub(super) struct $name;
        impl Float for $name {
            const COLUMN: usize = $bytes * ROWS;
            #[inline(always)]
            unsafe fn column<S: Lanes, const V: usize>(p: *const u8, i: usize) -> [S::Floats; V] {
                // SAFETY: the caller's.
                unsafe {
                    let mut out = [S::splat(0.0); V];
                    for v in 0..V {
                        out[v] = S::$load(p.add(i * Self::COLUMN + v * S::ROWS * $bytes).cast());
                    }
                    out
                }
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
    const COLUMN: usize = F32::COLUMN;
    const STREAMED: bool = false;
    #[inline(always)]
    unsafe fn column<S: Lanes, const V: usize>(p: *const u8, i: usize) -> [S::Floats; V] {
        // SAFETY: the caller's.
        unsafe { F32::column::<S, V>(p, i) }
    }
}

/// 8-bit floats.
pub(super) struct E4m3;
impl Float for E4m3 {
    const COLUMN: usize = ROWS;
    const WHOLE: bool = true;
    #[inline(always)]
    fn unit<S: Lanes>() -> Unit {
        // Activations up to 2^47, sums down to 2^-86; larger ones are infinite, in whatever is not converted first.
        let acts = S::E4M3_UNIT.min(f32::from_bits((127 + 80) << 23));
        Unit { acts, sums: S::E4M3_UNIT / acts }
    }
    #[inline(always)]
    unsafe fn column<S: Lanes, const V: usize>(p: *const u8, i: usize) -> [S::Floats; V] {
        // SAFETY: the caller's.
        unsafe { S::e4m3s(p.add(i * ROWS)) }
    }
    #[inline(always)]
    unsafe fn order<S: Lanes, const V: usize>(rows: [S::Floats; V], back: bool) -> [S::Floats; V] {
        // SAFETY: the caller's.
        unsafe { S::e4m3_order(rows, back) }
    }
}

macro_rules! levels {
    ($name:ident, $table:expr) => {
        /// Indices into a table: a byte holds those of two columns, the first one in its low nibble.
        pub(super) struct $name;
        impl Float for $name {
            const COLUMN: usize = ROWS / 2;
            const WHOLE: bool = true;
            #[inline(always)]
            unsafe fn column<S: Lanes, const V: usize>(p: *const u8, i: usize) -> [S::Floats; V] {
                const TABLE: Levels = Levels::new($table);
                // SAFETY: the caller's.
                unsafe { S::levels(const { &TABLE }, p.add(i / 2 * ROWS), i % 2 == 1) }
            }
            #[inline(always)]
            unsafe fn order<S: Lanes, const V: usize>(rows: [S::Floats; V], back: bool) -> [S::Floats; V] {
                // SAFETY: the caller's.
                unsafe { S::levels_order(rows, back) }
            }
        }
    };
}
levels!(Nf4, levels::NF4);
levels!(Fp4, levels::FP4);

/// # Safety
/// `Call`'s contract, for the kind of `F`; `S` is available.
#[inline(always)]
pub(super) unsafe fn group<S: Lanes, F: Float, const V: usize, const T: usize>(call: &Call<'_>) {
    let cols = call.layout.cols().next_multiple_of(FLOAT_STEP);
    // SAFETY: `out` holds `ROWS` sums of each token, the group `cols` columns of `ROWS` rows.
    unsafe {
        call.out.write_bytes(0, call.tokens.len() * ROWS);
        if F::COLUMN == 4 * ROWS || call.tokens.len() <= T {
            columns::<S, F, V, T>(call, call.tokens, call.group, 0, cols, call.out);
            return finish::<S, F, V>(call.tokens.len(), call.out);
        }
        let mut stretch = Stretch([0.0; STRETCH * ROWS]);
        let mut out = call.out;
        for tokens in call.tokens.chunks(TOKENS) {
            let mut c = 0;
            while c < cols {
                let n = STRETCH.min(cols - c);
                convert::<S, F, V>(call.group.add(c * F::COLUMN), n, stretch.0.as_mut_ptr());
                columns::<S, Converted, V, T>(call, tokens, stretch.0.as_ptr().cast(), c, n, out);
                c += n;
            }
            finish::<S, F, V>(tokens.len(), out);
            out = out.add(tokens.len() * ROWS);
        }
    }
}

/// Sums of some tokens in the order of `F` and without its unit's part, to what they are.
#[inline(always)]
unsafe fn finish<S: Lanes, F: Float, const V: usize>(tokens: usize, out: *mut f32) {
    if !F::WHOLE {
        return;
    }
    let unit = F::unit::<S>().sums;
    for t in 0..tokens {
        // SAFETY: see `group`.
        unsafe {
            let sums = out.add(t * ROWS);
            let rows = F::order::<S, V>(vectors::<S, V>(sums), true);
            for v in 0..V {
                S::store(
                    sums.add(v * S::ROWS),
                    if unit == 1.0 { rows[v] } else { S::mul(rows[v], S::splat(unit)) },
                );
            }
        }
    }
}

/// A number of each row.
#[inline(always)]
unsafe fn vectors<S: Lanes, const V: usize>(p: *const f32) -> [S::Floats; V] {
    // SAFETY: see `group`.
    unsafe { F32::column::<S, V>(p.cast(), 0) }
}

/// `n` columns of all rows as f32, in the order of `F` and multiplied with the activations' part of its unit: a multiple of [`FLOAT_STEP`].
#[inline(always)]
unsafe fn convert<S: Lanes, F: Float, const V: usize>(weights: *const u8, n: usize, out: *mut f32) {
    let unit = F::unit::<S>().acts;
    for c in (0..n).step_by(FLOAT_STEP) {
        for i in 0..FLOAT_STEP {
            // SAFETY: see `group`.
            unsafe {
                let mut values = F::column::<S, V>(weights.add(c * F::COLUMN), i);
                for v in 0..V {
                    if unit != 1.0 {
                        // Zen 3 multiplies subnormal numbers slowly, but not if it adds something.
                        values[v] = S::mul_add(values[v], S::splat(unit), S::splat(0.0));
                    }
                    S::store(out.add((c + i) * ROWS + v * S::ROWS), values[v]);
                }
            }
        }
    }
}

/// Columns under scales, a block of `COLS` of them under one scale of each row: of all rows the scales, then the columns. The products of
/// each block are summed, and then multiplied with their scale.
///
/// # Safety
/// `Call`'s contract, for a kind of such blocks; `S` is available.
#[inline(always)]
pub(super) unsafe fn scaled<S: Lanes, F: Float, const COLS: usize, const V: usize, const T: usize>(
    call: &Call<'_>,
) {
    const {
        assert!(
            COLS.is_multiple_of(FLOAT_STEP)
                && COLS.is_multiple_of(if COLS < STRETCH { COLS } else { STRETCH })
        )
    };
    let mut part = Stretch([0.0; TOKENS * ROWS]);
    let mut stretch = Stretch([0.0; STRETCH * ROWS]);
    let mut out = call.out;
    // SAFETY: `out` holds `ROWS` sums of each token, the group blocks of columns and the scales in front of each.
    unsafe {
        call.out.write_bytes(0, call.tokens.len() * ROWS);
        for tokens in call.tokens.chunks(TOKENS) {
            let is_direct = tokens.len() <= T;
            let mut p = call.group;
            for c in (0..call.layout.cols()).step_by(COLS) {
                let (scales, weights) = (p.cast::<f32>(), p.add(4 * ROWS));
                let sums = part.0.as_mut_ptr();
                sums.write_bytes(0, tokens.len() * ROWS);
                if is_direct {
                    columns::<S, F, V, T>(call, tokens, weights, c, COLS, sums);
                } else {
                    // Not a constant: for a known length the compiler unrolls all of it, and has too few registers.
                    let end = COLS.min(call.layout.cols() - c);
                    let mut i = 0;
                    while i < end {
                        let n = STRETCH.min(end - i);
                        convert::<S, F, V>(weights.add(i * F::COLUMN), n, stretch.0.as_mut_ptr());
                        columns::<S, Converted, V, T>(
                            call,
                            tokens,
                            stretch.0.as_ptr().cast(),
                            c + i,
                            n,
                            sums,
                        );
                        i += n;
                    }
                }
                let scales = F::order::<S, V>(vectors::<S, V>(scales), false);
                for i in (0..tokens.len() * ROWS).step_by(ROWS) {
                    for v in 0..V {
                        let at = i + v * S::ROWS;
                        S::store(
                            out.add(at),
                            S::mul_add(S::floats(sums.add(at)), scales[v], S::floats(out.add(at))),
                        );
                    }
                }
                p = p.add(COLS * F::COLUMN + 4 * ROWS);
            }
            finish::<S, F, V>(tokens.len(), out);
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

/// Adds `cols` columns, from column `first` and at `weights`, to the sums of every token, which are in the order and the unit of `F`.
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
        let unit = F::unit::<S>().acts;
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
            for i in 0..FLOAT_STEP {
                // With more tokens arithmetic is the limit, and prefetches would take load slots.
                if F::STREAMED && T == 1 && (i * F::COLUMN).is_multiple_of(64) {
                    for line in 0..F::COLUMN.div_ceil(64) {
                        S::prefetch(p.wrapping_add(distance).wrapping_add(i * F::COLUMN + 64 * line));
                    }
                }
                let mut a = [S::splat(0.0); T];
                for t in 0..T {
                    a[t] = S::splat(*x[t].add(c + i) * unit);
                }
                let whole = F::column::<S, V>(p, i);
                for v in 0..V {
                    let w = if F::WHOLE { whole[v] } else { F::column::<S, V>(p, i)[v] };
                    for t in 0..T {
                        sums[t][v] = S::mul_add(w, a[t], sums[t][v]);
                    }
                }
            }
            p = p.add(FLOAT_STEP * F::COLUMN);
        }
        for t in 0..T {
            for v in 0..V {
                S::store(out.add(t * ROWS + v * S::ROWS), sums[t][v]);
            }
        }
    }
    T
}
