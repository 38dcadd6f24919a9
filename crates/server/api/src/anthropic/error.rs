//! Errors in Anthropic's shape. Written by the server and the gateway; read from providers.

use serde_json::{Value, json};

use crate::openai::error::unreadable;
use crate::{ApiError, ErrorKind, overflow};

/// The body of an error response: `{"type": "error", "error": {"type", "message"}, "request_id"}`.
pub fn body(error: &ApiError, request_id: Option<&str>) -> Value {
    // Anthropic's own words: clients that shorten a conversation which is too long look for them.
    let words = match error.kind {
        ErrorKind::ContextLength if !error.message.starts_with(TOO_LONG) => format!("{TOO_LONG}: "),
        _ => String::new(),
    };
    let mut inner = json!({"type": type_name(error.kind), "message": format!("{words}{}", error.message)});
    if error.param.as_deref() == Some("thread") {
        // Anthropic's clients then send the whole conversation.
        inner["details"] = json!({"error_code": "thread_unsupported_request", "unsupported": ["thread"]});
    }
    json!({"type": "error", "error": inner, "request_id": request_id})
}

/// How Anthropic's message for a prompt that exceeds the context begins.
const TOO_LONG: &str = "prompt is too long";

const TYPES: [(ErrorKind, &str); 13] = [
    (ErrorKind::InvalidRequest, "invalid_request_error"),
    (ErrorKind::ContextLength, "invalid_request_error"),
    (ErrorKind::ContentPolicy, "invalid_request_error"),
    (ErrorKind::Authentication, "authentication_error"),
    (ErrorKind::Permission, "permission_error"),
    (ErrorKind::NotFound, "not_found_error"),
    (ErrorKind::TooLarge, "request_too_large"),
    (ErrorKind::RateLimit, "rate_limit_error"),
    (ErrorKind::Overloaded, "overloaded_error"),
    (ErrorKind::Timeout, "timeout_error"),
    (ErrorKind::ClientTimeout, "timeout_error"),
    (ErrorKind::Upstream, "api_error"),
    (ErrorKind::Internal, "api_error"),
];

fn type_name(kind: ErrorKind) -> &'static str {
    TYPES.iter().find(|(k, _)| *k == kind).map_or("api_error", |(_, name)| name)
}

/// Parses a provider's error from its status and body.
pub fn parse(status: u16, body: &[u8]) -> ApiError {
    match serde_json::from_slice::<Value>(body) {
        Ok(value) if value["error"].is_object() => from_value(&value, Some(status)),
        _ => ApiError::new(ErrorKind::from_status(status), unreadable(status, body)),
    }
}

/// Parses an error in a stream, or in a response with status 200.
pub fn in_stream(json: &[u8]) -> ApiError {
    from_value(&serde_json::from_slice(json).unwrap_or_default(), None)
}

/// Parses an error object, of a response or a stream (which has no status).
pub(crate) fn from_value(value: &Value, status: Option<u16>) -> ApiError {
    let error = &value["error"];
    let name = error["type"].as_str().unwrap_or("");
    let message = error["message"].as_str().unwrap_or("the provider returned an error without a message");
    let too_long = overflow::may_be(status) && name != "rate_limit_error" && overflow::is_overflow(message);
    let kind = match TYPES.iter().find(|(_, n)| *n == name) {
        _ if too_long => ErrorKind::ContextLength,
        Some((ErrorKind::Upstream, _)) => ErrorKind::Upstream,
        Some((kind, _)) => *kind,
        None if name == "billing_error" => ErrorKind::Permission,
        None => status.map_or(ErrorKind::Upstream, ErrorKind::from_status),
    };
    ApiError::new(kind, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_values_parse_back() {
        for (kind, name) in TYPES {
            let said = if kind == ErrorKind::ContextLength { "prompt is too long: m" } else { "m" };
            let e = ApiError::new(kind, "m");
            let v = body(&e, Some("req_1"));
            assert_eq!(
                v,
                json!({"type": "error", "error": {"type": name, "message": said}, "request_id": "req_1"})
            );
            let read = parse(kind.status(), v.to_string().as_bytes());
            assert_eq!(type_name(read.kind), name);
        }
        let threads = ApiError::invalid("thread", "'thread' is not supported");
        assert_eq!(body(&threads, None)["error"]["details"]["error_code"], "thread_unsupported_request");
        let long = br#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 9 tokens > 5 maximum"}}"#;
        assert_eq!(parse(400, long).kind, ErrorKind::ContextLength);
        assert_eq!(
            body(&parse(400, long), None)["error"]["message"],
            "prompt is too long: 9 tokens > 5 maximum"
        );
        assert_eq!(parse(529, b"<html>").kind, ErrorKind::Overloaded);
        assert_eq!(parse(500, b"{}").message, "status 500: {}");
    }
}
