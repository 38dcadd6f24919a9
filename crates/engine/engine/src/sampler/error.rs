//! Errors of sampling settings and of sampling. Part of responses, so written for API clients.

/// An error of the sampler. Each names the field, its value and the allowed range.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs)]
pub enum SamplerError {
    /// A setting is out of range.
    #[error("{field} is {value}; expected {expected}")]
    Setting { field: &'static str, value: String, expected: String },
    /// A setting recommended by the model file is out of range.
    #[error("{file}: the recommended sampling settings cannot be used: {source}")]
    Recommended { file: String, source: Box<SamplerError> },
    /// A setting recommended by the model file has the wrong type.
    #[error("{0}")]
    Metadata(String),
    /// The number of logits is not that of the vocabulary's rows.
    #[error("the step has {got} logits; this sampler was made for {expected}")]
    Logits { got: usize, expected: usize },
    /// The logits are not finite: the weights are damaged, or a kernel overflowed.
    #[error("the logit of token {id} is {value}; the model's weights or its computation are damaged")]
    NotFinite { id: u32, value: f32 },
    /// No token may be chosen.
    #[error(
        "no token can be sampled: every logit is -inf, or masked by the vocabulary's end, a grammar or logit_bias"
    )]
    NothingAllowed,
}

impl SamplerError {
    /// Fails for logits that cannot be sampled from: NaN or +inf.
    pub(crate) fn check(logits: &[f32]) -> Result<(), Self> {
        match logits.iter().position(|x| x.is_nan() || *x == f32::INFINITY) {
            Some(i) => Err(Self::NotFinite { id: i as u32, value: logits[i] }),
            None => Ok(()),
        }
    }
}
