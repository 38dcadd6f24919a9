//! The router in front of all endpoints, if there is a configuration. Created from its file, and updated when that changes. Owned by `App`;
//! called by `http`.
//!
//! | file | what |
//! |---|---|
//! | `target` | the target of a deployment: a remote server, a local model |
//! | `servers` | servers that are started on demand |
//! | `read` | reads bodies, partly or fully |
//! | `auth` | authentication, quotas and billing |
//! | `cache` | the response cache |
//! | `relay` | files and batches of an account |
//! | `model_info` | `/model/info` |
//! | `overview` | the admin page's state of the router |
//! | `request_context` | who sent a request, and its fields for the router |
//! | `routed_request` | one request, from authorization to billing |
//! | `alerts` | alerts by webhook |
//! | `discover` | one deployment for each address of a name |
//! | `mock` | answers without a provider |
//! | `shared` | limits that several processes share |
//! | `report` | the report of a request to callbacks |
//! | `watch` | reloads the configuration when its files change |
//! | `check` | `octet config check` |

mod alerts;
mod auth;
mod cache;
mod caller;
mod check;
mod discover;
mod mock;
mod model_info;
mod overview;
pub mod read;
mod relay;
mod report;
mod request_context;
mod routed_request;
mod servers;
mod shared;
mod target;
mod watch;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use octet_api::ApiError;
use octet_api::core::{Abilities, Event, GenerateRequest, ModelInfo};
use octet_callbacks::Callbacks;
use octet_config::{Config, Deployment, Local, Mode, printable};
use octet_keys::Store;
use octet_router::state::States;
use octet_router::{Dialect, Resolved, Router, Table, health};
use octet_upstream::{Client, Limits};

use crate::inference::Inference;
use crate::models::{BoxError, ModelSpec, Registry};
use crate::ops::Keys;
use crate::pipeline::unknown;
use auth::Current;
pub use cache::{Lookup, Responses};
pub use caller::Caller;
pub use check::check;
pub use request_context::{RequestContext, Sender};
pub use routed_request::RoutedRequest;
use servers::Servers;
use target::{LocalTarget, OnDemandTarget, RemoteTarget, Target, ours};

/// Reads the configuration again.
pub type Reload = Arc<dyn Fn() -> Result<Config, String> + Send + Sync>;
/// Creates the model of a deployment in this process, with this name. May take long.
pub type MakeModel = Arc<dyn Fn(&str, &Local) -> Result<ModelSpec, BoxError> + Send + Sync>;

/// A configuration, and the functions that routing needs.
#[derive(Clone)]
pub struct Routes {
    /// The configuration.
    pub config: Config,
    /// Reads it again.
    pub reload: Reload,
    /// Creates models of entries like `octet/...`.
    pub local: MakeModel,
    /// Interval at which the files are checked for changes; `None` is never.
    pub watch: Option<Duration>,
}

impl Routes {
    /// A configuration that does not change, without models in this process.
    pub fn new(config: Config) -> Self {
        let same = config.clone();
        Self {
            config,
            reload: Arc::new(move || Ok(same.clone())),
            local: Arc::new(|name, _| Err(format!("{name}: there are no models in this process").into())),
            watch: Some(Duration::from_secs(1)),
        }
    }
}

/// The router and what belongs to it: keys, cache, callbacks, servers.
pub struct Gateway {
    router: Arc<Router<Target>>,
    client: Client,
    servers: Servers,
    store: Option<Arc<Store>>,
    /// Limits of all processes together.
    shared: Option<Arc<octet_cache::SharedLimits>>,
    current: RwLock<Arc<Current>>,
    routes: Routes,
    /// Keys of the command line, in addition to those of the file.
    keys: Keys,
    inference: Arc<Inference>,
    /// Entries of local models and their index in the registry. Equal entries share a model.
    locals: Mutex<Vec<(Local, usize)>>,
    /// Number of running requests.
    busy: AtomicUsize,
    reloads: AtomicU64,
    /// The configuration as it was read, and the addresses of names in it.
    known: Mutex<discover::Known>,
    reloading: Mutex<()>,
}

impl Gateway {
    /// Creates everything that the configuration names; starts and loads nothing. Must be called inside a tokio runtime.
    pub fn new(inference: &Arc<Inference>, routes: Routes, keys: Keys) -> Result<Self, BoxError> {
        let addresses = discover::look_up(&routes.config, &discover::Addresses::new());
        let config = &discover::expand(&routes.config, &addresses);
        let known = discover::Known { config: routes.config.clone(), addresses };
        // First: the rest may take long, and files may change meanwhile.
        let mut current = Current::new(config, &keys, None)?;
        let client = Client::new(Limits::default()).downloading(inference.image_urls.clone());
        current.callbacks = callbacks(config, &client, None)?;
        let servers = Servers::new(config)?;
        let store = shared::store(config)?;
        let locals = Mutex::default();
        let (targets, unused) = {
            let builder = TargetBuilder {
                inference,
                has_keys: store.is_some(),
                client: &client,
                servers: &servers,
                routes: &routes,
                locals: &locals,
            };
            builder.targets(config)?
        };
        unload_unused(&inference.models, unused);
        let seed = fastrand::u64(..);
        let mut router = Router::new(config, seed, |d| found(&targets, d))?;
        let shared = shared::limits(config)?;
        if let Some(limits) = &shared {
            router = router.with_shared(Arc::new(shared::Deployments(Arc::clone(limits))));
        }
        log_notes(config);
        Ok(Self {
            router: Arc::new(router),
            current: RwLock::new(Arc::new(current)),
            client,
            servers,
            store,
            shared,
            keys,
            inference: Arc::clone(inference),
            locals,
            routes,
            busy: AtomicUsize::new(0),
            reloads: AtomicU64::new(0),
            known: Mutex::new(known),
            reloading: Mutex::new(()),
        })
    }

    /// Reloads the configuration. Running requests finish on the old one. If the new one is invalid, nothing changes. May take long: a model may
    /// have to be downloaded.
    ///
    /// # Errors
    /// The error, in one line.
    pub fn reload(&self) -> Result<(), String> {
        let _one_at_a_time = self.reloading.lock().unwrap_or_else(PoisonError::into_inner);
        let config = (self.routes.reload)()?;
        self.apply(&config).map_err(|e| e.to_string().lines().next().unwrap_or_default().to_string())?;
        self.reloads.fetch_add(1, Ordering::Relaxed);
        log_notes(&config);
        if config.router.redis != self.routes.config.router.redis {
            tracing::warn!("router_settings.redis_url takes effect at the next start");
        }
        let (keys, before) = (&config.keys, &self.routes.config.keys);
        if (&keys.database, &keys.database_url) != (&before.database, &before.database_url) {
            tracing::warn!("keys.database and database_url take effect at the next start");
        }
        Ok(())
    }

    fn apply(&self, config: &Config) -> Result<(), BoxError> {
        let before = self.known.lock().unwrap_or_else(PoisonError::into_inner).addresses.clone();
        let addresses = discover::look_up(config, &before);
        let known = discover::Known { config: config.clone(), addresses };
        let config = &discover::expand(config, &known.addresses);
        // First, as in `new`.
        let mut current = Current::new(config, &self.keys, self.responses().as_ref())?;
        let builder = TargetBuilder {
            inference: &self.inference,
            has_keys: self.has_virtual_keys(),
            client: &self.client,
            servers: &self.servers,
            routes: &self.routes,
            locals: &self.locals,
        };
        let (targets, unused) = builder.targets(config)?;
        // Everything that can fail comes first, so that the old configuration stays complete.
        drop(Table::new(config, &States::default(), |d| found(&targets, d))?);
        // A truncated file is often still valid, without its last sections.
        if current.keys.is_empty() && !self.is_open() && self.store.is_none() {
            return Err(
                "the new configuration has no keys, which would allow everyone: restart the server if that \
                        is intended"
                    .into(),
            );
        }
        match &self.store {
            Some(store) => shared::set_total(store, config)?,
            None if config.keys.max_budget.is_some() => {
                return Err(
                    "litellm_settings.max_budget takes effect at the next start, with keys.database".into()
                );
            }
            None => {}
        }
        self.servers.reload(config)?;
        self.router.reload(config, |d| found(&targets, d))?;
        current.callbacks = callbacks(config, &self.client, Some(&self.current()))?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(current);
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = known;
        unload_unused(&self.inference.models, unused);
        Ok(())
    }

    /// Reloads the configuration, and logs the result.
    pub async fn reload_and_log(self: &Arc<Self>) {
        watch::reload(self).await;
    }

    /// Sends a request and returns the text of the answer, for measurements. `observe` gets its events.
    ///
    /// # Errors
    /// If there is no complete answer.
    pub async fn collect(
        &self,
        request: GenerateRequest,
        observe: &mut (dyn FnMut(&Event) + Send),
    ) -> Result<String, ApiError> {
        let mut reply = self.router.send(octet_router::Call::new(request));
        let mut out = String::new();
        while let Some(piece) = reply.next().await {
            let octet_router::Piece::Event(event) = piece else { continue };
            observe(&event);
            match event {
                Event::Text { text, .. } => out += &text,
                Event::Error(e) => return Err(e),
                _ => {}
            }
        }
        Ok(out)
    }

    /// Sends a request, reads the whole answer, and returns its route, for measurements.
    pub async fn routed(&self, call: octet_router::Call) -> octet_router::Route {
        let mut reply = self.router.send(call);
        while reply.next().await.is_some() {}
        reply.route()
    }

    /// The embedding of a text by the first model in this process that answers for `name`.
    pub async fn embedding(&self, name: &str, text: &str) -> Option<Vec<f32>> {
        let table = self.router.table();
        let Resolved::Group { group, .. } = table.resolve(name) else { return None };
        let local = group.deployments.iter().find(|d| octet_router::Target::is_local(&d.target))?;
        octet_router::Target::embed(&local.target, text).await
    }

    /// Number of reloads.
    pub fn reloads(&self) -> u64 {
        self.reloads.load(Ordering::Relaxed)
    }

    /// The router.
    pub(crate) fn router(&self) -> &Arc<Router<Target>> {
        &self.router
    }

    fn current(&self) -> Arc<Current> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The response cache, if there is one.
    pub fn responses(&self) -> Option<Arc<Responses>> {
        self.current().responses.clone()
    }

    /// Number of reports that callbacks did not get.
    pub fn callbacks_dropped(&self) -> u64 {
        self.current().callbacks.as_ref().map_or(0, |c| c.dropped())
    }

    /// Number of errors of the response cache.
    pub fn cache_errors(&self) -> u64 {
        self.responses().map_or(0, |r| r.errors())
    }

    /// Limits of all processes together, if they share them.
    pub(crate) fn shared(&self) -> Option<&Arc<octet_cache::SharedLimits>> {
        self.shared.as_ref()
    }

    /// Number of running requests.
    pub fn busy(&self) -> usize {
        self.busy.load(Ordering::Acquire)
    }

    /// Watches the configuration's files and the deployments' health. Runs as long as the server.
    pub async fn run(self: Arc<Self>) {
        if let Err(e) = self.servers.preload(&self.routes.config) {
            tracing::error!("preloading failed: {e}");
        }
        let health = health::watch(Arc::clone(&self.router));
        let files = async {
            if let Some(every) = self.routes.watch {
                watch::files(Arc::clone(&self), every).await;
            }
        };
        tokio::join!(
            health,
            files,
            shared::watch(&self),
            discover::watch(Arc::clone(&self)),
            alerts::watch(Arc::clone(&self))
        );
    }

    /// Stops started servers, and writes usage to disk.
    pub async fn stop(&self) {
        self.servers.shutdown().await;
        if let Some(callbacks) = self.current().callbacks.clone() {
            callbacks.flush(FLUSH_MAX).await;
        }
        let Some(store) = self.store.clone() else { return };
        // SQLite waits for the disk, and for other processes.
        let written =
            crate::blocking::spawn_blocking(move || store.checkpoint().map_err(|e| e.to_string())).await;
        if let Err(e) = written.map_err(|e| e.to_string()).flatten() {
            tracing::error!("the last usage could not be written: {e}");
        }
    }

    /// Whether a client's bytes can be forwarded to every deployment of `name`, so that `read::peek` reads enough of them.
    pub fn passes(&self, name: &str, dialect: Dialect) -> bool {
        let table = self.router.table();
        let Resolved::Group { group, .. } = table.resolve(name) else { return false };
        let by_content =
            group.strategy == octet_config::Strategy::PrefixAffinity || table.policy.check_context;
        !by_content
            && !group.deployments.is_empty()
            && group.deployments.iter().all(|d| {
                let speaks = matches!(&d.target, Target::RemoteTarget(far) if far.speaks(dialect));
                speaks && d.shadow.is_none() && d.terms.limits.tpm.is_none()
            })
    }

    /// Whether a stream for `name` may be continued by another deployment if it breaks off. Then the request must be parsed.
    pub fn continues_streams(&self, name: &str) -> bool {
        let table = self.router.table();
        matches!(table.resolve(name), Resolved::Group { group, .. } if table.continues_streams(group))
    }

    /// The registry index of `name`, if it is a model in this process.
    pub fn local(&self, name: &str) -> Result<usize, ApiError> {
        let table = self.router.table();
        let Some(name) = known(&table, name) else { return Err(unknown(name, &table.known())) };
        let mut seen = name.to_string();
        // A cascade counts as its fast model.
        if let Resolved::Cascade { cascade, .. } = table.resolve(name) {
            seen.clone_from(&cascade.fast);
        }
        let here = match table.resolve(&seen) {
            Resolved::Group { group, .. } => group.deployments.iter().find_map(|d| match &d.target {
                Target::LocalTarget(here) => Some(here.index()),
                _ => None,
            }),
            _ => None,
        };
        here.ok_or_else(|| {
            let what = format!("'{name}' is not a model in this process, and this endpoint needs one");
            ApiError::invalid("model", what)
        })
    }

    /// Whether only other servers answer for `name`.
    pub fn is_elsewhere(&self, name: &str) -> bool {
        let table = self.router.table();
        let Some(name) = known(&table, name) else { return false };
        let here = |d: &Arc<octet_router::Deployment<Target>>| matches!(d.target, Target::LocalTarget(_));
        matches!(table.resolve(name), Resolved::Group { group, .. } if !group.deployments.iter().any(here))
    }

    /// The name in the table: Ollama's clients add a tag.
    pub fn name<'a>(&self, name: &'a str) -> &'a str {
        known(&self.router.table(), name).unwrap_or(name)
    }

    /// All names that `caller` may use, for lists.
    pub fn list(&self, caller: &Caller) -> Vec<ModelInfo> {
        let current = self.current();
        let table = self.router.table();
        let names = table.names().iter();
        let shown = names.filter(|n| !current.unlisted.contains(*n) && self.may_use(caller, n));
        shown.map(|name| self.info_in(&table, &current, name)).collect()
    }

    /// The list entry of a name.
    pub fn info(&self, name: &str, caller: &Caller) -> Result<ModelInfo, ApiError> {
        let table = self.router.table();
        match known(&table, name).filter(|name| self.may_use(caller, name)) {
            Some(name) => Ok(self.info_in(&table, &self.current(), name)),
            // Does not reveal names that it may not use.
            None if matches!(caller, Caller::Key(_)) => {
                let may = table.names().iter().filter(|n| self.may_use(caller, n));
                let may: Vec<&str> = may.map(String::as_str).collect();
                Err(unknown(name, &if may.is_empty() { "none".into() } else { may.join(", ") }))
            }
            None => Err(unknown(name, &table.known())),
        }
    }

    fn info_in(&self, table: &Table<Target>, current: &Current, name: &str) -> ModelInfo {
        if let Ok(index) = self.local(name) {
            return ModelInfo { id: name.into(), ..self.inference.models.info(index) };
        }
        let group = match table.resolve(name) {
            Resolved::Group { group, .. } => Some(group),
            _ => None,
        };
        let window = group.and_then(|g| g.window_tokens()).and_then(|n| u32::try_from(n).ok());
        let deployments = group.map_or(&[][..], |g| &g.deployments);
        let first = deployments.first().and_then(|d| current.about.get(d.id()));
        let sees = |d: &Arc<octet_router::Deployment<Target>>| match &d.target {
            Target::LocalTarget(local) => self.inference.models.info(local.index()).abilities.vision,
            _ => current.about.get(d.id()).is_some_and(|a| a.info.supports_vision == Some(true)),
        };
        let first = first.map(|a| &a.info);
        let embeds = first.is_some_and(|i| i.mode == Mode::Embedding);
        let passes = first.is_some_and(|i| matches!(i.mode, Mode::Passed(_)));
        ModelInfo {
            id: name.into(),
            created_s: current.created_s,
            context_length: window.unwrap_or_default(),
            trained_context_length: window.unwrap_or_default(),
            abilities: Abilities {
                completion: !embeds && !passes,
                tools: first.is_none_or(|i| i.supports_function_calling.unwrap_or(true)),
                thinking: first.is_some_and(|i| i.supports_reasoning.unwrap_or(false)),
                embedding: embeds,
                vision: deployments.iter().any(sees) && !embeds && !passes,
            },
            ..ModelInfo::default()
        }
    }
}

/// `name`, or `name` without the tag that Ollama's clients add, if that is known.
fn known<'a>(table: &Table<Target>, name: &'a str) -> Option<&'a str> {
    let is_known = |name: &&str| !matches!(table.resolve(name), Resolved::Unknown);
    Some(name).filter(is_known).or_else(|| name.strip_suffix(":latest").filter(is_known))
}

fn found(targets: &HashMap<String, Target>, d: &Deployment) -> Result<Target, String> {
    targets.get(&d.id).cloned().ok_or_else(|| format!("the deployment '{}' was not created", d.id))
}

/// Time limit for the last reports at shutdown.
const FLUSH_MAX: Duration = Duration::from_secs(5);

/// The receivers of reports; those of `old` stay in use if their settings are the same.
fn callbacks(
    config: &Config,
    client: &Client,
    old: Option<&Current>,
) -> Result<Option<Arc<Callbacks>>, String> {
    if let Some(old) = old.filter(|old| old.callback_settings == config.callbacks) {
        return Ok(old.callbacks.clone());
    }
    let none = config.callbacks.is_empty();
    if none { Ok(None) } else { Callbacks::start(&config.callbacks, client).map(|c| Some(Arc::new(c))) }
}

/// Logs the configuration's notes.
fn log_notes(config: &Config) {
    for note in octet_config::grouped(&config.notes) {
        tracing::warn!("{note}");
    }
}

/// Unloads models without a name when they are idle.
fn unload_unused(models: &Registry, unused: Vec<usize>) {
    for index in unused {
        models.keep(index, octet_api::core::KeepAlive::Seconds(0.0));
    }
}

/// Creates targets of deployments.
struct TargetBuilder<'a> {
    inference: &'a Arc<Inference>,
    /// There are virtual keys.
    has_keys: bool,
    client: &'a Client,
    servers: &'a Servers,
    routes: &'a Routes,
    locals: &'a Mutex<Vec<(Local, usize)>>,
}

impl TargetBuilder<'_> {
    /// A target for each deployment, by its id; and the models that no deployment uses.
    fn targets(&self, config: &Config) -> Result<(HashMap<String, Target>, Vec<usize>), BoxError> {
        let mut out = HashMap::new();
        let mut used = HashSet::new();
        for d in &config.deployments {
            let made = self.target(d, &mut used).map_err(|e| {
                let group = printable(d.group.as_str());
                format!("{}: '{group}': {e}", d.span)
            })?;
            out.insert(d.id.clone(), made);
        }
        let locals = self.locals.lock().unwrap_or_else(PoisonError::into_inner);
        let unused = locals.iter().map(|(_, index)| *index).filter(|i| !used.contains(i)).collect();
        Ok((out, unused))
    }

    fn target(&self, d: &Deployment, used: &mut HashSet<usize>) -> Result<Target, BoxError> {
        Ok(match &d.target {
            octet_config::Target::Remote(remote) if d.info.mock.is_some() => {
                let text = d.info.mock.as_deref().unwrap_or_default();
                Target::MockTarget(Arc::new(mock::MockTarget::new(text, &remote.model)))
            }
            octet_config::Target::Remote(remote) => {
                let far = RemoteTarget::new(
                    self.client,
                    remote.clone(),
                    d.params.clone(),
                    d.info.max_output_tokens,
                );
                Target::RemoteTarget(far?)
            }
            octet_config::Target::Local(local) => {
                let index = self.local(local)?;
                used.insert(index);
                let ours = ours(&local.model, &local.changes, &d.params);
                Target::LocalTarget(LocalTarget::new(self.inference, index, ours, !self.has_keys))
            }
            octet_config::Target::Process(process) => {
                let most = d.info.max_output_tokens;
                let (process, params) = (process.clone(), d.params.clone());
                Target::OnDemandTarget(Arc::new(OnDemandTarget::new(
                    self.servers,
                    self.client,
                    process,
                    params,
                    most,
                )))
            }
        })
    }

    /// The model of an entry; a new one unless an equal entry exists.
    fn local(&self, local: &Local) -> Result<usize, BoxError> {
        let bare = Local { changes: octet_config::Changes::default(), ..local.clone() };
        let mut locals = self.locals.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, index)) = locals.iter().find(|(known, _)| *known == bare) {
            return Ok(*index);
        }
        let same_name = |name: &str| self.inference.models.find(name).is_some();
        let mut name = local.model.clone();
        let mut n = 1;
        while same_name(&name) {
            n += 1;
            name = format!("{}#{n}", local.model);
        }
        let began = Instant::now();
        let spec = (self.routes.local)(&name, local)?;
        let index =
            self.inference.models.add(ModelSpec { name: name.clone(), aliases: Vec::new(), ..spec })?;
        tracing::debug!(model = name, seconds = began.elapsed().as_secs_f64(), "model added");
        locals.push((bare, index));
        Ok(index)
    }
}
