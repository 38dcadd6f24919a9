//! llama-server's `/embedding` and `/embeddings`.

use serde_json::{Map, Value, json};

use crate::core::{EmbedRequest, Embeddings, MemoryHandle, VectorEncoding};
use crate::json::{self, Field, Result};
use crate::openai;

/// Parses the body. The model may be omitted. Also returns whether the vectors are normalised to length 1.
///
/// # Errors
/// Fields that are missing, of the wrong type or out of range, by name.
pub fn parse(body: &[u8]) -> Result<(EmbedRequest, bool)> {
    let mut o = json::parse(body)?;
    let model = o.model()?;
    let input = match o.take_any(&["content", "input"])? {
        Some(f) => f,
        None => o.require("content")?,
    };
    let inputs = openai::prompts(input)?;
    o.only(
        "encoding_format",
        &["float".into()],
        "vectors are arrays of numbers here; send it to /v1/embeddings",
    )?;
    let norm = o.read("embd_normalize", |f: Field| {
        let n = f.value().as_i64();
        if matches!(n, Some(-1 | 2)) {
            Ok(n == Some(2))
        } else {
            Err(f.expected("2 (length 1) or -1 (as they are)"))
        }
    })?;
    let timeout = o.timeout()?;
    let warnings = o.warnings();
    o.finish(&[])?;
    let request = EmbedRequest {
        warnings: warnings.take(),
        model,
        inputs,
        dimensions: None,
        encoding: VectorEncoding::Float,
        timeout,
        truncate: false,
        keep_alive: None,
        context_length: None,
        user: None,
        extra: Map::new(),
        memory: MemoryHandle::default(),
    };
    Ok((request, norm.unwrap_or(true)))
}

/// The response body: an array with one vector per input.
pub fn response(embeddings: &Embeddings) -> Vec<u8> {
    let one = |(i, vector): (usize, &Vec<f32>)| json!({"index": i, "embedding": [vector]});
    let all: Vec<Value> = embeddings.vectors.iter().enumerate().map(one).collect();
    Value::Array(all).to_string().into_bytes()
}
