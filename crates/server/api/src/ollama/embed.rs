//! `/api/embed`, and the older `/api/embeddings`.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::answer::nanoseconds;
use super::fields;
use crate::ApiError;
use crate::core::{EmbedRequest, Embeddings, MemoryHandle, Prompt, VectorEncoding};
use crate::json::{self, Field, Object, Result};
use crate::reader;
use crate::rules::refused;

/// Parses the body of a `POST /api/embed`: texts, or none. The vectors are normalised to length 1.
///
/// # Errors
/// Fields that are unknown, not supported, of the wrong type or out of range, by name.
pub fn parse(body: &[u8]) -> Result<EmbedRequest> {
    let mut o = json::parse(body)?;
    // No input only loads the model.
    let inputs = match o.take("input") {
        Some(f) if f.as_str() == Some("") => Vec::new(),
        Some(f) if f.is_string() => vec![f.string()?],
        Some(f) if f.is_array() => f.list(Field::name)?,
        Some(f) => return Err(f.expected("a string, or an array of non-empty strings")),
        None => Vec::new(),
    };
    // This dialect's default, which clients rely on.
    let truncate = o.read("truncate", Field::bool)?.unwrap_or(true);
    let dimensions = o.read("dimensions", |f| f.count(0..=u32::MAX))?.filter(|n| *n > 0);
    let r = request(&mut o, inputs)?;
    let warnings = o.warnings();
    o.finish(&[&[("prompt", refused("it belongs to /api/embeddings; send 'input'"))]])?;
    Ok(EmbedRequest { truncate, dimensions, warnings: warnings.take(), ..r })
}

/// Parses the body of a `POST /api/embeddings`: one text, whose vector is not normalised.
///
/// # Errors
/// Fields that are unknown, not supported, of the wrong type or out of range, by name.
pub fn parse_old(body: &[u8]) -> Result<EmbedRequest> {
    let mut o = json::parse(body)?;
    let prompt = o.require("prompt")?.name()?;
    let r = request(&mut o, vec![prompt])?;
    let warnings = o.warnings();
    o.finish(&[&[("input", refused("it belongs to /api/embed; send 'prompt'"))]])?;
    Ok(EmbedRequest { warnings: warnings.take(), ..r })
}

fn request(o: &mut Object, inputs: Vec<String>) -> Result<EmbedRequest> {
    let model = o.model()?;
    // Sampling has no effect here; options are parsed to find mistakes.
    let options = fields::options(o)?;
    Ok(EmbedRequest {
        model,
        inputs: inputs.into_iter().map(Prompt::Text).collect(),
        dimensions: None,
        encoding: VectorEncoding::Float,
        truncate: false,
        timeout: o.timeout()?,
        keep_alive: fields::keep_alive(o)?,
        context_length: options.context_length,
        user: None,
        extra: Map::new(),
        warnings: Vec::new(),
        memory: MemoryHandle::default(),
    })
}

/// The request for a provider whose name of the model is `model`.
///
/// # Errors
/// Inputs that are tokens: only the model's own tokenizer knows them.
pub fn body(request: &EmbedRequest, model: &str) -> Result<Map<String, Value>> {
    let input = |p: &Prompt| match p {
        Prompt::Text(text) => Ok(Value::from(text.as_str())),
        Prompt::Tokens(_) | Prompt::Mixed(_) => Err(ApiError::invalid(
            "input",
            "the provider accepts only texts, but an input is a list of tokens",
        )),
    };
    let mut out = Map::new();
    out.insert("model".into(), model.into());
    out.insert("input".into(), request.inputs.iter().map(input).collect::<Result<_>>()?);
    out.insert("truncate".into(), request.truncate.into());
    if let Some(n) = request.dimensions {
        out.insert("dimensions".into(), n.into());
    }
    if let Some(keep) = request.keep_alive {
        out.insert("keep_alive".into(), super::body::keep_alive(keep));
    }
    if let Some(n) = request.context_length {
        out.insert("options".into(), json!({"num_ctx": n}));
    }
    Ok(out)
}

/// Parses the vectors of a provider's answer.
///
/// # Errors
/// A body that is not an answer.
pub fn read(body: &[u8]) -> Result<Embeddings> {
    #[derive(Deserialize)]
    struct Wire {
        #[serde(default)]
        model: String,
        embeddings: Vec<Vec<f32>>,
        #[serde(default)]
        prompt_eval_count: u64,
        #[serde(default)]
        total_duration: u64,
        #[serde(default)]
        load_duration: u64,
    }
    let wire: Wire = reader::read(body)?;
    Ok(Embeddings {
        id: String::new(),
        model: wire.model,
        vectors: wire.embeddings,
        prompt_tokens: wire.prompt_eval_count,
        total_ms: wire.total_duration as f64 / 1e6,
        load_ms: wire.load_duration as f64 / 1e6,
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
