//! Bodies of requests: read with limits for length and time, and only where they say that they are JSON. Used by all endpoints
//! that take one.

use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::Request;
use hyper::HeaderMap;
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE};
use octet_api::{ApiError, ErrorKind};

use super::error::UNSUPPORTED_MEDIA_TYPE;

/// Longest time for a body to come.
const BODY_TIME_MAX: Duration = Duration::from_secs(120);
/// Longer bodies are read where they hold nobody up.
const PARSE_INLINE_MAX: usize = 256 << 10;

/// The body of a request.
pub async fn read(request: Request, bytes_max: usize) -> Result<Bytes, ApiError> {
    let (head, body) = request.into_parts();
    check_type(&head.headers)?;
    let length = head.headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|n| n > bytes_max as u64) {
        return Err(too_large(bytes_max));
    }
    read_body(body, bytes_max).await
}

async fn read_body(body: Body, bytes_max: usize) -> Result<Bytes, ApiError> {
    match tokio::time::timeout(BODY_TIME_MAX, to_bytes(body, bytes_max)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(e)) if is_limit(&e) => Err(too_large(bytes_max)),
        Ok(Err(e)) => Err(ApiError::new(ErrorKind::InvalidRequest, format!("the body broke off: {e}"))),
        Err(_) => Err(ApiError::new(ErrorKind::Timeout, "the body took too long to come")),
    }
}

fn is_limit(e: &axum::Error) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(e);
    while let Some(c) = cause {
        if c.to_string().contains("length limit") {
            return true;
        }
        cause = c.source();
    }
    false
}

fn too_large(bytes_max: usize) -> ApiError {
    ApiError::new(
        ErrorKind::TooLarge,
        format!("the body is longer than the {bytes_max} bytes that the server takes"),
    )
}

/// What says that it is anything but JSON is refused: web pages send such to any address without asking the browser's leave. There are
/// clients that say nothing (litellm's for Ollama).
fn check_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(sent) = headers.get(CONTENT_TYPE) else { return Ok(()) };
    let sent = sent.to_str().unwrap_or("");
    let kind = sent.split(';').next().unwrap_or("").trim();
    let is_json = kind.eq_ignore_ascii_case("application/json")
        || kind.get(kind.len().saturating_sub(5)..).is_some_and(|end| end.eq_ignore_ascii_case("+json"));
    if is_json {
        return Ok(());
    }
    let what =
        format!("the content type is '{sent}'; send JSON, with the header 'content-type: application/json'");
    let error = ApiError::new(ErrorKind::InvalidRequest, what);
    Err(ApiError { code: Some(UNSUPPORTED_MEDIA_TYPE.into()), ..error })
}

/// Reads a body by its dialect's rules.
pub async fn parse<T: Send + 'static>(
    body: Bytes,
    with: impl FnOnce(&[u8]) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    if body.len() <= PARSE_INLINE_MAX {
        return with(&body);
    }
    let parsed = tokio::task::spawn_blocking(move || with(&body)).await;
    parsed.map_err(|e| ApiError::new(ErrorKind::Internal, e.to_string()))?
}
