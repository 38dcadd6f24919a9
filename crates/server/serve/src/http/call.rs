//! A request with a body, as endpoints take it. Used by all of them.

use std::future::Future;
use std::sync::Arc;

use axum::extract::Request;
use axum::response::Response;
use hyper::HeaderMap;
use octet_api::ApiError;

use super::Dialect;
use super::body::{self, Held, PathModel};
use crate::app::App;
use crate::gateway::Caller;
use crate::ops::Trace;

/// A request.
pub struct Call {
    /// What requests share.
    pub app: Arc<App>,
    /// Its name and figures.
    pub trace: Trace,
    /// Who asks.
    pub caller: Caller,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body; JSON, or meant to be.
    pub body: Held,
}

/// Reads the body and answers; what goes wrong is said in the dialect of the path.
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
            let body = if let Some(model) = &model { body.naming(model) } else { body };
            answer(Call { app, trace: trace.clone(), caller, headers, body }).await
        }
        Err(e) => Err(e),
    };
    result.unwrap_or_else(|e| dialect.error(&e, Some(&trace)))
}

/// Who asks, which the door has found out.
pub fn caller(request: &Request) -> Caller {
    request.extensions().get::<Caller>().cloned().unwrap_or_default()
}

/// The request's name, which the outermost layer has given it.
pub fn trace(request: &Request) -> Trace {
    request.extensions().get::<Trace>().cloned().unwrap_or_default()
}
