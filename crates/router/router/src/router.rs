//! The router: a table that can be swapped while it runs, and what survives the swap. Held by the server, which hands it every
//! request and gets a [`Reply`].

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
    /// What to generate.
    pub request: Arc<GenerateRequest>,
    /// The same as it came, for targets that speak the client's dialect: its bytes go out, and the provider's come back.
    pub original: Option<Arc<Original>>,
    /// Headers by names in small letters: those that rules and sessions go by, or all.
    pub headers: Vec<(String, String)>,
    /// Names the client's key, if it has one; not the key itself.
    pub key: Option<String>,
    /// Most time for it, where that is less than the configuration's.
    pub timeout: Option<Duration>,
    /// `tags` of the request: where the configuration says so they choose among deployments.
    pub tags: Vec<String>,
    /// Names the trace that it belongs to: W3C's header, for those who are asked.
    pub traceparent: Option<String>,
    /// What the client itself says of retries and fallbacks.
    pub options: RequestOptions,
    /// Which names may answer instead of the one that was asked for; `None` is all.
    pub allowed: Option<Allowed>,
}

/// What a client says of how its request is to be dealt with. Beats the configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestOptions {
    /// Attempts after the first within a group.
    pub retries: Option<u32>,
    /// Names that are tried when the one asked for fails, whatever the failure.
    pub fallbacks: Option<Vec<String>>,
}

/// Which names a client may use.
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

    /// What the request's session is known by.
    pub(crate) fn session(&self, sticky: Option<&Sticky>) -> Option<String> {
        sticky?.by.iter().find_map(|by| match by {
            SessionKey::Header(name) => self.headers.iter().find(|h| h.0 == *name).map(|h| h.1.clone()),
            SessionKey::User => self.request.user.clone(),
            SessionKey::ApiKey => self.key.clone(),
        })
    }
}

/// Decides who answers, and sees that somebody does.
#[derive(Debug)]
pub struct Router<T: Target> {
    table: RwLock<Arc<Table<T>>>,
    pub(crate) states: States,
    pub(crate) shadows: Shadows,
    seeds: AtomicU64,
}

impl<T: Target> Router<T> {
    /// A router of `config`. `target` makes who answers of a deployment; `seed` makes chance.
    ///
    /// # Errors
    /// Where no table can be made of it.
    pub fn new(
        config: &Config,
        seed: u64,
        target: impl FnMut(&config::Deployment) -> Result<T, String>,
    ) -> Result<Self, TableError> {
        let states = States::default();
        let table = RwLock::new(Arc::new(Table::new(config, &states, target)?));
        Ok(Self { table, states, shadows: Shadows::default(), seeds: AtomicU64::new(seed) })
    }

    /// Takes another configuration. Requests that run finish on the old one; what is known of deployments that are in both
    /// stays known.
    ///
    /// # Errors
    /// Where no table can be made of it: then the old one stays.
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

    /// The table that holds now.
    pub fn table(&self) -> Arc<Table<T>> {
        Arc::clone(&self.table.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes a request. Nothing is sent before the reply is asked for.
    pub fn send(self: &Arc<Self>, call: Call) -> Reply<T> {
        Reply::new(Job::new(Arc::clone(self), self.table(), call))
    }

    /// Where a request would go now, without sending it.
    pub async fn explain(self: &Arc<Self>, call: Call) -> Route {
        Job::new(Arc::clone(self), self.table(), call).explain().await
    }

    /// Copies of requests.
    pub fn shadows(&self) -> &Shadows {
        &self.shadows
    }

    /// A source of chance for one request: no lock, and the same again with the same seed.
    pub(crate) fn rng(&self) -> fastrand::Rng {
        let n = self.seeds.fetch_add(1, Ordering::Relaxed);
        fastrand::Rng::with_seed(crate::hash::mix(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }
}
