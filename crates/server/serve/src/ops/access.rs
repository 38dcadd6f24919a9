//! One line for each request, when its answer is over: who asked for what, and how fast it went. Written through `tracing`; the
//! figures are filled in by the pipeline.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use http_body::Body as _;
use hyper::header::HeaderValue;
use octet_config::printable;

use crate::observed::observed;

/// What the pipeline knows of a request.
#[derive(Debug, Clone, Default)]
pub struct Figures {
    /// The model's name.
    pub model: String,
    /// To the first token.
    pub ttft: Option<Duration>,
    /// Tokens a second after that.
    pub rate: Option<f64>,
    /// Tokens of the prompt that came from the cache.
    pub cached: u64,
    /// Tokens of the prompt.
    pub prompt: u64,
    /// Tokens of the answer.
    pub completion: u64,
    /// How it was routed, where it was.
    pub route: Option<String>,
    /// What went wrong after the answer had begun.
    pub error: Option<String>,
    /// Why the request was refused: its error code, and the field.
    pub refused: Option<String>,
}

/// A request's name and figures, which its handlers find among its extensions.
#[derive(Debug, Clone)]
pub struct Trace {
    /// Names the request in logs, errors and answers.
    pub id: Arc<str>,
    figures: Arc<Mutex<Figures>>,
    /// When it came.
    pub began: Instant,
}

impl Default for Trace {
    /// A new name. Only that: it is nobody's secret, so that the system need not be asked for chance with every request.
    fn default() -> Self {
        let id = format!("req_{:032x}", fastrand::u128(..));
        Self { id: id.into(), figures: Arc::default(), began: Instant::now() }
    }
}

impl Trace {
    /// Fills in figures.
    pub fn note(&self, with: impl FnOnce(&mut Figures)) {
        with(&mut self.figures.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// The line, written when it is dropped.
struct Line {
    trace: Trace,
    method: String,
    path: String,
    /// `None` as long as there is no answer.
    status: Option<u16>,
    complete: bool,
}

impl Line {
    fn completed(&mut self) {
        self.complete = true;
    }
}

/// Asked again and again by monitors and the pages: their lines would hide the others, and are only written with `--verbose`.
const WATCHING: &[&str] =
    &["/health", "/v1/health", "/ready", "/metrics", "/metrics/history", "/props", "/experts"];

/// What nginx calls a client that went away.
const CLIENT_GONE: u16 = 499;

impl Drop for Line {
    fn drop(&mut self) {
        let f = self.trace.figures.lock().unwrap_or_else(PoisonError::into_inner);
        let status = if self.complete { self.status.unwrap_or(CLIENT_GONE) } else { CLIENT_GONE };
        let ms = self.trace.began.elapsed().as_millis();
        let (id, method, path) = (&*self.trace.id, &self.method, &self.path);
        let error =
            f.error.as_ref().or(f.refused.as_ref()).map_or(String::new(), |e| format!(" error={e:?}"));
        if f.prompt == 0 && f.route.is_none() {
            if status < 400 && (WATCHING.contains(&&**path) || path.starts_with("/page/")) {
                tracing::debug!(target: "octet_serve::access", "{method} {path} {status} {ms} ms id={id}{error}");
            } else {
                tracing::info!(target: "octet_serve::access", "{method} {path} {status} {ms} ms id={id}{error}");
            }
            return;
        }
        let ttft = f.ttft.map_or(String::new(), |t| format!(" ttft={} ms", t.as_millis()));
        let rate = f.rate.map_or(String::new(), |r| format!(" {r:.1} tok/s"));
        let route = f.route.as_ref().map_or(String::new(), |r| format!(" route={r}"));
        let (cached, prompt, completion) = (f.cached, f.prompt, f.completion);
        // Where names have stars, clients say what stands for them.
        let model = printable(&f.model);
        tracing::info!(
            target: "octet_serve::access",
            "{method} {path} {status} {ms} ms model={model}{ttft}{rate} tokens={cached}/{prompt}/{completion}{route} id={id}{error}"
        );
    }
}

/// Around all endpoints: names each request, and writes its line when the last byte of its `answer` is out or the client is gone.
pub async fn log<F: Future<Output = Response>>(
    mut request: Request,
    answer: impl FnOnce(Request) -> F,
) -> Response {
    let trace = Trace::default();
    let mut line = Line {
        trace: trace.clone(),
        method: request.method().to_string(),
        path: request.uri().path().to_string(),
        status: None,
        complete: false,
    };
    let id = HeaderValue::from_str(&trace.id);
    request.extensions_mut().insert(trace);
    let mut response = answer(request).await;
    line.status = Some(response.status().as_u16());
    // Nobody asks for the body of these.
    line.complete = line.method == "HEAD" || response.body().is_end_stream();
    if let Ok(id) = id {
        response.headers_mut().insert("x-request-id", id);
    }
    response.map(|inner| Body::new(observed(inner, move || line.completed())))
}
