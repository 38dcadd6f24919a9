//! An answer on its way to the client, in whatever dialect: as a stream or whole. Called by the endpoints that generate.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::response::Response;
use futures_util::stream::unfold;
use hyper::HeaderMap;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use octet_api::ApiError;
use octet_api::core::{Answer, GenerateRequest};
use octet_api::dialect::StreamWriter;
use octet_router::{Dialect as Wire, Piece};

use super::call::Call;
use super::error::json;
use super::yield_to_others::others_turn;
use super::{body, routed};
use crate::app::App;
use crate::gateway::RoutedRequest;
use crate::memory_budget::MemoryPermit;
use crate::ops::Trace;
use crate::pipeline::Run;
use crate::warnings::tell;

/// A stream says that it is alive after so long without a token.
pub const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// Bytes of a stream that are sent at once, about.
const FRAME_BYTES: usize = 16 << 10;

/// How a dialect answers.
#[derive(Clone, Copy)]
pub struct Form {
    /// Writes a stream.
    pub writer: fn(&GenerateRequest) -> Box<dyn StreamWriter>,
    /// Writes a whole answer.
    pub whole: fn(&GenerateRequest, &Answer) -> Vec<u8>,
    /// What a stream is called.
    pub stream_type: &'static str,
    /// Takes note of a complete answer, and of the virtual key that it is for, if one asked.
    pub done: fn(&App, Option<&Arc<str>>, &GenerateRequest, &Answer),
}

/// Server-sent events.
pub const SSE: &str = "text/event-stream";
/// Lines of JSON.
pub const NDJSON: &str = "application/x-ndjson";

/// The header that asks why a prompt was not found in the cache, and the one that tells.
const EXPLAIN: &str = "x-octet-explain-cache";
const MISS: &str = "x-octet-cache-miss";
/// Characters of a header.
const HEADER_CHARS_MAX: usize = 1000;

/// A request for text as an endpoint takes it.
pub struct Asked {
    /// What it is written in.
    pub dialect: Wire,
    /// Reads it.
    pub parse: fn(&[u8]) -> Result<GenerateRequest, ApiError>,
    /// Writes its answer.
    pub form: Form,
}

/// Answers a request: by the router, where there is one, or by a model here.
pub async fn answer(c: Call, asked: Asked) -> Result<Response, ApiError> {
    if let Some(gateway) = c.app.gateway().cloned() {
        return routed::asked(&gateway, c, asked).await;
    }
    let parsed = body::parse(c.body, asked.parse).await?;
    generate(c.app, c.trace, &c.headers, parsed, asked.form).await
}

/// Answers a request, which comes with its memory permit, by a local model.
pub async fn generate(
    app: Arc<App>,
    trace: Trace,
    headers: &HeaderMap,
    asked: (GenerateRequest, MemoryPermit),
    form: Form,
) -> Result<Response, ApiError> {
    let explain = headers.get(EXPLAIN).is_some_and(|v| !matches!(v.as_bytes(), b"" | b"0" | b"false"));
    let (request, share) = (Arc::new(asked.0), asked.1);
    let index = app.find(&request.model)?;
    let mut run = Run::start(&app, &trace, index, (request, share), explain).await?;
    let request = Arc::clone(&run.request);
    let mut miss = None;
    if explain {
        run.admitted().await;
        miss = run.miss.take().and_then(|line| HeaderValue::from_str(&line).ok());
    }
    let warnings = std::mem::take(&mut run.warnings);
    let mut response = if request.stream {
        stream(app, Source::Run(Box::new(run)), request, form)
    } else {
        whole(&app, Source::Run(Box::new(run)), &request, form).await?
    };
    if let Some(miss) = miss {
        response.headers_mut().insert(MISS, miss);
    }
    tell(&mut response, warnings.iter().map(String::as_str));
    Ok(response)
}

/// A text as a header can hold it, cut where it is long.
pub fn header_text(text: &str) -> Cow<'_, str> {
    if text.len() <= HEADER_CHARS_MAX && text.bytes().all(|b| b == b' ' || b.is_ascii_graphic()) {
        return Cow::Borrowed(text);
    }
    let may_stand = |c: char| if c == ' ' || c.is_ascii_graphic() { c } else { '?' };
    let mut out: String = text.chars().take(HEADER_CHARS_MAX).map(may_stand).collect();
    if text.chars().nth(HEADER_CHARS_MAX).is_some() {
        out += "...";
    }
    Cow::Owned(out)
}

/// Where an answer comes from.
pub enum Source {
    /// A model here.
    Run(Box<Run>),
    /// Whoever the router asks.
    RoutedRequest(Box<RoutedRequest>),
}

impl Source {
    /// The virtual key that asked.
    fn owner(&self) -> Option<&Arc<str>> {
        match self {
            Self::Run(_) => None,
            Self::RoutedRequest(routed_request) => routed_request.owner(),
        }
    }

    async fn next(&mut self) -> Option<Piece> {
        match self {
            Self::Run(run) => run.next().await.map(Piece::Event),
            Self::RoutedRequest(routed_request) => routed_request.next().await,
        }
    }

    fn try_next(&mut self) -> Option<Piece> {
        match self {
            Self::Run(run) => run.try_next().map(Piece::Event),
            Self::RoutedRequest(routed_request) => routed_request.try_next(),
        }
    }

    fn is_remote(&self) -> bool {
        matches!(self, Self::RoutedRequest(routed_request) if routed_request.is_remote())
    }
}

/// An answer in one piece.
pub async fn whole(
    app: &App,
    mut source: Source,
    request: &GenerateRequest,
    form: Form,
) -> Result<Response, ApiError> {
    let mut answer = Answer::default();
    let mut raw: Option<Bytes> = None;
    while let Some(piece) = source.next().await {
        match piece {
            Piece::Event(event) => answer.push(&event),
            // A whole answer comes in one.
            Piece::Raw(bytes) => raw = Some(bytes),
        }
    }
    if let Some(error) = answer.error {
        return Err(error);
    }
    if let Some(raw) = raw {
        return Ok(json(200, raw));
    }
    (form.done)(app, source.owner(), request, &answer);
    Ok(json(200, (form.whole)(request, &answer)))
}

/// A stream that is being written. Dropped where the client is gone.
struct Streaming {
    app: Arc<App>,
    source: Source,
    request: Arc<GenerateRequest>,
    form: Form,
    writer: Box<dyn StreamWriter>,
    /// The provider writes the stream, its end included.
    is_raw: bool,
    /// Gathered where it is to be kept.
    answer: Option<Answer>,
    began: bool,
    over: bool,
}

impl Streaming {
    fn write(&mut self, piece: &Piece, out: &mut Vec<u8>) {
        match piece {
            Piece::Raw(bytes) => {
                self.is_raw = true;
                out.extend_from_slice(bytes);
            }
            Piece::Event(event) => {
                self.is_raw = false;
                self.writer.write(event, out);
                if let Some(answer) = &mut self.answer {
                    answer.push(event);
                }
            }
        }
    }

    /// Adds what is there already. The task that reads from another server hands on a piece at a time, and gets its turn in between:
    /// to send each alone would take ten times as long. Tokens of a model here are there when they are, and nobody is waited for.
    async fn gather(&mut self, out: &mut Vec<u8>) {
        let mut waited = false;
        while out.len() < FRAME_BYTES {
            match self.source.try_next() {
                Some(piece) => {
                    self.write(&piece, out);
                    waited = false;
                }
                None if waited || !self.source.is_remote() => return,
                None => {
                    others_turn().await;
                    waited = true;
                }
            }
        }
    }

    /// The next bytes; `None` after the last.
    async fn next(&mut self) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        while out.is_empty() && !self.over {
            match tokio::time::timeout(KEEP_ALIVE, self.source.next()).await {
                Err(_) => {
                    self.writer.keep_alive(&mut out);
                    if out.is_empty() {
                        continue;
                    }
                    break;
                }
                Ok(None) => {
                    if !self.is_raw {
                        self.writer.end(&mut out);
                    }
                    if let Some(answer) = self.answer.take().filter(|a| a.error.is_none()) {
                        (self.form.done)(&self.app, self.source.owner(), &self.request, &answer);
                    }
                    self.over = true;
                }
                Ok(Some(piece)) => {
                    self.write(&piece, &mut out);
                    // The first goes out at once.
                    if std::mem::replace(&mut self.began, true) {
                        self.gather(&mut out).await;
                    }
                }
            }
        }
        (!out.is_empty()).then_some(out)
    }
}

/// An answer in pieces.
pub fn stream(app: Arc<App>, source: Source, request: Arc<GenerateRequest>, form: Form) -> Response {
    let writer = (form.writer)(&request);
    let answer = request.store.then(Answer::default);
    let state =
        Streaming { app, source, request, form, writer, is_raw: false, answer, began: false, over: false };
    let bytes = unfold(state, |mut state| async move {
        let bytes = state.next().await?;
        Some((Ok::<Bytes, std::convert::Infallible>(bytes.into()), state))
    });
    let mut response = Response::new(Body::from_stream(bytes));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(form.stream_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // nginx would gather a stream otherwise.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}
