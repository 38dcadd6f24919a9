//! Errors in Ollama's shape. Written by the server and the gateway.

use serde_json::{Value, json};

use crate::openai::error::unreadable;
use crate::{ApiError, ErrorKind};

/// Endpoints that change the models on disk, which this server does from its command line only.
const REFUSED: [(&str, &str); 6] = [
    ("/api/pull", "get models with `octet pull`"),
    ("/api/push", "models are not published"),
    (
        "/api/create",
        "models are made by other programs; put files of them into a folder, and name that to `octet serve`",
    ),
    ("/api/copy", "name models with --alias"),
    ("/api/delete", "remove models with `octet rm`"),
    ("/api/blobs", "get models with `octet pull`"),
];

/// The body of an answer that is an error, and the last line of a stream that fails: `{"error": "..."}`.
pub fn body(error: &ApiError) -> Value {
    json!({"error": error.message})
}

/// A provider's error, from its answer's status and body: a sentence is all that it says.
pub fn parse(status: u16, body: &[u8]) -> ApiError {
    let message = serde_json::from_slice::<Value>(body)
        .ok()
        .and_then(|v| v["error"].as_str().map(str::to_string))
        .filter(|m| !m.is_empty());
    match message {
        Some(message) => said(message, Some(status)),
        None => ApiError::new(ErrorKind::from_status(status), unreadable(status, body)),
    }
}

/// An error within a stream, or one that has the status of success.
pub fn in_stream(json: &[u8]) -> ApiError {
    let value: Value = serde_json::from_slice(json).unwrap_or_default();
    said(value["error"].as_str().unwrap_or("the provider failed and does not say why").into(), None)
}

/// An error of an answer, or of a stream (where there is no status).
pub(super) fn said(message: String, status: Option<u16>) -> ApiError {
    // There are no codes in this dialect.
    let too_long = ["exceeds the context", "exceeds maximum context", "context length"];
    let kind = match status {
        Some(400) | None if too_long.iter().any(|t| message.contains(t)) => ErrorKind::ContextLength,
        Some(status) => ErrorKind::from_status(status),
        None => ErrorKind::Upstream,
    };
    ApiError::new(kind, message)
}

/// What to answer on a path of Ollama's that is not served: `/api/pull` and the like by name, with what to do instead.
pub fn unserved(path: &str) -> ApiError {
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
        assert_eq!(unserved("/api/pull").message, "/api/pull is not supported: get models with `octet pull`");
        assert!(unserved("/api/blobs/sha256:12").message.starts_with("/api/blobs is"));
        assert_eq!(unserved("/api/pulled").message, "there is no such endpoint");
        assert_eq!(body(&unserved("/x")), json!({"error": "there is no such endpoint"}));
    }
}
