//! `/api/embed`, and the older `/api/embeddings`. Called by the server and the gateway.

use serde::Serialize;

use super::answer::nanoseconds;
use super::fields;
use crate::core::{EmbedRequest, Embeddings, Prompt, VectorEncoding};
use crate::json::{self, Field, Object, Result};

/// Reads the body of a `POST /api/embed`: one text or several. Their vectors are to have length 1.
///
/// # Errors
/// Fields that are unknown, not supported, of the wrong type or out of range, by name.
pub fn parse(body: &[u8]) -> Result<EmbedRequest> {
    let mut o = json::parse(body)?;
    let input = o.require("input")?;
    let what = "a string that is not empty, or an array of at least one";
    let wrong = input.expected(what);
    let inputs = if input.is_string() { vec![input.name()?] } else { input.list(Field::name)? };
    if inputs.is_empty() {
        return Err(wrong);
    }
    // This dialect's own default: clients that say nothing count on it.
    let truncate = o.read("truncate", Field::bool)?.unwrap_or(true);
    let dimensions = o.read("dimensions", |f| f.count(0..=u32::MAX))?.filter(|n| *n > 0);
    let r = request(&mut o, inputs)?;
    o.finish(&[("prompt", "it belongs to /api/embeddings; send 'input'")])?;
    Ok(EmbedRequest { truncate, dimensions, ..r })
}

/// Reads the body of a `POST /api/embeddings`: one text, whose vector is given as the model has it.
///
/// # Errors
/// Fields that are unknown, not supported, of the wrong type or out of range, by name.
pub fn parse_old(body: &[u8]) -> Result<EmbedRequest> {
    let mut o = json::parse(body)?;
    let prompt = o.require("prompt")?.name()?;
    let r = request(&mut o, vec![prompt])?;
    o.finish(&[("input", "it belongs to /api/embed; send 'prompt'")])?;
    Ok(r)
}

fn request(o: &mut Object, inputs: Vec<String>) -> Result<EmbedRequest> {
    let model = o.require("model")?.name()?;
    // Sampling means nothing here; options are read so that mistakes are found.
    let options = fields::options(o)?;
    Ok(EmbedRequest {
        model,
        inputs: inputs.into_iter().map(Prompt::Text).collect(),
        dimensions: None,
        encoding: VectorEncoding::Float,
        truncate: false,
        keep_alive: fields::keep_alive(o)?,
        context_length: options.context_length,
        user: None,
    })
}

#[derive(Serialize)]
struct Response<'a> {
    model: &'a str,
    embeddings: &'a [Vec<f32>],
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: u64,
}

/// The body of the answer to `/api/embed`.
pub fn response(e: &Embeddings) -> Vec<u8> {
    crate::json::to_bytes(&Response {
        model: &e.model,
        embeddings: &e.vectors,
        total_duration: nanoseconds(e.total_ms),
        load_duration: nanoseconds(e.load_ms),
        prompt_eval_count: e.prompt_tokens,
    })
}

#[derive(Serialize)]
struct OldResponse<'a> {
    embedding: &'a [f32],
}

/// The body of the answer to `/api/embeddings`.
pub fn response_old(e: &Embeddings) -> Vec<u8> {
    crate::json::to_bytes(&OldResponse { embedding: e.vectors.first().map_or(&[], Vec::as_slice) })
}
