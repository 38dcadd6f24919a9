//! Amazon Bedrock's `Converse`, for providers only: requests ([`body()`]), answers ([`events`], [`ConverseReader`]), errors. Also the
//! frames of its streams, which it also uses for Anthropic's messages ([`InvokedReader`]).

mod body;
pub mod embed;
pub mod error;
mod frames;
mod reader;

pub use body::body;
pub use reader::{ConverseReader, InvokedReader, events};

/// Prefix of Bedrock's signatures, so that they are never sent to another provider, nor another's to Bedrock.
use crate::proofs::BEDROCK as SIGNED;
