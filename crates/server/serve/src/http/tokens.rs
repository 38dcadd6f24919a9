//! Tokens of texts: `/tokenize`, `/detokenize`, `/apply-template`, as in llama.cpp and vLLM.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use axum::extract::{Request, State};
use axum::response::Response;
use octet_api::ApiError;
use octet_api::core::{Chat, GenerateRequest, Input};
use octet_api::tokens::{self, Tokenize};
use octet_engine::detokenizer::{ControlTokens, decode};
use octet_engine::tokenizer::Special;
use serde_json::{Value, json};

use super::body;
use super::call::{Call, call};
use super::error::json as json_response;
use super::responses;
use crate::app::App;
use crate::gateway::Caller;
use crate::memory_budget::MemoryPermit;
use crate::models::Lease;
use crate::pipeline::{Deadline, Job, Purpose, Rendered, acquire, chat_prompt, text_tokens};
use crate::warnings::{add_header, messages};

/// Refuses a model that a client may not use.
pub fn permit(app: &App, caller: &Caller, name: &str) -> Result<(), ApiError> {
    app.gateway().map_or(Ok(()), |gateway| gateway.permit(caller, gateway.name(name)))
}

/// Leases the model that a client names, if it may use it.
async fn lease(app: &Arc<App>, caller: &Caller, name: &str) -> Result<Lease, ApiError> {
    permit(app, caller, name)?;
    acquire(&app.inference, app.find(name)?, None, Deadline::default()).await
}

/// All of these endpoints only count.
fn job(gone: &AtomicBool) -> Job<'_> {
    Job { purpose: Purpose::Count, gone }
}

/// `POST /tokenize`
pub async fn tokenize(State(app): State<Arc<App>>, request: Request) -> Response {
    call(app, request, |c: Call| async move {
        let default = c.app.default_name(&c.sender.caller);
        let (asked, share) = body::parse(c.body, move |b| tokens::tokenize(b, &default)).await?;
        let (lease, tokens, pieces) = match asked {
            Tokenize::Chat(asked) => {
                let lease = lease(&c.app, &c.sender.caller, &asked.model).await?;
                let tokens = prompt(&c.app, &lease, *asked, share, |prompt| prompt.tokens).await?;
                (lease, tokens, false)
            }
            Tokenize::Text(asked) => {
                let lease = lease(&c.app, &c.sender.caller, &asked.model).await?;
                let (pieces, loaded) = (asked.with_pieces, Arc::clone(lease.model()));
                let tokens = c.app.inference.blocking_pool.run_unqueued(share, move |gone| {
                    let special = if asked.parse_special { Special::Parse } else { Special::Text };
                    let ids = text_tokens(&loaded, "content", &asked.content, special, job(gone))?;
                    Ok(if asked.add_special { loaded.tokenizer().frame(&ids, None).tokens } else { ids })
                });
                (lease, tokens.await?, pieces)
            }
        };
        let tokenizer = lease.model().tokenizer();
        let piece = |id: u32| match std::str::from_utf8(tokenizer.token_bytes(id)) {
            Ok(text) => Value::from(text),
            Err(_) => tokenizer.token_bytes(id).iter().copied().map(Value::from).collect(),
        };
        let listed: Value = if pieces {
            tokens.iter().map(|id| json!({"id": id, "piece": piece(*id)})).collect()
        } else {
            tokens.iter().copied().map(Value::from).collect()
        };
        let context = lease.model().handle.rules().context;
        let out = json!({"tokens": listed, "count": tokens.len(), "max_model_len": context});
        Ok(json_response(200, out.to_string()))
    })
    .await
}

/// `POST /detokenize`
pub async fn detokenize(State(app): State<Arc<App>>, request: Request) -> Response {
    call(app, request, |c: Call| async move {
        let default = c.app.default_name(&c.sender.caller);
        let (asked, _share) = body::parse(c.body, move |b| tokens::detokenize(b, &default)).await?;
        let lease = lease(&c.app, &c.sender.caller, &asked.model).await?;
        let known = lease.model().handle.rules().vocab;
        if let Some(id) = asked.tokens.iter().find(|id| **id as usize >= known) {
            let what = format!("the token id {id} is not in the vocabulary of {known}");
            return Err(ApiError::invalid("tokens", what));
        }
        let text = decode(lease.model().tokenizer(), &asked.tokens, ControlTokens::Show);
        // llama.cpp's name for it, and vLLM's
        Ok(json_response(200, json!({"content": text, "prompt": text}).to_string()))
    })
    .await
}

/// `POST /apply-template`
pub async fn apply_template(State(app): State<Arc<App>>, request: Request) -> Response {
    call(app, request, |c: Call| async move {
        let (app, caller, (asked, share)) = read_chat(c).await?;
        let lease = lease(&app, &caller, &asked.model).await?;
        let take = |prompt: Rendered| (prompt.text, prompt.warnings);
        let mut warnings = asked.warnings.clone();
        let (text, more) = prompt(&app, &lease, asked, share, take).await?;
        warnings.extend(more);
        app.inference.warnings.note(&warnings)?;
        let mut response = json_response(200, json!({"prompt": text}).to_string());
        add_header(&mut response, messages(&warnings));
        Ok(response)
    })
    .await
}

/// Reads a chat request of which only the prompt is wanted.
async fn read_chat(c: Call) -> Result<(Arc<App>, Caller, (GenerateRequest, MemoryPermit)), ApiError> {
    let default = c.app.default_name(&c.sender.caller);
    let read = body::parse(c.body, move |b| tokens::apply_template(b, &default)).await?;
    Ok((c.app, c.sender.caller, read))
}

/// Renders and tokenizes a conversation for a model, and returns what `take` takes of it.
async fn prompt<T: Send + 'static>(
    app: &App,
    lease: &Lease,
    asked: GenerateRequest,
    share: MemoryPermit,
    take: impl FnOnce(Rendered) -> T + Send + 'static,
) -> Result<T, ApiError> {
    let model = Arc::clone(lease.model());
    let chat = conversation(asked)?;
    app.inference
        .blocking_pool
        .run_unqueued(share, move |gone| Ok(take(chat_prompt(&model, &chat, job(gone))?)))
        .await
}

/// `POST /v1/chat/completions/input_tokens`: the number of prompt tokens of a chat request.
pub async fn count_chat(State(app): State<Arc<App>>, request: Request) -> Response {
    call(app, request, |c: Call| async move {
        let (app, caller, (asked, share)) = read_chat(c).await?;
        count(app, &caller, asked, share).await
    })
    .await
}

/// `POST /v1/responses/input_tokens`: the same for Responses.
pub async fn count_response(State(app): State<Arc<App>>, request: Request) -> Response {
    call(app, request, |c: Call| async move {
        let (bytes, mut share) = c.body.into_parts();
        let mut asked = responses::read(&c.app, &c.sender.caller, &mut share, bytes).await?;
        if asked.model.is_empty() {
            asked.model = c.app.default_name(&c.sender.caller);
        }
        count(c.app, &c.sender.caller, asked, share).await
    })
    .await
}

async fn count(
    app: Arc<App>,
    caller: &Caller,
    asked: GenerateRequest,
    share: MemoryPermit,
) -> Result<Response, ApiError> {
    let lease = lease(&app, caller, &asked.model).await?;
    let tokens = prompt(&app, &lease, asked, share, |prompt| prompt.tokens.len()).await?;
    let out = json!({"object": "response.input_tokens", "input_tokens": tokens});
    Ok(json_response(200, out.to_string()))
}

/// The number of prompt tokens of a conversation, without a router.
pub async fn count_prompt(
    app: &Arc<App>,
    asked: GenerateRequest,
    share: MemoryPermit,
) -> Result<u64, ApiError> {
    let lease = acquire(&app.inference, app.find(&asked.model)?, None, Deadline::default()).await?;
    prompt(app, &lease, asked, share, |prompt| prompt.tokens.len() as u64).await
}

/// The part of a chat request that affects the count.
fn conversation(asked: GenerateRequest) -> Result<Chat, ApiError> {
    match asked.input {
        Input::Chat(chat) => Ok(chat),
        Input::Completion(_) => Err(ApiError::invalid("messages", "'messages' is missing")),
    }
}
