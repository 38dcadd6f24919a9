//! Keys of providers and of this server, which never appear in logs, errors and `{:?}`. Created when the configuration is read.

use std::fmt;
use std::sync::Arc;

/// A key that is sent or compared, and never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<str>);

impl Secret {
    /// Wraps a secret without surrounding white space. `None` if it is empty: an empty variable must not
    /// grant access.
    pub fn new(text: &str) -> Option<Self> {
        let text = text.trim();
        (!text.is_empty()).then(|| Self(text.into()))
    }

    /// Wraps a text unchanged, also an empty one: the value of a process' variable.
    pub(crate) fn verbatim(text: &str) -> Self {
        Self(text.into())
    }

    /// The secret itself, to be sent or compared.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(***)")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}
