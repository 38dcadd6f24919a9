//! Errors of requests, independent of dialects; each dialect's `error` module writes and parses its own form. Created by the parsers
//! here, the server and the gateway.

/// The kind of an error. Determines the HTTP status and each dialect's name for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request is malformed, out of range, or needs something that is not supported.
    InvalidRequest,
    /// Prompt and answer exceed the model's context. A gateway may fall back to a model with a larger one.
    ContextLength,
    /// The provider refused the content.
    ContentPolicy,
    /// The API key is missing or invalid.
    Authentication,
    /// The key lacks permission.
    Permission,
    /// No such model or route.
    NotFound,
    /// The body is too large.
    TooLarge,
    /// The client sends too many requests or tokens.
    RateLimit,
    /// The server is overloaded.
    Overloaded,
    /// The request timed out.
    Timeout,
    /// It took longer than the client itself allows, or the client was too slow.
    ClientTimeout,
    /// An upstream server failed, or its answer is invalid.
    Upstream,
    /// An internal error.
    Internal,
}

impl ErrorKind {
    /// The HTTP status for this kind.
    pub fn status(self) -> u16 {
        match self {
            Self::InvalidRequest | Self::ContextLength | Self::ContentPolicy => 400,
            Self::Authentication => 401,
            Self::Permission => 403,
            Self::NotFound => 404,
            Self::TooLarge => 413,
            Self::RateLimit => 429,
            Self::Internal => 500,
            Self::Upstream => 502,
            Self::Overloaded => 503,
            Self::Timeout => 504,
            Self::ClientTimeout => 408,
        }
    }

    /// The most likely kind for a status, if the body does not say more.
    pub fn from_status(status: u16) -> Self {
        match status {
            401 | 402 => Self::Authentication,
            403 => Self::Permission,
            404 => Self::NotFound,
            408 | 504 => Self::Timeout,
            413 => Self::TooLarge,
            429 => Self::RateLimit,
            400..=499 => Self::InvalidRequest,
            503 | 529 => Self::Overloaded,
            _ => Self::Upstream,
        }
    }
}

/// An error as a client receives it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// Its kind.
    pub kind: ErrorKind,
    /// What is wrong, where, and what to do, in one sentence.
    pub message: String,
    /// The request field that caused it: `messages[3].content`.
    pub param: Option<String>,
    /// A machine-readable name (`context_length_exceeded`), if there is one.
    pub code: Option<String>,
    /// When to retry, in seconds from now.
    pub retry_after_s: Option<u64>,
}

impl ApiError {
    /// An error without further details.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), param: None, code: None, retry_after_s: None }
    }

    /// An invalid field `param`.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { param: Some(param.into()), ..Self::new(ErrorKind::InvalidRequest, message) }
    }

    /// An invalid answer of an upstream server.
    pub fn upstream(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Upstream, message)
    }

    /// The HTTP status.
    pub fn status(&self) -> u16 {
        self.kind.status()
    }
}
