//! What goes wrong at a provider, as the router needs to know it. Made by every call of [`Client`](crate::Client).

use std::time::{Duration, SystemTime};

use http::HeaderMap;
use http::header::RETRY_AFTER;
use octet_api::{ApiError, ErrorKind};

/// Longest wait that a provider may ask for; a longer one is taken for this one.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// A call that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// What it means for the choice of another provider.
    pub kind: FailureKind,
    /// The status of the provider's answer, where there was one.
    pub status: Option<u16>,
    /// What went wrong, in one sentence. Holds no key.
    pub message: String,
    /// When the provider wants to be asked again, from now.
    pub retry_after: Option<Duration>,
    /// Some of the answer has been handed on already: to ask someone else would say it twice.
    pub sent_any: bool,
    /// The field of the request that the provider blames.
    pub param: Option<String>,
    /// The provider's name for the error, for programs.
    pub code: Option<String>,
}

/// What kind of failure it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FailureKind {
    /// No connection, or it broke before anything was answered.
    Connect,
    /// It took longer than the endpoint's limits, or the provider says that it did.
    Timeout,
    /// The provider is asked too much, or has been paid too little.
    RateLimited,
    /// The key is not known, or may not do this.
    Authentication,
    /// The request itself is refused; another provider might take it, the same one will not.
    BadRequest,
    /// The conversation does not fit the model's context.
    ContextWindow,
    /// The provider refuses the content.
    ContentPolicy,
    /// No such model or route.
    NotFound,
    /// The provider failed, or has too much to do.
    Server,
    /// Something was answered that cannot be read: HTML, wrong JSON, a stream that ends midway, an answer without end.
    Protocol,
    /// Who asked has gone. Never made here (a call that is dropped ends); a word for the router's own accounts.
    Cancelled,
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
        }
    }

    /// What a client is told that no other provider could help.
    fn to_error_kind(self) -> ErrorKind {
        match self {
            Self::Connect | Self::Server | Self::Protocol | Self::Cancelled => ErrorKind::Upstream,
            // A client's own key is not to blame for the one that the configuration has.
            Self::Authentication => ErrorKind::Upstream,
            Self::Timeout => ErrorKind::Timeout,
            Self::RateLimited => ErrorKind::RateLimit,
            Self::BadRequest => ErrorKind::InvalidRequest,
            Self::ContextWindow => ErrorKind::ContextLength,
            Self::ContentPolicy => ErrorKind::ContentPolicy,
            Self::NotFound => ErrorKind::NotFound,
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

    /// A provider's error, as its dialect's reader understood it. `status` is `None` within a stream.
    pub(crate) fn said(error: ApiError, status: Option<u16>) -> Self {
        // A status is the provider's word; without one an upstream error is an answer that cannot be read.
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

    /// The error that a client is given when nobody else answers.
    pub fn to_error(&self) -> ApiError {
        ApiError {
            kind: self.kind.to_error_kind(),
            message: self.message.clone(),
            param: self.param.clone(),
            code: self.code.clone().filter(|_| self.kind != FailureKind::Authentication),
            retry_after_s: self.retry_after.map(|d| d.as_secs() + u64::from(d.subsec_nanos() > 0)),
        }
    }
}

/// When a provider wants to be asked again: `retry-after-ms` (OpenAI, Azure), or `Retry-After` in seconds or as a date.
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
