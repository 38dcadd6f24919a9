//! Warnings about requests: in the answer's header, once of each kind in the log, and as errors where the server is strict.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use axum::response::Response;
use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};
use octet_api::{ApiError, Warning};

use crate::header::header_text;

/// The header that says what of the request has no effect.
const HEADER: HeaderName = HeaderName::from_static("x-octet-warning");
/// Kinds of warnings that the log has room for: clients make up names.
const LOGGED_MAX: usize = 256;

/// What happens to warnings.
#[derive(Debug, Default)]
pub struct Warnings {
    is_strict: bool,
    logged: Mutex<HashSet<String>>,
}

impl Warnings {
    /// Refuses what others warn about, where `is_strict`.
    pub fn new(is_strict: bool) -> Self {
        Self { is_strict, logged: Mutex::default() }
    }

    /// Logs those of a new kind.
    ///
    /// # Errors
    /// The first, where the server is strict.
    pub fn note(&self, warnings: &[Warning]) -> Result<(), ApiError> {
        let Some(first) = warnings.first() else { return Ok(()) };
        if self.is_strict {
            return Err(first.refuse());
        }
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        for warning in warnings {
            if logged.len() < LOGGED_MAX && logged.insert(warning.kind()) {
                tracing::warn!("a request's {} (logged once)", header_text(&warning.message));
            }
        }
        Ok(())
    }

    /// Logs, once of each kind, what was changed of a model's answer.
    pub fn note_change(&self, what: &'static str) {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.len() < LOGGED_MAX && logged.insert(what.into()) {
            tracing::warn!("a model's answer: {what} (logged once)");
        }
    }
}

/// Tells a client.
pub fn add_header<'a>(response: &mut Response, messages: impl Iterator<Item = &'a str>) {
    let all: Vec<&str> = messages.collect();
    if all.is_empty() {
        return;
    }
    if let Ok(value) = HeaderValue::from_str(&header_text(&all.join("; "))) {
        response.headers_mut().insert(HEADER, value);
    }
}

/// The warnings in the header of another Octet server's answer.
pub fn header_value(headers: &HeaderMap) -> Option<String> {
    Some(headers.get(HEADER)?.to_str().ok()?.to_string())
}

/// The messages of warnings.
pub fn messages(warnings: &[Warning]) -> impl Iterator<Item = &str> {
    warnings.iter().map(|w| &*w.message)
}
