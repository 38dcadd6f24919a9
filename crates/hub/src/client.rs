//! One request over HTTP/1.1, directly or through a proxy, with time limits.
//!
//! The client is hyper-util's, as in the router; its own thread drives it while the calling thread waits.

use std::error::Error as StdError;
use std::io::{self, ErrorKind, Read};
use std::iter::successors;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use base64::Engine;
use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::header::{HeaderValue, PROXY_AUTHORIZATION};
use hyper::rt::{Read as AsyncRead, ReadBufCursor, Write as AsyncWrite};
use hyper::{Method, Request, Response, Uri};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioExecutor;
use octet_tls::rustls::ClientConfig;
use thiserror::Error;
use tokio::runtime::Runtime;
use tokio::time::timeout;
use tower_service::Service;
use url::Url;

use crate::config::Patience;

/// Maximum number of headers of an answer. Servers behind several proxies send more than hyper's default of 100.
const HEADERS_MAX: usize = 256;

/// Why a request failed.
#[derive(Debug, Clone, Error)]
pub(crate) enum Failure {
    #[error("the name of the host is unknown")]
    UnknownHost,
    #[error("no connection in time")]
    NotConnected,
    #[error("no connection: {0}")]
    Unreachable(String),
    #[error("the proxy refused: {0}")]
    Proxy(String),
    /// Usually a certificate error.
    #[error("no encryption: {0}")]
    Tls(String),
    #[error("no answer in time")]
    Stalled,
    #[error("the connection broke: {0}")]
    Broken(String),
}

/// A proxy's address and credentials.
#[derive(Debug, Clone)]
pub(crate) struct Proxy {
    uri: Uri,
    authorization: Option<HeaderValue>,
}

impl Proxy {
    /// Whether the connection to it uses TLS.
    pub fn is_encrypted(&self) -> bool {
        self.uri.scheme_str() == Some("https")
    }

    /// `[http[s]://][user[:password]@]host[:port]`.
    pub fn parse(text: &str) -> Option<Self> {
        let with_scheme = if text.contains("://") { text.to_string() } else { format!("http://{text}") };
        let url = Url::parse(&with_scheme).ok().filter(|u| matches!(u.scheme(), "http" | "https"))?;
        let given = !url.username().is_empty() || url.password().is_some();
        let authorization = given.then(|| HeaderValue::try_from(basic(&url)).ok()).flatten();
        let uri = format!("{}://{}:{}/", url.scheme(), url.host_str()?, url.port_or_known_default()?);
        Some(Self { uri: uri.parse().ok()?, authorization })
    }
}

/// User and password of `url` as a header value.
pub(crate) fn basic(url: &Url) -> String {
    let decoded = |s: &str| percent_encoding::percent_decode_str(s).collect::<Vec<u8>>();
    let mut pair = decoded(url.username());
    pair.push(b':');
    pair.extend(decoded(url.password().unwrap_or_default()));
    format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(pair))
}

/// Connections of one kind: the same proxy and certificate check.
pub(crate) struct HttpClient {
    client: Client<Connector, Empty<Bytes>>,
    /// The proxy's host; all connections go to it.
    proxy_host: Option<String>,
    /// The proxy credentials for unencrypted requests. For TLS the connector opens a tunnel with them.
    proxy_authorization: Option<HeaderValue>,
    runtime: Arc<Runtime>,
    /// Time limit to connect, with DNS and TLS.
    connect: Duration,
    /// Time limit without received bytes.
    stall: Duration,
}

impl HttpClient {
    /// `tls` is for encrypted connections, including those to `https` proxies.
    pub fn new(
        proxy: Option<Proxy>,
        tls: Arc<ClientConfig>,
        runtime: Arc<Runtime>,
        patience: &Patience,
    ) -> Self {
        let (connect, stall) = (patience.connect, patience.stall);
        let proxy_authorization = proxy.as_ref().and_then(|p| p.authorization.clone());
        let proxy_host = proxy.as_ref().and_then(|p| p.uri.host().map(String::from));
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        let connector = Connector { direct: (http, Arc::clone(&tls)).into(), tls, proxy, limit: connect };
        let client = Client::builder(TokioExecutor::new()).http1_max_headers(HEADERS_MAX).build(connector);
        Self { client, proxy_host, proxy_authorization, runtime, connect, stall }
    }

    /// The host of the proxy, if there is one.
    pub fn proxy_host(&self) -> Option<&str> {
        self.proxy_host.as_deref()
    }

    /// Sends one request and returns the head of its answer. `uri` is absolute.
    pub fn send(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &[(&str, String)],
    ) -> Result<Response<Body>, Failure> {
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        let to_proxy = self.proxy_authorization.as_ref().filter(|_| uri.scheme_str() != Some("https"));
        if let Some(authorization) = to_proxy {
            request = request.header(PROXY_AUTHORIZATION, authorization);
        }
        let request = request.body(Empty::new()).map_err(|e| Failure::Broken(e.to_string()))?;
        let limit = self.connect + self.stall;
        let answer = self.runtime.block_on(async { timeout(limit, self.client.request(request)).await });
        let answer = answer.map_err(|_| Failure::Stalled)?.map_err(|e| {
            let connecting = e.source().and_then(|e| e.downcast_ref::<Failure>());
            connecting.cloned().unwrap_or_else(|| Failure::Broken(innermost(&e)))
        })?;
        let (stall, runtime) = (self.stall, Arc::clone(&self.runtime));
        Ok(answer.map(|incoming| Body { incoming, rest: Bytes::new(), stall, runtime }))
    }
}

/// Connects to the host, through a tunnel of the proxy, or to the proxy, which then gets the absolute address.
#[derive(Clone)]
struct Connector {
    direct: HttpsConnector<HttpConnector>,
    tls: Arc<ClientConfig>,
    proxy: Option<Proxy>,
    limit: Duration,
}

impl Connector {
    async fn connect(mut self, uri: Uri) -> Result<Stream, Failure> {
        let encrypts = uri.scheme_str() == Some("https");
        match self.proxy {
            None => Ok(Stream::new(self.direct.call(uri).await.map_err(|e| failure(&*e))?)),
            Some(proxy) if encrypts => {
                let mut tunnel = Tunnel::new(proxy.uri, self.direct);
                if let Some(authorization) = proxy.authorization {
                    tunnel = tunnel.with_auth(authorization);
                }
                let mut through = HttpsConnector::from((tunnel, self.tls));
                Ok(Stream::new(through.call(uri).await.map_err(|e| failure(&*e))?))
            }
            Some(proxy) => {
                let stream = self.direct.call(proxy.uri).await.map_err(|e| failure(&*e))?;
                Ok(Stream { asks_proxy: true, ..Stream::new(stream) })
            }
        }
    }
}

impl Service<Uri> for Connector {
    type Response = Stream;
    type Error = Failure;
    type Future = Pin<Box<dyn Future<Output = Result<Stream, Failure>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (limit, connecting) = (self.limit, self.clone().connect(uri));
        Box::pin(async move { timeout(limit, connecting).await.unwrap_or(Err(Failure::NotConnected)) })
    }
}

trait Io: AsyncRead + AsyncWrite + Send {}
impl<T: AsyncRead + AsyncWrite + Send> Io for T {}

/// A connection of any kind.
struct Stream {
    io: Pin<Box<dyn Io>>,
    asks_proxy: bool,
}

impl Stream {
    fn new(io: impl Io + 'static) -> Self {
        Self { io: Box::pin(io), asks_proxy: false }
    }
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new().proxy(self.asks_proxy)
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        self.io.as_mut().poll_read(cx, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.io.as_mut().poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.as_mut().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.as_mut().poll_shutdown(cx)
    }
}

/// The body of an answer, read as it arrives.
pub(crate) struct Body {
    incoming: Incoming,
    /// Received bytes that were not read yet.
    rest: Bytes,
    stall: Duration,
    runtime: Arc<Runtime>,
}

impl Read for Body {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() {
            let frame = self.runtime.block_on(async { timeout(self.stall, self.incoming.frame()).await });
            match frame {
                Err(_) => return Err(io::Error::new(ErrorKind::TimedOut, "nothing comes")),
                Ok(None) => return Ok(0),
                Ok(Some(Err(e))) => return Err(io::Error::other(innermost(&e))),
                Ok(Some(Ok(frame))) => self.rest = frame.into_data().unwrap_or_default(),
            }
        }
        let n = self.rest.len().min(buffer.len());
        buffer[..n].copy_from_slice(&self.rest.split_to(n));
        Ok(n)
    }
}

/// An error and its causes. An I/O error does not return the error that it wraps as its source.
fn causes<'a>(e: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    successors(Some(e), |&e: &&'a (dyn StdError + 'static)| match e.downcast_ref::<io::Error>() {
        Some(io) => io.get_ref().map(|inner| inner as &(dyn StdError + 'static)),
        None => e.source(),
    })
}

fn innermost(e: &(dyn StdError + 'static)) -> String {
    causes(e).last().map(ToString::to_string).unwrap_or_default()
}

/// Why a connection failed. The libraries keep most of their error types private.
fn failure(e: &(dyn StdError + 'static)) -> Failure {
    let why = innermost(e);
    let of_tunnel =
        |e: &(dyn StdError + 'static)| e.to_string().strip_prefix("tunnel error: ").map(str::to_string);
    if causes(e).any(|e| e.is::<octet_tls::rustls::Error>()) {
        return Failure::Tls(why);
    }
    if causes(e).any(|e| e.to_string() == "dns error") {
        return Failure::UnknownHost;
    }
    if let Some(why) = causes(e).last().and_then(of_tunnel) {
        return Failure::Proxy(why);
    }
    match causes(e).last().and_then(|e| e.downcast_ref::<io::Error>()).map(io::Error::kind) {
        Some(ErrorKind::TimedOut) => Failure::NotConnected,
        None
        | Some(
            ErrorKind::ConnectionRefused
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
            | ErrorKind::AddrNotAvailable,
        ) => Failure::Unreachable(why),
        // A retry may succeed.
        Some(_) => Failure::Broken(why),
    }
}
