//! Ollama's dialect, for clients and providers. Streams are newline-delimited JSON, and streaming is the default.

mod answer;
mod body;
pub mod chat;
mod context;
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
