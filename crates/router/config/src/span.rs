//! Where something stands in the user's file, and what there is to say about it. Used by every error and note.

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

/// Something that a user should know and that stops nothing: a key without a meaning here, a key that stands in the open.
/// Printed as `octet.yaml:12:7: litellm_settings.alerting: ...`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// Where.
    pub span: Span,
    /// The key, with those that it stands under: `general_settings.database_url`.
    pub key: String,
    /// What it does not do, and what to do instead.
    pub text: String,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.span, printable(&self.key), printable(&self.text))
    }
}
