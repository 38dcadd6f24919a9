//! `/v1/messages/count_tokens`.

use serde_json::{Value, json};

use crate::ApiError;
use crate::core::GenerateRequest;

/// Parses a request: a messages request without the fields that concern the answer.
///
/// # Errors
/// As [`messages::parse`](super::messages::parse).
pub fn parse(body: &[u8]) -> Result<GenerateRequest, ApiError> {
    super::messages::parse_to_count(body)
}

/// The response body.
pub fn response(input_tokens: u64) -> Value {
    json!({"input_tokens": input_tokens})
}
