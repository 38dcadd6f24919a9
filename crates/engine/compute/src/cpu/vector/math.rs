//! exp, sigmoid, silu and softplus of whole vectors.

use super::simd::Simd;

/// `e^x` within 2 ulp over the whole range of f32: 0 below -104, infinite above 88.73, NaN for NaN.
///
/// `x = n ln 2 + r` with `|r| <= ln 2 / 2`, and `e^r = 1 + r + r^2 q(r)`, where `q` is the polynomial through the
/// Chebyshev nodes of that interval (relative error 1e-8).
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: S::V) -> S::V {
    // ln 2 in two parts: the first has nine bits, so that n times it is exact without a fused multiply-add too.
    const LN2_HIGH: f32 = 355.0 / 512.0;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    const Q: [f32; 5] = [0.5, 0.166_665_76, 0.041_666_552, 0.008_363_233, 0.001_392_625];
    let x = s.min(s.splat(89.0), s.max(s.splat(-105.0), x));
    let n = s.round(s.mul(x, s.splat(std::f32::consts::LOG2_E)));
    let r = s.fma(n, s.splat(-LN2_HIGH), x);
    let r = s.fma(n, s.splat(-LN2_LOW), r);
    let mut q = s.splat(Q[4]);
    q = s.fma(q, r, s.splat(Q[3]));
    q = s.fma(q, r, s.splat(Q[2]));
    q = s.fma(q, r, s.splat(Q[1]));
    q = s.fma(q, r, s.splat(Q[0]));
    let p = s.add(s.fma(s.mul(r, r), q, r), s.splat(1.0));
    s.scale2(p, n)
}

/// `e^x`, with the bits of a lane of [`exp`].
#[inline(always)]
pub(crate) fn exp1<S: Simd>(s: S, x: f32) -> f32 {
    let mut lanes = [0.0; super::simd::MAX_LANES];
    s.write(&mut lanes, exp(s, s.splat(x)));
    lanes[0]
}

/// `1 / (1 + e^-x)`
#[inline(always)]
pub(crate) fn sigmoid<S: Simd>(s: S, x: S::V) -> S::V {
    let one = s.splat(1.0);
    s.div(one, s.add(one, exp(s, s.sub(s.splat(0.0), x))))
}

/// `x * sigmoid(x)`
#[inline(always)]
pub(crate) fn silu<S: Simd>(s: S, x: S::V) -> S::V {
    s.div(x, s.add(s.splat(1.0), exp(s, s.sub(s.splat(0.0), x))))
}

/// `tanh(x)` as `1 - 2 / (1 + e^2x)`: absolute error of about an ulp of 1.
#[inline(always)]
pub(crate) fn tanh<S: Simd>(s: S, x: S::V) -> S::V {
    let one = s.splat(1.0);
    s.sub(one, s.div(s.splat(2.0), s.add(one, exp(s, s.add(x, x)))))
}

/// `x (1 + tanh(u)) / 2` with `u = sqrt(2 / pi) (x + 0.044715 x^3)`, which is `x sigmoid(2 u)`.
#[inline(always)]
pub(crate) fn gelu<S: Simd>(s: S, x: S::V) -> S::V {
    let inner = s.fma(s.mul(s.mul(x, x), x), s.splat(0.044_715), x);
    s.mul(x, sigmoid(s, s.mul(s.splat(2.0 * 0.797_884_6), inner)))
}

/// `x (1 + erf(x / sqrt(2))) / 2`, with Abramowitz and Stegun's formula 7.1.26 (absolute error 1.5e-7).
#[inline(always)]
pub(crate) fn gelu_erf<S: Simd>(s: S, x: S::V) -> S::V {
    const A: [f32; 5] = [0.254_829_6, -0.284_496_74, 1.421_413_7, -1.453_152_1, 1.061_405_4];
    let one = s.splat(1.0);
    let y = s.mul(x, s.splat(std::f32::consts::FRAC_1_SQRT_2));
    let size = s.max(y, s.sub(s.splat(0.0), y));
    let t = s.div(one, s.fma(s.splat(0.327_591_1), size, one));
    let mut p = s.splat(A[4]);
    for a in A[..4].iter().rev() {
        p = s.fma(p, t, s.splat(*a));
    }
    // The complement of erf(|y|); half of it is the share of a negative x.
    let rest = s.mul(s.splat(0.5), s.mul(s.mul(p, t), exp(s, s.sub(s.splat(0.0), s.mul(size, size)))));
    let positive = s.max(x, s.splat(0.0));
    // x > 0: x (1 - rest); x < 0: x rest, that is -|x| rest.
    let magnitude = s.max(x, s.sub(s.splat(0.0), x));
    s.sub(positive, s.mul(magnitude, rest))
}

/// `max(x, 0)^2`
#[inline(always)]
pub(crate) fn relu2<S: Simd>(s: S, x: S::V) -> S::V {
    let x = s.max(x, s.splat(0.0));
    s.mul(x, x)
}

/// xIELU, see [`crate::backend::Act::Xielu`]: the part of the other sign is exactly 0.
#[inline(always)]
pub(crate) fn xielu<S: Simd>(s: S, x: S::V, positive: S::V, negative: S::V) -> S::V {
    let zero = s.splat(0.0);
    let (above, below) = (s.max(x, zero), s.min(x, zero));
    let curve = s.sub(s.sub(exp(s, below), s.splat(1.0)), below);
    let half = s.mul(s.splat(0.5), x);
    s.fma(positive, s.mul(above, above), s.fma(negative, curve, half))
}

/// `ln(1 + e^x)` as `max(x, 0) + ln(1 + u)` with `u = e^-|x|`, and `ln(1 + u) = 2 atanh(t)` with `t = u / (2 + u)`,
/// `t^2 <= 1/9`; the polynomial of `2 atanh(t) / t` in `t^2` has a relative error of 8e-9.
#[inline(always)]
pub(crate) fn softplus<S: Simd>(s: S, x: S::V) -> S::V {
    const A: [f32; 5] = [2.0, 0.666_663_2, 0.400_246_74, 0.279_638_1, 0.281_647_3];
    let minus = s.sub(s.splat(0.0), x);
    let u = exp(s, s.min(x, minus));
    let t = s.div(u, s.add(s.splat(2.0), u));
    let t2 = s.mul(t, t);
    let mut a = s.splat(A[4]);
    a = s.fma(a, t2, s.splat(A[3]));
    a = s.fma(a, t2, s.splat(A[2]));
    a = s.fma(a, t2, s.splat(A[1]));
    a = s.fma(a, t2, s.splat(A[0]));
    s.fma(a, t, s.max(s.splat(0.0), x))
}
