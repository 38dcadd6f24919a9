//! Errors as HTTP responses, in the client's dialect.

use axum::body::Body;
use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::StatusCode;
use axum::response::Response;
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use octet_api::{ApiError, ErrorKind, anthropic, gemini, ollama, openai, shortened};

use crate::ops::Trace;

/// The dialect of an endpoint's errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// OpenAI's, also for Octet's own endpoints.
    OpenAi,
    /// Anthropic's.
    Anthropic,
    /// Ollama's.
    Ollama,
    /// Gemini's.
    Gemini,
}

impl Dialect {
    /// The dialect of a path.
    pub fn of(path: &str) -> Self {
        if path.starts_with("/api/") {
            Self::Ollama
        } else if super::gemini_path::is_path(path) {
            Self::Gemini
        } else if ["/v1/messages", "/messages", "/anthropic/v1/messages"]
            .iter()
            .any(|p| path.strip_prefix(p).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
        {
            Self::Anthropic
        } else {
            Self::OpenAi
        }
    }

    /// The response for an error.
    pub fn error(self, error: &ApiError, trace: Option<&Trace>) -> Response {
        let body = match self {
            Self::OpenAi => openai::error::body(error),
            Self::Anthropic => anthropic::error::body(error, trace.map(|t| &*t.id)),
            Self::Ollama => ollama::error::body(error),
            Self::Gemini => gemini::error::body(error),
        };
        let mut out = json(status(error), body.to_string());
        if let Some(seconds) = error.retry_after_s {
            out.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some(trace) = trace {
            trace.note(|f| f.refused = Some(reason(error)));
        }
        if error.status() >= 500 {
            tracing::warn!(id = trace.map(|t| &*t.id), "{}", error.message);
        }
        out
    }
}

/// Why a request was refused, for the log: error code and field. The message may quote the client's data, so it is left out.
fn reason(error: &ApiError) -> String {
    let kind = openai::error::reason(error);
    match &error.param {
        Some(field) => format!("{kind} ({})", shortened(field)),
        None => kind.into(),
    }
}

/// Error codes with their own HTTP status.
pub const UNSUPPORTED_MEDIA_TYPE: &str = "unsupported_media_type";
/// See [`UNSUPPORTED_MEDIA_TYPE`].
pub const METHOD_NOT_ALLOWED: &str = "method_not_allowed";

fn status(error: &ApiError) -> u16 {
    match error.code.as_deref() {
        Some(UNSUPPORTED_MEDIA_TYPE) => 415,
        Some(METHOD_NOT_ALLOWED) => 405,
        _ => error.status(),
    }
}

/// A path parameter.
pub fn named(path: Result<Path<String>, PathRejection>) -> Result<String, ApiError> {
    let read = path.map(|Path(name)| name);
    read.map_err(|e| ApiError::new(ErrorKind::InvalidRequest, format!("the path cannot be read: {e}")))
}

/// A JSON response.
pub fn json(status: u16, body: impl Into<Body>) -> Response {
    let mut out = Response::new(body.into());
    *out.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    out.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    out
}
