//! The server's state: health, readiness, metrics, properties, the API description.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::response::Response;
use hyper::HeaderMap;
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use octet_api::{ApiError, ErrorKind};
use octet_router::health::Status;
use serde::Deserialize;
use serde_json::{Value, json};

use super::Dialect;
use super::call::trace;
use super::error::json as json_response;
use crate::app::App;
use crate::gateway::Caller;
use crate::models::Unhealthy;
use crate::ops;
use crate::pipeline::described;

/// The description of all endpoints.
pub const OPENAPI: &str = include_str!("../../assets/openapi.json");

/// `GET /health`: whether the process runs, and the state of the models' devices. 503 if all models are down for good, so that a
/// restart may help; not if one is being loaded again, or others work. With the server's own key it also lists the health of all
/// deployments, in the shape of LiteLLM's proxy, without sending them requests.
pub async fn health(State(app): State<Arc<App>>, request: Request) -> Response {
    let mut out = json!({"status": "ok"});
    let mut status = 200;
    let all = 0..app.models().count();
    let ill: Vec<_> = all.clone().filter_map(|i| Some((i, app.models().unhealthy(i)?))).collect();
    if !ill.is_empty() {
        let is_down =
            app.gateway().is_none() && ill.len() == all.len() && ill.iter().all(|(_, u)| !u.is_loading_again);
        (status, out["status"]) = if is_down { (503, "unhealthy".into()) } else { (200, "degraded".into()) };
        let told = |(i, u): &(usize, Unhealthy)| json!({"model": app.models().name(*i), "error": u.why, "is_loading_again": u.is_loading_again});
        out["unhealthy_models"] = ill.iter().map(told).collect();
    }
    let path = request.uri().path();
    if let Some(gateway) = app.gateway().filter(|g| !g.is_open())
        && matches!(gateway.admit(path, request.headers()), Ok(Caller::Trusted))
    {
        let all = gateway.router().status();
        let (well, ill): (Vec<_>, Vec<_>) = all.iter().partition(|s| s.cooling_s == 0.0);
        let told = |s: &&Status| {
            let mut one = json!({"model": s.model, "model_name": s.group, "model_id": s.deployment});
            if s.cooling_s > 0.0 {
                one["error"] = format!("{}, for {:.1} s", s.state, s.cooling_s).into();
            }
            one
        };
        out["healthy_count"] = well.len().into();
        out["unhealthy_count"] = ill.len().into();
        out["healthy_endpoints"] = well.iter().map(told).collect();
        out["unhealthy_endpoints"] = ill.iter().map(told).collect();
    }
    json_response(status, out.to_string())
}

/// `GET /ready`: 200 if requests are accepted. 503 during shutdown, and if the only model cannot be loaded or has lost its device.
pub async fn ready(State(app): State<Arc<App>>) -> Response {
    let state = |i: usize| {
        let name = app.models().name(i);
        let mut out =
            json!({"model": name, "loaded": app.models().progress(i), "waiting": app.models().waiting(i)});
        let card = app.models().card(i);
        out["memory_bytes"] = card.memory_bytes.into();
        if let Some(on) = &card.on_device {
            (out["device"], out["device_memory_bytes"]) = (on.name.as_str().into(), on.bytes.into());
        }
        if let Some(why) = app.models().unhealthy(i).map(|u| u.why).or_else(|| app.models().failure(i)) {
            out["error"] = why.into();
        }
        out
    };
    let all: Vec<Value> = (0..app.models().count()).map(state).collect();
    let broken = !all.is_empty() && all.iter().all(|m| m.get("error").is_some());
    let (status, word) = match (app.models().is_draining(), broken) {
        (true, _) => (503, "draining"),
        (false, true) => (503, "failed"),
        (false, false) => (200, "ready"),
    };
    json_response(status, json!({"status": word, "models": all}).to_string())
}

/// `GET /metrics`: OpenMetrics, or Prometheus' older text format for a client that accepts only that.
pub async fn metrics(State(app): State<Arc<App>>, headers: HeaderMap) -> Response {
    let accept = headers.get(ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let is_plain = ops::wants_plain(accept);
    if let Some(gateway) = app.gateway() {
        let failures = (gateway.cache_errors(), gateway.callbacks_dropped());
        app.inference.metrics.routes.now(gateway.busy(), gateway.reloads(), failures);
    }
    match app.inference.metrics.text(app.models()) {
        Ok(text) => {
            let text = if is_plain { ops::plain(&text) } else { text };
            let mut out = Response::new(text.into());
            let open = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            let kind = if is_plain { ops::PLAIN } else { open };
            out.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
            out
        }
        Err(e) => Dialect::OpenAi.error(&ApiError::new(ErrorKind::Internal, e.to_string()), None),
    }
}

/// Maximum length of an error about a query.
const QUERY_ERROR_CHARS_MAX: usize = 200;

/// The query string: which model the request is about.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelQuery {
    model: Option<String>,
    /// llama-server's: load the model that is asked about. Here only requests for answers load one.
    #[serde(rename = "autoload")]
    _autoload: Option<String>,
    /// llama-server's for `/slots`: an error if all are busy.
    fail_on_no_slot: Option<String>,
}

impl ModelQuery {
    /// Whether `/slots` answers with an error if all slots are busy.
    pub fn fails_without_slot(&self) -> bool {
        self.fail_on_no_slot.as_ref().is_some_and(|value| !value.is_empty())
    }
}

fn unreadable(e: &QueryRejection) -> ApiError {
    // The message repeats the client's text, whatever its length.
    let why: String = e.body_text().chars().take(QUERY_ERROR_CHARS_MAX).collect();
    ApiError::new(ErrorKind::InvalidRequest, format!("the query cannot be read: {why}"))
}

/// The model that the query names, or the first.
pub fn about(
    app: &App,
    which: Result<Query<ModelQuery>, QueryRejection>,
    request: &Request,
    tell: impl FnOnce(usize) -> Value,
) -> Response {
    let found = which.map_err(|e| unreadable(&e)).and_then(|Query(which)| {
        app.find(&which.model.unwrap_or_else(|| app.default_name(&Caller::Trusted)))
    });
    match found {
        Ok(index) => json_response(200, tell(index).to_string()),
        Err(e) => Dialect::OpenAi.error(&e, Some(&trace(request))),
    }
}

/// `GET /props`: properties that llama.cpp's clients read.
pub async fn props(
    State(app): State<Arc<App>>,
    which: Result<Query<ModelQuery>, QueryRejection>,
    request: Request,
) -> Response {
    about(&app, which, &request, |index| properties(&app, index))
}

fn properties(app: &App, index: usize) -> Value {
    let info = app.models().info(index);
    let loaded = app.models().loaded(index);
    let rules = loaded.as_ref().map(|l| l.handle.rules());
    let defaults = &info.defaults;
    let sampling = rules.map(|r| {
        let mut all = described(&r.sampling);
        let most = loaded.as_ref().and_then(|l| l.predict).map_or(json!(-1), Value::from);
        all.extend([
            ("stop".into(), json!(defaults.stop)),
            ("n_predict".into(), most.clone()),
            ("max_tokens".into(), most),
        ]);
        all
    });
    let messages = defaults.messages.iter().map(octet_api::ollama::models::message);
    let special = |id: Option<u32>| {
        let text = id.and_then(|id| loaded.as_ref()?.tokenizer().token_text(id).map(str::to_string));
        text.unwrap_or_default()
    };
    let tokenizer = loaded.as_ref().map(|l| l.tokenizer());
    json!({
        "model_alias": info.id,
        // The file's folder is not published.
        "model_path": info.id,
        "default_generation_settings": {"id": 0, "n_ctx": info.context_length, "params": sampling},
        "total_slots": rules.map(|r| r.max_seqs),
        "chat_template": info.template.clone().unwrap_or_default(),
        // What conversations begin with that do not say otherwise.
        "system": defaults.system,
        "messages": messages.collect::<Vec<_>>(),
        "bos_token": special(tokenizer.and_then(|t| t.bos_token())),
        "eos_token": special(tokenizer.and_then(|t| t.eos_ids().first().copied())),
        "modalities": {"vision": info.abilities.vision, "audio": false},
        // Where an image belongs in the `prompt_string` of /completion.
        "media_marker": info.abilities.vision.then_some(octet_api::openai::MEDIA_MARKER),
        "build_info": concat!("octet ", env!("CARGO_PKG_VERSION")),
        "backend": loaded.as_ref().map(|l| l.handle.info().backend.clone()),
        "kv_tokens": rules.map(|r| r.capacity),
        "is_sleeping": loaded.is_none(),
    })
}

/// `GET /experts`: how often each expert was used since the model was loaded. Dense models and models that are not loaded have no
/// layers there.
pub async fn experts(
    State(app): State<Arc<App>>,
    which: Result<Query<ModelQuery>, QueryRejection>,
    request: Request,
) -> Response {
    about(&app, which, &request, |index| expert_usage(&app, index))
}

fn expert_usage(app: &App, index: usize) -> Value {
    let loaded = app.models().loaded(index);
    let usage = loaded.as_ref().and_then(|l| l.handle.experts());
    let mut out = match usage {
        Some(usage) => ops::experts_json(&usage),
        None => json!({"experts": 0, "experts_per_token": 0, "coverage": [], "layers": []}),
    };
    out["model"] = app.models().name(index).into();
    out["is_sleeping"] = loaded.is_none().into();
    out
}

/// `GET /metrics/history`: some metrics of a model over the last hour.
pub async fn history(
    State(app): State<Arc<App>>,
    which: Result<Query<ModelQuery>, QueryRejection>,
    request: Request,
) -> Response {
    about(&app, which, &request, |index| {
        let mut out = app.history.json(index, Instant::now());
        out["model"] = app.models().name(index).into();
        out
    })
}

/// `GET /openapi.json`
pub async fn openapi() -> Response {
    json_response(200, OPENAPI)
}
