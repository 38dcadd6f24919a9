//! Sends an answer to the client, streamed or whole, in any dialect and from any source.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::response::Response;
use futures_util::stream::try_unfold;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use octet_api::ApiError;
use octet_api::core::{Answer, Event, GenerateRequest};
use octet_api::dialect::StreamWriter;
use octet_router::{AnswerMemory, Piece, Size};

use super::error::json;
use super::response_store::NewResponse;
use super::yield_to_others::yield_to_others;
use crate::answer_source::{AnswerSource, Facts};
use crate::app::App;
use crate::blocking::run_sized;
use crate::header::header_text;
use crate::warnings::add_header;

/// A stream without a token for this long gets a keep-alive.
pub const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// Approximate number of bytes that a stream sends at once.
const FRAME_BYTES: usize = 16 << 10;
/// Approximate number of bytes of a log-probability.
const LOGPROB_BYTES: usize = 64;

/// Reads a whole answer that a hook has changed: from its body, and the events before.
pub type ReadChanged = fn(&[u8], Vec<Event>) -> Result<Vec<Event>, ApiError>;

/// How a dialect writes answers.
#[derive(Clone, Copy)]
pub struct Form {
    /// Writes a stream.
    pub writer: fn(&GenerateRequest) -> Box<dyn StreamWriter>,
    /// Writes a whole answer.
    pub whole: fn(&GenerateRequest, &Answer) -> Vec<u8>,
    /// The events of a whole answer that a hook has changed, from its body and the events before.
    pub changed: ReadChanged,
    /// The content type of its streams.
    pub stream_type: &'static str,
    /// What is stored of a complete answer for the virtual key, if any, that it is for.
    pub done: fn(Option<&Arc<str>>, &GenerateRequest, &Answer) -> Option<NewResponse>,
}

/// Server-sent events.
pub const SSE: &str = "text/event-stream";
/// Newline-delimited JSON.
pub const NDJSON: &str = "application/x-ndjson";

/// Response headers: the model, its route, and why the prompt was not in the cache.
const MODEL: HeaderName = HeaderName::from_static("x-octet-model");
const ROUTE: HeaderName = HeaderName::from_static("x-octet-route");
const MISS: HeaderName = HeaderName::from_static("x-octet-cache-miss");

/// Whether the answer comes from the response cache, and its key there; the second header is LiteLLM's.
const RESPONSE_CACHE: HeaderName = HeaderName::from_static("x-octet-response-cache");
const RESPONSE_CACHE_KEY: HeaderName = HeaderName::from_static("x-litellm-cache-key");

/// Sends the answer of `source` in the form that the request asks for.
pub async fn respond(
    app: &Arc<App>,
    mut source: impl AnswerSource,
    form: Form,
) -> Result<Response, ApiError> {
    let (request, facts) = (source.request(), source.facts());
    let mut response = if request.stream {
        stream(Arc::clone(app), source, request, form).await?
    } else {
        whole(app, source, request, form).await?
    };
    write_facts(facts, &mut response);
    Ok(response)
}

/// Writes the facts about an answer into its headers.
pub fn write_facts(facts: Facts, response: &mut Response) {
    for (name, text) in [(MODEL, facts.model), (ROUTE, facts.route), (MISS, facts.cache_miss)] {
        if let Some(value) = text.and_then(|t| HeaderValue::from_str(&header_text(&t)).ok()) {
            response.headers_mut().insert(name, value);
        }
    }
    if let Some((key, is_hit)) = facts.response_cache {
        let headers = response.headers_mut();
        headers.insert(RESPONSE_CACHE, HeaderValue::from_static(if is_hit { "hit" } else { "miss" }));
        if let Ok(key) = HeaderValue::from_str(&header_text(&key)) {
            headers.insert(RESPONSE_CACHE_KEY, key);
        }
    }
    add_header(response, facts.warnings.iter().map(String::as_str));
}

/// Approximate bytes of an event in a whole answer.
fn written_bytes(event: &Event) -> usize {
    match event {
        Event::Text { text, .. } | Event::Reasoning { text, .. } | Event::ToolCallArguments { text, .. } => {
            text.len()
        }
        Event::Logprobs { tokens, .. } => tokens.iter().map(|t| LOGPROB_BYTES * (1 + t.top.len())).sum(),
        _ => 0,
    }
}

/// Bytes of the conversation that the answer to a request repeats, or that is stored with it.
fn repeated_bytes(request: &GenerateRequest) -> usize {
    let is_repeated = request.report.conversation || request.store;
    if is_repeated { usize::try_from(Size::of(request).bytes).unwrap_or(usize::MAX) } else { 0 }
}

/// Sends an answer as one body. A long one is written on a blocking thread.
async fn whole(
    app: &Arc<App>,
    mut source: impl AnswerSource,
    request: Arc<GenerateRequest>,
    form: Form,
) -> Result<Response, ApiError> {
    if source.flows() {
        return Ok(flowing(source));
    }
    let memory = source.memory();
    let mut answer_bytes = 0usize;
    let mut answer = Answer::default();
    let mut raw: Option<Bytes> = None;
    while let Some(piece) = source.next().await {
        match piece {
            Piece::Event(event) => {
                answer_bytes += written_bytes(&event);
                answer.push(&event);
            }
            // A raw whole answer is a single piece.
            Piece::Raw(bytes) => raw = Some(bytes),
        }
    }
    if let Some(error) = answer.error {
        return Err(error);
    }
    let body = match raw {
        Some(raw) => raw,
        None => {
            let owner = source.owner().cloned();
            let bytes = answer_bytes.saturating_add(repeated_bytes(&request));
            let write = move || {
                let kept = (form.done)(owner.as_ref(), &request, &answer);
                ((form.whole)(&request, &answer), kept)
            };
            let (body, kept) = run_sized(bytes, write).await?;
            if let Some(kept) = kept {
                app.kept.put(kept).await;
            }
            body.into()
        }
    };
    source.wrote(&body);
    source.finished();
    // A client that reads slowly keeps the memory, not only the text.
    let body = match memory {
        Some(memory) => Bytes::from_owner(Held { body, _memory: memory }),
        None => body,
    };
    Ok(json(200, body))
}

/// A body with its share of the memory for long answers.
struct Held {
    body: Bytes,
    _memory: AnswerMemory,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

/// Sends a whole answer on as it arrives. If it breaks off, so does the connection: its beginning was sent.
pub fn flowing(source: impl AnswerSource) -> Response {
    let bytes = try_unfold(source, |mut source| async move {
        loop {
            match source.next().await {
                Some(Piece::Raw(bytes)) => {
                    source.wrote(&bytes);
                    return Ok(Some((bytes, source)));
                }
                Some(Piece::Event(Event::Error(e))) => return Err(e),
                Some(Piece::Event(_)) => {}
                None => {
                    source.finished();
                    return Ok(None);
                }
            }
        }
    });
    json(200, Body::from_stream(bytes))
}

/// A stream being written. Dropped when the client disconnects.
struct Streaming<S> {
    app: Arc<App>,
    source: S,
    request: Arc<GenerateRequest>,
    form: Form,
    /// `None` when the end has been written.
    writer: Option<Box<dyn StreamWriter>>,
    /// Bytes that were written.
    written: usize,
    /// The provider writes the stream's bytes, including its end.
    is_raw: bool,
    /// Collected if the answer is to be stored.
    answer: Option<Answer>,
    began: bool,
    over: bool,
}

impl<S: AnswerSource> Streaming<S> {
    /// Begins again, as only keep-alives were written, if the request has become complete.
    async fn update_request(&mut self) -> Result<(), ApiError> {
        let request = self.source.request();
        if !Arc::ptr_eq(&request, &self.request) {
            self.writer = Some(writer(&request, self.form).await?);
            self.answer = request.store.then(Answer::default);
            self.request = request;
        }
        Ok(())
    }

    fn write(&mut self, piece: &Piece, out: &mut Vec<u8>) {
        let Some(writer) = &mut self.writer else { return };
        match piece {
            Piece::Raw(bytes) => {
                self.is_raw = true;
                writer.pass(bytes, out);
            }
            Piece::Event(event) => {
                self.is_raw = false;
                writer.write(event, out);
                if let Some(answer) = &mut self.answer {
                    answer.push(event);
                }
            }
        }
    }

    /// Adds the pieces that are available now. For a remote answer, yields between pieces so that the task that reads them runs:
    /// sending each alone would take ten times as long. A local model's tokens are not waited for.
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
                    yield_to_others().await;
                    waited = true;
                }
            }
        }
    }

    /// Writes the end, and stores the answer: on a blocking thread if the end is long, as it may repeat the answer or the conversation.
    async fn end(&mut self) -> Result<Vec<u8>, ApiError> {
        let Some(mut writer) = self.writer.take() else { return Ok(Vec::new()) };
        let answer = self.answer.take().filter(|answer| answer.error.is_none());
        let owner = self.source.owner().cloned();
        let (request, is_raw, done) = (Arc::clone(&self.request), self.is_raw, self.form.done);
        let bytes = if is_raw { 0 } else { self.written.saturating_add(repeated_bytes(&request)) };
        let end = move || {
            let mut out = Vec::new();
            if is_raw {
                writer.end_passed(&mut out);
            } else {
                writer.end(&mut out);
            }
            let kept = answer.and_then(|answer| done(owner.as_ref(), &request, &answer));
            (out, kept)
        };
        let (out, kept) = run_sized(bytes, end).await?;
        // Before the client learns that the answer is complete, and may continue it elsewhere.
        if let Some(kept) = kept {
            self.app.kept.put(kept).await;
        }
        Ok(out)
    }

    /// The next bytes; `None` after the last.
    async fn next(&mut self) -> Result<Option<Vec<u8>>, ApiError> {
        let mut out = Vec::new();
        while out.is_empty() && !self.over {
            match tokio::time::timeout(KEEP_ALIVE, self.source.next()).await {
                Err(_) => {
                    if let Some(writer) = &mut self.writer {
                        writer.keep_alive(&mut out);
                    }
                    if out.is_empty() {
                        continue;
                    }
                    break;
                }
                Ok(None) => {
                    self.over = true;
                    out = self.end().await?;
                    self.source.wrote(&out);
                    self.source.finished();
                }
                Ok(Some(piece)) => {
                    let is_first = !std::mem::replace(&mut self.began, true);
                    if is_first && matches!(piece, Piece::Event(_)) {
                        self.update_request().await?;
                    }
                    self.write(&piece, &mut out);
                    // The first piece is sent at once.
                    if !is_first {
                        self.gather(&mut out).await;
                    }
                    self.source.wrote(&out);
                }
            }
        }
        self.written += out.len();
        Ok((!out.is_empty()).then_some(out))
    }
}

/// The writer of an answer's stream. It copies the conversation if its end repeats that.
async fn writer(request: &Arc<GenerateRequest>, form: Form) -> Result<Box<dyn StreamWriter>, ApiError> {
    let asked = Arc::clone(request);
    run_sized(repeated_bytes(request), move || (form.writer)(&asked)).await
}

/// Sends an answer as a stream.
async fn stream(
    app: Arc<App>,
    source: impl AnswerSource,
    request: Arc<GenerateRequest>,
    form: Form,
) -> Result<Response, ApiError> {
    let state = Streaming {
        app,
        source,
        writer: Some(writer(&request, form).await?),
        answer: request.store.then(Answer::default),
        request,
        form,
        written: 0,
        is_raw: false,
        began: false,
        over: false,
    };
    let bytes = try_unfold(state, |mut state| async move {
        let bytes = state.next().await?;
        Ok::<_, ApiError>(bytes.map(|bytes| (Bytes::from(bytes), state)))
    });
    Ok(streamed(Body::from_stream(bytes), form))
}

/// A streaming response with this body.
pub fn streamed(body: Body, form: Form) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(form.stream_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Stops nginx from buffering the stream.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}
