//! Limits and cooldowns that several processes share through Redis: of virtual keys, and of the router's deployments. Created by `gateway`.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use octet_cache::{Account, Lease, Limit, Refused, SharedLimits};
use octet_config::Config;
use octet_keys::{Limited, Refusal, Usd};
use octet_router::state::Limits;
use octet_router::{Acquired, Exhausted, LimitKind, Shared, SharedPermit};

use crate::models::BoxError;

/// The limits of a configuration; `None` without Redis.
pub fn limits(config: &Config) -> Result<Option<Arc<SharedLimits>>, BoxError> {
    let new = |server| SharedLimits::new(server, fastrand::u64(..));
    let made = config.router.redis.as_ref().map(new).transpose();
    Ok(made.map_err(|e| format!("router_settings: {e}"))?)
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
        tokens: u64,
    ) -> Pin<Box<dyn Future<Output = Acquired> + Send + 'a>> {
        let account = Account {
            name: format!("deployment:{deployment}"),
            rpm: limits.rpm,
            tpm: limits.tpm,
            max_parallel: limits.max_parallel.map(u64::from),
            budget: None,
            tokens,
            whole: true,
        };
        Box::pin(async move {
            match self.0.acquire(vec![account], 0).await {
                Ok(lease) => Ok(Some(Box::new(Counted(lease)) as Box<dyn SharedPermit>)),
                Err(Refused { limit, retry_after_s, .. }) => {
                    let limit = match limit {
                        Limit::Requests => LimitKind::Rpm,
                        Limit::Tokens => LimitKind::Tpm,
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
        Limit::Tokens => Refusal::Tokens { limit: limited.tpm.unwrap_or(0), retry_after_s },
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
