//! OpenAI's endpoints: chat, completions, embeddings, models. (`responses` has its own file.)

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::response::Response;
use octet_api::core::{Answer, EmbedRequest, GenerateRequest};
use octet_api::openai::{chat, completions, embeddings, models};
use octet_api::{ApiError, anthropic, gemini};
use octet_router::Dialect as Wire;

use super::call::{Call, call, caller, trace};
use super::checked_answer::{texts_of, with_texts};
use super::error::{json, named};
use super::generate::answer;
use super::reply::{Form, SSE};
use super::response_store::NewResponse;
use super::routed::TextEndpoint;
use super::{Dialect, body, routed, streams};
use crate::app::App;
use crate::pipeline::embed;
use crate::warnings::{add_header, messages};

/// The `done` hook of dialects that store nothing.
pub fn keep_nothing(_: Option<&Arc<str>>, _: &GenerateRequest, _: &Answer) -> Option<NewResponse> {
    None
}

const CHAT: Form = Form {
    writer: |r| Box::new(chat::ChunkWriter::new(r)),
    whole: chat::response,
    changed: |body, _| chat::events(body),
    stream_type: SSE,
    done: keep_nothing,
};

const COMPLETIONS: Form = Form {
    writer: |r| Box::new(completions::CompletionWriter::new(r)),
    whole: completions::response,
    changed: |body, events| with_texts(events, texts_of(body)),
    stream_type: SSE,
    done: keep_nothing,
};

/// `POST /v1/chat/completions`
pub async fn chat_completions(State(app): State<Arc<App>>, request: Request) -> Response {
    call(app, request, |c: Call| async move {
        let stream = streams::Named::of(&c)?;
        let response =
            answer(c, TextEndpoint { dialect: Wire::OpenAiChat, parse: chat::parse, form: CHAT }).await?;
        match stream {
            Some(stream) => stream.keep(response),
            None => Ok(response),
        }
    })
    .await
}

/// `POST /v1/completions`
pub async fn plain_completions(State(app): State<Arc<App>>, request: Request) -> Response {
    call(app, request, complete).await
}

/// The same for a body that is read already.
pub async fn complete(c: Call) -> Result<Response, ApiError> {
    let parse = completions::parse;
    answer(c, TextEndpoint { dialect: Wire::OpenAiCompletions, parse, form: COMPLETIONS }).await
}

/// `POST /v1/embeddings`
pub async fn embeddings_of(State(app): State<Arc<App>>, request: Request) -> Response {
    call(app, request, embed_inputs).await
}

/// The same for a body that is read already.
pub async fn embed_inputs(c: Call) -> Result<Response, ApiError> {
    if let Some(gateway) = c.app.gateway().cloned() {
        return routed::ready(&gateway, c, Wire::OpenAiEmbeddings).await;
    }
    let (parsed, share): (EmbedRequest, _) = body::parse(c.body, embeddings::parse).await?;
    let parsed = Arc::new(EmbedRequest { memory: c.app.memory_budget.shared(share), ..parsed });
    let index = c.app.find(&parsed.model)?;
    let vectors = embed(&c.app.inference, &c.sender.trace, index, Arc::clone(&parsed), false).await?;
    let mut response = json(200, embeddings::response(&parsed, &vectors));
    add_header(&mut response, messages(&parsed.warnings));
    Ok(response)
}

/// Clients of Anthropic's and Gemini's APIs use the same path; their headers tell them apart.
fn dialect_of(request: &Request) -> Dialect {
    let has = |name: &str| request.headers().contains_key(name);
    if has("anthropic-version") {
        Dialect::Anthropic
    } else if has("x-goog-api-client") || has("x-goog-api-key") {
        Dialect::Gemini
    } else {
        Dialect::OpenAi
    }
}

/// `GET /v1/models`
pub async fn list_models(State(app): State<Arc<App>>, request: Request) -> Response {
    let all = app.list(&caller(&request));
    let list = match dialect_of(&request) {
        Dialect::Anthropic => anthropic::models::list(&all),
        Dialect::Gemini => gemini::models::list(&all),
        Dialect::OpenAi | Dialect::Ollama => models::list(&all),
    };
    json(200, list.to_string())
}

/// `GET /v1/models/{id}`
pub async fn one_model(
    State(app): State<Arc<App>>,
    name: Result<Path<String>, PathRejection>,
    request: Request,
) -> Response {
    let dialect = dialect_of(&request);
    let info = match named(name).and_then(|name| app.info(&name, &caller(&request))) {
        Ok(info) => info,
        Err(e) => return dialect.error(&e, Some(&trace(&request))),
    };
    let one = match dialect {
        Dialect::Anthropic => anthropic::models::one(&info),
        Dialect::Gemini => gemini::models::one(&info),
        Dialect::OpenAi | Dialect::Ollama => models::one(&info),
    };
    json(200, one.to_string())
}

/// `GET /v1/model/info`, `/model/info`: context windows, prices and abilities for LiteLLM's clients.
pub async fn model_info(State(app): State<Arc<App>>, request: Request) -> Response {
    json(200, app.model_info(&caller(&request)).to_string())
}
