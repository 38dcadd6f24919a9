//! Anthropic's dialect.

pub mod count_tokens;
pub mod error;
pub mod messages;
pub mod models;

/// Placeholder signature for reasoning of models that do not sign it. Not empty, since some clients drop unsigned reasoning; a fixed
/// text, so that it is never mistaken for a real signature.
pub const UNSIGNED: &str = "octet-unsigned";
