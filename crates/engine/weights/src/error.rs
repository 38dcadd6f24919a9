//! The one error of this crate: which file, which tensor or key, and what was expected. Names come from the file, so
//! their control characters are escaped: a message goes to a terminal.

use crate::config_fields::{CONFIG, fields_of};

/// Why a model file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system could not read the file.
    #[error("{file}: {source}")]
    Io {
        /// Path as given.
        file: String,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The file's structure is wrong.
    #[error("{file}: {what}")]
    Format {
        /// Path as given.
        file: String,
        /// What is wrong, where, and what was expected.
        what: String,
    },
    /// One tensor is wrong.
    #[error("{file}: tensor '{}' {what}", tensor.escape_debug())]
    Tensor {
        /// Path as given.
        file: String,
        /// The tensor's name.
        tensor: String,
        /// What is wrong and what was expected.
        what: String,
    },
    /// One metadata key is missing or of the wrong type.
    #[error("{file}: metadata key '{}' {what}", key.escape_debug())]
    Key {
        /// Path as given.
        file: String,
        /// The key.
        key: String,
        /// What is wrong and what was expected.
        what: String,
    },
}

impl Error {
    /// An I/O error on `file`.
    pub fn io(file: &str, source: std::io::Error) -> Self {
        Self::Io { file: file.into(), source }
    }
    /// A structural error of `file`.
    pub fn format(file: &str, what: impl Into<String>) -> Self {
        Self::Format { file: file.into(), what: what.into() }
    }
    /// An error of one tensor.
    pub fn tensor(file: &str, tensor: &str, what: impl Into<String>) -> Self {
        Self::Tensor { file: file.into(), tensor: tensor.into(), what: what.into() }
    }
    /// An error of one metadata key; of the field behind it, if `file` is a checkpoint's configuration.
    pub fn key(file: &str, key: &str, what: impl Into<String>) -> Self {
        let is_config = std::path::Path::new(file).file_name().is_some_and(|name| name == CONFIG);
        if let Some(fields) = fields_of(key).filter(|_| is_config) {
            return Self::format(file, format!("field {fields} {}", what.into()));
        }
        Self::Key { file: file.into(), key: key.into(), what: what.into() }
    }
}
