//! Elementwise steps and reductions of one row. Called through `VectorKernels` by the verbs of the CPU backend.

use octet_weights::GgmlType;

use super::math::{exp, gelu, gelu_erf, relu2, sigmoid, silu, softplus, tanh, xielu};
use super::simd::Simd;
use crate::backend::Act;

/// `a[i] = f(a[i], b[i])`, written `zip_in_place!(s, a, b, |x, y| f)`. A macro, because a closure is compiled for the plain
/// instruction set and would not be inlined.
macro_rules! zip_in_place {
    ($s:ident, $a:expr, $b:expr, |$x:pat_param, $y:pat_param| $f:expr) => {{
        let (a, b): (&mut [f32], &[f32]) = ($a, $b);
        assert_eq!(a.len(), b.len());
        let mut a = a.chunks_exact_mut(S::LANES);
        let mut b = b.chunks_exact(S::LANES);
        for (a, b) in a.by_ref().zip(b.by_ref()) {
            let ($x, $y) = ($s.read(a), $s.read(b));
            $s.write(a, $f);
        }
        let (a, b) = (a.into_remainder(), b.remainder());
        if !a.is_empty() {
            let ($x, $y) = ($s.read_part(a), $s.read_part(b));
            $s.write_part(a, $f);
        }
    }};
}

/// `gate[i] = silu(gate[i]) * up[i]`
#[inline(always)]
pub(super) fn silu_mul<S: Simd>(s: S, gate: &mut [f32], up: &[f32]) {
    zip_in_place!(s, gate, up, |g, u| s.mul(silu(s, g), u));
}

/// `gate[i] = act(gate[i]) * up[i]`, with the activation's own bounds.
#[inline(always)]
pub(super) fn act_mul<S: Simd>(s: S, act: Act, gate: &mut [f32], up: &[f32]) {
    match act {
        Act::Silu => silu_mul(s, gate, up),
        Act::Gelu => zip_in_place!(s, gate, up, |g, u| s.mul(gelu(s, g), u)),
        Act::GeluErf => zip_in_place!(s, gate, up, |g, u| s.mul(gelu_erf(s, g), u)),
        Act::Relu2 => zip_in_place!(s, gate, up, |g, u| s.mul(relu2(s, g), u)),
        Act::ClampedSwiglu { alpha, limit } => {
            let (alpha, most, least) = (s.splat(alpha), s.splat(limit), s.splat(-limit));
            zip_in_place!(s, gate, up, |g, u| {
                let g = s.min(g, most);
                let u = s.max(s.min(u, most), least);
                s.mul(s.mul(g, sigmoid(s, s.mul(alpha, g))), s.add(u, s.splat(1.0)))
            });
        }
        Act::CappedSilu { limit } => {
            let (most, least) = (s.splat(limit), s.splat(-limit));
            zip_in_place!(s, gate, up, |g, u| {
                s.mul(s.min(silu(s, g), most), s.max(s.min(u, most), least))
            });
        }
        Act::Xielu { positive, negative } => {
            let (positive, negative) = (s.splat(positive), s.splat(negative));
            zip_in_place!(s, gate, up, |g, u| s.mul(xielu(s, g, positive, negative), u));
        }
    }
}

/// `x[i] = act(x[i])`
#[inline(always)]
pub(super) fn act<S: Simd>(s: S, act: Act, x: &mut [f32]) {
    macro_rules! each {
        (|$x:ident| $f:expr) => {{
            let mut chunks = x.chunks_exact_mut(S::LANES);
            for x in chunks.by_ref() {
                let $x = s.read(x);
                s.write(x, $f);
            }
            let rest = chunks.into_remainder();
            if !rest.is_empty() {
                let $x = s.read_part(rest);
                s.write_part(rest, $f);
            }
        }};
    }
    match act {
        Act::Silu => each!(|x| silu(s, x)),
        Act::Gelu => each!(|x| gelu(s, x)),
        Act::GeluErf => each!(|x| gelu_erf(s, x)),
        Act::Relu2 => each!(|x| relu2(s, x)),
        Act::ClampedSwiglu { alpha, limit } => each!(|x| {
            let x = s.min(x, s.splat(limit));
            s.mul(x, sigmoid(s, s.mul(s.splat(alpha), x)))
        }),
        Act::CappedSilu { limit } => each!(|x| s.min(silu(s, x), s.splat(limit))),
        Act::Xielu { positive, negative } => {
            each!(|x| xielu(s, x, s.splat(positive), s.splat(negative)));
        }
    }
}

/// `x[i] *= sigmoid(gate[i])`
#[inline(always)]
pub(super) fn sigmoid_mul<S: Simd>(s: S, x: &mut [f32], gate: &[f32]) {
    zip_in_place!(s, x, gate, |x, g| s.mul(x, sigmoid(s, g)));
}

/// `x[i] *= ln(1 + e^gate[i])`
#[inline(always)]
pub(super) fn softplus_mul<S: Simd>(s: S, x: &mut [f32], gate: &[f32]) {
    zip_in_place!(s, x, gate, |x, g| s.mul(x, softplus(s, g)));
}

/// `x[i] = cap * tanh(scale * x[i] / cap)`, or without a cap `x[i] *= scale`.
#[inline(always)]
pub(super) fn scale_and_cap<S: Simd>(s: S, x: &mut [f32], scale: f32, cap: Option<f32>) {
    let (factor, cap) = match cap {
        None => (s.splat(scale), None),
        Some(c) => (s.splat(scale / c), Some(s.splat(c))),
    };
    let mut chunks = x.chunks_exact_mut(S::LANES);
    for x in chunks.by_ref() {
        let v = s.mul(s.read(x), factor);
        s.write(x, if let Some(c) = cap { s.mul(c, tanh(s, v)) } else { v });
    }
    let rest = chunks.into_remainder();
    if !rest.is_empty() {
        let v = s.mul(s.read_part(rest), factor);
        s.write_part(rest, if let Some(c) = cap { s.mul(c, tanh(s, v)) } else { v });
    }
}

/// `out[i] = (x[i] - mean(x)) * w[i] / sqrt(variance(x) + eps) + bias[i]`: LayerNorm.
#[inline(always)]
pub(super) fn layer_norm<S: Simd>(
    s: S,
    x: &[f32],
    w: &[f32],
    bias: Option<&[f32]>,
    eps: f32,
    out: &mut [f32],
) {
    let mean = x.iter().sum::<f32>() / x.len() as f32;
    out.iter_mut().zip(x).for_each(|(o, x)| *o = x - mean);
    rms_norm_in_place(s, out, w, eps);
    if let Some(bias) = bias {
        add(s, out, bias);
    }
}

/// `h[i] += x[i]`
#[inline(always)]
pub(super) fn add<S: Simd>(s: S, h: &mut [f32], x: &[f32]) {
    zip_in_place!(s, h, x, |h, x| s.add(h, x));
}

/// `h[i] += scale * x[i]`
#[inline(always)]
pub(super) fn add_scaled<S: Simd>(s: S, h: &mut [f32], x: &[f32], scale: f32) {
    let scale = s.splat(scale);
    zip_in_place!(s, h, x, |h, x| s.fma(scale, x, h));
}

/// `beta[i] = sigmoid(beta[i])`: strength of a token's update in a Gated DeltaNet head.
#[inline(always)]
pub(super) fn gdn_beta<S: Simd>(s: S, beta: &mut [f32], b: &[f32]) {
    zip_in_place!(s, beta, b, |_, b| sigmoid(s, b));
}

/// `decay[i] = exp(a[i] * softplus(alpha[i] + dt_bias[i]))`: decay of the state of a Gated DeltaNet head.
#[inline(always)]
pub(super) fn gdn_decay<S: Simd>(s: S, decay: &mut [f32], alpha: &[f32], dt_bias: &[f32], a: &[f32]) {
    decay.copy_from_slice(alpha);
    zip_in_place!(s, decay, dt_bias, |alpha, bias| softplus(s, s.add(alpha, bias)));
    zip_in_place!(s, decay, a, |g, a| exp(s, s.mul(a, g)));
}

/// `sum_i a[i] * b[i]`, in four sums of whole vectors that are added at the end.
#[inline(always)]
pub(super) fn dot<S: Simd>(s: S, a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let mut sums = [s.splat(0.0); 4];
    let (mut a4, mut b4) = (a.chunks_exact(4 * S::LANES), b.chunks_exact(4 * S::LANES));
    for (a, b) in a4.by_ref().zip(b4.by_ref()) {
        for (i, sum) in sums.iter_mut().enumerate() {
            *sum = s.fma(s.read(&a[i * S::LANES..]), s.read(&b[i * S::LANES..]), *sum);
        }
    }
    let (mut a1, mut b1) = (a4.remainder().chunks_exact(S::LANES), b4.remainder().chunks_exact(S::LANES));
    for ((a, b), sum) in a1.by_ref().zip(b1.by_ref()).zip(&mut sums) {
        *sum = s.fma(s.read(a), s.read(b), *sum);
    }
    let (a, b) = (a1.remainder(), b1.remainder());
    sums[3] = s.fma(s.read_part(a), s.read_part(b), sums[3]);
    s.sum(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3])))
}

/// `sigmoid(a . b)`: the weight of the shared expert.
#[inline(always)]
pub(super) fn sigmoid_dot<S: Simd>(s: S, a: &[f32], b: &[f32]) -> f32 {
    let x = dot(s, a, b);
    let mut lanes = [0.0; super::simd::MAX_LANES];
    s.write(&mut lanes, sigmoid(s, s.splat(x)));
    lanes[0]
}

/// `out[i] = x[i] * w[i] / sqrt(mean(x^2) + eps)`
#[inline(always)]
pub(super) fn rms_norm<S: Simd>(s: S, x: &[f32], w: &[f32], eps: f32, out: &mut [f32]) {
    out.copy_from_slice(x);
    rms_norm_in_place(s, out, w, eps);
}

/// `x[i] *= w[i] / sqrt(mean(x^2) + eps)`
#[inline(always)]
pub(super) fn rms_norm_in_place<S: Simd>(s: S, x: &mut [f32], w: &[f32], eps: f32) {
    let scale = s.splat(1.0 / (dot(s, x, x) / x.len() as f32 + eps).sqrt());
    zip_in_place!(s, x, w, |x, w| s.mul(s.mul(x, scale), w));
}

/// `out[i] = rms_norm(x)[i] * silu(z[i])`: the norm after a Gated DeltaNet head.
#[inline(always)]
pub(super) fn gated_rms_norm<S: Simd>(s: S, x: &[f32], w: &[f32], eps: f32, z: &[f32], out: &mut [f32]) {
    rms_norm(s, x, w, eps, out);
    zip_in_place!(s, out, z, |y, z| s.mul(y, silu(s, z)));
}

/// `x[i] *= scale / sqrt(sum(x^2) + 1e-6)`: queries and keys of Gated DeltaNet.
#[inline(always)]
pub(super) fn l2_norm<S: Simd>(s: S, x: &mut [f32], scale: f32) {
    let scale = s.splat(scale / (dot(s, x, x) + 1e-6).sqrt());
    let mut chunks = x.chunks_exact_mut(S::LANES);
    for x in chunks.by_ref() {
        let v = s.mul(s.read(x), scale);
        s.write(x, v);
    }
    let x = chunks.into_remainder();
    let v = s.mul(s.read_part(x), scale);
    s.write_part(x, v);
}

/// `out[i] = x[i]` in half precision; too large values become the largest finite one, since a stale or later
/// value in a page must never be infinite.
#[inline(always)]
pub(super) fn to_f16<S: Simd>(s: S, x: &[f32], out: &mut [u16]) {
    assert_eq!(x.len(), out.len());
    let max = s.splat(half::f16::MAX.to_f32_const());
    let min = s.splat(half::f16::MIN.to_f32_const());
    let (mut x, mut out) = (x.chunks_exact(S::LANES), out.chunks_exact_mut(S::LANES));
    for (x, out) in x.by_ref().zip(out.by_ref()) {
        // SAFETY: the chunk has room for LANES values.
        unsafe { s.store_f16(out.as_mut_ptr(), s.min(max, s.max(min, s.read(x)))) };
    }
    let (x, out) = (x.remainder(), out.into_remainder());
    let mut tail = [0; super::simd::MAX_LANES];
    // SAFETY: the array has room for the lanes of every instruction set.
    unsafe { s.store_f16(tail.as_mut_ptr(), s.min(max, s.max(min, s.read_part(x)))) };
    out.copy_from_slice(&tail[..x.len()]);
}

/// Values and bytes of a block of ggml's Q8_0: an f16 scale `d`, then 32 signed bytes `q`; the values are `d * q`.
pub(super) const Q8_0_LEN: usize = GgmlType::Q8_0.block_len();
pub(super) const Q8_0_BYTES: usize = GgmlType::Q8_0.block_bytes();

/// `x`, whole blocks, in Q8_0: the bytes of ggml's reference quantiser on every instruction set, except that a scale too
/// large for f16 becomes the largest finite one.
#[inline(always)]
pub(super) fn to_q8_0<S: Simd>(s: S, x: &[f32], out: &mut [u8]) {
    let (x, odd) = x.as_chunks::<Q8_0_LEN>();
    let (out, odd_bytes) = out.as_chunks_mut::<Q8_0_BYTES>();
    assert!(odd.is_empty() && odd_bytes.is_empty() && x.len() == out.len(), "whole blocks");
    for (x, out) in x.iter().zip(out) {
        let mut most = s.splat(0.0);
        for x in x.chunks_exact(S::LANES) {
            let x = s.read(x);
            most = s.max(s.max(x, s.sub(s.splat(0.0), x)), most);
        }
        let d = s.max_lane(most) / 127.0;
        let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
        let (scale, quants) = out.split_at_mut(2);
        let d = half::f16::from_f32(d.min(half::f16::MAX.to_f32_const()));
        scale.copy_from_slice(&d.to_le_bytes());
        for (q, x) in quants.iter_mut().zip(x) {
            *q = (x * inverse).round() as i8 as u8;
        }
    }
}
