//! Other paths for the same endpoints, as clients of LiteLLM's proxy and of Azure use them: without `/v1`, or with the model in the path.
//! Also LiteLLM's own endpoints: model groups, token counts.

use std::borrow::Cow;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::{get, post};
use hyper::Uri;
use octet_api::{ApiError, ErrorKind};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::body::{self, PathModel};
use super::call::{Call, call, caller};
use super::error::json as json_response;
use crate::app::App;

/// Endpoints that only LiteLLM's proxy has.
pub fn routes() -> Router<Arc<App>> {
    Router::new().route("/model_group/info", get(groups)).route("/utils/token_counter", post(token_counter))
}

/// Rewrites a request's path to the one that the endpoint has here; `false` if the path is unknown.
pub fn rewrite_alias(request: &mut Request) -> bool {
    let Some((path, model)) = ours(request.uri().path()) else { return false };
    let query = request.uri().query().map_or(String::new(), |q| format!("?{q}"));
    let Ok(uri) = format!("{path}{query}").parse::<Uri>() else { return false };
    *request.uri_mut() = uri;
    if let Some(model) = model {
        request.extensions_mut().insert(PathModel(model));
    }
    true
}

/// Suffixes of paths with the model before them, and the endpoints they mean.
const OPERATIONS: &[(&str, &str)] = &[
    ("/chat/completions", "/v1/chat/completions"),
    ("/completions", "/v1/completions"),
    ("/embeddings", "/v1/embeddings"),
];

fn ours(path: &str) -> Option<(Cow<'static, str>, Option<String>)> {
    let exact = match path {
        "/chat/completions" => "/v1/chat/completions",
        "/completions" => "/v1/completions",
        "/embeddings" => "/v1/embeddings",
        "/responses" => "/v1/responses",
        "/messages" => "/v1/messages",
        "/messages/count_tokens" => "/v1/messages/count_tokens",
        "/models" => "/v1/models",
        "/health/liveliness" | "/health/liveness" => "/health",
        "/health/readiness" => "/ready",
        "/v1/model_group/info" => "/model_group/info",
        "/v2/model/info" => "/v1/model/info",
        "/v1/utils/token_counter" => "/utils/token_counter",
        _ => "",
    };
    if !exact.is_empty() {
        return Some((exact.into(), None));
    }
    for (begin, to) in [
        ("/responses/", "/v1/responses/"),
        ("/models/", "/v1/models/"),
        ("/openai/v1/", "/v1/"),
        ("/v1beta/openai/", "/v1/"),
        ("/v1alpha/models", "/v1beta/models"),
        ("/gemini/v1beta/models", "/v1beta/models"),
        ("/gemini/models", "/v1beta/models"),
    ] {
        if let Some(rest) = path.strip_prefix(begin).filter(|rest| !rest.is_empty() || begin.ends_with('s')) {
            return Some((format!("{to}{rest}").into(), None));
        }
    }
    if let Some(rest) = path.strip_prefix("/anthropic/v1/") {
        return Some((format!("/v1/{rest}").into(), None));
    }
    let rest = path.strip_prefix("/openai/deployments/").or_else(|| path.strip_prefix("/engines/"))?;
    let (model, to) = OPERATIONS.iter().find_map(|(end, to)| Some((rest.strip_suffix(end)?, *to)))?;
    (!model.is_empty()).then(|| (to.into(), Some(decoded(model))))
}

/// A path segment, percent-decoded.
pub fn decoded(part: &str) -> String {
    let mut out = Vec::with_capacity(part.len());
    let mut rest = part.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let hex = |b: &[u8]| u8::from_str_radix(std::str::from_utf8(b).ok()?, 16).ok();
        match (byte, after.get(..2).and_then(hex)) {
            (b'%', Some(value)) => {
                out.push(value);
                rest = &after[2..];
            }
            _ => {
                out.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// `GET /model_group/info`: the names that clients may ask for, each with metadata merged from all its deployments.
pub async fn groups(State(app): State<Arc<App>>, request: Request) -> Response {
    let info = app.model_info(&caller(&request));
    let mut groups: Vec<Map<String, Value>> = Vec::new();
    for entry in info["data"].as_array().into_iter().flatten() {
        let name = &entry["model_name"];
        let known = groups.iter_mut().find(|g| g["model_group"] == *name);
        match known {
            Some(group) => add(group, &entry["model_info"]),
            None => {
                let mut group = Map::from_iter([("model_group".to_string(), name.clone())]);
                add(&mut group, &entry["model_info"]);
                groups.push(group);
            }
        }
    }
    json_response(200, json!({"data": groups}).to_string())
}

/// Reports the largest of windows, prices and limits, and each ability that at least one deployment has.
fn add(group: &mut Map<String, Value>, info: &Value) {
    const TOLD: &[&str] = &[
        "mode",
        "max_input_tokens",
        "max_output_tokens",
        "input_cost_per_token",
        "output_cost_per_token",
        "supports_vision",
        "supports_function_calling",
        "supports_reasoning",
    ];
    for key in TOLD {
        let new = &info[*key];
        let old = group.entry(*key).or_insert(Value::Null);
        let larger = new.as_f64().zip(old.as_f64()).is_some_and(|(new, old)| new > old);
        if !new.is_null() && (old.is_null() || larger || *new == Value::Bool(true)) {
            *old = new.clone();
        }
    }
}

/// The body of `/utils/token_counter`.
#[derive(Deserialize)]
struct TokenCounterRequest {
    model: String,
    #[serde(default)]
    prompt: Option<String>,
    #[serde(default)]
    messages: Option<Value>,
    #[serde(default)]
    contents: Option<Value>,
}

/// `POST /utils/token_counter`: the number of tokens of a prompt; `tokenizer_type` says whether it is estimated.
pub async fn token_counter(State(app): State<Arc<App>>, request: Request) -> Response {
    call(app, request, |c: Call| async move {
        let read = |body: &[u8]| {
            serde_json::from_slice::<TokenCounterRequest>(body).map_err(|e| {
                ApiError::new(ErrorKind::InvalidRequest, format!("the body cannot be read: {e}"))
            })
        };
        let (asked, _share) = body::parse(c.body, read).await?;
        if let Some(gateway) = c.app.gateway() {
            gateway.permit(&c.sender.caller, gateway.name(&asked.model))?;
        }
        let texts = [asked.prompt.map(Value::from), asked.messages, asked.contents];
        let bytes: usize = texts.iter().flatten().map(text_bytes).sum();
        let out = json!({
            "total_tokens": estimate(bytes), "request_model": asked.model, "model_used": asked.model,
            "tokenizer_type": "estimate",
        });
        Ok(json_response(200, out.to_string()))
    })
    .await
}

/// Estimated number of tokens of a text of `bytes` bytes.
fn estimate(bytes: usize) -> usize {
    const BYTES_PER_TOKEN: usize = 4;
    bytes.div_ceil(BYTES_PER_TOKEN)
}

/// Total length of all strings in a value in bytes; images count as 0.
fn text_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) if text.starts_with("data:") => 0,
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(text_bytes).sum(),
        Value::Object(fields) => fields.values().map(text_bytes).sum(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_to_the_endpoints() {
        for (path, to, model) in [
            ("/chat/completions", "/v1/chat/completions", None),
            ("/models/a/b", "/v1/models/a/b", None),
            ("/openai/v1/chat/completions", "/v1/chat/completions", None),
            ("/openai/deployments/gpt-4o/chat/completions", "/v1/chat/completions", Some("gpt-4o")),
            ("/openai/deployments/a%2Fb%20c/embeddings", "/v1/embeddings", Some("a/b c")),
            ("/engines/openai/gpt-4o/completions", "/v1/completions", Some("openai/gpt-4o")),
            ("/health/liveliness", "/health", None),
            ("/anthropic/v1/messages", "/v1/messages", None),
            ("/v1beta/openai/chat/completions", "/v1/chat/completions", None),
            ("/v1alpha/models/m:generateContent", "/v1beta/models/m:generateContent", None),
            ("/gemini/v1beta/models/m:countTokens", "/v1beta/models/m:countTokens", None),
            ("/gemini/models/m:generateContent", "/v1beta/models/m:generateContent", None),
            ("/models/a/b:generateContent", "/v1/models/a/b:generateContent", None),
        ] {
            let (ours, named) = ours(path).unwrap_or_else(|| panic!("{path}"));
            assert_eq!((&*ours, named.as_deref()), (to, model), "{path}");
        }
        for path in ["/nothing", "/openai/deployments//chat/completions", "/openai/deployments/x/images"] {
            assert_eq!(ours(path), None, "{path}");
        }
    }
}
