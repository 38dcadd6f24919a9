//! Errors in the shape of Google's APIs. Written by the server and the gateway; read from providers.

use serde_json::{Value, json};

use crate::openai::error::unreadable;
use crate::{ApiError, ErrorKind, overflow};

/// The body of an error response: `{"error": {"code", "message", "status", "details"}}`.
pub fn body(error: &ApiError) -> Value {
    let mut inner =
        json!({"code": error.status(), "message": error.message, "status": status_name(error.kind)});
    let mut details = Vec::new();
    if error.kind == ErrorKind::Authentication {
        details.push(json!({"@type": format!("{TYPES}ErrorInfo"), "reason": "API_KEY_INVALID"}));
    }
    if let Some(param) = &error.param {
        let violation = json!({"field": param, "description": error.message});
        details.push(json!({"@type": format!("{TYPES}BadRequest"), "fieldViolations": [violation]}));
    }
    if let Some(seconds) = error.retry_after_s {
        details.push(json!({"@type": format!("{TYPES}RetryInfo"), "retryDelay": format!("{seconds}s")}));
    }
    if !details.is_empty() {
        inner["details"] = details.into();
    }
    json!({"error": inner})
}

/// Prefix of the type names of details.
const TYPES: &str = "type.googleapis.com/google.rpc.";

fn status_name(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::InvalidRequest
        | ErrorKind::ContextLength
        | ErrorKind::ContentPolicy
        | ErrorKind::TooLarge => "INVALID_ARGUMENT",
        ErrorKind::Authentication => "UNAUTHENTICATED",
        ErrorKind::Permission => "PERMISSION_DENIED",
        ErrorKind::NotFound => "NOT_FOUND",
        ErrorKind::RateLimit => "RESOURCE_EXHAUSTED",
        ErrorKind::Overloaded => "UNAVAILABLE",
        ErrorKind::Timeout | ErrorKind::ClientTimeout => "DEADLINE_EXCEEDED",
        ErrorKind::Upstream | ErrorKind::Internal => "INTERNAL",
    }
}

/// Parses an error in a stream, or in a response with status 200.
pub fn in_stream(json: &[u8]) -> ApiError {
    from_value(&serde_json::from_slice(json).unwrap_or_default(), None)
}

/// Parses a provider's error from its status and body.
pub fn parse(status: u16, body: &[u8]) -> ApiError {
    match serde_json::from_slice::<Value>(body) {
        Ok(value) if error_of(&value).is_some() => from_value(&value, Some(status)),
        _ => ApiError::new(ErrorKind::from_status(status), unreadable(status, body)),
    }
}

/// `{"error": {...}}`, or a list of one, as streams have it.
fn error_of(value: &Value) -> Option<&Value> {
    let value = value.as_array().and_then(|list| list.first()).unwrap_or(value);
    value.get("error").filter(|e| e.is_object())
}

/// Parses an error object of a response or a stream.
pub(super) fn from_value(value: &Value, status: Option<u16>) -> ApiError {
    let nothing = Value::Null;
    let error = error_of(value).unwrap_or(&nothing);
    let name = error["status"].as_str().unwrap_or("");
    let message = error["message"].as_str().unwrap_or("the provider returned an error without a message");
    let details = error["details"].as_array().map_or(&[][..], Vec::as_slice);
    let reason = details.iter().find_map(|d| d["reason"].as_str());
    let status = status.or_else(|| error["code"].as_u64().and_then(|n| u16::try_from(n).ok()));
    let kind = match (name, reason) {
        (_, Some("API_KEY_INVALID" | "API_KEY_EXPIRED")) => ErrorKind::Authentication,
        // It has no code of its own.
        ("INVALID_ARGUMENT", _) if overflow::is_overflow(message) => ErrorKind::ContextLength,
        ("INVALID_ARGUMENT" | "FAILED_PRECONDITION" | "OUT_OF_RANGE", _) => ErrorKind::InvalidRequest,
        ("UNAUTHENTICATED", _) => ErrorKind::Authentication,
        ("PERMISSION_DENIED", _) => ErrorKind::Permission,
        ("NOT_FOUND", _) => ErrorKind::NotFound,
        ("RESOURCE_EXHAUSTED", _) => ErrorKind::RateLimit,
        ("UNAVAILABLE", _) => ErrorKind::Overloaded,
        ("DEADLINE_EXCEEDED", _) => ErrorKind::Timeout,
        ("INTERNAL" | "UNKNOWN", _) => ErrorKind::Upstream,
        _ => status.map_or(ErrorKind::Upstream, ErrorKind::from_status),
    };
    let delay = details.iter().find_map(|d| d["retryDelay"].as_str());
    let seconds = delay.and_then(|d| d.strip_suffix('s')).and_then(|d| d.parse::<f64>().ok());
    ApiError {
        code: (!name.is_empty()).then(|| name.to_string()),
        retry_after_s: seconds.filter(|s| s.is_finite() && *s >= 0.0).map(|s| s.ceil() as u64),
        ..ApiError::new(kind, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_of_the_documentation() {
        let cases = [
            (
                400,
                r#"{"error":{"code":400,"message":"API key not valid.","status":"INVALID_ARGUMENT","details":[{"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":"API_KEY_INVALID","domain":"googleapis.com"}]}}"#,
                ErrorKind::Authentication,
                None,
            ),
            (
                400,
                r#"{"error":{"code":400,"message":"The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).","status":"INVALID_ARGUMENT"}}"#,
                ErrorKind::ContextLength,
                None,
            ),
            (
                429,
                r#"[{"error":{"code":429,"message":"quota","status":"RESOURCE_EXHAUSTED","details":[{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"34.07s"}]}}]"#,
                ErrorKind::RateLimit,
                Some(35),
            ),
            (
                503,
                r#"{"error":{"code":503,"message":"The model is overloaded.","status":"UNAVAILABLE"}}"#,
                ErrorKind::Overloaded,
                None,
            ),
            (404, "<html>", ErrorKind::NotFound, None),
        ];
        for (status, text, kind, retry) in cases {
            let e = parse(status, text.as_bytes());
            assert_eq!((e.kind, e.retry_after_s), (kind, retry), "{text}");
        }
    }
}
