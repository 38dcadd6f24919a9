//! Connections: their limits, and how they are opened and pooled.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::{Connection, HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tower_service::Service;

/// Maximum number of headers of an answer. Providers behind several proxies send more than hyper's default of 100.
const HEADERS_MAX: usize = 256;

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type BoxFuture<T> = Pin<Box<dyn Future<Output = Result<T, BoxError>> + Send>>;

/// Limits of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Time limit to connect, with DNS and TLS.
    pub connect: Duration,
    /// How long an idle connection is kept.
    pub idle: Duration,
    /// Maximum number of idle connections per host.
    pub idle_per_host_max: usize,
    /// Maximum size of an answer's head.
    pub head_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            idle: Duration::from_secs(90),
            idle_per_host_max: 256,
            head_bytes_max: 64 << 10,
        }
    }
}

/// Connects within a time limit, with DNS and TLS.
#[derive(Debug, Clone)]
pub(crate) struct Connector<C> {
    pub(crate) inner: C,
    pub(crate) limit: Duration,
}

impl<C> Service<Uri> for Connector<C>
where
    C: Service<Uri>,
    C::Response: Connection + Send,
    C::Error: Into<BoxError>,
    C::Future: Send + 'static,
{
    type Response = C::Response;
    type Error = BoxError;
    type Future = BoxFuture<Self::Response>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (connecting, limit) = (self.inner.call(uri), self.limit);
        Box::pin(async move {
            match tokio::time::timeout(limit, connecting).await {
                Ok(result) => result.map_err(Into::into),
                Err(_) => Err(format!("no connection within {} s", limit.as_secs_f64()).into()),
            }
        })
    }
}

/// The connector without TLS.
pub(crate) fn connector(limits: &Limits) -> HttpConnector {
    let mut c = HttpConnector::new();
    c.set_nodelay(true);
    c.set_keepalive(Some(Duration::from_secs(60)));
    c.set_connect_timeout(Some(limits.connect));
    c
}

/// The builder of pools.
pub(crate) fn pool(limits: &Limits) -> hyper_util::client::legacy::Builder {
    let mut b = Pool::builder(TokioExecutor::new());
    b.pool_timer(TokioTimer::new())
        .timer(TokioTimer::new())
        .pool_idle_timeout(limits.idle)
        .pool_max_idle_per_host(limits.idle_per_host_max)
        .http1_max_buf_size(limits.head_bytes_max)
        .http1_max_headers(HEADERS_MAX);
    b
}
