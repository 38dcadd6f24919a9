//! A vector of f32 lanes: the operations that the kernels of `vector/` are written in, for each instruction set.
//!
//! A kernel is one generic function over [`Simd`], marked `#[inline(always)]`; `vector/mod.rs` instantiates it inside a
//! function that is compiled for the instruction set. A value of `Avx2` or `Avx512` is the proof that the CPU has it.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) use neon::Neon;
pub(crate) use portable::Portable;

/// Most lanes of any instruction set: rows padded to a multiple of it take whole vectors of each.
pub(crate) const MAX_LANES: usize = 16;

/// `n` rounded up to whole vectors of every instruction set.
pub(crate) const fn padded(n: usize) -> usize {
    n.next_multiple_of(MAX_LANES)
}

/// `x` from its first cache line on: skips at most [`MAX_LANES`] values. A vector across two lines costs two
/// accesses.
pub(crate) fn aligned(x: &mut [f32]) -> &mut [f32] {
    let skip = x.as_ptr().align_offset(64).min(MAX_LANES);
    &mut x[skip..]
}

/// Vectors of [`Simd::LANES`] f32 lanes.
pub(crate) trait Simd: Copy {
    /// Lanes of a vector, at most [`MAX_LANES`].
    const LANES: usize;
    /// A register.
    type V: Copy;

    /// `x` in every lane.
    fn splat(self, x: f32) -> Self::V;
    /// `LANES` values from `p`.
    ///
    /// # Safety
    /// They can be read.
    unsafe fn load(self, p: *const f32) -> Self::V;
    /// `n < LANES` values from `p`, zero in the other lanes.
    ///
    /// # Safety
    /// They can be read.
    unsafe fn load_part(self, p: *const f32, n: usize) -> Self::V;
    /// Writes `LANES` values to `p`.
    ///
    /// # Safety
    /// They can be written.
    unsafe fn store(self, p: *mut f32, v: Self::V);
    /// Writes the first `n < LANES` values to `p`.
    ///
    /// # Safety
    /// They can be written.
    unsafe fn store_part(self, p: *mut f32, n: usize, v: Self::V);
    /// `LANES` half-precision values from `p`.
    ///
    /// # Safety
    /// They can be read.
    unsafe fn load_f16(self, p: *const u16) -> Self::V;
    /// `LANES` signed bytes from `p`.
    ///
    /// # Safety
    /// They can be read.
    unsafe fn load_i8(self, p: *const i8) -> Self::V;
    /// The half-precision value with these bits.
    fn widen_f16(self, bits: u16) -> f32;
    /// Writes `LANES` values to `p`, rounded to half precision (nearest, ties to even).
    ///
    /// # Safety
    /// They can be written.
    unsafe fn store_f16(self, p: *mut u16, v: Self::V);

    /// `a + b`
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a - b`
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b`
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a / b`
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once where the instruction set can.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The larger one; `b` if either is NaN.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// The smaller one; `b` if either is NaN.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// Nearest integer, ties to even, for magnitudes below 2^22.
    fn round(self, a: Self::V) -> Self::V;
    /// `a * 2^n` for integers `n` in -252..=252.
    fn scale2(self, a: Self::V, n: Self::V) -> Self::V;

    /// Sum of the lanes, in a fixed order.
    fn sum(self, v: Self::V) -> f32;
    /// Sums of the lanes of four vectors, each in the same order.
    fn sum4(self, v: [Self::V; 4]) -> [f32; 4];
    /// Largest lane (any lane if one is NaN).
    fn max_lane(self, v: Self::V) -> f32;

    /// The first `LANES` values of `x`.
    #[inline(always)]
    fn read(self, x: &[f32]) -> Self::V {
        assert!(x.len() >= Self::LANES);
        // SAFETY: x has that many values.
        unsafe { self.load(x.as_ptr()) }
    }
    /// Writes the first `LANES` values of `out`.
    #[inline(always)]
    fn write(self, out: &mut [f32], v: Self::V) {
        assert!(out.len() >= Self::LANES);
        // SAFETY: out has that many values.
        unsafe { self.store(out.as_mut_ptr(), v) }
    }
    /// All of `x`, which is shorter than a vector; zero in the other lanes.
    #[inline(always)]
    fn read_part(self, x: &[f32]) -> Self::V {
        assert!(x.len() < Self::LANES);
        // SAFETY: x has that many values.
        unsafe { self.load_part(x.as_ptr(), x.len()) }
    }
    /// Fills all of `out`, which is shorter than a vector.
    #[inline(always)]
    fn write_part(self, out: &mut [f32], v: Self::V) {
        assert!(out.len() < Self::LANES);
        // SAFETY: out has that many values.
        unsafe { self.store_part(out.as_mut_ptr(), out.len(), v) }
    }
}
