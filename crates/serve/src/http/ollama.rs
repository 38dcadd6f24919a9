//! Ollama's endpoints: chat, generate, embeddings, and what models there are.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::extract::{Request, State};
use axum::response::Response;
use octet_api::ollama::{self, Call as Asked, Load, chat, embed as vectors, generate as text, models};
use octet_api::{ApiError, core::EmbedRequest};

use super::body;
use super::call::{Call, call};
use super::error::json;
use super::openai::keep_nothing;
use super::reply::{Form, NDJSON, generate};
use crate::app::App;
use crate::pipeline::{acquire, embed, unknown};

/// The Ollama whose endpoints these are: clients look whether theirs is new enough.
const OLLAMA_VERSION: &str = "0.12.6";

const CHAT: Form = Form {
    writer: |r| Box::new(chat::writer(r)),
    whole: chat::response,
    stream_type: NDJSON,
    done: keep_nothing,
};

const GENERATE: Form = Form {
    writer: |r| Box::new(text::writer(r)),
    whole: text::response,
    stream_type: NDJSON,
    done: keep_nothing,
};

/// `POST /api/chat`
pub async fn chat_answer(State(app): State<Arc<App>>, request: Request) -> Response {
    call(app, request, |c: Call| async move {
        match body::parse(c.body, chat::parse).await? {
            (Asked::Generate(parsed), share) => {
                generate(c.app, c.trace, &c.headers, (*parsed, share), CHAT).await
            }
            (Asked::Load(load), _) => load_model(&c.app, &load, true).await,
        }
    })
    .await
}

/// `POST /api/generate`
pub async fn generate_answer(State(app): State<Arc<App>>, request: Request) -> Response {
    call(app, request, |c: Call| async move {
        match body::parse(c.body, text::parse).await? {
            (Asked::Generate(parsed), share) => {
                generate(c.app, c.trace, &c.headers, (*parsed, share), GENERATE).await
            }
            (Asked::Load(load), _) => load_model(&c.app, &load, false).await,
        }
    })
    .await
}

async fn load_model(app: &Arc<App>, load: &Load, is_chat: bool) -> Result<Response, ApiError> {
    if load.unloads() {
        let index = app.models.find(&load.model).ok_or_else(|| unknown(app, &load.model))?;
        if let Some(keep_alive) = load.keep_alive {
            app.models.keep(index, keep_alive);
        }
    } else {
        drop(acquire(app, &load.model, load.keep_alive, None).await?);
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(json(200, load.response(is_chat, now.as_secs()).to_string()))
}

/// `POST /api/embed`
pub async fn embed_new(State(app): State<Arc<App>>, request: Request) -> Response {
    call(app, request, |c: Call| async move {
        let (parsed, _share): (EmbedRequest, _) = body::parse(c.body, vectors::parse).await?;
        let out = embed(&c.app, &c.trace, Arc::new(parsed), false).await?;
        Ok(json(200, vectors::response(&out)))
    })
    .await
}

/// `POST /api/embeddings`
pub async fn embed_old(State(app): State<Arc<App>>, request: Request) -> Response {
    call(app, request, |c: Call| async move {
        let (parsed, _share): (EmbedRequest, _) = body::parse(c.body, vectors::parse_old).await?;
        let out = embed(&c.app, &c.trace, Arc::new(parsed), true).await?;
        Ok(json(200, vectors::response_old(&out)))
    })
    .await
}

/// `GET /api/tags`
pub async fn tags(State(app): State<Arc<App>>) -> Response {
    json(200, models::tags(&app.models.list()).to_string())
}

/// `GET /api/ps`
pub async fn ps(State(app): State<Arc<App>>) -> Response {
    json(200, models::ps(&app.models.list()).to_string())
}

/// `GET /api/version`
pub async fn version() -> Response {
    json(200, models::version(OLLAMA_VERSION).to_string())
}

/// `POST /api/show`
pub async fn show(State(app): State<Arc<App>>, request: Request) -> Response {
    call(app, request, |c: Call| async move {
        let (name, _) = body::parse(c.body, models::parse_show).await?;
        let index = c.app.models.find(&name).ok_or_else(|| unknown(&c.app, &name))?;
        Ok(json(200, models::show(&c.app.models.info(index)).to_string()))
    })
    .await
}

/// What Ollama has and we do not, by name.
pub fn unserved(path: &str) -> ApiError {
    ollama::error::unserved(path)
}
