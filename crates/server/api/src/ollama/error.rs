//! Errors in Ollama's form. Written by the server and the gateway; parsed from providers.

use serde_json::{Value, json};

use crate::openai::error::unreadable;
use crate::{ApiError, ErrorKind, overflow};

/// Endpoints that change the models on disk, which Octet does from its command line only.
const REFUSED: [(&str, &str); 6] = [
    ("/api/pull", "get models with `octet pull`"),
    ("/api/push", "models are not published"),
    ("/api/create", "create a GGUF file with another program, and pass it to `octet serve`"),
    ("/api/copy", "name models with --alias"),
    ("/api/delete", "remove models with `octet rm`"),
    ("/api/blobs", "get models with `octet pull`"),
];

/// The body of an error response, and the last line of a failed stream: `{"error": "..."}`.
pub fn body(error: &ApiError) -> Value {
    json!({"error": error.message})
}

/// Parses a provider's error from its status and body, which only has a message.
pub fn parse(status: u16, body: &[u8]) -> ApiError {
    let message = serde_json::from_slice::<Value>(body)
        .ok()
        .and_then(|v| v["error"].as_str().map(str::to_string))
        .filter(|m| !m.is_empty());
    match message {
        Some(message) => error_from_message(message, Some(status)),
        None => ApiError::new(ErrorKind::from_status(status), unreadable(status, body)),
    }
}

/// Parses an error in a stream, or in a response with status 200.
pub fn in_stream(json: &[u8]) -> ApiError {
    let value: Value = serde_json::from_slice(json).unwrap_or_default();
    error_from_message(
        value["error"].as_str().unwrap_or("the provider returned an error without a message").into(),
        None,
    )
}

/// An error with this message, of a response or a stream (which has no status).
pub(super) fn error_from_message(message: String, status: Option<u16>) -> ApiError {
    // The dialect has no error codes.
    let kind = match status {
        _ if overflow::may_be(status) && overflow::is_overflow(&message) => ErrorKind::ContextLength,
        Some(status) => ErrorKind::from_status(status),
        None => ErrorKind::Upstream,
    };
    ApiError::new(kind, message)
}

/// The error for an Ollama endpoint that is not supported, such as `/api/pull`, with an alternative.
pub fn unsupported_path(path: &str) -> ApiError {
    let known = REFUSED
        .iter()
        .find(|(p, _)| path.strip_prefix(p).is_some_and(|r| r.is_empty() || r.starts_with('/')));
    match known {
        Some((name, instead)) => {
            ApiError::new(ErrorKind::NotFound, format!("{name} is not supported: {instead}"))
        }
        None => ApiError::new(ErrorKind::NotFound, "there is no such endpoint"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_refused_by_name() {
        assert_eq!(
            unsupported_path("/api/pull").message,
            "/api/pull is not supported: get models with `octet pull`"
        );
        assert!(unsupported_path("/api/blobs/sha256:12").message.starts_with("/api/blobs is"));
        assert_eq!(unsupported_path("/api/pulled").message, "there is no such endpoint");
        assert_eq!(body(&unsupported_path("/x")), json!({"error": "there is no such endpoint"}));
    }
}
