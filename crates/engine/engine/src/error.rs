//! Errors of loading models and of requests.

/// Errors of this crate. Each says what, where and what to do.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum Error {
    /// The model file is unreadable, damaged or incomplete.
    #[error(transparent)]
    Weights(#[from] octet_weights::Error),
    /// The backend has no memory, or no kernel for a type.
    #[error(transparent)]
    Backend(#[from] octet_compute::Error),
    /// The file is valid, but its architecture is not supported.
    #[error("{file}: architecture '{name}' is not supported; known architectures: {known}")]
    UnknownArchitecture { file: String, name: String, known: String },
    /// Who loads the model no longer needs it.
    #[error("loading the model was given up")]
    LoadGivenUp,
    /// More tokens than the context.
    #[error("the prompt has {}; this model's maximum context length is {}", count_tokens(*tokens), count_tokens(*context))]
    ContextFull { tokens: usize, context: usize },
    /// More context than positions can count.
    #[error("a context of {context} tokens exceeds the maximum of {most}")]
    ContextTooLong { context: usize, most: usize },
    /// More context than the window of a model with sliding-window attention.
    #[error(
        "a context of {context} tokens exceeds the sliding window of {window}, beyond which this model is not supported; \
         ask for at most {window}"
    )]
    BeyondWindow { context: usize, window: usize },
    /// The request is invalid.
    #[error("{0}")]
    Request(String),
    /// A text cannot be tokenized.
    #[error(transparent)]
    Encode(#[from] crate::tokenizer::EncodeError),
    /// A sampling parameter is out of range, or no token can be chosen.
    #[error(transparent)]
    Sampler(#[from] crate::sampler::SamplerError),
    /// A constraint failed; the grammar's own message.
    #[error("the constraint on the answer failed: {0}")]
    Constraint(String),
    /// The device failed; the driver's own message.
    #[error("the model failed: {0}")]
    Device(String),
    /// The engine was stopped before the request finished.
    #[error("the model was stopped before the answer was finished")]
    Stopped,
    /// The engine's thread panicked: a bug. No further request can be served.
    #[error("internal engine error (a bug): see the log, and try again")]
    Panicked,
    /// The folder for cached states is unusable.
    #[error("{path}: {what}")]
    CacheDir { path: String, what: String },
    /// The KV cache is too small for the next tokens of the only running sequence.
    #[error(
        "the KV cache is too small for one sequence: {needed} pages needed, {available} available; raise --kv-tokens"
    )]
    CacheFull { needed: usize, available: usize },
    /// All state slots are in use.
    #[error("all state slots are in use")]
    NoSlot,
}

/// `1 token`, `2 tokens`.
pub(crate) fn count_tokens(n: usize) -> String {
    format!("{n} token{}", if n == 1 { "" } else { "s" })
}
