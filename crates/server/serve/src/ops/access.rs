//! The access log: one line for each request when its answer is complete, with figures from the pipeline. Written through `tracing`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use http_body::Body as _;
use hyper::header::HeaderValue;
use octet_config::printable;

use super::requests::RequestLog;
use super::trace::{Figures, Trace};
use crate::observed::observed;

/// Whether requests are logged as fields instead of a line of text.
static AS_FIELDS: AtomicBool = AtomicBool::new(false);

/// Logs each request as fields from now on, for a log in JSON.
pub fn write_json() {
    AS_FIELDS.store(true, Ordering::Relaxed);
}

/// The log line, written when dropped.
struct Line {
    trace: Trace,
    method: String,
    path: String,
    /// `None` before there is an answer.
    status: Option<u16>,
    complete: bool,
    /// Where requests for models are remembered.
    requests: Option<Arc<RequestLog>>,
}

impl Line {
    fn completed(&mut self) {
        self.complete = true;
    }

    /// Writes all figures as fields.
    fn fields(&self, f: &Figures, status: u16) {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        tracing::info!(
            target: "octet_serve::access",
            request_id = &*self.trace.id,
            method = self.method,
            path = self.path,
            status,
            duration_ms = ms(self.trace.began.elapsed()),
            ttft_ms = f.ttft.map(ms),
            key = f.key.as_deref(),
            user = f.user.as_deref(),
            model = Some(f.model.as_str()).filter(|model| !model.is_empty()),
            deployment = f.deployment.as_deref(),
            route = f.route.as_deref(),
            prompt_tokens = f.prompt,
            cached_tokens = f.cached,
            completion_tokens = f.completion,
            cost_usd = f.cost,
            error = f.error.as_deref().or(f.refused.as_deref()),
            "request"
        );
    }
}

/// Polled by monitors and the pages: logged only with `--verbose`, as they would hide other lines.
const WATCHING: &[&str] =
    &["/health", "/v1/health", "/ready", "/metrics", "/metrics/history", "/props", "/experts"];

/// nginx's status for a client that disconnected.
const CLIENT_GONE: u16 = 499;

impl Drop for Line {
    fn drop(&mut self) {
        let f = self.trace.figures();
        let status = if self.complete { self.status.unwrap_or(CLIENT_GONE) } else { CLIENT_GONE };
        let is_for_a_model = f.requested.is_some() || f.refused.is_some() && self.method == "POST";
        if let Some(requests) = self.requests.as_ref().filter(|_| is_for_a_model) {
            requests.remember(&self.trace, &f, &self.path, status);
        }
        if AS_FIELDS.load(Ordering::Relaxed) && (status >= 400 || !WATCHING.contains(&&*self.path)) {
            return self.fields(&f, status);
        }
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
        // With wildcard names, this text comes from clients.
        let model = printable(&f.model);
        tracing::info!(
            target: "octet_serve::access",
            "{method} {path} {status} {ms} ms model={model}{ttft}{rate} tokens={cached}/{prompt}/{completion}{route} id={id}{error}"
        );
    }
}

/// Middleware: gives each request an id, and writes its line when the last byte of the answer is sent or the client disconnects.
pub async fn log<F: Future<Output = Response>>(
    requests: Option<Arc<RequestLog>>,
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
        requests,
    };
    let id = HeaderValue::from_str(&trace.id);
    request.extensions_mut().insert(trace);
    let mut response = answer(request).await;
    line.status = Some(response.status().as_u16());
    // These have no body to observe.
    line.complete = line.method == "HEAD" || response.body().is_end_stream();
    if let Ok(id) = id {
        response.headers_mut().insert("x-request-id", id);
    }
    response.map(|inner| Body::new(observed(inner, move || line.completed())))
}
