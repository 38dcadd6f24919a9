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
    /// More tokens than the context.
    #[error("the prompt has {tokens} tokens; this model's maximum context length is {context} tokens")]
    ContextFull { tokens: usize, context: usize },
    /// More context than positions can count.
    #[error("a context of {context} tokens is more than the {most} that are possible")]
    ContextTooLong { context: usize, most: usize },
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
    #[error("the model cannot go on: {0}")]
    Device(String),
    /// The engine was stopped before the request finished.
    #[error("the model was stopped before the answer was finished")]
    Stopped,
    /// The engine's thread panicked: a bug. No further request can be served.
    #[error("the engine broke down, which is a bug; start it again")]
    Panicked,
    /// The folder for cached states is unusable.
    #[error("{path}: {what}")]
    CacheDir { path: String, what: String },
    /// No free state slot or KV page.
    #[error("the cache is full: {what}")]
    CacheFull { what: String },
}
