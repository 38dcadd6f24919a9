//! Settings of the samplers beyond temperature, `top_k`, `top_p` and `min_p`, and the order of all samplers. Read by
//! [`super::Sampler`]; set by requests in llama.cpp's names.

use super::SamplerError;
use super::params::{PENALTY_LAST_N_MAX, check, setting};

/// A sampler, as `samplers` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Repetition, presence and frequency penalties.
    Penalties,
    /// [`Dry`].
    Dry,
    /// [`SamplerParams::top_n_sigma`](super::SamplerParams::top_n_sigma).
    TopNSigma,
    /// Temperature, or [`DynamicTemperature`].
    Temperature,
    /// The `top_k` most probable tokens.
    TopK,
    /// Locally typical sampling.
    TypicalP,
    /// Nucleus sampling.
    TopP,
    /// Tokens above a fraction of the highest probability.
    MinP,
    /// [`Xtc`].
    Xtc,
}

impl Stage {
    /// All samplers in their default order.
    pub const DEFAULT_ORDER: [Self; 9] = [
        Self::Penalties,
        Self::Dry,
        Self::TopNSigma,
        Self::Temperature,
        Self::TopK,
        Self::TypicalP,
        Self::TopP,
        Self::MinP,
        Self::Xtc,
    ];

    /// llama.cpp's names. (The API also accepts its other names and letters.)
    const NAMES: [(Self, &'static str); 9] = [
        (Self::Penalties, "penalties"),
        (Self::Dry, "dry"),
        (Self::TopNSigma, "top_n_sigma"),
        (Self::Temperature, "temperature"),
        (Self::TopK, "top_k"),
        (Self::TypicalP, "typ_p"),
        (Self::TopP, "top_p"),
        (Self::MinP, "min_p"),
        (Self::Xtc, "xtc"),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize].1
    }

    /// The sampler of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|n| n.1 == name).map(|n| n.0)
    }
}

/// Exclude top choices (p-e-w, oobabooga/text-generation-webui #6335): with `probability`, removes all tokens of at least `threshold`
/// except the least probable of them. A single one stays.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Xtc {
    /// Probability of applying it; 0 is off.
    pub probability: f32,
    /// Above 0.5 no two tokens can reach it, so nothing is removed.
    pub threshold: f32,
}

impl Default for Xtc {
    fn default() -> Self {
        Self { probability: 0.0, threshold: 0.1 }
    }
}

/// Don't repeat yourself (p-e-w, oobabooga/text-generation-webui #5677): a token that would continue a sequence already in the text is
/// penalised by `multiplier * base^(length - allowed_length)`, where `length` is the number of tokens repeated so far.
#[derive(Debug, Clone, PartialEq)]
pub struct Dry {
    /// 0 is off.
    pub multiplier: f32,
    /// At least 1.
    pub base: f32,
    /// Shorter repetitions are not penalised.
    pub allowed_length: usize,
    /// Number of last tokens searched, prompt included; `usize::MAX` for the whole context.
    pub last_n: usize,
    /// Token sequences that interrupt a repetition. See [`super::dry_breakers`].
    pub breakers: Vec<Vec<u32>>,
}

impl Default for Dry {
    fn default() -> Self {
        Self { multiplier: 0.0, base: 1.75, allowed_length: 2, last_n: usize::MAX, breakers: Vec::new() }
    }
}

/// A temperature that grows with the entropy of the distribution, from `temperature - range` to `temperature + range` (kalomaze,
/// ggml-org/llama.cpp #4972): the normalised entropy, to the power `exponent`, interpolates between them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DynamicTemperature {
    /// 0 is off.
    pub range: f32,
    /// 1 is linear.
    pub exponent: f32,
}

impl Default for DynamicTemperature {
    fn default() -> Self {
        Self { range: 0.0, exponent: 1.0 }
    }
}

/// Mirostat (Basu et al., arXiv:2007.14966): truncates the distribution so that the surprise of chosen tokens, `-log2 p`, stays near
/// `tau`. Replaces all samplers except penalties, DRY and temperature.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mirostat {
    /// The version.
    pub version: MirostatVersion,
    /// Target surprise in bits.
    pub tau: f32,
    /// Learning rate.
    pub eta: f32,
}

impl Mirostat {
    /// The paper's target surprise.
    pub const TAU: f32 = 5.0;
    /// The paper's learning rate.
    pub const ETA: f32 = 0.1;
}

/// The truncation method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MirostatVersion {
    /// The `k` best tokens, with `k` from Zipf's law fitted to the 100 best (the paper's algorithm 1).
    V1,
    /// Tokens whose surprise is below a bound (the authors' second version).
    V2,
}

impl super::SamplerParams {
    /// Checks the settings of this file.
    pub(super) fn check_stages(&self) -> Result<(), SamplerError> {
        let share = 0.0..=1.0;
        let finite = |x: f32| x.is_finite();
        check(share.contains(&self.typical_p), "typical_p", self.typical_p, "a number from 0 to 1 (off)")?;
        let sigma = self.top_n_sigma;
        check(finite(sigma), "top_n_sigma", sigma, "a finite number; 0 and less is off")?;
        let Xtc { probability, threshold } = self.xtc;
        check(share.contains(&probability), "xtc_probability", probability, "a number from 0 (off) to 1")?;
        check(share.contains(&threshold), "xtc_threshold", threshold, "a number from 0 to 1")?;
        let DynamicTemperature { range, exponent } = self.dynamic_temperature;
        let positive = |x: f32| x.is_finite() && x >= 0.0;
        check(positive(range), "dynatemp_range", range, "a finite number, 0 (off) or more")?;
        check(positive(exponent), "dynatemp_exponent", exponent, "a finite number, 0 or more")?;
        let dry = &self.dry;
        check(
            positive(dry.multiplier),
            "dry_multiplier",
            dry.multiplier,
            "a finite number, 0 (off) or more",
        )?;
        check(finite(dry.base) && dry.base >= 1.0, "dry_base", dry.base, "a finite number, 1 or more")?;
        if dry.last_n > PENALTY_LAST_N_MAX && dry.last_n != usize::MAX {
            let expected = format!("0 (none) to {PENALTY_LAST_N_MAX} tokens, or -1 for all");
            return Err(setting("dry_penalty_last_n", dry.last_n, expected));
        }
        if let Some(m) = self.mirostat {
            check(positive(m.tau), "mirostat_tau", m.tau, "a finite number, 0 or more")?;
            check(positive(m.eta), "mirostat_eta", m.eta, "a finite number, 0 or more")?;
        }
        Ok(())
    }

    /// The same settings with all samplers off that `order` does not name, and the list of those that are on, in order.
    pub(super) fn in_effect(mut self) -> (Self, Vec<Stage>) {
        let off = Self::default();
        let mut order = std::mem::take(&mut self.order);
        if self.mirostat.is_some() {
            order.retain(|s| matches!(s, Stage::Penalties | Stage::Dry));
            order.push(Stage::Temperature);
        }
        let absent = |stage: Stage| !order.contains(&stage);
        if absent(Stage::Penalties) {
            self.penalty_last_n = 0;
        }
        if absent(Stage::Dry) {
            self.dry.multiplier = 0.0;
        }
        if absent(Stage::Temperature) {
            (self.temperature, self.dynamic_temperature) = (1.0, off.dynamic_temperature);
        }
        if absent(Stage::TopK) {
            self.top_k = 0;
        }
        if absent(Stage::TopP) {
            self.top_p = 1.0;
        }
        if absent(Stage::MinP) {
            self.min_p = 0.0;
        }
        let changes = |stage: &Stage| match stage {
            Stage::Penalties => self.penalizes(),
            Stage::Dry => self.repeats(),
            Stage::TopNSigma => self.top_n_sigma > 0.0,
            Stage::Temperature => self.temperature != 1.0 || self.dynamic_temperature.range > 0.0,
            Stage::TopK => self.top_k > 0,
            Stage::TypicalP => self.typical_p < 1.0,
            Stage::TopP => self.top_p < 1.0,
            Stage::MinP => self.min_p > 0.0,
            Stage::Xtc => self.xtc.probability > 0.0 && self.xtc.threshold <= 0.5,
        };
        order.retain(changes);
        (self, order)
    }

    /// Whether DRY is on.
    pub(super) fn repeats(&self) -> bool {
        self.dry.multiplier > 0.0 && self.dry.last_n > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samplers_have_their_names() {
        for (i, (stage, name)) in Stage::NAMES.into_iter().enumerate() {
            assert_eq!(stage as usize, i);
            assert_eq!(stage.name(), name);
            assert_eq!(Stage::from_name(name), Some(stage));
        }
        assert_eq!(Stage::from_name("infill"), None);
    }
}
