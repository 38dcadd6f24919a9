//! The served models: which are loaded, which is loaded next, and which is evicted. Used by the pipeline for each request.
//!
//! One model is loaded at a time, in its own task, so a client that disconnects does not cancel it. If memory is short, the least
//! recently used model is evicted. A model in use is evicted when it becomes idle, or after its turn: then it accepts no more requests
//! and finishes those it has. A turn is long enough that alternating requests do not swap models for each one. Loaded models count
//! against the memory limit, and so does the one being loaded; queued ones do not.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use humansize::{BINARY, format_size};
use octet_api::core::KeepAlive;
use octet_engine::scheduler::Shutdown;
use tokio::sync::watch;

use super::loaded::{Loaded, Progress};
use super::memory::Memory;
use super::names::find;
use super::spec::{BoxError, ModelCard, ModelSpec};
use health::Health;
pub use listing::Unhealthy;

mod health;
mod listing;
mod room;

/// Why a request gets no model.
#[derive(Debug, thiserror::Error)]
pub enum AcquireError {
    /// It cannot be loaded.
    #[error("the model '{name}' cannot be loaded: {why}")]
    Failed {
        /// The model.
        name: String,
        /// The reason.
        why: String,
    },
    /// Too many requests wait for it.
    #[error("too many requests wait for the model '{name}' to be loaded")]
    QueueFull {
        /// The model.
        name: String,
    },
    /// Its device was lost, and it is not loaded again.
    #[error("the model '{name}' is out of service: {why}")]
    Down {
        /// The model.
        name: String,
        /// The reason, and what to do.
        why: String,
    },
    /// The server is shutting down.
    #[error("the server is shutting down")]
    Draining,
}

enum Phase {
    Idle,
    /// Waiting to be loaded; it uses no memory yet.
    Queued,
    /// Being loaded, one at a time. Evicts others first, then reads its file.
    Loading(Arc<Progress>),
    Ready(Arc<Loaded>),
    Unloading,
}

struct State {
    phase: Phase,
    /// Requests that use it or wait for it.
    users: usize,
    waiting: usize,
    /// It accepts no more requests: others wait for its memory.
    leaving: bool,
    last_used: Instant,
    loaded_at: Instant,
    /// The keep-alive of the last request that set one.
    keep_alive: Option<Option<Duration>>,
    /// Number of load attempts, and the last one's error.
    attempt: u64,
    failed: Option<(u64, String)>,
    health: Health,
}

struct Entry {
    spec: ModelSpec,
    card: ModelCard,
}

/// All served models.
pub struct Registry {
    /// Only grows, so that indices stay valid.
    entries: RwLock<Vec<Arc<Entry>>>,
    names: RwLock<HashMap<String, usize>>,
    states: Mutex<Vec<State>>,
    changed: watch::Sender<()>,
    loading: tokio::sync::Mutex<()>,
    memory: Memory,
    /// Maximum number of requests that wait for a model.
    queue: usize,
    draining: AtomicBool,
}

/// Keeps a model loaded while a request needs it.
pub struct Lease {
    registry: Arc<Registry>,
    index: usize,
    entry: Arc<Entry>,
    loaded: Arc<Loaded>,
    /// How long the request waited for the model.
    pub waited: Duration,
}

impl Lease {
    /// The model.
    pub fn model(&self) -> &Arc<Loaded> {
        &self.loaded
    }
    /// The model's metadata.
    pub fn card(&self) -> &ModelCard {
        &self.entry.card
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut states = self.registry.lock();
        let s = &mut states[self.index];
        s.users -= 1;
        s.last_used = Instant::now();
        drop(states);
        self.registry.notify();
    }
}

/// Decrements the number of waiting requests when dropped.
struct WaitingGuard<'a>(&'a Registry, usize);

impl Drop for WaitingGuard<'_> {
    fn drop(&mut self) {
        self.0.lock()[self.1].waiting -= 1;
    }
}

/// An attempt to load a model. If it is dropped without a result (a panic), it counts as failed: the waiting requests get an error,
/// and another attempt is possible.
struct LoadAttempt {
    registry: Arc<Registry>,
    index: usize,
    attempt: u64,
}

impl Drop for LoadAttempt {
    fn drop(&mut self) {
        let mut states = self.registry.lock();
        let s = &mut states[self.index];
        if s.attempt == self.attempt && matches!(s.phase, Phase::Queued | Phase::Loading(_)) {
            let why = "an internal error; the log says more";
            s.health.failed(why, Instant::now());
            s.failed = Some((self.attempt, why.into()));
            s.phase = Phase::Idle;
            cancel_evictions(&mut states);
        }
        drop(states);
        self.registry.notify();
    }
}

/// No load waits for memory any more: models marked for eviction that are still in use stay.
fn cancel_evictions(states: &mut [State]) {
    states.iter_mut().for_each(|s| s.leaving &= matches!(s.phase, Phase::Unloading));
}

impl Registry {
    /// Opens each model's file to read its metadata; loads none. Fails if a model alone exceeds the memory limit.
    pub fn new(specs: Vec<ModelSpec>, memory: Memory, queue: usize) -> Result<Arc<Self>, BoxError> {
        let all = Self {
            states: Mutex::default(),
            entries: RwLock::default(),
            names: RwLock::default(),
            changed: watch::Sender::new(()),
            loading: tokio::sync::Mutex::new(()),
            memory,
            queue,
            draining: AtomicBool::new(false),
        };
        for spec in specs {
            all.add(spec)?;
        }
        Ok(Arc::new(all))
    }

    /// Adds a model; returns its index. Loads nothing.
    pub fn add(&self, spec: ModelSpec) -> Result<usize, BoxError> {
        let card = ModelCard::read(&spec)?;
        if let Some(limit) = self.memory.limit.filter(|limit| card.memory_bytes > *limit) {
            return Err(format!(
                "the model '{}' takes {} and --memory-limit is {}; raise that, or give a smaller --ctx-size, --parallel, \
                 --kv-tokens or --cache-ram",
                spec.name,
                format_size(card.memory_bytes, BINARY),
                format_size(limit, BINARY),
            )
            .into());
        }
        // One is added at a time. The lock of the states is released before the entries are locked: other code locks them in the other
        // order.
        let mut names = self.names.write().unwrap_or_else(PoisonError::into_inner);
        let all: Vec<&String> = std::iter::once(&spec.name).chain(&spec.aliases).collect();
        let twice = all.iter().enumerate().find(|(i, n)| names.contains_key(**n) || all[..*i].contains(*n));
        if let Some((_, name)) = twice {
            return Err(format!("two models are called '{name}'; give them names by --alias").into());
        }
        let index = self.count();
        names.extend(all.into_iter().map(|name| (name.clone(), index)));
        let now = Instant::now();
        self.lock().push(State {
            phase: Phase::Idle,
            users: 0,
            waiting: 0,
            leaving: false,
            last_used: now,
            loaded_at: now,
            keep_alive: None,
            attempt: 0,
            failed: None,
            health: Health::default(),
        });
        self.entries.write().unwrap_or_else(PoisonError::into_inner).push(Arc::new(Entry { spec, card }));
        Ok(index)
    }

    fn entry(&self, index: usize) -> Arc<Entry> {
        Arc::clone(&self.entries.read().unwrap_or_else(PoisonError::into_inner)[index])
    }

    fn entries(&self) -> Vec<Arc<Entry>> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Number of models.
    pub fn count(&self) -> usize {
        self.entries.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<State>> {
        // No code panics in the middle of a change.
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notify(&self) {
        self.changed.send_modify(|()| {});
    }

    /// The index of the model that a client names.
    pub fn find(&self, name: &str) -> Option<usize> {
        find(&self.names.read().unwrap_or_else(PoisonError::into_inner), name)
    }

    /// The index of the model, if there is only one.
    pub fn sole(&self) -> Option<usize> {
        (self.count() == 1).then_some(0)
    }

    /// The names of all models, for error messages.
    pub fn known(&self) -> String {
        let names: Vec<String> = self.entries().iter().map(|e| e.spec.name.clone()).collect();
        names.join(", ")
    }

    /// The listed name of a model.
    pub fn name(&self, index: usize) -> String {
        self.entry(index).spec.name.clone()
    }

    /// The metadata of a model, known without loading it.
    pub fn card(&self, index: usize) -> ModelCard {
        self.entry(index).card.clone()
    }

    /// Waits for the model, and loads it if necessary.
    pub async fn acquire(
        self: &Arc<Self>,
        index: usize,
        keep_alive: Option<KeepAlive>,
    ) -> Result<Lease, AcquireError> {
        let began = Instant::now();
        let mut changed = self.changed.subscribe();
        let mut turn = None;
        // The load attempt that this request waits for.
        let mut seen: Option<u64> = None;
        loop {
            changed.mark_unchanged();
            {
                let mut states = self.lock();
                let s = &mut states[index];
                if self.draining.load(Ordering::Acquire) {
                    return Err(AcquireError::Draining);
                }
                self.notice_end(index, s);
                if let Some(why) = s.health.down() {
                    return Err(AcquireError::Down { name: self.name(index), why });
                }
                match &s.phase {
                    // If its device is lost, it is about to be unloaded and loaded again.
                    Phase::Ready(loaded) if !s.leaving && loaded.handle.lost().is_none() => {
                        s.users += 1;
                        s.last_used = Instant::now();
                        if let Some(k) = keep_alive {
                            s.keep_alive = Some(duration(k));
                        }
                        let (registry, loaded) = (Arc::clone(self), Arc::clone(loaded));
                        let entry = self.entry(index);
                        return Ok(Lease { registry, index, entry, loaded, waited: began.elapsed() });
                    }
                    _ => {}
                }
                if let (Some(seen), Some((failed, why))) = (seen, &s.failed)
                    && *failed >= seen
                {
                    return Err(AcquireError::Failed { name: self.name(index), why: why.clone() });
                }
                if turn.is_none() {
                    if s.waiting >= self.queue {
                        return Err(AcquireError::QueueFull { name: self.name(index) });
                    }
                    s.waiting += 1;
                    turn = Some(WaitingGuard(self, index));
                }
                self.begin_loading(index, s);
                seen.get_or_insert(s.attempt);
            }
            // The sender lives as long as `self`.
            let _ = changed.changed().await;
        }
    }

    /// Starts loading a model, unless it is loaded or loading.
    fn begin_loading(self: &Arc<Self>, index: usize, s: &mut State) {
        if matches!(s.phase, Phase::Idle) {
            s.attempt += 1;
            s.failed = None;
            s.phase = Phase::Queued;
            tokio::spawn(Arc::clone(self).load(index, s.attempt));
        }
    }

    async fn load(self: Arc<Self>, index: usize, attempt: u64) {
        let name = self.name(index);
        let _told = LoadAttempt { registry: Arc::clone(&self), index, attempt };
        let one_at_a_time = self.loading.lock().await;
        let progress = Arc::new(Progress::default());
        self.lock()[index].phase = Phase::Loading(Arc::clone(&progress));
        let room = self.make_room(index).await;
        // Room was made, or cannot be made.
        cancel_evictions(&mut self.lock());
        self.notify();
        let result = match room {
            Ok(()) => {
                tracing::info!(model = name, "loading");
                let entry = self.entry(index);
                let load = move || Loaded::open(&entry.spec, &progress).map_err(|e| e.to_string());
                crate::blocking::spawn_blocking(load).await.unwrap_or_else(|e| Err(e.to_string()))
            }
            Err(why) => Err(why),
        };
        drop(one_at_a_time);
        match &result {
            Ok(loaded) => {
                tracing::info!(model = name, seconds = loaded.load_time.as_secs_f64(), "loaded");
            }
            Err(why) => tracing::error!(model = name, why, "cannot be loaded"),
        }
        let mut states = self.lock();
        let s = &mut states[index];
        match result {
            Ok(loaded) => {
                let now = Instant::now();
                (s.last_used, s.loaded_at, s.leaving) = (now, now, false);
                s.keep_alive = None;
                if self.draining.load(Ordering::Acquire) {
                    loaded.handle.shutdown(Shutdown::Drain);
                }
                s.health.loaded(now);
                let registry = Arc::downgrade(&self);
                loaded.handle.on_end(move || registry.upgrade().iter().for_each(|r| r.notify()));
                s.phase = Phase::Ready(Arc::new(loaded));
            }
            Err(why) => {
                s.health.failed(&why, Instant::now());
                if let Some(why) = s.health.down() {
                    tracing::error!(model = name, why, "the model stays down");
                }
                s.failed = Some((attempt, why));
                s.phase = Phase::Idle;
            }
        }
    }

    async fn unload(self: &Arc<Self>, index: usize, loaded: Arc<Loaded>) {
        tracing::info!(model = self.name(index), "unloading");
        loaded.handle.shutdown(Shutdown::Drain);
        let ended = crate::blocking::spawn_blocking(move || loaded.handle.join()).await;
        if !matches!(ended, Ok(Ok(()))) {
            tracing::error!(model = self.name(index), "the engine ended badly");
        }
        let mut states = self.lock();
        states[index].phase = Phase::Idle;
        states[index].leaving = false;
        drop(states);
        self.notify();
    }

    /// Unloads models whose keep-alive has expired. Runs as long as the server.
    pub async fn unload_idle(self: Arc<Self>) {
        loop {
            let mut changed = self.changed.subscribe();
            changed.mark_unchanged();
            let mut next = None;
            let mut due = Vec::new();
            let entries = self.entries();
            for ((i, s), entry) in self.lock().iter_mut().enumerate().zip(&entries) {
                let keep = s.keep_alive.unwrap_or(entry.spec.keep_alive);
                let (Phase::Ready(loaded), Some(keep), 0) = (&s.phase, keep, s.users) else { continue };
                match keep.checked_sub(s.last_used.elapsed()).filter(|left| !left.is_zero()) {
                    Some(left) => next = Some(next.map_or(left, |n: Duration| n.min(left))),
                    None => {
                        due.push((i, Arc::clone(loaded)));
                        s.phase = Phase::Unloading;
                    }
                }
            }
            for (i, loaded) in due {
                self.unload(i, loaded).await;
            }
            let wait = async {
                let _ = changed.changed().await;
            };
            match next {
                Some(left) => {
                    let _ = tokio::time::timeout(left, wait).await;
                }
                None => wait.await,
            }
        }
    }

    /// Sets a model's keep-alive without a request; zero unloads it.
    pub fn keep(&self, index: usize, keep_alive: KeepAlive) {
        self.lock()[index].keep_alive = Some(duration(keep_alive));
        self.notify();
    }

    /// True during shutdown.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Refuses new requests; those that wait for a model get an error.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
        self.notify();
    }

    /// Stops all engines and waits for their end.
    pub async fn stop(self: &Arc<Self>, how: Shutdown) {
        self.drain();
        let engines: Vec<Arc<Loaded>> = (0..self.count()).filter_map(|i| self.loaded(i)).collect();
        engines.iter().for_each(|l| l.handle.shutdown(how));
        for loaded in engines {
            let ended = crate::blocking::spawn_blocking(move || loaded.handle.join()).await;
            if !matches!(ended, Ok(Ok(()))) {
                tracing::error!("an engine ended badly");
            }
        }
    }
}

fn duration(keep_alive: KeepAlive) -> Option<Duration> {
    match keep_alive {
        KeepAlive::Forever => None,
        // A duration that is too long to represent means forever.
        KeepAlive::Seconds(s) => Duration::try_from_secs_f64(s.max(0.0)).ok(),
    }
}
