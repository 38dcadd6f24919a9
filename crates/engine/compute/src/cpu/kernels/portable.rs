//! `Lanes` as loops over arrays, which the compiler vectorises for whatever it compiles for.

#![allow(clippy::needless_range_loop)] // several arrays are walked by one index

use super::lanes::{Lanes, Levels, start};
use crate::cpu::activations::ActBlock;

/// Four rows: vectors of 16 bytes, which every machine has.
#[derive(Clone, Copy)]
pub(super) struct Portable;

const ROWS: usize = 4;

// SAFETY comments: pointers hold what a method reads or writes, by the trait's contract.
impl Lanes for Portable {
    const ROWS: usize = ROWS;
    const PREFETCH_DISTANCE: usize = 8 << 10;
    const SIGNED_OFFSET: i32 = 0;
    type Bytes = [u8; 4 * ROWS];
    type Ints = [i32; ROWS];
    type Floats = [f32; ROWS];

    #[inline(always)]
    unsafe fn prefetch(_p: *const u8) {}

    #[inline(always)]
    unsafe fn load(p: *const u8) -> Self::Bytes {
        // SAFETY: see above.
        unsafe { p.cast::<Self::Bytes>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn bits(b: Self::Bytes, left: u32, right: u32, mask: u8) -> Self::Bytes {
        b.map(|b| b << left >> right & mask)
    }
    #[inline(always)]
    unsafe fn or(a: Self::Bytes, b: Self::Bytes) -> Self::Bytes {
        std::array::from_fn(|i| a[i] | b[i])
    }
    #[inline(always)]
    unsafe fn lookup(table: &[i8; 16], b: Self::Bytes) -> Self::Bytes {
        b.map(|b| table[usize::from(b & 15)] as u8)
    }
    #[inline(always)]
    unsafe fn signed(b: Self::Bytes) -> Self::Bytes {
        b
    }

    #[inline(always)]
    unsafe fn dot(bits: u32, offset: i32, w: &[Self::Bytes; 8], a: &ActBlock) -> Self::Ints {
        let (w, q) = (w.as_chunks::<4>().0, a.q.as_chunks::<16>().0);
        let sums = [start(offset, a, 0) + start(offset, a, 1); ROWS];
        dot_half(bits, dot_half(bits, sums, &w[0], &q[0]), &w[1], &q[1])
    }
    #[inline(always)]
    unsafe fn dot_halves(bits: u32, offset: i32, w: &[Self::Bytes; 8], a: &ActBlock) -> [Self::Ints; 2] {
        let (w, q) = (w.as_chunks::<4>().0, a.q.as_chunks::<16>().0);
        [
            dot_half(bits, [start(offset, a, 0); ROWS], &w[0], &q[0]),
            dot_half(bits, [start(offset, a, 1); ROWS], &w[1], &q[1]),
        ]
    }

    #[inline(always)]
    unsafe fn to_floats(i: Self::Ints) -> Self::Floats {
        i.map(|i| i as f32)
    }
    #[inline(always)]
    unsafe fn floats(p: *const f32) -> Self::Floats {
        // SAFETY: see above.
        unsafe { p.cast::<Self::Floats>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn f16s(p: *const u8) -> Self::Floats {
        // SAFETY: see above.
        let h = unsafe { p.cast::<[[u8; 2]; ROWS]>().read_unaligned() };
        h.map(|b| f16_to_f32(u16::from_le_bytes(b)))
    }
    #[inline(always)]
    unsafe fn bf16s(p: *const u8) -> Self::Floats {
        // SAFETY: see above.
        let h = unsafe { p.cast::<[[u8; 2]; ROWS]>().read_unaligned() };
        h.map(|b| f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16))
    }
    #[inline(always)]
    unsafe fn e4m3s<const V: usize>(p: *const u8) -> [Self::Floats; V] {
        // SAFETY: see above.
        let q = unsafe { p.cast::<[[u8; ROWS]; V]>().read_unaligned() };
        q.map(|q| q.map(|q| f16_to_f32(u16::from(q & 0x80) << 8 | u16::from(q & 0x7f) << 7)))
    }
    #[inline(always)]
    unsafe fn levels<const V: usize>(table: &Levels, p: *const u8, high: bool) -> [Self::Floats; V] {
        // SAFETY: see above.
        let q = unsafe { p.cast::<[[u8; ROWS]; V]>().read_unaligned() };
        q.map(|q| q.map(|q| table.floats[usize::from(if high { q >> 4 } else { q & 15 })]))
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::Floats) {
        // SAFETY: see above.
        unsafe { p.cast::<Self::Floats>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::Floats {
        [x; ROWS]
    }
    #[inline(always)]
    unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats {
        std::array::from_fn(|i| a[i] * b[i])
    }
    #[inline(always)]
    unsafe fn mul_add(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
        // Not `f32::mul_add`: without the instruction it is a call for each number.
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }
}

/// Adds the products of four quads.
#[inline(always)]
fn dot_half(bits: u32, mut sums: [i32; ROWS], w: &[[u8; 4 * ROWS]; 4], q: &[i8; 16]) -> [i32; ROWS] {
    for (w, q) in w.iter().zip(q.as_chunks::<4>().0) {
        for r in 0..ROWS {
            for c in 0..4 {
                let w = w[4 * r + c];
                let w = if bits == 8 { i16::from(w as i8) } else { i16::from(w) };
                sums[r] += i32::from(w * i16::from(q[c]));
            }
        }
    }
    sums
}

/// Branch-free, so that it vectorises; `half` asks for the machine's features at each call.
#[inline(always)]
fn f16_to_f32(h: u16) -> f32 {
    let magnitude = u32::from(h & 0x7fff) << 13;
    // Shifting the exponent's bias by a multiplication makes subnormals right; infinities and NaN keep all ones.
    let finite = f32::from_bits(magnitude) * f32::from_bits((254 - 15) << 23);
    let bits = if h & 0x7c00 == 0x7c00 { magnitude | 0x7f80_0000 } else { finite.to_bits() };
    f32::from_bits(bits | u32::from(h & 0x8000) << 16)
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_f16_converts_as_half_does() {
        for h in 0..=u16::MAX {
            let (ours, theirs) = (super::f16_to_f32(h), half::f16::from_bits(h).to_f32_const());
            assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(), "{h:#x}");
        }
    }
}
