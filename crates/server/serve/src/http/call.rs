//! A request with its body, as all endpoints receive it.

use std::future::Future;
use std::sync::Arc;

use axum::extract::Request;
use axum::response::Response;
use hyper::HeaderMap;
use octet_api::ApiError;

use super::Dialect;
use super::body::{self, BufferedBody, PathModel};
use crate::app::App;
use crate::gateway::Caller;
use crate::ops::Trace;

/// A request.
pub struct Call {
    /// The shared state.
    pub app: Arc<App>,
    /// Its id and figures for the log.
    pub trace: Trace,
    /// The authenticated client.
    pub caller: Caller,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body, which should be JSON.
    pub body: BufferedBody,
}

/// Reads the body and answers; errors are written in the dialect of the path.
pub async fn call<F, R>(app: Arc<App>, request: Request, answer: F) -> Response
where
    F: FnOnce(Call) -> R,
    R: Future<Output = Result<Response, ApiError>>,
{
    let dialect = Dialect::of(request.uri().path());
    let trace = trace(&request);
    let caller = caller(&request);
    let headers = request.headers().clone();
    let model = request.extensions().get::<PathModel>().cloned();
    let result = match body::read(request, app.options.body_bytes_max, &app.memory_budget).await {
        Ok(body) => {
            let body = if let Some(model) = &model { body.with_model(model) } else { body };
            answer(Call { app, trace: trace.clone(), caller, headers, body }).await
        }
        Err(e) => Err(e),
    };
    result.unwrap_or_else(|e| dialect.error(&e, Some(&trace)))
}

/// The client, as found by the authorization middleware.
pub fn caller(request: &Request) -> Caller {
    request.extensions().get::<Caller>().cloned().unwrap_or_default()
}

/// The request's id, as set by the outermost middleware.
pub fn trace(request: &Request) -> Trace {
    request.extensions().get::<Trace>().cloned().unwrap_or_default()
}
