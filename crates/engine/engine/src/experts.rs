//! Expert usage by layer. Read from a loaded model by the server and by `octet perplexity`.

use octet_compute::ExpertCounts;

use crate::models::config::Config;

/// How often each expert was chosen since the model was loaded, for all computed tokens: of prompts, of answers, and wrong guesses;
/// not for cached tokens. When read during a step, it may include the step for some layers only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpertUsage {
    /// Experts per token in each layer.
    pub per_token: usize,
    /// The layers that have experts, ascending.
    pub layers: Vec<LayerUsage>,
}

/// The usage of one layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerUsage {
    /// Index of the layer, as in tensor names (`blk.0`); the multi-token-prediction block is the last.
    pub layer: usize,
    /// Number of tokens for which each expert was chosen.
    pub tokens: Vec<u64>,
}

impl ExpertUsage {
    /// The counts; `None` for a dense model.
    pub(crate) fn read(config: &Config, counts: &ExpertCounts) -> Option<Self> {
        let moe = config.moe?;
        // Without the block for multi-token prediction, which only drafts.
        let layers = counts.layers().take(config.layers);
        let layers = layers.enumerate().map(|(layer, tokens)| LayerUsage { layer, tokens }).collect();
        Some(Self { per_token: moe.top_k, layers })
    }

    /// Experts of a layer.
    pub fn experts(&self) -> usize {
        self.layers.first().map_or(0, |l| l.tokens.len())
    }

    /// Tokens that a layer computed.
    pub fn tokens(&self, layer: &LayerUsage) -> u64 {
        layer.choices() / self.per_token.max(1) as u64
    }

    /// The fraction of all choices that the `n` most used experts of all layers cover: the hit rate of a fast memory with room for `n`
    /// experts. 0 before any token.
    pub fn coverage(&self, n: usize) -> f64 {
        top_share(self.layers.iter().flat_map(|l| l.tokens.iter().copied()).collect(), n)
    }
}

impl LayerUsage {
    /// Total choices: number of tokens times experts per token.
    pub fn choices(&self) -> u64 {
        self.tokens.iter().sum()
    }

    /// The fraction of choices that the `n` most used experts of this layer cover. 0 before any token.
    pub fn top_share(&self, n: usize) -> f64 {
        top_share(self.tokens.clone(), n)
    }

    /// The effective number of experts: the exponential of the entropy of the choices. All experts if used uniformly, 1 if it is
    /// always the same, 0 before any token.
    pub fn effective(&self) -> f64 {
        let all = self.choices() as f64;
        let used = self.tokens.iter().filter(|&&n| n > 0).map(|&n| n as f64 / all);
        let entropy: f64 = used.map(|p| -p * p.ln()).sum();
        if all > 0.0 { entropy.exp() } else { 0.0 }
    }

    /// Number of experts never chosen.
    pub fn unused(&self) -> usize {
        self.tokens.iter().filter(|&&n| n == 0).count()
    }
}

fn top_share(mut tokens: Vec<u64>, n: usize) -> f64 {
    tokens.sort_unstable_by(|a, b| b.cmp(a));
    let all: u64 = tokens.iter().sum();
    let top: u64 = tokens.iter().take(n).sum();
    if all > 0 { top as f64 / all as f64 } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_the_most_used() {
        let layer = |layer, tokens: [u64; 4]| LayerUsage { layer, tokens: tokens.into() };
        let usage =
            ExpertUsage { per_token: 2, layers: vec![layer(0, [1, 6, 0, 3]), layer(1, [5, 5, 5, 5])] };
        let [first, second] = &usage.layers[..] else { panic!("two layers") };
        assert_eq!((usage.experts(), usage.tokens(first), usage.tokens(second)), (4, 5, 10));
        assert_eq!([0, 1, 2, 4, 9].map(|n| first.top_share(n)), [0.0, 0.6, 0.9, 1.0, 1.0]);
        assert_eq!((first.unused(), second.unused()), (1, 0));
        // 6 of one layer, then the 5s of the other
        assert_eq!([1, 3, 8].map(|n| usage.coverage(n)), [0.2, 16.0 / 30.0, 1.0]);
        assert!((second.effective() - 4.0).abs() < 1e-12);
        let p: [f64; 3] = [0.1, 0.6, 0.3];
        assert!((first.effective() - p.iter().map(|p| p.powf(-p)).product::<f64>()).abs() < 1e-12);
        let none = layer(0, [0; 4]);
        assert_eq!((none.effective(), none.top_share(2), none.unused()), (0.0, 0.0, 4));
    }
}
