//! Google's `generateContent`: for clients ([`parse`], [`response`], [`ContentWriter`]) and for providers ([`body()`], [`events`],
//! [`ContentReader`]); errors, models, embeddings.

mod answer;
mod body;
mod content;
pub mod count_tokens;
pub mod embed;
pub mod error;
pub mod models;
mod proof;
mod reader;
mod request;
mod schema;
mod stream;
mod usage;

pub use answer::response;
pub use body::{Provider, body};
pub use reader::{ContentReader, events};
pub use request::parse;
pub use stream::ContentWriter;
pub use usage::usage_in;

/// Prefix of Gemini's signatures, so that they are never sent to another provider, nor another's to Gemini.
use crate::proofs::GEMINI as SIGNED;
