//! Why sampling settings are refused, or no token can be drawn. Part of a request's answer, so written for its sender.

/// Errors of the sampler. Each names the field, its value and what is allowed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs)]
pub enum SamplerError {
    /// A setting is out of its range.
    #[error("{field} is {value}; expected {expected}")]
    Setting { field: &'static str, value: String, expected: String },
    /// A setting that the model file recommends is out of its range.
    #[error("{file}: the recommended sampling settings cannot be used: {source}")]
    Recommended { file: String, source: Box<SamplerError> },
    /// A recommendation of the model file has the wrong type.
    #[error("{0}")]
    Metadata(String),
    /// `logits` is not one value for each row of the vocabulary.
    #[error("the step has {got} logits; this sampler was made for {expected}")]
    Logits { got: usize, expected: usize },
    /// The model computed garbage: the weights are damaged, or a kernel overflowed.
    #[error("the logit of token {id} is {value}; the model's weights or its computation are damaged")]
    NotFinite { id: u32, value: f32 },
    /// Nothing is left to choose from.
    #[error(
        "no token can be sampled: every logit is -inf, or masked by the vocabulary's end, a grammar or logit_bias"
    )]
    NothingAllowed,
}

impl SamplerError {
    /// Fails on logits that no token could be sampled from: NaN or +inf.
    pub(crate) fn check(logits: &[f32]) -> Result<(), Self> {
        match logits.iter().position(|x| x.is_nan() || *x == f32::INFINITY) {
            Some(i) => Err(Self::NotFinite { id: i as u32, value: logits[i] }),
            None => Ok(()),
        }
    }
}
