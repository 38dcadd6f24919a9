//! `Lanes` in 256-bit vectors: 8 rows, a quarter of a group.
//!
//! `vpmaddubsw` multiplies unsigned by signed bytes and adds two products in an i16. With activations up to 127 an i16
//! takes `32767 / (2 * 127 * max)` of those sums: 8 steps for 4 bits, 4 for 5, 2 for 6, before they are widened.

use std::arch::x86_64::*;

use super::lanes::{Lanes, Levels, start};
use crate::cpu::activations::ActBlock;

/// Eight rows: a quarter of a group.
#[derive(Clone, Copy)]
pub(super) struct Avx2;

// SAFETY comments: the instruction set is available and pointers hold what a method reads or writes, by the trait's contract.
impl Lanes for Avx2 {
    const ROWS: usize = 8;
    const PREFETCH_DISTANCE: usize = 12 << 10;
    const SIGNED_OFFSET: i32 = 0;
    const E4M3_UNIT: f32 = f32::from_bits((127 + 120) << 23);
    type Bytes = __m256i;
    type Ints = __m256i;
    type Floats = __m256;

    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        // SAFETY: see above; a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }

    #[inline(always)]
    unsafe fn load(p: *const u8) -> __m256i {
        // SAFETY: see above.
        unsafe { _mm256_loadu_si256(p.cast()) }
    }
    #[inline(always)]
    unsafe fn bits(b: __m256i, left: u32, right: u32, mask: u8) -> __m256i {
        // SAFETY: see above. The counts are constants after inlining, and become immediate operands.
        unsafe {
            let b = if left > 0 {
                _mm256_sll_epi16(b, _mm_cvtsi32_si128(left as i32))
            } else if right > 0 {
                _mm256_srl_epi16(b, _mm_cvtsi32_si128(right as i32))
            } else {
                b
            };
            _mm256_and_si256(b, _mm256_set1_epi8(mask as i8))
        }
    }
    #[inline(always)]
    unsafe fn or(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: see above.
        unsafe { _mm256_or_si256(a, b) }
    }
    #[inline(always)]
    unsafe fn lookup(table: &[i8; 16], b: __m256i) -> __m256i {
        // SAFETY: see above.
        unsafe { _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast())), b) }
    }
    #[inline(always)]
    unsafe fn signed(b: __m256i) -> __m256i {
        b
    }

    #[inline(always)]
    unsafe fn dot(bits: u32, offset: i32, w: &[Self::Bytes; 8], a: &ActBlock) -> Self::Ints {
        // SAFETY: see above.
        unsafe { products(bits, 0, 8, w, a, start(offset, a, 0) + start(offset, a, 1)) }
    }
    #[inline(always)]
    unsafe fn dot_halves(bits: u32, offset: i32, w: &[Self::Bytes; 8], a: &ActBlock) -> [Self::Ints; 2] {
        // SAFETY: see above.
        unsafe {
            [products(bits, 0, 4, w, a, start(offset, a, 0)), products(bits, 4, 8, w, a, start(offset, a, 1))]
        }
    }

    #[inline(always)]
    unsafe fn to_floats(i: __m256i) -> __m256 {
        // SAFETY: see above.
        unsafe { _mm256_cvtepi32_ps(i) }
    }
    #[inline(always)]
    unsafe fn floats(p: *const f32) -> __m256 {
        // SAFETY: see above.
        unsafe { _mm256_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn f16s(p: *const u8) -> __m256 {
        // SAFETY: see above.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
    }
    #[inline(always)]
    unsafe fn bf16s(p: *const u8) -> __m256 {
        // SAFETY: see above.
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn e4m3s<const V: usize>(p: *const u8) -> [__m256; V] {
        const { assert!(V == 4) };
        // SAFETY: see above. A shift to the right puts four bits of exponent to the end of an F32's eight, and copies of the sign before
        // them, of which one is kept. Odd bytes lie right in words of 16 bits, even ones after a shift; of 32 bits likewise.
        unsafe {
            let bytes = _mm256_loadu_si256(p.cast());
            let odd = _mm256_srai_epi16::<4>(bytes);
            let even = _mm256_srai_epi16::<4>(_mm256_slli_epi16::<8>(bytes));
            let words = [_mm256_slli_epi32::<16>(even), _mm256_slli_epi32::<16>(odd), even, odd];
            let mut out = [_mm256_setzero_ps(); V];
            for v in 0..V {
                out[v] = _mm256_castsi256_ps(_mm256_and_si256(
                    words[v],
                    _mm256_set1_epi32(0x87f0_0000_u32 as i32),
                ));
            }
            out
        }
    }
    #[inline(always)]
    unsafe fn e4m3_order<const V: usize>(rows: [__m256; V], back: bool) -> [__m256; V] {
        const { assert!(V == 4) };
        // SAFETY: see above. Vector `v` has rows `4 i + v`.
        unsafe {
            let r = if back { rows } else { Self::levels_order(rows, false) };
            let low =
                [_mm256_unpacklo_ps(r[0], r[1]), _mm256_unpacklo_ps(r[2], r[3])].map(|v| _mm256_castps_pd(v));
            let high =
                [_mm256_unpackhi_ps(r[0], r[1]), _mm256_unpackhi_ps(r[2], r[3])].map(|v| _mm256_castps_pd(v));
            let mut out = rows;
            out[0] = _mm256_castpd_ps(_mm256_unpacklo_pd(low[0], low[1]));
            out[1] = _mm256_castpd_ps(_mm256_unpackhi_pd(low[0], low[1]));
            out[2] = _mm256_castpd_ps(_mm256_unpacklo_pd(high[0], high[1]));
            out[3] = _mm256_castpd_ps(_mm256_unpackhi_pd(high[0], high[1]));
            if back { Self::levels_order(out, true) } else { out }
        }
    }
    #[inline(always)]
    unsafe fn levels<const V: usize>(table: &Levels, p: *const u8, high: bool) -> [__m256; V] {
        const { assert!(V == 4) };
        // SAFETY: see above. Each byte of the numbers is looked up, and then they are put together.
        unsafe {
            let bytes = Self::load(p);
            let nibbles = if high { Self::bits(bytes, 0, 4, 15) } else { Self::bits(bytes, 0, 0, 15) };
            let byte = |i: usize| {
                let table = _mm_loadu_si128(table.bytes[i].as_ptr().cast());
                _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), nibbles)
            };
            let (a, b, c, d) = (byte(0), byte(1), byte(2), byte(3));
            let (low, high) = (_mm256_unpacklo_epi8(a, b), _mm256_unpacklo_epi8(c, d));
            let mut out = [_mm256_setzero_ps(); V];
            out[0] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(low, high));
            out[1] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(low, high));
            let (low, high) = (_mm256_unpackhi_epi8(a, b), _mm256_unpackhi_epi8(c, d));
            out[2] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(low, high));
            out[3] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(low, high));
            out
        }
    }
    #[inline(always)]
    unsafe fn levels_order<const V: usize>(rows: [__m256; V], back: bool) -> [__m256; V] {
        const { assert!(V == 4) };
        // SAFETY: see above. Vector `v` has rows `4 v` to `4 v + 3`, and then those from `4 v + 16`.
        unsafe {
            let [a, b, c, d] = if back { [0, 1, 2, 3] } else { [0, 2, 1, 3] }.map(|v: usize| rows[v]);
            let pairs = [
                _mm256_permute2f128_ps::<0x20>(a, b),
                _mm256_permute2f128_ps::<0x31>(a, b),
                _mm256_permute2f128_ps::<0x20>(c, d),
                _mm256_permute2f128_ps::<0x31>(c, d),
            ];
            let mut out = rows;
            for v in 0..V {
                out[v] = pairs[if back { [0, 2, 1, 3][v] } else { v }];
            }
            out
        }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m256) {
        // SAFETY: see above.
        unsafe { _mm256_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> __m256 {
        // SAFETY: see above.
        unsafe { _mm256_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        // SAFETY: see above.
        unsafe { _mm256_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul_add(a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: see above.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
}

/// `start` and the products of quads `from..to`.
#[inline(always)]
unsafe fn products(bits: u32, from: usize, to: usize, w: &[__m256i; 8], a: &ActBlock, start: i32) -> __m256i {
    let steps = match bits {
        0..=4 => 8,
        5 => 4,
        6 => 2,
        _ => 1,
    };
    // SAFETY: called by `dot` and `dot_halves`.
    unsafe {
        let mut sum = _mm256_set1_epi32(start);
        let mut first = from;
        while first < to {
            let mut pairs = product(bits, w[first], a.q.as_ptr().add(4 * first));
            let mut j = first + 1;
            while j < to && j < first + steps {
                pairs = _mm256_add_epi16(pairs, product(bits, w[j], a.q.as_ptr().add(4 * j)));
                j += 1;
            }
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
            first += steps;
        }
        sum
    }
}

/// Sums of two products each: one quad of each row.
#[inline(always)]
unsafe fn product(bits: u32, w: __m256i, a: *const i8) -> __m256i {
    // SAFETY: called by `products`.
    unsafe {
        let quad = _mm256_set1_epi32(a.cast::<i32>().read_unaligned());
        if bits == 8 {
            // The magnitude of a signed weight fits u8 (128 too), and its sign goes to the activation.
            _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(quad, w))
        } else {
            _mm256_maddubs_epi16(w, quad)
        }
    }
}
