//! The connections to all providers, and single requests over them. Everything else here uses [`Client`].

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
use crate::image_urls::ImageFetcher;
use crate::long::AnswerBudget;
use crate::tls::{Place, Pools};
use crate::upload::Outgoing;

/// Time limit to get an access token.
const FETCH_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum size of an error body that is read.
const ERROR_BYTES_MAX: u64 = 1 << 20;

type Plain = Pool<Connector<HttpConnector>, Outgoing>;

/// A request for an endpoint, without the endpoint's additions.
pub(crate) struct Sending {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) body: Outgoing,
    /// The bytes to sign, if requests are signed.
    pub(crate) signed: Bytes,
    /// The client's headers. The endpoint's take precedence.
    pub(crate) headers: HeaderMap,
    /// Headers that take precedence over the endpoint's.
    pub(crate) own: Vec<(HeaderName, HeaderValue)>,
}

/// Pooled connections to all providers. Cheap to clone; one per process is enough.
#[derive(Debug, Clone)]
pub struct Client {
    shared: Arc<Shared>,
    images: Option<ImageFetcher>,
}

#[derive(Debug)]
struct Shared {
    limits: Limits,
    plain: Plain,
    /// The memory of long answers.
    answers: AnswerBudget,
    /// Created for the first address with TLS: a machine without certificates can still reach its own servers.
    tls: OnceLock<Result<Pools, String>>,
}

impl Client {
    /// A client without connections. Calls need a tokio runtime with I/O and time.
    pub fn new(limits: Limits) -> Self {
        let inner = connector(&limits);
        let plain = pool(&limits).build(Connector { inner, limit: limits.connect });
        Self {
            shared: Arc::new(Shared { limits, plain, answers: AnswerBudget::new(), tls: OnceLock::new() }),
            images: None,
        }
    }

    /// Downloads images that requests give by address, for providers that take only the bytes.
    pub fn downloading(self, images: Option<ImageFetcher>) -> Self {
        Self { images, ..self }
    }

    pub(crate) fn images(&self) -> Option<&ImageFetcher> {
        self.images.as_ref()
    }

    /// The memory of all long answers that are translated.
    pub(crate) fn answers(&self) -> &AnswerBudget {
        &self.shared.answers
    }

    /// A place for a request with TLS.
    fn tls(&self) -> Result<Place, Failure> {
        let made = self.shared.tls.get_or_init(|| Pools::new(&self.shared.limits).map_err(|e| e.to_string()));
        let no_tls = |e: &String| Failure::new(FailureKind::Connect, format!("TLS cannot be used: {e}"));
        made.as_ref().map(Pools::place).map_err(no_tls)
    }

    /// Sends a request and waits for the head of its answer. An error status becomes a failure with the body's error.
    pub(crate) async fn send(
        &self,
        endpoint: &Endpoint,
        operation: Operation,
        body: Option<Bytes>,
        stream: bool,
    ) -> Result<Answer, Failure> {
        self.send_with(endpoint, operation, body, stream, HeaderMap::new()).await
    }

    /// The same with headers of the client. The endpoint's take precedence.
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
        // Sharing the body costs an allocation, which only signed requests need.
        let signed = matches!(endpoint.auth(), Auth::Aws(_)).then(|| body.clone()).unwrap_or_default();
        let uri = endpoint.uri(operation)?;
        let sending = Sending { method, uri, body: body.into(), signed, headers, own: Vec::new() };
        self.send_raw(endpoint, sending, stream).await
    }

    /// Sends a request that was built elsewhere.
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
        let mut failure = Failure::reported(error, Some(status.as_u16()));
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
        // The pool itself uses another connection if one is closed before the first byte is written. Bytes that were written may have been
        // processed, and are not sent again here: the router decides on retries and counts them.
        let result = match place {
            Some(place) => place.pool().request(request).await,
            None => self.shared.plain.request(request).await,
        };
        result.map_err(|e| not_sent(&e, endpoint.host()))
    }

    /// Sends a request that is not for a provider, and waits for its status for at most `most`. Also returns the pause that the receiver
    /// asks for.
    ///
    /// # Errors
    /// [`FailureKind::Connect`] and [`FailureKind::Timeout`], if a retry may help.
    pub async fn deliver(
        &self,
        request: Request<Bytes>,
        most: Duration,
    ) -> Result<(StatusCode, Option<Duration>), Failure> {
        let request = request.map(Outgoing::from);
        let sending = async {
            let (head, incoming) = self.direct(request).await?.into_parts();
            // Read so that the connection can be reused.
            let clock = Clock::start(Timeouts::default(), false);
            drop(Body::new(incoming, clock, ERROR_BYTES_MAX).whole().await);
            Ok((head.status, retry_after(&head.headers, SystemTime::now())))
        };
        tokio::time::timeout(most, sending)
            .await
            .unwrap_or_else(|_| Err(Failure::new(FailureKind::Timeout, format!("no answer within {most:?}"))))
    }

    /// Sends a request without an endpoint, and returns its answer of at most `bytes_max`, within `most`.
    ///
    /// # Errors
    /// If there is no complete answer.
    pub async fn ask(
        &self,
        request: Request<Bytes>,
        most: Duration,
        bytes_max: usize,
    ) -> Result<(StatusCode, Bytes), Failure> {
        let request = request.map(Outgoing::from);
        let sending = async {
            let (head, incoming) = self.direct(request).await?.into_parts();
            let clock = Clock::start(Timeouts::default(), false);
            Ok((head.status, Body::new(incoming, clock, bytes_max as u64).whole().await?))
        };
        tokio::time::timeout(most, sending)
            .await
            .unwrap_or_else(|_| Err(Failure::new(FailureKind::Timeout, format!("no answer within {most:?}"))))
    }

    /// Sends a request without an endpoint, over TLS if its address says so.
    async fn direct(&self, request: Request<Outgoing>) -> Result<Response<Incoming>, Failure> {
        let host = request.uri().authority().map_or_else(String::new, ToString::to_string);
        let result = if request.uri().scheme() == Some(&http::uri::Scheme::HTTPS) {
            self.tls()?.pool().request(request).await
        } else {
            self.shared.plain.request(request).await
        };
        result.map_err(|e| not_sent(&e, &host))
    }

    /// Sends a request without an endpoint, and reads its answer.
    async fn fetch(&self, request: Request<Full<Bytes>>) -> Result<Bytes, Failure> {
        let host = request.uri().authority().map_or_else(String::new, ToString::to_string);
        let request = request.map(Outgoing::Whole);
        let sending = async {
            let (head, incoming) = self.direct(request).await?.into_parts();
            let clock = Clock::start(Timeouts::default(), false);
            let body = Body::new(incoming, clock, ERROR_BYTES_MAX).whole().await?;
            Ok::<_, Failure>((head.status, body))
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
        // `error` and `error_description` (RFC 6749) contain no secret.
        let value: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
        let description =
            ["error_description", "error"].iter().find_map(|key| value[*key].as_str()).unwrap_or("");
        let description: String = description.chars().take(200).collect();
        Err(Failure::new(
            FailureKind::Authentication,
            format!("{host} gives no access token ({status}): {description}"),
        ))
    }
}

/// An answer with a status of success.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) headers: HeaderMap,
    pub(crate) body: Body,
}

impl Answer {
    /// Its content type without parameters; empty if absent.
    pub(crate) fn content_type(&self) -> &str {
        let value = self.headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or("");
        value.split(';').next().unwrap_or("").trim()
    }

    /// Refuses answers that are not an API's: a page of a proxy or a portal with a status of success.
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
        // A provider's text may repeat the key in any field.
        let texts = [Some(&mut self.message), self.param.as_mut(), self.code.as_mut()];
        texts.into_iter().flatten().for_each(|text| endpoint.hide_keys(text));
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
    // The query may be a secret.
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
        // Errors of the model's maker have its format, errors of the cloud have their own.
        Provider::VertexAnthropic if is_anthropic(body) => anthropic::error::parse(status, body),
        Provider::VertexAnthropic => gemini::error::parse(status, body),
        Provider::Ollama => ollama::error::parse(status, body),
    }
}

fn is_anthropic(error: &[u8]) -> bool {
    serde_json::from_slice::<serde_json::Value>(error).is_ok_and(|e| e["type"] == "error")
}
