//! Forwards a request unchanged: client and provider speak the same dialect.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_core::Stream;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, Uri};
use octet_api::ApiError;
use octet_api::core::{MemoryHandle, Usage};
use octet_config::Provider;

use crate::accept::{self, NOT_OPENAI, Report};
use crate::asked::Asked;
use crate::blocking::run_sized;
use crate::body::Body;
use crate::client::{Client, Sending};
use crate::dialect::Dialect;
use crate::endpoint::{Endpoint, Operation};
use crate::failure::{Failure, FailureKind};
use crate::long::SHORT_BYTES;
use crate::rewrite::{Rewrite, Rewritten};
use crate::skim::Skim;
use crate::upload::{Outgoing, Upload};
use crate::watch::{self, Watch};

/// A client's request.
#[derive(Debug, Clone, Copy)]
pub struct Forward<'a> {
    /// Its dialect.
    pub dialect: Dialect,
    /// The model's name that it asked for, which the answer gets. `None`: the answer keeps the provider's.
    pub model: Option<&'a str>,
    /// Its headers. Only those for providers are forwarded (`anthropic-beta`, `traceparent`, ...).
    pub headers: &'a HeaderMap,
    /// Its JSON body.
    pub body: &'a Bytes,
    /// Its body if it is not JSON; it is streamed to the provider.
    pub upload: Option<&'a Arc<Upload>>,
    /// Counts the values of a body that must be parsed, until it is written.
    pub memory: &'a MemoryHandle,
    /// Whether the answer is a stream, as the body says.
    pub stream: bool,
    /// [`Raw::usage`] is needed: a stream must report its token count. The client does not see a count that it did not
    /// request.
    pub usage: bool,
}

/// Client headers that are forwarded to providers. Not keys, and not `idempotency-key`: many clients share one
/// account there, and if two chose the same value, one would get the other's answer.
const PASSING: [&str; 5] =
    ["anthropic-beta", "openai-beta", "x-client-request-id", "traceparent", "tracestate"];

/// The client headers that are forwarded.
fn passing(headers: &HeaderMap) -> HeaderMap {
    let mut out = HeaderMap::new();
    for name in PASSING {
        for value in headers.get_all(name) {
            out.append(name, value.clone());
        }
    }
    out
}

/// The body with the endpoint's model and changes. `count`: the stream must report its token count.
fn rewritten(endpoint: &Endpoint, dialect: Dialect, body: &[u8], count: bool) -> Result<Rewritten, Failure> {
    let changes = &endpoint.settings().remote.changes;
    let strict = matches!(endpoint.provider(), Provider::OpenAi | Provider::AzureOpenAi);
    let in_address = matches!(dialect, Dialect::Gemini | Dialect::GeminiCountTokens);
    let rewrite = Rewrite {
        model: (!in_address).then(|| endpoint.model()),
        changes,
        defaults: &endpoint.settings().params,
        unknown: match dialect {
            _ if in_address => &["stream"],
            _ if strict && changes.drop_params => NOT_OPENAI,
            _ => &[],
        },
        count,
    };
    rewrite.apply(body).map_err(|what| Failure::new(FailureKind::BadRequest, what))
}

/// Whether a provider accepts `stream_options`; others report their count anyway.
fn takes_options(endpoint: &Endpoint) -> bool {
    let accepts = endpoint.accepts();
    let is_there = |list: &[String]| list.iter().any(|name| name == "stream_options");
    (accepts.only.is_empty() || is_there(&accepts.only)) && !is_there(&accepts.without)
}

/// The body with the endpoint's model alone.
fn renamed(endpoint: &Endpoint, body: &[u8]) -> Result<Rewritten, Failure> {
    let rewrite = Rewrite {
        model: Some(endpoint.model()),
        changes: &octet_config::Changes::default(),
        defaults: &serde_json::Map::new(),
        unknown: &[],
        count: false,
    };
    rewrite.apply(body).map_err(|what| Failure::new(FailureKind::BadRequest, what))
}

impl Client {
    /// Forwards a client's request with the endpoint's model and changes. Returns when the answer has begun; a complete
    /// answer was read by then, and is JSON.
    ///
    /// # Errors
    /// All failures before that; [`FailureKind::BadRequest`] for a dialect that the endpoint does not
    /// [support](Endpoint::speaks), and for a body that is not a JSON object; [`FailureKind::Memory`].
    pub async fn forward(&self, endpoint: &Endpoint, request: Forward<'_>) -> Result<Raw, Failure> {
        let Forward { dialect, model, headers, body, memory, stream, usage, .. } = request;
        if !endpoint.speaks(dialect) {
            let what = format!("{} does not speak {dialect:?}", endpoint.provider().name());
            return Err(Failure::new(FailureKind::BadRequest, what));
        }
        if matches!(dialect, Dialect::Passed(_)) {
            return self.pass(endpoint, request).await;
        }
        let chunks = matches!(dialect, Dialect::OpenAiChat | Dialect::OpenAiCompletions);
        let counts = stream && usage && chunks && takes_options(endpoint);
        let (to, json) = (endpoint.clone(), body.clone());
        let memory = memory.clone();
        let write = move || {
            let rules = to.rules(dialect);
            let is_parsed = to.parses(dialect) || accept::is_deep(&rules, &json);
            let borrowed = is_parsed.then(|| memory.borrow_values(&json)).transpose();
            let _borrowed = borrowed.map_err(Failure::memory)?;
            let mut sent = rewritten(&to, dialect, &json, counts)?;
            let mut report = Report::default();
            sent.json = accept::apply_bytes(&rules, sent.json, &mut report)?;
            Ok::<_, Failure>((sent, report.warnings))
        };
        let (sent, warnings) = run_sized(body.len(), write).await??;
        let operation = match dialect {
            Dialect::Gemini => Operation::GenerateContent { stream },
            Dialect::GeminiCountTokens => Operation::CountTokens,
            dialect => Operation::Dialect(dialect),
        };
        let body = Some(sent.json.into());
        let answer = self.send_with(endpoint, operation, body, stream, passing(headers)).await?;
        answer.check_content_type()?;
        let asked = model.map(Asked::new);
        let whole = answer.content_type() == "application/json";
        if stream && !(whole && endpoint.provider() != Provider::Ollama) {
            let watch = Watch::new(dialect, sent.n, sent.count_is_ours);
            let source = Source::Stream { body: answer.body, watch: Box::new(watch) };
            return Ok(Raw { warnings, asked, ..Raw::new(answer.headers, source, endpoint) });
        }
        let mut body = answer.body;
        let (bytes, ended) = body.beginning(SHORT_BYTES).await.map_err(|e| e.without_keys(endpoint))?;
        let reported = |e: ApiError| Failure::reported(e, None).without_keys(endpoint);
        let source = if ended {
            Source::Done(watch::whole(dialect, &bytes).map_err(reported)?)
        } else {
            let mut skim = Skim::default();
            skim.push(&bytes).map_err(reported)?;
            Source::Long { body, skim: Box::new(skim), dialect }
        };
        if stream {
            return Err(Failure::protocol("the provider answers in one piece where a stream was asked for"));
        }
        let flows = matches!(source, Source::Long { .. });
        let mut raw = Raw { flows, warnings, asked, ..Raw::new(answer.headers, source, endpoint) };
        raw.queue.push_back(bytes.freeze());
        Ok(raw)
    }
}

/// Maximum size of an answer that is copied to read its token count.
const COUNTED_BYTES_MAX: usize = 1 << 20;

impl Client {
    /// Forwards a request that Octet does not parse, and its answer.
    async fn pass(&self, endpoint: &Endpoint, request: Forward<'_>) -> Result<Raw, Failure> {
        let Forward { dialect, headers, body, upload, .. } = request;
        let (body, content_type) = match upload {
            Some(upload) => {
                let gone = || Failure::new(FailureKind::BadRequest, "the request's body was sent on already");
                (upload.body(endpoint.model()).ok_or_else(gone)?, Some(upload.content_type().clone()))
            }
            None => {
                let (to, json) = (endpoint.clone(), body.clone());
                let sent = run_sized(body.len(), move || renamed(&to, &json)).await??;
                (Bytes::from(sent.json).into(), None)
            }
        };
        let uri = endpoint.uri(Operation::Dialect(dialect))?;
        self.relayed(endpoint, Method::POST, uri, (body, content_type), headers).await
    }

    /// Forwards a request that is not for a model: `path` follows `/v1`, and may have a query.
    ///
    /// # Errors
    /// All failures before an answer; a body that is [spent](Upload::is_spent).
    pub async fn relay(
        &self,
        endpoint: &Endpoint,
        method: Method,
        path: &str,
        upload: Option<&Arc<Upload>>,
        headers: &HeaderMap,
    ) -> Result<Raw, Failure> {
        let gone = || Failure::new(FailureKind::BadRequest, "the request's body was sent on already");
        let (body, content_type) = match upload {
            Some(upload) => {
                (upload.body(endpoint.model()).ok_or_else(gone)?, Some(upload.content_type().clone()))
            }
            None => (Bytes::new().into(), None),
        };
        let uri = endpoint.uri_beside(path)?;
        self.relayed(endpoint, method, uri, (body, content_type), headers).await
    }

    async fn relayed(
        &self,
        endpoint: &Endpoint,
        method: Method,
        uri: Uri,
        (body, content_type): (Outgoing, Option<HeaderValue>),
        headers: &HeaderMap,
    ) -> Result<Raw, Failure> {
        let accept = headers.get(ACCEPT).cloned().unwrap_or(HeaderValue::from_static("*/*"));
        let mut own = vec![(ACCEPT, accept)];
        own.extend(content_type.map(|value| (CONTENT_TYPE, value)));
        let headers = passing(headers);
        let sending = Sending { method, uri, body, signed: Bytes::new(), headers, own };
        let answer = self.send_raw(endpoint, sending, false).await?;
        answer.check_content_type()?;
        let copy = (answer.content_type() == "application/json").then(Vec::new);
        let source = Source::Unread { body: answer.body, copy };
        Ok(Raw::new(answer.headers, source, endpoint))
    }
}

/// An answer as the provider wrote it, in complete events. Ends after the last, or after one failure. Dropping it cancels the call.
#[derive(Debug)]
pub struct Raw {
    headers: HeaderMap,
    source: Source,
    queue: VecDeque<Bytes>,
    failure: Option<Failure>,
    sent_any: bool,
    warnings: Vec<String>,
    asked: Option<Asked>,
    endpoint: Endpoint,
    flows: bool,
}

#[derive(Debug)]
enum Source {
    Stream {
        body: Body,
        watch: Box<Watch>,
    },
    /// An answer in one piece that is too long to be held.
    Long {
        body: Body,
        skim: Box<Skim>,
        dialect: Dialect,
    },
    /// Not parsed, except a copy of short JSON.
    Unread {
        body: Body,
        copy: Option<Vec<u8>>,
    },
    Done(Option<Usage>),
}

impl Raw {
    fn new(headers: HeaderMap, source: Source, endpoint: &Endpoint) -> Self {
        Self {
            headers,
            source,
            queue: VecDeque::new(),
            failure: None,
            sent_any: false,
            warnings: Vec::new(),
            asked: None,
            endpoint: endpoint.clone(),
            flows: false,
        }
    }

    /// Fields of the request that were changed or left out for the model.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The headers of the provider's answer, except those about its connection and its body's length.
    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// Whether it is an answer in one piece that is too long to be held: its bytes are to be sent on as they arrive.
    pub fn flows(&self) -> bool {
        self.flows
    }

    /// The token count; of a stream after its end. `None` if the provider does not report it.
    pub fn usage(&self) -> Option<Usage> {
        match &self.source {
            Source::Stream { watch, .. } => watch.usage(),
            Source::Unread { .. } | Source::Long { .. } => None,
            Source::Done(usage) => *usage,
        }
    }

    /// The next bytes; `None` after the last. (The same as the [`Stream`].)
    pub async fn next(&mut self) -> Option<Result<Bytes, Failure>> {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }

    fn finish(&mut self) -> Option<Body> {
        let done = Source::Done(self.usage());
        match std::mem::replace(&mut self.source, done) {
            Source::Stream { body, .. } | Source::Unread { body, .. } | Source::Long { body, .. } => {
                Some(body)
            }
            Source::Done(_) => None,
        }
    }

    /// Reads on in an answer that is not a stream; false if it is one, or over.
    fn poll_one_piece(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        let (Source::Unread { body, .. } | Source::Long { body, .. }) = &mut self.source else {
            return Poll::Ready(false);
        };
        let bytes = match ready!(body.poll_next(cx)) {
            Some(Ok(bytes)) => Some(bytes),
            Some(Err(e)) => {
                self.failure = Some(e);
                return Poll::Ready(true);
            }
            None => None,
        };
        match (&mut self.source, bytes) {
            (Source::Unread { copy, .. }, Some(bytes)) => {
                if let Some(all) = copy {
                    all.extend_from_slice(&bytes);
                }
                copy.take_if(|all| all.len() > COUNTED_BYTES_MAX);
                self.queue.push_back(bytes);
            }
            (Source::Unread { copy, .. }, None) => {
                let usage = copy.as_deref().and_then(octet_api::openai::usage_in);
                self.source = Source::Done(usage);
            }
            (Source::Long { skim, .. }, Some(bytes)) => match skim.push(&bytes) {
                Ok(()) => self.queue.push_back(bytes),
                Err(e) => self.failure = Some(Failure::reported(e, None)),
            },
            (Source::Long { skim, dialect, .. }, None) => match skim.end() {
                Ok(members) => self.source = Source::Done(watch::counted(*dialect, &members)),
                Err(e) => self.failure = Some(Failure::reported(e, None)),
            },
            (Source::Stream { .. } | Source::Done(_), _) => {}
        }
        Poll::Ready(true)
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Failure>>> {
        loop {
            if let Some(bytes) = self.queue.pop_front() {
                self.sent_any = true;
                let bytes = match &mut self.asked {
                    Some(asked) => asked.apply(bytes),
                    None => bytes,
                };
                return Poll::Ready(Some(Ok(bytes)));
            }
            if let Some(mut failure) = self.failure.take() {
                self.finish();
                failure.sent_any = self.sent_any;
                return Poll::Ready(Some(Err(failure.without_keys(&self.endpoint))));
            }
            if ready!(self.poll_one_piece(cx)) {
                continue;
            }
            let Source::Stream { body, watch } = &mut self.source else { return Poll::Ready(None) };
            match body.poll_next(cx) {
                Poll::Ready(Some(Ok(bytes))) => {
                    if let Err(e) = watch.push(bytes, &mut self.queue) {
                        self.failure = Some(Failure::reported(e, None));
                    }
                }
                Poll::Ready(Some(Err(e))) => {
                    self.failure = (!watch.is_over()).then_some(e);
                    if self.failure.is_none() {
                        self.finish();
                    }
                }
                Poll::Ready(None) => {
                    if let Err(e) = watch.end(&mut self.queue) {
                        self.failure = Some(Failure::reported(e, None));
                    }
                    self.finish();
                }
                Poll::Pending if watch.is_over() => {
                    if let Some(body) = self.finish() {
                        body.drain();
                    }
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

impl Stream for Raw {
    type Item = Result<Bytes, Failure>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll(cx)
    }
}
