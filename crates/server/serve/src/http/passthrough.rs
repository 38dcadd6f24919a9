//! Requests that are forwarded unread to a provider: audio, images, moderations, remote rerankers, files and batches.
//!
//! A form is read up to its field `model`; the rest is streamed to the provider, and so is the answer to the client.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::{any, get, post};
use http_body::{Body as HttpBody, Frame};
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use octet_api::{ApiError, ErrorKind, shortened};
use octet_router::{Dialect as Wire, Original, Passed, Upload};
use serde::de::IgnoredAny;

use super::call::{Call, call, trace};
use super::multipart::{ModelFinder, boundary};
use super::{Dialect, body, litellm, routed};
use crate::app::App;
use crate::gateway::read::{self, Own};
use crate::gateway::{Caller, Gateway, Sender};
use crate::memory_budget::MemoryPermit;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Maximum size of a streamed upload.
const UPLOAD_BYTES_MAX: u64 = 2 << 30;

/// The routes, each with and without `/v1`.
pub fn routes() -> Router<Arc<App>> {
    let mut router = Router::new();
    for (path, passed) in Passed::PATHS {
        // Local models can rerank, too.
        if passed == Passed::Rerank {
            continue;
        }
        for path in [format!("/v1{path}"), path.to_string()] {
            let take = move |State(app): State<Arc<App>>, request: Request| pass(app, request, passed);
            router = router.route(&path, post(take));
        }
    }
    for begin in ["/v1/files", "/files", "/v1/batches", "/batches"] {
        router =
            router.route(begin, get(beside).post(beside)).route(&format!("{begin}/{{*rest}}"), any(beside));
    }
    router
}

/// A request without its body.
struct Head {
    app: Arc<App>,
    gateway: Arc<Gateway>,
    sender: Sender,
}

impl Head {
    fn of(app: &Arc<App>, request: &Request, path: &str) -> Result<Self, ApiError> {
        let gateway = app.gateway().cloned().ok_or_else(|| {
            let what = format!(
                "{path} needs a provider: start with --config and a model of a provider that supports it (docs/providers.md)"
            );
            ApiError::new(ErrorKind::NotFound, what)
        })?;
        Ok(Self { app: Arc::clone(app), gateway, sender: Sender::of(request) })
    }
}

/// A request for a model, as a form or JSON.
async fn pass(app: Arc<App>, request: Request, passed: Passed) -> Response {
    let kind = request.headers().get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let Some(boundary) = boundary(kind) else {
        let path = request.uri().path().to_string();
        return call(app, request, move |c: Call| async move { json(c, passed, &path).await }).await;
    };
    let trace = trace(&request);
    let form = async {
        let head = Head::of(&app, &request, request.uri().path())?;
        form(head, request, passed, &boundary).await
    };
    form.await.unwrap_or_else(|e| Dialect::OpenAi.error(&e, Some(&trace)))
}

/// A JSON request, answered by any provider.
pub async fn json(c: Call, passed: Passed, path: &str) -> Result<Response, ApiError> {
    let Call { app, sender, body } = c;
    let Some(gateway) = app.gateway().cloned() else {
        let request = Request::new(Body::empty());
        return Err(Head::of(&app, &request, path).err().unwrap_or_else(missing));
    };
    let (bytes, mut share) = body.into_parts();
    let dialect = Wire::Passed(passed);
    let peek = move |bytes: &Bytes| {
        read::peek(bytes, dialect).ok_or_else(|| match serde_json::from_slice::<IgnoredAny>(bytes) {
            Ok(_) => missing(),
            Err(e) => ApiError::new(ErrorKind::InvalidRequest, format!("the body is not JSON: {e}")),
        })
    };
    let read::Peeked { request, own, body: left } = body::read_bytes(&mut share, &bytes, peek).await??;
    let body = left.unwrap_or(bytes);
    let original = Original::new(dialect, body);
    let context = sender.context(app.memory_budget.shared(share), own);
    routed::unread(&app, &gateway, context, request, original).await
}

fn missing() -> ApiError {
    ApiError::invalid("model", "'model' must be a non-empty string")
}

async fn form(head: Head, request: Request, passed: Passed, boundary: &str) -> Result<Response, ApiError> {
    let Head { app, gateway, sender } = head;
    let mut rest = request.into_body();
    let (mut beginning, mut share) = (Vec::new(), MemoryPermit::default());
    let mut finder = ModelFinder::new(boundary);
    let wrong =
        |what: String| ApiError::new(ErrorKind::InvalidRequest, format!("the body is no form: {what}"));
    let place = loop {
        let Some(frame) = poll_fn(|cx| Pin::new(&mut rest).poll_frame(cx)).await else {
            return Err(if finder.is_over() { missing() } else { wrong("it ends in the middle".into()) });
        };
        let Ok(data) = frame.map_err(|e| body::broken(&e))?.into_data() else { continue };
        if beginning.len() + data.len() > app.options.body_bytes_max {
            let most = app.options.body_bytes_max;
            let what = format!(
                "'model' does not come within the first {most} bytes of the form; send it before the file"
            );
            return Err(ApiError::new(ErrorKind::TooLarge, what));
        }
        app.memory_budget.take_body(&mut share, beginning.len() + data.len())?;
        beginning.extend_from_slice(&data);
        if let Some(found) = finder.push(&data).map_err(wrong)? {
            break found;
        }
    };
    // The name is in the part that has been read.
    let place = place.start as usize..place.end as usize;
    let name =
        beginning.get(place.clone()).and_then(|name| std::str::from_utf8(name).ok()).unwrap_or_default();
    if name.is_empty() {
        return Err(missing());
    }
    let request = read::shallow(name.to_string());
    let length = sender.headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    let content_type = sender.headers.get(CONTENT_TYPE).cloned().unwrap_or(HeaderValue::from_static(""));
    let left = UPLOAD_BYTES_MAX.saturating_sub(beginning.len() as u64);
    let rest = (!rest.is_end_stream()).then_some(Rest { body: rest, finder: Some(finder), left });
    let upload = Upload::new(content_type, beginning.into(), rest, length).naming(place);
    let original =
        Original { upload: Some(Arc::new(upload)), ..Original::new(Wire::Passed(passed), Bytes::new()) };
    let context = sender.context(app.memory_budget.shared(share), Own::default());
    routed::unread(&app, &gateway, context, request, original).await
}

/// The unread rest of a body.
struct Rest {
    body: Body,
    /// Checks the rest of a form.
    finder: Option<ModelFinder>,
    left: u64,
}

impl HttpBody for Rest {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        let frame = std::task::ready!(Pin::new(&mut this.body).poll_frame(cx));
        let Some(frame) = frame else { return Poll::Ready(None) };
        let frame = frame.map_err(|e| body::broken(&e).message)?;
        if let Some(data) = frame.data_ref() {
            let Some(left) = this.left.checked_sub(data.len() as u64) else {
                let what = format!("the body is longer than {UPLOAD_BYTES_MAX} bytes");
                return Poll::Ready(Some(Err(what.into())));
            };
            this.left = left;
            if let Some(finder) = &mut this.finder {
                finder.push(data)?;
            }
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

/// The header and query parameter that select a model's provider (LiteLLM's names).
const MODEL_HEADER: &str = "x-litellm-model";

/// A request for files or batches, which belong to an account and not to a model.
async fn beside(State(app): State<Arc<App>>, request: Request) -> Response {
    let trace = trace(&request);
    relay(&app, request).await.unwrap_or_else(|e| Dialect::OpenAi.error(&e, Some(&trace)))
}

async fn relay(app: &Arc<App>, request: Request) -> Result<Response, ApiError> {
    let path = request.uri().path().to_string();
    let head = Head::of(app, &request, &path)?;
    if matches!(head.sender.caller, Caller::Key(_)) {
        let what = "files and batches are the whole account's; the server's own key is needed here";
        return Err(ApiError::new(ErrorKind::Permission, what));
    }
    let query = request.uri().query().unwrap_or_default();
    let named = query.split('&').find_map(|pair| pair.strip_prefix("model="));
    let named = named.map(litellm::decoded);
    let named = named.or_else(|| Some(head.sender.headers.get(MODEL_HEADER)?.to_str().ok()?.to_string()));
    let rest: Vec<&str> =
        query.split('&').filter(|pair| !pair.is_empty() && !pair.starts_with("model=")).collect();
    let mut to = path.strip_prefix("/v1").unwrap_or(&path).to_string();
    if to.split('/').any(|step| matches!(step, "." | "..") || step.contains('%')) {
        let what = format!("no endpoint at {}", shortened(&path));
        return Err(ApiError::new(ErrorKind::NotFound, what));
    }
    if !rest.is_empty() {
        to += &format!("?{}", rest.join("&"));
    }
    let (method, length) = (request.method().clone(), request.headers().get(CONTENT_LENGTH));
    let length = length.and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    let kind = head
        .sender
        .headers
        .get(CONTENT_TYPE)
        .cloned()
        .unwrap_or(HeaderValue::from_static("application/json"));
    let incoming = request.into_body();
    let upload = (!incoming.is_end_stream()).then(|| {
        let rest = Rest { body: incoming, finder: None, left: UPLOAD_BYTES_MAX };
        Arc::new(Upload::new(kind, Bytes::new(), Some(rest), length))
    });
    let answer =
        head.gateway.relay(named.as_deref(), method, &to, upload.as_ref(), &head.sender.headers).await?;
    head.sender.trace.note(|f| f.route = Some(answer.route));
    let headers = answer.raw.headers().clone();
    Ok(routed::stream_unread(&headers, (answer.raw, head.sender.trace), |(mut raw, trace)| async move {
        let piece = raw.next().await?;
        Some((piece.map_err(|e| std::io::Error::other(e.message)), (raw, trace)))
    }))
}
