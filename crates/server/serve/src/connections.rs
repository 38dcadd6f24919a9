//! Serves connections to their end, also at shutdown and when they are evicted.
//!
//! A connection is idle while no request is on it: until the headers of one have arrived, and again after its answer was sent.

pub mod activity;
mod incoming;
mod pace;
pub mod service;

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::sync::watch;

pub use activity::Activity;
pub use incoming::BodyError;
pub use service::Connected;
use service::Served;

use crate::http2;
use crate::linger::Lingering;

/// At shutdown, how long the rest of a request may take.
const REST_TIME_MAX: Duration = Duration::from_secs(1);
/// A connection that is served.
pub type Connection = http1::Connection<TokioIo<Lingering>, Connected>;

impl Served for Connection {
    fn finish(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

/// Serves a connection to its end. If its first bytes are those of HTTP/2, it continues as HTTP/2, and is closed when idle for `idle_max`.
pub async fn serve(
    mut connection: Connection,
    activity: Arc<Activity>,
    mut close: watch::Receiver<()>,
    idle_max: Duration,
) {
    let mut result = run(Pin::new(&mut connection), &activity, &mut close, None).await;
    if result.as_ref().is_err_and(hyper::Error::is_parse_version_h2) {
        let parts = connection.into_parts();
        activity.multiplex();
        let connection = http2::connection(parts.io.into_inner().rewound(parts.read_buf), parts.service);
        result = run(pin!(connection), &activity, &mut close, Some(idle_max)).await;
    }
    if let Err(e) = result {
        tracing::debug!("a connection failed: {e}");
    }
}

/// Serves a connection until its client closes it, it is evicted, or `close` signals shutdown. In the last two cases, running
/// answers are finished first.
async fn run<C: Served>(
    mut connection: Pin<&mut C>,
    activity: &Activity,
    close: &mut watch::Receiver<()>,
    idle_max: Option<Duration>,
) -> hyper::Result<()> {
    let mut wait = tokio::select! {
        result = connection.as_mut() => return result,
        () = activity.leave.notified() => {
            if activity.dropped.load(Ordering::Acquire) {
                return Ok(());
            }
            // Gives the client time to read the error.
            if activity.refused.load(Ordering::Acquire) { REST_TIME_MAX } else { Duration::ZERO }
        }
        _ = close.changed() => REST_TIME_MAX,
        () = idle(activity, idle_max) => Duration::ZERO,
    };
    connection.as_mut().finish();
    loop {
        tokio::select! {
            biased;
            result = connection.as_mut() => return result,
            () = tokio::time::sleep(wait) => {}
        }
        if !activity.is_needed() {
            tracing::debug!("closed a connection whose request had not arrived completely");
            return Ok(());
        }
        wait = REST_TIME_MAX;
    }
}

/// Waits until a connection has been idle for `most`; forever if that is `None` (HTTP/1 has its own timer).
async fn idle(activity: &Activity, most: Option<Duration>) {
    let Some(most) = most else { return std::future::pending().await };
    loop {
        let idle = activity.idle_for().unwrap_or_default();
        let Some(left) = most.checked_sub(idle).filter(|left| !left.is_zero()) else { return };
        tokio::time::sleep(left).await;
    }
}
