//! OpenAI's responses: generated, kept where the client asks for it, given again, forgotten.

use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::response::Response;
use octet_api::core::{Answer, GenerateRequest};
use octet_api::openai::responses::{self, ResponseWriter};
use octet_api::{ApiError, ErrorKind};

use super::call::{Call, call, trace};
use super::error::json;
use super::reply::{Form, SSE, generate};
use super::{Dialect, body};
use crate::app::App;

const FORM: Form = Form {
    writer: |r| Box::new(ResponseWriter::new(r)),
    whole: responses::response,
    stream_type: SSE,
    done: keep,
};

fn keep(app: &App, request: &GenerateRequest, answer: &Answer) {
    if request.store {
        let body = responses::response(request, answer);
        app.kept.put(&answer.id, responses::conversation(request, answer), body);
    }
}

/// `POST /v1/responses`
pub async fn create(State(app): State<Arc<App>>, request: Request) -> Response {
    call(app, request, |c: Call| async move {
        let mut parsed = body::parse(c.body, responses::parse).await?;
        if let Some(id) = &parsed.previous_response_id {
            let Some(kept) = c.app.kept.get(id) else {
                let what = format!(
                    "the response '{id}' is not kept (any more); send its items, or 'store' the next one"
                );
                let error = ApiError::invalid("previous_response_id", what);
                return Err(ApiError { code: Some("previous_response_not_found".into()), ..error });
            };
            responses::follow(&mut parsed, kept.conversation.clone());
        }
        generate(c.app, c.trace, &c.headers, parsed, FORM).await
    })
    .await
}

fn missing(id: &str) -> ApiError {
    ApiError::new(ErrorKind::NotFound, format!("the response '{id}' is not kept, or not any more"))
}

/// `GET /v1/responses/{id}`
pub async fn get(State(app): State<Arc<App>>, Path(id): Path<String>, request: Request) -> Response {
    match app.kept.get(&id) {
        Some(kept) => json(200, kept.body.clone()),
        None => Dialect::OpenAi.error(&missing(&id), Some(&trace(&request))),
    }
}

/// `DELETE /v1/responses/{id}`
pub async fn delete(State(app): State<Arc<App>>, Path(id): Path<String>, request: Request) -> Response {
    if app.kept.remove(&id) {
        json(200, responses::deleted(&id).to_string())
    } else {
        Dialect::OpenAi.error(&missing(&id), Some(&trace(&request)))
    }
}
