//! The router: a table that can be replaced at run time, and the state that survives. Owned by the server, which sends every request
//! through it and gets a [`Reply`].

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use octet_config as config;
use octet_config::Config;
use tokio::time::Instant;

use crate::dispatch::Job;
use crate::reply::Reply;
use crate::request::Call;
use crate::shadow::Shadows;
use crate::shared::Shared;
use crate::state::States;
use crate::table::{Table, TableError};
use crate::target::Target;
use crate::trace::Route;

/// Routes requests to deployments.
#[derive(Debug)]
pub struct Router<T: Target> {
    table: RwLock<Arc<Table<T>>>,
    states: States,
    shadows: Shadows,
    shared: Option<Arc<dyn Shared>>,
    seeds: AtomicU64,
}

impl<T: Target> Router<T> {
    /// A router of `config`. `target` creates the target of a deployment; `seed` is the random seed.
    ///
    /// # Errors
    /// If the configuration is invalid.
    pub fn new(
        config: &Config,
        seed: u64,
        target: impl FnMut(&config::Deployment) -> Result<T, String>,
    ) -> Result<Self, TableError> {
        let states = States::default();
        let table = RwLock::new(Arc::new(Table::new(config, &states, target)?));
        Ok(Self { table, states, shadows: Shadows::default(), shared: None, seeds: AtomicU64::new(seed) })
    }

    /// Shares limits and cooldowns with other processes.
    #[must_use]
    pub fn with_shared(mut self, shared: Arc<dyn Shared>) -> Self {
        let table = self.table.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(table) = Arc::get_mut(table) {
            table.shared = Some(Arc::clone(&shared));
        }
        self.shared = Some(shared);
        self
    }

    /// Another process has found that a deployment, or one of its models, is in cooldown.
    pub fn cooled_elsewhere(&self, deployment: &str, model: Option<&str>, time: Duration) {
        if let Some((_, d)) = self.table().deployments().find(|(_, d)| d.id() == deployment) {
            tracing::info!(deployment, seconds = time.as_secs_f64(), "in cooldown, says another process");
            d.state.cooled_elsewhere(model, time, Instant::now());
        }
    }

    /// Applies another configuration. Running requests finish on the old one; deployments that are in both keep their state.
    ///
    /// # Errors
    /// If the configuration is invalid: the old one stays.
    pub fn reload(
        &self,
        config: &Config,
        target: impl FnMut(&config::Deployment) -> Result<T, String>,
    ) -> Result<(), TableError> {
        let mut table = Table::new(config, &self.states, target)?;
        table.shared.clone_from(&self.shared);
        let table = Arc::new(table);
        let old = {
            let mut current = self.table.write().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *current, Arc::clone(&table))
        };
        self.states.keep(|id| table.has(id));
        drop(old);
        Ok(())
    }

    /// The current table.
    pub fn table(&self) -> Arc<Table<T>> {
        Arc::clone(&self.table.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Accepts a request. Nothing is sent before the reply is polled.
    pub fn send(&self, call: Call) -> Reply<T> {
        Reply::new(self.job(call))
    }

    /// Where a request would go now, without sending it.
    pub async fn explain(&self, call: Call) -> Route {
        self.job(call).explain().await
    }

    fn job(&self, call: Call) -> Job<T> {
        Job::new(self.table(), self.shadows.clone(), self.rng(), call)
    }

    /// Counts of shadow copies.
    pub fn shadows(&self) -> &Shadows {
        &self.shadows
    }

    /// A random source for one request: without a lock, and reproducible with the same seed.
    fn rng(&self) -> fastrand::Rng {
        let n = self.seeds.fetch_add(1, Ordering::Relaxed);
        fastrand::Rng::with_seed(crate::hash::hash(&[&n.to_le_bytes()]))
    }
}
