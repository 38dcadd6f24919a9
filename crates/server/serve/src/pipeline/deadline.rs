//! Until when a request must be answered: the server's limit, or the client's own.

use std::time::Duration;

use octet_api::{ApiError, ErrorKind};
use tokio::time::{Instant, timeout_at};

/// The end of a request's time.
#[derive(Debug, Clone, Copy, Default)]
pub struct Deadline {
    server: Option<Instant>,
    client: Option<Instant>,
}

impl Deadline {
    /// From now, with the server's limit and the client's.
    pub(super) fn new(server: Option<Duration>, client: Option<Duration>) -> Self {
        let now = Instant::now();
        let after = |limit: Option<Duration>| limit.and_then(|t| now.checked_add(t));
        Self { server: after(server), client: after(client) }
    }

    /// Without the client's limit: its stream has begun.
    pub(super) fn begun(self) -> Self {
        Self { client: None, ..self }
    }

    /// Whether the client has set a limit that counts still.
    pub(super) fn is_clients(&self) -> bool {
        self.client.is_some()
    }

    /// The result of `work`, if it comes in time.
    pub(super) async fn within<T>(&self, work: impl Future<Output = T>) -> Result<T, ApiError> {
        match [self.server, self.client].into_iter().flatten().min() {
            Some(end) => timeout_at(end, work).await.map_err(|_| self.error()),
            None => Ok(work.await),
        }
    }

    /// The error if the time is over.
    pub(super) fn check(&self) -> Result<(), ApiError> {
        let now = Instant::now();
        let is_over = [self.server, self.client].into_iter().flatten().any(|end| now >= end);
        if is_over { Err(self.error()) } else { Ok(()) }
    }

    /// The limit that ends first is named.
    fn error(&self) -> ApiError {
        let is_clients = self.client.is_some_and(|client| self.server.is_none_or(|server| client <= server));
        if is_clients {
            let what = "no answer within the request's own 'timeout'; leave it out, or allow more time";
            return ApiError {
                param: Some("timeout".into()),
                ..ApiError::new(ErrorKind::ClientTimeout, what)
            };
        }
        let what = "the request took longer than the server allows; --timeout sets how long that is";
        ApiError::new(ErrorKind::Timeout, what)
    }
}
