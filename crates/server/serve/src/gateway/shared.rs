//! What several processes share: the store of virtual keys, and limits and cooldowns through Redis. Created by `gateway`.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use octet_cache::{Account, Lease, Limit, Refused, SharedLimits};
use octet_config::Config;
use octet_keys::{Limited, Options, Refusal, Store, Usd};
use octet_router::state::Limits;
use octet_router::{Acquired, Exhausted, ExpectedTokens, LimitKind, Shared, SharedPermit};

use super::Gateway;
use crate::models::BoxError;

/// The limits of a configuration; `None` without Redis.
pub fn limits(config: &Config) -> Result<Option<Arc<SharedLimits>>, BoxError> {
    let new = |server| SharedLimits::new(server, fastrand::u64(..));
    let made = config.router.redis.as_ref().map(new).transpose();
    Ok(made.map_err(|e| format!("router_settings: {e}"))?)
}

/// The store of virtual keys, if there is one.
pub fn store(config: &Config) -> Result<Option<Arc<Store>>, BoxError> {
    let keys = &config.keys;
    let options = Options { retention_days: keys.usage_days, ..Options::default() };
    let store = match (&keys.database, &keys.database_url) {
        (Some(path), _) => Store::open_with(path, options)?,
        (None, Some(url)) => {
            Store::connect(url.expose(), Options { flush_every: DATABASE_EVERY, ..options })?
        }
        (None, None) => return Ok(None),
    };
    set_total(&store, config)?;
    Ok(Some(Arc::new(store)))
}

impl Gateway {
    /// Stored responses in the database that several processes share.
    pub fn stored_responses(&self) -> Result<Option<octet_keys::Responses>, BoxError> {
        let keys = &self.routes.config.keys;
        match (&keys.database, &keys.database_url) {
            (None, Some(url)) => Ok(Some(octet_keys::Responses::new(url.expose())?)),
            _ => Ok(None),
        }
    }
}

/// Sets the global budget, if there is one.
pub fn set_total(store: &Store, config: &Config) -> Result<(), octet_keys::Error> {
    let Some(usd) = config.keys.max_budget else { return Ok(()) };
    let seconds = config.keys.budget_duration.map(|d| u32::try_from(d.as_secs()).unwrap_or(u32::MAX));
    store.set_total(octet_keys::budget(usd, seconds)?)
}

/// How often spend is written to a database, and changes of other processes are read.
const DATABASE_EVERY: Duration = Duration::from_millis(250);

/// Renews limits, and applies cooldowns that other processes have found, as long as the server runs.
pub async fn watch(gateway: &Gateway) {
    if let Some(limits) = gateway.shared().cloned() {
        let apply = |c: octet_cache::Cooled| {
            gateway.router().cooled_elsewhere(&c.deployment, c.model.as_deref(), c.time);
        };
        limits.run(apply).await;
    }
}

/// Deployments' limits, for the router.
#[derive(Debug)]
pub struct Deployments(pub Arc<SharedLimits>);

#[derive(Debug)]
struct Counted(Lease);

impl SharedPermit for Counted {
    fn answered(&mut self, tokens: u64) {
        self.0.used(tokens);
    }
}

impl Shared for Deployments {
    fn acquire<'a>(
        &'a self,
        deployment: &'a str,
        limits: &'a Limits,
        tokens: ExpectedTokens,
    ) -> Pin<Box<dyn Future<Output = Acquired> + Send + 'a>> {
        let account = Account {
            name: format!("deployment:{deployment}"),
            rpm: limits.rpm,
            tpm: limits.tpm,
            max_parallel: limits.max_parallel.map(u64::from),
            budget: None,
            tokens: tokens.prompt,
            reserved: tokens.answer,
            whole: true,
        };
        Box::pin(async move {
            match self.0.acquire(vec![account], 0).await {
                Ok(lease) => Ok(Some(Box::new(Counted(lease)) as Box<dyn SharedPermit>)),
                Err(Refused { limit, retry_after_s, .. }) => {
                    let limit = match limit {
                        Limit::Requests => LimitKind::Rpm,
                        Limit::Tokens => LimitKind::Tpm,
                        Limit::Reserved => LimitKind::Reserved,
                        Limit::Parallel | Limit::Budget => LimitKind::Parallel,
                    };
                    Err(Exhausted { limit, retry_after: Duration::from_secs(retry_after_s) })
                }
            }
        })
    }

    fn cooled(&self, deployment: &str, model: Option<&str>, time: Duration) {
        self.0.cooled(deployment, model, time);
    }
}

/// The account of a key, a user or a team.
pub fn account(limited: &Limited) -> Account {
    Account {
        name: format!("{}:{}", limited.kind.map_or("key", |kind| kind.name()), limited.id),
        rpm: limited.rpm,
        tpm: limited.tpm,
        max_parallel: limited.max_parallel,
        budget: limited.budget.map(|budget| (millionths(budget.limit), millionths(budget.spent))),
        tokens: limited.tokens,
        reserved: 0,
        whole: false,
    }
}

/// Millionths of a dollar, rounded up: Lua's numbers are exact up to 2^53.
pub fn millionths(usd: Usd) -> u64 {
    usd.nanos().div_ceil(1000).min(1 << 52)
}

/// The refusal for the client.
pub fn refusal(limited: &Limited, refused: Refused) -> Refusal {
    let retry_after_s = refused.retry_after_s.max(1);
    let refusal = match refused.limit {
        Limit::Requests => Refusal::Requests { limit: limited.rpm.unwrap_or(0), retry_after_s },
        Limit::Tokens | Limit::Reserved => Refusal::Tokens { limit: limited.tpm.unwrap_or(0), retry_after_s },
        Limit::Parallel => Refusal::Parallel { limit: limited.max_parallel.unwrap_or(0) },
        Limit::Budget => {
            let (limit, spent, resets) =
                limited.budget.map_or((Usd::ZERO, Usd::ZERO, None), |b| (b.limit, b.spent, b.resets));
            if limited.is_total {
                return Refusal::Total { resets };
            }
            Refusal::Budget { limit, spent, reserved: limit.minus(spent), resets }
        }
    };
    match limited.kind {
        Some(kind) => Refusal::Owner { kind, refusal: Box::new(refusal) },
        None => refusal,
    }
}
