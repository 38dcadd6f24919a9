//! `Lanes` in pairs of 128-bit vectors of NEON with dot products: 8 rows. `sdot` multiplies a quad of four rows by one of
//! activations, which it takes out of a vector of four by number, and adds it up: 16 products an instruction. `smmla` of the
//! i8mm extension makes 32, of two rows and two tokens: it is used where there are two tokens.
//!
//! The standard library has these instructions only in nightly Rust, and so they are written as assembly.

use std::arch::aarch64::*;
use std::arch::asm;

use super::lanes::{Lanes, Levels, start};
use crate::cpu::activations::ActBlock;

/// Eight rows: a quarter of a group. `I8MM`: two tokens at once by `smmla`.
#[derive(Clone, Copy)]
pub(super) struct Neon<const I8MM: bool>;

/// The same operation on both vectors.
macro_rules! both {
    ($f:expr, $($args:expr),*) => {
        [$f($($args[0]),*), $f($($args[1]),*)]
    };
}

// SAFETY comments: the instruction set is available and pointers hold what a method reads or writes, by the trait's contract.
impl<const I8MM: bool> Lanes for Neon<I8MM> {
    const ROWS: usize = 8;
    const PREFETCH_DISTANCE: usize = 8 << 10; // that of most others: no ARM processor has been measured
    const SIGNED_OFFSET: i32 = 0;
    const PAIRS: bool = I8MM;
    type Bytes = [uint8x16_t; 2];
    type Ints = [int32x4_t; 2];
    type Floats = [float32x4_t; 2];

    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        // SAFETY: a prefetch never faults.
        unsafe { asm!("prfm pldl1keep, [{p}]", p = in(reg) p, options(readonly, nostack, preserves_flags)) }
    }

    #[inline(always)]
    unsafe fn load(p: *const u8) -> Self::Bytes {
        // SAFETY: see above.
        unsafe { [vld1q_u8(p), vld1q_u8(p.add(16))] }
    }
    #[inline(always)]
    unsafe fn bits(b: Self::Bytes, left: u32, right: u32, mask: u8) -> Self::Bytes {
        // SAFETY: see above. The counts are constants after inlining, and one instruction is left of each `match`.
        unsafe {
            let mask = vdupq_n_u8(mask);
            b.map(|b| vandq_u8(shift_right(shift_left(b, left), right), mask))
        }
    }
    #[inline(always)]
    unsafe fn or(a: Self::Bytes, b: Self::Bytes) -> Self::Bytes {
        // SAFETY: see above.
        unsafe { both!(vorrq_u8, a, b) }
    }
    #[inline(always)]
    unsafe fn lookup(table: &[i8; 16], b: Self::Bytes) -> Self::Bytes {
        // SAFETY: see above.
        unsafe {
            let table = vreinterpretq_u8_s8(vld1q_s8(table.as_ptr()));
            [vqtbl1q_u8(table, b[0]), vqtbl1q_u8(table, b[1])]
        }
    }
    #[inline(always)]
    unsafe fn signed(b: Self::Bytes) -> Self::Bytes {
        b
    }

    #[inline(always)]
    unsafe fn dot(_bits: u32, offset: i32, w: &[Self::Bytes; 8], a: &ActBlock) -> Self::Ints {
        // SAFETY: see above. Unsigned weights have less than 8 bits, and so are themselves as signed ones.
        unsafe {
            let q = vld1q_s8_x2(a.q.as_ptr());
            let start = vdupq_n_s32(start(offset, a, 0) + start(offset, a, 1));
            dot_half([w[4], w[5], w[6], w[7]], q.1, dot_half([w[0], w[1], w[2], w[3]], q.0, [start; 2]))
        }
    }
    #[inline(always)]
    unsafe fn dot_halves(_bits: u32, offset: i32, w: &[Self::Bytes; 8], a: &ActBlock) -> [Self::Ints; 2] {
        // SAFETY: see above.
        unsafe {
            let q = vld1q_s8_x2(a.q.as_ptr());
            let start = [vdupq_n_s32(start(offset, a, 0)), vdupq_n_s32(start(offset, a, 1))];
            [
                dot_half([w[0], w[1], w[2], w[3]], q.0, [start[0]; 2]),
                dot_half([w[4], w[5], w[6], w[7]], q.1, [start[1]; 2]),
            ]
        }
    }
    #[inline(always)]
    unsafe fn dot_pair(_bits: u32, offset: i32, w: &[Self::Bytes; 8], a: [&ActBlock; 2]) -> [Self::Ints; 2] {
        // SAFETY: see above.
        unsafe {
            let sums = a.map(|a| start(offset, a, 0) + start(offset, a, 1));
            let low = pair_half([w[0], w[1], w[2], w[3]], a, 0, pair_start(sums));
            of_tokens(pair_half([w[4], w[5], w[6], w[7]], a, 1, low))
        }
    }
    #[inline(always)]
    unsafe fn dot_halves_pair(
        _bits: u32,
        offset: i32,
        w: &[Self::Bytes; 8],
        a: [&ActBlock; 2],
    ) -> [[Self::Ints; 2]; 2] {
        // SAFETY: see above.
        unsafe {
            let sums = |h| pair_start(a.map(|a| start(offset, a, h)));
            let low = of_tokens(pair_half([w[0], w[1], w[2], w[3]], a, 0, sums(0)));
            let high = of_tokens(pair_half([w[4], w[5], w[6], w[7]], a, 1, sums(1)));
            [[low[0], high[0]], [low[1], high[1]]]
        }
    }

    #[inline(always)]
    unsafe fn to_floats(i: Self::Ints) -> Self::Floats {
        // SAFETY: see above.
        unsafe { both!(vcvtq_f32_s32, i) }
    }
    #[inline(always)]
    unsafe fn floats(p: *const f32) -> Self::Floats {
        // SAFETY: see above.
        unsafe { [vld1q_f32(p), vld1q_f32(p.add(4))] }
    }
    #[inline(always)]
    unsafe fn f16s(p: *const u8) -> Self::Floats {
        // SAFETY: see above.
        unsafe { widened(vld1q_u8(p)) }
    }
    #[inline(always)]
    unsafe fn e4m3s<const V: usize>(p: *const u8) -> [Self::Floats; V] {
        // SAFETY: see above. Sign bits are copied to both bits above the exponent, of which an F16 has the upper one.
        unsafe {
            let mut out = [Self::splat(0.0); V];
            for v in 0..V {
                let wide = vshlq_n_s16::<7>(vmovl_s8(vreinterpret_s8_u8(vld1_u8(p.add(8 * v)))));
                out[v] = widened(vreinterpretq_u8_s16(vandq_s16(wide, vdupq_n_s16(0xbf80_u16 as i16))));
            }
            out
        }
    }
    #[inline(always)]
    unsafe fn bf16s(p: *const u8) -> Self::Floats {
        // SAFETY: see above.
        unsafe {
            let h = vreinterpretq_u16_u8(vld1q_u8(p));
            let wide = [vshll_n_u16::<16>(vget_low_u16(h)), vshll_high_n_u16::<16>(h)];
            wide.map(|v| vreinterpretq_f32_u32(v))
        }
    }
    #[inline(always)]
    unsafe fn levels<const V: usize>(table: &Levels, p: *const u8, high: bool) -> [Self::Floats; V] {
        // SAFETY: see above. Bytes are looked up: four times the index and what follows.
        unsafe {
            let part = |i: usize| vld1q_u8(table.floats.as_ptr().add(4 * i).cast());
            let table = uint8x16x4_t(part(0), part(1), part(2), part(3));
            let chosen = |index: uint16x4_t| {
                let first = vmulq_n_u32(vmovl_u16(index), 0x0404_0404);
                let all = vaddq_u32(first, vdupq_n_u32(0x0302_0100));
                vreinterpretq_f32_u8(vqtbl4q_u8(table, vreinterpretq_u8_u32(all)))
            };
            let mut out = [Self::splat(0.0); V];
            for v in 0..V {
                let bytes = vld1_u8(p.add(8 * v));
                let nibbles = if high { vshr_n_u8::<4>(bytes) } else { vand_u8(bytes, vdup_n_u8(15)) };
                let wide = vmovl_u8(nibbles);
                out[v] = [chosen(vget_low_u16(wide)), chosen(vget_high_u16(wide))];
            }
            out
        }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::Floats) {
        // SAFETY: see above.
        unsafe {
            vst1q_f32(p, v[0]);
            vst1q_f32(p.add(4), v[1]);
        }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::Floats {
        // SAFETY: see above.
        unsafe { [vdupq_n_f32(x); 2] }
    }
    #[inline(always)]
    unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats {
        // SAFETY: see above.
        unsafe { both!(vmulq_f32, a, b) }
    }
    #[inline(always)]
    unsafe fn mul_add(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
        // SAFETY: see above.
        unsafe { both!(vfmaq_f32, c, a, b) }
    }
}

/// Eight F16 to f32.
#[inline(always)]
unsafe fn widened(h: uint8x16_t) -> [float32x4_t; 2] {
    let (low, high): (float32x4_t, float32x4_t);
    // SAFETY: called by `f16s` and `e4m3s`.
    unsafe {
        asm!(
            "fcvtl {low:v}.4s, {h:v}.4h",
            "fcvtl2 {high:v}.4s, {h:v}.8h",
            low = out(vreg) low, high = lateout(vreg) high, h = in(vreg) h,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    [low, high]
}

/// `b << n` of each byte, for the counts that the kinds need.
#[inline(always)]
unsafe fn shift_left(b: uint8x16_t, n: u32) -> uint8x16_t {
    // SAFETY: called by `bits`.
    unsafe {
        match n {
            0 => b,
            1 => vshlq_n_u8::<1>(b),
            2 => vshlq_n_u8::<2>(b),
            3 => vshlq_n_u8::<3>(b),
            4 => vshlq_n_u8::<4>(b),
            _ => unreachable!("no kind shifts left by {n}"),
        }
    }
}

/// `b >> n` of each byte, for the counts that the kinds need.
#[inline(always)]
unsafe fn shift_right(b: uint8x16_t, n: u32) -> uint8x16_t {
    // SAFETY: called by `bits`.
    unsafe {
        match n {
            0 => b,
            1 => vshrq_n_u8::<1>(b),
            2 => vshrq_n_u8::<2>(b),
            3 => vshrq_n_u8::<3>(b),
            4 => vshrq_n_u8::<4>(b),
            5 => vshrq_n_u8::<5>(b),
            6 => vshrq_n_u8::<6>(b),
            _ => unreachable!("no kind shifts right by {n}"),
        }
    }
}

/// `sum + w . quad` of four rows, for quad `J` of four.
#[inline(always)]
unsafe fn sdot<const J: usize>(mut sum: int32x4_t, w: uint8x16_t, q: int8x16_t) -> int32x4_t {
    // SAFETY: called by `dot_half`.
    unsafe {
        asm!(
            "sdot {sum:v}.4s, {w:v}.16b, {q:v}.4b[{j}]",
            sum = inout(vreg) sum, w = in(vreg) w, q = in(vreg) q, j = const J,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
}

/// Adds the products of half of the columns, whose activations are `q`.
#[inline(always)]
unsafe fn dot_half(w: [[uint8x16_t; 2]; 4], q: int8x16_t, sums: [int32x4_t; 2]) -> [int32x4_t; 2] {
    // SAFETY: called by `dot` and `dot_halves`.
    unsafe {
        let sums = [sdot::<0>(sums[0], w[0][0], q), sdot::<0>(sums[1], w[0][1], q)];
        let sums = [sdot::<1>(sums[0], w[1][0], q), sdot::<1>(sums[1], w[1][1], q)];
        let sums = [sdot::<2>(sums[0], w[2][0], q), sdot::<2>(sums[1], w[2][1], q)];
        [sdot::<3>(sums[0], w[3][0], q), sdot::<3>(sums[1], w[3][1], q)]
    }
}

/// `sum + w . a`, where `w` is two rows and `a` two tokens of eight columns each; `sum` is `[row][token]`.
#[inline(always)]
unsafe fn smmla(mut sum: int32x4_t, w: uint8x16_t, a: int8x16_t) -> int32x4_t {
    // SAFETY: called by `pair_half`.
    unsafe {
        asm!(
            "smmla {sum:v}.4s, {w:v}.16b, {a:v}.16b",
            sum = inout(vreg) sum, w = in(vreg) w, a = in(vreg) a,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
}

/// The sums of two tokens, `[row][token]` of each two rows, with which [`pair_half`] starts.
#[inline(always)]
unsafe fn pair_start(sums: [i32; 2]) -> [int32x4_t; 4] {
    // SAFETY: called by `dot_pair` and `dot_halves_pair`.
    unsafe { [vzip1q_s32(vdupq_n_s32(sums[0]), vdupq_n_s32(sums[1])); 4] }
}

/// Adds the products of half `h` of the columns.
#[inline(always)]
unsafe fn pair_half(
    w: [[uint8x16_t; 2]; 4],
    a: [&ActBlock; 2],
    h: usize,
    mut sums: [int32x4_t; 4],
) -> [int32x4_t; 4] {
    // SAFETY: called by `dot_pair` and `dot_halves_pair`.
    unsafe {
        let [a, b] = a.map(|a| vreinterpretq_s64_s8(vld1q_s8(a.q.as_ptr().add(16 * h))));
        let columns = [vzip1q_s64(a, b), vzip2q_s64(a, b)];
        for j in 0..2 {
            let a = vreinterpretq_s8_s64(columns[j]);
            for v in 0..2 {
                // Quads side by side: eight columns of a row. Done once for the weights of a sub-block, which are multiplied with many
                // tokens.
                let quads = [vreinterpretq_u32_u8(w[2 * j][v]), vreinterpretq_u32_u8(w[2 * j + 1][v])];
                let rows = [vzip1q_u32(quads[0], quads[1]), vzip2q_u32(quads[0], quads[1])];
                sums[2 * v] = smmla(sums[2 * v], vreinterpretq_u8_u32(rows[0]), a);
                sums[2 * v + 1] = smmla(sums[2 * v + 1], vreinterpretq_u8_u32(rows[1]), a);
            }
        }
        sums
    }
}

/// The sums of each token's rows.
#[inline(always)]
unsafe fn of_tokens(s: [int32x4_t; 4]) -> [[int32x4_t; 2]; 2] {
    // SAFETY: called by `dot_pair` and `dot_halves_pair`.
    unsafe {
        [[vuzp1q_s32(s[0], s[1]), vuzp1q_s32(s[2], s[3])], [vuzp2q_s32(s[0], s[1]), vuzp2q_s32(s[2], s[3])]]
    }
}
