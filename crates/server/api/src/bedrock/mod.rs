//! Amazon Bedrock's `Converse`, towards providers only: requests ([`body()`]), answers ([`events`], [`ConverseReader`]), errors. Also the
//! frames in which its streams come, which Anthropic's messages do there, too ([`InvokedReader`]). Called by the gateway.

mod body;
pub mod embed;
pub mod error;
mod frames;
mod reader;

pub use body::body;
pub use reader::{ConverseReader, InvokedReader, events};

/// Stands before a proof that reasoning is Bedrock's own, so that it is never sent to another provider, nor another's to it.
pub(crate) const SIGNED: &str = "bedrock#";
