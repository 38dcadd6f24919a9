//! The router in front of everything, where a configuration says so: made of its file, and made anew when that changes. Held by `App`;
//! asked by `http`.
//!
//! | file | what |
//! |---|---|
//! | `target` | who answers for a deployment |
//! | `servers` | those that are started first |
//! | `read` | how much of a body is read |
//! | `auth` | who may come in, and what that costs whom |
//! | `cache` | answers that are given again |
//! | `relay` | files and batches, which are an account's |
//! | `model_info` | what is told of deployments |
//! | `overview` | what an operator's page shows |
//! | `routed_request` | one request on its way through |
//! | `told` | what callbacks are told of it |
//! | `watch` | the file changes |
//! | `check` | what of it would be refused |

mod auth;
mod cache;
mod caller;
mod check;
mod model_info;
mod overview;
pub mod read;
mod relay;
mod routed_request;
mod servers;
mod target;
mod told;
mod watch;

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use octet_api::ApiError;
use octet_api::core::{Abilities, Event, GenerateRequest, ModelInfo};
use octet_callbacks::Callbacks;
use octet_config::{Config, Deployment, Local, Mode, printable};
use octet_keys::Store;
use octet_router::state::States;
use octet_router::{Dialect, Resolved, Router, Table, health};
use octet_upstream::{Client, Limits};

use crate::app::App;
use crate::models::{BoxError, ModelSpec, Registry};
use crate::ops::Keys;
use crate::pipeline::unknown;
use auth::Current;
pub use cache::{Lookup, Responses};
pub use caller::Caller;
pub use check::check;
pub use routed_request::{RequestContext, RoutedRequest};
use servers::Servers;
use target::{LocalTarget, OnDemandTarget, RemoteTarget, Target, ours};

/// Reads the configuration again.
pub type Reload = Arc<dyn Fn() -> Result<Config, String> + Send + Sync>;
/// Makes a model of a deployment in this process, under this name; may take its time.
pub type MakeModel = Arc<dyn Fn(&str, &Local) -> Result<ModelSpec, BoxError> + Send + Sync>;

/// A configuration, and what else is needed to route by it.
#[derive(Clone)]
pub struct Routes {
    /// What the file says.
    pub config: Config,
    /// Reads it again.
    pub reload: Reload,
    /// Makes models of entries like `octet/...`.
    pub local: MakeModel,
    /// How often to look whether the file has changed; `None` is never.
    pub watch: Option<Duration>,
}

impl Routes {
    /// A configuration that stays as it is, without models in this process.
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

/// The router at work.
pub struct Gateway {
    router: Arc<Router<Target>>,
    client: Client,
    servers: Servers,
    store: Option<Arc<Store>>,
    database: Option<PathBuf>,
    current: RwLock<Arc<Current>>,
    routes: Routes,
    /// Keys of the command line, beside those of the file.
    keys: Keys,
    app: Weak<App>,
    models: Arc<Registry>,
    /// Which model of the registry an entry is: those that say the same share one.
    locals: Mutex<Vec<(Local, usize)>>,
    /// Requests on their way through.
    busy: AtomicUsize,
    reloads: AtomicU64,
    reloading: Mutex<()>,
}

impl Gateway {
    /// Makes everything that the configuration names; starts and loads nothing. Belongs into a runtime of tokio's.
    pub fn new(
        app: &Weak<App>,
        models: &Arc<Registry>,
        routes: Routes,
        keys: Keys,
    ) -> Result<Self, BoxError> {
        let config = &routes.config;
        // First, for the rest may take its time, and files may change meanwhile.
        let mut current = Current::new(config, &keys, None)?;
        let client = Client::new(Limits::default());
        current.callbacks = callbacks(config, &client, None)?;
        let servers = Servers::new(config)?;
        let store = match &config.keys.database {
            Some(path) => {
                let options =
                    octet_keys::Options { retention_days: config.keys.usage_days, ..Default::default() };
                let store = Store::open_with(path, options)?;
                set_total(&store, config)?;
                Some(Arc::new(store))
            }
            None => None,
        };
        let locals = Mutex::default();
        let (targets, unused) = {
            let maker =
                Maker { app, models, client: &client, servers: &servers, routes: &routes, locals: &locals };
            maker.targets(config)?
        };
        models_go(models, unused);
        let seed = fastrand::u64(..);
        let router = Router::new(config, seed, |d| found(&targets, d))?;
        tell(config);
        Ok(Self {
            router: Arc::new(router),
            database: config.keys.database.clone(),
            current: RwLock::new(Arc::new(current)),
            client,
            servers,
            store,
            keys,
            app: app.clone(),
            models: Arc::clone(models),
            locals,
            routes,
            busy: AtomicUsize::new(0),
            reloads: AtomicU64::new(0),
            reloading: Mutex::new(()),
        })
    }

    /// Takes the file as it is now. Requests that run finish on the old one; where the new one is broken, nothing changes. Takes its
    /// time: a model may have to be fetched.
    ///
    /// # Errors
    /// What is wrong, in one line.
    pub fn reload(&self) -> Result<(), String> {
        let _one_at_a_time = self.reloading.lock().unwrap_or_else(PoisonError::into_inner);
        let config = (self.routes.reload)()?;
        self.take(&config).map_err(|e| e.to_string().lines().next().unwrap_or_default().to_string())?;
        self.reloads.fetch_add(1, Ordering::Relaxed);
        tell(&config);
        if config.keys.database != self.database {
            tracing::warn!("keys.database takes effect at the next start");
        }
        Ok(())
    }

    fn take(&self, config: &Config) -> Result<(), BoxError> {
        // First, as in `new`.
        let mut current = Current::new(config, &self.keys, self.responses().as_ref())?;
        let maker = Maker {
            app: &self.app,
            models: &self.models,
            client: &self.client,
            servers: &self.servers,
            routes: &self.routes,
            locals: &self.locals,
        };
        let (targets, unused) = maker.targets(config)?;
        // All that can fail comes first, so that the old one stays as a whole.
        drop(Table::new(config, &States::default(), |d| found(&targets, d))?);
        // A file that is cut off is often still a whole one, without its last sections.
        if current.keys.is_empty() && !self.is_open() && self.store.is_none() {
            return Err("no key is named any more, which would let everybody in: start the server anew if \
                        that is meant"
                .into());
        }
        match &self.store {
            Some(store) => set_total(store, config)?,
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
        models_go(&self.models, unused);
        Ok(())
    }

    /// Takes the file as it is now, and says in the log how that went.
    pub async fn again(self: &Arc<Self>) {
        watch::again(self).await;
    }

    /// The text of an answer, beside the server: for measurements. Its events are shown to `see`.
    ///
    /// # Errors
    /// Where nobody answers, or not to the end.
    pub async fn collect(
        &self,
        request: GenerateRequest,
        see: &mut (dyn FnMut(&Event) + Send),
    ) -> Result<String, ApiError> {
        let mut reply = self.router.send(octet_router::Call::new(request));
        let mut out = String::new();
        while let Some(piece) = reply.next().await {
            let octet_router::Piece::Event(event) = piece else { continue };
            see(&event);
            match event {
                Event::Text { text, .. } => out += &text,
                Event::Error(e) => return Err(e),
                _ => {}
            }
        }
        Ok(out)
    }

    /// Sends a request, reads its answer to the end, and says how it was found: for measurements.
    pub async fn routed(&self, call: octet_router::Call) -> octet_router::Route {
        let mut reply = self.router.send(call);
        while reply.next().await.is_some() {}
        reply.route()
    }

    /// An embedding of a text by the first model in this process that answers for `name`.
    pub async fn embedding(&self, name: &str, text: &str) -> Option<Vec<f32>> {
        let table = self.router.table();
        let Resolved::Group { group, .. } = table.resolve(name) else { return None };
        let local = group.deployments.iter().find(|d| octet_router::Target::is_local(&d.target))?;
        octet_router::Target::embed(&local.target, text).await
    }

    /// How often another file was taken.
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

    /// The cache of responses, if there is one.
    pub fn responses(&self) -> Option<Arc<Responses>> {
        self.current().responses.clone()
    }

    /// Records of requests that no callback got.
    pub fn callbacks_dropped(&self) -> u64 {
        self.current().callbacks.as_ref().map_or(0, |c| c.dropped())
    }

    /// How often the cache of responses could not be asked.
    pub fn cache_errors(&self) -> u64 {
        self.responses().map_or(0, |r| r.errors())
    }

    /// Requests on their way through.
    pub fn busy(&self) -> usize {
        self.busy.load(Ordering::Acquire)
    }

    /// Looks after the file, and after the deployments' health. Runs as long as the server.
    pub async fn run(self: Arc<Self>) {
        if let Err(e) = self.servers.preload(&self.routes.config) {
            tracing::error!("not started beforehand: {e}");
        }
        let health = health::watch(Arc::clone(&self.router));
        match self.routes.watch {
            Some(every) => {
                tokio::join!(health, watch::files(Arc::clone(&self), every));
            }
            None => health.await,
        }
    }

    /// Ends what was started, and writes what was used.
    pub async fn stop(&self) {
        self.servers.shutdown().await;
        if let Some(callbacks) = self.current().callbacks.clone() {
            callbacks.flush(FLUSH_MAX).await;
        }
        let Some(store) = self.store.clone() else { return };
        // SQLite waits for the disk, and for other processes.
        let written = tokio::task::spawn_blocking(move || store.flush().map_err(|e| e.to_string())).await;
        if let Err(e) = written.map_err(|e| e.to_string()).flatten() {
            tracing::error!("what was used last is not recorded: {e}");
        }
    }

    /// Whether a client's bytes can go to whoever answers for `name`, without more being read of them than `read::peek` does.
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

    /// Whether somebody may go on with what breaks off of an answer for `name`: then it has to be read.
    pub fn mends(&self, name: &str) -> bool {
        let table = self.router.table();
        matches!(table.resolve(name), Resolved::Group { group, .. } if table.is_mended(group))
    }

    /// Which model of the registry `name` is, where one in this process answers.
    pub fn local(&self, name: &str) -> Result<usize, ApiError> {
        let table = self.router.table();
        let Some(name) = known(&table, name) else { return Err(unknown(name, &table.known())) };
        let mut seen = name.to_string();
        // A cascade is asked for by what its fast model is.
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
            let what = format!("'{name}' is not a model in this process, and this can only be asked of one");
            ApiError::invalid("model", what)
        })
    }

    /// Whether other servers answer for `name`, and no model in this process.
    pub fn is_elsewhere(&self, name: &str) -> bool {
        let table = self.router.table();
        let Some(name) = known(&table, name) else { return false };
        let here = |d: &Arc<octet_router::Deployment<Target>>| matches!(d.target, Target::LocalTarget(_));
        matches!(table.resolve(name), Resolved::Group { group, .. } if !group.deployments.iter().any(here))
    }

    /// The name as the table has it: Ollama's clients add a tag.
    pub fn name<'a>(&self, name: &'a str) -> &'a str {
        known(&self.router.table(), name).unwrap_or(name)
    }

    /// All names, for lists: those that `caller` may use.
    pub fn list(&self, caller: &Caller) -> Vec<ModelInfo> {
        let current = self.current();
        let table = self.router.table();
        let names = table.names().iter();
        let shown = names.filter(|n| !current.unlisted.contains(*n) && self.may_use(caller, n));
        shown.map(|name| self.info_in(&table, &current, name)).collect()
    }

    /// One name, as lists show it.
    pub fn info(&self, name: &str, caller: &Caller) -> Result<ModelInfo, ApiError> {
        let table = self.router.table();
        match known(&table, name).filter(|name| self.may_use(caller, name)) {
            Some(name) => Ok(self.info_in(&table, &self.current(), name)),
            // Names that it may not use are not told.
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
            return ModelInfo { id: name.into(), ..self.models.info(index) };
        }
        let group = match table.resolve(name) {
            Resolved::Group { group, .. } => Some(group),
            _ => None,
        };
        let window = group.and_then(|g| g.window_tokens()).and_then(|n| u32::try_from(n).ok());
        let first = group.and_then(|g| g.deployments.first()).and_then(|d| current.about.get(d.id()));
        let first = first.map(|a| &a.info);
        let embeds = first.is_some_and(|i| i.mode == Mode::Embedding);
        let passes = first.is_some_and(|i| matches!(i.mode, Mode::Passed(_)));
        ModelInfo {
            id: name.into(),
            created_s: current.created_s,
            context_length: window.unwrap_or_default(),
            abilities: Abilities {
                completion: !embeds && !passes,
                tools: first.is_none_or(|i| i.supports_function_calling.unwrap_or(true)),
                thinking: first.is_some_and(|i| i.supports_reasoning.unwrap_or(false)),
                embedding: embeds,
            },
            ..ModelInfo::default()
        }
    }
}

/// `name`, or without the tag that Ollama's clients add, where that is known.
fn known<'a>(table: &Table<Target>, name: &'a str) -> Option<&'a str> {
    let is_known = |name: &&str| !matches!(table.resolve(name), Resolved::Unknown);
    Some(name).filter(is_known).or_else(|| name.strip_suffix(":latest").filter(is_known))
}

fn found(targets: &HashMap<String, Target>, d: &Deployment) -> Result<Target, String> {
    targets.get(&d.id).cloned().ok_or_else(|| format!("the deployment '{}' was not made", d.id))
}

/// Sets the budget of all requests together, where there is one.
fn set_total(store: &Store, config: &Config) -> Result<(), octet_keys::Error> {
    let Some(usd) = config.keys.max_budget else { return Ok(()) };
    let seconds = config.keys.budget_duration.map(|d| u32::try_from(d.as_secs()).unwrap_or(u32::MAX));
    store.set_total(octet_keys::budget(usd, seconds)?)
}

/// Most time for the last records of requests when the server ends.
const FLUSH_MAX: Duration = Duration::from_secs(5);

/// Where requests are reported; the destinations of `old` go on if the configuration says the same.
fn callbacks(
    config: &Config,
    client: &Client,
    old: Option<&Current>,
) -> Result<Option<Arc<Callbacks>>, String> {
    if let Some(old) = old.filter(|old| old.told == config.callbacks) {
        return Ok(old.callbacks.clone());
    }
    let none = config.callbacks.is_empty();
    if none { Ok(None) } else { Callbacks::start(&config.callbacks, client).map(|c| Some(Arc::new(c))) }
}

/// What the user should know of a configuration.
fn tell(config: &Config) {
    for note in &config.notes {
        tracing::warn!("{note}");
    }
}

/// Models that no name leads to any more make way when they are idle.
fn models_go(models: &Registry, unused: Vec<usize>) {
    for index in unused {
        models.keep(index, octet_api::core::KeepAlive::Seconds(0.0));
    }
}

/// Makes targets of deployments.
struct Maker<'a> {
    app: &'a Weak<App>,
    models: &'a Arc<Registry>,
    client: &'a Client,
    servers: &'a Servers,
    routes: &'a Routes,
    locals: &'a Mutex<Vec<(Local, usize)>>,
}

impl Maker<'_> {
    /// One for each deployment, by its id; and the models that none of them is.
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
                Target::LocalTarget(LocalTarget::new(self.app, self.models, index, ours))
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

    /// The model of an entry; a new one where no other entry says the same.
    fn local(&self, local: &Local) -> Result<usize, BoxError> {
        let bare = Local { changes: octet_config::Changes::default(), ..local.clone() };
        let mut locals = self.locals.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, index)) = locals.iter().find(|(known, _)| *known == bare) {
            return Ok(*index);
        }
        let same_name = |name: &str| self.models.find(name).is_some();
        let mut name = local.model.clone();
        let mut n = 1;
        while same_name(&name) {
            n += 1;
            name = format!("{}#{n}", local.model);
        }
        let began = Instant::now();
        let spec = (self.routes.local)(&name, local)?;
        let index = self.models.add(ModelSpec { name: name.clone(), aliases: Vec::new(), ..spec })?;
        tracing::debug!(model = name, seconds = began.elapsed().as_secs_f64(), "known");
        locals.push((bare, index));
        Ok(index)
    }
}
