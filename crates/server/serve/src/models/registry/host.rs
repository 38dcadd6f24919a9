//! Loads and unloads models, and notices engines that end by themselves.

use std::sync::{Arc, Weak};
use std::time::Instant;

use octet_engine::scheduler::Shutdown;
use octet_process::swap::{Host, Phase, Pool, Scheduler, Waiter};

use super::AcquireError;
use super::free::FreeNow;
use super::health::Health;
use crate::models::loaded::{Loaded, Progress};
use crate::models::memory::Memory;
use crate::models::spec::{ModelCard, ModelSpec};

/// Why a load without a result has failed.
pub(super) const INTERNAL: &str = "an internal error; the log says more";

/// What is known of a model without loading it.
pub struct Entry {
    pub spec: ModelSpec,
    pub card: ModelCard,
}

/// What a request gets.
pub struct Access {
    pub entry: Arc<Entry>,
    pub loaded: Arc<Loaded>,
}

/// A model at the scheduler's index.
pub(super) struct Model {
    pub entry: Arc<Entry>,
    /// Of the last load.
    pub progress: Arc<Progress>,
    /// From the end of loading until it is unloaded, or its engine ends by itself.
    pub loaded: Option<Arc<Loaded>>,
    /// Why the last load failed, if it did.
    pub failed: Option<String>,
    pub health: Health,
}

impl Model {
    /// What its requests get if it cannot be loaded.
    pub(super) fn refusal(&self, why: &str) -> AcquireError {
        AcquireError::Failed { name: self.entry.spec.name.clone(), why: why.into() }
    }

    /// Why it gets no more requests, if its device was lost for good.
    fn down(&self) -> Option<AcquireError> {
        let why = self.health.down()?;
        Some(AcquireError::Down { name: self.entry.spec.name.clone(), why })
    }

    /// Records a failed load; returns what its requests get.
    fn failed(&mut self, why: &str) -> AcquireError {
        let model = &self.entry.spec.name;
        tracing::error!(model, why, "cannot be loaded");
        self.health.failed(why, Instant::now());
        if let Some(why) = self.health.down() {
            tracing::error!(model, why, "the model stays down");
        }
        self.failed = Some(why.into());
        self.down().unwrap_or_else(|| self.refusal(why))
    }
}

/// All models.
pub struct Models {
    pub(super) all: Vec<Model>,
    pub(super) memory: Memory,
    pub(super) free: FreeNow,
    /// For tasks that report to it.
    pub(super) pool: Weak<Pool<Self>>,
}

impl Models {
    /// None yet.
    pub fn new(memory: Memory, pool: &Weak<Pool<Self>>) -> Self {
        Self { all: Vec::new(), memory, free: FreeNow::default(), pool: Weak::clone(pool) }
    }

    /// The user's limit of memory.
    pub fn memory_limit(&self) -> Option<u64> {
        self.memory.limit
    }

    /// Adds a model; returns its index.
    pub fn add(&mut self, scheduler: &mut Scheduler<Waiter<Self>>, entry: Arc<Entry>) -> usize {
        let index = scheduler.add(usize::MAX, entry.spec.keep_alive, Instant::now());
        let (progress, health) = Default::default();
        self.all.push(Model { entry, progress, loaded: None, failed: None, health });
        index
    }

    /// Number of models.
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// What is known of a model.
    pub fn entry(&self, index: usize) -> Arc<Entry> {
        Arc::clone(&self.all[index].entry)
    }

    /// A request is about to wait for a model; fails for one that stays down.
    pub fn expect(
        &mut self,
        scheduler: &Scheduler<Waiter<Self>>,
        index: usize,
    ) -> Result<usize, AcquireError> {
        let model = &mut self.all[index];
        if let Some(down) = model.down() {
            return Err(down);
        }
        if matches!(scheduler.state(index).0, Phase::Stopped | Phase::Resting) {
            model.failed = None; // it is tried again
        }
        Ok(index)
    }

    /// Lets a model that stays down be loaded again.
    pub fn revive(&mut self, index: usize, now: Instant) {
        self.all[index].health.revive(now);
    }

    /// All engines that have not ended.
    pub fn engines(&self) -> Vec<Arc<Loaded>> {
        self.all.iter().filter_map(|m| m.loaded.clone()).collect()
    }
}

impl Host for Models {
    type Access = Access;

    fn start(&mut self, x: usize, pool: &Arc<Pool<Self>>) {
        self.free.forget();
        let model = &mut self.all[x];
        (model.progress, model.failed) = Default::default();
        pool.spawn(load(Arc::clone(pool), x, Arc::clone(&model.entry), Arc::clone(&model.progress)));
    }

    fn stop(&mut self, x: usize, pool: &Arc<Pool<Self>>) {
        let (owner, model) = (Arc::clone(pool), &mut self.all[x]);
        let (name, loaded) = (model.entry.spec.name.clone(), model.loaded.take());
        pool.spawn(async move {
            let ends = Unloading { pool: owner, index: x };
            if let Some(loaded) = loaded {
                unload(&name, loaded).await;
            }
            drop(ends);
        });
    }

    fn access(&mut self, x: usize) -> Access {
        let Model { entry, loaded, .. } = &self.all[x];
        Access { entry: Arc::clone(entry), loaded: loaded.clone().expect("a model that is ready is loaded") }
    }

    fn refused(&mut self, x: usize, why: &AcquireError) {
        if let AcquireError::Failed { why, .. } = why {
            let _ = self.all[x].failed(why); // what they got
        }
    }

    /// An engine ends by itself if its device is lost, or by a panic. A lost device is loaded again even without requests: a load
    /// balancer may send none until the server is healthy.
    fn look(
        &mut self,
        scheduler: &mut Scheduler<Waiter<Self>>,
        pool: &Arc<Pool<Self>>,
        now: Instant,
    ) -> Option<Instant> {
        let mut next = None;
        for (index, model) in self.all.iter_mut().enumerate() {
            if let Some(handle) = model.loaded.as_ref().map(|l| &l.handle) {
                if handle.is_finished() {
                    model.health.ended(&model.entry.spec.name, handle.lost());
                    model.loaded = None;
                    self.free.forget();
                    scheduler.stopped(index, now);
                    if let Some(why) = model.down() {
                        scheduler.failed(index, now).into_iter().for_each(|w| w.refuse(why.clone()));
                    }
                } else if handle.lost().is_some() {
                    scheduler.unload(index, now); // it is about to end
                }
            }
            if model.health.is_due(now) {
                let owner = Arc::clone(pool);
                pool.spawn(async move {
                    drop(owner.lease(None, |models, scheduler| models.expect(scheduler, index)).await);
                });
            }
            next = next.into_iter().chain(model.health.next()).min();
        }
        next
    }
}

/// A load that has begun. If it panics, it has failed.
struct Loading {
    pool: Arc<Pool<Models>>,
    index: usize,
    is_over: bool,
}

impl Loading {
    fn done(mut self, loaded: Result<Arc<Loaded>, String>) {
        self.is_over = true;
        self.pool.change(|scheduler, models| {
            models.free.forget();
            let (model, now) = (&mut models.all[self.index], Instant::now());
            match loaded {
                Ok(loaded) => {
                    model.health.loaded(now);
                    model.loaded = Some(loaded);
                    scheduler.set_ttl(self.index, model.entry.spec.keep_alive);
                    scheduler.ready(self.index, now);
                }
                Err(why) => {
                    let error = model.failed(&why);
                    scheduler.failed(self.index, now).into_iter().for_each(|w| w.refuse(error.clone()));
                }
            }
        });
    }
}

impl Drop for Loading {
    fn drop(&mut self) {
        // A task that is dropped at the end of the program is no failure.
        if !self.is_over && std::thread::panicking() {
            let (pool, index) = (Arc::clone(&self.pool), self.index);
            Self { pool, index, is_over: true }.done(Err(INTERNAL.into()));
        }
    }
}

/// A model that is being unloaded: dropped when its memory is free.
struct Unloading {
    pool: Arc<Pool<Models>>,
    index: usize,
}

impl Drop for Unloading {
    fn drop(&mut self) {
        self.pool.change(|scheduler, models| {
            models.free.forget();
            scheduler.stopped(self.index, Instant::now());
        });
    }
}

/// Loads a model.
async fn load(pool: Arc<Pool<Models>>, index: usize, entry: Arc<Entry>, progress: Arc<Progress>) {
    let loading = Loading { pool: Arc::clone(&pool), index, is_over: false };
    let model = entry.spec.name.clone();
    tracing::info!(model, "loading");
    let open = move || Loaded::open(&entry.spec, &progress).map_err(|e| e.to_string());
    let opened = crate::blocking::spawn_blocking(open).await.unwrap_or_else(|e| Err(e.to_string()));
    let loaded = match opened {
        Ok(loaded) => Arc::new(loaded),
        Err(why) => return loading.done(Err(why)),
    };
    tracing::info!(model, seconds = loaded.load_time.as_secs_f64(), "loaded");
    let owner = Arc::downgrade(&pool);
    loaded.handle.on_end(move || owner.upgrade().iter().for_each(|pool| pool.wake()));
    loading.done(Ok(Arc::clone(&loaded)));
    if pool.is_closed() {
        loaded.handle.shutdown(Shutdown::Drain);
    }
}

/// Unloads a model.
async fn unload(model: &str, loaded: Arc<Loaded>) {
    tracing::info!(model, "unloading");
    loaded.handle.shutdown(Shutdown::Drain);
    let ended = crate::blocking::spawn_blocking(move || loaded.handle.join()).await;
    if !matches!(ended, Ok(Ok(()))) {
        tracing::error!(model, "the engine failed");
    }
}
