//! Settings of the server. Read by `octet serve --config`, whose flags take precedence.

use std::net::IpAddr;
use std::time::Duration;

use crate::Secret;

/// `server` (our own, the flags of `octet serve` by the same names), and `general_settings`. `None` is the flag's default.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ServerSettings {
    /// `general_settings.master_key`: the key that may do everything. If it is set, requests without a key are refused.
    pub master_key: Option<Secret>,
    /// `api_key` and the lines of `api_key_file`: further keys that clients may use, without budgets.
    pub api_keys: Vec<Secret>,
    /// `host`.
    pub host: Option<IpAddr>,
    /// `port`.
    pub port: Option<u16>,
    /// `cors_origin`.
    pub cors_origins: Vec<String>,
    /// `allowed_host`: further host names that mean this machine.
    pub allowed_hosts: Vec<String>,
    /// `timeout`: time limit of a request, including its answer.
    pub timeout: Option<Duration>,
    /// `max_body` in bytes; also `general_settings.max_request_size_mb`.
    pub max_body: Option<u64>,
    /// `max_connections`.
    pub max_connections: Option<usize>,
    /// `memory_limit` in bytes: maximum memory of all local models.
    pub memory_limit: Option<u64>,
    /// `load_queue`: maximum requests that wait for a local model to load.
    pub load_queue: Option<usize>,
    /// `allow_image_urls`: whether images that requests give by address are downloaded.
    pub allow_image_urls: Option<bool>,
    /// `general_settings.global_max_parallel_requests`: maximum concurrent requests of all groups.
    pub max_parallel_requests: Option<u32>,
}

/// `general_settings`' health checks.
#[derive(Debug, Clone, PartialEq)]
pub struct HealthChecks {
    /// `background_health_checks`: whether deployments are checked regularly (false).
    pub enabled: bool,
    /// `health_check_interval` (300 s).
    pub interval: Duration,
    /// `health_check_timeout` of one check (10 s).
    pub timeout: Duration,
}

impl Default for HealthChecks {
    fn default() -> Self {
        Self { enabled: false, interval: Duration::from_secs(300), timeout: Duration::from_secs(10) }
    }
}
