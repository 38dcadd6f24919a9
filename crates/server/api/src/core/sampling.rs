//! llama.cpp's samplers that only some dialects have. Part of [`Sampling`](super::Sampling).

use serde_json::{Value, json};

/// The client's settings; samplers that are not set are off.
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
    /// The set fields, in llama.cpp's names, for servers that know them.
    pub fn fields(&self) -> Vec<(&'static str, Value)> {
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
