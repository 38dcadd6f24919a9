//! Keys, users and teams of LiteLLM's proxy, read from its PostgreSQL database.
//!
//! LiteLLM stores the SHA-256 of a key. A key that was imported is found by that, so clients keep their keys.

use std::str::FromStr;

use postgres::Row;
use serde_json::{Map, Value};

use crate::limits::{Budget, Limits, Period};
use crate::postgres_connect::{Place, connect};
use crate::profile::{Member, OwnerKind, Profile};
use crate::table::KeyRow;
use crate::{Error, Usd, secret};

/// A key, a user or a team of another program.
#[derive(Debug, Clone)]
pub struct Foreign {
    pub(crate) row: KeyRow,
    /// What could not be taken over.
    pub notes: Vec<String>,
}

impl Foreign {
    /// Its name, or its id.
    pub fn name(&self) -> &str {
        &self.row.name
    }

    /// What it is: `key`, `user` or `team`.
    pub fn kind(&self) -> &'static str {
        self.row.kind.map_or("key", OwnerKind::name)
    }
}

/// Reads all of a database's keys, users and teams.
///
/// # Errors
/// If it cannot be reached, or has no table of LiteLLM's.
pub fn litellm(url: &str) -> Result<Vec<Foreign>, Error> {
    let place = Place::parse(url)?;
    std::thread::scope(|scope| match scope.spawn(|| read(&place)).join() {
        Ok(read) => read,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// The columns of limits that all three tables have.
const LIMITS: &str = "max_budget, spend, budget_duration, models, rpm_limit, tpm_limit, max_parallel_requests, \
                      metadata::text AS about, floor(extract(epoch FROM created_at))::bigint AS created";

fn read(place: &Place) -> Result<Vec<Foreign>, Error> {
    let mut client = connect(place)?;
    let mut query = |sql: String| client.query(sql.as_str(), &[]).map_err(|e| place.error(&e));
    let teams = query(format!(
        "SELECT team_id AS id, team_alias AS alias, blocked, admins, members, {LIMITS} FROM \"LiteLLM_TeamTable\" ORDER BY 1"
    ))?;
    let users = query(format!(
        "SELECT user_id AS id, user_alias AS alias, user_email, user_role, {LIMITS} FROM \"LiteLLM_UserTable\" ORDER BY 1"
    ))?;
    let keys = query(format!(
        "SELECT token AS id, key_alias AS alias, key_name, user_id, team_id, blocked, floor(extract(epoch FROM expires))::bigint AS expires, \
         {LIMITS} FROM \"LiteLLM_VerificationToken\" ORDER BY created_at, token"
    ))?;
    let mut out = Vec::new();
    for (rows, of) in [(teams, team as fn(&Row) -> _), (users, user), (keys, key)] {
        for row in &rows {
            let foreign: Result<Option<Foreign>, postgres::Error> = of(row);
            out.extend(foreign.map_err(|e| place.error(&e))?);
        }
    }
    Ok(out)
}

fn limits(row: &Row, notes: &mut Vec<String>) -> Result<(Limits, Usd), postgres::Error> {
    let dollars = |name: &str| row.try_get::<_, Option<f64>>(name);
    let usd = |amount: f64| Usd::from_dollars(amount.max(0.0)).unwrap_or(Usd::ZERO);
    let mut limits = Limits::default();
    let models: Option<Vec<String>> = row.try_get("models")?;
    let all = ["all-proxy-models", "all-team-models"];
    match models {
        Some(models) if !models.is_empty() && !models.iter().any(|m| all.contains(&m.as_str())) => {
            limits.models = models;
        }
        _ => {}
    }
    if let Some(amount) = dollars("max_budget")? {
        let duration: Option<String> = row.try_get("budget_duration")?;
        let period = match duration.as_deref().map(Period::from_str) {
            None => Period::Ever,
            Some(Ok(period)) => period,
            Some(Err(e)) => {
                notes.push(format!("its budget is never reset: {e}"));
                Period::Ever
            }
        };
        limits.budget = Some(Budget { limit: usd(amount), period });
    }
    let mut count = |name: &str| -> Result<Option<u64>, postgres::Error> {
        let value: Option<i64> = row.try_get(name)?;
        if value.is_some_and(|n| n <= 0) {
            notes.push(format!("its {name} of 0 is left out"));
        }
        Ok(value.and_then(|n| u64::try_from(n).ok()).filter(|n| *n > 0))
    };
    (limits.rpm, limits.tpm) = (count("rpm_limit")?, count("tpm_limit")?);
    let parallel: Option<i32> = row.try_get("max_parallel_requests")?;
    limits.max_parallel = parallel.and_then(|n| u64::try_from(n).ok()).filter(|n| *n > 0);
    let spent = dollars("spend")?.map_or(Usd::ZERO, usd);
    Ok((limits, spent))
}

/// A row with its limits and metadata.
fn account(
    row: &Row,
    hash: blake3::Hash,
    name: &str,
    about: &[(&str, &str)],
) -> Result<Foreign, postgres::Error> {
    let mut notes = Vec::new();
    let (limits, spent) = limits(row, &mut notes)?;
    let created = row.try_get::<_, Option<i64>>("created")?.unwrap_or_default();
    let mut all = Map::new();
    let metadata: Option<String> = row.try_get("about")?;
    if let Some(Value::Object(metadata)) = metadata.and_then(|text| serde_json::from_str(&text).ok())
        && !metadata.is_empty()
    {
        all.insert("metadata".into(), metadata.into());
    }
    for (from, to) in about {
        let text: Option<String> = row.try_get(from)?;
        all.extend(text.map(|text| (to.to_string(), Value::from(text))));
    }
    let profile = Profile { about: all, ..Profile::default() };
    Ok(Foreign { row: KeyRow { spent, profile, ..KeyRow::new(hash, name, limits, created) }, notes })
}

fn team(row: &Row) -> Result<Option<Foreign>, postgres::Error> {
    let id: String = row.try_get("id")?;
    let mut team = account(row, OwnerKind::Team.hash(&id), &id, &[("alias", "team_alias")])?;
    let users = |name: &str| row.try_get::<_, Option<Vec<String>>>(name).map(Option::unwrap_or_default);
    let (admins, members) = (users("admins")?, users("members")?);
    let member = |role: &'static str| move |user: &String| Member { user: user.clone(), role: role.into() };
    let plain = members.iter().filter(|user| !admins.contains(user));
    team.row.profile.members = admins.iter().map(member("admin")).chain(plain.map(member("user"))).collect();
    team.row.profile.blocked = row.try_get("blocked")?;
    team.row.kind = Some(OwnerKind::Team);
    Ok(Some(team))
}

fn user(row: &Row) -> Result<Option<Foreign>, postgres::Error> {
    let id: String = row.try_get("id")?;
    // The server's own key has this user.
    if id == crate::OWN_USER {
        return Ok(None);
    }
    let about = [("alias", "user_alias"), ("user_email", "user_email"), ("user_role", "user_role")];
    let mut user = account(row, OwnerKind::User.hash(&id), &id, &about)?;
    user.row.kind = Some(OwnerKind::User);
    Ok(Some(user))
}

fn key(row: &Row) -> Result<Option<Foreign>, postgres::Error> {
    let token: String = row.try_get("id")?;
    // Sessions of LiteLLM's web page have other tokens.
    let Some(hash) = secret::foreign(&token) else { return Ok(None) };
    let alias: Option<String> = row.try_get("alias")?;
    let name = alias.or(row.try_get("key_name")?).unwrap_or_default();
    let mut key = account(row, hash, &name, &[("key_name", "key_name")])?;
    let profile = &mut key.row.profile;
    profile.user = row.try_get::<_, Option<String>>("user_id")?.filter(|user| user != crate::OWN_USER);
    profile.team = row.try_get("team_id")?;
    profile.blocked = row.try_get::<_, Option<bool>>("blocked")?.unwrap_or(false);
    key.row.limits.expires = row.try_get("expires")?;
    Ok(Some(key))
}
