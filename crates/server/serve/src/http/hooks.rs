//! Hooks: another server sees each request for a model, or each answer, and may change or refuse it.
//!
//! A hook gets `{"request_id", "on", "path", "key", "body"}` (and the `request` of an answer), and answers `{}` to let it pass,
//! `{"body": {...}}` to change it, or `{"refuse": "the reason"}`.

use std::time::Duration;

use axum::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Uri};
use octet_api::{ApiError, ErrorKind, shortened};
use octet_config::Hook;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::body::BufferedBody;
use crate::app::App;
use crate::gateway::{Gateway, Sender};

/// Paths of requests that are for no model: the operator's.
const OTHERS: &[&str] = &[
    "/key/",
    "/user/",
    "/team/",
    "/customer/",
    "/end_user/",
    "/cache/",
    "/spend/",
    "/global/",
    "/page/",
    "/models/",
    "/config",
];

/// What a hook answers.
#[derive(Deserialize, Default)]
struct Verdict {
    /// Why the request is refused.
    refuse: Option<String>,
    /// The request or answer instead.
    body: Option<Box<RawValue>>,
}

/// What a hook gets.
#[derive(serde::Serialize)]
struct Question<'a> {
    request_id: &'a str,
    on: &'a str,
    path: &'a str,
    key: Option<&'a str>,
    /// The request or the answer.
    body: &'a RawValue,
    /// The request of an answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    request: Option<&'a RawValue>,
}

/// Asks all hooks about a request, in the configuration's order.
pub async fn apply(app: &App, sender: &Sender, body: BufferedBody) -> Result<BufferedBody, ApiError> {
    let Some(gateway) = app.gateway() else { return Ok(body) };
    let hooks = gateway.hooks();
    if hooks.is_empty() || OTHERS.iter().any(|other| sender.path.starts_with(other)) {
        return Ok(body);
    }
    // What is not JSON is refused by its endpoint.
    let about = About::of(gateway, sender);
    match about.ask(gateway, &hooks, body.bytes(), None, app.options.body_bytes_max).await? {
        Some(changed) => body.replaced(changed),
        None => Ok(body),
    }
}

/// The request that hooks are asked about.
pub struct About {
    request_id: String,
    path: Box<str>,
    key: Option<String>,
}

impl About {
    pub fn of(gateway: &Gateway, sender: &Sender) -> Self {
        let (request_id, path) = (sender.trace.id.to_string(), sender.path.clone());
        Self { request_id, path, key: gateway.key_name(&sender.caller) }
    }

    /// Asks hooks about a request, or about an answer to `request`; returns what they have changed it to.
    ///
    /// # Errors
    /// A refusal; a hook that does not answer, unless it fails open.
    pub async fn ask(
        &self,
        gateway: &Gateway,
        hooks: &[Hook],
        body: &[u8],
        request: Option<&[u8]>,
        bytes_max: usize,
    ) -> Result<Option<Bytes>, ApiError> {
        let mut changed: Option<Bytes> = None;
        for hook in hooks {
            let body = changed.as_deref().unwrap_or(body);
            let Ok(raw) = serde_json::from_slice::<&RawValue>(body) else { return Ok(changed) };
            let question = Question {
                request_id: &self.request_id,
                on: if hook.on_response { "response" } else { "request" },
                path: &self.path,
                key: self.key.as_deref(),
                body: raw,
                request: request.and_then(|request| serde_json::from_slice(request).ok()),
            };
            let question = serde_json::to_vec(&question).unwrap_or_default();
            let what = if hook.on_response { "answer" } else { "request" };
            match ask(gateway, hook, question, bytes_max).await {
                Ok(Verdict { refuse: Some(why), .. }) => {
                    let what = format!("the {what} is refused: {}", shortened(&why));
                    let code = Some("refused_by_hook".into());
                    return Err(ApiError { code, ..ApiError::new(ErrorKind::Permission, what) });
                }
                Ok(Verdict { body: Some(new), .. }) => changed = Some(new.get().as_bytes().to_vec().into()),
                Ok(_) => {}
                Err(why) if hook.fails_open => {
                    tracing::warn!("a hook is skipped, and {what}s pass unseen: {why}");
                }
                Err(why) => {
                    tracing::error!("a hook does not answer, so {what}s are refused: {why}");
                    let what = format!("the {what} cannot be checked at the moment; try again");
                    let error = ApiError::new(ErrorKind::Overloaded, what);
                    return Err(ApiError { retry_after_s: Some(1), ..error });
                }
            }
        }
        Ok(changed)
    }
}

async fn ask(gateway: &Gateway, hook: &Hook, question: Vec<u8>, bytes_max: usize) -> Result<Verdict, String> {
    let uri: Uri = hook.url.expose().parse().map_err(|e| format!("its address: {e}"))?;
    let mut request = Request::new(Bytes::from(question));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = uri;
    request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let most = hook.timeout.unwrap_or(ANSWER_WITHIN);
    // JSON as text may be longer by the fields around it.
    let answer = gateway.client().ask(request, most, bytes_max + ROOM).await.map_err(|e| e.message)?;
    let (status, answer) = answer;
    if !status.is_success() {
        return Err(format!("it answers {status}"));
    }
    if answer.is_empty() {
        return Ok(Verdict::default());
    }
    serde_json::from_slice(&answer).map_err(|e| format!("its answer: {e}"))
}

/// How long a hook may take, unless the configuration says otherwise.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Bytes of an answer besides the body.
const ROOM: usize = 4096;
