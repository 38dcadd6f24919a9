//! `countTokens`.

use serde_json::{Value, json};

use crate::ApiError;
use crate::core::GenerateRequest;

/// Parses a request: contents, or a whole `generateContentRequest`; with `model` in it.
///
/// # Errors
/// As [`super::parse`].
pub fn parse(body: &[u8]) -> Result<GenerateRequest, ApiError> {
    super::request::parse_to_count(body)
}

/// The response body.
pub fn response(tokens: u64) -> Value {
    json!({"totalTokens": tokens, "promptTokensDetails": [{"modality": "TEXT", "tokenCount": tokens}]})
}
