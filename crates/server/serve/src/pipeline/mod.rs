//! From a request in neutral form to the events of its answer. Independent of API dialects.

mod acquire;
mod answer;
mod answer_reader;
mod blocking_pool;
mod constraint;
mod deadline;
mod embed;
mod errors;
mod images;
mod one_by_one;
mod plan;
mod prompt;
mod rerank;
mod run;
mod sampling;

pub use acquire::acquire;
pub use answer_reader::{AnswerReader, ReaderEnd};
pub use blocking_pool::BlockingPool;
pub use deadline::Deadline;
pub use embed::embed;
pub use errors::{draining, unknown, unnamed};
pub use prompt::{Job, Purpose, Rendered, chat as chat_prompt, text as text_tokens};
pub use rerank::rank;
pub use run::Run;
pub use sampling::described;
