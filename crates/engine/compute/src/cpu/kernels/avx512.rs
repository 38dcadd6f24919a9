//! `Lanes` in pairs of 512-bit vectors with VNNI: 32 rows, and `vpdpbusd` multiplies a quad and adds it up in one
//! instruction. Two at a time because loads are scarce at this width (Ice Lake: 1.3 a cycle, against two products): both
//! vectors share each broadcast of activations.

use std::arch::x86_64::*;

use super::lanes::{Lanes, Levels};
use crate::cpu::activations::ActBlock;

/// 32 rows: a whole group.
#[derive(Clone, Copy)]
pub(super) struct Avx512;

/// The same operation on both vectors.
macro_rules! both {
    ($f:expr, $($args:expr),*) => {
        [$f($($args[0]),*), $f($($args[1]),*)]
    };
}

// SAFETY comments: the instruction set is available and pointers hold what a method reads or writes, by the trait's contract.
impl Lanes for Avx512 {
    const ROWS: usize = 32;
    const PREFETCH_DISTANCE: usize = 8 << 10;
    const SIGNED_OFFSET: i32 = 128;
    type Bytes = [__m512i; 2];
    type Ints = [__m512i; 2];
    type Floats = [__m512; 2];

    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        // SAFETY: see above; a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }

    #[inline(always)]
    unsafe fn load(p: *const u8) -> Self::Bytes {
        // SAFETY: see above.
        unsafe { [_mm512_loadu_si512(p.cast()), _mm512_loadu_si512(p.add(64).cast())] }
    }
    #[inline(always)]
    unsafe fn bits(b: Self::Bytes, left: u32, right: u32, mask: u8) -> Self::Bytes {
        // SAFETY: see above. The counts are constants after inlining, and become immediate operands.
        unsafe {
            let (left, right) = (_mm_cvtsi32_si128(left as i32), _mm_cvtsi32_si128(right as i32));
            let mask = _mm512_set1_epi8(mask as i8);
            let b = [_mm512_sll_epi16(b[0], left), _mm512_sll_epi16(b[1], left)];
            let b = [_mm512_srl_epi16(b[0], right), _mm512_srl_epi16(b[1], right)];
            [_mm512_and_si512(b[0], mask), _mm512_and_si512(b[1], mask)]
        }
    }
    #[inline(always)]
    unsafe fn or(a: Self::Bytes, b: Self::Bytes) -> Self::Bytes {
        // SAFETY: see above.
        unsafe { both!(_mm512_or_si512, a, b) }
    }
    #[inline(always)]
    unsafe fn lookup(table: &[i8; 16], b: Self::Bytes) -> Self::Bytes {
        // SAFETY: see above.
        unsafe {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            [_mm512_shuffle_epi8(table, b[0]), _mm512_shuffle_epi8(table, b[1])]
        }
    }
    #[inline(always)]
    unsafe fn signed(b: Self::Bytes) -> Self::Bytes {
        // SAFETY: see above.
        unsafe {
            let offset = _mm512_set1_epi8(-128);
            [_mm512_xor_si512(b[0], offset), _mm512_xor_si512(b[1], offset)]
        }
    }

    #[inline(always)]
    unsafe fn dot(bits: u32, offset: i32, w: &[Self::Bytes; 8], a: &ActBlock) -> Self::Ints {
        // SAFETY: see above. Two chains of four products each take less of the scheduler than one of eight.
        unsafe {
            let [a, b] = Self::dot_halves(bits, offset, w, a);
            both!(_mm512_add_epi32, a, b)
        }
    }
    #[inline(always)]
    unsafe fn dot_halves(bits: u32, offset: i32, w: &[Self::Bytes; 8], a: &ActBlock) -> [Self::Ints; 2] {
        let offset = if bits == 8 { Self::SIGNED_OFFSET } else { offset };
        // SAFETY: see above.
        unsafe { [dot_half(offset, w, a, 0), dot_half(offset, w, a, 1)] }
    }

    #[inline(always)]
    unsafe fn to_floats(i: Self::Ints) -> Self::Floats {
        // SAFETY: see above.
        unsafe { both!(_mm512_cvtepi32_ps, i) }
    }
    #[inline(always)]
    unsafe fn floats(p: *const f32) -> Self::Floats {
        // SAFETY: see above.
        unsafe { [_mm512_loadu_ps(p), _mm512_loadu_ps(p.add(16))] }
    }
    #[inline(always)]
    unsafe fn f16s(p: *const u8) -> Self::Floats {
        // SAFETY: see above.
        unsafe {
            let (low, high) = (_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(32).cast()));
            [_mm512_cvtph_ps(low), _mm512_cvtph_ps(high)]
        }
    }
    #[inline(always)]
    unsafe fn bf16s(p: *const u8) -> Self::Floats {
        // SAFETY: see above.
        unsafe {
            let (low, high) = (_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(32).cast()));
            let (low, high) = (_mm512_cvtepu16_epi32(low), _mm512_cvtepu16_epi32(high));
            [
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(low)),
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(high)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn e4m3s<const V: usize>(p: *const u8) -> [Self::Floats; V] {
        const { assert!(V == 1) };
        // SAFETY: see above. Sign bits are copied to both bits above the exponent, of which an F16 has the upper one.
        unsafe {
            let wide = _mm512_slli_epi16::<7>(_mm512_cvtepi8_epi16(_mm256_loadu_si256(p.cast())));
            let halves = _mm512_and_si512(wide, _mm512_set1_epi16(0xbf80_u16 as i16));
            let (low, high) = (_mm512_castsi512_si256(halves), _mm512_extracti64x4_epi64::<1>(halves));
            [[_mm512_cvtph_ps(low), _mm512_cvtph_ps(high)]; V]
        }
    }
    #[inline(always)]
    unsafe fn levels<const V: usize>(table: &Levels, p: *const u8, high: bool) -> [Self::Floats; V] {
        const { assert!(V == 1) };
        // SAFETY: see above. Permutations look at four bits of an index.
        unsafe {
            let table = _mm512_loadu_ps(table.floats.as_ptr());
            let rows = |p: *const u8| {
                let bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()));
                _mm512_permutexvar_ps(if high { _mm512_srli_epi32::<4>(bytes) } else { bytes }, table)
            };
            [[rows(p), rows(p.add(16))]; V]
        }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::Floats) {
        // SAFETY: see above.
        unsafe {
            _mm512_storeu_ps(p, v[0]);
            _mm512_storeu_ps(p.add(16), v[1]);
        }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::Floats {
        // SAFETY: see above.
        unsafe { [_mm512_set1_ps(x); 2] }
    }
    #[inline(always)]
    unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats {
        // SAFETY: see above.
        unsafe { both!(_mm512_mul_ps, a, b) }
    }
    #[inline(always)]
    unsafe fn mul_add(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
        // SAFETY: see above.
        unsafe { both!(_mm512_fmadd_ps, a, b, c) }
    }
}

/// The products of half `h` of the columns.
#[inline(always)]
unsafe fn dot_half(offset: i32, w: &[[__m512i; 2]; 8], a: &ActBlock, h: usize) -> [__m512i; 2] {
    // SAFETY: called by `dot_halves`.
    unsafe {
        let start = if offset == 0 {
            _mm512_setzero_si512()
        } else {
            // As `lanes::start`, but a load straight into every row.
            let shift = _mm_cvtsi32_si128((7 - offset.trailing_zeros()) as i32);
            _mm512_sra_epi32(_mm512_set1_epi32(a.neg_sums[h]), shift)
        };
        let mut sums = [start; 2];
        let mut j = 4 * h;
        while j < 4 * h + 4 {
            let quad = _mm512_set1_epi32(a.q.as_ptr().add(4 * j).cast::<i32>().read_unaligned());
            sums = [_mm512_dpbusd_epi32(sums[0], w[j][0], quad), _mm512_dpbusd_epi32(sums[1], w[j][1], quad)];
            j += 1;
        }
        sums
    }
}
