//! Models, caches, tokens and sampling: everything between a prompt and its text. No HTTP and no async; JSON only
//! where models bring it, in chats' messages and `tokenizer.json`.

pub mod bench;
pub mod cache;
pub mod detokenizer;
pub mod engine;
mod error;
pub mod experts;
pub mod models;
pub mod report;
pub mod sampler;
pub mod scheduler;
pub mod score;
pub mod template;
pub mod tokenizer;

pub use error::Error;
