//! Anthropic's dialect.

pub mod count_tokens;
pub mod error;
pub mod messages;
pub mod models;

/// Stands where clients expect the proof that reasoning is a provider's own, on reasoning of models that prove nothing. Not
/// empty, for there are clients that drop unsigned reasoning; known, so that it is never taken for a real one.
pub const UNSIGNED: &str = "octet-unsigned";
