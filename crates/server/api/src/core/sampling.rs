//! llama.cpp's samplers that only some dialects have. Part of [`Sampling`](super::Sampling).

use serde_json::{Value, json};

/// The client's settings. Samplers that are not set are as the server's defaults say.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MoreSampling {
    /// Locally typical sampling; 1 is off.
    pub typical_p: Option<f64>,
    /// Standard deviations below the largest logit; 0 or less is off.
    pub top_n_sigma: Option<f64>,
    /// Probability that XTC applies; 0 is off.
    pub xtc_probability: Option<f64>,
    /// XTC removes the most probable tokens above this probability, but for the least of them.
    pub xtc_threshold: Option<f64>,
    /// DRY's penalty for repeated sequences; 0 is off.
    pub dry_multiplier: Option<f64>,
    /// At least 1.
    pub dry_base: Option<f64>,
    /// Repetitions up to this length are not penalised.
    pub dry_allowed_length: Option<u32>,
    /// Number of recent tokens that DRY searches: 0 none, -1 all.
    pub dry_penalty_last_n: Option<i32>,
    /// Texts that interrupt a repetition.
    pub dry_sequence_breakers: Option<Vec<String>>,
    /// Range of the dynamic temperature; 0 is off.
    pub dynatemp_range: Option<f64>,
    /// Exponent of the dynamic temperature; 1 is linear.
    pub dynatemp_exponent: Option<f64>,
    /// 0 is off, else its version.
    pub mirostat: Option<u32>,
    /// Target surprise in bits.
    pub mirostat_tau: Option<f64>,
    /// Learning rate.
    pub mirostat_eta: Option<f64>,
    /// Minimum number of tokens that truncation keeps.
    pub min_keep: Option<u32>,
    /// The order of samplers, by llama.cpp's names; those not listed are off.
    pub samplers: Option<Vec<String>>,
    /// Added to the logits of the tokens of these texts; -100 to 100, or -inf.
    pub text_bias: Vec<(String, f64)>,
}

impl MoreSampling {
    /// The settings of samplers that are on, in llama.cpp's names, for servers that know them. Those that are off are left out: a
    /// provider without them need not refuse the request.
    pub fn fields(&self) -> Vec<(&'static str, Value)> {
        self.in_effect().set()
    }

    /// The same settings without samplers that are off, and without their details.
    fn in_effect(&self) -> Self {
        let mut s = self.clone();
        s.typical_p = s.typical_p.filter(|p| *p < 1.0);
        s.top_n_sigma = s.top_n_sigma.filter(|n| *n > 0.0);
        s.min_keep = s.min_keep.filter(|n| *n > 0);
        s.xtc_probability = s.xtc_probability.filter(|p| *p > 0.0);
        s.xtc_threshold = s.xtc_threshold.filter(|_| s.xtc_probability.is_some());
        s.dynatemp_range = s.dynatemp_range.filter(|r| *r > 0.0);
        s.dynatemp_exponent = s.dynatemp_exponent.filter(|_| s.dynatemp_range.is_some());
        s.mirostat = s.mirostat.filter(|version| *version > 0);
        if s.mirostat.is_none() {
            (s.mirostat_tau, s.mirostat_eta) = (None, None);
        }
        s.dry_multiplier = s.dry_multiplier.filter(|m| *m > 0.0);
        if s.dry_multiplier.is_none() {
            (s.dry_base, s.dry_allowed_length, s.dry_penalty_last_n) = (None, None, None);
            s.dry_sequence_breakers = None;
        }
        s
    }

    fn set(&self) -> Vec<(&'static str, Value)> {
        let all = [
            ("typical_p", json!(self.typical_p)),
            ("top_n_sigma", json!(self.top_n_sigma)),
            ("xtc_probability", json!(self.xtc_probability)),
            ("xtc_threshold", json!(self.xtc_threshold)),
            ("dry_multiplier", json!(self.dry_multiplier)),
            ("dry_base", json!(self.dry_base)),
            ("dry_allowed_length", json!(self.dry_allowed_length)),
            ("dry_penalty_last_n", json!(self.dry_penalty_last_n)),
            ("dry_sequence_breakers", json!(self.dry_sequence_breakers)),
            ("dynatemp_range", json!(self.dynatemp_range)),
            ("dynatemp_exponent", json!(self.dynatemp_exponent)),
            ("mirostat", json!(self.mirostat)),
            ("mirostat_tau", json!(self.mirostat_tau)),
            ("mirostat_eta", json!(self.mirostat_eta)),
            ("min_keep", json!(self.min_keep)),
            ("samplers", json!(self.samplers)),
        ];
        all.into_iter().filter(|(_, value)| !value.is_null()).collect()
    }
}
