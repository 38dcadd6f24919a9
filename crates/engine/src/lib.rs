//! Models, caches, tokens and sampling: everything between a prompt and its text. No HTTP, no JSON, no async.

pub mod bench;
pub mod cache;
mod error;
pub mod models;
pub mod report;

pub use error::Error;
