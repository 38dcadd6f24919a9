//! Failures of providers, classified for the router. Returned by every call of [`Client`](crate::Client).

use std::time::{Duration, SystemTime};

use http::HeaderMap;
use http::header::RETRY_AFTER;
use octet_api::{ApiError, ErrorKind};
use tokio::task::JoinError;

/// Upper bound of the pause that a provider may ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// A failed call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// Its kind, which decides on retries and fallbacks.
    pub kind: FailureKind,
    /// The HTTP status, if there was one.
    pub status: Option<u16>,
    /// The error in one sentence, without keys.
    pub message: String,
    /// The pause that the provider asks for.
    pub retry_after: Option<Duration>,
    /// A part of the answer was already sent to the client: another attempt would repeat it.
    pub sent_any: bool,
    /// The field of the request that the provider names.
    pub param: Option<String>,
    /// The provider's error code.
    pub code: Option<String>,
}

/// The kind of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FailureKind {
    /// No connection, or it broke before anything was answered.
    Connect,
    /// It exceeded the endpoint's time limits, or the provider reports a timeout.
    Timeout,
    /// Rate limit or quota of the provider.
    RateLimited,
    /// The key is invalid, or not allowed to do this.
    Authentication,
    /// The request is refused; another provider might accept it, the same one will not.
    BadRequest,
    /// The conversation exceeds the model's context.
    ContextWindow,
    /// The provider's content filter refused.
    ContentPolicy,
    /// No such model or route.
    NotFound,
    /// The provider failed, or is overloaded.
    Server,
    /// An unreadable answer: HTML, invalid JSON, a stream that ends midway, an answer without end.
    Protocol,
    /// The client disconnected. Never created here (a dropped call just ends); used by the router's metrics.
    Cancelled,
    /// This server has no memory to parse the request, which it needs to change or translate it: no provider is the cause. One that gets
    /// the client's bytes may answer.
    Memory,
    /// The client itself allows no more time: no provider is the cause.
    ClientTimeout,
}

impl From<JoinError> for Failure {
    /// The failure of a request whose writing panicked, a fault of this server: a fallback of another dialect may work. The panic's text is in
    /// the log only.
    fn from(_: JoinError) -> Self {
        Self::new(FailureKind::Server, "the request could not be written for the provider: an internal error")
    }
}

impl FailureKind {
    /// Its name in logs, metrics and configurations.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Timeout => "timeout",
            Self::RateLimited => "rate_limited",
            Self::Authentication => "authentication",
            Self::BadRequest => "bad_request",
            Self::ContextWindow => "context_window",
            Self::ContentPolicy => "content_policy",
            Self::NotFound => "not_found",
            Self::Server => "server",
            Self::Protocol => "protocol",
            Self::Cancelled => "cancelled",
            Self::Memory => "memory",
            Self::ClientTimeout => "client_timeout",
        }
    }

    fn of(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::InvalidRequest | ErrorKind::TooLarge => Self::BadRequest,
            ErrorKind::ContextLength => Self::ContextWindow,
            ErrorKind::ContentPolicy => Self::ContentPolicy,
            ErrorKind::Authentication | ErrorKind::Permission => Self::Authentication,
            ErrorKind::NotFound => Self::NotFound,
            ErrorKind::RateLimit => Self::RateLimited,
            ErrorKind::Overloaded | ErrorKind::Upstream | ErrorKind::Internal => Self::Server,
            ErrorKind::Timeout => Self::Timeout,
            ErrorKind::ClientTimeout => Self::ClientTimeout,
        }
    }

    /// The kind of the error for the client.
    fn to_error_kind(self) -> ErrorKind {
        match self {
            Self::Connect | Self::Server | Self::Protocol | Self::Cancelled => ErrorKind::Upstream,
            // The client's own key is not the cause of an invalid key in the configuration.
            Self::Authentication => ErrorKind::Upstream,
            Self::Timeout => ErrorKind::Timeout,
            Self::ClientTimeout => ErrorKind::ClientTimeout,
            Self::RateLimited => ErrorKind::RateLimit,
            Self::BadRequest => ErrorKind::InvalidRequest,
            Self::ContextWindow => ErrorKind::ContextLength,
            Self::ContentPolicy => ErrorKind::ContentPolicy,
            Self::NotFound => ErrorKind::NotFound,
            Self::Memory => ErrorKind::Overloaded,
        }
    }
}

impl Failure {
    /// A failure without further details.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            status: None,
            message: message.into(),
            retry_after: None,
            sent_any: false,
            param: None,
            code: None,
        }
    }

    pub(crate) fn protocol(message: impl Into<String>) -> Self {
        Self::new(FailureKind::Protocol, message)
    }

    /// A provider's error, as parsed in its dialect. `status` is `None` within a stream.
    pub(crate) fn reported(error: ApiError, status: Option<u16>) -> Self {
        // The provider's status decides; an upstream error without one is an unreadable answer.
        let kind = match (error.kind, status) {
            (ErrorKind::Upstream, None) => FailureKind::Protocol,
            (kind, _) => FailureKind::of(kind),
        };
        Self {
            kind,
            status,
            message: error.message,
            retry_after: error.retry_after_s.map(Duration::from_secs),
            sent_any: false,
            param: error.param,
            code: error.code,
        }
    }

    /// The failure to get memory for the request's values.
    pub fn memory(error: ApiError) -> Self {
        let status = error.status();
        Self { kind: FailureKind::Memory, ..Self::reported(error, Some(status)) }
    }

    /// The error for the client if no other provider answers.
    pub fn to_error(&self) -> ApiError {
        let is_too_large =
            self.status == Some(413) && matches!(self.kind, FailureKind::BadRequest | FailureKind::Memory);
        ApiError {
            kind: if is_too_large { ErrorKind::TooLarge } else { self.kind.to_error_kind() },
            message: self.message.clone(),
            param: self.param.clone(),
            code: self.code.clone().filter(|_| self.kind != FailureKind::Authentication),
            retry_after_s: self.retry_after.map(|d| d.as_secs() + u64::from(d.subsec_nanos() > 0)),
        }
    }
}

/// The pause that a provider asks for: `retry-after-ms` (OpenAI, Azure), or `Retry-After` in seconds or as a date.
pub(crate) fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = |name| headers.get(name).and_then(|v| v.to_str().ok()).map(str::trim);
    let number = |text: &str| text.parse::<f64>().ok().filter(|n| n.is_finite() && *n >= 0.0);
    let exact = text("retry-after-ms").and_then(number).map(|ms| ms / 1e3);
    let plain = || text(RETRY_AFTER.as_str()).and_then(number);
    if let Some(seconds) = exact.or_else(plain) {
        return Some(Duration::from_secs_f64(seconds.min(RETRY_AFTER_MAX.as_secs_f64())));
    }
    let date = text(RETRY_AFTER.as_str()).and_then(|t| httpdate::parse_http_date(t).ok())?;
    Some(date.duration_since(now).unwrap_or(Duration::ZERO).min(RETRY_AFTER_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_read_as_seconds_milliseconds_and_dates() {
        let now = httpdate::parse_http_date("Sat, 21 Nov 2026 10:00:00 GMT").unwrap();
        let read = |name: &'static str, value: &str| {
            let headers =
                HeaderMap::from_iter([(http::HeaderName::from_static(name), value.parse().unwrap())]);
            retry_after(&headers, now)
        };
        for (name, value, expected) in [
            ("retry-after", "7", Some(7.0)),
            ("retry-after", "0.5", Some(0.5)),
            ("retry-after", "Sat, 21 Nov 2026 10:01:30 GMT", Some(90.0)),
            ("retry-after", "Sat, 21 Nov 2026 09:00:00 GMT", Some(0.0)),
            ("retry-after", "1e300", Some(86400.0)),
            ("retry-after", "-1", None),
            ("retry-after", "NaN", None),
            ("retry-after", "soon", None),
            ("retry-after-ms", "250", Some(0.25)),
        ] {
            assert_eq!(read(name, value), expected.map(Duration::from_secs_f64), "{name}: {value}");
        }
    }

    #[tokio::test]
    async fn a_panic_is_a_fault_of_the_server_without_its_text() {
        let e = tokio::spawn(async { panic!("secret") }).await.unwrap_err();
        let e = Failure::from(e);
        assert!(e.kind == FailureKind::Server && !e.message.contains("secret"), "{e}");
    }

    #[test]
    fn a_body_that_is_too_large_stays_one() {
        for (kind, expected) in [(ErrorKind::TooLarge, 413), (ErrorKind::Overloaded, 503)] {
            let error = ApiError { retry_after_s: Some(2), ..ApiError::new(kind, "too many values") };
            let failure = Failure::memory(error.clone());
            assert_eq!((failure.kind, failure.status), (FailureKind::Memory, Some(expected)));
            assert_eq!(failure.to_error(), error);
        }
    }

    #[test]
    fn a_client_is_not_told_that_the_configured_key_is_its_own() {
        let e = Failure {
            code: Some("invalid_api_key".into()),
            ..Failure::new(FailureKind::Authentication, "the key is not known")
        };
        assert_eq!((e.to_error().kind, e.to_error().code), (ErrorKind::Upstream, None));
        let e = Failure { retry_after: Some(Duration::from_millis(1500)), ..e };
        assert_eq!(e.to_error().retry_after_s, Some(2));
    }
}
