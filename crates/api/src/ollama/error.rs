//! Errors in Ollama's shape. Written by the server and the gateway.

use serde_json::{Value, json};

use crate::{ApiError, ErrorKind};

/// Endpoints that change the models on disk, which this server does from its command line only.
const REFUSED: [(&str, &str); 6] = [
    ("/api/pull", "get models with `octet pull`"),
    ("/api/push", "models are not published"),
    ("/api/create", "make models with `octet quantize`"),
    ("/api/copy", "name models with --alias"),
    ("/api/delete", "remove models with `octet rm`"),
    ("/api/blobs", "get models with `octet pull`"),
];

/// The body of an answer that is an error, and the last line of a stream that fails: `{"error": "..."}`.
pub fn body(error: &ApiError) -> Value {
    json!({"error": error.message})
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
