//! Access to the key store for the endpoints of keys, users and teams: authorization, blocking file work, paging.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::Request;
use axum::response::Response;
use octet_api::{ApiError, ErrorKind, shortened};
use octet_keys::{Error, KeyId, KeyInfo, Store};
use serde_json::{Map, Value};

use crate::app::App;
use crate::gateway::Caller;
use crate::http::call::{Call, call, caller, trace};
use crate::http::error::{Dialect, json as json_response};
use crate::warnings;

/// The parameters of a query string.
pub type Params = HashMap<String, String>;

/// The error for an invalid field.
pub fn wrong(field: &str, what: impl Into<String>) -> ApiError {
    ApiError::invalid(field, what.into())
}

/// Refuses a caller that may not manage the server. A router without keys cannot be managed over HTTP.
pub fn manager(app: &App, who: &Caller) -> Result<(), ApiError> {
    let what = match who {
        Caller::Trusted if app.gateway().is_some_and(|g| g.is_open()) => {
            "this endpoint needs the server's own key, and none is configured: set general_settings.master_key"
        }
        Caller::Trusted => return Ok(()),
        Caller::Key(_) => "this API key may only use models; this endpoint needs the server's own key",
    };
    Err(ApiError::new(ErrorKind::Permission, what))
}

/// The key store, if `who` may manage it.
fn store(app: &App, who: &Caller) -> Result<Arc<Store>, ApiError> {
    manager(app, who)?;
    app.gateway().and_then(|g| g.store().cloned()).ok_or_else(|| {
        let what = "there are no virtual keys: set keys.database in the configuration";
        ApiError::new(ErrorKind::InvalidRequest, what)
    })
}

/// The API error for an error of the key store.
pub fn failed(e: &Error) -> ApiError {
    let kind = match e {
        Error::NameTaken(name) => {
            return wrong("key_alias", format!("a key with the alias '{}' exists", shortened(name)));
        }
        Error::NoSuchKey(_) | Error::NoSuchOwner { .. } => ErrorKind::NotFound,
        Error::Invalid(_) | Error::Ambiguous { .. } | Error::Exists { .. } => ErrorKind::InvalidRequest,
        _ => ErrorKind::Overloaded,
    };
    ApiError::new(kind, e.to_string())
}

/// Runs work on the store on a blocking thread: it may wait for the disk.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    crate::blocking::spawn_blocking(work)
        .await
        .unwrap_or_else(|e| Err(ApiError::new(ErrorKind::Internal, format!("the key store: {e}"))))
}

/// Parses a body as a JSON object.
pub fn object(body: &[u8]) -> Result<Map<String, Value>, ApiError> {
    serde_json::from_slice(body)
        .map_err(|e| ApiError::new(ErrorKind::InvalidRequest, format!("the body is not a JSON object: {e}")))
}

/// Answers a request with a body: `answer` gets its JSON object, and returns the response and notes about fields without effect.
pub fn posted(
    app: Arc<App>,
    request: Request,
    answer: impl FnOnce(&Store, Map<String, Value>) -> Result<(Value, Vec<String>), ApiError> + Send + 'static,
) -> impl Future<Output = Response> + Send {
    answer_posted(app, request, Box::new(answer))
}

/// The response to a request with a body, and notes about its fields.
type Posted = dyn FnOnce(&Store, Map<String, Value>) -> Result<(Value, Vec<String>), ApiError> + Send;

async fn answer_posted(app: Arc<App>, request: Request, answer: Box<Posted>) -> Response {
    call(app, request, |c: Call| async move {
        let store = store(&c.app, &c.sender.caller)?;
        let (body, _share) = c.body.into_parts();
        let (out, notes) = blocking(move || answer(&store, object(&body)?)).await?;
        let mut response = json_response(200, out.to_string());
        warnings::add_header(&mut response, notes.iter().map(String::as_str));
        Ok(response)
    })
    .await
}

/// Answers a request without a body.
pub fn queried(
    app: Arc<App>,
    request: Request,
    answer: impl FnOnce(&Store) -> Result<Value, ApiError> + Send + 'static,
) -> impl Future<Output = Response> + Send {
    answer_queried(app, request, Box::new(answer))
}

/// The response to a request without a body.
type Queried = dyn FnOnce(&Store) -> Result<Value, ApiError> + Send;

async fn answer_queried(app: Arc<App>, request: Request, answer: Box<Queried>) -> Response {
    let result = match store(&app, &caller(&request)) {
        Ok(store) => blocking(move || answer(&store)).await,
        Err(e) => Err(e),
    };
    match result {
        Ok(out) => json_response(200, out.to_string()),
        Err(e) => Dialect::OpenAi.error(&e, Some(&trace(&request))),
    }
}

/// Finds a key by its secret or its token.
pub fn find(store: &Store, key: &str) -> Result<KeyInfo, ApiError> {
    let id = store.id(key).or_else(|| key.parse::<KeyId>().ok());
    let found = store.list().into_iter().find(|k| Some(k.id) == id && k.revoked.is_none());
    // The text may be a secret key, so the error does not repeat it.
    found.ok_or_else(|| ApiError::new(ErrorKind::NotFound, "there is no such key, or it was deleted"))
}

/// A required string field of a body.
pub fn needed(fields: &mut Map<String, Value>, name: &str, what: &str) -> Result<String, ApiError> {
    match fields.shift_remove(name) {
        Some(Value::String(text)) if !text.is_empty() => Ok(text),
        _ => Err(wrong(name, format!("'{name}' is needed: {what}"))),
    }
}

/// A field of a body that is a list of strings; empty if absent.
pub fn texts(fields: &mut Map<String, Value>, name: &str) -> Result<Vec<String>, ApiError> {
    let value =
        fields.shift_remove(name).filter(|v| !v.is_null()).unwrap_or_else(|| Value::Array(Vec::new()));
    serde_json::from_value(value).map_err(|_| wrong(name, format!("'{name}' must be a list of strings")))
}

/// The requested page of a list.
pub struct Page {
    page: usize,
    size: usize,
}

impl Page {
    /// Reads `page` and the page size, whose parameter is named `size`.
    pub fn read(query: &Params, size: &str, usual: usize, most: usize) -> Result<Self, ApiError> {
        let number = |name: &str, usual: usize, most: usize| match query.get(name) {
            Some(text) => {
                let n = text.parse::<usize>().ok().filter(|n| (1..=most).contains(n));
                n.ok_or_else(|| wrong(name, format!("'{name}' must be a number from 1 to {most}")))
            }
            None => Ok(usual),
        };
        Ok(Self { page: number("page", 1, usize::MAX)?, size: number(size, usual, most)? })
    }

    /// The items on the page.
    pub fn of<'a, T>(&self, all: &'a [T]) -> impl Iterator<Item = &'a T> + use<'a, T> {
        all.iter().skip((self.page - 1).saturating_mul(self.size)).take(self.size)
    }

    /// Page number, page size, number of pages.
    pub fn figures(&self, all: usize) -> (usize, usize, usize) {
        (self.page, self.size, all.div_ceil(self.size))
    }
}

/// Whether a value is neutral: `null`, `{}`, `[]`, `false`, `0`, an empty string.
pub fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(b) => !b,
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::String(s) => s.is_empty(),
        Value::Array(a) => a.is_empty(),
        Value::Object(o) => o.is_empty(),
    }
}
