//! A request with its body, as all endpoints receive it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use axum::extract::Request;
use axum::response::Response;
use octet_api::ApiError;

use super::Dialect;
use super::body::{self, BufferedBody, PathModel};
use super::hooks;
use crate::app::App;
use crate::gateway::{Caller, Sender};
use crate::ops::Trace;

/// A request.
pub struct Call {
    /// The shared state.
    pub app: Arc<App>,
    /// Who sent it.
    pub sender: Sender,
    /// Its body, which should be JSON.
    pub body: BufferedBody,
}

/// What an endpoint makes of a request.
type Answer = Pin<Box<dyn Future<Output = Result<Response, ApiError>> + Send>>;

/// Reads the body and answers; errors are written in the dialect of the path.
pub fn call<R>(
    app: Arc<App>,
    request: Request,
    answer: impl FnOnce(Call) -> R + Send + 'static,
) -> impl Future<Output = Response> + Send
where
    R: Future<Output = Result<Response, ApiError>> + Send + 'static,
{
    read_and_answer(app, request, Box::new(|call| Box::pin(answer(call))))
}

/// The part of [`call`] that is the same for all endpoints, compiled once.
async fn read_and_answer(
    app: Arc<App>,
    request: Request,
    answer: Box<dyn FnOnce(Call) -> Answer + Send>,
) -> Response {
    let sender = Sender::of(&request);
    let dialect = Dialect::of(&sender.path);
    let trace = sender.trace.clone();
    let model = request.extensions().get::<PathModel>().cloned();
    let body = match body::read(request, app.options.body_bytes_max, &app.memory_budget).await {
        Ok(body) => match model {
            Some(model) => body.with_model(model).await,
            None => Ok(body),
        },
        Err(e) => Err(e),
    };
    let body = match body {
        Ok(body) => hooks::apply(&app, &sender, body).await,
        Err(e) => Err(e),
    };
    let result = match body {
        Ok(body) => answer(Call { app, sender, body }).await,
        Err(e) => Err(e),
    };
    result.unwrap_or_else(|e| dialect.error(&e, Some(&trace)))
}

impl Sender {
    /// The sender of a request, as found by the middlewares.
    pub fn of(request: &Request) -> Self {
        let path = request.uri().path().into();
        Self { trace: trace(request), caller: caller(request), headers: request.headers().clone(), path }
    }
}

/// The client, as found by the authorization middleware.
pub fn caller(request: &Request) -> Caller {
    request.extensions().get::<Caller>().cloned().unwrap_or_default()
}

/// The request's id, as set by the outermost middleware.
pub fn trace(request: &Request) -> Trace {
    request.extensions().get::<Trace>().cloned().unwrap_or_default()
}
