//! Texts and tokens: `/tokenize`, `/detokenize`, `/apply-template`, as llama.cpp's and vLLM's clients know them.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use axum::extract::{Request, State};
use axum::response::Response;
use octet_api::core::{Chat, Input};
use octet_api::openai::chat;
use octet_api::{ApiError, ErrorKind};
use octet_engine::detokenizer::{ControlTokens, decode};
use octet_engine::tokenizer::Special;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::body;
use super::call::{Call, call};
use super::error::json as json_response;
use crate::app::App;
use crate::models::Lease;
use crate::pipeline::{Job, Purpose, acquire, chat_prompt, text_tokens};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tokenize {
    model: Option<String>,
    /// vLLM's name for it is `prompt`.
    #[serde(alias = "prompt")]
    content: String,
    /// Put the model's own first token in front; vLLM's name is `add_special_tokens`.
    #[serde(default, alias = "add_special_tokens")]
    add_special: bool,
    /// Take control tokens in the text for what they look like.
    #[serde(default = "yes")]
    parse_special: bool,
    /// Give each token's text, too.
    #[serde(default, alias = "return_token_strs")]
    with_pieces: bool,
}

fn yes() -> bool {
    true
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Detokenize {
    model: Option<String>,
    tokens: Vec<u32>,
}

fn wrong(e: &serde_json::Error) -> ApiError {
    ApiError::new(ErrorKind::InvalidRequest, format!("the body can not be read: {e}"))
}

/// The model that is asked for, or the first.
async fn model(app: &Arc<App>, name: Option<&str>) -> Result<Lease, ApiError> {
    acquire(app, name.unwrap_or_else(|| app.models.name(0)), None, None).await
}

/// These count, whatever they are asked for.
fn job(gone: &AtomicBool) -> Job<'_> {
    Job { purpose: Purpose::Count, gone }
}

/// `POST /tokenize`
pub async fn tokenize(State(app): State<Arc<App>>, request: Request) -> Response {
    call(app, request, |c: Call| async move {
        let asked: Value = body::parse(c.body, |b| serde_json::from_slice(b).map_err(|e| wrong(&e))).await?;
        let (lease, tokens, pieces) = if asked.get("messages").is_some() {
            let (lease, chat) = conversation(&c.app, asked).await?;
            let model = Arc::clone(lease.model());
            let counted =
                c.app.apart.run_unqueued(move |gone| Ok(chat_prompt(&model, &chat, job(gone))?.tokens));
            let tokens = counted.await?;
            (lease, tokens, false)
        } else {
            let asked: Tokenize = serde_json::from_value(asked).map_err(|e| wrong(&e))?;
            let lease = model(&c.app, asked.model.as_deref()).await?;
            let (pieces, loaded) = (asked.with_pieces, Arc::clone(lease.model()));
            let tokens = c.app.apart.run_unqueued(move |gone| {
                let special = if asked.parse_special { Special::Parse } else { Special::Text };
                let bos = loaded.tokenizer().bos().filter(|_| asked.add_special);
                let mut ids: Vec<u32> = bos.into_iter().collect();
                ids.extend(text_tokens(&loaded, "content", &asked.content, special, job(gone))?);
                Ok(ids)
            });
            (lease, tokens.await?, pieces)
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
        let asked: Detokenize =
            body::parse(c.body, |b| serde_json::from_slice(b).map_err(|e| wrong(&e))).await?;
        let lease = model(&c.app, asked.model.as_deref()).await?;
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
        let asked: Value = body::parse(c.body, |b| serde_json::from_slice(b).map_err(|e| wrong(&e))).await?;
        let (lease, chat) = conversation(&c.app, asked).await?;
        let model = Arc::clone(lease.model());
        let rendered = c.app.apart.run_unqueued(move |gone| Ok(chat_prompt(&model, &chat, job(gone))?.text));
        let text = rendered.await?;
        Ok(json_response(200, json!({"prompt": text}).to_string()))
    })
    .await
}

/// A chat request, of which only the conversation counts; the model may be left out.
async fn conversation(app: &Arc<App>, asked: Value) -> Result<(Lease, Chat), ApiError> {
    let Value::Object(mut asked) = asked else {
        return Err(ApiError::new(ErrorKind::InvalidRequest, "the body must be an object"));
    };
    default_model(app, &mut asked);
    let parsed = chat::parse(Value::Object(asked).to_string().as_bytes())?;
    let lease = model(app, Some(&parsed.model)).await?;
    match parsed.input {
        Input::Chat(chat) => Ok((lease, chat)),
        Input::Completion(_) => Err(ApiError::invalid("messages", "'messages' is missing")),
    }
}

fn default_model(app: &App, asked: &mut Map<String, Value>) {
    asked.entry("model").or_insert_with(|| app.models.name(0).into());
}
