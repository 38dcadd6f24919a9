//! The page's conversations on the server: what is new since the page asked last, and what it changed. The store itself is
//! `octet-conversations`.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::response::Response;
use hyper::HeaderMap;
use octet_api::{ApiError, ErrorKind};
use octet_conversations::{Error, Item, Kind, Store, User};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::Dialect;
use super::call::{Call, call, caller, trace};
use super::error::json as json_response;
use crate::app::App;
use crate::blocking::spawn_blocking;
use crate::gateway::Caller;
use crate::ops::Keys;

/// The query of `GET /page-store`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Since {
    /// The number of the last change that the page knows.
    #[serde(default)]
    since: i64,
}

/// An item as the page reads and writes it.
#[derive(Serialize, Deserialize)]
struct Wire<'a> {
    kind: &'a str,
    id: &'a str,
    chat: &'a str,
    /// `null` if it was deleted.
    #[serde(borrow)]
    value: Option<&'a RawValue>,
}

/// A list of them.
#[derive(Deserialize)]
struct Posted<'a> {
    /// Whose they are, as `GET` told it.
    #[serde(default)]
    user: Option<&'a str>,
    #[serde(borrow)]
    items: Vec<Wire<'a>>,
}

/// Whose conversations: those of a key, or of the only user.
fn user(app: &App, caller: &Caller, headers: &HeaderMap) -> User {
    match caller {
        Caller::Key(key) => User::of_key(&key.id),
        Caller::Trusted if app.options.keys.is_empty() => User::only(),
        Caller::Trusted => Keys::sent(headers).map_or_else(User::only, User::of_key),
    }
}

fn failed(e: Error) -> ApiError {
    match e {
        Error::Invalid(what) => ApiError::new(ErrorKind::InvalidRequest, what),
        Error::Full => ApiError::new(ErrorKind::InvalidRequest, e.to_string()),
        Error::File { .. } => ApiError::new(ErrorKind::Internal, e.to_string()),
    }
}

/// Works on the store on a blocking thread: it may wait for the disk.
async fn on<T: Send + 'static>(
    store: Arc<Store>,
    work: impl FnOnce(&Store) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    spawn_blocking(move || work(&store))
        .await
        .unwrap_or_else(|e| Err(ApiError::new(ErrorKind::Internal, format!("the page's store: {e}"))))
}

/// `GET /page-store`: the items that changed. Without a store it says so.
pub async fn changes(
    State(app): State<Arc<App>>,
    since: Result<Query<Since>, QueryRejection>,
    request: Request,
) -> Response {
    let Some(store) = app.options.page_store.clone() else {
        return json_response(200, r#"{"kept": false}"#);
    };
    let user = user(&app, &caller(&request), request.headers());
    let read = async {
        let Query(Since { since }) = since.map_err(|e| {
            ApiError::new(ErrorKind::InvalidRequest, format!("the query cannot be read: {}", e.body_text()))
        })?;
        on(store, move |store| written(&user, store.changes(&user, since).map_err(failed)?)).await
    };
    match read.await {
        Ok(body) => json_response(200, body),
        Err(e) => Dialect::OpenAi.error(&e, Some(&trace(&request))),
    }
}

/// Changes as JSON.
fn written(user: &User, changes: octet_conversations::Changes) -> Result<String, ApiError> {
    let wrong = |e: serde_json::Error| ApiError::new(ErrorKind::Internal, format!("the page's store: {e}"));
    let value = |item: &Item| item.value.clone().map(RawValue::from_string).transpose();
    let values = changes.items.iter().map(value).collect::<Result<Vec<_>, _>>().map_err(wrong)?;
    let wire = changes.items.iter().zip(&values).map(|(item, value)| Wire {
        kind: item.kind.name(),
        id: &item.id,
        chat: &item.chat,
        value: value.as_deref(),
    });
    let items = serde_json::to_string(&wire.collect::<Vec<_>>()).map_err(wrong)?;
    let (seq, more, user) = (changes.seq, changes.more, user.name());
    Ok(format!(r#"{{"kept": true, "user": "{user}", "seq": {seq}, "more": {more}, "items": {items}}}"#))
}

/// `POST /page-store`: keeps or deletes items.
pub async fn put(State(app): State<Arc<App>>, request: Request) -> Response {
    call(app, request, |c: Call| async move {
        let store = c.app.options.page_store.clone().ok_or_else(|| {
            let what = "this server keeps no conversations; octet serve --page-store FILE does";
            ApiError::new(ErrorKind::NotFound, what)
        })?;
        let user = user(&c.app, &c.sender.caller, &c.sender.headers);
        let (body, share) = c.body.into_parts();
        let seq = on(store, move |store| {
            let seq = store.put(&user, &items(&body, &user)?).map_err(failed);
            drop(share);
            seq
        });
        Ok(json_response(200, format!(r#"{{"seq": {}}}"#, seq.await?)))
    })
    .await
}

/// The items of a body, which are this user's.
fn items(body: &[u8], user: &User) -> Result<Vec<Item>, ApiError> {
    let posted: Posted<'_> = serde_json::from_slice(body).map_err(|e| {
        ApiError::new(ErrorKind::InvalidRequest, format!("the body is not a list of items: {e}"))
    })?;
    if posted.user.is_some_and(|sender| sender != user.name()) {
        return Err(ApiError::invalid("user", "is another than the key's; load the page again"));
    }
    let item = |wire: &Wire<'_>| {
        let kind = Kind::of(wire.kind).ok_or_else(|| ApiError::invalid("kind", "must be chat or message"))?;
        let value = wire.value.filter(|v| v.get() != "null").map(|v| v.get().to_string());
        Ok(Item { kind, id: wire.id.into(), chat: wire.chat.into(), value })
    };
    posted.items.iter().map(item).collect()
}
