//! `/customer/...` (also `/end_user/...`): end users, whom requests name as `user`, and their budgets.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Query, Request, State};
use axum::response::Response;
use axum::routing::{get, post};
use octet_api::ApiError;
use octet_keys::{KeyInfo, OwnerKind, Store};
use serde_json::{Map, Value, json};

use super::access::{Params, failed, needed, posted, queried, texts, wrong};
use super::changes::{change, set_all_blocked, transact};
use super::settings::{Entity, Settings};
use super::shapes;
use crate::app::App;

/// The endpoints.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/customer/new", post(new))
        .route("/customer/update", post(update))
        .route("/customer/delete", post(delete))
        .route("/customer/block", post(block))
        .route("/customer/unblock", post(unblock))
        .route("/customer/info", get(info))
        .route("/customer/list", get(list))
        .route("/end_user/new", post(new))
        .route("/end_user/update", post(update))
        .route("/end_user/delete", post(delete))
        .route("/end_user/block", post(block))
        .route("/end_user/unblock", post(unblock))
        .route("/end_user/info", get(info))
        .route("/end_user/list", get(list))
}

const ID: &str = "the name that requests give as 'user'";

/// LiteLLM's name of a field of end users is another one than of users.
fn renamed(mut fields: Map<String, Value>) -> Map<String, Value> {
    if let Some(alias) = fields.shift_remove("alias") {
        fields.insert("user_alias".into(), alias);
    }
    fields
}

/// `POST /customer/new`
async fn new(State(app): State<Arc<App>>, request: Request) -> Response {
    posted(app, request, |store, mut fields| {
        let id = needed(&mut fields, "user_id", ID)?;
        let settings = Settings::read(Entity::EndUser, renamed(fields), None)?;
        let notes = settings.notes.clone();
        transact(store, |all| all.create_owner(OwnerKind::EndUser, &id, settings))?;
        Ok((shapes::end_user(&find(store, &id)?).into(), notes))
    })
    .await
}

/// `POST /customer/update`: changes an end user. Fields that are not named stay.
async fn update(State(app): State<Arc<App>>, request: Request) -> Response {
    posted(app, request, |store, mut fields| {
        let old = find(store, &needed(&mut fields, "user_id", ID)?)?;
        let notes = change(store, Entity::EndUser, old.id, renamed(fields))?;
        Ok((shapes::end_user(&find(store, &old.name)?).into(), notes))
    })
    .await
}

/// `POST /customer/delete`
async fn delete(State(app): State<Arc<App>>, request: Request) -> Response {
    posted(app, request, |store, mut fields| {
        let ids: Vec<String> = wanted(store, &mut fields)?.into_iter().map(|user| user.name).collect();
        transact(store, |all| all.delete_owners(OwnerKind::EndUser, &ids))?;
        Ok((json!({"deleted_customers": ids.len()}), Vec::new()))
    })
    .await
}

/// `POST /customer/block`: refuses requests of these end users until they are unblocked. Those that are not known are created.
async fn block(State(app): State<Arc<App>>, request: Request) -> Response {
    posted(app, request, |store, mut fields| {
        let ids = ids(&mut fields)?;
        transact(store, |all| {
            for id in &ids {
                if !all.has_end_user(id) {
                    all.create_owner(
                        OwnerKind::EndUser,
                        id,
                        Settings::read(Entity::EndUser, Map::new(), None)?,
                    )?;
                }
            }
            Ok(())
        })?;
        blocked(store, &ids, true)
    })
    .await
}

/// `POST /customer/unblock`
async fn unblock(State(app): State<Arc<App>>, request: Request) -> Response {
    posted(app, request, |store, mut fields| {
        let ids: Vec<String> = wanted(store, &mut fields)?.into_iter().map(|user| user.name).collect();
        blocked(store, &ids, false)
    })
    .await
}

fn blocked(store: &Store, ids: &[String], blocked: bool) -> Result<(Value, Vec<String>), ApiError> {
    let found = |store: &Store| ids.iter().map(|id| find(store, id)).collect::<Result<Vec<KeyInfo>, _>>();
    set_all_blocked(store, &found(store)?.iter().map(|user| user.id).collect::<Vec<_>>(), blocked)?;
    let users: Vec<Value> = found(store)?.iter().map(|user| shapes::end_user(user).into()).collect();
    let name = if blocked { "blocked_users" } else { "unblocked_users" };
    Ok((json!({name: users}), Vec::new()))
}

fn ids(fields: &mut Map<String, Value>) -> Result<Vec<String>, ApiError> {
    let ids = texts(fields, "user_ids")?;
    if ids.is_empty() { Err(wrong("user_ids", "'user_ids' is needed: a list of names")) } else { Ok(ids) }
}

/// The end users that a body names. Fails if one does not exist.
fn wanted(store: &Store, fields: &mut Map<String, Value>) -> Result<Vec<KeyInfo>, ApiError> {
    ids(fields)?.iter().map(|id| find(store, id)).collect()
}

/// `GET /customer/info?end_user_id=`
async fn info(State(app): State<Arc<App>>, Query(query): Query<Params>, request: Request) -> Response {
    queried(app, request, move |store| {
        let id = query.get("end_user_id").filter(|id| !id.is_empty());
        let id = id.ok_or_else(|| wrong("end_user_id", "'end_user_id' is needed"))?;
        Ok(shapes::end_user(&find(store, id)?).into())
    })
    .await
}

/// `GET /customer/list`
async fn list(State(app): State<Arc<App>>, request: Request) -> Response {
    queried(app, request, |store| {
        Ok(store.owners(OwnerKind::EndUser).iter().map(|user| Value::from(shapes::end_user(user))).collect())
    })
    .await
}

fn find(store: &Store, id: &str) -> Result<KeyInfo, ApiError> {
    store.owner(OwnerKind::EndUser, id).map_err(|e| failed(&e))
}
