//! The router: a table that can be replaced at run time, and the state that survives. Owned by the server, which sends every request
//! through it and gets a [`Reply`].

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use octet_api::core::GenerateRequest;
use octet_config as config;
use octet_config::{Config, SessionKey, Sticky};

use crate::dispatch::Job;
use crate::reply::Reply;
use crate::shadow::Shadows;
use crate::state::States;
use crate::table::{Table, TableError};
use crate::target::{Original, Target};
use crate::trace::Route;

/// A client's request.
#[derive(Debug, Clone)]
pub struct Call {
    /// The request.
    pub request: Arc<GenerateRequest>,
    /// The client's bytes, for targets that speak its dialect: they are forwarded, and so is the provider's answer.
    pub original: Option<Arc<Original>>,
    /// Headers by lower-case name: those that rules and sessions use, or all.
    pub headers: Vec<(String, String)>,
    /// The id of the client's key; not the key itself.
    pub key: Option<String>,
    /// Time limit, if shorter than the configuration's.
    pub timeout: Option<Duration>,
    /// `tags` of the request, which may choose among deployments.
    pub tags: Vec<String>,
    /// The W3C `traceparent` header for targets.
    pub traceparent: Option<String>,
    /// The client's own settings for retries and fallbacks.
    pub options: RequestOptions,
    /// The names that may answer as fallbacks; `None` is all.
    pub allowed: Option<Allowed>,
}

/// A client's settings for its request. They take precedence over the configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestOptions {
    /// Retries after the first attempt within a group.
    pub retries: Option<u32>,
    /// Fallbacks after any failure.
    pub fallbacks: Option<Vec<String>>,
}

/// The names that a client may use.
#[derive(Clone)]
pub struct Allowed(pub Arc<dyn Fn(&str) -> bool + Send + Sync>);

impl std::fmt::Debug for Allowed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Allowed")
    }
}

impl Call {
    /// A request without headers.
    pub fn new(request: GenerateRequest) -> Self {
        Self {
            request: Arc::new(request),
            original: None,
            headers: Vec::new(),
            key: None,
            timeout: None,
            tags: Vec::new(),
            traceparent: None,
            options: RequestOptions::default(),
            allowed: None,
        }
    }

    /// Whether `name` may answer.
    pub(crate) fn may_use(&self, name: &str) -> bool {
        self.allowed.as_ref().is_none_or(|allowed| (allowed.0)(name))
    }

    /// The key of the request's session.
    pub(crate) fn session(&self, sticky: Option<&Sticky>) -> Option<String> {
        sticky?.by.iter().find_map(|by| match by {
            SessionKey::Header(name) => self.headers.iter().find(|h| h.0 == *name).map(|h| h.1.clone()),
            SessionKey::User => self.request.user.clone(),
            SessionKey::ApiKey => self.key.clone(),
        })
    }
}

/// Routes requests to deployments.
#[derive(Debug)]
pub struct Router<T: Target> {
    table: RwLock<Arc<Table<T>>>,
    pub(crate) states: States,
    pub(crate) shadows: Shadows,
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
        Ok(Self { table, states, shadows: Shadows::default(), seeds: AtomicU64::new(seed) })
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
        let table = Arc::new(Table::new(config, &self.states, target)?);
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
    pub fn send(self: &Arc<Self>, call: Call) -> Reply<T> {
        Reply::new(Job::new(Arc::clone(self), self.table(), call))
    }

    /// Where a request would go now, without sending it.
    pub async fn explain(self: &Arc<Self>, call: Call) -> Route {
        Job::new(Arc::clone(self), self.table(), call).explain().await
    }

    /// Counts of shadow copies.
    pub fn shadows(&self) -> &Shadows {
        &self.shadows
    }

    /// A random source for one request: without a lock, and reproducible with the same seed.
    pub(crate) fn rng(&self) -> fastrand::Rng {
        let n = self.seeds.fetch_add(1, Ordering::Relaxed);
        fastrand::Rng::with_seed(crate::hash::mix(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }
}
