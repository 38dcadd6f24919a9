//! The models that are served: who is in memory, who is loaded next, who has to go. Asked by the pipeline for each request.
//!
//! One model is loaded at a time, in a task of its own, so that a client that leaves takes nothing with it. Where memory is
//! short the least recently used model goes; one that is in use goes when it is idle, or has had its turn: then it takes no
//! more requests, finishes those that it has, and makes way. That is long enough for alternating requests to be answered in
//! turns and not to swap models for each. Models in memory are billed, and the one that is being loaded; those that only wait
//! for that are not.

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

/// Why there is no model for a request.
#[derive(Debug, thiserror::Error)]
pub enum AcquireError {
    /// It cannot be loaded.
    #[error("the model '{name}' cannot be loaded: {why}")]
    Failed {
        /// Which.
        name: String,
        /// The cause.
        why: String,
    },
    /// Too many wait for it.
    #[error("too many requests wait for the model '{name}' to be loaded")]
    QueueFull {
        /// Which.
        name: String,
    },
    /// Its device was lost, and it is not loaded again.
    #[error("the model '{name}' is out of service: {why}")]
    Down {
        /// Which.
        name: String,
        /// The cause, and what to do.
        why: String,
    },
    /// The server is shutting down.
    #[error("the server is shutting down")]
    Draining,
}

enum Phase {
    Idle,
    /// Its turn to be loaded has not come: it takes no memory, and none is kept for it.
    Queued,
    /// One at a time. It makes room, and is read.
    Loading(Arc<Progress>),
    Ready(Arc<Loaded>),
    Unloading,
}

struct State {
    phase: Phase,
    /// Requests that use it, and that wait for it.
    users: usize,
    waiting: usize,
    /// It takes no more requests: others wait for its memory.
    leaving: bool,
    last_used: Instant,
    loaded_at: Instant,
    /// As the last request wishes, if it did.
    keep_alive: Option<Option<Duration>>,
    /// How many times it was tried to load it, and how the last try failed.
    attempt: u64,
    failed: Option<(u64, String)>,
    health: Health,
}

struct Entry {
    spec: ModelSpec,
    card: ModelCard,
}

/// All models.
pub struct Registry {
    /// Grows, and never shrinks: an index stays what it is.
    entries: RwLock<Vec<Arc<Entry>>>,
    names: RwLock<HashMap<String, usize>>,
    states: Mutex<Vec<State>>,
    changed: watch::Sender<()>,
    loading: tokio::sync::Mutex<()>,
    memory: Memory,
    /// Requests that may wait for a model.
    queue: usize,
    draining: AtomicBool,
}

/// A model in memory, for as long as a request needs it.
pub struct Lease {
    registry: Arc<Registry>,
    index: usize,
    entry: Arc<Entry>,
    loaded: Arc<Loaded>,
    /// How long the request waited for it.
    pub waited: Duration,
}

impl Lease {
    /// The model.
    pub fn model(&self) -> &Arc<Loaded> {
        &self.loaded
    }
    /// What is known of it.
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
        self.registry.tell();
    }
}

/// Takes a waiting request off the count.
struct Turn<'a>(&'a Registry, usize);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.lock()[self.1].waiting -= 1;
    }
}

/// A try to load a model. One that ends without a word, since something panicked, has failed: those who wait for it hear of it, and
/// it may be tried again.
struct Try {
    registry: Arc<Registry>,
    index: usize,
    attempt: u64,
}

impl Drop for Try {
    fn drop(&mut self) {
        let mut states = self.registry.lock();
        let s = &mut states[self.index];
        if s.attempt == self.attempt && matches!(s.phase, Phase::Queued | Phase::Loading(_)) {
            let why = "an internal error; the log says more";
            s.health.failed(why, Instant::now());
            s.failed = Some((self.attempt, why.into()));
            s.phase = Phase::Idle;
            stay(&mut states);
        }
        drop(states);
        self.registry.tell();
    }
}

/// Nobody's memory is waited for any more: who was asked to go and has not may stay.
fn stay(states: &mut [State]) {
    states.iter_mut().for_each(|s| s.leaving &= matches!(s.phase, Phase::Unloading));
}

impl Registry {
    /// Opens each model's file to see what it is; loads none. Fails where one is larger than the limit by itself: no other's
    /// leaving would help it.
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

    /// One more model; returns its index. Nothing is loaded.
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
        // One is added at a time. The lock of the states is released before the entries are locked: others lock them in the other order.
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

    /// How many there are.
    pub fn count(&self) -> usize {
        self.entries.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<State>> {
        // Nothing here panics half-way through a change.
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self) {
        self.changed.send_modify(|()| {});
    }

    /// Which model a client means.
    pub fn find(&self, name: &str) -> Option<usize> {
        find(&self.names.read().unwrap_or_else(PoisonError::into_inner), name)
    }

    /// The model, where there is only one.
    pub fn sole(&self) -> Option<usize> {
        (self.count() == 1).then_some(0)
    }

    /// Names of all models, for errors.
    pub fn known(&self) -> String {
        let names: Vec<String> = self.entries().iter().map(|e| e.spec.name.clone()).collect();
        names.join(", ")
    }

    /// The name that a model is listed by.
    pub fn name(&self, index: usize) -> String {
        self.entry(index).spec.name.clone()
    }

    /// What is known of a model without loading it.
    pub fn card(&self, index: usize) -> ModelCard {
        self.entry(index).card.clone()
    }

    /// The model, loaded if it was not.
    pub async fn acquire(
        self: &Arc<Self>,
        index: usize,
        keep_alive: Option<KeepAlive>,
    ) -> Result<Lease, AcquireError> {
        let began = Instant::now();
        let mut changed = self.changed.subscribe();
        let mut turn = None;
        // The try to load that this request waits for.
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
                    // one whose device is lost is about to end, and to be loaded again
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
                    turn = Some(Turn(self, index));
                }
                self.begin_loading(index, s);
                seen.get_or_insert(s.attempt);
            }
            // The sender lives as long as `self`.
            let _ = changed.changed().await;
        }
    }

    /// Begins to load a model, unless it is loaded or that has begun.
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
        let _told = Try { registry: Arc::clone(&self), index, attempt };
        let one_at_a_time = self.loading.lock().await;
        let progress = Arc::new(Progress::default());
        self.lock()[index].phase = Phase::Loading(Arc::clone(&progress));
        let room = self.make_room(index).await;
        // There is room, or will not be.
        stay(&mut self.lock());
        self.tell();
        let result = match room {
            Ok(()) => {
                tracing::info!(model = name, "loading");
                let entry = self.entry(index);
                let load = move || Loaded::open(&entry.spec, &progress).map_err(|e| e.to_string());
                tokio::task::spawn_blocking(load).await.unwrap_or_else(|e| Err(e.to_string()))
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
                loaded.handle.on_end(move || registry.upgrade().iter().for_each(|r| r.tell()));
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
        let ended = tokio::task::spawn_blocking(move || loaded.handle.join()).await;
        if !matches!(ended, Ok(Ok(()))) {
            tracing::error!(model = self.name(index), "the engine ended badly");
        }
        let mut states = self.lock();
        states[index].phase = Phase::Idle;
        states[index].leaving = false;
        drop(states);
        self.tell();
    }

    /// Unloads what nobody has used for as long as it is to be kept. Runs as long as the server.
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

    /// Sets how long a model stays, without a request; unloads it where that is no time at all.
    pub fn keep(&self, index: usize, keep_alive: KeepAlive) {
        self.lock()[index].keep_alive = Some(duration(keep_alive));
        self.tell();
    }

    /// True when the server shuts down.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Lets no more requests in; those that wait for a model hear of it.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
        self.tell();
    }

    /// Ends all engines, and waits until they have.
    pub async fn stop(self: &Arc<Self>, how: Shutdown) {
        self.drain();
        let engines: Vec<Arc<Loaded>> = (0..self.count()).filter_map(|i| self.loaded(i)).collect();
        engines.iter().for_each(|l| l.handle.shutdown(how));
        for loaded in engines {
            let ended = tokio::task::spawn_blocking(move || loaded.handle.join()).await;
            if !matches!(ended, Ok(Ok(()))) {
                tracing::error!("an engine ended badly");
            }
        }
    }
}

fn duration(keep_alive: KeepAlive) -> Option<Duration> {
    match keep_alive {
        KeepAlive::Forever => None,
        // What is too long to be counted is forever.
        KeepAlive::Seconds(s) => Duration::try_from_secs_f64(s.max(0.0)).ok(),
    }
}
