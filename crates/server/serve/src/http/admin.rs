//! Virtual keys and what they spent, over HTTP, in the shapes of LiteLLM's proxy: `/key/...`, `/spend/logs`, `/global/spend/report`. For the server's
//! own key. Called by the routes.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use axum::Router;
use axum::extract::{Query, Request, State};
use axum::response::Response;
use axum::routing::{get, post};
use octet_api::{ApiError, ErrorKind, rfc3339};
use octet_keys::{
    Budget, Error, Filter, KeyId, KeyInfo, Limits, Period, Store, TagRow, UsageRow, Usd, calendar,
};
use serde_json::{Map, Value, json};

use super::call::{Call, call, caller};
use super::error::{Dialect, json as json_response};
use crate::app::App;
use crate::gateway::Caller;
use crate::warnings;

/// The endpoints.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/key/generate", post(generate))
        .route("/key/update", post(update))
        .route("/key/delete", post(delete))
        .route("/key/info", get(info))
        .route("/key/list", get(list))
        .route("/spend/logs", get(logs))
        .route("/spend/tags", get(tags))
        .route("/global/spend/report", get(report))
}

type Asked = HashMap<String, String>;

fn wrong(field: &str, what: impl Into<String>) -> ApiError {
    ApiError::invalid(field, what.into())
}

/// The file of keys, for who may manage it.
fn store(app: &App, who: &Caller) -> Result<Arc<Store>, ApiError> {
    if !matches!(who, Caller::Trusted) {
        let what = "this API key is for asking models; the server's own key is needed here";
        return Err(ApiError::new(ErrorKind::Permission, what));
    }
    app.gateway().and_then(|g| g.store().cloned()).ok_or_else(|| {
        let what = "there are no virtual keys: set keys.database in the configuration";
        ApiError::new(ErrorKind::InvalidRequest, what)
    })
}

fn failed(e: &Error) -> ApiError {
    let kind = match e {
        Error::NoSuchKey(_) => ErrorKind::NotFound,
        Error::Invalid(_) | Error::Ambiguous { .. } => ErrorKind::InvalidRequest,
        _ => ErrorKind::Overloaded,
    };
    ApiError::new(kind, e.to_string())
}

/// Work on the file, which may wait for the disk.
async fn waiting<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|e| Err(ApiError::new(ErrorKind::Internal, format!("the file of keys: {e}"))))
}

/// A request with a body, whose JSON object is given to `answer`; that may also name fields that have no effect.
async fn posted(
    app: Arc<App>,
    request: Request,
    answer: impl FnOnce(&Store, Map<String, Value>) -> Result<(Value, Vec<String>), ApiError> + Send + 'static,
) -> Response {
    call(app, request, |c: Call| async move {
        let store = store(&c.app, &c.caller)?;
        let (body, _share) = c.body.into_parts();
        let (out, ignored) = waiting(move || {
            let fields = serde_json::from_slice(&body).map_err(|e| {
                ApiError::new(ErrorKind::InvalidRequest, format!("the body is no JSON object: {e}"))
            })?;
            answer(&store, fields)
        })
        .await?;
        let mut response = json_response(200, out.to_string());
        let texts: Vec<String> = ignored.iter().map(|name| format!("'{name}' is not kept here")).collect();
        warnings::tell(&mut response, texts.iter().map(String::as_str));
        Ok(response)
    })
    .await
}

/// A request without a body.
async fn asked(
    app: Arc<App>,
    request: Request,
    answer: impl FnOnce(&Store) -> Result<Value, ApiError> + Send + 'static,
) -> Response {
    let who = caller(&request);
    let path = request.uri().path().to_string();
    let result = match store(&app, &who) {
        Ok(store) => waiting(move || answer(&store)).await,
        Err(e) => Err(e),
    };
    match result {
        Ok(out) => json_response(200, out.to_string()),
        Err(e) => Dialect::of(&path).error(&e, None),
    }
}

/// `POST /key/generate`: a new key, whose secret is in the answer and nowhere else.
async fn generate(State(app): State<Arc<App>>, request: Request) -> Response {
    posted(app, request, |store, fields| {
        let mut wish = Wish::read(fields, None)?;
        wish.name.get_or_insert_with(|| UNNAMED.into());
        let name = wish.name.take().unwrap_or_default();
        check_alias(store, &name, None)?;
        let (secret, info) = store.create(&name, wish.limits).map_err(|e| failed(&e))?;
        let mut out = told(&info);
        out.insert("key".into(), secret.reveal().into());
        out.insert("token_id".into(), info.id.to_string().into());
        Ok((out.into(), wish.ignored))
    })
    .await
}

/// `POST /key/update`: other limits for a key. What is not named stays.
async fn update(State(app): State<Arc<App>>, request: Request) -> Response {
    posted(app, request, |store, mut fields| {
        let Some(Value::String(key)) = fields.shift_remove("key") else {
            return Err(wrong("key", "'key' is needed: the key, or its token"));
        };
        let old = find(store, &key)?;
        let wish = Wish::read(fields, Some(old.limits.clone()))?;
        if let Some(name) = &wish.name {
            check_alias(store, name, Some(old.id))?;
        }
        store.edit(old.id, wish.name.as_deref(), wish.limits).map_err(|e| failed(&e))?;
        let mut out = told(&find(store, &old.id.to_string())?);
        out.insert("key".into(), key.into());
        Ok((out.into(), wish.ignored))
    })
    .await
}

/// `POST /key/delete`: takes keys back. Either all of them are, or none.
async fn delete(State(app): State<Arc<App>>, request: Request) -> Response {
    posted(app, request, |store, fields| {
        let texts = |name: &str| -> Result<Vec<String>, ApiError> {
            let value = fields.get(name).filter(|v| !v.is_null()).cloned();
            let value = value.unwrap_or_else(|| json!([]));
            serde_json::from_value(value).map_err(|_| wrong(name, format!("'{name}' is a list of texts")))
        };
        let (keys, aliases) = (texts("keys")?, texts("key_aliases")?);
        if keys.is_empty() && aliases.is_empty() {
            return Err(wrong("keys", "'keys' or 'key_aliases' is needed: which keys to delete"));
        }
        let mut found: Vec<KeyInfo> = keys.iter().map(|key| find(store, key)).collect::<Result<_, _>>()?;
        for alias in &aliases {
            found.push(store.find(alias).map_err(|e| failed(&e))?);
        }
        for key in &found {
            store.revoke(key.id).map_err(|e| failed(&e))?;
        }
        let tokens: Vec<String> =
            if aliases.is_empty() { keys } else { found.iter().map(|k| k.id.to_string()).collect() };
        Ok((json!({"deleted_keys": tokens}), Vec::new()))
    })
    .await
}

/// `GET /key/info?key=`.
async fn info(State(app): State<Arc<App>>, Query(query): Query<Asked>, request: Request) -> Response {
    asked(app, request, move |store| {
        let key = query.get("key").ok_or_else(|| wrong("key", "'key' is needed: the key, or its token"))?;
        Ok(json!({"key": key, "info": told(&find(store, key)?)}))
    })
    .await
}

/// `GET /key/list?page=&size=&key_alias=&return_full_object=`.
async fn list(State(app): State<Arc<App>>, Query(query): Query<Asked>, request: Request) -> Response {
    asked(app, request, move |store| {
        for name in ["user_id", "team_id", "organization_id"] {
            if query.get(name).is_some_and(|v| !v.is_empty()) {
                return Err(wrong(
                    name,
                    format!("'{name}' is not supported: keys have no users and teams here"),
                ));
            }
        }
        let number = |name: &str, usual: usize, most: usize| match query.get(name) {
            Some(text) => {
                let n = text.parse::<usize>().ok().filter(|n| (1..=most).contains(n));
                n.ok_or_else(|| wrong(name, format!("'{name}' is a number from 1 to {most}")))
            }
            None => Ok(usual),
        };
        let (page, size) = (number("page", 1, usize::MAX)?, number("size", 10, 100)?);
        let is_asked = |k: &KeyInfo| {
            let token = query.get("key_hash").is_none_or(|h| *h == k.id.to_string());
            k.revoked.is_none() && token && query.get("key_alias").is_none_or(|a| *a == k.name)
        };
        let all: Vec<KeyInfo> = store.list().into_iter().filter(is_asked).collect();
        let full = query.get("return_full_object").is_some_and(|v| v == "true");
        let shown = all.iter().skip((page - 1).saturating_mul(size)).take(size);
        let keys: Vec<Value> =
            shown.map(|k| if full { told(k).into() } else { k.id.to_string().into() }).collect();
        let (count, pages) = (all.len(), all.len().div_ceil(size));
        Ok(json!({"keys": keys, "total_count": count, "current_page": page, "total_pages": pages}))
    })
    .await
}

/// `GET /spend/logs?start_date=&end_date=&api_key=`: what was spent on each day. Requests are not kept one by one.
async fn logs(State(app): State<Arc<App>>, Query(query): Query<Asked>, request: Request) -> Response {
    asked(app, request, move |store| {
        let mut days: BTreeMap<i64, Vec<UsageRow>> = BTreeMap::new();
        for row in used(store, &query)? {
            days.entry(row.day).or_default().push(row);
        }
        let day = |(day, rows): (&i64, &Vec<UsageRow>)| {
            let mut out = Map::from_iter(sums(rows));
            out.insert("startTime".into(), calendar::iso(*day).into());
            out.insert("spend".into(), out["total_cost"].clone());
            out.insert("requests".into(), rows.iter().map(|r| r.requests).sum::<u64>().into());
            out.insert("models".into(), by(rows, |r| r.model.clone()).into());
            out.insert("api_keys".into(), by(rows, |r| r.key.to_string()).into());
            out.insert("users".into(), json!({}));
            Value::from(out)
        };
        Ok(days.iter().map(day).collect())
    })
    .await
}

/// `GET /global/spend/report?start_date=&end_date=&group_by=api_key`: what each key spent, and on which models.
async fn report(State(app): State<Arc<App>>, Query(query): Query<Asked>, request: Request) -> Response {
    asked(app, request, move |store| {
        if let Some(other) = query.get("group_by").filter(|g| *g != "api_key") {
            let what = format!("'group_by={}' is not supported: it is api_key", octet_api::shortened(other));
            return Err(wrong("group_by", what));
        }
        let mut keys: BTreeMap<KeyId, Vec<UsageRow>> = BTreeMap::new();
        for row in used(store, &query)? {
            keys.entry(row.key).or_default().push(row);
        }
        let names: HashMap<KeyId, String> = store.list().into_iter().map(|k| (k.id, k.name)).collect();
        let key = |(key, rows): (&KeyId, &Vec<UsageRow>)| {
            let mut models: BTreeMap<&str, Vec<UsageRow>> = BTreeMap::new();
            for row in rows {
                models.entry(&row.model).or_default().push(row.clone());
            }
            let model = |(name, rows): (&&str, &Vec<UsageRow>)| {
                let mut out = Map::from_iter(sums(rows));
                out.insert("model".into(), (*name).into());
                Value::from(out)
            };
            let mut out = Map::from_iter(sums(rows));
            out.insert("api_key".into(), key.to_string().into());
            out.insert("key_alias".into(), names.get(key).cloned().into());
            out.insert("model_details".into(), models.iter().map(model).collect());
            Value::from(out)
        };
        Ok(keys.iter().map(key).collect())
    })
    .await
}

/// `GET /spend/tags?start_date=&end_date=`: what requests with each tag cost.
async fn tags(State(app): State<Arc<App>>, Query(query): Query<Asked>, request: Request) -> Response {
    asked(app, request, move |store| {
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

/// A day that a query names.
fn day(query: &Asked, name: &str) -> Result<Option<i64>, ApiError> {
    let Some(text) = query.get(name) else { return Ok(None) };
    let date = text.split(['T', ' ']).next().unwrap_or("");
    calendar::parse(date).map(Some).ok_or_else(|| wrong(name, format!("'{name}' is a date like 2026-11-22")))
}

/// Usage between two days, of one key or all.
fn used(store: &Store, query: &Asked) -> Result<Vec<UsageRow>, ApiError> {
    let key = query.get("api_key").map(|key| find(store, key)).transpose()?.map(|k| k.id);
    let filter =
        Filter { key, model: None, from_day: day(query, "start_date")?, to_day: day(query, "end_date")? };
    store.usage(&filter).map_err(|e| failed(&e))
}

/// Cost and tokens of some rows.
fn sums(rows: &[UsageRow]) -> [(String, Value); 3] {
    let cost = rows.iter().fold(Usd::ZERO, |sum, r| sum.plus(r.cost));
    let input: u64 = rows.iter().map(|r| r.usage.input).sum();
    let output: u64 = rows.iter().map(|r| r.usage.output).sum();
    [
        ("total_cost".into(), cost.dollars().into()),
        ("total_input_tokens".into(), input.into()),
        ("total_output_tokens".into(), output.into()),
    ]
}

/// What each of something cost.
fn by(rows: &[UsageRow], of: impl Fn(&UsageRow) -> String) -> Map<String, Value> {
    let mut costs: BTreeMap<String, Usd> = BTreeMap::new();
    for row in rows {
        let cost = costs.entry(of(row)).or_insert(Usd::ZERO);
        *cost = cost.plus(row.cost);
    }
    costs.into_iter().map(|(name, cost)| (name, cost.dollars().into())).collect()
}

/// A key by itself, or by its token.
fn find(store: &Store, key: &str) -> Result<KeyInfo, ApiError> {
    let id = store.check(key).ok().or_else(|| key.parse().ok());
    let found = id.and_then(|id: KeyId| store.list().into_iter().find(|k| k.id == id && k.revoked.is_none()));
    // What was sent may be a key: it is not repeated.
    found.ok_or_else(|| ApiError::new(ErrorKind::NotFound, "there is no such key, or it was deleted"))
}

fn check_alias(store: &Store, name: &str, own: Option<KeyId>) -> Result<(), ApiError> {
    let taken = |k: &KeyInfo| k.revoked.is_none() && k.name == name && Some(k.id) != own;
    if name != UNNAMED && store.list().iter().any(taken) {
        let what = format!("a key with the alias '{}' exists", octet_api::shortened(name));
        return Err(wrong("key_alias", what));
    }
    Ok(())
}

/// The name of keys that were given none.
const UNNAMED: &str = "unnamed";

/// A key as LiteLLM tells of one.
fn told(k: &KeyInfo) -> Map<String, Value> {
    let limits = &k.limits;
    let all = limits.models.iter().any(|m| m == "*");
    let budget = limits.budget;
    let period = budget.map(|b| b.period).filter(|p| *p != Period::Ever);
    let fields = json!({
        "token": k.id.to_string(),
        "key_alias": (k.name != UNNAMED).then_some(&k.name),
        "models": if all { &[][..] } else { &limits.models[..] },
        "spend": k.spent.dollars(),
        "max_budget": budget.map(|b| b.limit.dollars()),
        "budget_duration": period.map(|p| p.to_string()),
        "budget_reset_at": k.resets.map(time),
        "rpm_limit": limits.rpm,
        "tpm_limit": limits.tpm,
        "max_parallel_requests": limits.max_parallel,
        "expires": limits.expires.map(time),
        "created_at": time(k.created),
        "user_id": null,
        "team_id": null,
        "metadata": {},
        "blocked": null,
    });
    let Value::Object(fields) = fields else { return Map::new() };
    fields
}

/// `2026-11-22T22:00:00Z`.
fn time(unix: i64) -> String {
    rfc3339(u64::try_from(unix).unwrap_or(0))
}

/// What a key is to be.
struct Wish {
    name: Option<String>,
    limits: Limits,
    /// Fields that only describe, and are not kept.
    ignored: Vec<String>,
}

/// Fields that say whose a key is, and change nothing.
const LABELS: &[&str] = &["user_id", "metadata", "tags", "key_type", "send_invite_email", "agent_id"];

impl Wish {
    /// Reads the fields; what is not named is as in `old`. What would limit a key and is not kept to here is refused.
    fn read(fields: Map<String, Value>, old: Option<Limits>) -> Result<Self, ApiError> {
        let mut wish = Self { name: None, limits: old.unwrap_or_default(), ignored: Vec::new() };
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        let mut budget = wish.limits.budget.map(|b| b.limit);
        let mut period = wish.limits.budget.map_or(Period::Ever, |b| b.period);
        for (name, value) in fields {
            let limits = &mut wish.limits;
            match name.as_str() {
                "key_alias" => wish.name = read::<String>(&name, value)?,
                "models" => limits.models = models(read(&name, value)?.unwrap_or_default())?,
                "rpm_limit" => limits.rpm = read(&name, value)?,
                "tpm_limit" => limits.tpm = read(&name, value)?,
                "max_parallel_requests" => limits.max_parallel = read(&name, value)?,
                "max_budget" => {
                    let dollars: Option<f64> = read(&name, value)?;
                    budget = dollars
                        .map(Usd::from_dollars)
                        .transpose()
                        .map_err(|e| wrong(&name, e.to_string()))?;
                }
                "budget_duration" => period = length(&name, read(&name, value)?)?,
                "duration" => {
                    limits.expires = match length(&name, read(&name, value)?)? {
                        Period::Ever => None,
                        Period::Month => Some(now.saturating_add(30 * 86_400)),
                        Period::Seconds(s) => Some(now.saturating_add(s.into())),
                    }
                }
                _ if is_nothing(&value) => {}
                label if LABELS.contains(&label) => wish.ignored.push(name),
                _ => {
                    let what = format!(
                        "'{}' is not supported for keys here: leave it out",
                        octet_api::shortened(&name)
                    );
                    return Err(wrong(&name, what));
                }
            }
        }
        wish.limits.budget = budget.map(|limit| Budget { limit, period });
        Ok(wish)
    }
}

fn read<T: serde::de::DeserializeOwned>(name: &str, value: Value) -> Result<Option<T>, ApiError> {
    serde_json::from_value(value).map_err(|e| wrong(name, format!("'{name}': {e}")))
}

/// A length of time; none is for ever.
fn length(name: &str, text: Option<String>) -> Result<Period, ApiError> {
    text.map_or(Ok(Period::Ever), |t| t.parse().map_err(|e: Error| wrong(name, format!("'{name}': {e}"))))
}

/// No models are all of them.
fn models(names: Vec<String>) -> Result<Vec<String>, ApiError> {
    if names.is_empty() || names.iter().any(|n| n == "all-proxy-models") {
        return Ok(vec!["*".into()]);
    }
    if names.iter().any(|n| matches!(n.as_str(), "all-team-models" | "no-default-models")) {
        return Err(wrong("models", "there are no teams and users here whose models a key could have"));
    }
    Ok(names)
}

/// Says nothing: `null`, `{}`, `[]`, `false`, `0`, an empty text.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(b) => !b,
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::String(s) => s.is_empty(),
        Value::Array(a) => a.is_empty(),
        Value::Object(o) => o.is_empty(),
    }
}
