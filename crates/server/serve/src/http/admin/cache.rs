//! `/cache/...`: reads and empties the response cache.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::{get, post};
use octet_api::{ApiError, ErrorKind};
use serde_json::{Value, json};

use super::access::{manager, object, texts, wrong};
use crate::app::App;
use crate::gateway::{Caller, Responses};
use crate::http::call::{Call, call, caller, trace};
use crate::http::error::{Dialect, json as json_response};

/// The endpoints.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/cache/ping", get(ping))
        .route("/cache/delete", post(delete))
        .route("/cache/flushall", post(flush))
        .route("/cache/redis/info", get(redis_info))
}

/// The response cache, if `who` may manage it.
fn responses(app: &App, who: &Caller) -> Result<Arc<Responses>, ApiError> {
    manager(app, who)?;
    app.gateway().and_then(|g| g.responses()).ok_or_else(|| {
        let what = "there is no cache of responses: set litellm_settings.cache to true in the configuration";
        ApiError::new(ErrorKind::Overloaded, what)
    })
}

fn failed(why: String) -> ApiError {
    ApiError::new(ErrorKind::Overloaded, format!("Redis cannot be queried: {why}"))
}

async fn answered<R>(app: &App, request: Request, answer: impl FnOnce(Arc<Responses>) -> R) -> Response
where
    R: Future<Output = Result<Value, ApiError>>,
{
    let trace = trace(&request);
    let responses = responses(app, &caller(&request));
    drop(request);
    let result = match responses {
        Ok(responses) => answer(responses).await,
        Err(e) => Err(e),
    };
    match result {
        Ok(out) => json_response(200, out.to_string()),
        Err(e) => Dialect::OpenAi.error(&e, Some(&trace)),
    }
}

/// `GET /cache/ping`: whether the cache can store answers.
async fn ping(State(app): State<Arc<App>>, request: Request) -> Response {
    answered(&app, request, |responses| async move {
        responses.cache().ping().await.map_err(failed)?;
        let redis = (!responses.cache().is_local()).then_some(true);
        Ok(json!({
            "status": "healthy", "cache_type": responses.kind(), "ping_response": redis,
            "set_cache_response": redis.map(|_| "success"), "litellm_cache_params": responses.settings().to_string(),
            "health_check_cache_params": responses.settings(),
        }))
    })
    .await
}

/// `POST /cache/delete`: deletes the answers of `keys`, as named by `x-litellm-cache-key`.
async fn delete(State(app): State<Arc<App>>, request: Request) -> Response {
    call(app, request, |c: Call| async move {
        let responses = responses(&c.app, &c.sender.caller)?;
        let (body, _share) = c.body.into_parts();
        let mut fields = object(&body)?;
        let keys = texts(&mut fields, "keys")?;
        if keys.is_empty() {
            return Err(wrong(
                "keys",
                "'keys' is needed: a list of names, as the header x-litellm-cache-key has them",
            ));
        }
        responses.cache().delete(&keys).await.map_err(failed)?;
        Ok(json_response(200, json!({"status": "success"}).to_string()))
    })
    .await
}

/// `POST /cache/flushall`: deletes all answers. Other entries of the same Redis server stay.
async fn flush(State(app): State<Arc<App>>, request: Request) -> Response {
    answered(&app, request, |responses| async move {
        responses.cache().clear().await.map_err(failed)?;
        Ok(json!({"status": "success"}))
    })
    .await
}

/// `GET /cache/redis/info`: Redis's report about itself and its clients.
async fn redis_info(State(app): State<Arc<App>>, request: Request) -> Response {
    answered(&app, request, |responses| async move {
        let Some((info, clients)) = responses.cache().redis_info().await.map_err(failed)? else {
            let what = "answers lie in the memory of this process, not in Redis";
            return Err(ApiError::new(ErrorKind::InvalidRequest, what));
        };
        let clients: Vec<Value> = clients.lines().map(|line| pairs(line.split(' '), '=')).collect();
        let info = pairs(info.lines().filter(|line| !line.starts_with('#')), ':');
        Ok(json!({"num_clients": clients.len(), "clients": clients, "info": info}))
    })
    .await
}

/// Names and values; numeric values become numbers.
fn pairs<'a>(lines: impl Iterator<Item = &'a str>, mark: char) -> Value {
    let pair = |line: &'a str| {
        let (name, value) = line.trim().split_once(mark)?;
        let number =
            || value.parse::<i64>().map(Value::from).or_else(|_| value.parse::<f64>().map(Value::from));
        Some((name.to_string(), number().unwrap_or_else(|_| value.into())))
    };
    Value::Object(lines.filter_map(pair).collect())
}
