//! Expert usage by text domain, and statistics of a layer.

use octet_engine::experts::ExpertUsage;

/// Counts by domain, in order of first appearance.
#[derive(Debug, Default)]
pub struct Domains {
    /// Number of experts per layer.
    pub experts: usize,
    /// Experts per token.
    pub per_token: usize,
    pub domains: Vec<Domain>,
}

/// Counts of one domain.
#[derive(Debug)]
pub struct Domain {
    pub name: String,
    pub tokens: u64,
    /// Number of tokens for which each expert was chosen, `[layers][experts]`.
    pub layers: Vec<Vec<u64>>,
}

/// Statistics of a layer's choices, with equal weight for each domain.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerFigures {
    pub layer: usize,
    /// Entropy of the chosen expert in bits.
    pub entropy: f64,
    /// Share of the choices of the most used tenth of the experts.
    pub top: f64,
    /// Mutual information of expert and domain in bits: how much a choice reveals about the domain.
    pub information: f64,
}

impl Domains {
    /// Adds the difference of two readings of the model's counts.
    pub fn add(&mut self, name: &str, tokens: u64, before: &ExpertUsage, after: &ExpertUsage) {
        (self.experts, self.per_token) = (after.experts(), after.per_token);
        let i = self.domains.iter().position(|d| d.name == name).unwrap_or_else(|| {
            let layers = vec![vec![0; after.experts()]; after.layers.len()];
            self.domains.push(Domain { name: name.into(), tokens: 0, layers });
            self.domains.len() - 1
        });
        let domain = &mut self.domains[i];
        domain.tokens += tokens;
        for (sum, (before, after)) in domain.layers.iter_mut().zip(before.layers.iter().zip(&after.layers)) {
            for (sum, (before, after)) in sum.iter_mut().zip(before.tokens.iter().zip(&after.tokens)) {
                *sum += after - before;
            }
        }
    }

    /// Statistics of each layer with any tokens.
    pub fn layers(&self) -> impl Iterator<Item = LayerFigures> {
        let n = self.domains.first().map_or(0, |d| d.layers.len());
        (0..n).filter_map(|layer| self.figures(layer))
    }

    fn figures(&self, layer: usize) -> Option<LayerFigures> {
        let shares: Vec<Vec<f64>> = self.domains.iter().filter_map(|d| shares(&d.layers[layer])).collect();
        let weight = 1.0 / shares.len() as f64;
        let mut mean: Vec<f64> =
            (0..self.experts).map(|e| shares.iter().map(|s| s[e]).sum::<f64>() * weight).collect();
        if shares.is_empty() {
            return None;
        }
        let entropy = bits(&mean);
        let within = shares.iter().map(|s| bits(s)).sum::<f64>() * weight;
        mean.sort_by(|a, b| b.total_cmp(a));
        let top = mean.iter().take(self.experts.div_ceil(10)).sum();
        Some(LayerFigures { layer, entropy, top, information: (entropy - within).max(0.0) })
    }
}

/// Shares of a layer's choices; `None` without any.
pub fn shares(counts: &[u64]) -> Option<Vec<f64>> {
    let all: u64 = counts.iter().sum();
    (all > 0).then(|| counts.iter().map(|&n| n as f64 / all as f64).collect())
}

/// Shannon entropy in bits.
fn bits(shares: &[f64]) -> f64 {
    shares.iter().filter(|&&p| p > 0.0).map(|p| -p * p.log2()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn domains(counts: &[&[u64]]) -> Domains {
        let domains = counts
            .iter()
            .enumerate()
            .map(|(i, c)| Domain { name: i.to_string(), tokens: 1, layers: vec![c.to_vec()] })
            .collect();
        Domains { experts: counts[0].len(), per_token: 1, domains }
    }

    fn only(d: &Domains) -> LayerFigures {
        d.layers().next().unwrap()
    }

    #[test]
    fn information_is_that_of_the_textbook() {
        // The same experts in both domains carry no information; disjoint experts identify the domain.
        assert_eq!(only(&domains(&[&[3, 1, 0, 0], &[30, 10, 0, 0]])).information, 0.0);
        let apart = only(&domains(&[&[1, 1, 0, 0], &[0, 0, 7, 7]]));
        assert_eq!((apart.entropy, apart.information), (2.0, 1.0));
        // Cover and Thomas, example 2.2.1, has the joint distribution of this conditional one; domains there are alike in weight too.
        let blood = [[8, 4, 2, 2], [4, 8, 2, 2], [4, 4, 4, 4], [16, 0, 0, 0]];
        let rows: Vec<&[u64]> = blood.iter().map(|r| r.as_slice()).collect();
        assert!((only(&domains(&rows)).information - 0.375).abs() < 1e-12);
    }

    #[test]
    fn the_busiest_tenth_is_at_least_one_expert() {
        assert_eq!(only(&domains(&[&[6, 2, 1, 1]])).top, 0.6);
        assert!(domains(&[&[0, 0]]).layers().next().is_none(), "nothing was read");
    }
}
