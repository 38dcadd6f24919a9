//! Streams that survive their connection. A client names its stream in the header `x-octet-stream`; `GET /streams/{id}` then reads it from
//! the beginning and follows it to its end.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::response::Response;
use hyper::header::CONTENT_TYPE;
use octet_api::{ApiError, ErrorKind, shortened};

use super::Dialect;
use super::call::{Call, caller, trace};
use super::error::{json, named};
use super::reply::SSE;
use crate::app::App;
use crate::gateway::Caller;
use crate::streams::NAME;

/// Length of a name: long enough that it cannot be guessed.
const NAME_CHARS: std::ops::RangeInclusive<usize> = 16..=64;

/// The name that a request gives its stream.
pub struct Named {
    app: Arc<App>,
    id: String,
    caller: Caller,
}

impl Named {
    /// Reads the header, if present.
    pub fn of(c: &Call) -> Result<Option<Self>, ApiError> {
        let Some(value) = c.sender.headers.get(NAME) else { return Ok(None) };
        let id = value.to_str().unwrap_or_default();
        if !NAME_CHARS.contains(&id.len()) || !id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
            let what = format!("{NAME} must be 16 to 64 letters, digits and hyphens, at random");
            return Err(ApiError::invalid(NAME, what));
        }
        Ok(Some(Self { app: Arc::clone(&c.app), id: id.into(), caller: c.sender.caller.clone() }))
    }

    /// Keeps the stream of a response; other responses are returned as they are.
    pub fn keep(self, response: Response) -> Result<Response, ApiError> {
        let kind = response.headers().get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
        if !kind.starts_with(SSE) {
            return Ok(response);
        }
        self.app.streams.keep(self.id, &self.caller, response)
    }
}

fn missing(id: &str) -> ApiError {
    let what = format!("no stream '{}' (unknown or expired)", shortened(id));
    ApiError::new(ErrorKind::NotFound, what)
}

/// `GET /streams/{id}`
pub async fn get(
    State(app): State<Arc<App>>,
    id: Result<Path<String>, PathRejection>,
    request: Request,
) -> Response {
    let found = named(id).and_then(|id| app.streams.find(&id, &caller(&request)).ok_or_else(|| missing(&id)));
    match found {
        Ok(stream) => stream.response(),
        Err(e) => Dialect::OpenAi.error(&e, Some(&trace(&request))),
    }
}

/// `DELETE /streams/{id}`: cancels the answer. The part that exists can still be read.
pub async fn stop(
    State(app): State<Arc<App>>,
    id: Result<Path<String>, PathRejection>,
    request: Request,
) -> Response {
    let found = named(id).and_then(|id| {
        app.streams.find(&id, &caller(&request)).map(|s| (s, id.clone())).ok_or_else(|| missing(&id))
    });
    match found {
        Ok((stream, id)) => {
            stream.stop();
            json(200, serde_json::json!({"id": id, "stopped": true}).to_string())
        }
        Err(e) => Dialect::OpenAi.error(&e, Some(&trace(&request))),
    }
}
