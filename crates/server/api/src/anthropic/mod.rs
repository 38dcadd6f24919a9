//! Anthropic's dialect.

pub mod count_tokens;
pub mod error;
pub mod messages;
pub mod models;

pub use crate::proofs::{FOREIGN_PROOFS, UNSIGNED, is_own_proof};
