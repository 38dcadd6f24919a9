//! llama-server's own dialect: completions, infill, embeddings and reranking. (Chat is OpenAI's dialect; `/tokenize` and the like are in
//! [`tokens`](crate::tokens).)

mod answer;
mod embeddings;
mod request;
pub mod rerank;
mod stream;

pub use answer::response;
pub use embeddings::{parse as embeddings, response as vectors};
pub use request::{completion, infill};
pub use stream::Writer;
