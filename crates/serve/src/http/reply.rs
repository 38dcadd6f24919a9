//! An answer on its way to the client, in whatever dialect: as a stream or whole. Called by the endpoints that generate.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::response::Response;
use futures_util::stream::unfold;
use hyper::HeaderMap;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use octet_api::ApiError;
use octet_api::core::{Answer, Event, GenerateRequest};
use octet_api::dialect::StreamWriter;

use super::error::json;
use crate::app::App;
use crate::ops::Trace;
use crate::pipeline::Run;
use crate::room::Share;

/// A stream says that it is alive after so long without a token.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
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
    /// Takes note of a complete answer.
    pub done: fn(&App, &GenerateRequest, &Answer),
}

/// Server-sent events.
pub const SSE: &str = "text/event-stream";
/// Lines of JSON.
pub const NDJSON: &str = "application/x-ndjson";

/// The header that asks why a prompt was not found in the cache, and the one that tells.
const EXPLAIN: &str = "x-octet-explain-cache";
const MISS: &str = "x-octet-cache-miss";
/// The header that says what the answer does not keep to.
const WARNING: &str = "x-octet-warning";
/// Characters of a header.
const HEADER_CHARS_MAX: usize = 1000;

/// Answers a request, which comes with its share of the room.
pub async fn generate(
    app: Arc<App>,
    trace: Trace,
    headers: &HeaderMap,
    asked: (GenerateRequest, Share),
    form: Form,
) -> Result<Response, ApiError> {
    let explain = headers.get(EXPLAIN).is_some_and(|v| !matches!(v.as_bytes(), b"" | b"0" | b"false"));
    let mut run = Run::start(&app, &trace, asked, explain).await?;
    let request = Arc::clone(&run.request);
    let mut miss = None;
    if explain {
        run.admitted().await;
        miss = run.miss.take().and_then(|line| HeaderValue::from_str(&line).ok());
    }
    let unenforced = std::mem::take(&mut run.unenforced).join("; ");
    let warning = Some(&unenforced).filter(|w| !w.is_empty());
    let warning = warning.and_then(|w| HeaderValue::from_str(&header_text(w)).ok());
    let mut response = if request.stream {
        stream(app, run, request, form)
    } else {
        whole(&app, run, &request, form).await?
    };
    if let Some(miss) = miss {
        response.headers_mut().insert(MISS, miss);
    }
    if let Some(warning) = warning {
        response.headers_mut().insert(WARNING, warning);
    }
    Ok(response)
}

/// A text as a header can hold it, cut where it is long.
fn header_text(text: &str) -> String {
    let may_stand = |c: char| if c == ' ' || c.is_ascii_graphic() { c } else { '?' };
    let mut out: String = text.chars().take(HEADER_CHARS_MAX).map(may_stand).collect();
    if text.chars().nth(HEADER_CHARS_MAX).is_some() {
        out += "...";
    }
    out
}

async fn whole(app: &App, mut run: Run, request: &GenerateRequest, form: Form) -> Result<Response, ApiError> {
    let mut answer = Answer::default();
    while let Some(event) = run.next().await {
        answer.push(&event);
    }
    if let Some(error) = answer.error {
        return Err(error);
    }
    (form.done)(app, request, &answer);
    Ok(json(200, (form.whole)(request, &answer)))
}

/// A stream that is being written. Dropped where the client is gone.
struct Streaming {
    app: Arc<App>,
    run: Run,
    request: Arc<GenerateRequest>,
    form: Form,
    writer: Box<dyn StreamWriter>,
    /// Gathered where it is to be kept.
    answer: Option<Answer>,
    over: bool,
}

impl Streaming {
    fn write(&mut self, event: &Event, out: &mut Vec<u8>) {
        self.writer.write(event, out);
        if let Some(answer) = &mut self.answer {
            answer.push(event);
        }
    }

    /// The next bytes; `None` after the last.
    async fn next(&mut self) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        while out.is_empty() && !self.over {
            match tokio::time::timeout(KEEP_ALIVE, self.run.next()).await {
                Err(_) => {
                    self.writer.keep_alive(&mut out);
                    if out.is_empty() {
                        continue;
                    }
                    break;
                }
                Ok(None) => {
                    self.writer.end(&mut out);
                    if let Some(answer) = self.answer.take().filter(|a| a.error.is_none()) {
                        (self.form.done)(&self.app, &self.request, &answer);
                    }
                    self.over = true;
                }
                Ok(Some(event)) => {
                    self.write(&event, &mut out);
                    while out.len() < FRAME_BYTES
                        && let Some(event) = self.run.try_next()
                    {
                        self.write(&event, &mut out);
                    }
                }
            }
        }
        (!out.is_empty()).then_some(out)
    }
}

fn stream(app: Arc<App>, run: Run, request: Arc<GenerateRequest>, form: Form) -> Response {
    let writer = (form.writer)(&request);
    let answer = request.store.then(Answer::default);
    let state = Streaming { app, run, request, form, writer, answer, over: false };
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
