//! Errors in OpenAI's form. Written by the server and the gateway; parsed from providers.

use serde_json::{Value, json};

use crate::{ApiError, ErrorKind, overflow};

/// The body of an error response: `{"error": {"message", "type", "param", "code"}}`.
pub fn body(error: &ApiError) -> Value {
    json!({"error": object(error)})
}

/// The object under `error`.
pub(crate) fn object(error: &ApiError) -> Value {
    let code = error.code.as_deref().or_else(|| code(error.kind));
    json!({"message": error.message, "type": type_name(error.kind), "param": error.param, "code": code})
}

fn type_name(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::InvalidRequest
        | ErrorKind::ContextLength
        | ErrorKind::ContentPolicy
        | ErrorKind::TooLarge => "invalid_request_error",
        ErrorKind::Authentication => "authentication_error",
        ErrorKind::Permission => "permission_error",
        ErrorKind::NotFound => "not_found_error",
        ErrorKind::RateLimit => "rate_limit_error",
        ErrorKind::Overloaded => "overloaded_error",
        ErrorKind::Timeout | ErrorKind::ClientTimeout => "timeout_error",
        ErrorKind::Upstream => "upstream_error",
        ErrorKind::Internal => "server_error",
    }
}

fn code(kind: ErrorKind) -> Option<&'static str> {
    match kind {
        ErrorKind::ContextLength => Some("context_length_exceeded"),
        ErrorKind::ContentPolicy => Some("content_policy_violation"),
        ErrorKind::Authentication => Some("invalid_api_key"),
        ErrorKind::RateLimit => Some("rate_limit_exceeded"),
        _ => None,
    }
}

/// The machine-readable name of an error: its code, or else its type.
pub fn reason(error: &ApiError) -> &str {
    error.code.as_deref().or_else(|| code(error.kind)).unwrap_or_else(|| type_name(error.kind))
}

/// Parses a provider's error from its status and body. Understands OpenAI, vLLM, llama.cpp and others with a `message` in a similar
/// place; otherwise uses the status and the beginning of the body.
pub fn parse(status: u16, body: &[u8]) -> ApiError {
    match serde_json::from_slice::<Value>(body) {
        Ok(value) => from_value(&value, Some(status)),
        Err(_) => {
            let message = unreadable(status, body);
            let is_overflow =
                status < 500 && overflow::may_be(Some(status)) && overflow::is_overflow(&message);
            let kind = if is_overflow { ErrorKind::ContextLength } else { ErrorKind::from_status(status) };
            ApiError::new(kind, message)
        }
    }
}

/// Parses an error in a stream, or in a response with status 200.
pub fn in_stream(json: &[u8]) -> ApiError {
    match serde_json::from_slice::<Value>(json) {
        // Responses nest it one level deeper.
        Ok(value) if value["response"]["error"].is_object() => from_value(&value["response"], None),
        Ok(value) => from_value(&value, None),
        Err(_) => ApiError::upstream(format!("the provider failed: {}", quoted(json))),
    }
}

/// The beginning of invalid data, on one line.
fn quoted(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(800)]);
    text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(200).collect()
}

/// The message for an answer that cannot be parsed.
pub(crate) fn unreadable(status: u16, body: &[u8]) -> String {
    let text = quoted(body);
    if text.is_empty() {
        format!("status {status} without a body")
    } else {
        format!("status {status}: {text}")
    }
}

/// Parses an error object of a response or a stream (which has no status).
pub(crate) fn from_value(value: &Value, status: Option<u16>) -> ApiError {
    let error = match &value["error"] {
        Value::Null => value,
        inner => inner,
    };
    let word = |v: &Value| v.as_str().filter(|s| !s.is_empty()).map(str::to_string);
    let message = word(&error["message"]).or_else(|| word(error)).or_else(|| word(&error["detail"]));
    let type_name = error["type"].as_str().unwrap_or("");
    let code = word(&error["code"]);
    // llama.cpp and vLLM have the status as the code.
    let status = status.or_else(|| error["code"].as_u64().and_then(|n| u16::try_from(n).ok()));
    let text = message.as_deref().unwrap_or("");
    let kind = match (code.as_deref().unwrap_or(""), type_name) {
        ("context_length_exceeded", _) | (_, "exceed_context_size_error") => ErrorKind::ContextLength,
        ("content_filter" | "content_policy_violation", _) => ErrorKind::ContentPolicy,
        ("rate_limit_exceeded" | "insufficient_quota", _) | (_, "rate_limit_error") => ErrorKind::RateLimit,
        // Most servers have no code for it.
        _ if overflow::may_be(status) && overflow::is_overflow(text) => ErrorKind::ContextLength,
        (_, "overloaded_error") => ErrorKind::Overloaded,
        _ if status.is_some() => ErrorKind::from_status(status.unwrap_or(502)),
        (_, "invalid_request_error") => ErrorKind::InvalidRequest,
        _ => ErrorKind::Upstream,
    };
    let message = message.unwrap_or_else(|| match status {
        Some(status) => unreadable(status, value.to_string().as_bytes()),
        None => format!("an error without a message: {}", unreadable(502, value.to_string().as_bytes())),
    });
    ApiError { kind, message, param: word(&error["param"]), code, retry_after_s: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_of_several_servers() {
        let cases = [
            (
                400,
                r#"{"error":{"message":"m","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}"#,
                ErrorKind::ContextLength,
                "m",
            ),
            (
                400,
                r#"{"error":{"code":400,"message":"too big","type":"exceed_context_size_error","n_ctx":10}}"#,
                ErrorKind::ContextLength,
                "too big",
            ),
            (
                400,
                r#"{"object":"error","message":"This model's maximum context length is 10","type":"BadRequestError","code":400}"#,
                ErrorKind::ContextLength,
                "This model's maximum context length is 10",
            ),
            (
                400,
                r#"{"error":{"message":"Input is too long for requested model.","type":"invalid_request_error"}}"#,
                ErrorKind::ContextLength,
                "Input is too long for requested model.",
            ),
            (
                429,
                r#"{"error":{"message":"the prompt is too long for your tier"}}"#,
                ErrorKind::RateLimit,
                "the prompt is too long for your tier",
            ),
            (422, r#"{"detail":"wrong"}"#, ErrorKind::InvalidRequest, "wrong"),
            (429, r#"{"error":"slow down"}"#, ErrorKind::RateLimit, "slow down"),
            (
                502,
                "<html>\n <b>bad   gateway</b>",
                ErrorKind::Upstream,
                "status 502: <html> <b>bad gateway</b>",
            ),
            (500, "", ErrorKind::Upstream, "status 500 without a body"),
            (401, "{}", ErrorKind::Authentication, "status 401: {}"),
        ];
        for (status, text, kind, message) in cases {
            let e = parse(status, text.as_bytes());
            assert_eq!((e.kind, e.message.as_str()), (kind, message), "{text}");
        }
    }

    #[test]
    fn written_values_parse_back() {
        let e = ApiError { param: Some("n".into()), ..ApiError::new(ErrorKind::ContextLength, "too long") };
        let read = parse(e.status(), body(&e).to_string().as_bytes());
        assert_eq!(read, ApiError { code: Some("context_length_exceeded".into()), ..e });
    }
}
