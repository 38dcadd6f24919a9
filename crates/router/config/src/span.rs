//! Places in the user's file, and notes about them.

use std::fmt;
use std::sync::Arc;

use crate::printable;

/// A place in a file. Printed as `octet.yaml:12:7`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// The file as the user named it, or as an `include` did.
    pub file: Arc<str>,
    /// Line, counted from 1.
    pub line: u32,
    /// Column in characters, counted from 1.
    pub column: u32,
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", printable(&self.file), self.line, self.column)
    }
}

/// A note that is not an error: a key without effect here, a secret in plain text.
/// Printed as `octet.yaml:12:7: litellm_settings.alerting: ...`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// Its place.
    pub span: Span,
    /// The key's path: `general_settings.database_url`.
    pub key: String,
    /// The note, and what to do instead.
    pub text: String,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.span, printable(&self.key), printable(&self.text))
    }
}
