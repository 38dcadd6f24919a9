//! `/spend/...`, `/global/spend/report`: what keys, users, teams and tags cost.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use axum::Router;
use axum::extract::{Query, Request, State};
use axum::response::Response;
use axum::routing::get;
use octet_api::{ApiError, shortened};
use octet_keys::{
    Filter, KeyId, KeyInfo, OWN_USER, OwnerKind, Store, TagRow, UsageRow, Usd, calendar, own_key,
};
use serde_json::{Map, Value, json};

use super::access::{Params, failed, find, queried, wrong};
use super::shapes::owner;
use crate::app::App;

/// The endpoints.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/spend/logs", get(logs))
        .route("/spend/tags", get(tags))
        .route("/global/spend/report", get(report))
}

/// All keys, also those that were deleted, and the server's own.
type Keys = HashMap<KeyId, KeyInfo>;

/// LiteLLM's name for the server's own key.
const OWN_KEY: &str = "litellm_proxy_master_key";

/// The public id of a key; never its secret.
fn token(id: KeyId) -> String {
    if id == own_key() { OWN_KEY.into() } else { id.to_string() }
}

/// `GET /spend/logs?start_date=&end_date=&api_key=&user_id=&team_id=`: spend by day. Single requests are not stored.
async fn logs(State(app): State<Arc<App>>, Query(query): Query<Params>, request: Request) -> Response {
    let own = names_own_key(&app, &query);
    queried(app, request, move |store| {
        let (keys, rows) = used(store, &query, own)?;
        let of = |row: &UsageRow, kind| keys.get(&row.key).and_then(|k| owner(k, kind)).map(String::from);
        let day = |(day, rows): (&i64, &Vec<UsageRow>)| {
            let mut out = Map::from_iter(sums(rows));
            out.insert("startTime".into(), calendar::iso(*day).into());
            out.insert("spend".into(), out["total_cost"].clone());
            out.insert("requests".into(), rows.iter().map(|r| r.requests).sum::<u64>().into());
            out.insert("models".into(), by(rows, |r| Some(r.model.clone())).into());
            out.insert("api_keys".into(), by(rows, |r| Some(token(r.key))).into());
            out.insert("users".into(), by(rows, |r| of(r, OwnerKind::User)).into());
            out.insert("teams".into(), by(rows, |r| of(r, OwnerKind::Team)).into());
            Value::from(out)
        };
        Ok(grouped(rows, |r| r.day).iter().map(day).collect())
    })
    .await
}

/// `GET /global/spend/report?start_date=&end_date=&group_by=&api_key=&internal_user_id=&team_id=`: usage of each team by day,
/// or spend of each key by model. With one key or user it is always the latter.
async fn report(State(app): State<Arc<App>>, Query(query): Query<Params>, request: Request) -> Response {
    let own = names_own_key(&app, &query);
    queried(app, request, move |store| {
        let of_one = ["api_key", "internal_user_id"].iter().any(|name| query.contains_key(*name));
        let group = query.get("group_by").map_or("team", String::as_str);
        let (keys, rows) = used(store, &query, own)?;
        match group {
            _ if of_one => Ok(by_key(&keys, rows)),
            "api_key" => Ok(by_key(&keys, rows)),
            "team" => Ok(by_team(store, &keys, rows)),
            other => {
                let what = format!("'group_by={}' is not supported: use team or api_key", shortened(other));
                Err(wrong("group_by", what))
            }
        }
    })
    .await
}

/// Whether a query selects the server's own key.
fn names_own_key(app: &App, query: &Params) -> bool {
    let is_own = |key: &String| key == OWN_KEY || app.gateway().is_some_and(|g| g.is_own_key(key));
    query.get("api_key").is_some_and(is_own)
}

fn by_key(keys: &Keys, rows: Vec<UsageRow>) -> Value {
    let key = |(key, rows): (&KeyId, &Vec<UsageRow>)| {
        let model = |(name, rows): (&String, &Vec<UsageRow>)| {
            let mut out = Map::from_iter(sums(rows));
            out.insert("model".into(), name.clone().into());
            Value::from(out)
        };
        let known = keys.get(key);
        let mut out = Map::from_iter(sums(rows));
        out.insert("api_key".into(), token(*key).into());
        out.insert("key_alias".into(), known.map(|k| k.name.clone()).into());
        out.insert("user_id".into(), known.and_then(|k| k.profile.user.clone()).into());
        out.insert("team_id".into(), known.and_then(|k| k.profile.team.clone()).into());
        out.insert(
            "model_details".into(),
            grouped(rows.clone(), |r| r.model.clone()).iter().map(model).collect(),
        );
        Value::from(out)
    };
    grouped(rows, |r| r.key).iter().map(key).collect()
}

fn by_team(store: &Store, keys: &Keys, rows: Vec<UsageRow>) -> Value {
    let alias = |t: &KeyInfo| t.profile.about.get("team_alias").and_then(Value::as_str).map(String::from);
    let names: HashMap<String, String> = store
        .owners(OwnerKind::Team)
        .iter()
        .map(|t| (t.name.clone(), alias(t).unwrap_or_else(|| t.name.clone())))
        .collect();
    let of = |row: &UsageRow| keys.get(&row.key).and_then(|k| k.profile.team.clone());
    let team = |(id, rows): (&Option<String>, &Vec<UsageRow>)| {
        let detail = |r: &UsageRow| {
            let key = keys.get(&r.key).map_or_else(|| token(r.key), |k| k.name.clone());
            json!({"model": r.model, "api_key": key, "spend": r.cost.dollars(), "total_tokens": r.usage.tokens()})
        };
        let name = id.as_ref().map(|id| names.get(id).unwrap_or(id).clone());
        json!({
            "team_id": id, "team_name": name.unwrap_or_else(|| "Unassigned Team".into()), "total_spend": cost(rows).dollars(),
            "metadata": rows.iter().map(detail).collect::<Value>(),
        })
    };
    let day = |(day, rows): (&i64, &Vec<UsageRow>)| {
        let teams: Value = grouped(rows.clone(), of).iter().map(team).collect();
        json!({"group_by_day": calendar::iso(*day), "teams": teams})
    };
    grouped(rows, |r| r.day).iter().map(day).collect()
}

/// `GET /spend/tags?start_date=&end_date=`: spend by request tag.
async fn tags(State(app): State<Arc<App>>, Query(query): Query<Params>, request: Request) -> Response {
    queried(app, request, move |store| {
        let (from, to) = (day(&query, "start_date")?, day(&query, "end_date")?);
        let tag = |row: &TagRow| {
            json!({
                "individual_request_tag": row.tag, "log_count": row.requests, "total_spend": row.cost.dollars(),
                "total_input_tokens": row.input, "total_output_tokens": row.output,
            })
        };
        Ok(store.tags(from, to).map_err(|e| failed(&e))?.iter().map(tag).collect())
    })
    .await
}

/// A date in a query string.
fn day(query: &Params, name: &str) -> Result<Option<i64>, ApiError> {
    let Some(text) = query.get(name) else { return Ok(None) };
    let date = text.split(['T', ' ']).next().unwrap_or("");
    calendar::parse(date).map(Some).ok_or_else(|| wrong(name, format!("'{name}' is a date like 2026-11-22")))
}

/// Usage between two days, of one key, user or team, or all; and all keys.
fn used(store: &Store, query: &Params, own: bool) -> Result<(Keys, Vec<UsageRow>), ApiError> {
    let key = match query.get("api_key") {
        Some(_) if own => Some(own_key()),
        Some(key) => Some(find(store, key)?.id),
        None => None,
    };
    let filter =
        Filter { key, model: None, from_day: day(query, "start_date")?, to_day: day(query, "end_date")? };
    let mut own = store.own();
    (own.name, own.profile.user) = (OWN_KEY.into(), Some(OWN_USER.into()));
    let keys: Keys = store.list().into_iter().chain([own]).map(|k| (k.id, k)).collect();
    let text = |name: &str| query.get(name).filter(|v| !v.is_empty());
    let (user, team) = (text("user_id").or_else(|| text("internal_user_id")), text("team_id"));
    let is = |row: &UsageRow, kind, wanted: Option<&String>| {
        wanted.is_none_or(|id| keys.get(&row.key).and_then(|k| owner(k, kind)) == Some(id))
    };
    let mut rows = store.usage(&filter).map_err(|e| failed(&e))?;
    rows.retain(|row| is(row, OwnerKind::User, user) && is(row, OwnerKind::Team, team));
    Ok((keys, rows))
}

/// Groups rows, ordered by group.
fn grouped<T: Ord>(rows: Vec<UsageRow>, of: impl Fn(&UsageRow) -> T) -> BTreeMap<T, Vec<UsageRow>> {
    let mut out: BTreeMap<T, Vec<UsageRow>> = BTreeMap::new();
    for row in rows {
        out.entry(of(&row)).or_default().push(row);
    }
    out
}

fn cost(rows: &[UsageRow]) -> Usd {
    rows.iter().fold(Usd::ZERO, |sum, r| sum.plus(r.cost))
}

/// Sums of cost and tokens.
fn sums(rows: &[UsageRow]) -> [(String, Value); 3] {
    let input: u64 = rows.iter().map(|r| r.usage.input).sum();
    let output: u64 = rows.iter().map(|r| r.usage.output).sum();
    [
        ("total_cost".into(), cost(rows).dollars().into()),
        ("total_input_tokens".into(), input.into()),
        ("total_output_tokens".into(), output.into()),
    ]
}

/// Cost of each group.
fn by(rows: &[UsageRow], of: impl Fn(&UsageRow) -> Option<String>) -> Map<String, Value> {
    let mut costs: BTreeMap<String, Usd> = BTreeMap::new();
    for row in rows {
        if let Some(name) = of(row) {
            let cost = costs.entry(name).or_insert(Usd::ZERO);
            *cost = cost.plus(row.cost);
        }
    }
    costs.into_iter().map(|(name, cost)| (name, cost.dollars().into())).collect()
}
