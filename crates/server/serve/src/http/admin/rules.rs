//! What the configuration says of new keys, users and teams: `default_key_generate_params`, `upperbound_key_generate_params`,
//! `default_internal_user_params`, `default_team_params`.

use std::sync::Arc;
use std::time::Duration;

use octet_api::ApiError;
use octet_config::{KeysSettings, LimitDefaults};
use octet_keys::Period;
use serde_json::{Map, Value};

use super::access::wrong;
use super::settings::{Entity, Settings, number, read};
use crate::app::App;

/// The role of users who do not manage the server.
const INTERNAL_USER: &str = "internal_user";

/// What new keys, users and teams get, and the most that keys may get.
#[derive(Debug, Clone, Default)]
pub struct KeyRules(Arc<KeysSettings>);

impl KeyRules {
    /// The rules in the server's configuration.
    pub fn of(app: &App) -> Self {
        Self(app.gateway().map(|g| g.key_settings()).unwrap_or_default())
    }

    /// Sets defaults for the fields that a request for a new key does not have.
    pub fn fill(&self, fields: &mut Map<String, Value>) {
        let d = &self.0.defaults;
        fill_limits(fields, &d.limits);
        fill_one(fields, "duration", d.duration.map(time));
        fill_one(fields, "user_id", d.user.clone().map(Value::from));
        fill_one(fields, "team_id", d.team.clone().map(Value::from));
    }

    /// The same for a new user, as in LiteLLM: a user with the role `proxy_admin` gets no defaults, and the budget of internal users is for those
    /// whose role the request names.
    pub fn fill_user(&self, fields: &mut Map<String, Value>) {
        let d = &self.0.user_defaults;
        let role = fields.get("user_role").and_then(Value::as_str).map(String::from);
        if role.as_deref() != Some("proxy_admin") {
            fill_limits(fields, &d.limits);
            fill_one(fields, "user_role", d.role.clone().map(Value::from));
            fill_one(fields, "teams", (!d.teams.is_empty()).then(|| d.teams.clone().into()));
        }
        if role.as_deref() == Some(INTERNAL_USER) {
            self.fill_internal(fields);
        }
    }

    /// What a user gets who is created as a member of a team: a budget and models, no rates, as in LiteLLM.
    pub fn member(&self) -> Result<Settings, ApiError> {
        let mut fields = Map::from_iter([("user_role".to_string(), Value::from(INTERNAL_USER))]);
        let d = &self.0.user_defaults.limits;
        fill_limits(
            &mut fields,
            &LimitDefaults { rpm_limit: None, tpm_limit: None, max_parallel_requests: None, ..d.clone() },
        );
        self.fill_internal(&mut fields);
        Settings::read(Entity::User, fields, None)
    }

    fn fill_internal(&self, fields: &mut Map<String, Value>) {
        let d = &self.0.user_defaults;
        fill_one(fields, "max_budget", d.internal_max_budget.map(Value::from));
        fill_one(fields, "budget_duration", d.internal_budget_duration.map(time));
    }

    /// The same for a new team.
    pub fn fill_team(&self, fields: &mut Map<String, Value>) {
        fill_limits(fields, &self.0.team_defaults);
    }

    /// Refuses what is above the bounds. A new key gets the bound of what its fields do not name.
    pub fn enforce(&self, fields: &mut Map<String, Value>, is_new: bool) -> Result<(), ApiError> {
        let b = &self.0.bounds;
        let whole = |n: u64| n as f64;
        let amounts = [
            ("max_budget", b.max_budget),
            ("max_parallel_requests", b.max_parallel_requests.map(whole)),
            ("tpm_limit", b.tpm_limit.map(whole)),
            ("rpm_limit", b.rpm_limit.map(whole)),
        ];
        for (name, most) in amounts {
            let Some(most) = most else { continue };
            // Counts are whole numbers; budgets need not be.
            let bound = if most.fract() == 0.0 { Value::from(most as u64) } else { Value::from(most) };
            let is_within = |value: &Value| Ok(number(name, value.clone())?.is_some_and(|n| n <= most));
            within(fields, name, bound, is_new, is_within)?;
        }
        for (name, most) in [("budget_duration", b.budget_duration), ("duration", b.duration)] {
            let Some(most) = most else { continue };
            let is_within = |value: &Value| {
                let text: Option<String> = read(name, value.clone())?;
                let length = text.filter(|t| t != "-1").map(|t| t.parse::<Period>()).transpose();
                Ok(match length.map_err(|e| wrong(name, format!("'{name}': {e}")))? {
                    None | Some(Period::Ever) => false,
                    Some(Period::Seconds(s)) => Duration::from_secs(s.into()) <= most,
                    Some(Period::Month) => Duration::from_secs(30 * 86_400) <= most,
                })
            };
            within(fields, name, time(most), is_new, is_within)?;
        }
        Ok(())
    }
}

/// Limits that a request does not name.
fn fill_limits(fields: &mut Map<String, Value>, d: &LimitDefaults) {
    fill_one(fields, "max_budget", d.max_budget.map(Value::from));
    fill_one(fields, "budget_duration", d.budget_duration.map(time));
    fill_one(fields, "rpm_limit", d.rpm_limit.map(Value::from));
    fill_one(fields, "tpm_limit", d.tpm_limit.map(Value::from));
    fill_one(fields, "max_parallel_requests", d.max_parallel_requests.map(Value::from));
    let names_none = |v: &Value| v.is_null() || v.as_array().is_some_and(Vec::is_empty);
    if !d.models.is_empty() && fields.get("models").is_none_or(names_none) {
        fields.insert("models".into(), d.models.clone().into());
    }
}

/// Sets a field that is absent or null. A `budget_duration` of null says that the budget never begins anew.
fn fill_one(fields: &mut Map<String, Value>, name: &str, value: Option<Value>) {
    let is_open = match fields.get(name) {
        None => true,
        Some(value) => value.is_null() && name != "budget_duration",
    };
    if let Some(value) = value.filter(|_| is_open) {
        fields.insert(name.into(), value);
    }
}

/// Holds one field to its bound. Of a change, what is not named stays, and `null` would lift a limit.
fn within(
    fields: &mut Map<String, Value>,
    name: &str,
    bound: Value,
    is_new: bool,
    is_within: impl Fn(&Value) -> Result<bool, ApiError>,
) -> Result<(), ApiError> {
    match fields.get(name) {
        None | Some(Value::Null) if is_new => drop(fields.insert(name.into(), bound)),
        None => {}
        Some(value) if is_within(value)? => {}
        Some(value) => {
            let bound = bound.as_str().map_or_else(|| bound.to_string(), String::from);
            let what = format!(
                "'{name}' is {}; upperbound_key_generate_params in the configuration allows at most {bound}",
                octet_api::shortened(&value.to_string())
            );
            return Err(wrong(name, what));
        }
    }
    Ok(())
}

/// A duration in the format of requests.
fn time(length: Duration) -> Value {
    let seconds = u32::try_from(length.as_secs().max(1)).unwrap_or(u32::MAX);
    Period::Seconds(seconds).to_string().into()
}
