//! Loads and unloads models, and notices engines that end by themselves. Called by `octet_turns`.

use std::sync::Arc;
use std::time::Instant;

use octet_engine::scheduler::Shutdown;
use octet_turns::{Host, Pool, Scheduler, Waiter};

use super::AcquireError;
use super::health::Health;
use crate::models::loaded::{Loaded, Progress};
use crate::models::memory::Memory;
use crate::models::spec::{ModelCard, ModelSpec};

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

    /// Notes a failed load, or none.
    fn failed(&mut self, why: &str) {
        let model = &self.entry.spec.name;
        tracing::error!(model, why, "cannot be loaded");
        self.health.failed(why, Instant::now());
        if let Some(why) = self.health.down() {
            tracing::error!(model, why, "the model stays down");
        }
        self.failed = Some(why.into());
    }
}

/// All models.
pub struct Models {
    pub(super) all: Vec<Model>,
    pub(super) memory: Memory,
}

impl Models {
    /// None yet.
    pub fn new(memory: Memory) -> Self {
        Self { all: Vec::new(), memory }
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

    /// Fails for a model that stays down.
    pub fn check(&self, index: usize) -> Result<(), AcquireError> {
        self.all[index].down().map_or(Ok(()), Err)
    }

    /// Lets a model that stays down be loaded again.
    pub fn revive(&mut self, index: usize) {
        self.all[index].health.revive();
    }
}

impl Host for Models {
    type Access = Access;

    fn start(&mut self, x: usize, pool: &Arc<Pool<Self>>) {
        let model = &mut self.all[x];
        (model.progress, model.failed) = Default::default();
        pool.spawn(load(Arc::clone(pool), x, Arc::clone(&model.entry), Arc::clone(&model.progress)));
    }

    fn stop(&mut self, x: usize, pool: &Arc<Pool<Self>>) {
        let (told, model) = (Arc::clone(pool), &mut self.all[x]);
        let (name, loaded) = (model.entry.spec.name.clone(), model.loaded.take());
        pool.spawn(async move {
            if let Some(loaded) = loaded {
                unload(&name, loaded).await;
            }
            told.change(|scheduler, _| scheduler.stopped(x, Instant::now()));
        });
    }

    fn access(&mut self, x: usize) -> Access {
        let Model { entry, loaded, .. } = &self.all[x];
        Access { entry: Arc::clone(entry), loaded: loaded.clone().expect("a model that is ready is loaded") }
    }

    fn refused(&mut self, x: usize, why: &AcquireError) {
        if let AcquireError::Failed { why, .. } = why {
            self.all[x].failed(why);
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
                    scheduler.stopped(index, now);
                    if let Some(why) = model.down() {
                        scheduler.failed(index, now).into_iter().for_each(|w| w.refuse(why.clone()));
                    }
                } else if handle.lost().is_some() {
                    scheduler.unload(index, now); // it is about to end
                }
            }
            if model.health.is_due(now) {
                let told = Arc::clone(pool);
                pool.spawn(async move { drop(told.lease(None, |_, _| Ok(index)).await) });
            }
            next = next.into_iter().chain(model.health.next()).min();
        }
        next
    }
}

/// Loads a model.
async fn load(pool: Arc<Pool<Models>>, index: usize, entry: Arc<Entry>, progress: Arc<Progress>) {
    let model = entry.spec.name.clone();
    tracing::info!(model, "loading");
    let open = move || Loaded::open(&entry.spec, &progress).map_err(|e| e.to_string());
    let opened = crate::blocking::spawn_blocking(open).await.unwrap_or_else(|e| Err(e.to_string()));
    let loaded = match opened {
        Ok(loaded) => Arc::new(loaded),
        Err(why) => return pool.change(|scheduler, models| failed(scheduler, models, index, &why)),
    };
    tracing::info!(model, seconds = loaded.load_time.as_secs_f64(), "loaded");
    let told = Arc::downgrade(&pool);
    loaded.handle.on_end(move || told.upgrade().iter().for_each(|pool| pool.wake()));
    pool.change(|scheduler, models| {
        let (model, now) = (&mut models.all[index], Instant::now());
        model.health.loaded(now);
        model.loaded = Some(Arc::clone(&loaded));
        scheduler.set_ttl(index, model.entry.spec.keep_alive);
        scheduler.ready(index, now);
    });
    if pool.is_closed() {
        loaded.handle.shutdown(Shutdown::Drain);
    }
}

/// Refuses the requests for a model that could not be loaded.
fn failed(scheduler: &mut Scheduler<Waiter<Models>>, models: &mut Models, index: usize, why: &str) {
    let model = &mut models.all[index];
    model.failed(why);
    let error = model.refusal(why);
    scheduler.failed(index, Instant::now()).into_iter().for_each(|w| w.refuse(error.clone()));
}

/// Unloads a model.
async fn unload(model: &str, loaded: Arc<Loaded>) {
    tracing::info!(model, "unloading");
    loaded.handle.shutdown(Shutdown::Drain);
    let ended = crate::blocking::spawn_blocking(move || loaded.handle.join()).await;
    if !matches!(ended, Ok(Ok(()))) {
        tracing::error!(model, "the engine ended badly");
    }
}
