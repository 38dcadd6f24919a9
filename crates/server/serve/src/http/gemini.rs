//! Gemini's endpoints: `POST /v1beta/models/{model}:{method}` and the lists of models.

use std::sync::Arc;

use axum::Router;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::response::Response;
use axum::routing::{get, post};
use hyper::header::{AUTHORIZATION, HeaderName, HeaderValue};
use octet_api::core::{EmbedRequest, Embeddings, GenerateRequest};
use octet_api::gemini::{self, ContentWriter, count_tokens, embed, models};
use octet_api::{ApiError, ErrorKind, shortened};
use octet_router::Dialect as Wire;
use serde_json::Value;

use super::call::{Call, call, caller, trace};
use super::error::{json, named};
use super::gemini_path::{METHODS, Method, is_path};
use super::generate::answer;
use super::openai::keep_nothing;
use super::reply::{Form, SSE};
use super::routed::TextEndpoint;
use super::tokens::count_prompt;
use super::{Dialect, body, litellm, routed};
use crate::app::App;
use crate::pipeline;
use crate::warnings::{add_header, messages};

/// Where clients of this dialect send their key.
const KEY: HeaderName = HeaderName::from_static("x-goog-api-key");

/// Server-sent events, for requests with `alt=sse`.
const EVENTS: Form = Form {
    writer: |r| Box::new(ContentWriter::events(r)),
    whole: gemini::response,
    changed: |body, _| gemini::events(body),
    stream_type: SSE,
    done: keep_nothing,
};

/// One JSON array, for streams without it.
const ARRAY: Form =
    Form { writer: |r| Box::new(ContentWriter::array(r)), stream_type: "application/json", ..EVENTS };

/// The routes.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1beta/models", get(list))
        .route("/v1beta/models/{*id}", get(one).post(of_model))
        // For clients that are configured with another version, or without one.
        .route("/v1/models/{*id}", post(of_model))
}

/// Moves the API key from the query string to a header, unless a header has one.
pub fn take_key(request: &mut Request) {
    let Some(query) = request.uri().query() else { return };
    if !is_path(request.uri().path())
        || request.headers().contains_key(&KEY)
        || request.headers().contains_key(AUTHORIZATION)
    {
        return;
    }
    let key = parameter(query, "key").and_then(|key| HeaderValue::from_str(&litellm::decoded(key)).ok());
    if let Some(mut key) = key {
        key.set_sensitive(true);
        request.headers_mut().insert(KEY, key);
    }
}

/// A parameter of a query string, undecoded.
fn parameter<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}

/// `POST /v1beta/models/{model}:{method}`
async fn of_model(
    State(app): State<Arc<App>>,
    name: Result<Path<String>, PathRejection>,
    request: Request,
) -> Response {
    let found = named(name).and_then(|name| {
        let (model, method) = name.rsplit_once(':').unwrap_or((&name, ""));
        let method = METHODS.iter().find(|(known, _)| *known == method).map(|(_, method)| *method);
        let unknown = || {
            let known = METHODS.map(|(name, _)| format!(":{name}")).join(", ");
            let what =
                format!("'{}' does not end in one of the methods that there are: {known}", shortened(&name));
            ApiError::new(ErrorKind::NotFound, what)
        };
        Ok((model.to_string(), method.ok_or_else(unknown)?))
    });
    let (model, method) = match found {
        Ok(found) => found,
        Err(e) => return Dialect::Gemini.error(&e, Some(&trace(&request))),
    };
    let form = match request.uri().query().and_then(|q| parameter(q, "alt")) {
        Some("sse") => EVENTS,
        _ => ARRAY,
    };
    call(app, request, move |mut c: Call| async move {
        let mut of_path = vec![("model", Value::from(model))];
        if matches!(method, Method::Generate | Method::Stream) {
            of_path.push(("stream", Value::from(method == Method::Stream)));
        }
        c.body = c.body.with_fields(of_path).await?;
        match method {
            Method::Generate | Method::Stream => {
                answer(c, TextEndpoint { dialect: Wire::Gemini, parse: gemini::parse, form }).await
            }
            Method::CountTokens => count(c).await,
            Method::Embed => embedded(c, Wire::GeminiEmbed, embed::parse, embed::response).await,
            Method::BatchEmbed => {
                embedded(c, Wire::GeminiBatchEmbed, embed::parse_batch, embed::response_batch).await
            }
        }
    })
    .await
}

async fn count(c: Call) -> Result<Response, ApiError> {
    if let Some(gateway) = c.app.gateway().cloned() {
        return routed::ready(&gateway, c, Wire::GeminiCountTokens).await;
    }
    let (parsed, share): (GenerateRequest, _) = body::parse(c.body, count_tokens::parse).await?;
    let tokens = count_prompt(&c.app, parsed, share).await?;
    Ok(json(200, count_tokens::response(tokens).to_string()))
}

async fn embedded(
    c: Call,
    dialect: Wire,
    parse: fn(&[u8]) -> Result<EmbedRequest, ApiError>,
    write: fn(&Embeddings) -> Value,
) -> Result<Response, ApiError> {
    if let Some(gateway) = c.app.gateway().cloned() {
        return routed::ready(&gateway, c, dialect).await;
    }
    let (parsed, share): (EmbedRequest, _) = body::parse(c.body, parse).await?;
    let parsed = Arc::new(EmbedRequest { memory: c.app.memory_budget.shared(share), ..parsed });
    let index = c.app.find(&parsed.model)?;
    let vectors =
        pipeline::embed(&c.app.inference, &c.sender.trace, index, Arc::clone(&parsed), false).await?;
    let mut response = json(200, write(&vectors).to_string());
    add_header(&mut response, messages(&parsed.warnings));
    Ok(response)
}

/// `GET /v1beta/models`
async fn list(State(app): State<Arc<App>>, request: Request) -> Response {
    json(200, models::list(&app.list(&caller(&request))).to_string())
}

/// `GET /v1beta/models/{model}`
async fn one(
    State(app): State<Arc<App>>,
    name: Result<Path<String>, PathRejection>,
    request: Request,
) -> Response {
    match named(name).and_then(|name| app.info(&name, &caller(&request))) {
        Ok(info) => json(200, models::one(&info).to_string()),
        Err(e) => Dialect::Gemini.error(&e, Some(&trace(&request))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_may_stand_in_the_query() {
        let ask = |uri: &str, header: Option<&'static str>| {
            let mut request = Request::builder().uri(uri).body(axum::body::Body::empty()).expect("a request");
            if let Some(key) = header {
                request.headers_mut().insert(KEY, HeaderValue::from_static(key));
            }
            take_key(&mut request);
            request.headers().get(KEY).map(|v| v.to_str().expect("text").to_string())
        };
        let at = "/v1beta/models/m:generateContent";
        assert_eq!(ask(&format!("{at}?alt=sse&key=sk%2D1"), None).as_deref(), Some("sk-1"));
        assert_eq!(ask(&format!("{at}?key=x"), Some("own")).as_deref(), Some("own"));
        assert_eq!(ask(&format!("{at}?monkey=x"), None), None);
        assert_eq!(ask("/v1/models?key=x", None), None);
    }
}
