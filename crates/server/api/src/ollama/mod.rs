//! Ollama's dialect, both ways. Streams are lines of JSON, and streaming is what clients get who do not say.

mod answer;
mod body;
pub mod chat;
pub mod embed;
pub mod error;
mod fields;
pub mod generate;
mod load;
mod messages;
pub mod models;
mod reader;
mod stream;

pub use load::{Call, Load};
pub use reader::{LineReader, usage_in};
pub use stream::LineWriter;
