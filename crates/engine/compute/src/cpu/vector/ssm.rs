//! The recurrence of a Mamba-2 head.

use super::rows::dot;
use super::simd::Simd;

/// The inputs of a head for one token.
pub struct SsmHead<'a> {
    /// `softplus(dt + dt_bias)`
    pub step: f32,
    /// `exp(a * step)`
    pub decay: f32,
    /// Factor of the input that skips the state.
    pub d: f32,
    /// `[dim]`
    pub x: &'a [f32],
    /// `[state]`
    pub b: &'a [f32],
    /// `[state]`
    pub c: &'a [f32],
}

/// `state[i] = decay * state[i] + step * x[i] * b`, and `out[i] = state[i] . c + d * x[i]`: `state` is `[dim, state]`, `out` `[dim]`.
#[inline(always)]
pub(super) fn ssm_head<S: Simd>(s: S, head: &SsmHead<'_>, state: &mut [f32], out: &mut [f32]) {
    let n = head.b.len();
    let decay = s.splat(head.decay);
    for ((row, x), out) in state.chunks_exact_mut(n).zip(head.x).zip(out) {
        let input = s.splat(head.step * x);
        let (mut rows, mut b) = (row.chunks_exact_mut(S::LANES), head.b.chunks_exact(S::LANES));
        for (row, b) in rows.by_ref().zip(b.by_ref()) {
            let v = s.fma(input, s.read(b), s.mul(decay, s.read(row)));
            s.write(row, v);
        }
        let (rest, b) = (rows.into_remainder(), b.remainder());
        if !rest.is_empty() {
            let v = s.fma(input, s.read_part(b), s.mul(decay, s.read_part(rest)));
            s.write_part(rest, v);
        }
        *out = dot(s, row, head.c) + head.d * x;
    }
}
