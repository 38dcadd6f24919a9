//! Anthropic's endpoints: messages and token counts.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use octet_api::anthropic::{count_tokens, messages};
use octet_router::Dialect as Wire;

use super::body;
use super::call::{Call, call};
use super::error::json;
use super::generate::answer;
use super::openai::keep_nothing;
use super::reply::{Form, SSE};
use super::routed;
use super::routed::TextEndpoint;
use super::tokens::count_prompt;
use crate::app::App;

const MESSAGES: Form = Form {
    writer: |r| Box::new(messages::MessageWriter::new(r)),
    whole: messages::response,
    changed: |body, _| messages::events(body),
    stream_type: SSE,
    done: keep_nothing,
};

/// `POST /v1/messages`
pub async fn create_message(State(app): State<Arc<App>>, request: Request) -> Response {
    call(app, request, |c: Call| async move {
        let parse = messages::parse;
        answer(c, TextEndpoint { dialect: Wire::AnthropicMessages, parse, form: MESSAGES }).await
    })
    .await
}

/// `POST /v1/messages/count_tokens`
pub async fn count(State(app): State<Arc<App>>, request: Request) -> Response {
    call(app, request, |c: Call| async move {
        if let Some(gateway) = c.app.gateway().cloned() {
            return routed::ready(&gateway, c, Wire::AnthropicCountTokens).await;
        }
        let (parsed, share) = body::parse(c.body, count_tokens::parse).await?;
        let tokens = count_prompt(&c.app, parsed, share).await?;
        Ok(json(200, count_tokens::response(tokens).to_string()))
    })
    .await
}
