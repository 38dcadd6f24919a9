//! Why a request was refused or not finished, for its client. Used by `run`, `embed`, `rerank`, and by those who look models up.

use octet_api::{ApiError, ErrorKind, shortened};
use octet_engine::engine::SubmitError;

/// When one may that came while the server shuts down: another has taken its place by then.
const RETRY_DRAINING_S: u64 = 5;

/// There is no such model.
pub fn unknown(name: &str, known: &str) -> ApiError {
    let what = format!("there is no model '{}' here; there are: {known}", shortened(name));
    ApiError {
        param: Some("model".into()),
        code: Some("model_not_found".into()),
        ..ApiError::new(ErrorKind::NotFound, what)
    }
}

/// No model is named, and there are several.
pub fn unnamed(known: &str) -> ApiError {
    ApiError::invalid("model", format!("'model' is missing, and there is more than one: {known}"))
}

/// The server shuts down.
pub fn draining() -> ApiError {
    let what = "the server is shutting down";
    ApiError { retry_after_s: Some(RETRY_DRAINING_S), ..ApiError::new(ErrorKind::Overloaded, what) }
}

/// Why a request was not taken, for its client.
pub fn submit_error(e: &SubmitError) -> ApiError {
    match e {
        SubmitError::QueueFull { retry_after } => ApiError {
            retry_after_s: Some(retry_after.as_secs().max(1)),
            ..ApiError::new(ErrorKind::RateLimit, e.to_string())
        },
        SubmitError::TooLong { .. } => ApiError::new(ErrorKind::ContextLength, e.to_string()),
        SubmitError::Stopping => draining(),
        SubmitError::Invalid(_) => ApiError::new(ErrorKind::InvalidRequest, e.to_string()),
    }
}

/// Why a request was not finished, for its client.
pub fn engine_error(e: &octet_engine::Error) -> ApiError {
    match e {
        octet_engine::Error::Stopped => draining(),
        // A grammar that leads nowhere, or is too much work: the client's to mend.
        octet_engine::Error::Constraint(why) => ApiError::new(ErrorKind::InvalidRequest, why.clone()),
        other => internal(&other.to_string()),
    }
}

/// Something went wrong that is not the client's fault.
pub fn internal(what: &str) -> ApiError {
    ApiError::new(ErrorKind::Internal, what)
}

/// It took too long.
pub fn timeout() -> ApiError {
    ApiError::new(
        ErrorKind::Timeout,
        "the request took longer than the server allows; --timeout sets how long that is",
    )
}
