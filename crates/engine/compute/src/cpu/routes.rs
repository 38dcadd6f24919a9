//! The routes of a step: experts and weights of each token, and tokens by expert.

use crate::ExpertCounts;
use crate::backend::MAX_EXPERTS;

/// The routes of a step.
pub(super) struct Routes {
    pub top_k: usize,
    /// `[tokens, top_k]`: experts in descending order of probability, and their weights.
    pub chosen: Vec<u32>,
    pub weights: Vec<f32>,
    /// Assignments sorted by expert, then by token: `token[p]` goes to the expert whose range in `starts` holds `p`.
    pub token: Vec<u32>,
    pub weight: Vec<f32>,
    /// `[experts + 1]`
    starts: Vec<u32>,
    /// Experts with at least one token, ascending.
    used: Vec<u32>,
}

impl Routes {
    pub fn new(tokens: usize, top_k: usize, experts: usize) -> Self {
        let n = tokens * top_k;
        Self {
            top_k,
            chosen: vec![0; n],
            weights: vec![0.0; n],
            token: vec![0; n],
            weight: vec![0.0; n],
            starts: vec![0; experts + 1],
            used: Vec::with_capacity(experts),
        }
    }

    /// Sorts the assignments of `n` tokens by expert (a counting sort: stable, so tokens stay in order).
    pub fn group(&mut self, n: usize) {
        let k = self.top_k;
        self.starts.fill(0);
        for &e in &self.chosen[..n * k] {
            self.starts[e as usize + 1] += 1;
        }
        self.used.clear();
        for e in 0..self.starts.len() - 1 {
            if self.starts[e + 1] > 0 {
                self.used.push(e as u32);
            }
            self.starts[e + 1] += self.starts[e];
        }
        let mut next = [0u32; MAX_EXPERTS];
        let next = &mut next[..self.starts.len() - 1];
        next.copy_from_slice(&self.starts[..self.starts.len() - 1]);
        for t in 0..n {
            for (&e, &w) in self.chosen[t * k..(t + 1) * k].iter().zip(&self.weights[t * k..]) {
                let p = &mut next[e as usize];
                self.token[*p as usize] = t as u32;
                self.weight[*p as usize] = w;
                *p += 1;
            }
        }
    }

    /// Assignments of an expert.
    pub fn of(&self, expert: u32) -> std::ops::Range<usize> {
        self.starts[expert as usize] as usize..self.starts[expert as usize + 1] as usize
    }

    /// Adds the last step's tokens to the counts.
    pub fn count(&self, layer: usize, counts: &ExpertCounts) {
        for &e in &self.used {
            counts.add(layer, e as usize, self.of(e).len());
        }
    }

    /// Records the routes of the step's `n` tokens; `shared` has the weights of the shared expert.
    pub fn record(&self, layer: usize, n: usize, shared: Option<&[f32]>, counts: &ExpertCounts) {
        for (token, chosen) in self.chosen.chunks_exact(self.top_k).take(n).enumerate() {
            let gate = shared.map_or(0.0, |s| s[token]);
            counts.record(layer, token, chosen.iter().map(|&e| e as usize), gate);
        }
    }

    /// Experts with at least one token in the last step.
    pub fn used(&self) -> &[u32] {
        &self.used
    }
}
