//! `Lanes` in 512-bit vectors with VNNI: 16 rows, and `vpdpbusd` multiplies a quad and adds it up in one instruction.

#![allow(clippy::needless_range_loop)] // several arrays are walked by one index

use std::arch::x86_64::*;

use super::lanes::Lanes;

/// Sixteen rows: a whole group.
#[derive(Clone, Copy)]
pub(super) struct Avx512;

// SAFETY comments: the instruction set is available and pointers hold what a method reads or writes, by the trait's contract.
impl Lanes for Avx512 {
    const ROWS: usize = 16;
    const SIGNED_OFFSET: i32 = 128;
    type Bytes = __m512i;
    type Ints = __m512i;
    type Floats = __m512;

    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        // SAFETY: see above; a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }

    #[inline(always)]
    unsafe fn load(p: *const u8) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_loadu_si512(p.cast()) }
    }
    #[inline(always)]
    unsafe fn bits(b: __m512i, left: u32, right: u32, mask: u8) -> __m512i {
        // SAFETY: see above. The counts are constants after inlining, and become immediate operands.
        unsafe {
            let b = if left > 0 {
                _mm512_sll_epi16(b, _mm_cvtsi32_si128(left as i32))
            } else if right > 0 {
                _mm512_srl_epi16(b, _mm_cvtsi32_si128(right as i32))
            } else {
                b
            };
            _mm512_and_si512(b, _mm512_set1_epi8(mask as i8))
        }
    }
    #[inline(always)]
    unsafe fn or(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_or_si512(a, b) }
    }
    #[inline(always)]
    unsafe fn lookup(table: &[i8; 16], b: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())), b) }
    }
    #[inline(always)]
    unsafe fn signed(b: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_xor_si512(b, _mm512_set1_epi8(-128)) }
    }

    #[inline(always)]
    unsafe fn dot(_bits: u32, from: usize, to: usize, w: &[__m512i; 8], a: *const i8, init: i32) -> __m512i {
        // SAFETY: see above.
        unsafe {
            let mut sum = _mm512_set1_epi32(init);
            for j in from..to {
                let quad = _mm512_set1_epi32(a.add(4 * j).cast::<i32>().read_unaligned());
                sum = _mm512_dpbusd_epi32(sum, w[j], quad);
            }
            sum
        }
    }

    #[inline(always)]
    unsafe fn to_floats(i: __m512i) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_cvtepi32_ps(i) }
    }
    #[inline(always)]
    unsafe fn floats(p: *const f32) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn f16s(p: *const u8) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn bf16s(p: *const u8) -> __m512 {
        // SAFETY: see above.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m512) {
        // SAFETY: see above.
        unsafe { _mm512_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul_add(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
}
