//! Google's `generateContent`, towards providers only: requests ([`body()`]), answers ([`events`], [`ContentReader`]), errors and
//! embeddings. Called by the gateway.

mod body;
pub mod embed;
pub mod error;
mod reader;

pub use body::{Provider, body};
pub use reader::{ContentReader, events};

/// Stands before Gemini's proofs that reasoning is its own, so that they are never sent to another provider, nor another's
/// to it.
pub(crate) const SIGNED: &str = "gemini#";
