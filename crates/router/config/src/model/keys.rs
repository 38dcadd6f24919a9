//! Virtual keys and budgets. Stored by the `keys` crate in a file beside the server.

use std::path::PathBuf;
use std::time::Duration;

use crate::Secret;

/// `keys` (our own), and LiteLLM's budgets for the whole proxy.
#[derive(Debug, Clone, PartialEq)]
pub struct KeysSettings {
    /// `keys.database`: the SQLite file. `None`: there are no virtual keys, only the master key.
    pub database: Option<PathBuf>,
    /// `general_settings.database_url`: a PostgreSQL database instead of the file.
    pub database_url: Option<Secret>,
    /// `litellm_settings.max_budget`: budget of all requests in USD; requests beyond it are refused.
    pub max_budget: Option<f64>,
    /// `litellm_settings.max_end_user_budget`: budget in USD of each end user (the `user` of requests) that has none of its own.
    pub max_end_user_budget: Option<f64>,
    /// `general_settings.enforce_fallback_model_access: false`: a fallback may use models that the key may not request.
    pub open_fallbacks: bool,
    /// `litellm_settings.budget_duration`: the budget's period. `None`: it is never reset.
    pub budget_duration: Option<Duration>,
    /// `litellm_settings.default_key_generate_params`: defaults of new keys.
    pub defaults: KeyDefaults,
    /// `litellm_settings.default_internal_user_params`: defaults of new users.
    pub user_defaults: UserDefaults,
    /// `litellm_settings.default_team_params`: defaults of new teams.
    pub team_defaults: LimitDefaults,
    /// `litellm_settings.upperbound_key_generate_params`: upper bounds of new keys.
    pub bounds: KeyBounds,
    /// `keys.usage_days`: for how many days the daily usage is kept (400).
    pub usage_days: u32,
}

impl Default for KeysSettings {
    fn default() -> Self {
        Self {
            database: None,
            database_url: None,
            open_fallbacks: false,
            max_budget: None,
            max_end_user_budget: None,
            budget_duration: None,
            defaults: KeyDefaults::default(),
            user_defaults: UserDefaults::default(),
            team_defaults: LimitDefaults::default(),
            bounds: KeyBounds::default(),
            usage_days: 400,
        }
    }
}

/// Default limits of a new key, user or team. `None` (and an empty list) is no limit.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LimitDefaults {
    /// `max_budget` in USD.
    pub max_budget: Option<f64>,
    /// `budget_duration`.
    pub budget_duration: Option<Duration>,
    /// `models`: groups that it may use.
    pub models: Vec<String>,
    /// `rpm_limit`.
    pub rpm_limit: Option<u64>,
    /// `tpm_limit`.
    pub tpm_limit: Option<u64>,
    /// `max_parallel_requests`.
    pub max_parallel_requests: Option<u32>,
}

/// Defaults of new keys.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct KeyDefaults {
    /// Its limits.
    pub limits: LimitDefaults,
    /// `duration`: how long the key is valid.
    pub duration: Option<Duration>,
    /// `user_id`.
    pub user: Option<String>,
    /// `team_id`.
    pub team: Option<String>,
}

/// Defaults of new users.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct UserDefaults {
    /// The user's limits.
    pub limits: LimitDefaults,
    /// `teams`: ids of teams of which the user becomes a member.
    pub teams: Vec<String>,
    /// `user_role`, which is displayed.
    pub role: Option<String>,
    /// `litellm_settings.max_internal_user_budget`: the budget, in USD, of users with the role `internal_user`.
    pub internal_max_budget: Option<f64>,
    /// `litellm_settings.internal_user_budget_duration`: the period of the same users' budgets.
    pub internal_budget_duration: Option<Duration>,
}

/// Upper bounds of new keys. `None` is no bound.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct KeyBounds {
    /// `max_budget` in USD.
    pub max_budget: Option<f64>,
    /// `budget_duration`.
    pub budget_duration: Option<Duration>,
    /// `duration`: how long the key is valid.
    pub duration: Option<Duration>,
    /// `max_parallel_requests`.
    pub max_parallel_requests: Option<u64>,
    /// `tpm_limit`.
    pub tpm_limit: Option<u64>,
    /// `rpm_limit`.
    pub rpm_limit: Option<u64>,
}
