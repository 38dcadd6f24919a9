//! A configuration as plain data. Filled in by the reader; read by the router and the server.
//!
//! A client requests a *group* by name. A group is all [`Deployment`]s of that name, and one of them answers. Other names
//! are tried as [`RouterSettings::aliases`], then as [`Cascade`]s, then against groups with a wildcard.

mod cache;
mod callback;
mod cascade;
mod deployment;
mod keys;
mod process;
mod router;
mod server;
mod signal;
mod target;
mod wildcard;

pub use cache::{CacheStore, CachedCalls, RedisServer, ResponseCache};
pub use callback::{AlertForm, AlertReceiver, Callback, CallbackForm, Hook, JsonForm};
pub use cascade::{Cascade, Condition, Confidence, HeaderMatch, Pattern, Rule, Side};
pub use deployment::{Deployment, Mode, ModelInfo, Shadow, Skipped};
pub use keys::{KeyBounds, KeyDefaults, KeysSettings, LimitDefaults, UserDefaults};
pub use process::{PortChoice, Process, ProcessFilters, ProcessGroup, ProcessSettings};
pub use router::{Alias, ErrorCounts, Fallback, RouterSettings, SessionKey, Sticky, Strategy, TagFilter};
pub use server::{HealthChecks, ServerSettings};
pub use signal::{Measure, Over, Prerouter, Signal, Threshold};
pub use target::{
    Auth, Aws, Changes, Edits, EngineSettings, Entra, Google, KeepAlive, Local, ProcessTarget, Provider,
    Remote, ResponsesUse, Target,
};
pub use wildcard::GroupName;

use std::path::PathBuf;

use crate::{Note, PriceList};

/// A configuration: the file and all files that it includes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Config {
    /// All deployments, in the file's order; those of one group may be apart. Every process is one too, under
    /// its own name and its aliases, unless the file gives it others.
    pub deployments: Vec<Deployment>,
    /// Deployments that are left out because something is missing, such as a key in the environment. Requests for a
    /// group without another deployment are refused with the reason.
    pub skipped: Vec<Skipped>,
    /// How one deployment of several is chosen, and what happens when it fails.
    pub router: RouterSettings,
    /// Routes that try a fast model first and a strong one if necessary.
    pub cascades: Vec<Cascade>,
    /// Servers that are started on demand.
    pub processes: Vec<Process>,
    /// Settings for all processes.
    pub process_settings: ProcessSettings,
    /// The server itself.
    pub server: ServerSettings,
    /// Virtual keys and budgets.
    pub keys: KeysSettings,
    /// Default prices of models.
    pub prices: PriceList,
    /// Where finished requests are reported.
    pub callbacks: Vec<Callback>,
    /// Servers that see each request or each answer, in order.
    pub hooks: Vec<Hook>,
    /// Where alerts are sent.
    pub alerts: Vec<AlertReceiver>,
    /// The response cache, if it is on.
    pub cache: Option<ResponseCache>,
    /// `mcp_servers`: MCP servers for the chat page's tools, by name, as in a file of `mcpServers`; null without.
    pub mcp_servers: serde_json::Value,
    /// Background health checks.
    pub health: HealthChecks,
    /// The files that were read: the main file and all that it includes. They are watched for changes.
    pub files: Vec<PathBuf>,
    /// Notes for the user, logged at the start and after a reload.
    pub notes: Vec<Note>,
}
