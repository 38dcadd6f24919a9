//! OpenAI's endpoints: chat, completions, embeddings, models. (`responses` has a file of its own.)

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::response::Response;
use octet_api::anthropic;
use octet_api::core::{Answer, EmbedRequest, GenerateRequest};
use octet_api::openai::{chat, completions, embeddings, models};

use super::call::{Call, call, trace};
use super::error::{json, named};
use super::reply::{Form, SSE, generate};
use super::{Dialect, body};
use crate::app::App;
use crate::pipeline::{embed, unknown};

/// For dialects that keep nothing.
pub fn keep_nothing(_: &App, _: &GenerateRequest, _: &Answer) {}

const CHAT: Form = Form {
    writer: |r| Box::new(chat::ChunkWriter::new(r)),
    whole: chat::response,
    stream_type: SSE,
    done: keep_nothing,
};

const COMPLETIONS: Form = Form {
    writer: |r| Box::new(completions::CompletionWriter::new(r)),
    whole: completions::response,
    stream_type: SSE,
    done: keep_nothing,
};

/// `POST /v1/chat/completions`
pub async fn chat_completions(State(app): State<Arc<App>>, request: Request) -> Response {
    call(app, request, |c: Call| async move {
        let parsed = body::parse(c.body, chat::parse).await?;
        generate(c.app, c.trace, &c.headers, parsed, CHAT).await
    })
    .await
}

/// `POST /v1/completions`
pub async fn plain_completions(State(app): State<Arc<App>>, request: Request) -> Response {
    call(app, request, |c: Call| async move {
        let parsed = body::parse(c.body, completions::parse).await?;
        generate(c.app, c.trace, &c.headers, parsed, COMPLETIONS).await
    })
    .await
}

/// `POST /v1/embeddings`
pub async fn embeddings_of(State(app): State<Arc<App>>, request: Request) -> Response {
    call(app, request, |c: Call| async move {
        let (parsed, _share): (EmbedRequest, _) = body::parse(c.body, embeddings::parse).await?;
        let parsed = Arc::new(parsed);
        let vectors = embed(&c.app, &c.trace, Arc::clone(&parsed), false).await?;
        Ok(json(200, embeddings::response(&parsed, &vectors)))
    })
    .await
}

/// Anthropic's clients ask at the same address, and say who they are.
fn is_anthropic(request: &Request) -> bool {
    request.headers().contains_key("anthropic-version")
}

/// `GET /v1/models`
pub async fn list_models(State(app): State<Arc<App>>, request: Request) -> Response {
    let all = app.models.list();
    let list = if is_anthropic(&request) { anthropic::models::list(&all) } else { models::list(&all) };
    json(200, list.to_string())
}

/// `GET /v1/models/{id}`
pub async fn one_model(
    State(app): State<Arc<App>>,
    name: Result<Path<String>, PathRejection>,
    request: Request,
) -> Response {
    let is_anthropic = is_anthropic(&request);
    let found = named(name).and_then(|name| app.models.find(&name).ok_or_else(|| unknown(&app, &name)));
    let info = match found {
        Ok(index) => app.models.info(index),
        Err(e) => {
            let dialect = if is_anthropic { Dialect::Anthropic } else { Dialect::OpenAi };
            return dialect.error(&e, Some(&trace(&request)));
        }
    };
    let one = if is_anthropic { anthropic::models::one(&info) } else { models::one(&info) };
    json(200, one.to_string())
}
