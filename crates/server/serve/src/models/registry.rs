//! The served models: their names, and a lease for each request.
//!
//! `octet_process::swap` decides which are loaded, in which order, and which is evicted; `host` loads and unloads them; `memory` knows which fit
//! together. A load is its own task, so a client that disconnects does not cancel it; a model that waits to be loaded keeps its place for a while.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use humansize::{BINARY, format_size};
use octet_api::core::KeepAlive;
use octet_engine::scheduler::Shutdown;
use octet_process::swap::{Patience, Pool, Refused};
use tokio::runtime::Handle;

use super::loaded::Loaded;
use super::memory::Memory;
use super::names::find;
use super::spec::{BoxError, ModelCard, ModelSpec};
pub use health::Unhealthy;
use host::{Entry, Models};

mod free;
mod health;
mod host;
mod listing;
mod memory;

/// A model's turn is long beside its loading. One that cannot be loaded is tried again at the next request.
const PATIENCE: Patience = Patience {
    turn_loads: 4,
    turn_min: Duration::from_secs(5),
    turn_max: Duration::MAX,
    pause: Duration::from_millis(500),
    keep_place: Duration::from_secs(60),
    backoff_min: Duration::ZERO,
    backoff_max: Duration::ZERO,
};

/// Why a request gets no model.
#[derive(Debug, Clone, thiserror::Error)]
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

/// All served models.
pub struct Registry {
    pool: Arc<Pool<Models>>,
    names: RwLock<HashMap<String, usize>>,
}

/// Keeps a model loaded while a request needs it.
pub struct Lease {
    held: octet_process::swap::Lease<Models>,
    /// How long the request waited for the model.
    pub waited: Duration,
}

impl Lease {
    /// The model.
    pub fn model(&self) -> &Arc<Loaded> {
        &self.held.access.loaded
    }
    /// The model's metadata.
    pub fn card(&self) -> &ModelCard {
        &self.held.access.entry.card
    }
}

impl Registry {
    /// Opens each model's file to read its metadata; loads none. Fails if a model alone exceeds the memory limit. Must be called inside
    /// a tokio runtime.
    pub fn new(specs: Vec<ModelSpec>, memory: Memory, queue: usize) -> Result<Arc<Self>, BoxError> {
        let runtime = Handle::try_current()?;
        let pool = Pool::new(|pool| Models::new(memory, pool), PATIENCE, queue, runtime);
        let all = Self { pool, names: RwLock::default() };
        for spec in specs {
            all.add(spec)?;
        }
        Ok(Arc::new(all))
    }

    /// Adds a model; returns its index. Loads nothing.
    pub fn add(&self, spec: ModelSpec) -> Result<usize, BoxError> {
        let card = ModelCard::read(&spec)?;
        let limit = self.pool.read(|_, models| models.memory_limit());
        if let Some(limit) = limit.filter(|limit| card.memory_bytes > *limit) {
            return Err(format!(
                "the model '{}' takes {} and --memory-limit is {}; raise that, or give a smaller --ctx-size, --parallel, \
                 --kv-tokens or --cache-ram",
                spec.name,
                format_size(card.memory_bytes, BINARY),
                format_size(limit, BINARY),
            )
            .into());
        }
        let mut names = self.names.write().unwrap_or_else(PoisonError::into_inner);
        let all: Vec<String> = std::iter::once(&spec.name).chain(&spec.aliases).cloned().collect();
        let twice = all.iter().enumerate().find(|(i, n)| names.contains_key(*n) || all[..*i].contains(*n));
        if let Some((_, name)) = twice {
            return Err(format!("two models are called '{name}'; give them names by --alias").into());
        }
        let entry = Arc::new(Entry { spec, card });
        let index = self.pool.change(|scheduler, models| models.add(scheduler, entry));
        names.extend(all.into_iter().map(|name| (name, index)));
        Ok(index)
    }

    fn entry(&self, index: usize) -> Arc<Entry> {
        self.pool.read(|_, models| models.entry(index))
    }

    /// Number of models.
    pub fn count(&self) -> usize {
        self.pool.read(|_, models| models.count())
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
        let names: Vec<String> = (0..self.count()).map(|i| self.name(i)).collect();
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
    pub async fn acquire(&self, index: usize, keep_alive: Option<KeepAlive>) -> Result<Lease, AcquireError> {
        let began = Instant::now();
        let lease =
            self.pool.lease(keep_alive.map(duration), |models, scheduler| models.expect(scheduler, index));
        match lease.await {
            Ok(held) => Ok(Lease { held, waited: began.elapsed() }),
            Err(Refused::Because(why)) => Err(why),
            Err(Refused::QueueFull(_)) => Err(AcquireError::QueueFull { name: self.name(index) }),
            Err(Refused::Closed) => Err(AcquireError::Draining),
        }
    }

    /// Sets a model's keep-alive without a request; zero unloads it.
    pub fn keep(&self, index: usize, keep_alive: KeepAlive) {
        self.pool.change(|scheduler, _| scheduler.set_ttl(index, duration(keep_alive)));
    }

    /// Loads a model again that stays down.
    pub fn revive(&self, index: usize) {
        self.pool.change(|_, models| models.revive(index, Instant::now()));
    }

    /// True during shutdown.
    pub fn is_draining(&self) -> bool {
        self.pool.is_closed()
    }

    /// Refuses new requests; those that wait for a model get an error.
    pub fn drain(&self) {
        self.pool.close();
    }

    /// Stops all engines and waits for their end.
    pub async fn stop(&self, how: Shutdown) {
        self.drain();
        let engines = self.pool.read(|_, models| models.engines());
        engines.iter().for_each(|l| l.handle.shutdown(how));
        for loaded in engines {
            let ended = crate::blocking::spawn_blocking(move || loaded.handle.join()).await;
            if !matches!(ended, Ok(Ok(()))) {
                tracing::error!("an engine failed");
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
