//! The operations that kernels need of an instruction set: vectors with four bytes, one i32 or one f32 of each of `ROWS` rows.
//! Implemented by `portable`, `avx2`, `avx_vnni`, `avx512` and `neon`; used by the generic kernels in `ints` and `floats`.
//!
//! Every method is `inline(always)`: it has no target feature of its own and takes that of the entry point it ends up in.
//!
//! # Safety
//! All methods need the instruction set to be available, and pointers to hold as many bytes as the method reads or writes.

#![allow(clippy::missing_safety_doc)] // the same for every method: stated above

use crate::cpu::activations::ActBlock;

/// One instruction set.
pub(super) trait Lanes: Copy + 'static {
    /// Rows per vector: 32, 8 or 4.
    const ROWS: usize;
    /// Distance of the software prefetch in bytes, from measurements in docs/performance-notes.md.
    const PREFETCH_DISTANCE: usize;
    /// What [`Lanes::signed`] adds to signed weights: 0 or 128.
    const SIGNED_OFFSET: i32;
    /// What [`Lanes::e4m3s`] is to be multiplied with: a power of two.
    const E4M3_UNIT: f32 = 256.0;
    /// Whether two tokens together take fewer instructions than one after the other.
    const PAIRS: bool = false;
    /// Four unsigned or signed bytes of each row.
    type Bytes: Copy;
    /// An i32 of each row.
    type Ints: Copy;
    /// An f32 of each row.
    type Floats: Copy;

    /// Prefetches the cache line at `p`, which need not exist.
    unsafe fn prefetch(p: *const u8);

    /// Loads four bytes a row.
    unsafe fn load(p: *const u8) -> Self::Bytes;
    /// `(b << left >> right) & mask` of each byte (the mask drops neighbours' bits).
    unsafe fn bits(b: Self::Bytes, left: u32, right: u32, mask: u8) -> Self::Bytes;
    /// `a | b`
    unsafe fn or(a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// `table[b]` of each byte below 16.
    unsafe fn lookup(table: &[i8; 16], b: Self::Bytes) -> Self::Bytes;
    /// Signed weights in the form that `dot` takes for `bits == 8`.
    unsafe fn signed(b: Self::Bytes) -> Self::Bytes;

    /// `sum_j (w[j] - offset) . a.q[4 j..]` of each row, `j` in 0..8. `w` holds unsigned numbers of `bits` < 8 bits and
    /// `offset` is 0 or a power of two; or for `bits == 8` `w` is what [`Lanes::signed`] returned and `offset` is 0.
    /// Exact: no intermediate saturates for `a.q` in -127..=127.
    unsafe fn dot(bits: u32, offset: i32, w: &[Self::Bytes; 8], a: &ActBlock) -> Self::Ints;
    /// The same for the first and for the second half of the columns.
    unsafe fn dot_halves(bits: u32, offset: i32, w: &[Self::Bytes; 8], a: &ActBlock) -> [Self::Ints; 2];
    /// [`Lanes::dot`] of two tokens.
    #[inline(always)]
    unsafe fn dot_pair(bits: u32, offset: i32, w: &[Self::Bytes; 8], a: [&ActBlock; 2]) -> [Self::Ints; 2] {
        // SAFETY: the same contract.
        unsafe { [Self::dot(bits, offset, w, a[0]), Self::dot(bits, offset, w, a[1])] }
    }
    /// [`Lanes::dot_halves`] of two tokens.
    #[inline(always)]
    unsafe fn dot_halves_pair(
        bits: u32,
        offset: i32,
        w: &[Self::Bytes; 8],
        a: [&ActBlock; 2],
    ) -> [[Self::Ints; 2]; 2] {
        // SAFETY: the same contract.
        unsafe { [Self::dot_halves(bits, offset, w, a[0]), Self::dot_halves(bits, offset, w, a[1])] }
    }

    /// To f32.
    unsafe fn to_floats(i: Self::Ints) -> Self::Floats;
    /// Loads f32.
    unsafe fn floats(p: *const f32) -> Self::Floats;
    /// Loads f16.
    unsafe fn f16s(p: *const u8) -> Self::Floats;
    /// Loads BF16.
    unsafe fn bf16s(p: *const u8) -> Self::Floats;
    /// Loads E4M3, one byte for each row of a group, as values / [`Lanes::E4M3_UNIT`]; what would be NaN becomes a number. The rows are in
    /// an order of their own.
    unsafe fn e4m3s<const V: usize>(p: *const u8) -> [Self::Floats; V];
    /// Numbers of a group's rows in the order of [`Lanes::e4m3s`], or from it `back` in their own.
    #[inline(always)]
    unsafe fn e4m3_order<const V: usize>(rows: [Self::Floats; V], _back: bool) -> [Self::Floats; V] {
        rows
    }
    /// Entries of a table, for one byte of each row of a group: of its low or its high nibble. The rows are in an order of their own.
    unsafe fn levels<const V: usize>(table: &Levels, p: *const u8, high: bool) -> [Self::Floats; V];
    /// Numbers of a group's rows in the order of [`Lanes::levels`], or from it `back` in their own.
    #[inline(always)]
    unsafe fn levels_order<const V: usize>(rows: [Self::Floats; V], _back: bool) -> [Self::Floats; V] {
        rows
    }
    /// Stores f32.
    unsafe fn store(p: *mut f32, v: Self::Floats);
    /// The same number in each row.
    unsafe fn splat(x: f32) -> Self::Floats;
    /// `a * b`
    unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a * b + c`, fused where the instruction set has it.
    unsafe fn mul_add(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
}

/// A table of 16 numbers.
pub(super) struct Levels {
    pub floats: [f32; 16],
    /// Byte `i` of each number.
    pub bytes: [[u8; 16]; 4],
}

impl Levels {
    pub const fn new(floats: [f32; 16]) -> Self {
        let mut bytes = [[0; 16]; 4];
        let mut i = 0;
        while i < 64 {
            bytes[i % 4][i / 4] = floats[i / 4].to_le_bytes()[i % 4];
            i += 1;
        }
        Self { floats, bytes }
    }
}

/// How a kernel loads weights.
pub(super) trait Fetch: Copy {
    /// Loads four bytes a row.
    ///
    /// # Safety
    /// As for [`Lanes`].
    unsafe fn load<S: Lanes>(self, p: *const u8) -> S::Bytes;
}

/// Each load also prefetches the cache lines this many bytes after it. Prefetches spread out like this keep requests in
/// flight all the time; in bursts they are slower (docs/performance-notes.md).
#[derive(Clone, Copy)]
pub(super) struct Prefetch(pub usize);

impl Fetch for Prefetch {
    #[inline(always)]
    unsafe fn load<S: Lanes>(self, p: *const u8) -> S::Bytes {
        // SAFETY: the caller's; a prefetch takes any address.
        unsafe {
            for line in 0..(4 * S::ROWS).div_ceil(64) {
                S::prefetch(p.wrapping_add(self.0).wrapping_add(64 * line));
            }
            S::load(p)
        }
    }
}

/// No prefetch: another load covers the same cache line.
#[derive(Clone, Copy)]
pub(super) struct NoPrefetch;

impl Fetch for NoPrefetch {
    #[inline(always)]
    unsafe fn load<S: Lanes>(self, p: *const u8) -> S::Bytes {
        // SAFETY: the caller's.
        unsafe { S::load(p) }
    }
}

/// The start of the integer sum of half `h`, for quants that are `offset` too large.
#[inline(always)]
pub(super) fn start(offset: i32, a: &ActBlock, h: usize) -> i32 {
    // `neg_sums` are multiples of 128.
    if offset == 0 { 0 } else { a.neg_sums[h] >> (7 - offset.trailing_zeros()) }
}
