//! A client of an OpenAI-compatible endpoint: its models, and one measured request.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue, LOCATION, USER_AGENT};
use hyper::{Method, Request, Response};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client, Error as SendError};
use hyper_util::rt::TokioExecutor;
use octet_tls::Trust;
use octet_tls::rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use url::Url;

use super::stream::{Answer, Failure, Reader, Sample, error_message, line};
use crate::usage_error::Usage;

/// Maximum number of bytes read of a body that is not a stream.
const BODY_BYTES_MAX: usize = 1 << 20;
/// Maximum time to wait for the end of a finished stream, so that its connection can be reused.
const CLOSING: Duration = Duration::from_millis(100);

/// Timeouts.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// To connect.
    pub connect: Duration,
    /// To the end of an answer.
    pub request: Duration,
}

/// An endpoint.
pub struct Endpoint {
    /// The URL of its API, up to `/v1`.
    pub url: Url,
    /// The model to request.
    pub model: String,
    /// Follows no redirects and uses no proxy: the key is for this endpoint only, and it is what is asked.
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    key: Option<HeaderValue>,
    timeouts: Timeouts,
}

impl Endpoint {
    /// Without a `model`, uses the first one that the endpoint lists.
    pub async fn new(
        url: Url,
        model: Option<String>,
        key: Option<String>,
        timeouts: Timeouts,
    ) -> anyhow::Result<Self> {
        let key = key.map(|key| {
            let value = HeaderValue::try_from(format!("Bearer {key}"));
            let mut value =
                value.map_err(|_| Usage("the API key holds characters that no header may".into()))?;
            value.set_sensitive(true);
            Ok::<_, Usage>(value)
        });
        let key = key.transpose()?;
        let tls = tls(&url).context("cannot start an HTTP client")?;
        let connector = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(timeouts.connect));
        let connector = connector.enable_http1().wrap_connector(http);
        let client = Client::builder(TokioExecutor::new()).build(connector);
        let mut endpoint = Self { url, model: String::new(), client, key, timeouts };
        endpoint.model = match model {
            Some(model) => model,
            None => endpoint.first_model().await?,
        };
        Ok(endpoint)
    }

    async fn first_model(&self) -> anyhow::Result<String> {
        let url = join(&self.url, "models");
        let advice = "name the model with --model, or see that the address is right";
        let failed = |Failure(why): Failure| anyhow::anyhow!("{url}: {why}; {advice}");
        let get = async {
            let response = self.send(Method::GET, &url, Bytes::new()).await?;
            let status = response.status();
            if !status.is_success() {
                return Err(refusal(response).await);
            }
            body(response).await
        };
        let got = tokio::time::timeout(self.timeouts.request, get).await;
        let text = got.unwrap_or_else(|_| Err(self.too_late())).map_err(failed)?;
        let Ok(list) = serde_json::from_str::<Value>(&text) else {
            return Err(failed(Failure(format!("the list of models is {}", kind(&text)))));
        };
        let name = list["data"][0]["id"].as_str();
        Ok(name.with_context(|| format!("{url} lists no model; {advice}"))?.to_string())
    }

    /// Sends this JSON and reads the answer to its end.
    pub async fn request(self: Arc<Self>, json: String) -> Result<Sample, Failure> {
        let answer = tokio::time::timeout(self.timeouts.request, self.stream(json, Reader::new())).await;
        answer.unwrap_or_else(|_| Err(self.too_late()))?.end()
    }

    /// The same with what the answer says.
    pub async fn ask(self: Arc<Self>, json: String) -> Result<Answer, Failure> {
        let answer = tokio::time::timeout(self.timeouts.request, self.stream(json, Reader::keeping())).await;
        answer.unwrap_or_else(|_| Err(self.too_late()))?.answer()
    }

    fn too_late(&self) -> Failure {
        Failure(format!("no end after {} s (--request-timeout)", self.timeouts.request.as_secs()))
    }

    async fn send(&self, method: Method, url: &Url, body: Bytes) -> Result<Response<Incoming>, Failure> {
        let mut request = Request::builder().method(&method).uri(url.as_str());
        request = request.header(USER_AGENT, concat!("octet/", env!("CARGO_PKG_VERSION")));
        if let Some(key) = &self.key {
            request = request.header(AUTHORIZATION, key);
        }
        if method == Method::POST {
            request = request.header(CONTENT_TYPE, "application/json").header(ACCEPT, "text/event-stream");
        }
        let request = request.body(Full::new(body)).map_err(|e| Failure(line(&e.to_string())))?;
        self.client.request(request).await.map_err(|e| not_sent(&e))
    }

    async fn stream(&self, json: String, mut reader: Reader) -> Result<Reader, Failure> {
        let url = join(&self.url, "chat/completions");
        let sent = Instant::now();
        let mut response = self.send(Method::POST, &url, json.into()).await?;
        if !response.status().is_success() {
            return Err(refusal(response).await);
        }
        let content_type = response.headers().get(CONTENT_TYPE);
        if content_type.is_some_and(|t| !t.as_bytes().to_ascii_lowercase().starts_with(b"text/event-stream"))
        {
            let text = body(response).await?;
            return Err(Failure(format!("the answer is not a stream but {}", kind(&text))));
        }
        while let Some(bytes) = chunk(&mut response).await? {
            if reader.push(&bytes, sent.elapsed())? {
                let rest = async { while let Ok(Some(_)) = chunk(&mut response).await {} };
                // If the connection stays open it is not reused; that is not a failure.
                let _ = tokio::time::timeout(CLOSING, rest).await;
                break;
            }
        }
        Ok(reader)
    }
}

/// The endpoint's URL as typed: up to `/v1`, or the host only.
pub fn base(text: &str) -> Result<Url, String> {
    let mut url = Url::parse(text).map_err(|e| format!("{e}; expected http://HOST:PORT/v1"))?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err("expected http://HOST:PORT/v1 or https://HOST/v1".into());
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("a key does not belong into an address; give --api-key-env NAME".into());
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err("expected an address without '?' and '#'".into());
    }
    let path = url.path().trim_end_matches('/');
    let path = path.strip_suffix("/chat/completions").unwrap_or(path);
    let path = if path.is_empty() { "/v1".to_string() } else { path.to_string() };
    url.set_path(&path);
    Ok(url)
}

fn join(base: &Url, path: &str) -> Url {
    let mut url = base.clone();
    url.set_path(&format!("{}/{path}", base.path()));
    url
}

/// Why a request could not be sent, or got no response.
fn not_sent(e: &SendError) -> Failure {
    let is_late = |e: &(dyn Error + 'static)| {
        e.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::TimedOut)
    };
    let what = match (e.is_connect(), causes(e).any(is_late)) {
        (true, true) => return Failure("no connection in time (--connect-timeout)".into()),
        (true, false) => "no connection",
        _ => "no answer",
    };
    Failure(format!("{what}: {}", cause(e)))
}

fn causes<'a>(e: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(e), |e: &&'a (dyn Error + 'static)| (*e).source())
}

/// The innermost cause, which is the most specific.
fn cause(e: &(dyn Error + 'static)) -> String {
    line(&causes(e).last().map(ToString::to_string).unwrap_or_default())
}

/// The TLS configuration. Plain HTTP needs no certificates, which a small container may not have.
fn tls(url: &Url) -> anyhow::Result<ClientConfig> {
    let is_plain = url.scheme() == "http";
    Ok(octet_tls::client(if is_plain { Trust::Only(RootCertStore::empty()) } else { Trust::System })?)
}

/// The next chunk of a response.
async fn chunk(response: &mut Response<Incoming>) -> Result<Option<Bytes>, Failure> {
    while let Some(frame) = response.body_mut().frame().await {
        let frame = frame.map_err(|e| Failure(format!("the stream broke: {}", cause(&e))))?;
        if let Ok(data) = frame.into_data() {
            return Ok(Some(data));
        }
    }
    Ok(None)
}

/// The message of an error response.
async fn refusal(response: Response<Incoming>) -> Failure {
    let status = response.status();
    let to = response.headers().get(LOCATION).and_then(|v| v.to_str().ok()).map(line);
    if let Some(to) = to.filter(|_| status.is_redirection()) {
        return Failure(format!("{status}: it is at {to}"));
    }
    let text = body(response).await.unwrap_or_default();
    let message = serde_json::from_str(&text).ok().and_then(|v| error_message(&v));
    Failure(match message {
        Some(message) => format!("{status}: {message}"),
        None if text.trim().is_empty() => status.to_string(),
        None => format!("{status}: {}", kind(&text)),
    })
}

/// The kind of an unexpected body.
fn kind(text: &str) -> String {
    let start: String = text.trim_start().chars().take(14).collect::<String>().to_ascii_lowercase();
    if start.starts_with("<!doctype html") || start.starts_with("<html") {
        let title = text.split_once("<title>").and_then(|(_, t)| t.split_once("</title>"));
        return title.map_or("a web page".into(), |(t, _)| format!("a web page: {}", line(t)));
    }
    match serde_json::from_str(text) {
        Ok(json) => error_message(&json).map_or("JSON".into(), |m| format!("JSON: {m}")),
        Err(_) if text.trim().is_empty() => "empty".into(),
        Err(_) => line(text),
    }
}

/// A body, up to a maximum size.
async fn body(mut response: Response<Incoming>) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    while bytes.len() < BODY_BYTES_MAX {
        let Some(more) = chunk(&mut response).await? else { break };
        bytes.extend_from_slice(&more);
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_completed_or_refused() {
        let ok = [
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080/v1"),
            ("http://localhost:8080/", "http://localhost:8080/v1"),
            ("https://a.example/api/v1/", "https://a.example/api/v1"),
            ("http://[::1]:1/v1/chat/completions", "http://[::1]:1/v1"),
        ];
        for (given, taken) in ok {
            assert_eq!(base(given).unwrap().as_str(), taken);
        }
        let bad =
            ["localhost:8080", "ftp://a/v1", "/v1", "http://me:key@a/v1", "http://a/v1?key=x", "http://"];
        for given in bad {
            assert!(base(given).is_err(), "{given}");
        }
        assert_eq!(join(&base("http://a/v1").unwrap(), "models").as_str(), "http://a/v1/models");
    }

    #[test]
    fn bodies_are_named() {
        assert_eq!(kind("<!DOCTYPE html><title>Not\nhere</title>"), "a web page: Not here");
        assert_eq!(kind("<html></html>"), "a web page");
        assert_eq!(kind("<p>é"), "<p>é");
        assert_eq!(kind(r#"{"detail":"no"}"#), "JSON: no");
        assert_eq!(kind(" "), "empty");
    }
}
