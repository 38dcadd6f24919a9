//! An embedding request and its answer, independent of dialects. Requests come from the dialects' parsers; answers from the server.

use std::time::Duration;

use serde_json::{Map, Value};

use super::{KeepAlive, MemoryHandle, Prompt};
use crate::{ApiError, Warning};

/// Texts to embed. `None` means that the client did not set a value.
#[derive(Debug, Clone, PartialEq)]
pub struct EmbedRequest {
    /// The model's name as the client knows it.
    pub model: String,
    /// The texts, one vector each; none empty. Only Ollama's dialect allows no text at all: it loads the model.
    pub inputs: Vec<Prompt>,
    /// Length of the vectors, if shorter than the model's.
    pub dimensions: Option<u32>,
    /// Encoding of the vectors.
    pub encoding: VectorEncoding,
    /// Cut texts that exceed the context, instead of refusing them.
    pub truncate: bool,
    /// The client's own limit of the time until the answer.
    pub timeout: Option<Duration>,
    /// How long the model stays loaded afterwards.
    pub keep_alive: Option<KeepAlive>,
    /// The context that the client requests, in tokens (Ollama's `num_ctx`).
    pub context_length: Option<u32>,
    /// The client's end user.
    pub user: Option<String>,
    /// Fields without effect here. A provider gets those that it knows (`input_type`, `task_type`).
    pub extra: Map<String, Value>,
    /// Accepted fields that have no effect.
    pub warnings: Vec<Warning>,
    /// The memory that it takes in the server.
    pub memory: MemoryHandle,
}

/// Encoding of a vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum VectorEncoding {
    /// An array of numbers.
    #[default]
    Float,
    /// Little-endian f32 as base64.
    Base64,
}

/// The answer to an [`EmbedRequest`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Embeddings {
    /// Unique to this answer; empty if its provider gave none.
    pub id: String,
    /// The model's name as the client knows it.
    pub model: String,
    /// In the order of the inputs, all of the same length.
    pub vectors: Vec<Vec<f32>>,
    /// Tokens of all inputs.
    pub prompt_tokens: u64,
    /// Total time.
    pub total_ms: f64,
    /// Time to load the model; 0 if it was loaded.
    pub load_ms: f64,
}

impl Embeddings {
    /// Truncates the vectors to `dimensions` and normalises them to length 1 again, as OpenAI does. Only valid for models trained for
    /// it (Matryoshka); the caller must know.
    ///
    /// # Errors
    /// If the vectors are shorter.
    pub fn shorten(&mut self, dimensions: u32) -> Result<(), ApiError> {
        let wanted = dimensions as usize;
        let have = self.vectors.iter().map(Vec::len).min().unwrap_or(wanted);
        if wanted > have {
            let what = format!(
                "'dimensions' is {dimensions}, but the model's vectors have {have}; ask for at most that"
            );
            return Err(ApiError::invalid("dimensions", what));
        }
        for v in &mut self.vectors {
            v.truncate(wanted);
            let length = v.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
            if length > 0.0 {
                v.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortened_vectors_have_length_one() {
        let mut e =
            Embeddings { vectors: vec![vec![3.0, 4.0, 12.0], vec![0.0, 0.0, 1.0]], ..Embeddings::default() };
        e.shorten(2).unwrap();
        assert_eq!(e.vectors, [[0.6, 0.8], [0.0, 0.0]]);
        assert_eq!(e.shorten(3).unwrap_err().param.as_deref(), Some("dimensions"));
    }
}
