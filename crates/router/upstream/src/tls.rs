//! Connections with TLS: HTTP/2 if a server offers it, else HTTP/1.1. Owned by `client`.
//!
//! Over HTTP/2 the requests to a host share a connection, and a server limits its concurrent requests. Further requests would wait until
//! others are answered, which takes minutes for streams. So there are several pools; each takes the requests that the ones before it have
//! no room for.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use octet_tls::Trust;
use octet_tls::rustls::{self, ClientConfig};

use crate::connect::{Connector, Limits, connector, pool};
use crate::upload::Outgoing;

/// Maximum concurrent requests of one pool. Servers allow 100 or more on a connection.
const AT_ONCE: usize = 64;
/// Flow-control windows of an answer and of a connection. The second is so much larger that answers with slow clients do not block others.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 32 << 20;
/// A connection without traffic for this long gets a ping, and has this long to answer.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(15);

type Tls = Pool<Connector<HttpsConnector<HttpConnector>>, Outgoing>;

/// Pools; the first is used as long as it has room.
#[derive(Debug)]
pub(crate) struct Pools {
    config: ClientConfig,
    limits: Limits,
    all: Mutex<Vec<Arc<OnePool>>>,
}

#[derive(Debug)]
pub(crate) struct OnePool {
    pub(crate) pool: Tls,
    busy: AtomicUsize,
}

/// A request's place in a pool, until its answer ends.
#[derive(Debug)]
pub(crate) struct Place(Arc<OnePool>);

impl Place {
    fn take(pool: &Arc<OnePool>) -> Self {
        pool.busy.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(pool))
    }

    pub(crate) fn pool(&self) -> &Tls {
        &self.0.pool
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Pools {
    /// Pools that trust the operating system's certificates.
    pub(crate) fn new(limits: &Limits) -> Result<Self, rustls::Error> {
        Ok(Self { config: config()?, limits: *limits, all: Mutex::default() })
    }

    /// A place in the first pool that has one.
    pub(crate) fn place(&self) -> Place {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = all.iter().find(|p| p.busy.load(Ordering::Relaxed) < AT_ONCE) {
            return Place::take(pool);
        }
        let new = Arc::new(OnePool { pool: self.make(), busy: AtomicUsize::new(0) });
        let place = Place::take(&new);
        all.push(new);
        place
    }

    fn make(&self) -> Tls {
        let mut inner = connector(&self.limits);
        inner.enforce_http(false);
        let builder = HttpsConnectorBuilder::new().with_tls_config(self.config.clone()).https_only();
        let inner = builder.enable_http1().enable_http2().wrap_connector(inner);
        pool(&self.limits)
            .http2_initial_stream_window_size(STREAM_WINDOW)
            .http2_initial_connection_window_size(CONNECTION_WINDOW)
            .http2_max_header_list_size(u32::try_from(self.limits.head_bytes_max).unwrap_or(u32::MAX))
            .http2_keep_alive_interval(PING_EVERY)
            .http2_keep_alive_timeout(PING_TIMEOUT)
            .build(Connector { inner, limit: self.limits.connect })
    }
}

/// Settings of TLS: the operating system's certificates are trusted.
pub(crate) fn config() -> Result<ClientConfig, rustls::Error> {
    octet_tls::client(Trust::System)
}
