//! The fields of a request that creates or settings a key, a user or a team.

use octet_api::{ApiError, shortened};
use octet_keys::{Budget, Draft, Error, Limits, Member, Period, Profile, Usd};
use serde_json::{Map, Value};

use super::access::{is_nothing, wrong};

/// What the request creates or settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entity {
    Key,
    User,
    Team,
    EndUser,
}

/// The requested state.
pub struct Settings {
    /// A key's name.
    pub name: Option<String>,
    pub limits: Limits,
    pub profile: Profile,
    /// Fields of the request that have no effect.
    pub notes: Vec<String>,
}

/// Fields that are accepted and not stored.
const LABELS: &[&str] = &["tags", "key_type", "send_invite_email", "agent_id", "soft_budget", "sso_user_id"];

impl Settings {
    /// Reads the fields; the others stay as in `old`. A limit that is not enforced here is refused.
    pub fn read(of: Entity, fields: Map<String, Value>, old: Option<&Draft>) -> Result<Self, ApiError> {
        let names_models = fields.contains_key("models");
        let limits = old.map_or_else(Limits::default, |k| k.limits.clone());
        let profile = old.map_or_else(Profile::default, |k| k.profile.clone());
        let mut settings = Self { name: None, limits, profile, notes: Vec::new() };
        let mut budget = settings.limits.budget.map(|b| b.limit);
        let kept = settings.profile.kept_period().unwrap_or(Period::Ever);
        let mut period = settings.limits.budget.map_or(kept, |b| b.period);
        for (name, value) in fields {
            match name.as_str() {
                "max_budget" => {
                    let usd = number(&name, value)?.map(Usd::from_dollars).transpose();
                    budget = usd.map_err(|e| wrong(&name, e.to_string()))?;
                }
                "budget_duration" => period = length(&name, read(&name, value)?)?,
                _ => {
                    if !settings.limit(of, &name, &value)? && !settings.describe(of, &name, &value)? {
                        settings.other(of, &name, &value)?;
                    }
                }
            }
        }
        settings.limits.budget = budget.map(|limit| Budget { limit, period });
        settings.profile.keep_period(Some(period).filter(|p| budget.is_none() && *p != Period::Ever));
        let Settings { profile, limits, .. } = &mut settings;
        if limits.models.iter().any(|m| m == ALL_TEAM_MODELS) {
            if profile.team.is_none() {
                return Err(wrong("models", "'all-team-models' needs a 'team_id'"));
            }
            // The team's models limit the key in any case.
            limits.models = vec!["*".into()];
        }
        let leaves_team = profile.team.is_none() && old.is_some_and(|o| o.profile.team.is_some());
        if leaves_team && !names_models && limits.models.iter().any(|m| m == "*") {
            let what = "this key may use all models of its team; without the team that would be all models: set 'models' too";
            return Err(wrong("team_id", what));
        }
        Ok(settings)
    }

    /// Applies the fields to `draft`; returns notes about those without effect.
    pub fn change(
        of: Entity,
        fields: Map<String, Value>,
        draft: &mut Draft,
    ) -> Result<Vec<String>, ApiError> {
        let settings = Self::read(of, fields, Some(draft))?;
        (draft.limits, draft.profile) = (settings.limits, settings.profile);
        if let Some(name) = settings.name {
            draft.name = name;
        }
        Ok(settings.notes)
    }

    /// Reads a field that limits; `false` for others.
    fn limit(&mut self, of: Entity, name: &str, value: &Value) -> Result<bool, ApiError> {
        let limits = &mut self.limits;
        match name {
            "models" => limits.models = models(read(name, value.clone())?.unwrap_or_default()),
            "rpm_limit" => limits.rpm = whole(name, value)?,
            "tpm_limit" => limits.tpm = whole(name, value)?,
            "max_parallel_requests" => limits.max_parallel = whole(name, value)?,
            "blocked" => self.profile.blocked = boolean(name, value)?.unwrap_or(false),
            "duration" if of == Entity::Key => {
                limits.expires = expires(length(name, read(name, value.clone())?)?)
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Reads a name, an owner or a description; `false` for others.
    fn describe(&mut self, of: Entity, name: &str, value: &Value) -> Result<bool, ApiError> {
        let text = || read::<String>(name, value.clone()).map(|t| t.filter(|t| !t.is_empty()));
        match (of, name) {
            (Entity::Key, "key_alias") => self.name = text()?,
            (Entity::Key, "user_id") => self.profile.user = text()?,
            (Entity::Key, "team_id") => self.profile.team = text()?,
            (Entity::EndUser, "user_alias")
            | (Entity::User, "user_alias" | "user_email" | "user_role")
            | (Entity::Team, "team_alias") => {
                self.about(name, text()?.map(Value::from));
                if name == "user_role" && value.as_str().is_some_and(|role| role.starts_with("proxy_admin")) {
                    self.notes
                        .push("'user_role' has no effect: keys of users do not manage the server".into());
                }
            }
            (Entity::Team, "members_with_roles") => {
                let members: Vec<Map<String, Value>> = read(name, value.clone())?.unwrap_or_default();
                self.profile.members = members.iter().map(member).collect::<Result<_, _>>()?;
            }
            (_, "metadata") => {
                let metadata: Option<Map<String, Value>> = read(name, value.clone())?;
                self.about(name, metadata.map(Value::from));
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn about(&mut self, name: &str, value: Option<Value>) {
        match value {
            Some(value) => drop(self.profile.about.insert(name.into(), value)),
            None => drop(self.profile.about.shift_remove(name)),
        }
    }

    fn other(&mut self, of: Entity, name: &str, value: &Value) -> Result<(), ApiError> {
        if is_nothing(value) {
            return Ok(());
        }
        if LABELS.contains(&name) {
            self.notes.push(format!("'{name}' is not stored here"));
            return Ok(());
        }
        let whose = match of {
            Entity::Key => "keys",
            Entity::User => "users",
            Entity::Team => "teams",
            Entity::EndUser => "end users",
        };
        let what = format!("'{}' is not supported for {whose} here: leave it out", shortened(name));
        Err(wrong(name, what))
    }
}

/// Reads a team member.
pub fn member(fields: &Map<String, Value>) -> Result<Member, ApiError> {
    let text = |name: &str| fields.get(name).and_then(Value::as_str).filter(|t| !t.is_empty());
    let Some(user) = text("user_id") else {
        return Err(wrong("user_id", "a member needs a 'user_id'"));
    };
    let role = text("role").unwrap_or("user");
    if !["admin", "user"].contains(&role) {
        return Err(wrong("role", "'role' must be admin or user"));
    }
    Ok(Member { user: user.into(), role: role.into() })
}

/// The time at which a key with this lifetime expires, in seconds since 1970.
fn expires(length: Period) -> Option<i64> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    match length {
        Period::Ever => None,
        Period::Month => Some(now.saturating_add(30 * 86_400)),
        Period::Seconds(s) => Some(now.saturating_add(s.into())),
    }
}

/// Reads a field; `null` is `None`.
pub fn read<T: serde::de::DeserializeOwned>(name: &str, value: Value) -> Result<Option<T>, ApiError> {
    serde_json::from_value(value).map_err(|e| wrong(name, format!("'{name}': {e}")))
}

/// A number, or a string with a number, as LiteLLM accepts.
pub fn number(name: &str, value: Value) -> Result<Option<f64>, ApiError> {
    match value.as_str().map(|text| text.trim().parse::<f64>()) {
        Some(Ok(n)) if n.is_finite() => Ok(Some(n)),
        _ => read(name, value),
    }
}

/// A whole number of 0 or more, or a string with one.
fn whole(name: &str, value: &Value) -> Result<Option<u64>, ApiError> {
    /// Above it, `f64` cannot represent every whole number.
    const EXACT_MAX: f64 = (1u64 << 53) as f64;
    let float = match value {
        Value::String(text) => text.trim().parse::<f64>().ok(),
        Value::Number(n) if n.is_f64() => n.as_f64(),
        _ => None,
    };
    match float.filter(|n| n.fract() == 0.0 && (0.0..=EXACT_MAX).contains(n)) {
        Some(n) => Ok(Some(n as u64)),
        None => read(name, value.clone()),
    }
}

/// A boolean, or a string or number that means one, as LiteLLM accepts.
pub fn boolean(name: &str, value: &Value) -> Result<Option<bool>, ApiError> {
    let text = match value {
        Value::String(text) => text.trim().to_ascii_lowercase(),
        Value::Number(n) => n.to_string(),
        _ => return read(name, value.clone()),
    };
    match text.as_str() {
        "1" | "1.0" | "true" | "t" | "yes" | "y" | "on" => Ok(Some(true)),
        "0" | "0.0" | "false" | "f" | "no" | "n" | "off" => Ok(Some(false)),
        _ => Err(wrong(name, format!("'{name}' must be true or false"))),
    }
}

/// Reads a duration; none, and LiteLLM's `-1`, mean forever.
fn length(name: &str, text: Option<String>) -> Result<Period, ApiError> {
    let text = text.filter(|t| t != "-1");
    text.map_or(Ok(Period::Ever), |t| t.parse().map_err(|e: Error| wrong(name, format!("'{name}': {e}"))))
}

const ALL_TEAM_MODELS: &str = "all-team-models";

/// An empty list allows all models.
fn models(names: Vec<String>) -> Vec<String> {
    let all = names.is_empty() || names.iter().any(|n| n == "all-proxy-models");
    if all { vec!["*".into()] } else { names }
}
