//! Models, caches, tokenizers, chat templates, sampling and scheduling: everything between a prompt and its text. Start with `engine`
//! (one step at a time) and `models::decoder` (the forward pass). No HTTP and no async; JSON only in chat messages and
//! `tokenizer.json`.

pub mod bench;
pub mod cache;
pub mod detokenizer;
pub mod device;
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
pub mod vision;

pub use error::Error;
