//! Anthropic's dialect.

pub mod count_tokens;
pub mod error;
pub mod messages;
pub mod models;

/// Placeholder signature for reasoning of models that do not sign it. Not empty, since some clients drop unsigned reasoning; a fixed
/// text, so that it is never mistaken for a real signature.
pub const UNSIGNED: &str = "octet-unsigned";

/// How the signatures of other programs begin, as this server writes them for its clients.
pub const FOREIGN_PROOFS: [&str; 4] =
    [UNSIGNED, crate::gemini::SIGNED, crate::bedrock::SIGNED, crate::openai::responses::ENCRYPTED];

/// Whether a signature, or encrypted reasoning, may be Anthropic's; the provider refuses others.
pub fn is_own_proof(proof: &str) -> bool {
    !proof.is_empty() && !FOREIGN_PROOFS.iter().any(|foreign| proof.starts_with(foreign))
}
