//! Why the engine cannot load a model or take a request.

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
    /// The file is fine, and its architecture not one of ours.
    #[error("{file}: architecture '{name}' is not supported; known architectures: {known}")]
    UnknownArchitecture { file: String, name: String, known: String },
    /// More tokens than the context can hold.
    #[error("the prompt has {tokens} tokens and the context holds {context}")]
    ContextFull { tokens: usize, context: usize },
    /// More context than any model has, and more than positions are counted for.
    #[error("a context of {context} tokens is more than the {most} that are possible")]
    ContextTooLong { context: usize, most: usize },
    /// The request itself makes no sense.
    #[error("{0}")]
    Request(String),
    /// A text cannot be made into tokens.
    #[error(transparent)]
    Encode(#[from] crate::tokenizer::EncodeError),
    /// A sampling parameter is out of range, or no token can be chosen.
    #[error(transparent)]
    Sampler(#[from] crate::sampler::SamplerError),
    /// A constraint cannot go on: the grammar's own words.
    #[error("the constraint on the answer failed: {0}")]
    Constraint(String),
    /// The device that computes has failed: the driver's own words.
    #[error("the model cannot go on: {0}")]
    Device(String),
    /// The engine was stopped before the request was finished.
    #[error("the model was stopped before the answer was finished")]
    Stopped,
    /// The engine's thread has panicked: a bug. No request can be served any more.
    #[error("the engine broke down, which is a bug; start it again")]
    Panicked,
    /// The folder for cached states cannot be used.
    #[error("{path}: {what}")]
    CacheDir { path: String, what: String },
    /// No state slot or no KV page is free.
    #[error("the cache is full: {what}")]
    CacheFull { what: String },
}
