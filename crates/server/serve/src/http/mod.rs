//! The routes: paths and their endpoints, and the middleware around them.
//!
//! Middleware, outermost first: the access log line and the request id; closing connections whose requests were not read to
//! their end; CORS; API keys; then the endpoint.

mod admin;
mod anthropic;
mod body;
mod call;
mod checked_answer;
mod error;
mod gemini;
mod gemini_path;
mod generate;
mod hooks;
mod litellm;
mod llama;
mod multipart;
mod ollama;
mod openai;
mod page;
mod page_store;
mod page_tools;
mod passthrough;
mod reply;
mod response_store;
mod responses;
mod routed;
mod status;
mod stored_responses;
mod streams;
mod tokens;
mod yield_to_others;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use hyper::header::{ACCEPT, HeaderName, HeaderValue};
use octet_api::{ApiError, ErrorKind, shortened};
use tower_http::cors::{AllowHeaders, AllowMethods, AllowOrigin, CorsLayer};
use tower_service::Service;

use crate::app::{App, Options};
use crate::ops;
use call::trace;
pub use error::Dialect;
use error::METHOD_NOT_ALLOWED;
pub use response_store::ResponseStore;

/// Paths that need no key: health is public, and the pages ask for a key themselves.
const OPEN: &[&str] = &[
    "/",
    "/admin",
    "/health",
    "/v1/health",
    "/ready",
    "/health/liveliness",
    "/health/liveness",
    "/health/readiness",
];
/// `Retry-After` for clients that got no connection.
const RETRY_FULL_S: u64 = 1;
/// How long a browser may cache the answer to a CORS preflight.
const CORS_AGE: Duration = Duration::from_secs(3600);

/// All routes. `openapi.json` describes each (a test checks it).
pub fn routes(app: Arc<App>) -> Router {
    let router = Router::new()
        .route("/v1/chat/completions", post(openai::chat_completions))
        .route("/v1/completions", post(openai::plain_completions))
        .route("/v1/responses", post(responses::create))
        .route("/v1/responses/input_tokens", post(tokens::count_response))
        .route("/v1/responses/{id}", get(stored_responses::get).delete(stored_responses::delete))
        .route("/v1/responses/{id}/input_items", get(stored_responses::input_items))
        .route("/v1/embeddings", post(openai::embeddings_of))
        .route("/v1/models", get(openai::list_models))
        // Model names may contain slashes.
        .route("/v1/models/{*id}", get(openai::one_model))
        .route("/completion", post(llama::completion))
        .route("/completions", post(llama::completions))
        .route("/infill", post(llama::infill))
        .route("/embedding", post(llama::embedding))
        .route("/embeddings", post(llama::embeddings))
        .route("/rerank", post(llama::reranking))
        .route("/reranking", post(llama::reranking))
        .route("/v1/rerank", post(llama::reranking))
        .route("/v1/reranking", post(llama::reranking))
        .route("/v2/rerank", post(llama::reranking))
        .route("/slots", get(llama::slots))
        .route("/chat/completions", post(openai::chat_completions))
        .route("/chat/completions/input_tokens", post(tokens::count_chat))
        .route("/v1/chat/completions/input_tokens", post(tokens::count_chat))
        .route("/models", get(openai::list_models))
        .route("/v1/health", get(status::health))
        .route("/v1/model/info", get(openai::model_info))
        .route("/model/info", get(openai::model_info))
        .route("/v1/messages", post(anthropic::create_message))
        .route("/v1/messages/count_tokens", post(anthropic::count))
        .route("/api/chat", post(ollama::chat_answer))
        .route("/api/generate", post(ollama::generate_answer))
        .route("/api/embed", post(ollama::embed_new))
        .route("/api/embeddings", post(ollama::embed_old))
        .route("/api/tags", get(ollama::tags))
        .route("/api/ps", get(ollama::ps))
        .route("/api/show", post(ollama::show))
        .route("/api/pull", post(ollama::pull))
        .route("/api/version", get(ollama::version))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/apply-template", post(tokens::apply_template))
        .route("/health", get(status::health))
        .route("/ready", get(status::ready))
        .route("/metrics", get(status::metrics))
        .route("/metrics/history", get(status::history))
        .route("/props", get(status::props))
        .route("/experts", get(status::experts))
        .route("/openapi.json", get(status::openapi))
        .route("/streams/{id}", get(streams::get).delete(streams::stop))
        .route("/page-store", get(page_store::changes).post(page_store::put))
        .route("/mcp/tools", get(page_tools::list))
        .route("/mcp/call", post(page_tools::call_tool))
        .route("/page/{*path}", get(page::file))
        .route("/", get(page::document))
        .merge(litellm::routes())
        .merge(gemini::routes())
        .merge(passthrough::routes())
        .merge(admin::routes())
        .method_not_allowed_fallback(wrong_method);
    // Other programs' paths for the same endpoints are tried only when no route matches.
    let known = router.clone().fallback(not_found).with_state(Arc::clone(&app));
    let router = router.fallback(move |request| alias_or_not_found(known.clone(), request));
    layered(router, app)
}

/// Routes of connections over the limit: an error, but health and metrics still answer.
pub fn full(app: Arc<App>) -> Router {
    let router = Router::new()
        .route("/health", get(status::health))
        .route("/metrics", get(status::metrics))
        .fallback(too_many_connections);
    layered(router, app)
}

/// Adds the middleware that every request passes.
fn layered(router: Router<Arc<App>>, app: Arc<App>) -> Router {
    let state = Arc::clone(&app);
    // Each layer costs a request a few allocations, so they are merged where possible.
    let has_keys = app.gateway().map_or(!app.options.keys.is_empty(), |g| !g.is_open());
    let router = match cors(&app.options.cors_origins, has_keys) {
        Some(cors) => {
            let outer = Arc::clone(&state);
            router
                .layer(from_fn_with_state(state, authorize))
                .layer(cors)
                .layer(from_fn_with_state(outer, log_only))
        }
        None => router.layer(from_fn_with_state(state, log_and_authorize)),
    };
    router.with_state(app)
}

async fn log_and_authorize(state: State<Arc<App>>, request: Request, next: Next) -> Response {
    let requests = state.gateway().map(|_| Arc::clone(&state.inference.requests));
    ops::log(requests, request, |request| body::part(request, |request| authorize(state, request, next)))
        .await
}

/// Without CORS, [`authorize`] runs in the same layer; with it, this runs outside and [`authorize`] inside.
async fn log_only(state: State<Arc<App>>, request: Request, next: Next) -> Response {
    let requests = state.gateway().map(|_| Arc::clone(&state.inference.requests));
    ops::log(requests, request, |request| body::part(request, |request| next.run(request))).await
}

/// Which web pages may use the server: the configured origins. Without any, all pages if a key is needed (a page has only the key
/// that its user gives it), and otherwise none. Browsers send a preflight request first.
fn cors(origins: &[String], has_keys: bool) -> Option<CorsLayer> {
    let origin = if origins.iter().any(|o| o == "*") || (origins.is_empty() && has_keys) {
        AllowOrigin::any()
    } else {
        let known: Vec<HeaderValue> = origins.iter().filter_map(|o| HeaderValue::from_str(o).ok()).collect();
        if known.is_empty() {
            return None;
        }
        AllowOrigin::list(known)
    };
    let exposed = [
        "x-request-id",
        "x-octet-cache-miss",
        "x-octet-warning",
        "x-octet-model",
        "x-octet-route",
        "x-octet-response-cache",
        "x-litellm-cache-key",
        "retry-after",
    ]
    .map(HeaderName::from_static);
    let layer = CorsLayer::new().allow_origin(origin).expose_headers(exposed).max_age(CORS_AGE);
    Some(layer.allow_methods(AllowMethods::mirror_request()).allow_headers(AllowHeaders::mirror_request()))
}

/// Why a request is refused if no key is needed: a web page made a browser send it that may not use the server.
fn foreign(request: &Request, options: &Options) -> Option<String> {
    let (headers, names, origins) = (request.headers(), &options.host_names, &options.cors_origins);
    // The page's own files are no secret, and its closed frames, whose origin is "null", load a library from there.
    let is_file = request.uri().path().starts_with(page::FOLDER);
    if !is_file && ops::is_foreign(headers, origins, options.local, names) {
        return Some("this web page may not use the server; --cors-origin names those that may".into());
    }
    let host = ops::foreign_host(headers, request.uri(), names, origins).filter(|_| options.local)?;
    let host = shortened(host);
    Some(format!(
        "the server does not know the host name '{host}'; --allowed-host names those that mean this machine"
    ))
}

/// Checks the origin and the API key of a request.
async fn authorize(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    gemini::take_key(&mut request);
    let path = request.uri().path();
    let options = &app.options;
    let is_open = app.gateway().map_or(options.keys.is_empty(), |g| g.is_open());
    if is_open && let Some(what) = foreign(&request, options) {
        let accepts = request.headers().get(ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or_default();
        if accepts.contains("text/html") {
            // For somebody who has opened the page.
            return (StatusCode::FORBIDDEN, format!("Octet: {what}.\n")).into_response();
        }
        return Dialect::of(path).error(&ApiError::new(ErrorKind::Permission, what), Some(&trace(&request)));
    }
    if OPEN.contains(&path) || path.starts_with(page::FOLDER) {
        return next.run(request).await;
    }
    if let Some(gateway) = app.gateway() {
        return match gateway.admit(path, request.headers()) {
            Ok(caller) => {
                request.extensions_mut().insert(caller);
                next.run(request).await
            }
            Err(e) => Dialect::of(path).error(&e, Some(&trace(&request))),
        };
    }
    if options.keys.admit(request.headers()) {
        return next.run(request).await;
    }
    Dialect::of(path).error(&ApiError::new(ErrorKind::Authentication, ops::NO_KEY), Some(&trace(&request)))
}

/// A request for another program's name of an endpoint, or for an unknown path.
async fn alias_or_not_found(mut known: Router, mut request: Request) -> Response {
    if !litellm::rewrite_alias(&mut request) {
        return not_found(request).await;
    }
    match known.call(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

async fn not_found(request: Request) -> Response {
    let path = request.uri().path();
    let dialect = Dialect::of(path);
    let error = if dialect == Dialect::Ollama {
        ollama::unsupported_path(path)
    } else {
        let near =
            likely_path(path).map_or(String::new(), |near| format!(" (did you mean {}?)", shortened(&near)));
        let what = format!("no endpoint at {}{near}; GET /openapi.json lists all endpoints", shortened(path));
        ApiError::new(ErrorKind::NotFound, what)
    };
    dialect.error(&error, Some(&trace(&request)))
}

/// The intended path, if a client's base URL has one slash or one `/v1` too many.
fn likely_path(path: &str) -> Option<String> {
    let mut parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    parts.dedup_by(|a, b| a == b && *a == "v1");
    let near = format!("/{}", parts.join("/"));
    (parts.len() > 1 && near != path).then_some(near)
}

async fn too_many_connections(State(app): State<Arc<App>>, request: Request) -> Response {
    let what = format!(
        "all {} connections are in use (--max-connections); try again later",
        app.options.connections_max
    );
    let error = ApiError { retry_after_s: Some(RETRY_FULL_S), ..ApiError::new(ErrorKind::Overloaded, what) };
    Dialect::of(request.uri().path()).error(&error, Some(&trace(&request)))
}

async fn wrong_method(request: Request) -> Response {
    let path = request.uri().path();
    let method = shortened(request.method().as_str());
    let near = if method == "GET" { "POST" } else { "GET" };
    let what = format!(
        "{} does not accept {method}; try {near}, or see GET /openapi.json, which lists all endpoints",
        shortened(path)
    );
    let error = ApiError::new(ErrorKind::InvalidRequest, what);
    let error = ApiError { code: Some(METHOD_NOT_ALLOWED.into()), ..error };
    Dialect::of(path).error(&error, Some(&trace(&request)))
}
