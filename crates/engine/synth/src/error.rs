//! Errors of creating and writing synthetic models.

use crate::{Mix, known};

/// Errors of this crate. Each says what, where and what to do.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum Error {
    /// No shape of this name is known.
    #[error("'{name}' is not a known model shape; known shapes: {}", known::names().join(", "))]
    UnknownShape { name: String },
    /// No tiny model of this architecture.
    #[error("there is no tiny model of architecture '{name}'; there are: {}", crate::TINY_ARCHITECTURES.join(", "))]
    UnknownArchitecture { name: String },
    /// No quantisation mix of this name.
    #[error("'{name}' is not a known quantisation; known: {}", Mix::names().join(", "))]
    UnknownMix { name: String },
    /// The number of layers is impossible.
    #[error("{name} cannot be made with {layers} layers; expected 1 to {max}")]
    Layers { name: String, layers: usize, max: usize },
    /// The architecture has no block for multi-token prediction.
    #[error("{name} has no block for multi-token prediction; shapes of Qwen3.5 and Qwen3.6 can have one")]
    NoMtp { name: String },
    /// The output exists and must not be replaced.
    #[error("{path} exists already; remove it, give another path, or ask for it to be replaced")]
    Exists { path: String },
    /// The output is something that a file must not take the place of.
    #[error("{path} is {what}, and a model can only be written to a file")]
    NotAFile { path: String, what: &'static str },
    /// The output's directory has no room for it.
    #[error(
        "{path} needs {need} bytes and its file system has {free} free; make room or choose another place"
    )]
    NoSpace { path: String, need: u64, free: u64 },
    /// The system refused a file operation.
    #[error("{path}: {source}")]
    Io {
        path: String,
        #[source]
        source: std::io::Error,
    },
    /// The tensors or metadata cannot be put in a file.
    #[error(transparent)]
    Weights(#[from] octet_weights::Error),
}
