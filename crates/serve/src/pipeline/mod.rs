//! From a request in no dialect to the events of its answer. Called by `http`; knows the engine, and no dialect.

mod answer;
mod constraint;
mod embed;
mod plan;
mod prompt;
mod run;

pub use embed::embed;
pub use prompt::chat as chat_prompt;
pub use run::{Run, acquire, unknown};
