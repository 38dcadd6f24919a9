//! Servers that are started on demand, in llama-swap's terms. Run by the supervisor of processes.

use std::time::Duration;

use serde_json::{Map, Value};

use crate::Span;

/// One entry of `processes.models`.
#[derive(Debug, Clone, PartialEq)]
pub struct Process {
    /// Its key in the file; a group of this name has it as a deployment.
    pub id: String,
    /// `name` and `description`, for people.
    pub name: Option<String>,
    /// See `name`.
    pub description: Option<String>,
    /// `cmd`: the program and its arguments, split as a shell does, macros and `${env.X}` filled in. `${PORT}` is left in where
    /// [`Process::port`] is chosen at the start. Never empty. No shell runs it.
    pub cmd: Vec<String>,
    /// `cmdStop`: what ends it instead of a signal; `${PID}` is left in.
    pub cmd_stop: Option<Vec<String>>,
    /// `env`: what is added to its environment, name and value. May hold keys: not to be printed.
    pub env: Vec<(String, crate::Secret)>,
    /// `proxy`: where it listens, `${PORT}` left in: `http://127.0.0.1:${PORT}`.
    pub proxy: String,
    /// Whether `${PORT}` stands in `cmd` or `proxy`.
    pub port: PortChoice,
    /// `aliases`: other names of the group.
    pub aliases: Vec<String>,
    /// `checkEndpoint`: the path that answers 200 when it is ready (`/health`). `None` is `none`: it is taken as ready.
    pub check_endpoint: Option<String>,
    /// `ttl`: how long it stays idle before it is ended. `None`: for good.
    pub ttl: Option<Duration>,
    /// `unloadTimeout`: how long it may take to end before it is killed (10 s).
    pub unload_timeout: Duration,
    /// `useModelName`: the model's name in requests to it. `None`: what the client said.
    pub use_model_name: Option<String>,
    /// `filters`.
    pub filters: ProcessFilters,
    /// `concurrencyLimit`: most requests at once. `None`: 10, as llama-swap has it.
    pub concurrency_limit: Option<u32>,
    /// `unlisted`: whether `/v1/models` leaves it out.
    pub unlisted: bool,
    /// `metadata`, for clients that ask `/v1/models`.
    pub metadata: Map<String, Value>,
    /// Where it stands.
    pub span: Span,
}

/// Where a process listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortChoice {
    /// At an address that the file says.
    Fixed,
    /// At a port that is put in for `${PORT}` when it is started, from [`ProcessSettings::start_port`] on.
    Chosen,
}

/// `filters`: what happens to parameters of requests.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ProcessFilters {
    /// `stripParams`: left out.
    pub strip_params: Vec<String>,
    /// `setParams`: set.
    pub set_params: Map<String, Value>,
}

/// What holds for all processes.
#[derive(Debug, Clone, PartialEq)]
pub struct ProcessSettings {
    /// `healthCheckTimeout`: how long one may take to get ready (120 s, at least 15).
    pub health_check_timeout: Duration,
    /// `startPort`: the first port for `${PORT}` (5800).
    pub start_port: u16,
    /// `hooks.on_startup.preload`: processes that are started with the server.
    pub preload: Vec<String>,
    /// `groups`: which may run at the same time. Those that no group names are together in one of which one runs at a time.
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
    /// `exclusive`: when one of them starts, those of other groups end (true).
    pub exclusive: bool,
    /// `persistent`: other groups do not end its members (false).
    pub persistent: bool,
    /// `members`: ids of processes.
    pub members: Vec<String>,
}
