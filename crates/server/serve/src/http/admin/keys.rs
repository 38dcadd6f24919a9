//! `/key/...`: virtual keys.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Query, Request, State};
use axum::response::Response;
use axum::routing::{get, post};
use octet_api::ApiError;
use octet_keys::{KeyId, KeyInfo, OwnerKind, Secret, Store, UNNAMED};
use serde_json::{Map, Value, json};

use super::access::{Page, Params, failed, find, needed, posted, queried, texts, wrong};
use super::changes::{change, set_blocked, transact};
use super::rules::KeyRules;
use super::settings::{Entity, Settings, boolean};
use super::shapes::{self, owner};
use crate::app::App;

/// The endpoints.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/key/generate", post(generate))
        .route("/key/update", post(update))
        .route("/key/delete", post(delete))
        .route("/key/block", post(block))
        .route("/key/unblock", post(unblock))
        .route("/key/info", get(info))
        .route("/key/list", get(list))
}

/// `POST /key/generate`: creates a key. The secret is in the answer and stored nowhere.
async fn generate(State(app): State<Arc<App>>, request: Request) -> Response {
    let rules = KeyRules::of(&app);
    posted(app, request, move |store, mut fields| {
        rules.fill(&mut fields);
        rules.enforce(&mut fields, true)?;
        let settings = Settings::read(Entity::Key, fields, None)?;
        let notes = settings.notes.clone();
        let made = transact(store, |all| all.create(settings))?;
        Ok((created(store, made)?.into(), notes))
    })
    .await
}

/// A key that was just created, with its secret.
pub fn created(store: &Store, (secret, id): (Secret, KeyId)) -> Result<Map<String, Value>, ApiError> {
    let mut out = shapes::key(&find(store, &id.to_string())?);
    out.insert("key".into(), secret.reveal().into());
    out.insert("token_id".into(), id.to_string().into());
    Ok(out)
}

/// `POST /key/update`: changes the limits of a key. Fields that are not named stay.
async fn update(State(app): State<Arc<App>>, request: Request) -> Response {
    let rules = KeyRules::of(&app);
    posted(app, request, move |store, mut fields| {
        let key = needed(&mut fields, "key", "the key, or its token")?;
        let old = find(store, &key)?;
        rules.enforce(&mut fields, false)?;
        let notes = change(store, Entity::Key, old.id, fields)?;
        let mut out = shapes::key(&find(store, &old.id.to_string())?);
        out.insert("key".into(), key.into());
        Ok((out.into(), notes))
    })
    .await
}

/// `POST /key/block`: refuses requests with a key until it is unblocked.
async fn block(State(app): State<Arc<App>>, request: Request) -> Response {
    blocked(app, request, true).await
}

/// `POST /key/unblock`
async fn unblock(State(app): State<Arc<App>>, request: Request) -> Response {
    blocked(app, request, false).await
}

async fn blocked(app: Arc<App>, request: Request, blocked: bool) -> Response {
    posted(app, request, move |store, mut fields| {
        let key = find(store, &needed(&mut fields, "key", "the key, or its token")?)?;
        set_blocked(store, key.id, blocked)?;
        Ok((shapes::key(&find(store, &key.id.to_string())?).into(), Vec::new()))
    })
    .await
}

/// `POST /key/delete`: revokes keys, all or none.
async fn delete(State(app): State<Arc<App>>, request: Request) -> Response {
    posted(app, request, |store, mut fields| {
        let (keys, aliases) = (texts(&mut fields, "keys")?, texts(&mut fields, "key_aliases")?);
        if keys.is_empty() && aliases.is_empty() {
            return Err(wrong("keys", "'keys' or 'key_aliases' is needed: which keys to delete"));
        }
        let mut found: Vec<KeyInfo> = keys.iter().map(|key| find(store, key)).collect::<Result<_, _>>()?;
        for alias in &aliases {
            found.push(store.find(alias).map_err(|e| failed(&e))?);
        }
        let ids: Vec<KeyId> = found.iter().map(|key| key.id).collect();
        store.revoke_all(&ids).map_err(|e| failed(&e))?;
        let tokens: Vec<String> =
            if aliases.is_empty() { keys } else { found.iter().map(|k| k.id.to_string()).collect() };
        Ok((json!({"deleted_keys": tokens}), Vec::new()))
    })
    .await
}

/// `GET /key/info?key=`
async fn info(State(app): State<Arc<App>>, Query(query): Query<Params>, request: Request) -> Response {
    queried(app, request, move |store| {
        let key = query.get("key").ok_or_else(|| wrong("key", "'key' is needed: the key, or its token"))?;
        Ok(json!({"key": key, "info": shapes::key(&find(store, key)?)}))
    })
    .await
}

/// `GET /key/list?page=&size=&key_alias=&user_id=&team_id=&return_full_object=`
async fn list(State(app): State<Arc<App>>, Query(query): Query<Params>, request: Request) -> Response {
    queried(app, request, move |store| {
        if query.get("organization_id").is_some_and(|v| !v.is_empty()) {
            let what = "'organization_id' is not supported: there are no organizations here";
            return Err(wrong("organization_id", what));
        }
        let page = Page::read(&query, "size", 10, 100)?;
        let is_of = |name: &str, is: Option<&str>| {
            query.get(name).filter(|v| !v.is_empty()).is_none_or(|wanted| is == Some(wanted.as_str()))
        };
        let matches = |k: &KeyInfo| {
            let (token, alias) = (k.id.to_string(), (k.name != UNNAMED).then_some(k.name.as_str()));
            k.revoked.is_none()
                && is_of("key_hash", Some(&token))
                && is_of("key_alias", alias)
                && is_of("user_id", owner(k, OwnerKind::User))
                && is_of("team_id", owner(k, OwnerKind::Team))
        };
        let all: Vec<KeyInfo> = store.list().into_iter().filter(matches).collect();
        let full = match query.get("return_full_object") {
            Some(text) => boolean("return_full_object", &text.as_str().into())?.unwrap_or(false),
            None => false,
        };
        let shown = |k: &KeyInfo| if full { shapes::key(k).into() } else { Value::from(k.id.to_string()) };
        let keys: Vec<Value> = page.of(&all).map(shown).collect();
        let (current, _, pages) = page.figures(all.len());
        Ok(json!({"keys": keys, "total_count": all.len(), "current_page": current, "total_pages": pages}))
    })
    .await
}
