//! Why a target did not answer, and the consequences. Created by targets; read by retries, fallbacks and cooldown.

use std::time::Duration;

use octet_api::{ApiError, ErrorKind};
pub use octet_upstream::{Failure, FailureKind};

/// Number of kinds of failures.
pub const KINDS: usize = 13;

/// All kinds, in order.
pub const ALL_KINDS: [FailureKind; KINDS] = [
    FailureKind::Connect,
    FailureKind::Timeout,
    FailureKind::RateLimited,
    FailureKind::Authentication,
    FailureKind::BadRequest,
    FailureKind::ContextWindow,
    FailureKind::ContentPolicy,
    FailureKind::NotFound,
    FailureKind::Server,
    FailureKind::Protocol,
    FailureKind::Cancelled,
    FailureKind::Memory,
    FailureKind::ClientTimeout,
];

/// Whether a retry at the same deployment may succeed soon.
pub fn passes(kind: FailureKind) -> bool {
    use FailureKind as K;
    matches!(kind, K::Connect | K::Timeout | K::RateLimited | K::Server | K::Protocol)
}

/// Whether the request is the cause: any other deployment of the same model would fail, too.
pub fn is_of_the_request(kind: FailureKind) -> bool {
    use FailureKind as K;
    matches!(kind, K::BadRequest | K::ContextWindow | K::ContentPolicy | K::Cancelled | K::ClientTimeout)
}

/// Whether the deployment may be the cause. This server's memory is no deployment's: one that needs less of it may answer.
pub fn is_of_the_deployment(kind: FailureKind) -> bool {
    !is_of_the_request(kind) && kind != FailureKind::Memory
}

/// The failure for an error event of a target.
pub fn from_api(error: &ApiError) -> Failure {
    let kind = match error.kind {
        ErrorKind::InvalidRequest | ErrorKind::TooLarge => FailureKind::BadRequest,
        ErrorKind::ContextLength => FailureKind::ContextWindow,
        ErrorKind::ContentPolicy => FailureKind::ContentPolicy,
        ErrorKind::Authentication | ErrorKind::Permission => FailureKind::Authentication,
        ErrorKind::NotFound => FailureKind::NotFound,
        ErrorKind::RateLimit => FailureKind::RateLimited,
        ErrorKind::Overloaded | ErrorKind::Internal => FailureKind::Server,
        ErrorKind::Timeout => FailureKind::Timeout,
        ErrorKind::ClientTimeout => FailureKind::ClientTimeout,
        ErrorKind::Upstream => FailureKind::Protocol,
    };
    Failure {
        status: Some(error.status()),
        retry_after: error.retry_after_s.map(Duration::from_secs),
        param: error.param.clone(),
        code: error.code.clone(),
        ..Failure::new(kind, error.message.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_in_order() {
        for (i, kind) in ALL_KINDS.into_iter().enumerate() {
            assert_eq!(kind as usize, i);
        }
    }
}
