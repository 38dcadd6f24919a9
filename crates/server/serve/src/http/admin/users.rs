//! `/user/...`: users, whose limits apply to all of their keys together.

use std::collections::HashSet;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Query, Request, State};
use axum::response::Response;
use axum::routing::{get, post};
use octet_api::{ApiError, ErrorKind};
use octet_keys::{KeyInfo, Member, OwnerKind, Store};
use serde_json::{Map, Value, json};

use super::access::{Page, Params, failed, posted, queried, texts, wrong};
use super::changes::{EMAIL, change, set_all_blocked, transact};
use super::rules::KeyRules;
use super::settings::{Entity, Settings, boolean, read};
use super::{keys, shapes};
use crate::app::App;

/// The endpoints.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/user/new", post(new))
        .route("/user/update", post(update))
        .route("/user/delete", post(delete))
        .route("/user/block", post(block))
        .route("/user/unblock", post(unblock))
        .route("/user/info", get(info))
        .route("/v2/user/info", get(info_flat))
        .route("/user/list", get(list))
}

/// `POST /user/new`: creates a user, and a key for it unless `auto_create_key` is false.
async fn new(State(app): State<Arc<App>>, request: Request) -> Response {
    let rules = KeyRules::of(&app);
    posted(app, request, move |store, mut fields| {
        let id = fields.shift_remove("user_id").filter(|v| !v.is_null());
        let id = id.map(|v| read::<String>("user_id", v)).transpose()?.flatten().unwrap_or_else(new_id);
        let with_key = fields.shift_remove("auto_create_key").unwrap_or_default();
        let with_key = boolean("auto_create_key", &with_key)?.unwrap_or(true);
        rules.fill_user(&mut fields);
        let teams = texts(&mut fields, "teams")?;
        // These fields belong to the key.
        let mut own = Map::new();
        for name in ["key_alias", "duration"] {
            own.insert(name.into(), fields.shift_remove(name).unwrap_or_default());
        }
        rules.fill(&mut own);
        // The key belongs to this user, even if the configuration has other defaults.
        own.retain(|name, _| !["user_id", "team_id"].contains(&name.as_str()));
        rules.enforce(&mut own, true)?;
        let settings = Settings::read(Entity::User, fields, None)?;
        let mut key = Settings::read(Entity::Key, own, None)?;
        key.profile.user = Some(id.clone());
        let notes = settings.notes.clone();
        let made = transact(store, |all| {
            all.create_owner(OwnerKind::User, &id, settings)?;
            for team in &teams {
                all.join(team, vec![Member { user: id.clone(), role: "user".into() }])?;
            }
            with_key.then(|| all.create(key)).transpose()
        })?;
        let mut out = made.map_or(Ok(Map::new()), |made| keys::created(store, made))?;
        out.extend(shapes::user(store, &find(store, &id)?));
        Ok((out.into(), notes))
    })
    .await
}

/// `POST /user/update`: changes the limits of a user. Fields that are not named stay.
async fn update(State(app): State<Arc<App>>, request: Request) -> Response {
    posted(app, request, |store, mut fields| {
        let old = match fields.shift_remove("user_id").filter(|v| !v.is_null()) {
            Some(id) => find(store, &read::<String>("user_id", id)?.unwrap_or_default())?,
            None => {
                let email = fields.get("user_email").and_then(Value::as_str);
                let email = email.ok_or_else(|| wrong("user_id", "'user_id' or 'user_email' is needed"))?;
                let none = || ApiError::new(ErrorKind::NotFound, "there is no user with this 'user_email'");
                with_email(store, email).ok_or_else(none)?
            }
        };
        let notes = change(store, Entity::User, old.id, fields)?;
        let data = shapes::user(store, &find(store, &old.name)?);
        Ok((json!({"user_id": old.name, "data": data}), notes))
    })
    .await
}

/// `POST /user/delete`: deletes users and their keys; returns their number.
async fn delete(State(app): State<Arc<App>>, request: Request) -> Response {
    posted(app, request, |store, mut fields| {
        let users: Vec<String> = wanted(store, &mut fields)?.into_iter().map(|user| user.name).collect();
        transact(store, |all| all.delete_owners(OwnerKind::User, &users))?;
        Ok((users.len().into(), Vec::new()))
    })
    .await
}

/// `POST /user/block`: refuses requests with keys of these users until they are unblocked.
async fn block(State(app): State<Arc<App>>, request: Request) -> Response {
    blocked(app, request, true).await
}

/// `POST /user/unblock`
async fn unblock(State(app): State<Arc<App>>, request: Request) -> Response {
    blocked(app, request, false).await
}

async fn blocked(app: Arc<App>, request: Request, blocked: bool) -> Response {
    posted(app, request, move |store, mut fields| {
        let users = wanted(store, &mut fields)?;
        set_all_blocked(store, &users.iter().map(|user| user.id).collect::<Vec<_>>(), blocked)?;
        let teams = store.owners(OwnerKind::Team);
        let shape = |u: &KeyInfo| Ok(Value::from(shapes::user_in(&teams, &find(store, &u.name)?)));
        let users = users.iter().map(shape).collect::<Result<Value, ApiError>>()?;
        let name = if blocked { "blocked_users" } else { "unblocked_users" };
        Ok((json!({name: users}), Vec::new()))
    })
    .await
}

/// The users that a body names, without duplicates. Fails if one does not exist.
fn wanted(store: &Store, fields: &mut Map<String, Value>) -> Result<Vec<KeyInfo>, ApiError> {
    let mut ids = texts(fields, "user_ids")?;
    let mut seen = HashSet::new();
    ids.retain(|id| seen.insert(id.clone()));
    if ids.is_empty() {
        return Err(wrong("user_ids", "'user_ids' is needed: a list of ids"));
    }
    ids.iter().map(|id| find(store, id)).collect()
}

/// `GET /user/info?user_id=`
async fn info(State(app): State<Arc<App>>, Query(query): Query<Params>, request: Request) -> Response {
    queried(app, request, move |store| {
        let user = named(store, &query)?;
        let is_member = |t: &KeyInfo| t.profile.members.iter().any(|m| m.user == user.name);
        let teams = store.owners(OwnerKind::Team);
        let teams: Value =
            teams.iter().filter(|t| is_member(t)).map(|t| Value::from(shapes::team(t))).collect();
        Ok(json!({
            "user_id": user.name, "user_info": shapes::user(store, &user),
            "keys": shapes::keys_of(store, OwnerKind::User, &user.name), "teams": teams,
        }))
    })
    .await
}

/// `GET /v2/user/info?user_id=`: the user alone.
async fn info_flat(State(app): State<Arc<App>>, Query(query): Query<Params>, request: Request) -> Response {
    queried(app, request, move |store| Ok(shapes::user(store, &named(store, &query)?).into())).await
}

fn named(store: &Store, query: &Params) -> Result<KeyInfo, ApiError> {
    let id = query.get("user_id").filter(|id| !id.is_empty());
    find(store, id.ok_or_else(|| wrong("user_id", "'user_id' is needed"))?)
}

/// `GET /user/list?page=&page_size=&user_ids=&user_email=&role=&team=`
async fn list(State(app): State<Arc<App>>, Query(query): Query<Params>, request: Request) -> Response {
    queried(app, request, move |store| {
        let page = Page::read(&query, "page_size", 25, 100)?;
        let text = |name: &str| query.get(name).filter(|v| !v.is_empty());
        let matches = |u: &KeyInfo| {
            let about = |name: &str| u.profile.about.get(name).and_then(Value::as_str).unwrap_or_default();
            text("user_ids").is_none_or(|ids| ids.split(',').any(|id| id == u.name))
                && text("user_email").is_none_or(|part| about("user_email").contains(part.as_str()))
                && text("role").is_none_or(|role| about("user_role") == role)
        };
        let mut all = store.owners(OwnerKind::User);
        all.retain(matches);
        if let Some(team) = text("team") {
            let members = find_team(store, team)?.profile.members;
            all.retain(|u| members.iter().any(|m| m.user == u.name));
        }
        let (keys, teams) = (store.list(), store.owners(OwnerKind::Team));
        let user = |u: &KeyInfo| {
            let mut out = shapes::user_in(&teams, u);
            let is_its = |k: &&KeyInfo| k.revoked.is_none() && k.profile.user.as_deref() == Some(&u.name);
            out.insert("key_count".into(), keys.iter().filter(is_its).count().into());
            Value::from(out)
        };
        let users: Value = page.of(&all).map(user).collect();
        let (current, size, pages) = page.figures(all.len());
        Ok(json!({"users": users, "total": all.len(), "page": current, "page_size": size, "total_pages": pages}))
    })
    .await
}

/// A user by id.
fn find(store: &Store, id: &str) -> Result<KeyInfo, ApiError> {
    store.owner(OwnerKind::User, id).map_err(|e| failed(&e))
}

fn find_team(store: &Store, id: &str) -> Result<KeyInfo, ApiError> {
    store.owner(OwnerKind::Team, id).map_err(|e| failed(&e))
}

/// The user with this email address.
pub fn with_email(store: &Store, email: &str) -> Option<KeyInfo> {
    let is_it = |u: &KeyInfo| u.profile.about.get(EMAIL).and_then(Value::as_str) == Some(email);
    store.owners(OwnerKind::User).into_iter().find(is_it)
}

/// An id for a user or team that was created without one.
pub fn new_id() -> String {
    let n = fastrand::u128(..);
    let parts = [n >> 96, (n >> 80) & 0xffff, (n >> 64) & 0x0fff | 0x4000, (n >> 48) & 0x3fff | 0x8000];
    let [a, b, c, d] = parts;
    format!("{a:08x}-{b:04x}-{c:04x}-{d:04x}-{:012x}", n & 0xffff_ffff_ffff)
}
