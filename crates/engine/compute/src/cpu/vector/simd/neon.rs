//! `Simd` in pairs of 128-bit vectors of NEON, eight lanes: with 32 registers a kernel has as many vectors of eight as AVX2 has.
//!
//! Every 64-bit ARM processor that this is compiled for has NEON, with fused multiply-add and half-precision conversion.

use std::arch::aarch64::*;
use std::arch::asm;

use super::Simd;

/// NEON.
#[derive(Clone, Copy)]
pub(crate) struct Neon;

const N: usize = 8;

/// Both halves.
#[inline(always)]
fn zip(
    a: [float32x4_t; 2],
    b: [float32x4_t; 2],
    f: impl Fn(float32x4_t, float32x4_t) -> float32x4_t,
) -> [float32x4_t; 2] {
    [f(a[0], b[0]), f(a[1], b[1])]
}

// SAFETY comments: the target has NEON; what else is needed is what each function asks for.
impl Simd for Neon {
    const LANES: usize = N;
    type V = [float32x4_t; 2];

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        // SAFETY: see above.
        unsafe { [vdupq_n_f32(x); 2] }
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> Self::V {
        // SAFETY: the caller's.
        unsafe { [vld1q_f32(p), vld1q_f32(p.add(4))] }
    }
    #[inline(always)]
    unsafe fn load_part(self, p: *const f32, n: usize) -> Self::V {
        let mut v = [0.0; N];
        // SAFETY: the caller's, and n < N.
        unsafe {
            std::ptr::copy_nonoverlapping(p, v.as_mut_ptr(), n);
            self.load(v.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: Self::V) {
        // SAFETY: the caller's.
        unsafe {
            vst1q_f32(p, v[0]);
            vst1q_f32(p.add(4), v[1]);
        }
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, n: usize, v: Self::V) {
        let mut all = [0.0; N];
        // SAFETY: the caller's, and n < N.
        unsafe {
            self.store(all.as_mut_ptr(), v);
            std::ptr::copy_nonoverlapping(all.as_ptr(), p, n);
        }
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> Self::V {
        // SAFETY: the caller's. Assembly, because the intrinsics are younger than the oldest Rust that is supported.
        unsafe {
            let h = vld1q_u16(p);
            let (low, high): (float32x4_t, float32x4_t);
            asm!(
                "fcvtl {low:v}.4s, {h:v}.4h",
                "fcvtl2 {high:v}.4s, {h:v}.8h",
                low = out(vreg) low, high = lateout(vreg) high, h = in(vreg) h,
                options(pure, nomem, nostack, preserves_flags)
            );
            [low, high]
        }
    }
    #[inline(always)]
    unsafe fn load_i8(self, p: *const i8) -> Self::V {
        // SAFETY: the caller's.
        unsafe {
            let wide = vmovl_s8(vld1_s8(p));
            [vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide))), vcvtq_f32_s32(vmovl_high_s16(wide))]
        }
    }
    #[inline(always)]
    fn widen_f16(self, bits: u16) -> f32 {
        let x: f32;
        // SAFETY: see above.
        unsafe {
            asm!(
                "fmov {x:s}, {bits:w}",
                "fcvt {x:s}, {x:h}",
                x = out(vreg) x, bits = in(reg) u32::from(bits),
                options(pure, nomem, nostack, preserves_flags)
            );
        }
        x
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16, v: Self::V) {
        // SAFETY: the caller's.
        unsafe {
            let h: uint16x8_t;
            asm!(
                "fcvtn {h:v}.4h, {low:v}.4s",
                "fcvtn2 {h:v}.8h, {high:v}.4s",
                h = out(vreg) h, low = in(vreg) v[0], high = in(vreg) v[1],
                options(pure, nomem, nostack, preserves_flags)
            );
            vst1q_u16(p, h);
        }
    }

    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: see above.
        zip(a, b, |a, b| unsafe { vaddq_f32(a, b) })
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: see above.
        zip(a, b, |a, b| unsafe { vsubq_f32(a, b) })
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: see above.
        zip(a, b, |a, b| unsafe { vmulq_f32(a, b) })
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: see above.
        zip(a, b, |a, b| unsafe { vdivq_f32(a, b) })
    }
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // SAFETY: see above.
        unsafe { [vfmaq_f32(c[0], a[0], b[0]), vfmaq_f32(c[1], a[1], b[1])] }
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: see above. `fmax` has other rules for NaN.
        zip(a, b, |a, b| unsafe { vbslq_f32(vcgtq_f32(a, b), a, b) })
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: see above.
        zip(a, b, |a, b| unsafe { vbslq_f32(vcltq_f32(a, b), a, b) })
    }
    #[inline(always)]
    fn round(self, a: Self::V) -> Self::V {
        // SAFETY: see above.
        a.map(|a| unsafe { vrndnq_f32(a) })
    }
    #[inline(always)]
    fn scale2(self, a: Self::V, n: Self::V) -> Self::V {
        // In two steps, each of them a normal power of two.
        // SAFETY: see above.
        zip(a, n, |a, n| unsafe {
            let n = vcvtq_s32_f32(n);
            let first = vshrq_n_s32::<1>(n);
            let power = |n| vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(n, vdupq_n_s32(127))));
            vmulq_f32(vmulq_f32(a, power(first)), power(vsubq_s32(n, first)))
        })
    }

    #[inline(always)]
    fn sum(self, v: Self::V) -> f32 {
        self.sum4([v; 4])[0]
    }
    #[inline(always)]
    fn sum4(self, v: [Self::V; 4]) -> [f32; 4] {
        // SAFETY: see above; the array has room for four values.
        unsafe {
            let [a, b, c, d] = v.map(|v| vaddq_f32(v[0], v[1]));
            let mut out = [0.0; 4];
            vst1q_f32(out.as_mut_ptr(), vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d)));
            out
        }
    }
    #[inline(always)]
    fn max_lane(self, v: Self::V) -> f32 {
        // SAFETY: see above.
        unsafe { vmaxvq_f32(vmaxq_f32(v[0], v[1])) }
    }
}
