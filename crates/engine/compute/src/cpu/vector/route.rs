//! Which experts a token goes to.

use super::math::exp;
use super::simd::Simd;

/// Softmax over all experts and the `chosen.len()` largest of it, the largest first, the lower index first on a tie.
/// `weights` receives their probabilities, divided by their sum if `norm`. `logits` is scratch afterwards.
#[inline(always)]
pub(super) fn route<S: Simd>(s: S, logits: &mut [f32], chosen: &mut [u32], weights: &mut [f32], norm: bool) {
    assert!(chosen.len() == weights.len() && chosen.len() <= logits.len());
    let max = largest(s, logits);
    let mut chunks = logits.chunks_exact_mut(S::LANES);
    for x in chunks.by_ref() {
        let p = exp(s, s.sub(s.read(x), s.splat(max)));
        s.write(x, p);
    }
    let x = chunks.into_remainder();
    let p = exp(s, s.sub(s.read_part(x), s.splat(max)));
    s.write_part(x, p);

    // A chosen one is taken out of the running by a value below every probability.
    const TAKEN: f32 = -1.0;
    let probabilities = logits;
    // Where the weights are divided by their own sum, that over all experts would cancel.
    let all: f32 = if norm { 0.0 } else { probabilities.iter().sum() };
    for (index, weight) in chosen.iter_mut().zip(weights.iter_mut()) {
        let p = largest(s, probabilities);
        // If weights are broken and all is NaN, any expert that is left will do.
        let i = probabilities
            .iter()
            .position(|x| *x == p && p != TAKEN)
            .or_else(|| probabilities.iter().position(|x| *x != TAKEN))
            .unwrap_or(0);
        *index = i as u32;
        *weight = probabilities[i];
        probabilities[i] = TAKEN;
    }
    let total: f32 = if norm { weights.iter().sum() } else { all };
    for w in weights {
        *w /= total;
    }
}

/// The largest value, -infinity if there is none.
#[inline(always)]
fn largest<S: Simd>(s: S, x: &[f32]) -> f32 {
    let mut max = s.splat(f32::NEG_INFINITY);
    let chunks = x.chunks_exact(S::LANES);
    let mut rest = f32::NEG_INFINITY;
    for x in chunks.remainder() {
        rest = rest.max(*x);
    }
    for x in chunks {
        max = s.max(max, s.read(x));
    }
    rest.max(s.max_lane(max))
}
