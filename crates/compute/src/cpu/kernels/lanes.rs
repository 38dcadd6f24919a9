//! What the kernels ask of an instruction set: a vector with four bytes, one i32 or one f32 of each of `ROWS` rows.
//! Implemented by `portable`, `avx2` and `avx512`; used by the generic kernels in `ints` and `floats`.
//!
//! Every method is `inline(always)`: it has no target feature of its own and takes that of the entry point it ends up in.
//!
//! # Safety
//! All methods need the instruction set to be available, and pointers to hold as many bytes as the method reads or writes.

#![allow(clippy::missing_safety_doc)] // the same for every method: stated above

/// One instruction set.
pub(super) trait Lanes: Copy + 'static {
    /// Rows in a vector: 16, 8 or 4.
    const ROWS: usize;
    /// What [`Lanes::signed`] adds to signed weights, and so what `dot` of them has to be started with.
    const SIGNED_OFFSET: i32;
    /// Four unsigned or signed bytes of each row.
    type Bytes: Copy;
    /// An i32 of each row.
    type Ints: Copy;
    /// An f32 of each row.
    type Floats: Copy;

    /// Asks for the cache line at `p`, which need not exist.
    unsafe fn prefetch(p: *const u8);

    /// Loads four bytes a row.
    unsafe fn load(p: *const u8) -> Self::Bytes;
    /// `(b << left >> right) & mask` of each byte (one of the shifts is zero, and the mask drops neighbours' bits).
    unsafe fn bits(b: Self::Bytes, left: u32, right: u32, mask: u8) -> Self::Bytes;
    /// `a | b`
    unsafe fn or(a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// `table[b]` of each byte below 16.
    unsafe fn lookup(table: &[i8; 16], b: Self::Bytes) -> Self::Bytes;
    /// Signed weights in the form that `dot` takes for `bits == 8`.
    unsafe fn signed(b: Self::Bytes) -> Self::Bytes;

    /// `init + sum_j w[j] . a[4 j..]` of each row, `j` in `from..to`. `w` holds unsigned numbers of `bits` < 8 bits, or for
    /// `bits == 8` what [`Lanes::signed`] returned. Exact: no intermediate saturates for `a` in -127..=127.
    unsafe fn dot(
        bits: u32,
        from: usize,
        to: usize,
        w: &[Self::Bytes; 8],
        a: *const i8,
        init: i32,
    ) -> Self::Ints;

    /// To f32.
    unsafe fn to_floats(i: Self::Ints) -> Self::Floats;
    /// Loads f32.
    unsafe fn floats(p: *const f32) -> Self::Floats;
    /// Loads f16.
    unsafe fn f16s(p: *const u8) -> Self::Floats;
    /// Loads BF16.
    unsafe fn bf16s(p: *const u8) -> Self::Floats;
    /// Stores f32.
    unsafe fn store(p: *mut f32, v: Self::Floats);
    /// The same number in each row.
    unsafe fn splat(x: f32) -> Self::Floats;
    /// `a * b`
    unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a * b + c`, fused where the instruction set has it.
    unsafe fn mul_add(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
}
