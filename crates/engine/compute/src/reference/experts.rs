//! Feed-forward blocks and mixtures of them.

use super::rows::{activate, multiplier};
use super::{Dense, Reference, add, dot, normed, sigmoid};
use crate::backend::*;

/// A feed-forward block of expert `e`, whose gate and up projections are multiplied by `weight`.
pub(super) fn glu(g: &Glu<Dense>, e: usize, x: &[f32], weight: f32) -> Vec<f32> {
    let up = g.up.apply_one(e, x).into_iter().map(|u| weight * u);
    let inner: Vec<f32> = match &g.gate {
        None => up.map(|u| activate(g.act, u)).collect(),
        Some(gate) => {
            let gates = gate.apply_one(e, x).into_iter().map(|y| weight * y);
            gates.zip(up).map(|(y, u)| activate(g.act, y) * multiplier(g.act, u)).collect()
        }
    };
    g.down.apply_one(e, &inner)
}

/// Expert indices, the best first, and their weights.
fn route(r: &Router<Reference>, x: &[f32]) -> (Vec<usize>, Vec<f32>) {
    let logits = r.weight.apply(x);
    let (order, mut weights) = match r.score {
        Score::SparseMixer => mix_sparsely(&logits, r.top_k),
        _ => choose_by_scores(r, &logits),
    };
    for (w, &e) in weights.iter_mut().zip(&order) {
        *w *= r.scale * r.per_expert.as_ref().map_or(1.0, |f| f[e]);
    }
    (order, weights)
}

/// See [`Score::SparseMixer`].
fn mix_sparsely(logits: &[f32], top_k: usize) -> (Vec<usize>, Vec<f32>) {
    let mut left: Vec<usize> = (0..logits.len()).collect();
    left.sort_by(|&i, &j| logits[j].total_cmp(&logits[i])); // stable: the lower index first on a tie
    let mut weights = Vec::new();
    for k in 0..top_k {
        let most = logits[left[k]];
        let near = left[k..].iter().map(|&e| logits[e]).filter(|m| {
            let distance = (most - m) / m.abs().max(most);
            distance.is_nan() || distance <= SPARSE_MIXER_REACH
        });
        weights.push(1.0 / near.map(|m| (m - most).exp()).sum::<f32>());
    }
    left.truncate(top_k);
    (left, weights)
}

fn choose_by_scores(r: &Router<Reference>, logits: &[f32]) -> (Vec<usize>, Vec<f32>) {
    let softmax = |of: &[f32]| -> Vec<f32> {
        let max = of.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let p: Vec<f32> = of.iter().map(|l| (l - max).exp()).collect();
        let sum: f32 = p.iter().sum();
        p.iter().map(|p| p / sum).collect()
    };
    let scores: Vec<f32> = match r.score {
        Score::Sigmoid => logits.iter().map(|l| sigmoid(*l)).collect(),
        _ => softmax(logits),
    };
    let bias = |e: usize| r.choice_bias.as_ref().map_or(0.0, |b| b[e]);
    let mut choice: Vec<f32> = scores.iter().enumerate().map(|(e, s)| s + bias(e)).collect();
    if let Some([groups, kept]) = r.groups {
        let size = r.experts / groups;
        let best = |g: &[f32]| {
            let mut g = g.to_vec();
            g.sort_by(|a, b| b.total_cmp(a));
            g.iter().take(2).sum::<f32>()
        };
        let sums: Vec<f32> = choice.chunks_exact(size).map(best).collect();
        let mut order: Vec<usize> = (0..groups).collect();
        order.sort_by(|&i, &j| sums[j].total_cmp(&sums[i]));
        for &g in &order[kept..] {
            choice[g * size..(g + 1) * size].fill(f32::NEG_INFINITY);
        }
    }
    let mut order: Vec<usize> = (0..r.experts).collect();
    order.sort_by(|&i, &j| choice[j].total_cmp(&choice[i])); // stable: the lower index first on a tie
    order.truncate(r.top_k);
    let mut weights: Vec<f32> = order.iter().map(|&e| scores[e]).collect();
    if r.normalise {
        let sum: f32 = weights.iter().sum();
        weights.iter_mut().for_each(|w| *w /= sum);
    }
    (order, weights)
}

/// The block's result for one token; `routed` receives the chosen experts and the shared expert's weight.
pub(super) fn moe(
    m: &Moe<Reference>,
    norm: Option<&Norm<Reference>>,
    h: &[f32],
    routed: impl FnOnce(&[usize], f32),
) -> Vec<f32> {
    let x = normed(norm, h);
    let (chosen, weights) = match &m.router.input {
        None => route(&m.router, &x),
        Some(own) => route(&m.router, &own.apply(h)),
    };
    let mut y = vec![0.0; h.len()];
    for (&e, &w) in chosen.iter().zip(&weights) {
        let (inside, outside) = if m.router.weighs_input { (w, 1.0) } else { (1.0, w) };
        add(&mut y, &glu(&m.experts, e, &x, inside), outside);
    }
    let gate = |s: &SharedExpert<Reference>| s.gate.as_ref().map_or(1.0, |g| sigmoid(dot(g, &x)));
    let weight = m.shared.as_ref().map_or(0.0, gate);
    if let Some(s) = &m.shared {
        add(&mut y, &glu(&s.glu, 0, &x, 1.0), weight);
    }
    routed(&chosen, weight);
    y
}
