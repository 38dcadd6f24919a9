//! One request over HTTP/1.1: look-up, proxy, TLS, time limits, connections kept for the next. Used by `http`.
//!
//! The connections are hyper's, as the router's are. A pull is one thread that waits, so they advance while it does and need no thread of
//! their own.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::io::{self, ErrorKind, Read};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine;
use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper::header::{HOST, HeaderValue, PROXY_AUTHORIZATION};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Runtime;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tower_service::Service;
use url::Url;

use crate::config::Patience;

/// Most headers of an answer. Stores behind several proxies send more than hyper's 100.
const HEADERS_MAX: usize = 256;
/// So much of a body that nobody wants is read, and so long, for its connection to be used again.
const DRAIN_BYTES_MAX: u64 = 16 << 10;
const DRAIN_TIME_MAX: Duration = Duration::from_millis(100);

/// A connection: bare, encrypted, or through a proxy.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}
type BoxStream = Box<dyn Stream>;
type Sender = SendRequest<Empty<Bytes>>;

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The name of the host (or of the proxy) is unknown.
    UnknownHost,
    /// No connection in time.
    NotConnected,
    /// No connection: refused, no way there.
    Unreachable(String),
    /// The proxy does not connect us.
    Proxy(String),
    /// No encryption: most often a certificate.
    Tls(String),
    /// Connected, and no answer in time.
    Stalled,
    /// The connection broke.
    Broken(String),
}

/// A proxy's address and what it is asked with.
#[derive(Debug, Clone)]
pub(crate) struct Proxy {
    uri: Uri,
    authorization: Option<HeaderValue>,
}

impl Proxy {
    /// Whether it is to be talked to over TLS.
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

/// User and password of `url` as a header says them.
pub(crate) fn basic(url: &Url) -> String {
    let decoded = |s: &str| percent_encoding::percent_decode_str(s).collect::<Vec<u8>>();
    let mut pair = decoded(url.username());
    pair.push(b':');
    pair.extend(decoded(url.password().unwrap_or_default()));
    format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(pair))
}

type Idle = Arc<Mutex<HashMap<String, Sender>>>;

/// Connections of one kind: through one proxy or none, and with one check of certificates.
pub(crate) struct Wire {
    proxy: Option<Proxy>,
    tls: Option<Arc<ClientConfig>>,
    runtime: Arc<Runtime>,
    /// Longest time to connect, names and TLS included.
    connect: Duration,
    /// Longest time without a byte.
    stall: Duration,
    /// By scheme, host and port: what waits for a next request.
    idle: Idle,
}

impl Wire {
    /// `tls` is for what is encrypted, `https` proxies included.
    pub fn new(
        proxy: Option<Proxy>,
        tls: Option<Arc<ClientConfig>>,
        runtime: Arc<Runtime>,
        patience: &Patience,
    ) -> Self {
        let (connect, stall) = (patience.connect, patience.stall);
        Self { proxy, tls, runtime, connect, stall, idle: Idle::default() }
    }

    /// One request and the head of its answer. `uri` is absolute.
    pub fn send(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &[(&str, String)],
    ) -> Result<Response<Body>, Failure> {
        self.runtime.block_on(async {
            let key = format!("{:?} {:?}", uri.scheme_str(), uri.authority());
            let kept = self.idle.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
            if let Some(mut sender) = kept
                && matches!(timeout(self.connect, sender.ready()).await, Ok(Ok(())))
            {
                match self.ask(sender, method, uri, headers, &key).await {
                    // The server has closed it meanwhile; what is asked here may be asked twice.
                    Err(Failure::Broken(_)) => {}
                    other => return other,
                }
            }
            let connecting = timeout(self.connect, self.open(uri)).await;
            let sender = connecting.unwrap_or(Err(Failure::NotConnected))?;
            self.ask(sender, method, uri, headers, &key).await
        })
    }

    /// Whether the proxy is asked for the address itself. With encryption it is asked to connect us instead.
    fn asks_proxy(&self, uri: &Uri) -> Option<&Proxy> {
        self.proxy.as_ref().filter(|_| uri.scheme_str() != Some("https"))
    }

    async fn ask(
        &self,
        mut sender: Sender,
        method: &Method,
        uri: &Uri,
        headers: &[(&str, String)],
        key: &str,
    ) -> Result<Response<Body>, Failure> {
        let broken = |e: &dyn StdError| Failure::Broken(innermost(e));
        let proxy = self.asks_proxy(uri);
        let target = match proxy {
            Some(_) => uri.to_string(),
            None => uri.path_and_query().map_or("/", |p| p.as_str()).to_string(),
        };
        let mut request = Request::builder().method(method).uri(target).header(HOST, host(uri));
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        if let Some(authorization) = proxy.and_then(|p| p.authorization.as_ref()) {
            request = request.header(PROXY_AUTHORIZATION, authorization);
        }
        let request = request.body(Empty::new()).map_err(|e| broken(&e))?;
        let answer = timeout(self.stall, sender.send_request(request)).await;
        let answer = answer.map_err(|_| Failure::Stalled)?.map_err(|e| broken(&e))?;
        Ok(answer.map(|incoming| Body {
            incoming,
            rest: Bytes::new(),
            is_over: false,
            stall: self.stall,
            runtime: Arc::clone(&self.runtime),
            idle: Arc::clone(&self.idle),
            connection: Some((key.to_string(), sender)),
        }))
    }

    /// A connection over which `uri` can be asked for.
    async fn open(&self, uri: &Uri) -> Result<Sender, Failure> {
        let Some(proxy) = &self.proxy else {
            let mut stream = self.tcp(uri).await?;
            if uri.scheme_str() == Some("https") {
                stream = self.encrypt(stream, uri).await?;
            }
            return self.speak(stream).await;
        };
        let mut stream = self.tcp(&proxy.uri).await?;
        if proxy.is_encrypted() {
            stream = self.encrypt(stream, &proxy.uri).await?;
        }
        if self.asks_proxy(uri).is_none() {
            stream = self.tunnel(stream, uri, proxy).await?;
            stream = self.encrypt(stream, uri).await?;
        }
        self.speak(stream).await
    }

    async fn tcp(&self, uri: &Uri) -> Result<BoxStream, Failure> {
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(self.connect));
        match connector.call(uri.clone()).await {
            Ok(stream) => Ok(Box::new(stream.into_inner())),
            Err(e) if e.to_string().contains("dns") => Err(Failure::UnknownHost),
            Err(e) => {
                let io = e.source().and_then(|e| e.downcast_ref::<io::Error>());
                match io.map(io::Error::kind) {
                    Some(ErrorKind::TimedOut) => Err(Failure::NotConnected),
                    _ => Err(Failure::Unreachable(innermost(&e))),
                }
            }
        }
    }

    async fn encrypt(&self, stream: BoxStream, uri: &Uri) -> Result<BoxStream, Failure> {
        let config =
            self.tls.clone().ok_or_else(|| Failure::Tls("there are no certificates for it".into()))?;
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(host.to_string()).map_err(|e| Failure::Tls(e.to_string()))?;
        let encrypted = TlsConnector::from(config).connect(name, stream).await;
        let encrypted = encrypted.map_err(|e| match e.kind() {
            // Where the library keeps what is wrong with the handshake.
            ErrorKind::InvalidData => Failure::Tls(e.to_string()),
            _ => Failure::Broken(e.to_string()),
        })?;
        Ok(Box::new(encrypted))
    }

    /// Asks a proxy to connect us.
    async fn tunnel(&self, stream: BoxStream, uri: &Uri, proxy: &Proxy) -> Result<BoxStream, Failure> {
        let failed = |e: &dyn StdError| Failure::Proxy(innermost(e));
        let address = format!("{}:{}", uri.host().unwrap_or_default(), uri.port_u16().unwrap_or(443));
        let mut sender = self.speak(stream).await?;
        let mut request = Request::builder().method(Method::CONNECT).uri(&address).header(HOST, &address);
        if let Some(authorization) = &proxy.authorization {
            request = request.header(PROXY_AUTHORIZATION, authorization);
        }
        let request = request.body(Empty::new()).map_err(|e| failed(&e))?;
        let answer = sender.send_request(request).await.map_err(|e| failed(&e))?;
        if answer.status() != StatusCode::OK {
            return Err(Failure::Proxy(format!("it answers {}", answer.status())));
        }
        let upgraded = hyper::upgrade::on(answer).await.map_err(|e| failed(&e))?;
        Ok(Box::new(TokioIo::new(upgraded)))
    }

    /// HTTP/1.1 over a stream.
    async fn speak(&self, stream: BoxStream) -> Result<Sender, Failure> {
        let shaken = Builder::new().max_headers(HEADERS_MAX).handshake(TokioIo::new(stream)).await;
        let (sender, connection) = shaken.map_err(|e| Failure::Broken(innermost(&e)))?;
        tokio::spawn(connection.with_upgrades());
        Ok(sender)
    }
}

/// The body of an answer, read as it comes.
pub(crate) struct Body {
    incoming: Incoming,
    /// What has come and is not read.
    rest: Bytes,
    is_over: bool,
    stall: Duration,
    runtime: Arc<Runtime>,
    idle: Idle,
    connection: Option<(String, Sender)>,
}

impl Read for Body {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() && !self.is_over {
            let frame = self.runtime.block_on(async { timeout(self.stall, self.incoming.frame()).await });
            match frame {
                Err(_) => return Err(io::Error::new(ErrorKind::TimedOut, "nothing comes")),
                Ok(None) => self.is_over = true,
                Ok(Some(Err(e))) => return Err(io::Error::other(innermost(&e))),
                Ok(Some(Ok(frame))) => self.rest = frame.into_data().unwrap_or_default(),
            }
        }
        let n = self.rest.len().min(buffer.len());
        buffer[..n].copy_from_slice(&self.rest.split_to(n));
        Ok(n)
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        use hyper::body::Body as _;
        let Some((key, sender)) = self.connection.take() else { return };
        // What was not read to its end is in the way of a next answer. A few bytes come faster than a new connection.
        if !self.is_over && self.incoming.size_hint().exact().is_some_and(|n| n <= DRAIN_BYTES_MAX) {
            let rest = async { while let Some(Ok(_)) = self.incoming.frame().await {} };
            let _ = self.runtime.block_on(async { timeout(DRAIN_TIME_MAX, rest).await });
        }
        if self.is_over || self.incoming.is_end_stream() {
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).insert(key, sender);
        }
    }
}

/// `Host`: the port where it is not the scheme's own.
fn host(uri: &Uri) -> String {
    let host = uri.host().unwrap_or_default();
    uri.port().map_or_else(|| host.to_string(), |port| format!("{host}:{port}"))
}

/// What an error comes from.
fn innermost(e: &dyn StdError) -> String {
    let mut e = e;
    while let Some(source) = e.source() {
        e = source;
    }
    e.to_string()
}
