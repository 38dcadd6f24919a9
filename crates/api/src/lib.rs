//! The languages that clients and providers speak: OpenAI's, Anthropic's and Ollama's, each read into and written from one
//! neutral form ([`core`]). The server runs that on its engine; the gateway hands it on to a provider in the provider's
//! own dialect. No engine, no HTTP, no async: bytes in, bytes out.
//!
//! Requests are read strictly: what is unknown or not supported is refused by name, with its path. Providers' answers are read
//! leniently: they may say more than we know.

pub mod anthropic;
pub mod core;
pub mod dialect;
mod error;
mod json;
pub mod ndjson;
pub mod ollama;
pub mod openai;
pub mod sse;
mod time;

pub use error::{ApiError, ErrorKind};
