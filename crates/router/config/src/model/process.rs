//! Servers that are started on demand, in llama-swap's terms.

use std::time::Duration;

use serde_json::{Map, Value};

use crate::Span;

/// One entry of `processes.models`.
#[derive(Debug, Clone, PartialEq)]
pub struct Process {
    /// Its key in the file; a group of this name has it as a deployment.
    pub id: String,
    /// `name`, for display.
    pub name: Option<String>,
    /// `description`, for display.
    pub description: Option<String>,
    /// `cmd`: the program and its arguments, split like a shell, with macros and `${env.X}` filled in. `${PORT}` stays if
    /// [`Process::port`] is chosen at the start. Never empty. No shell runs it.
    pub cmd: Vec<String>,
    /// `cmdStop`: the command that stops it instead of a signal; `${PID}` stays.
    pub cmd_stop: Option<Vec<String>>,
    /// `env`: variables that are added to its environment. May contain keys: not to be printed.
    pub env: Vec<(String, crate::Secret)>,
    /// `proxy`: the address at which it listens, with `${PORT}`: `http://127.0.0.1:${PORT}`.
    pub proxy: String,
    /// Whether `cmd` or `proxy` contains `${PORT}`.
    pub port: PortChoice,
    /// `aliases`: other names of the group.
    pub aliases: Vec<String>,
    /// `checkEndpoint`: the path that returns 200 when it is ready (`/health`). `None` is `none`: no check.
    pub check_endpoint: Option<String>,
    /// `ttl`: idle time before it is stopped. `None`: it is not stopped.
    pub ttl: Option<Duration>,
    /// `unloadTimeout`: time to stop before it is killed (10 s).
    pub unload_timeout: Duration,
    /// `useModelName`: the model's name in requests to it. `None`: the client's.
    pub use_model_name: Option<String>,
    /// `filters`.
    pub filters: ProcessFilters,
    /// `concurrencyLimit`: maximum concurrent requests. `None`: 10, as in llama-swap.
    pub concurrency_limit: Option<u32>,
    /// `unlisted`: whether `/v1/models` leaves it out.
    pub unlisted: bool,
    /// `metadata`, for clients of `/v1/models`.
    pub metadata: Map<String, Value>,
    /// Its place in the file.
    pub span: Span,
}

/// The port of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortChoice {
    /// Fixed in the file.
    Fixed,
    /// Chosen for `${PORT}` when it is started, from [`ProcessSettings::start_port`] on.
    Chosen,
}

/// `filters`: changes of requests.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ProcessFilters {
    /// `stripParams`: removed parameters.
    pub strip_params: Vec<String>,
    /// `setParams`: set parameters.
    pub set_params: Map<String, Value>,
    /// `setParamsByID`: names for clients, and the parameters that requests for each set; they take precedence over `set_params`.
    pub set_params_by_name: Vec<(String, Map<String, Value>)>,
}

/// Settings for all processes.
#[derive(Debug, Clone, PartialEq)]
pub struct ProcessSettings {
    /// `healthCheckTimeout`: time limit to become ready (120 s, at least 15).
    pub health_check_timeout: Duration,
    /// `startPort`: the first port for `${PORT}` (5800).
    pub start_port: u16,
    /// `hooks.on_startup.preload`: processes that are started with the server.
    pub preload: Vec<String>,
    /// `groups`: which processes may run at the same time. All others form one group of which one runs at a time.
    pub groups: Vec<ProcessGroup>,
}

impl Default for ProcessSettings {
    fn default() -> Self {
        Self {
            health_check_timeout: Duration::from_secs(120),
            start_port: 5800,
            preload: Vec::new(),
            groups: Vec::new(),
        }
    }
}

/// One entry of `groups`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessGroup {
    /// Its name.
    pub id: String,
    /// `swap`: one member runs at a time (true).
    pub swap: bool,
    /// `exclusive`: when one of them starts, those of other groups are stopped (true).
    pub exclusive: bool,
    /// `persistent`: other groups do not stop its members (false).
    pub persistent: bool,
    /// `members`: ids of processes.
    pub members: Vec<String>,
}
