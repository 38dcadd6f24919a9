//! HTTP/2 without TLS, for clients that start with it ("prior knowledge"). Created by `connections` when a connection's first bytes
//! are HTTP/2's.

use std::pin::Pin;
use std::time::Duration;

use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};

use crate::connections::service::{Connected, Served};
use crate::linger::Lingering;

/// Maximum number of concurrent requests on a connection.
const STREAMS_MAX: u32 = 100;
/// Maximum size of a request's headers, as for HTTP/1.
const HEADER_BYTES_MAX: u32 = 64 << 10;
/// Flow-control window of a request's body; the connection's follows.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
/// Maximum buffered bytes of an answer that its client has not read.
const SEND_BYTES_MAX: usize = 256 << 10;
/// Interval of keep-alive pings, and the time for their answers.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// A connection.
pub type Connection = http2::Connection<TokioIo<Lingering>, Connected, TokioExecutor>;

/// Continues a connection as HTTP/2.
pub fn connection(stream: Lingering, service: Connected) -> Connection {
    http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEADER_BYTES_MAX)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BYTES_MAX)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service)
}

impl Served for Connection {
    fn finish(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}
