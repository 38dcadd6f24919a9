//! An answer on its way to the client, in whatever dialect: as a stream or whole. It knows nothing of who answers. Called by `generate` and
//! `routed`.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::response::Response;
use futures_util::stream::unfold;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use octet_api::ApiError;
use octet_api::core::{Answer, GenerateRequest};
use octet_api::dialect::StreamWriter;
use octet_router::Piece;

use super::error::json;
use super::yield_to_others::others_turn;
use crate::answer_source::{AnswerSource, Facts};
use crate::app::App;
use crate::header::header_text;
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

/// Headers of answers: who answered, how that was found, and why the prompt was not found in the cache.
const MODEL: HeaderName = HeaderName::from_static("x-octet-model");
const ROUTE: HeaderName = HeaderName::from_static("x-octet-route");
const MISS: HeaderName = HeaderName::from_static("x-octet-cache-miss");

/// Whether an answer comes from the cache of responses, and its entry there; the second is LiteLLM's name.
const RESPONSE_CACHE: HeaderName = HeaderName::from_static("x-octet-response-cache");
const RESPONSE_CACHE_KEY: HeaderName = HeaderName::from_static("x-litellm-cache-key");

/// Answers with what `source` gives, in the form that the request asks for.
pub async fn respond(
    app: &Arc<App>,
    mut source: impl AnswerSource,
    form: Form,
) -> Result<Response, ApiError> {
    let (request, facts) = (source.request(), source.facts());
    let mut response = if request.stream {
        stream(Arc::clone(app), source, request, form)
    } else {
        whole(app, source, &request, form).await?
    };
    write_facts(facts, &mut response);
    Ok(response)
}

/// Writes what is known of an answer into its headers.
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
    tell(response, facts.warnings.iter().map(String::as_str));
}

/// An answer in one piece.
async fn whole(
    app: &App,
    mut source: impl AnswerSource,
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
    let body = match raw {
        Some(raw) => raw,
        None => {
            (form.done)(app, source.owner(), request, &answer);
            (form.whole)(request, &answer).into()
        }
    };
    source.wrote(&body);
    source.finished();
    Ok(json(200, body))
}

/// A stream that is being written. Dropped where the client is gone.
struct Streaming<S> {
    app: Arc<App>,
    source: S,
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

impl<S: AnswerSource> Streaming<S> {
    fn write(&mut self, piece: &Piece, out: &mut Vec<u8>) {
        match piece {
            Piece::Raw(bytes) => {
                self.is_raw = true;
                self.writer.pass(bytes, out);
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
                    if self.is_raw {
                        self.writer.end_passed(&mut out);
                    } else {
                        self.writer.end(&mut out);
                    }
                    self.source.wrote(&out);
                    self.source.finished();
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
                    self.source.wrote(&out);
                }
            }
        }
        (!out.is_empty()).then_some(out)
    }
}

/// An answer in pieces.
fn stream(app: Arc<App>, source: impl AnswerSource, request: Arc<GenerateRequest>, form: Form) -> Response {
    let writer = (form.writer)(&request);
    let answer = request.store.then(Answer::default);
    let state =
        Streaming { app, source, request, form, writer, is_raw: false, answer, began: false, over: false };
    let bytes = unfold(state, |mut state| async move {
        let bytes = state.next().await?;
        Some((Ok::<Bytes, std::convert::Infallible>(bytes.into()), state))
    });
    streamed(Body::from_stream(bytes), form)
}

/// A stream's head with this body.
pub fn streamed(body: Body, form: Form) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(form.stream_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // nginx would gather a stream otherwise.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}
