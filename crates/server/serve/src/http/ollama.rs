//! Ollama's endpoints: chat, generate, embeddings, lists of models.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::response::Response;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use octet_api::ollama::{self, Call as Asked, Load, chat, embed as vectors, generate as text, models};
use octet_api::{ApiError, ErrorKind, core::EmbedRequest};
use octet_router::Dialect as Wire;
use serde_json::value::RawValue;

use super::body;
use super::call::{Call, call, caller};
use super::checked_answer::{text_of, with_texts};
use super::error::json;
use super::generate::generate;
use super::openai::keep_nothing;
use super::reply::{Form, NDJSON};
use super::routed;
use crate::app::App;
use crate::gateway::Caller;
use crate::gateway::read::Own;
use crate::memory_budget::values;
use crate::pipeline::{Deadline, acquire, embed};
use crate::warnings::{add_header, messages};

/// The version of Ollama whose API this is. Clients check it: Codex requires 0.13.4, the first with a usable Responses API.
const OLLAMA_VERSION: &str = "0.13.5";

const CHAT: Form = Form {
    writer: |r| Box::new(chat::writer(r)),
    whole: chat::response,
    changed: |body, _| chat::events(body),
    stream_type: NDJSON,
    done: keep_nothing,
};

const GENERATE: Form = Form {
    writer: |r| Box::new(text::writer(r)),
    whole: text::response,
    changed: |body, events| with_texts(events, text_of(body, "response")),
    stream_type: NDJSON,
    done: keep_nothing,
};

/// `POST /api/chat`
pub async fn chat_answer(State(app): State<Arc<App>>, request: Request) -> Response {
    call(app, request, |c: Call| answer(c, chat::parse, Wire::OllamaChat, CHAT)).await
}

/// `POST /api/generate`
pub async fn generate_answer(State(app): State<Arc<App>>, request: Request) -> Response {
    call(app, request, |c: Call| answer(c, text::parse, Wire::OllamaGenerate, GENERATE)).await
}

/// Answers a request for text, or loads or unloads a model if the request has no prompt.
async fn answer(
    c: Call,
    parse: fn(&[u8]) -> Result<Asked, ApiError>,
    wire: Wire,
    form: Form,
) -> Result<Response, ApiError> {
    let (mut bytes, mut share) = c.body.into_parts();
    let (mut own, mut peeked) = (Own::default(), None);
    if let Some(gateway) = c.app.gateway()
        && let Some(found) = routed::peek(&mut share, &bytes, wire).await?
    {
        own = found.own;
        bytes = found.body.unwrap_or(bytes);
        peeked = Some(found.request).filter(|r| routed::passes(gateway, r, wire));
    }
    let passes = peeked.is_some();
    let about = match wire == Wire::OllamaGenerate {
        true => body::read_bytes(&mut share, &bytes, ContextFields::read).await?,
        false => ContextFields::default(),
    };
    let asked = body::parse_bytes(&c.app.memory_budget, &mut share, bytes.clone(), parse).await;
    let (parsed, is_ours) = match (asked, peeked) {
        (Ok(Asked::Generate(parsed)), _) => {
            // The numbers are free again; the messages that they became are kept.
            let messages = parsed.chat().map_or(0, |chat| chat.messages.len());
            share.release_values(about.values.saturating_sub(2 * messages));
            (*parsed, about.values > 0)
        }
        (Ok(Asked::Load(load)), _) => {
            return load_model(&c.app, &c.sender.caller, &load, wire == Wire::OllamaChat).await;
        }
        // The provider understands the tokens in its own `context`. A request to load a model is not forwarded: its permission is checked here.
        (Err(e), Some(request)) if about.has_prompt && is_about_context(&e) => (request, false),
        (Err(e), _) => return Err(e),
    };
    if let Some(gateway) = c.app.gateway().cloned() {
        // Every answer with a `context` must have one that the next request can use, whichever deployment gets it: the provider's own only
        // if all deployments understand it, and never after one of ours.
        let is_raw = !parsed.report.conversation || passes && !is_ours;
        let original = if is_raw {
            Some((wire, bytes))
        } else {
            own.cached_as = Some((wire, bytes));
            None
        };
        let context = c.sender.context(c.app.memory_budget.shared(share), own);
        return routed::parsed(&c.app, &gateway, context, parsed, original, form).await;
    }
    drop(bytes);
    generate(c.app, c.sender.trace, &c.sender.headers, (parsed, share), form).await
}

/// What is known of the `context` of a request before it is parsed.
#[derive(Default)]
struct ContextFields {
    /// Its values; 0 if there is none, or an empty one.
    values: usize,
    /// The request has a prompt.
    has_prompt: bool,
}

impl ContextFields {
    fn read(body: &Bytes) -> Self {
        #[derive(serde::Deserialize)]
        struct Fields<'a> {
            #[serde(borrow, default)]
            context: Option<&'a RawValue>,
            #[serde(borrow, default)]
            prompt: Option<&'a RawValue>,
        }
        let Ok(fields) = serde_json::from_slice::<Fields<'_>>(body) else { return Self::default() };
        let context = fields.context.map_or("", RawValue::get);
        let is_empty = context.bytes().all(|b| matches!(b, b'[' | b']') || b.is_ascii_whitespace());
        let values = if is_empty { 0 } else { values(context.as_bytes()) };
        let is_prompt = |p: &RawValue| p.get().starts_with('"') && p.get() != "\"\"";
        Self { values, has_prompt: fields.prompt.is_some_and(is_prompt) }
    }
}

fn is_about_context(e: &ApiError) -> bool {
    e.param
        .as_deref()
        .is_some_and(|p| p == "context" || p.starts_with("context[") || p.starts_with("context."))
}

async fn load_model(
    app: &Arc<App>,
    caller: &Caller,
    load: &Load,
    is_chat: bool,
) -> Result<Response, ApiError> {
    app.info(&load.model, caller)?;
    // A remote model's own server manages loading.
    if let Ok(index) = app.find(&load.model) {
        // Keep-alive affects all clients, so only a trusted caller may change it.
        let own = matches!(caller, Caller::Trusted);
        if load.unloads() && !own {
            let what = "this API key may only use models; unloading one needs the server's own key";
            return Err(ApiError::new(ErrorKind::Permission, what));
        }
        if !load.unloads() {
            let keep_alive = load.keep_alive.filter(|_| own);
            if own {
                app.models().revive(index);
            }
            drop(acquire(&app.inference, index, keep_alive, Deadline::default()).await?);
        } else if let Some(keep_alive) = load.keep_alive {
            app.models().keep(index, keep_alive);
        }
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(json(200, load.response(is_chat, now.as_secs()).to_string()))
}

/// `POST /api/embed`
pub async fn embed_new(State(app): State<Arc<App>>, request: Request) -> Response {
    call(app, request, |c: Call| async move {
        if let Some(gateway) = c.app.gateway().cloned() {
            return routed::ready(&gateway, c, Wire::OllamaEmbed).await;
        }
        let (parsed, share): (EmbedRequest, _) = body::parse(c.body, vectors::parse).await?;
        let index = c.app.find(&parsed.model)?;
        let parsed = Arc::new(EmbedRequest { memory: c.app.memory_budget.shared(share), ..parsed });
        let out = embed(&c.app.inference, &c.sender.trace, index, Arc::clone(&parsed), false).await?;
        let mut response = json(200, vectors::response(&out));
        add_header(&mut response, messages(&parsed.warnings));
        Ok(response)
    })
    .await
}

/// `POST /api/embeddings`
pub async fn embed_old(State(app): State<Arc<App>>, request: Request) -> Response {
    call(app, request, |c: Call| async move {
        let (parsed, share): (EmbedRequest, _) = body::parse(c.body, vectors::parse_old).await?;
        if let Some(gateway) = c.app.gateway().cloned() {
            // The older endpoint returns one vector in its own format; translated to the newer one, which routed providers understand.
            let newer = vectors::body(&parsed, &parsed.model)?;
            let body = serde_json::Value::Object(newer).to_string().into_bytes();
            let body = (body.into(), share);
            let got = routed::bytes(&c.app, &gateway, c.sender, Wire::OllamaEmbed, body).await?;
            return Ok(json(200, vectors::response_old(&vectors::read(&got.0)?)));
        }
        let index = c.app.find(&parsed.model)?;
        let parsed = Arc::new(EmbedRequest { memory: c.app.memory_budget.shared(share), ..parsed });
        let out = embed(&c.app.inference, &c.sender.trace, index, parsed, true).await?;
        Ok(json(200, vectors::response_old(&out)))
    })
    .await
}

/// `GET /api/tags`
pub async fn tags(State(app): State<Arc<App>>, request: Request) -> Response {
    json(200, models::tags(&app.list(&caller(&request))).to_string())
}

/// `GET /api/ps`
pub async fn ps(State(app): State<Arc<App>>, request: Request) -> Response {
    json(200, models::ps(&app.list(&caller(&request))).to_string())
}

/// `GET /api/version`
pub async fn version() -> Response {
    json(200, models::version(OLLAMA_VERSION).to_string())
}

/// `POST /api/show`
pub async fn show(State(app): State<Arc<App>>, request: Request) -> Response {
    call(app, request, |c: Call| async move {
        let (name, _) = body::parse(c.body, models::parse_show).await?;
        Ok(json(200, models::show(&c.app.info(&name, &c.sender.caller)?).to_string()))
    })
    .await
}

/// `POST /api/pull`: success for a model that is served, since scripts pull a model before they use it. Others are not fetched.
pub async fn pull(State(app): State<Arc<App>>, request: Request) -> Response {
    call(app, request, |c: Call| async move {
        let ((name, stream), _) = body::parse(c.body, models::parse_pull).await?;
        c.app.info(&name, &c.sender.caller).map_err(|e| {
            let refused = unsupported_path("/api/pull").message;
            ApiError { message: format!("{}. {refused}", e.message), ..e }
        })?;
        let mut out = json(200, models::pulled(stream));
        if stream {
            out.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(NDJSON));
        }
        Ok(out)
    })
    .await
}

/// What Ollama has and we do not, by name.
pub fn unsupported_path(path: &str) -> ApiError {
    ollama::error::unsupported_path(path)
}
