//! The connections to all providers, and one request over them. Everything else here goes through [`Client`].

use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, LOCATION};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client as Pool, Error};
use octet_api::{ApiError, anthropic, bedrock, gemini, ollama, openai};
use octet_config::{Auth, Provider};

use crate::auth;
use crate::body::{Body, Clock, chain};
use crate::connect::{Connector, Limits, connector, pool};
use crate::encoding::Encoding;
use crate::endpoint::{Endpoint, Operation, Timeouts};
use crate::failure::{Failure, FailureKind, retry_after};
use crate::tls::{Place, Pools};
use crate::upload::Outgoing;

/// Most time for an access token.
const FETCH_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest error that is read.
const ERROR_BYTES_MAX: u64 = 1 << 20;

type Plain = Pool<Connector<HttpConnector>, Outgoing>;

/// A request for an endpoint, without what the endpoint adds to it.
pub(crate) struct Sending {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) body: Outgoing,
    /// What is signed, where requests are.
    pub(crate) signed: Bytes,
    /// Headers of the client's. The endpoint's own win.
    pub(crate) headers: HeaderMap,
    /// What wins over the endpoint's own.
    pub(crate) own: Vec<(HeaderName, HeaderValue)>,
}

/// Connections to all providers, pooled. Cheap to clone; one is enough for a process.
#[derive(Debug, Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    limits: Limits,
    plain: Plain,
    /// Made at the first address with TLS: a machine without certificates can still reach its own servers.
    tls: OnceLock<Result<Pools, String>>,
}

impl Client {
    /// A client without connections. Calls need tokio's runtime, with I/O and time.
    pub fn new(limits: Limits) -> Self {
        let inner = connector(&limits);
        let plain = pool(&limits).build(Connector { inner, limit: limits.connect });
        Self { shared: Arc::new(Shared { limits, plain, tls: OnceLock::new() }) }
    }

    /// A place for a request with TLS.
    fn tls(&self) -> Result<Place, Failure> {
        let made = self.shared.tls.get_or_init(|| Pools::new(&self.shared.limits).map_err(|e| e.to_string()));
        let no_tls = |e: &String| Failure::new(FailureKind::Connect, format!("TLS cannot be used: {e}"));
        made.as_ref().map(Pools::place).map_err(no_tls)
    }

    /// Sends a request and waits for the head of its answer. An answer with an error is read and becomes a failure.
    pub(crate) async fn send(
        &self,
        endpoint: &Endpoint,
        operation: Operation,
        body: Option<Bytes>,
        stream: bool,
    ) -> Result<Answer, Failure> {
        self.send_with(endpoint, operation, body, stream, HeaderMap::new()).await
    }

    /// The same with headers of the client's. The endpoint's own win.
    pub(crate) async fn send_with(
        &self,
        endpoint: &Endpoint,
        operation: Operation,
        body: Option<Bytes>,
        stream: bool,
        headers: HeaderMap,
    ) -> Result<Answer, Failure> {
        let method = if body.is_some() { Method::POST } else { Method::GET };
        let body = body.unwrap_or_default();
        // To share the body costs an allocation, which is for requests that are signed.
        let signed = matches!(endpoint.auth(), Auth::Aws(_)).then(|| body.clone()).unwrap_or_default();
        let uri = endpoint.uri(operation)?;
        let sending = Sending { method, uri, body: body.into(), signed, headers, own: Vec::new() };
        self.send_raw(endpoint, sending, stream).await
    }

    /// The same of a request that is made elsewhere.
    pub(crate) async fn send_raw(
        &self,
        endpoint: &Endpoint,
        sending: Sending,
        stream: bool,
    ) -> Result<Answer, Failure> {
        let clock = Clock::start(endpoint.settings().timeouts, stream);
        let answer = self.exchange(endpoint, sending, clock).await;
        answer.map_err(|e| e.without_keys(endpoint))
    }

    async fn exchange(&self, endpoint: &Endpoint, sending: Sending, clock: Clock) -> Result<Answer, Failure> {
        let place = if endpoint.is_tls() { Some(self.tls()?) } else { None };
        let response = match clock.first() {
            Some(due) => {
                let sending = self.request(endpoint, sending, place.as_ref());
                tokio::time::timeout_at(due.at, sending).await.map_err(|_| due.failure())??
            }
            None => self.request(endpoint, sending, place.as_ref()).await?,
        };
        let (head, incoming) = response.into_parts();
        let status = head.status;
        let encoding = Encoding::of(&head.headers)?;
        if status.is_success() {
            let body = Body::new(incoming, clock, endpoint.settings().answer_bytes_max);
            let body = body.decoded(encoding).keeping(place);
            return Ok(Answer { headers: head.headers, body });
        }
        if status.is_redirection() {
            return Err(redirected(status, &head.headers));
        }
        let body = Body::new(incoming, clock, ERROR_BYTES_MAX).decoded(encoding).whole().await;
        let name = head.headers.get("x-amzn-errortype").and_then(|v| v.to_str().ok());
        let error = read_error(endpoint.provider(), status.as_u16(), name, &body.unwrap_or_default());
        let mut failure = Failure::said(error, Some(status.as_u16()));
        failure.retry_after = retry_after(&head.headers, SystemTime::now()).or(failure.retry_after);
        Err(failure)
    }

    async fn request(
        &self,
        endpoint: &Endpoint,
        sending: Sending,
        place: Option<&Place>,
    ) -> Result<Response<Incoming>, Failure> {
        let Sending { method, uri, body, signed, mut headers, own } = sending;
        if headers.is_empty() {
            headers.clone_from(endpoint.headers());
        } else {
            for (name, value) in endpoint.headers() {
                headers.insert(name, value.clone());
            }
        }
        for (name, value) in own {
            headers.insert(name, value);
        }
        let mut request = Request::new(body);
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        *request.headers_mut() = headers;
        match endpoint.auth() {
            Auth::Key => {}
            Auth::Aws(aws) => {
                auth::sign(&mut request, &signed, aws, SystemTime::now())?;
            }
            Auth::Google(account) => {
                let asking = || auth::google(account, SystemTime::now());
                let value = endpoint.token().header(asking, |request| self.fetch(request)).await?;
                request.headers_mut().insert(auth::TOKEN_HEADER, value);
            }
            Auth::Entra(application) => {
                let asking = || auth::entra(application);
                let value = endpoint.token().header(asking, |request| self.fetch(request)).await?;
                request.headers_mut().insert(auth::TOKEN_HEADER, value);
            }
        }
        // The pool itself takes another connection where one turns out to be closed before the first byte is written to it. What
        // has been written may have been looked at, and is not sent again here: that is the router's to decide, and to count.
        let result = match place {
            Some(place) => place.pool().request(request).await,
            None => self.shared.plain.request(request).await,
        };
        result.map_err(|e| not_sent(&e, endpoint.host()))
    }

    /// Sends a request that is no provider's, and waits for the status of its answer for no longer than `most`; with how long the
    /// receiver wishes to be left alone.
    ///
    /// # Errors
    /// [`FailureKind::Connect`] and [`FailureKind::Timeout`], where another try may help.
    pub async fn deliver(
        &self,
        request: Request<Bytes>,
        most: Duration,
    ) -> Result<(StatusCode, Option<Duration>), Failure> {
        let request = request.map(Outgoing::from);
        let sending = async {
            let (head, incoming) = self.direct(request).await?.into_parts();
            // Read, so that the connection can be used again.
            let clock = Clock::start(Timeouts::default(), false);
            drop(Body::new(incoming, clock, ERROR_BYTES_MAX).whole().await);
            Ok((head.status, retry_after(&head.headers, SystemTime::now())))
        };
        tokio::time::timeout(most, sending)
            .await
            .unwrap_or_else(|_| Err(Failure::new(FailureKind::Timeout, format!("no answer within {most:?}"))))
    }

    /// Sends a request that belongs to no endpoint, over TLS if its address says so.
    async fn direct(&self, request: Request<Outgoing>) -> Result<Response<Incoming>, Failure> {
        let host = request.uri().authority().map_or_else(String::new, ToString::to_string);
        let result = if request.uri().scheme() == Some(&http::uri::Scheme::HTTPS) {
            self.tls()?.pool().request(request).await
        } else {
            self.shared.plain.request(request).await
        };
        result.map_err(|e| not_sent(&e, &host))
    }

    /// Sends a request that belongs to no endpoint, and reads its answer.
    async fn fetch(&self, request: Request<Full<Bytes>>) -> Result<Bytes, Failure> {
        let host = request.uri().authority().map_or_else(String::new, ToString::to_string);
        let request = request.map(Outgoing::Whole);
        let sending = async {
            let (head, incoming) = self.direct(request).await?.into_parts();
            let clock = Clock::start(Timeouts::default(), false);
            let body = Body::new(incoming, clock, ERROR_BYTES_MAX).whole().await?;
            Ok((head.status, body))
        };
        let answer = tokio::time::timeout(FETCH_TIMEOUT, sending).await;
        let late = |_| {
            Failure::new(
                FailureKind::Timeout,
                format!("{host} gave no access token within {FETCH_TIMEOUT:?}"),
            )
        };
        let (status, body) = answer.map_err(late)??;
        if status.is_success() {
            return Ok(body);
        }
        // `error` and `error_description` (RFC 6749) hold no secret.
        let value: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
        let said = ["error_description", "error"].iter().find_map(|key| value[*key].as_str()).unwrap_or("");
        let said: String = said.chars().take(200).collect();
        Err(Failure::new(
            FailureKind::Authentication,
            format!("{host} gives no access token ({status}): {said}"),
        ))
    }
}

/// An answer that has begun well.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) headers: HeaderMap,
    pub(crate) body: Body,
}

impl Answer {
    /// What kind of content it is, without parameters; empty if it does not say.
    pub(crate) fn content_type(&self) -> &str {
        let value = self.headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or("");
        value.split(';').next().unwrap_or("").trim()
    }

    /// Refuses what is no answer of an API: a page of a proxy's or a portal's, with the status of success.
    pub(crate) fn check_content_type(&self) -> Result<(), Failure> {
        match self.content_type() {
            kind @ ("text/html" | "application/xhtml+xml" | "text/xml" | "application/xml") => {
                let what =
                    format!("the provider answered with {kind}; api_base is probably not its API's address");
                Err(Failure::protocol(what))
            }
            _ => Ok(()),
        }
    }
}

impl Failure {
    pub(crate) fn without_keys(mut self, endpoint: &Endpoint) -> Self {
        // What a provider says can repeat the key in any of its fields.
        let said = [Some(&mut self.message), self.param.as_mut(), self.code.as_mut()];
        said.into_iter().flatten().for_each(|text| endpoint.hide_keys(text));
        self
    }
}

fn hyper_error(e: &Error) -> Option<&hyper::Error> {
    std::error::Error::source(e).and_then(|s| s.downcast_ref())
}

fn not_sent(e: &Error, host: &str) -> Failure {
    if e.is_connect() {
        return Failure::new(FailureKind::Connect, format!("no connection to {host}: {}", chain(e)));
    }
    match hyper_error(e) {
        // The client's body, which is not the server's fault.
        Some(inner) if inner.is_user() => {
            let what = format!("the body could not be sent on: {}", chain(inner));
            Failure::new(FailureKind::BadRequest, what)
        }
        Some(inner) if inner.is_parse() => {
            Failure::protocol(format!("{host} does not answer in HTTP: {}", chain(inner)))
        }
        _ => {
            let what = format!("{host} closed the connection before it answered: {}", chain(e));
            Failure::new(FailureKind::Connect, what)
        }
    }
}

fn redirected(status: StatusCode, headers: &HeaderMap) -> Failure {
    let location = headers.get(LOCATION).and_then(|v| v.to_str().ok()).unwrap_or("nowhere");
    // What follows `?` may be a secret of somebody's.
    let location: String = location.split(['?', '#']).next().unwrap_or("").chars().take(200).collect();
    let what = format!("the provider redirects to {location}, which is not followed: set api_base to that");
    Failure { status: Some(status.as_u16()), ..Failure::protocol(what) }
}

/// A provider's error.
fn read_error(provider: Provider, status: u16, name: Option<&str>, body: &[u8]) -> ApiError {
    match provider {
        Provider::OpenAi | Provider::OpenAiCompatible | Provider::AzureOpenAi => {
            openai::error::parse(status, body)
        }
        Provider::Anthropic => anthropic::error::parse(status, body),
        Provider::Gemini | Provider::Vertex => gemini::error::parse(status, body),
        Provider::Bedrock | Provider::BedrockAnthropic => bedrock::error::parse(status, name, body),
        // What comes from the model's makers is in their words, and what comes from the cloud in its own.
        Provider::VertexAnthropic if is_anthropic(body) => anthropic::error::parse(status, body),
        Provider::VertexAnthropic => gemini::error::parse(status, body),
        Provider::Ollama => ollama::error::parse(status, body),
    }
}

fn is_anthropic(error: &[u8]) -> bool {
    serde_json::from_slice::<serde_json::Value>(error).is_ok_and(|e| e["type"] == "error")
}
