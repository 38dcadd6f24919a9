//! Random numbers of one sequence, used by [`super::Sampler`]. The `n`-th number depends only on the seed, so texts do not depend on
//! what runs beside them.

/// SplitMix64 (Steele, Lea and Flood 2014), which is a counter passed through a mixing function.
#[derive(Debug, Clone)]
pub(super) struct Rng {
    key: u64,
    drawn: u64,
}

/// The golden ratio in 64-bit fixed point, odd: its multiples visit every 64-bit number.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// Stafford's variant 13 of the MurmurHash3 finaliser: every bit of `z` affects every bit of the result.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Maps to `[0, 1)` with the 53 bits of an f64.
fn uniform(bits: u64) -> f64 {
    (bits >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

impl Rng {
    /// Mixes the seed first: neighbouring seeds must not give shifted copies of one stream.
    pub fn new(seed: u64) -> Self {
        Self { key: mix(seed.wrapping_add(STEP)), drawn: 0 }
    }

    /// The next number, uniform in `[0, 1)`. Called once per token.
    pub fn next(&mut self) -> f64 {
        self.drawn += 1;
        uniform(self.bits())
    }

    /// A second number for the same token, independent of the last one.
    pub fn second(&self) -> f64 {
        uniform(mix(self.bits().wrapping_add(STEP)))
    }

    fn bits(&self) -> u64 {
        mix(self.key.wrapping_add(self.drawn.wrapping_mul(STEP)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// First numbers of SplitMix64 from state 0 and 1234567, as its authors' and Rosetta Code's programs print them.
    #[test]
    fn splitmix64_as_published() {
        assert_eq!(mix(STEP), 0xE220_A839_7B1D_CDAF);
        assert_eq!(mix(1_234_567u64.wrapping_add(STEP)), 6_457_827_717_110_365_317);
        assert_eq!(mix(1_234_567u64.wrapping_add(STEP.wrapping_mul(2))), 3_203_168_211_198_807_973);
    }

    #[test]
    fn uniform_for_one_seed_and_across_seeds() {
        let one: Vec<f64> = (0..).scan(Rng::new(7), |r, _: u32| Some(r.next())).take(64_000).collect();
        let across: Vec<f64> = (0..64_000).map(|s| Rng::new(s).next()).collect();
        let mut rng = Rng::new(7);
        let second: Vec<f64> = (0..64_000).map(|_| (rng.next(), rng.second()).1).collect();
        assert_eq!(one.iter().zip(&second).filter(|(a, b)| a == b).count(), 0);
        for numbers in [one, across, second] {
            let mut bins = [0f64; 64];
            for x in &numbers {
                assert!((0.0..1.0).contains(x));
                bins[(x * 64.0) as usize] += 1.0;
            }
            let chi2: f64 = bins.iter().map(|n| (n - 1000.0).powi(2) / 1000.0).sum();
            assert!(chi2 < 103.4, "{chi2}"); // 99.9% of 63 degrees of freedom
        }
    }
}
