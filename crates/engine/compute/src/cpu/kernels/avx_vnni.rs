//! `Lanes` in 256-bit vectors with AVX-VNNI (Alder Lake, Zen 5): AVX2 but for the dot products, where `vpdpbusd` multiplies
//! a quad and adds it up in one instruction, without the 16-bit sums that limit `avx2`.

use std::arch::x86_64::*;

use super::avx2::Avx2;
use super::lanes::{Lanes, Levels, start};
use crate::cpu::activations::ActBlock;

/// Eight rows: a quarter of a group.
#[derive(Clone, Copy)]
pub(super) struct AvxVnni;

/// Methods that are those of [`Avx2`].
macro_rules! as_avx2 {
    ($(fn $name:ident$(<const $n:ident: usize>)?($($arg:ident: $ty:ty),*) $(-> $ret:ty)?;)*) => {
        $(
            #[inline(always)]
            unsafe fn $name$(<const $n: usize>)?($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the same contract.
                unsafe { Avx2::$name($($arg),*) }
            }
        )*
    };
}

// SAFETY comments: the instruction set is available and pointers hold what a method reads or writes, by the trait's contract.
impl Lanes for AvxVnni {
    const ROWS: usize = Avx2::ROWS;
    const PREFETCH_DISTANCE: usize = Avx2::PREFETCH_DISTANCE;
    const SIGNED_OFFSET: i32 = 128;
    const E4M3_UNIT: f32 = Avx2::E4M3_UNIT;
    type Bytes = __m256i;
    type Ints = __m256i;
    type Floats = __m256;

    as_avx2! {
        fn prefetch(p: *const u8);
        fn load(p: *const u8) -> __m256i;
        fn bits(b: __m256i, left: u32, right: u32, mask: u8) -> __m256i;
        fn or(a: __m256i, b: __m256i) -> __m256i;
        fn lookup(table: &[i8; 16], b: __m256i) -> __m256i;
        fn to_floats(i: __m256i) -> __m256;
        fn floats(p: *const f32) -> __m256;
        fn f16s(p: *const u8) -> __m256;
        fn bf16s(p: *const u8) -> __m256;
        fn store(p: *mut f32, v: __m256);
        fn splat(x: f32) -> __m256;
        fn mul(a: __m256, b: __m256) -> __m256;
        fn mul_add(a: __m256, b: __m256, c: __m256) -> __m256;
        fn e4m3s<const V: usize>(p: *const u8) -> [__m256; V];
        fn e4m3_order<const V: usize>(rows: [__m256; V], back: bool) -> [__m256; V];
        fn levels<const V: usize>(table: &Levels, p: *const u8, high: bool) -> [__m256; V];
        fn levels_order<const V: usize>(rows: [__m256; V], back: bool) -> [__m256; V];
    }

    #[inline(always)]
    unsafe fn signed(b: __m256i) -> __m256i {
        // SAFETY: see above.
        unsafe { _mm256_xor_si256(b, _mm256_set1_epi8(-128)) }
    }

    #[inline(always)]
    unsafe fn dot(bits: u32, offset: i32, w: &[Self::Bytes; 8], a: &ActBlock) -> Self::Ints {
        // SAFETY: see above. Two short chains have less latency than one.
        unsafe {
            let [low, high] = Self::dot_halves(bits, offset, w, a);
            _mm256_add_epi32(low, high)
        }
    }
    #[inline(always)]
    unsafe fn dot_halves(bits: u32, offset: i32, w: &[Self::Bytes; 8], a: &ActBlock) -> [Self::Ints; 2] {
        let offset = if bits == 8 { Self::SIGNED_OFFSET } else { offset };
        // SAFETY: see above.
        unsafe { [dot_half(offset, w, a, 0), dot_half(offset, w, a, 1)] }
    }
}

/// The products of half `h` of the columns.
#[inline(always)]
unsafe fn dot_half(offset: i32, w: &[__m256i; 8], a: &ActBlock, h: usize) -> __m256i {
    // SAFETY: called by `dot_halves`.
    unsafe {
        let mut sum = _mm256_set1_epi32(start(offset, a, h));
        let mut j = 4 * h;
        while j < 4 * h + 4 {
            let quad = _mm256_set1_epi32(a.q.as_ptr().add(4 * j).cast::<i32>().read_unaligned());
            sum = _mm256_dpbusd_avx_epi32(sum, w[j], quad);
            j += 1;
        }
        sum
    }
}
