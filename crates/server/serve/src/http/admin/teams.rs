//! `/team/...`: teams, whose limits apply to all of their keys together.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Query, Request, State};
use axum::response::Response;
use axum::routing::{get, post};
use octet_api::{ApiError, ErrorKind};
use octet_keys::{KeyInfo, OwnerKind, Store};
use serde_json::{Map, Value, json};

use super::access::{Page, Params, failed, is_nothing, needed, posted, queried, texts, wrong};
use super::changes::{Changes, EMAIL, change, last_of_each, set_blocked, transact};
use super::rules::KeyRules;
use super::settings::{Entity, Settings, member, read};
use super::shapes;
use super::users::{new_id, with_email};
use crate::app::App;

/// The endpoints.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/team/new", post(new))
        .route("/team/update", post(update))
        .route("/team/delete", post(delete))
        .route("/team/block", post(block))
        .route("/team/unblock", post(unblock))
        .route("/team/member_add", post(member_add))
        .route("/team/member_delete", post(member_delete))
        .route("/team/info", get(info))
        .route("/team/list", get(list))
        .route("/v2/team/list", get(list_pages))
        .route("/team/available", get(available))
}

const ID: &str = "the id of the team";

/// `POST /team/new`
async fn new(State(app): State<Arc<App>>, request: Request) -> Response {
    let rules = KeyRules::of(&app);
    posted(app, request, move |store, mut fields| {
        rules.fill_team(&mut fields);
        let id = fields.shift_remove("team_id").filter(|v| !v.is_null());
        let id = id.map(|v| read::<String>("team_id", v)).transpose()?.flatten().unwrap_or_else(new_id);
        let mut settings = Settings::read(Entity::Team, fields, None)?;
        let members = last_of_each(std::mem::take(&mut settings.profile.members).into_iter());
        settings.profile.members.clone_from(&members);
        let notes = std::mem::take(&mut settings.notes);
        transact(store, |all| {
            all.create_owner(OwnerKind::Team, &id, settings)?;
            members.iter().try_for_each(|member| all.ensure_user(&member.user, None, &rules).map(drop))
        })?;
        Ok((shapes::team(&find(store, &id)?).into(), notes))
    })
    .await
}

/// `POST /team/update`: changes the limits of a team. Fields that are not named stay.
async fn update(State(app): State<Arc<App>>, request: Request) -> Response {
    posted(app, request, |store, mut fields| {
        let old = find(store, &needed(&mut fields, "team_id", ID)?)?;
        if fields.get("members_with_roles").is_some_and(|v| !is_nothing(v)) {
            let what = "members are changed with /team/member_add and /team/member_delete";
            return Err(wrong("members_with_roles", what));
        }
        fields.shift_remove("members_with_roles");
        let notes = change(store, Entity::Team, old.id, fields)?;
        let data = shapes::team(&find(store, &old.name)?);
        Ok((json!({"team_id": old.name, "data": data}), notes))
    })
    .await
}

/// `POST /team/delete`: deletes teams and their keys.
async fn delete(State(app): State<Arc<App>>, request: Request) -> Response {
    posted(app, request, |store, mut fields| {
        let ids = texts(&mut fields, "team_ids")?;
        if ids.is_empty() {
            return Err(wrong("team_ids", "'team_ids' is needed: a list of ids"));
        }
        transact(store, |all| all.delete_owners(OwnerKind::Team, &ids))?;
        Ok((json!({"deleted_teams": ids}), Vec::new()))
    })
    .await
}

/// `POST /team/block`: refuses requests with keys of a team until it is unblocked.
async fn block(State(app): State<Arc<App>>, request: Request) -> Response {
    blocked(app, request, true).await
}

/// `POST /team/unblock`
async fn unblock(State(app): State<Arc<App>>, request: Request) -> Response {
    blocked(app, request, false).await
}

async fn blocked(app: Arc<App>, request: Request, blocked: bool) -> Response {
    posted(app, request, move |store, mut fields| {
        let team = find(store, &needed(&mut fields, "team_id", ID)?)?;
        set_blocked(store, team.id, blocked)?;
        Ok((shapes::team(&find(store, &team.name)?).into(), Vec::new()))
    })
    .await
}

/// `POST /team/member_add`: `member` is one member or a list. A user that does not exist is created.
async fn member_add(State(app): State<Arc<App>>, request: Request) -> Response {
    let rules = KeyRules::of(&app);
    posted(app, request, move |store, mut fields| {
        let team = needed(&mut fields, "team_id", ID)?;
        find(store, &team)?;
        let members: Vec<Map<String, Value>> = match fields.shift_remove("member") {
            Some(Value::Array(all)) => read("member", Value::Array(all))?.unwrap_or_default(),
            Some(one @ Value::Object(_)) => read("member", one)?.into_iter().collect(),
            _ => Vec::new(),
        };
        if members.is_empty() {
            return Err(wrong(
                "member",
                "'member' is needed: {\"user_id\": ..., \"role\": \"user\"}, or a list of these",
            ));
        }
        nothing_else(&fields, "members")?;
        let (users, notes) = transact(store, |all| {
            all.need_team(&team)?;
            enter(all, &team, members, &rules)
        })?;
        let teams = store.owners(OwnerKind::Team);
        let user = |id: &String| {
            let user = store.owner(OwnerKind::User, id).map_err(|e| failed(&e))?;
            Ok(Value::from(shapes::user_in(&teams, &user)))
        };
        let updated = users.iter().map(user).collect::<Result<Value, ApiError>>()?;
        let mut out = shapes::team(&find(store, &team)?);
        shapes::add(&mut out, json!({"updated_users": updated, "updated_team_memberships": []}));
        Ok((out.into(), notes))
    })
    .await
}

/// Adds users to a team. Returns their ids, and notes about fields without effect. An email address selects the user that has it; a user that
/// does not exist is created. A user selected by id keeps its email address, as in LiteLLM.
fn enter(
    all: &mut Changes<'_, '_>,
    team: &str,
    wanted: Vec<Map<String, Value>>,
    rules: &KeyRules,
) -> Result<(Vec<String>, Vec<String>), ApiError> {
    let mut notes = Vec::new();
    let mut by_email = all.users_by_email();
    let mut members = Vec::with_capacity(wanted.len());
    for mut fields in wanted {
        let email = fields.get(EMAIL).and_then(Value::as_str).filter(|e| !e.is_empty()).map(String::from);
        if fields.get("user_id").is_none_or(is_nothing)
            && let Some(email) = &email
        {
            let id = by_email.entry(email.clone()).or_insert_with(new_id);
            fields.insert("user_id".into(), id.as_str().into());
        }
        let member = member(&fields)?;
        let is_new = all.ensure_user(&member.user, email.as_deref(), rules)?;
        if let Some(email) = email {
            if !is_new && by_email.get(&email) != Some(&member.user) {
                let user = octet_api::shortened(&member.user);
                notes.push(format!(
                    "'user_email' has no effect: the user '{user}' exists; change it with /user/update"
                ));
            } else if by_email.insert(email, member.user.clone()).is_some_and(|user| user != member.user) {
                return Err(wrong(EMAIL, "another user has this 'user_email'"));
            }
        }
        members.push(member);
    }
    let users = last_of_each(members.iter().cloned()).into_iter().map(|member| member.user).collect();
    all.join(team, members)?;
    Ok((users, notes))
}

/// `POST /team/member_delete`: by `user_id` or `user_email`. The user and the keys stay.
async fn member_delete(State(app): State<Arc<App>>, request: Request) -> Response {
    posted(app, request, |store, mut fields| {
        let team = find(store, &needed(&mut fields, "team_id", ID)?)?;
        let mut text = |name: &str| match fields.shift_remove(name) {
            Some(Value::String(text)) if !text.is_empty() => Some(text),
            _ => None,
        };
        let (id, email) = (text("user_id"), text("user_email"));
        let user = id.or_else(|| Some(with_email(store, &email?)?.name));
        let user = user.ok_or_else(|| wrong("user_id", "'user_id' or 'user_email' of a member is needed"))?;
        if !team.profile.members.iter().any(|m| m.user == user) {
            return Err(ApiError::new(ErrorKind::NotFound, "this user is not a member of the team"));
        }
        nothing_else(&fields, "members")?;
        store
            .edit_members(&team.name, |members| members.retain(|m| m.user != user))
            .map_err(|e| failed(&e))?;
        Ok((shapes::team(&find(store, &team.name)?).into(), Vec::new()))
    })
    .await
}

/// Refuses further fields: they would be limits that are not enforced.
fn nothing_else(fields: &Map<String, Value>, whose: &str) -> Result<(), ApiError> {
    let Some((name, _)) = fields.iter().find(|(_, value)| !is_nothing(value)) else { return Ok(()) };
    let name = octet_api::shortened(name);
    Err(wrong(&name, format!("'{name}' is not supported for {whose} of a team here: leave it out")))
}

/// `GET /team/info?team_id=`
async fn info(State(app): State<Arc<App>>, Query(query): Query<Params>, request: Request) -> Response {
    queried(app, request, move |store| {
        let id = query.get("team_id").filter(|id| !id.is_empty());
        let team = find(store, id.ok_or_else(|| wrong("team_id", "'team_id' is needed"))?)?;
        let keys = shapes::keys_of(store, OwnerKind::Team, &team.name);
        Ok(json!({"team_id": team.name, "team_info": shapes::team(&team), "keys": keys, "team_memberships": []}))
    })
    .await
}

/// The teams that a query names by id.
fn wanted(store: &Store, query: &Params) -> Result<Vec<KeyInfo>, ApiError> {
    let text = |name: &str| query.get(name).filter(|v| !v.is_empty());
    if text("organization_id").is_some() {
        let what = "'organization_id' is not supported: there are no organizations here";
        return Err(wrong("organization_id", what));
    }
    let mut all = store.owners(OwnerKind::Team);
    all.retain(|t| {
        let alias = t.profile.about.get("team_alias").and_then(Value::as_str).unwrap_or_default();
        text("user_id").is_none_or(|user| t.profile.members.iter().any(|m| m.user == *user))
            && text("team_id").is_none_or(|id| *id == t.name)
            && text("team_alias").is_none_or(|part| alias.contains(part.as_str()))
    });
    Ok(all)
}

/// `GET /team/list?user_id=`
async fn list(State(app): State<Arc<App>>, Query(query): Query<Params>, request: Request) -> Response {
    queried(app, request, move |store| {
        let team = |t: &KeyInfo| {
            let mut out = shapes::team(t);
            let keys = shapes::keys_of(store, OwnerKind::Team, &t.name);
            shapes::add(&mut out, json!({"keys": keys, "team_memberships": []}));
            Value::from(out)
        };
        Ok(wanted(store, &query)?.iter().map(team).collect())
    })
    .await
}

/// `GET /v2/team/list?page=&page_size=&user_id=&team_id=&team_alias=`
async fn list_pages(State(app): State<Arc<App>>, Query(query): Query<Params>, request: Request) -> Response {
    queried(app, request, move |store| {
        let page = Page::read(&query, "page_size", 10, 100)?;
        let all = wanted(store, &query)?;
        let teams: Value = page.of(&all).map(|t| Value::from(shapes::team(t))).collect();
        let (current, size, pages) = page.figures(all.len());
        Ok(json!({"teams": teams, "total": all.len(), "page": current, "page_size": size, "total_pages": pages}))
    })
    .await
}

/// `GET /team/available`: teams that users may join by themselves; always empty.
async fn available(State(app): State<Arc<App>>, request: Request) -> Response {
    queried(app, request, |_| Ok(json!([]))).await
}

/// A team by id.
fn find(store: &Store, id: &str) -> Result<KeyInfo, ApiError> {
    store.owner(OwnerKind::Team, id).map_err(|e| failed(&e))
}
