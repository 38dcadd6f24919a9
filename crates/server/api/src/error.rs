//! What went wrong with a request, in no dialect; each dialect's `error` module writes and reads its own shape of it.
//! Made by the parsers here, by the server and by the gateway.

/// What kind of failure it is. Decides the HTTP status and each dialect's name for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request is malformed, out of range, or asks for something that is not supported.
    InvalidRequest,
    /// The prompt and the answer do not fit the model's context. A gateway may fall back to a larger one.
    ContextLength,
    /// The provider refuses the content.
    ContentPolicy,
    /// No key, or not a known one.
    Authentication,
    /// The key may not do this.
    Permission,
    /// No such model or route.
    NotFound,
    /// The body is longer than the server takes.
    TooLarge,
    /// The client sends too much.
    RateLimit,
    /// The server has too much to do.
    Overloaded,
    /// It took too long.
    Timeout,
    /// An upstream server failed, or said something that cannot be read.
    Upstream,
    /// Our own fault.
    Internal,
}

impl ErrorKind {
    /// The HTTP status of an answer that is this error.
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
        }
    }

    /// What an answer with this status most likely means, if its body does not say more.
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

/// An error as a client sees it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// Decides the status.
    pub kind: ErrorKind,
    /// What is wrong, where, and what to do, in one sentence.
    pub message: String,
    /// The field of the request that is to blame: `messages[3].content`.
    pub param: Option<String>,
    /// A name for programs (`context_length_exceeded`), where there is one.
    pub code: Option<String>,
    /// When to try again, in seconds from now.
    pub retry_after_s: Option<u64>,
}

impl ApiError {
    /// An error without further details.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), param: None, code: None, retry_after_s: None }
    }

    /// The request is wrong at `param`.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { param: Some(param.into()), ..Self::new(ErrorKind::InvalidRequest, message) }
    }

    /// An upstream server said something that cannot be read.
    pub fn upstream(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Upstream, message)
    }

    /// The HTTP status.
    pub fn status(&self) -> u16 {
        self.kind.status()
    }
}
