//! Signatures of reasoning: whose they are. Each provider verifies its own and refuses others, so this server marks all but Anthropic's by
//! a prefix before clients get them.

/// Placeholder signature for reasoning of models that do not sign it. Not empty, since some clients drop unsigned reasoning; a fixed
/// text, so that it is never mistaken for a real signature.
pub const UNSIGNED: &str = "octet-unsigned";

/// Prefix of Gemini's signatures.
pub(crate) const GEMINI: &str = "gemini#";
/// Prefix of signatures of other models at Bedrock.
pub(crate) const BEDROCK: &str = "bedrock#";
/// Prefix of encrypted reasoning of OpenAI's models.
pub(crate) const OPENAI: &str = "openai#";

/// How the signatures of other programs than Anthropic begin.
pub const FOREIGN_PROOFS: [&str; 4] = [UNSIGNED, GEMINI, BEDROCK, OPENAI];

/// Whether a signature, or encrypted reasoning, may be Anthropic's.
pub fn is_own_proof(proof: &str) -> bool {
    !proof.is_empty() && !FOREIGN_PROOFS.iter().any(|foreign| proof.starts_with(foreign))
}
