//! Gemini's `batchEmbedContents`. Called by the gateway.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::ApiError;
use crate::core::{EmbedRequest, Embeddings, Prompt};
use crate::reader;

/// The request for a provider that knows the model as `model`.
///
/// # Errors
/// Inputs that are tokens: only the model's own tokenizer knows them.
pub fn body(request: &EmbedRequest, model: &str) -> Result<Map<String, Value>, ApiError> {
    let model = if model.starts_with("models/") { model.to_string() } else { format!("models/{model}") };
    let one = |input: &Prompt| {
        let Prompt::Text(text) = input else {
            return Err(ApiError::invalid("input", "the provider takes texts only, and an input is tokens"));
        };
        let mut one = json!({"model": model, "content": {"parts": [{"text": text}]}});
        if let Some(n) = request.dimensions {
            one["outputDimensionality"] = n.into();
        }
        Ok(one)
    };
    let requests: Vec<Value> = request.inputs.iter().map(one).collect::<Result<_, _>>()?;
    Ok(Map::from_iter([("requests".to_string(), requests.into())]))
}

#[derive(Deserialize)]
struct Wire {
    embeddings: Vec<Vector>,
}

#[derive(Deserialize)]
struct Vector {
    values: Vec<f32>,
}

/// The vectors of an answer. Gemini does not count tokens here.
///
/// # Errors
/// A body that is no answer.
pub fn read(body: &[u8]) -> Result<Embeddings, ApiError> {
    let wire: Wire = reader::read(body)?;
    let vectors = wire.embeddings.into_iter().map(|v| v.values).collect();
    Ok(Embeddings { vectors, ..Embeddings::default() })
}
