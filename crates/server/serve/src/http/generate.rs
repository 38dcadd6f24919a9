//! Text generation: routed if there is a router, else by a local model.

use std::sync::Arc;

use axum::response::Response;
use hyper::HeaderMap;
use octet_api::ApiError;
use octet_api::core::GenerateRequest;

use super::call::Call;
use super::reply::{Form, respond};
use super::routed::TextEndpoint;
use super::{body, routed};
use crate::app::App;
use crate::memory_budget::MemoryPermit;
use crate::ops::Trace;
use crate::pipeline::Run;

/// The header by which a client asks why its prompt was not in the cache.
const EXPLAIN: &str = "x-octet-explain-cache";

/// Answers a request, through the router if there is one, else by a local model.
pub async fn answer(c: Call, endpoint: TextEndpoint) -> Result<Response, ApiError> {
    if let Some(gateway) = c.app.gateway().cloned() {
        return routed::generate(&gateway, c, endpoint).await;
    }
    let parsed = body::parse(c.body, endpoint.parse).await?;
    generate(c.app, c.sender.trace, &c.sender.headers, parsed, endpoint.form).await
}

/// Answers a request, which holds its memory permit, by a local model.
pub async fn generate(
    app: Arc<App>,
    trace: Trace,
    headers: &HeaderMap,
    asked: (GenerateRequest, MemoryPermit),
    form: Form,
) -> Result<Response, ApiError> {
    let explain = headers.get(EXPLAIN).is_some_and(|v| !matches!(v.as_bytes(), b"" | b"0" | b"false"));
    let (request, share) = asked;
    let index = app.find(&request.model)?;
    let body_bytes = share.body_bytes;
    let request = Arc::new(GenerateRequest { memory: app.memory_budget.shared(share), ..request });
    let mut run = Run::start(&app.inference, &trace, index, (request, body_bytes), explain).await?;
    if explain {
        run.admitted().await;
    }
    respond(&app, run, form).await
}
