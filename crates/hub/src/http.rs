//! One HTTP request with redirects, credentials and readable errors.
//!
//! Redirects are followed here instead of in the HTTP library: a token must never reach another host, and Hugging Face sends a file's hash
//! in the redirect, not in the final answer.

use std::collections::HashMap;
use std::io::Read;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::{HeaderMap, Method, Response, Uri};
use tokio::runtime::{Builder, Runtime};
use url::Url;

use crate::client::{Body, Failure, HttpClient, Proxy, basic};
use crate::config::{HubConfig, Patience, Proxies, Secret};
use crate::error::{Class, Error};
use crate::pip::PipConfig;
use crate::progress::{Event, Progress};
use crate::tls::{self, Tls};

const REDIRECTS_MAX: usize = 10;
/// If a server asks for a longer wait, the request fails instead.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

/// Which certificate and proxy settings apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trust {
    System,
    /// pip's settings.
    Pip,
}

/// One request.
#[derive(Clone)]
pub(crate) struct Call<'a> {
    pub url: &'a Url,
    pub head: bool,
    pub headers: Vec<(&'static str, String)>,
    /// Sent to the origin of `url` only.
    pub token: Option<&'a Secret>,
    pub trust: Trust,
    /// Stop at the first redirect with this header, and return that answer.
    pub stop_at: Option<&'static str>,
}

impl<'a> Call<'a> {
    pub fn get(url: &'a Url, trust: Trust) -> Self {
        Self { url, head: false, headers: Vec::new(), token: None, trust, stop_at: None }
    }
}

/// The final answer: status 2xx or 416, or 3xx if [`Call::stop_at`] stopped.
pub(crate) struct Answer {
    pub status: u16,
    pub url: Url,
    pub headers: HeaderMap,
    pub body: Body,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|v| v.to_str().ok()).map(str::trim)
    }

    pub fn content_length(&self) -> Option<u64> {
        self.header("content-length")?.parse().ok()
    }

    /// `Content-Range: bytes a-b/total` as (a, b, total); total is absent if the server sends `*`.
    pub fn content_range(&self) -> Option<(u64, u64, Option<u64>)> {
        let (range, total) = self.header("content-range")?.strip_prefix("bytes")?.trim().split_once('/')?;
        let (first, last) = range.split_once('-')?;
        Some((first.trim().parse().ok()?, last.trim().parse().ok()?, total.trim().parse().ok()))
    }

    /// The validator for `If-Range`: a strong entity tag, else the modification date.
    pub fn validator(&self) -> Option<String> {
        let tag = self.header("etag").filter(|t| !t.starts_with("W/") && !t.is_empty());
        tag.or_else(|| self.header("last-modified")).map(str::to_string)
    }

    /// The whole body as text; longer than `limit` bytes is an error.
    pub fn text(self, limit: u64) -> Result<String, Error> {
        let mut bytes = Vec::new();
        let url = self.url;
        let n = self.body.take(limit + 1).read_to_end(&mut bytes).map_err(|e| broken(&url, &e))?;
        if n as u64 > limit {
            return Err(Error::fetch(&url, format!("the answer exceeds {limit} bytes"), Class::Permanent));
        }
        String::from_utf8(bytes)
            .map_err(|_| Error::fetch(&url, "the answer is not UTF-8 text", Class::Permanent))
    }
}

/// A connection that failed while a body was read.
pub(crate) fn broken(url: &Url, e: &std::io::Error) -> Error {
    let what = match e.kind() {
        std::io::ErrorKind::TimedOut => "the server stopped sending".to_string(),
        _ => format!("the connection broke: {e}"),
    };
    Error::fetch(url, what, Class::Transient(None))
}

/// By the proxy's address.
type Clients = HashMap<(Option<String>, Tls), Arc<HttpClient>>;

/// Connections, kept alive, in one pool per proxy and certificate check. Calls block: they must not run on an async runtime's worker
/// thread, where tokio would panic.
pub(crate) struct Http {
    patience: Patience,
    proxies: Proxies,
    pip: PipConfig,
    clients: Mutex<Clients>,
    /// Created at the first request: most commands send none.
    runtime: Mutex<Option<Arc<Runtime>>>,
}

impl Http {
    pub fn new(config: &HubConfig) -> Self {
        Self {
            patience: config.patience.clone(),
            proxies: config.proxies.clone(),
            pip: config.pip.clone(),
            clients: Mutex::default(),
            runtime: Mutex::default(),
        }
    }

    pub fn patience(&self) -> &Patience {
        &self.patience
    }

    /// Sends a request, follows redirects, returns error statuses as errors. One attempt.
    pub fn send(&self, call: &Call<'_>) -> Result<Answer, Error> {
        let mut url = call.url.clone();
        let mut token = call.token;
        for _ in 0..=REDIRECTS_MAX {
            let response = self.once(call, &url, token)?;
            let status = response.status().as_u16();
            if !matches!(status, 301 | 302 | 303 | 307 | 308) {
                return answered(url, response);
            }
            if call.stop_at.is_some_and(|name| response.headers().contains_key(name)) {
                return Ok(Answer {
                    status,
                    url,
                    headers: response.headers().clone(),
                    body: response.into_body(),
                });
            }
            let location = response.headers().get("location").and_then(|v| v.to_str().ok());
            let location = location.ok_or_else(|| {
                Error::fetch(&url, format!("status {status} without a Location header"), Class::Permanent)
            })?;
            let mut next = url.join(location).map_err(|e| {
                Error::fetch(&url, format!("redirects to an invalid address: {e}"), Class::Permanent)
            })?;
            if !matches!(next.scheme(), "http" | "https") {
                let to = crate::error::redacted(&next);
                let what = format!("redirects to {to}, which is neither http nor https; refused");
                return Err(Error::fetch(&url, what, Class::Permanent));
            }
            if next.origin() == url.origin() {
                inherit_credentials(&url, &mut next);
            } else {
                token = None;
            }
            if url.scheme() == "https" && next.scheme() != "https" {
                let to = crate::error::redacted(&next);
                let what = format!("redirects to {to}, which is not encrypted; refused");
                return Err(Error::fetch(&url, what, Class::Permanent));
            }
            url = next;
        }
        Err(Error::fetch(call.url, format!("redirects more than {REDIRECTS_MAX} times"), Class::Permanent))
    }

    /// [`Http::send`] for small answers, with retries if the server is overloaded or the connection failed.
    pub fn send_retrying(
        &self,
        call: &Call<'_>,
        what: &str,
        progress: &dyn Progress,
    ) -> Result<Answer, Error> {
        let mut tries = 0;
        loop {
            match self.send(call) {
                Err(e)
                    if matches!(e.class(), Some(Class::Transient(_)))
                        && tries < self.patience.retries.min(3) =>
                {
                    let delay = self.delay(&e, tries);
                    progress.event(Event::Retrying { file: what, why: &e, delay });
                    std::thread::sleep(delay);
                    tries += 1;
                }
                other => return other,
            }
        }
    }

    /// The pause before attempt number `tries` + 1.
    pub fn delay(&self, e: &Error, tries: u32) -> Duration {
        match e.class() {
            Some(Class::Transient(Some(asked))) => asked,
            _ => self.patience.retry_delay * (1 << tries.min(4)),
        }
    }

    fn once(&self, call: &Call<'_>, url: &Url, token: Option<&Secret>) -> Result<Response<Body>, Error> {
        let permanent = |what: String| Error::fetch(url, what, Class::Permanent);
        let mut bare = url.clone();
        bare.set_fragment(None);
        // Fails only for addresses without credentials.
        let _ = bare.set_username("");
        let _ = bare.set_password(None);
        let uri: Uri = bare.as_str().parse().map_err(|e| permanent(format!("is not a valid URI: {e}")))?;
        let mut headers = call.headers.clone();
        headers.push(("user-agent", concat!("octet/", env!("CARGO_PKG_VERSION")).into()));
        if !headers.iter().any(|(name, _)| *name == "accept") {
            headers.push(("accept", "*/*".into()));
        }
        // Ranges and lengths must be those of the uncompressed file.
        headers.push(("accept-encoding", "identity".into()));
        if let Some(token) = token {
            headers.push(("authorization", format!("Bearer {}", token.expose())));
        } else if !url.username().is_empty() || url.password().is_some() {
            headers.push(("authorization", basic(url)));
        }
        let method = if call.head { Method::HEAD } else { Method::GET };
        let client = self.client(call.trust, url)?;
        client.send(&method, &uri, &headers).map_err(|e| failed(url, client.proxy_host(), e))
    }

    fn client(&self, trust: Trust, url: &Url) -> Result<Arc<HttpClient>, Error> {
        let pip = trust == Trust::Pip;
        let general = self.proxies.pick(url);
        let address = if pip { self.pip.proxy.as_deref().or(general) } else { general };
        let proxy = address.map(|text| Proxy::parse(text).ok_or_else(invalid_proxy)).transpose()?;
        let encrypts = url.scheme() == "https" || proxy.as_ref().is_some_and(Proxy::is_encrypted);
        let tls = match () {
            () if !encrypts => Tls::None,
            () if pip && self.pip.trusts(url) => Tls::Unchecked,
            () if pip && self.pip.cert.is_some() => Tls::PipCert,
            () => Tls::System,
        };
        let key = (address.map(str::to_string), tls);
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = clients.get(&key) {
            return Ok(Arc::clone(client));
        }
        let config = tls::config(tls, self.pip.cert.as_deref())?;
        let client = Arc::new(HttpClient::new(proxy, config, self.runtime()?, &self.patience));
        clients.insert(key, Arc::clone(&client));
        Ok(client)
    }

    fn runtime(&self) -> Result<Arc<Runtime>, Error> {
        let mut runtime = self.runtime.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(runtime) = &*runtime {
            return Ok(Arc::clone(runtime));
        }
        let new = Builder::new_multi_thread().worker_threads(1).enable_all().build().map_err(|e| {
            Error::Setting { setting: "network".into(), what: format!("cannot be used: {e}") }
        })?;
        Ok(Arc::clone(runtime.insert(Arc::new(new))))
    }
}

fn invalid_proxy() -> Error {
    let what = "is not a proxy address; expected http://host:port".into();
    Error::Setting { setting: "proxy".into(), what }
}

/// Gives `to` the user and password of `from`, unless it has its own. Only for addresses of the same origin.
pub(crate) fn inherit_credentials(from: &Url, to: &mut Url) {
    if to.username().is_empty() && to.password().is_none() {
        // Fails only for addresses that cannot have any.
        let _ = to.set_username(from.username());
        let _ = to.set_password(from.password());
    }
}

fn answered(url: Url, response: Response<Body>) -> Result<Answer, Error> {
    let status = response.status().as_u16();
    if (200..300).contains(&status) || status == 416 {
        return Ok(Answer { status, url, headers: response.headers().clone(), body: response.into_body() });
    }
    let mut what = format!("the server answered {status}");
    if let Some(reason) = response.status().canonical_reason() {
        what = format!("{what} {reason}");
    }
    // Hugging Face explains the status in this header.
    if let Some(text) = response.headers().get("x-error-message").and_then(|v| v.to_str().ok()) {
        what = format!("{what}: {}", text.trim());
    }
    let class = match status {
        408 | 425 | 429 | 500 | 502 | 503 | 504 => {
            let asked = response.headers().get("retry-after").and_then(|v| v.to_str().ok());
            match asked.and_then(|v| v.trim().parse::<u64>().ok()).map(Duration::from_secs) {
                Some(asked) if asked > RETRY_AFTER_MAX => {
                    what = format!("{what}; it asks to retry in {} s", asked.as_secs());
                    Class::Status(status)
                }
                asked => Class::Transient(asked),
            }
        }
        _ => Class::Status(status),
    };
    Err(Error::fetch(&url, what, class))
}

/// The error of a request without an answer. With a proxy, only the proxy's host was connected to.
fn failed(url: &Url, proxy: Option<&str>, e: Failure) -> Error {
    let host = url.host_str().unwrap_or_default();
    let dialled = proxy.map_or_else(|| host.to_string(), |proxy| format!("the proxy {proxy}"));
    let (what, class) = match e {
        Failure::UnknownHost => {
            let host = proxy.unwrap_or(host);
            let of_proxy = if proxy.is_some() { " of the proxy" } else { "" };
            let what = format!("the host {host}{of_proxy} cannot be resolved (no network, or no DNS?)");
            (what, Class::Unreachable)
        }
        // The proxy may have answered, but the host behind it did not.
        Failure::NotConnected if proxy.is_some() => {
            (format!("no connection to {host} through {dialled} in time"), Class::Unreachable)
        }
        Failure::NotConnected => (format!("no connection to {host} in time"), Class::Unreachable),
        Failure::Unreachable(why) => (format!("no connection to {dialled}: {why}"), Class::Unreachable),
        Failure::Proxy(why) => (format!("the proxy refused: {why}"), Class::Unreachable),
        Failure::Tls(why) => (certificate_hint(&why), Class::Unreachable),
        Failure::Stalled => ("the server stopped answering".to_string(), Class::Transient(None)),
        Failure::Broken(why) => (format!("the connection broke: {why}"), Class::Transient(None)),
    };
    Error::fetch(url, what, class)
}

fn certificate_hint(tls: &str) -> String {
    let mut what = format!("no encrypted connection: {tls}");
    if tls.to_ascii_lowercase().contains("certificate") {
        what.push_str("; if your network uses its own certificate, set SSL_CERT_FILE to its file");
    }
    what
}
