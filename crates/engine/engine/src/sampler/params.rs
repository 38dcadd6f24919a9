//! Sampling settings: their meaning, ranges and defaults. Made from a request or the command line, read by
//! [`super::Sampler`].

use octet_weights::{Metadata, Value};

use super::SamplerError;
use super::stages::{Dry, DynamicTemperature, Mirostat, Stage, Xtc};

/// Maximum finite penalty window in tokens; longer than any model's context.
pub const PENALTY_LAST_N_MAX: usize = 1 << 20;

/// Sampling settings. The default is the model's plain softmax distribution, as in vLLM, Hugging Face's `generate(do_sample=True)` and
/// OpenAI's API: temperature 1, everything else off. (llama.cpp's defaults are 0.8, top_k 40, top_p 0.95, min_p 0.05.)
#[derive(Debug, Clone, PartialEq)]
pub struct SamplerParams {
    /// Divides the logits. 0 is greedy: the largest logit, and the lowest id among equals.
    pub temperature: f32,
    /// Keep only the `top_k` most probable tokens; 0 keeps all. Among equals the lower ids are kept.
    pub top_k: u32,
    /// Keep only the most probable tokens with this total probability; 1 keeps all, 0 keeps one.
    pub top_p: f32,
    /// Keep only tokens with at least this fraction of the highest probability; 0 keeps all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens in the window; 1 is off.
    pub repetition_penalty: f32,
    /// Number of last tokens, prompt included, that the three penalties apply to: 64 by default (llama.cpp), 0 for none, `usize::MAX`
    /// for all (vLLM's and Hugging Face's repetition penalty).
    pub penalty_last_n: usize,
    /// Subtracted from the logit of every token in the window; 0 is off.
    pub presence_penalty: f32,
    /// Subtracted once per occurrence of a token in the window; 0 is off.
    pub frequency_penalty: f32,
    /// Added to the logits of these ids; -inf bans one. Duplicates are summed.
    pub logit_bias: Vec<(u32, f32)>,
    /// The same seed gives the same text. `None` uses the one given to [`super::Sampler::new`].
    pub seed: Option<u64>,
    /// Compute log-probabilities, and those of this many most probable tokens.
    pub logprobs: Option<usize>,
    /// Report log-probabilities of the distribution after all samplers, instead of the model's.
    pub post_sampling: bool,
    /// Locally typical sampling (Meister et al., arXiv:2202.00666): keep only the tokens whose surprise is nearest to the entropy,
    /// with this total probability; 1 keeps all.
    pub typical_p: f32,
    /// Keep only tokens whose logit is at most this many standard deviations of all logits below the largest (Tang et al.,
    /// arXiv:2411.07641); 0 or less keeps all.
    pub top_n_sigma: f32,
    /// Exclude top choices.
    pub xtc: Xtc,
    /// Penalises repeated sequences.
    pub dry: Dry,
    /// A temperature that follows the entropy.
    pub dynamic_temperature: DynamicTemperature,
    /// Mirostat.
    pub mirostat: Option<Mirostat>,
    /// `typical_p`, `top_p`, `min_p` and XTC keep at least this many tokens.
    pub min_keep: usize,
    /// The samplers in order; those not listed are off.
    pub order: Vec<Stage>,
}

impl Default for SamplerParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            penalty_last_n: 64,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: None,
            logprobs: None,
            post_sampling: false,
            typical_p: 1.0,
            top_n_sigma: 0.0,
            xtc: Xtc::default(),
            dry: Dry::default(),
            dynamic_temperature: DynamicTemperature::default(),
            mirostat: None,
            min_keep: 0,
            order: Stage::DEFAULT_ORDER.to_vec(),
        }
    }
}

/// Recommended sampling settings of a model: `general.sampling.*`, or `generation_config.json` in a Hugging Face directory; or a
/// server's own defaults. `None` if not set.
#[derive(Debug, Clone, PartialEq, Default)]
#[allow(missing_docs)]
pub struct SamplingDefaults {
    pub temperature: Option<f32>,
    pub top_k: Option<u32>,
    pub top_p: Option<f32>,
    pub min_p: Option<f32>,
    pub repetition_penalty: Option<f32>,
    pub penalty_last_n: Option<usize>,
    pub presence_penalty: Option<f32>,
    pub frequency_penalty: Option<f32>,
    pub seed: Option<u64>,
    pub typical_p: Option<f32>,
    pub top_n_sigma: Option<f32>,
    pub xtc: Option<Xtc>,
    pub dry: Option<Dry>,
    pub dynamic_temperature: Option<DynamicTemperature>,
    pub mirostat: Option<Mirostat>,
    pub order: Option<Vec<Stage>>,
}

impl SamplingDefaults {
    /// Reads them. Fails for a wrong type; ranges are checked by [`SamplerParams::from_metadata`].
    pub fn read(metadata: &Metadata) -> Result<Self, SamplerError> {
        let wrong = |e: octet_weights::Error| SamplerError::Metadata(e.to_string());
        let key = |name: &str| format!("general.sampling.{name}");
        let float = |name: &str| metadata.opt_f32(&key(name)).map_err(wrong);
        let integer = |name: &str| metadata.opt_u32(&key(name)).map_err(wrong);
        Ok(Self {
            temperature: float("temp")?,
            top_k: integer("top_k")?,
            top_p: float("top_p")?,
            min_p: float("min_p")?,
            repetition_penalty: float("penalty_repeat")?,
            penalty_last_n: match metadata.get(&key("penalty_last_n")) {
                // llama.cpp's value for the whole context.
                Some(Value::I64(-1)) => Some(usize::MAX),
                _ => integer("penalty_last_n")?.map(|n| n as usize),
            },
            ..Self::default()
        })
    }

    /// These settings, and `other`'s where these have none.
    pub fn or(self, other: &Self) -> Self {
        Self {
            temperature: self.temperature.or(other.temperature),
            top_k: self.top_k.or(other.top_k),
            top_p: self.top_p.or(other.top_p),
            min_p: self.min_p.or(other.min_p),
            repetition_penalty: self.repetition_penalty.or(other.repetition_penalty),
            penalty_last_n: self.penalty_last_n.or(other.penalty_last_n),
            presence_penalty: self.presence_penalty.or(other.presence_penalty),
            frequency_penalty: self.frequency_penalty.or(other.frequency_penalty),
            seed: self.seed.or(other.seed),
            typical_p: self.typical_p.or(other.typical_p),
            top_n_sigma: self.top_n_sigma.or(other.top_n_sigma),
            xtc: self.xtc.or(other.xtc),
            dry: self.dry.or_else(|| other.dry.clone()),
            dynamic_temperature: self.dynamic_temperature.or(other.dynamic_temperature),
            mirostat: self.mirostat.or(other.mirostat),
            order: self.order.or_else(|| other.order.clone()),
        }
    }
}

pub(super) fn setting(
    field: &'static str,
    value: impl ToString,
    expected: impl Into<String>,
) -> SamplerError {
    SamplerError::Setting { field, value: value.to_string(), expected: expected.into() }
}

pub(super) fn check(ok: bool, field: &'static str, value: f32, expected: &str) -> Result<(), SamplerError> {
    if ok { Ok(()) } else { Err(setting(field, value, expected)) }
}

impl SamplerParams {
    /// Greedy decoding, everything else as in `default`.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// `base` overridden by the model's recommended settings ([`SamplingDefaults`]). The user's own settings are applied to the
    /// result.
    pub fn from_metadata(metadata: &Metadata, base: Self) -> Result<Self, SamplerError> {
        let file = SamplingDefaults::read(metadata)?;
        // Checked on neutral settings first, so that errors blame the file only for its own values.
        Self::default().with(&file).check_ranges().map_err(|source| SamplerError::Recommended {
            file: metadata.file().to_string(),
            source: Box::new(source),
        })?;
        Ok(base.with(&file))
    }

    /// These settings overridden by `other`.
    pub fn with(self, other: &SamplingDefaults) -> Self {
        Self {
            temperature: other.temperature.unwrap_or(self.temperature),
            top_k: other.top_k.unwrap_or(self.top_k),
            top_p: other.top_p.unwrap_or(self.top_p),
            min_p: other.min_p.unwrap_or(self.min_p),
            repetition_penalty: other.repetition_penalty.unwrap_or(self.repetition_penalty),
            penalty_last_n: other.penalty_last_n.unwrap_or(self.penalty_last_n),
            presence_penalty: other.presence_penalty.unwrap_or(self.presence_penalty),
            frequency_penalty: other.frequency_penalty.unwrap_or(self.frequency_penalty),
            seed: other.seed.or(self.seed),
            typical_p: other.typical_p.unwrap_or(self.typical_p),
            top_n_sigma: other.top_n_sigma.unwrap_or(self.top_n_sigma),
            xtc: other.xtc.unwrap_or(self.xtc),
            dry: other.dry.clone().unwrap_or(self.dry),
            dynamic_temperature: other.dynamic_temperature.unwrap_or(self.dynamic_temperature),
            mirostat: other.mirostat.or(self.mirostat),
            order: other.order.clone().unwrap_or(self.order),
            ..self
        }
    }

    /// Checks all fields, and that ids are below `vocab`.
    pub fn validate(&self, vocab: usize) -> Result<(), SamplerError> {
        self.check_ranges()?;
        for &(id, bias) in &self.logit_bias {
            if id as usize >= vocab {
                let expected = format!("token ids below {vocab}, the size of the vocabulary");
                return Err(setting("logit_bias", format!("{{{id}: {bias}}}"), expected));
            }
        }
        match self.logprobs {
            Some(n) if n > vocab => {
                Err(setting("logprobs", n, format!("at most {vocab}, the size of the vocabulary")))
            }
            _ => Ok(()),
        }
    }

    fn check_ranges(&self) -> Result<(), SamplerError> {
        let (t, r) = (self.temperature, self.repetition_penalty);
        let (presence, frequency) = (self.presence_penalty, self.frequency_penalty);
        let share = 0.0..=1.0;
        check(t.is_finite() && t >= 0.0, "temperature", t, "a finite number, 0 (greedy) or more")?;
        check(share.contains(&self.top_p), "top_p", self.top_p, "a number from 0 to 1 (off)")?;
        check(share.contains(&self.min_p), "min_p", self.min_p, "a number from 0 (off) to 1")?;
        check(r.is_finite() && r > 0.0, "repetition_penalty", r, "a finite number above 0 (1 is off)")?;
        // OpenAI's ranges.
        let two = -2.0..=2.0;
        check(two.contains(&presence), "presence_penalty", presence, "a number from -2 to 2 (0 is off)")?;
        check(two.contains(&frequency), "frequency_penalty", frequency, "a number from -2 to 2 (0 is off)")?;
        let n = self.penalty_last_n;
        if n > PENALTY_LAST_N_MAX && n != usize::MAX {
            let expected = format!("0 (none) to {PENALTY_LAST_N_MAX} tokens, or {} for all", usize::MAX);
            return Err(setting("penalty_last_n", n, expected));
        }
        for &(id, bias) in &self.logit_bias {
            if !((-100.0..=100.0).contains(&bias) || bias == f32::NEG_INFINITY) {
                let expected = "biases from -100 to 100, or -inf to ban a token";
                return Err(setting("logit_bias", format!("{{{id}: {bias}}}"), expected));
            }
        }
        self.check_stages()
    }

    /// Whether any penalty is on.
    pub(super) fn penalizes(&self) -> bool {
        self.penalty_last_n > 0
            && (self.repetition_penalty != 1.0
                || self.presence_penalty != 0.0
                || self.frequency_penalty != 0.0)
    }
}
