//! `Simd` in plain code, eight lanes, which the compiler turns into whatever vectors the target has.

use half::f16;

use super::Simd;

/// Plain code.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

const N: usize = 8;

#[inline(always)]
fn zip(a: [f32; N], b: [f32; N], f: impl Fn(f32, f32) -> f32) -> [f32; N] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

impl Simd for Portable {
    const LANES: usize = N;
    type V = [f32; N];

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        [x; N]
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> Self::V {
        // SAFETY: the caller's; an unaligned read of as many values.
        unsafe { p.cast::<Self::V>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn load_part(self, p: *const f32, n: usize) -> Self::V {
        let mut v = [0.0; N];
        // SAFETY: the caller's, and n < N.
        unsafe { std::ptr::copy_nonoverlapping(p, v.as_mut_ptr(), n) };
        v
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: Self::V) {
        // SAFETY: the caller's; an unaligned write of as many values.
        unsafe { p.cast::<Self::V>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, n: usize, v: Self::V) {
        // SAFETY: the caller's, and n < N.
        unsafe { std::ptr::copy_nonoverlapping(v.as_ptr(), p, n) };
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> Self::V {
        // SAFETY: the caller's; an unaligned read of as many values.
        let h = unsafe { p.cast::<[u16; N]>().read_unaligned() };
        h.map(|h| f16::from_bits(h).to_f32())
    }
    #[inline(always)]
    unsafe fn load_i8(self, p: *const i8) -> Self::V {
        // SAFETY: the caller's; bytes have no alignment.
        unsafe { p.cast::<[i8; N]>().read() }.map(f32::from)
    }
    #[inline(always)]
    fn widen_f16(self, bits: u16) -> f32 {
        f16::from_bits(bits).to_f32()
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16, v: Self::V) {
        // SAFETY: the caller's; an unaligned write of as many values.
        unsafe { p.cast::<[u16; N]>().write_unaligned(v.map(|x| f16::from_f32(x).to_bits())) }
    }

    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // `mul_add` would call into libm on a target without fused multiply-add.
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn round(self, a: Self::V) -> Self::V {
        // Adding 1.5 * 2^23 leaves no bits for a fraction.
        const MAGIC: f32 = 12_582_912.0;
        a.map(|a| (a + MAGIC) - MAGIC)
    }
    #[inline(always)]
    fn scale2(self, a: Self::V, n: Self::V) -> Self::V {
        // In two steps, each of them a normal power of two.
        let power = |n: i32| f32::from_bits(((n + 127) << 23) as u32);
        zip(a, n, |a, n| {
            let n = n as i32;
            let first = n >> 1;
            a * power(first) * power(n - first)
        })
    }

    #[inline(always)]
    fn sum(self, v: Self::V) -> f32 {
        ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]))
    }
    #[inline(always)]
    fn sum4(self, v: [Self::V; 4]) -> [f32; 4] {
        v.map(|v| self.sum(v))
    }
    #[inline(always)]
    fn max_lane(self, v: Self::V) -> f32 {
        v.into_iter().fold(f32::NEG_INFINITY, |m, x| if m > x { m } else { x })
    }
}
