//! The choice of a token's experts.

use super::device::Cpu;
use super::vector::VectorKernels;
use crate::backend::{MAX_EXPERTS, Router, SPARSE_MIXER_REACH, Score};

/// Chooses a token's experts from the router's `logits`, which are scratch afterwards, the best first; and their weights. `room` has space for
/// two values an expert.
pub(super) fn choose(
    vector: &VectorKernels,
    r: &Router<Cpu>,
    logits: &mut [f32],
    room: &mut [f32],
    chosen: &mut [u32],
    weights: &mut [f32],
) {
    match r.score {
        Score::SparseMixer => mix_sparsely(logits, chosen, weights),
        Score::Softmax if r.choice_bias.is_none() && r.groups.is_none() => {
            vector.route(logits, chosen, weights, r.normalise);
        }
        Score::Softmax | Score::Sigmoid => {
            choose_by_score(r, logits, room, chosen, weights);
            let sum: f32 = weights.iter().sum();
            if r.normalise {
                weights.iter_mut().for_each(|w| *w /= sum);
            }
        }
    }
    if r.scale != 1.0 {
        weights.iter_mut().for_each(|w| *w *= r.scale);
    }
    if let Some(factors) = &r.per_expert {
        weights.iter_mut().zip(chosen).for_each(|(w, e)| *w *= factors[*e as usize]);
    }
}

/// See [`Score::SparseMixer`]; also in plain code. A chosen expert's logit becomes minus infinity.
fn mix_sparsely(logits: &mut [f32], chosen: &mut [u32], weights: &mut [f32]) {
    for n in 0..chosen.len() {
        // If weights are broken and all is NaN or minus infinity, any expert that is left will do.
        let is_left = |i: &usize| !chosen[..n].contains(&(*i as u32));
        let best = (0..logits.len()).filter(is_left).reduce(|a, b| if logits[b] > logits[a] { b } else { a });
        let best = best.unwrap_or_default();
        let most = logits[best];
        let is_far = |x: f32| (most - x) / x.abs().max(most) > SPARSE_MIXER_REACH;
        let sum: f32 = logits.iter().filter(|x| !is_far(**x)).map(|x| (x - most).exp()).sum();
        (chosen[n], weights[n]) = (best as u32, 1.0 / sum);
        logits[best] = f32::NEG_INFINITY;
    }
}

/// The general rule, in plain code: a router has few experts, and each instruction set gets the same bits.
fn choose_by_score(
    r: &Router<Cpu>,
    scores: &mut [f32],
    room: &mut [f32],
    chosen: &mut [u32],
    weights: &mut [f32],
) {
    match r.score {
        Score::Softmax | Score::SparseMixer => softmax(scores),
        Score::Sigmoid => scores.iter_mut().for_each(|x| *x = 1.0 / (1.0 + (-*x).exp())),
    }
    let choice = &mut room[..scores.len()];
    choice.copy_from_slice(scores);
    if let Some(bias) = &r.choice_bias {
        choice.iter_mut().zip(bias.iter()).for_each(|(c, b)| *c += b);
    }
    if let Some([groups, kept]) = r.groups {
        keep_groups(choice, groups, kept);
    }
    for (index, weight) in chosen.iter_mut().zip(weights.iter_mut()) {
        // If weights are broken and all is NaN, any expert that is left will do.
        let mut best = 0;
        for (i, c) in choice.iter().enumerate() {
            if *c > choice[best] || choice[best] == f32::NEG_INFINITY && !c.is_infinite() {
                best = i;
            }
        }
        (*index, *weight) = (best as u32, scores[best]);
        choice[best] = f32::NEG_INFINITY;
    }
}

/// `x = softmax(x)`
fn softmax(x: &mut [f32]) {
    let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    x.iter_mut().for_each(|x| *x = (*x - max).exp());
    let sum: f32 = x.iter().sum();
    x.iter_mut().for_each(|x| *x /= sum);
}

/// Takes the experts of all but the `kept` groups with the largest sums of their two best out of the choice.
fn keep_groups(choice: &mut [f32], groups: usize, kept: usize) {
    let size = choice.len() / groups;
    let mut sums = [f32::NEG_INFINITY; MAX_EXPERTS];
    for (sum, group) in sums.iter_mut().zip(choice.chunks_exact(size)) {
        let mut best = [f32::NEG_INFINITY; 2];
        for &x in group {
            if x > best[0] {
                best = [x, best[0]];
            } else if x > best[1] {
                best[1] = x;
            }
        }
        *sum = if size > 1 { best[0] + best[1] } else { best[0] };
    }
    let mut is_kept = [false; MAX_EXPERTS];
    for _ in 0..kept.min(groups) {
        let left = (0..groups).filter(|g| !is_kept[*g]);
        let best = left.fold(None, |best: Option<usize>, g| match best {
            Some(b) if sums[g].total_cmp(&sums[b]).is_le() => best,
            _ => Some(g),
        });
        is_kept[best.unwrap_or(0)] = true;
    }
    for (g, group) in choice.chunks_exact_mut(size).enumerate() {
        if !is_kept[g] {
            group.fill(f32::NEG_INFINITY);
        }
    }
}
