//! Hooks: another server sees each request for a model first, and may change or refuse it. Called by `call` before an endpoint reads the body.
//!
//! A hook gets `{"request_id", "path", "key", "body"}` and answers `{}` to let the request pass, `{"body": {...}}` to change it, or
//! `{"refuse": "the reason"}`.

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
use crate::gateway::Sender;

/// Paths of requests that are for no model: the operator's.
const OTHERS: &[&str] =
    &["/key/", "/user/", "/team/", "/cache/", "/spend/", "/global/", "/page/", "/models/", "/config"];

/// What a hook answers.
#[derive(Deserialize, Default)]
struct Verdict {
    /// Why the request is refused.
    refuse: Option<String>,
    /// The request instead.
    body: Option<Box<RawValue>>,
}

/// What a hook gets.
#[derive(serde::Serialize)]
struct Question<'a> {
    request_id: &'a str,
    path: &'a str,
    key: Option<String>,
    body: &'a RawValue,
}

/// Asks all hooks, in the configuration's order.
pub async fn apply(
    app: &App,
    sender: &Sender,
    path: &str,
    mut body: BufferedBody,
) -> Result<BufferedBody, ApiError> {
    let Some(gateway) = app.gateway() else { return Ok(body) };
    let hooks = gateway.hooks();
    if hooks.is_empty() || OTHERS.iter().any(|other| path.starts_with(other)) {
        return Ok(body);
    }
    for hook in hooks.iter() {
        // What is not JSON is refused by its endpoint.
        let Ok(raw) = serde_json::from_slice::<&RawValue>(body.bytes()) else { return Ok(body) };
        let question =
            Question { request_id: &sender.trace.id, path, key: gateway.key_name(&sender.caller), body: raw };
        let question = serde_json::to_vec(&question).unwrap_or_default();
        match ask(gateway, hook, question, app.options.body_bytes_max).await {
            Ok(Verdict { refuse: Some(why), .. }) => {
                let what = format!("the request is refused: {}", shortened(&why));
                let code = Some("refused_by_hook".into());
                return Err(ApiError { code, ..ApiError::new(ErrorKind::Permission, what) });
            }
            Ok(Verdict { body: Some(changed), .. }) => {
                body = body.replaced(changed.get().as_bytes().to_vec().into())?;
            }
            Ok(_) => {}
            Err(why) if hook.fails_open => {
                tracing::warn!("a hook is skipped, and requests pass unseen: {why}");
            }
            Err(why) => {
                tracing::error!("a hook does not answer, so requests are refused: {why}");
                let what = "the request cannot be checked at the moment; try again";
                return Err(ApiError {
                    retry_after_s: Some(1),
                    ..ApiError::new(ErrorKind::Overloaded, what)
                });
            }
        }
    }
    Ok(body)
}

async fn ask(
    gateway: &crate::gateway::Gateway,
    hook: &Hook,
    question: Vec<u8>,
    bytes_max: usize,
) -> Result<Verdict, String> {
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
