//! Rotation, the cache of keys and values, and attention over it.

use super::{LayerStore, Reference, cap, decode, dot, encode, sigmoid};
use crate::backend::*;
use crate::batch::{Batch, PAGE_TOKENS};

impl LayerStore {
    /// Whether it has keys and values in pages of this group.
    pub(super) fn is_in(&self, of: PageGroup) -> bool {
        matches!(self, Self::Kv { group, .. } if *group == of)
    }
}

/// Normalises the heads of a token `[heads, stride]` in place: each, the first dimensions of each, or all together.
fn norm_heads(x: &mut [f32], heads: usize, stride: usize, dim: usize, norm: Option<&Norm<Reference>>) {
    let Some(norm) = norm else { return };
    if norm.len > dim {
        let y = norm.apply(x);
        x[..norm.len].copy_from_slice(&y);
        return;
    }
    for head in x.chunks_exact_mut(stride).take(heads) {
        let y = norm.apply(head);
        head[..norm.len].copy_from_slice(&y);
    }
}

/// `turn` are the token's coordinates, all its position if it has none.
fn rotate(x: &mut [f32], rope: &Rope<Reference>, turn: [u32; 3]) {
    let x = &mut x[rope.at..rope.at + rope.dims];
    let half = rope.dims / 2 / rope.axes.as_ref().map_or(1, |a| a.parts);
    for pair in 0..rope.dims / 2 {
        // The pair's part, and its place there.
        let (part, j) = (pair / half * 2 * half, pair % half);
        let (lo, hi) = match rope.pairing {
            RopePairing::Half => (part + j, part + j + half),
            RopePairing::Adjacent => (part + 2 * j, part + 2 * j + 1),
        };
        let axis = rope.axes.as_ref().map_or(0, |a| a.of_pair[pair]);
        let (sin, cos) = (turn[usize::from(axis)] as f32 * rope.inv_freq[pair]).sin_cos();
        let (sin, cos) = (sin * rope.scale, cos * rope.scale);
        (x[lo], x[hi]) = (x[lo] * cos - x[hi] * sin, x[hi] * cos + x[lo] * sin);
    }
}

/// Norm and rotation of the heads `[heads, stride]` of a token, in the layer's order.
fn prepare(
    x: &mut [f32],
    [heads, stride]: [usize; 2],
    norm: Option<&Norm<Reference>>,
    a: &Attention<Reference>,
    turn: [u32; 3],
) {
    if !a.norm_last {
        norm_heads(x, heads, stride, a.k_dim, norm);
    }
    if let Some(rope) = &a.rope {
        x.chunks_exact_mut(stride).take(heads).for_each(|head| rotate(head, rope, turn));
    }
    if a.norm_last {
        norm_heads(x, heads, stride, a.k_dim, norm);
    }
}

pub(super) fn rope_store(
    batch: &Batch,
    a: &Attention<Reference>,
    store: &mut LayerStore,
    q: &mut [f32],
    mut kv: Option<(&mut Vec<f32>, &Vec<f32>)>,
) {
    let LayerStore::Kv { keys, values, ty, group, .. } = store else {
        unreachable!("the layer has keys and values")
    };
    let (d, stride) = (a.k_dim, if a.gated { 2 * a.k_dim } else { a.k_dim });
    for span in batch.spans() {
        for t in span.start..span.start + span.len {
            let (position, turn) = (batch.positions()[t], batch.turn_of(t));
            let row = &mut q[t * a.heads * stride..][..a.heads * stride];
            prepare(row, [a.heads, stride], a.norms[0].as_ref(), a, turn);
            if let Some([scale, n, first]) = a.position_scale {
                let factor = 1.0 + scale * (1.0 + ((position as f32 + first) / n).floor()).ln();
                let heads = row.chunks_exact_mut(stride);
                heads.for_each(|head| head[..d].iter_mut().for_each(|x| *x *= factor));
            }
            let Some((k, v)) = &mut kv else { continue };
            let row = &mut k[t * a.kv_heads * d..][..a.kv_heads * d];
            prepare(row, [a.kv_heads, d], a.norms[1].as_ref(), a, turn);
            let (page, slot) = batch.page_of(span, *group, position as usize);
            for h in 0..a.kv_heads {
                let at = (page * a.kv_heads + h) * PAGE_TOKENS + slot;
                decode(ty.keys, &encode(ty.keys, &row[h * d..][..d]), &mut keys[at * d..][..d]);
            }
            if a.values_in_keys {
                continue;
            }
            let d = a.v_dim;
            let mut row: Vec<f32> = v[t * a.kv_heads * d..][..a.kv_heads * d].to_vec();
            norm_heads(&mut row, a.kv_heads, d, d, a.norms[2].as_ref());
            row.iter_mut().for_each(|x| *x *= a.value_scale);
            for h in 0..a.kv_heads {
                let at = (page * a.kv_heads + h) * PAGE_TOKENS + slot;
                decode(ty.values, &encode(ty.values, &row[h * d..][..d]), &mut values[at * d..][..d]);
            }
        }
    }
}

pub(super) fn attend(
    batch: &Batch,
    a: &Attention<Reference>,
    store: &LayerStore,
    q: &[f32],
    out: &mut [f32],
) {
    let LayerStore::Kv { keys, values, group, .. } = store else {
        unreachable!("the layer has keys and values")
    };
    let (d, dv) = (a.k_dim, a.v_dim);
    let (values, value_stride) = if a.values_in_keys { (keys, d) } else { (values, dv) };
    let stride = if a.gated { 2 * d } else { d };
    for span in batch.spans() {
        for t in span.start..span.start + span.len {
            for h in 0..a.heads {
                let row = |position: usize| {
                    let (page, slot) = batch.page_of(span, *group, position);
                    (page * a.kv_heads + h / (a.heads / a.kv_heads)) * PAGE_TOKENS + slot
                };
                let query = &q[(t * a.heads + h) * stride..][..stride];
                let n = batch.positions()[t] as usize;
                let [first, end] = if a.two_way { batch.block_of(t) } else { [n, n + 1] };
                let positions = a.window.seen(n, [first, end]);
                let score = |p| cap(a.scale * dot(&query[..d], &keys[row(p) * d..][..d]), a.softcap);
                let scores: Vec<f32> = positions.clone().map(score).collect();
                let sink = a.sinks.as_ref().map_or(f32::NEG_INFINITY, |s| s[h]);
                let max = scores.iter().copied().fold(sink, f32::max);
                let p: Vec<f32> = scores.iter().map(|s| (s - max).exp()).collect();
                let sum: f32 = p.iter().sum::<f32>() + (sink - max).exp();
                for i in 0..dv {
                    let weighted =
                        positions.clone().zip(&p).map(|(at, p)| p * values[row(at) * value_stride + i]);
                    let gate = if a.gated { sigmoid(query[d + i]) } else { 1.0 };
                    out[(t * a.heads + h) * dv + i] = weighted.sum::<f32>() / sum * gate;
                }
            }
        }
    }
}
