//! HTTP/2 of clients that begin with it, without TLS ("prior knowledge"). Made by `connections` where a connection's first bytes say so.

use std::pin::Pin;
use std::time::Duration;

use hyper::Request;
use hyper::header::{HOST, HeaderValue};
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};

use crate::connections::{Connected, Served};
use crate::linger::Lingering;

/// Requests on a connection at once.
const STREAMS_MAX: u32 = 100;
/// Longest headers of a request, as over HTTP/1.
const HEADER_BYTES_MAX: u32 = 64 << 10;
/// How much of a request's body may come that nobody has read yet, and of all on a connection.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
/// Most of an answer that waits for its client.
const SEND_BYTES_MAX: usize = 256 << 10;
/// How often a client is asked whether it is alive, and how long it has to say so.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// A connection.
pub type Connection = http2::Connection<TokioIo<Lingering>, Connected, TokioExecutor>;

/// Goes on with a connection as HTTP/2.
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

/// Puts the host where HTTP/1 has it.
pub fn name_host<B>(request: &mut Request<B>) {
    let authority = request.uri().authority().and_then(|a| HeaderValue::from_str(a.as_str()).ok());
    if let Some(host) = authority {
        request.headers_mut().entry(HOST).or_insert(host);
    }
}
