//! Keys, users and teams in LiteLLM's JSON shapes.

use octet_api::rfc3339;
use octet_keys::{KeyInfo, OwnerKind, Period, Store, UNNAMED};
use serde_json::{Map, Value, json};

/// A key.
pub fn key(k: &KeyInfo) -> Map<String, Value> {
    let mut out = limits(k);
    let about = &k.profile.about;
    let more = json!({
        "token": k.id.to_string(),
        "key_alias": (k.name != UNNAMED).then_some(&k.name),
        "expires": k.limits.expires.map(time),
        "user_id": k.profile.user,
        "team_id": k.profile.team,
        "metadata": about.get("metadata").cloned().unwrap_or_else(|| json!({})),
    });
    add(&mut out, more);
    out
}

/// A user.
pub fn user(store: &Store, u: &KeyInfo) -> Map<String, Value> {
    user_in(&store.owners(OwnerKind::Team), u)
}

/// A user, where these are all teams.
pub fn user_in(teams: &[KeyInfo], u: &KeyInfo) -> Map<String, Value> {
    let mut out = limits(u);
    let is_member = |team: &&KeyInfo| team.profile.members.iter().any(|m| m.user == u.name);
    let teams: Vec<&str> = teams.iter().filter(is_member).map(|team| team.name.as_str()).collect();
    let about = |name: &str| u.profile.about.get(name).cloned().unwrap_or_default();
    let more = json!({
        "user_id": u.name,
        "user_alias": about("user_alias"),
        "user_email": about("user_email"),
        "user_role": about("user_role"),
        "teams": teams,
        "metadata": u.profile.about.get("metadata").cloned().unwrap_or_else(|| json!({})),
    });
    add(&mut out, more);
    out
}

/// A team.
pub fn team(t: &KeyInfo) -> Map<String, Value> {
    let mut out = limits(t);
    let member = |m: &octet_keys::Member| json!({"user_id": m.user, "user_email": null, "role": m.role});
    let about = &t.profile.about;
    let more = json!({
        "team_id": t.name,
        "team_alias": about.get("team_alias").cloned().unwrap_or_default(),
        "organization_id": null,
        "members_with_roles": t.profile.members.iter().map(member).collect::<Value>(),
        "admins": [],
        "members": [],
        "metadata": about.get("metadata").cloned().unwrap_or_else(|| json!({})),
    });
    add(&mut out, more);
    out
}

/// An end user.
pub fn end_user(u: &KeyInfo) -> Map<String, Value> {
    let limits = limits(u);
    let budget = [
        "max_budget",
        "budget_duration",
        "budget_reset_at",
        "rpm_limit",
        "tpm_limit",
        "max_parallel_requests",
    ];
    let budget: Map<String, Value> = budget
        .iter()
        .map(|name| (name.to_string(), limits.get(*name).cloned().unwrap_or_default()))
        .collect();
    let mut out = Map::new();
    let more = json!({
        "user_id": u.name,
        "alias": u.profile.about.get("user_alias").cloned().unwrap_or_default(),
        "spend": u.spent.dollars(),
        "blocked": u.profile.blocked,
        "allowed_model_region": null,
        "default_model": null,
        "litellm_budget_table": budget,
    });
    add(&mut out, more);
    out
}

/// The valid keys of a user or a team.
pub fn keys_of(store: &Store, kind: OwnerKind, id: &str) -> Vec<Value> {
    let is_its = |k: &&KeyInfo| k.revoked.is_none() && owner(k, kind) == Some(id);
    store.list().iter().filter(is_its).map(|k| key(k).into()).collect()
}

/// The user or the team of a key.
pub fn owner(key: &KeyInfo, kind: OwnerKind) -> Option<&str> {
    match kind {
        OwnerKind::User => key.profile.user.as_deref(),
        OwnerKind::Team => key.profile.team.as_deref(),
        OwnerKind::EndUser => None,
    }
}

fn limits(k: &KeyInfo) -> Map<String, Value> {
    let limits = &k.limits;
    let all = limits.models.iter().any(|m| m == "*");
    let budget = limits.budget;
    let period = budget.map_or(k.profile.kept_period(), |b| Some(b.period)).filter(|p| *p != Period::Ever);
    let mut out = Map::new();
    let more = json!({
        "models": if all { &[][..] } else { &limits.models[..] },
        "spend": k.spent.dollars(),
        "max_budget": budget.map(|b| b.limit.dollars()),
        "budget_duration": period.map(|p| p.to_string()),
        "budget_reset_at": k.resets.map(time),
        "rpm_limit": limits.rpm,
        "tpm_limit": limits.tpm,
        "max_parallel_requests": limits.max_parallel,
        "blocked": k.profile.blocked,
        "created_at": time(k.created),
    });
    add(&mut out, more);
    out
}

/// Adds the fields of `more` to an object.
pub fn add(to: &mut Map<String, Value>, more: Value) {
    if let Value::Object(fields) = more {
        to.extend(fields);
    }
}

/// `2026-11-22T22:00:00Z`.
fn time(unix: i64) -> String {
    rfc3339(u64::try_from(unix).unwrap_or(0))
}
