//! Keys of providers and of this server: kept out of logs, errors and `{:?}`. Made where the configuration is read.

use std::fmt;
use std::sync::Arc;

/// A key that is sent or compared, and never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<str>);

impl Secret {
    /// Wraps a secret; white space around it is dropped. `None` where nothing is left: an empty variable must not
    /// open a door.
    pub fn new(text: &str) -> Option<Self> {
        let text = text.trim();
        (!text.is_empty()).then(|| Self(text.into()))
    }

    /// A text as it is, also an empty one: the value of a variable that a process gets.
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
