//! The API errors of the pipeline.

use octet_api::core::GenerateRequest;
use octet_api::{ApiError, ErrorKind, shortened};
use octet_engine::engine::SubmitError;
use octet_engine::sampler::SamplerError;

/// `Retry-After` during shutdown: by then another server may have taken over.
const RETRY_DRAINING_S: u64 = 5;

/// The model does not exist.
pub fn unknown(name: &str, known: &str) -> ApiError {
    let what = format!("there is no model '{}'; models are: {known}", shortened(name));
    ApiError {
        param: Some("model".into()),
        code: Some("model_not_found".into()),
        ..ApiError::new(ErrorKind::NotFound, what)
    }
}

/// The request names no model, and there are several.
pub fn unnamed(known: &str) -> ApiError {
    ApiError::invalid("model", format!("'model' is missing, and there is more than one: {known}"))
}

/// The server is shutting down.
pub fn draining() -> ApiError {
    let what = "the server is shutting down";
    ApiError { retry_after_s: Some(RETRY_DRAINING_S), ..ApiError::new(ErrorKind::Overloaded, what) }
}

/// The error for a request that the engine refused.
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

/// The error for a request that the engine could not finish.
pub fn engine_error(e: &octet_engine::Error) -> ApiError {
    match e {
        octet_engine::Error::Stopped => draining(),
        // A grammar that cannot match, or is too complex: a client error.
        octet_engine::Error::Constraint(why) => ApiError::new(ErrorKind::InvalidRequest, why.clone()),
        other => internal(&other.to_string()),
    }
}

/// The same, for a request that may itself be the cause; `form` is its field with a required format.
pub fn answer_error(e: &octet_engine::Error, request: &GenerateRequest, form: Option<&str>) -> ApiError {
    let error = engine_error(e);
    match e {
        octet_engine::Error::Constraint(_) => ApiError { param: form.map(str::to_string), ..error },
        octet_engine::Error::Sampler(SamplerError::NothingAllowed) => {
            let sampling = &request.sampling;
            let has_bias = !sampling.logit_bias.is_empty() || !sampling.more.text_bias.is_empty();
            // Otherwise the model's own numbers exclude every token.
            match (form, has_bias) {
                (Some(form), _) => ApiError::invalid(form, NOTHING_ALLOWED),
                (None, true) => ApiError::invalid("logit_bias", NOTHING_ALLOWED),
                (None, false) => error,
            }
        }
        _ => error,
    }
}

/// The error if the request excludes every next token.
const NOTHING_ALLOWED: &str = "no token may come next: the required format, 'logit_bias' and the minimum length exclude all of them together";

/// A server error.
pub fn internal(what: &str) -> ApiError {
    ApiError::new(ErrorKind::Internal, what)
}
