//! What a configuration says, as plain data. Filled in by the reader; looked at by everything that routes.
//!
//! A client asks for a *group* by name. A group is all [`Deployment`]s of that name, and one of them answers. Names that are no
//! group's are tried as [`RouterSettings::aliases`], then as [`Cascade`]s, then against groups with a wildcard.

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
pub use callback::{Callback, CallbackForm, JsonForm};
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

/// A whole configuration: the file and all that it includes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Config {
    /// All deployments, in the file's order; those of one group need not stand together. Every process is one too, under
    /// its own name and its aliases, unless the file gives it others.
    pub deployments: Vec<Deployment>,
    /// Deployments that are left out because something they need is not there: a key in the environment. Requests for a
    /// group that has no other are refused with the reason.
    pub skipped: Vec<Skipped>,
    /// How one deployment of several is chosen, and what happens when it fails.
    pub router: RouterSettings,
    /// Routes that ask a fast model first and a strong one where it is needed.
    pub cascades: Vec<Cascade>,
    /// Servers that are started on demand.
    pub processes: Vec<Process>,
    /// What holds for all processes.
    pub process_settings: ProcessSettings,
    /// The server itself.
    pub server: ServerSettings,
    /// Virtual keys and budgets.
    pub keys: KeysSettings,
    /// What models cost where their entries do not say.
    pub prices: PriceList,
    /// Where finished requests are reported.
    pub callbacks: Vec<Callback>,
    /// Whether answers are kept and given again.
    pub cache: Option<ResponseCache>,
    /// Checks that run beside the requests.
    pub health: HealthChecks,
    /// The files that were read: the first and all that it includes. A change of one of them is a change of the configuration.
    pub files: Vec<PathBuf>,
    /// What the user should know; to be logged at the start and after a reload.
    pub notes: Vec<Note>,
}
