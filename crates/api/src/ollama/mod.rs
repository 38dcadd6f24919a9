//! Ollama's dialect, towards clients. Streams are lines of JSON, and streaming is what clients get who do not say.

mod answer;
pub mod chat;
pub mod embed;
pub mod error;
mod fields;
pub mod generate;
mod load;
mod messages;
pub mod models;
mod stream;

pub use load::{Call, Load};
pub use stream::LineWriter;
