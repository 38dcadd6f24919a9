//! Rotary position embedding, and the norm of query and key heads before it.

use super::rows::rms_norm_in_place;
use super::simd::Simd;
use crate::backend::RopePairing;

/// Fills `cos` and `sin`, `[rope_dims / 2]` each and times `scale`, for one position, to serve all heads of the token.
/// Angles are products in f32, as in the models' own training code: at large positions that is not the exact angle.
pub fn rope_angles(position: u32, inv_freq: &[f32], scale: f32, cos: &mut [f32], sin: &mut [f32]) {
    for ((f, cos), sin) in inv_freq.iter().zip(cos).zip(sin) {
        let (s, c) = (position as f32 * f).sin_cos();
        (*sin, *cos) = (s * scale, c * scale);
    }
}

/// The same where pair `j` turns by coordinate `axes[j]` of `turn`.
pub fn rope_angles_by_axis(
    turn: [u32; 3],
    axes: &[u8],
    inv_freq: &[f32],
    scale: f32,
    cos: &mut [f32],
    sin: &mut [f32],
) {
    for (((f, axis), cos), sin) in inv_freq.iter().zip(axes).zip(cos).zip(sin) {
        let (s, c) = (turn[usize::from(*axis)] as f32 * f).sin_cos();
        (*sin, *cos) = (s * scale, c * scale);
    }
}

/// Normalises a head (if there is a weight) and rotates its leading `2 * cos.len()` dimensions, in place.
#[inline(always)]
pub(super) fn norm_rope<S: Simd>(
    s: S,
    head: &mut [f32],
    norm: Option<&[f32]>,
    eps: f32,
    cos: &[f32],
    sin: &[f32],
    pairing: RopePairing,
) {
    if let Some(w) = norm {
        rms_norm_in_place(s, head, w, eps);
    }
    let pairs = cos.len();
    assert!(sin.len() == pairs && 2 * pairs <= head.len());
    let head = &mut head[..2 * pairs];
    match pairing {
        RopePairing::Half => {
            let (first, second) = head.split_at_mut(pairs);
            for j in 0..pairs {
                let (a, b) = (first[j], second[j]);
                first[j] = a * cos[j] - b * sin[j];
                second[j] = b * cos[j] + a * sin[j];
            }
        }
        RopePairing::Adjacent => {
            for ((pair, cos), sin) in head.as_chunks_mut::<2>().0.iter_mut().zip(cos).zip(sin) {
                let [a, b] = *pair;
                *pair = [a * cos - b * sin, b * cos + a * sin];
            }
        }
    }
}
