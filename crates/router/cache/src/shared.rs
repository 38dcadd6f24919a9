//! Limits that hold over several processes: requests and tokens per minute, concurrent requests, budgets, and the cooldowns of deployments,
//! in Redis.
//!
//! One script checks and counts a request for all its accounts, so two processes never count at the same time. Each process has its own
//! limits besides: if Redis does not answer, requests continue with these alone, so that N processes may allow N times as much until it is
//! back. Concurrent requests are leases that a living process renews; those of a process that died end after [`LEASE`].

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use octet_config::RedisServer;

use crate::redis::{Failed, RETRY_AFTER, Redis};

/// How long a running request counts if its process no longer renews it.
pub const LEASE: Duration = Duration::from_secs(30);
/// How often running requests are renewed.
const RENEW_EVERY: Duration = Duration::from_secs(10);
/// How often other processes' cooldowns are read.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The names' beginning. The braces keep all names in one slot of a cluster.
const NAMES: &str = "octet:{limits}:";

const ACQUIRE: &str = include_str!("acquire.lua");
const RELEASE: &str = include_str!("release.lua");
const RENEW: &str = include_str!("renew.lua");
const COOLDOWNS: &str = include_str!("cooldowns.lua");

/// What is limited: a key, a user, a team, a deployment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// Its name, unique among all accounts.
    pub name: String,
    /// Requests per minute.
    pub rpm: Option<u64>,
    /// Tokens per minute.
    pub tpm: Option<u64>,
    /// Concurrent requests.
    pub max_parallel: Option<u64>,
    /// A budget, and what this process knows to be spent of it, in millionths of a dollar.
    pub budget: Option<(u64, u64)>,
    /// Expected tokens of the request.
    pub tokens: u64,
    /// Further tokens that it may take, as long as it runs.
    pub reserved: u64,
    /// A request that would exceed the tokens per minute is refused; else only one after they are used up.
    pub whole: bool,
}

impl Account {
    /// The tokens that are counted: without a limit, none.
    fn counted(&self, tokens: u64) -> u64 {
        if self.tpm.is_some() { tokens.min(TOKENS_MAX) } else { 0 }
    }

    /// Whether its running requests are counted.
    fn has_running(&self) -> bool {
        self.max_parallel.is_some() || self.budget.is_some() || self.counted(self.reserved) > 0
    }
}

/// Maximum tokens of a request: providers' counts are not trusted, and Lua's numbers are exact up to 2^53.
const TOKENS_MAX: u64 = 1 << 32;

/// A limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// Requests per minute.
    Requests,
    /// Tokens per minute.
    Tokens,
    /// Tokens per minute, with what running requests may still take.
    Reserved,
    /// Concurrent requests.
    Parallel,
    /// The budget.
    Budget,
}

/// A request was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// The account's index.
    pub account: usize,
    /// The limit that it has reached.
    pub limit: Limit,
    /// Seconds until another request is possible; 0 if unknown.
    pub retry_after_s: u64,
}

/// A cooldown that another process has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cooled {
    /// The deployment.
    pub deployment: String,
    /// One of its models, if it has many.
    pub model: Option<String>,
    /// The remaining time.
    pub time: Duration,
}

/// Limits in Redis. Must be used inside a tokio runtime.
#[derive(Debug)]
pub struct SharedLimits {
    redis: Redis,
    /// Names this process.
    process: String,
    leases: AtomicU64,
    /// Running requests by the name of their account's set, to be renewed.
    running: Mutex<HashMap<String, Vec<String>>>,
    errors: AtomicU64,
}

/// A counted request; it ends when this is dropped.
#[derive(Debug)]
pub struct Lease {
    limits: Arc<SharedLimits>,
    name: String,
    accounts: Vec<Account>,
    /// Redis's second in which it was counted; `None` if it was not.
    second: Option<u64>,
    tokens: Option<u64>,
    /// Its cost in millionths of a dollar.
    cost: u64,
}

impl SharedLimits {
    /// Limits in the server. Does not connect yet. `process` is random.
    ///
    /// # Errors
    /// What is wrong with its address.
    pub fn new(server: &RedisServer, process: u64) -> Result<Arc<Self>, String> {
        Ok(Arc::new(Self {
            redis: Redis::new(server)?,
            process: format!("{process:016x}"),
            leases: AtomicU64::new(0),
            running: Mutex::default(),
            errors: AtomicU64::new(0),
        }))
    }

    /// How often Redis did not answer, or was skipped because it had just failed.
    pub fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    /// Checks the limits of all accounts, and counts a request for each, or for none. If Redis does not answer, the request is allowed and
    /// not counted. `cost` is what it may cost, in millionths of a dollar.
    ///
    /// # Errors
    /// The limit that is reached.
    pub async fn acquire(self: &Arc<Self>, accounts: Vec<Account>, cost: u64) -> Result<Lease, Refused> {
        let number = self.leases.fetch_add(1, Ordering::Relaxed);
        let reserved = accounts.iter().map(|a| a.counted(a.reserved)).max().unwrap_or(0);
        let name = format!("{}-{number}|{reserved}|{cost}", self.process);
        // If this future is dropped, the lease is released, whether it was counted or not.
        let limits = Arc::clone(self);
        let mut lease = Lease { limits, name, accounts, second: Some(0), tokens: Some(0), cost: 0 };
        let mut args = vec![lease.name.clone(), LEASE.as_millis().to_string()];
        for a in &lease.accounts {
            let limit = |n: Option<u64>| n.map_or("-1".into(), |n| n.to_string());
            args.extend([limit(a.rpm), limit(a.tpm), limit(a.max_parallel), limit(a.budget.map(|b| b.0))]);
            args.extend([a.counted(a.tokens).to_string(), u8::from(a.whole).to_string()]);
            args.extend([a.budget.map_or(0, |b| b.1).to_string(), u8::from(a.has_running()).to_string()]);
        }
        let answer: Result<(u64, u64, u64, u64), Failed> =
            self.redis.eval(ACQUIRE, &lease.keys(), &args).await;
        match answer {
            Ok((1, second, _, _)) => {
                (lease.second, lease.tokens) = (Some(second), None);
                lease.remember();
                Ok(lease)
            }
            Ok((_, account, limit, retry_after_s)) => {
                lease.second = None;
                let limit = match limit {
                    0 => Limit::Requests,
                    1 => Limit::Tokens,
                    2 => Limit::Parallel,
                    4 => Limit::Reserved,
                    _ => Limit::Budget,
                };
                Err(Refused { account: usize::try_from(account).unwrap_or(0), limit, retry_after_s })
            }
            Err(why) => {
                self.failed(why);
                lease.second = None;
                Ok(lease)
            }
        }
    }

    /// Tells the other processes that a deployment is in cooldown.
    pub fn cooled(self: &Arc<Self>, deployment: &str, model: Option<&str>, time: Duration) {
        let field = serde_json::json!([deployment, model]).to_string();
        let args = vec![field, time.as_millis().to_string(), self.process.clone()];
        let this = Arc::clone(self);
        spawn(async move {
            if let Err(why) = this.cooldowns(&args).await {
                this.failed(why);
            }
        });
    }

    /// All cooldowns: deployment and model, remaining ms, end in ms of Redis's clock, process.
    async fn cooldowns(&self, args: &[String]) -> Result<Vec<(String, u64, u64, String)>, Failed> {
        self.redis.eval(COOLDOWNS, &[format!("{NAMES}cooldowns")], args).await
    }

    /// Renews running requests, and reports other processes' cooldowns to `apply`. Runs as long as the server.
    pub async fn run(self: Arc<Self>, apply: impl Fn(Cooled) + Send) {
        let mut known: HashMap<String, u64> = HashMap::new();
        let mut renewed = tokio::time::Instant::now();
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            match self.cooldowns(&[]).await {
                Ok(all) => {
                    let mut current = HashMap::new();
                    for (field, left_ms, until, process) in all {
                        let is_new = known.get(&field) != Some(&until) && process != self.process;
                        if is_new && let Some(cooled) = cooled(&field, left_ms) {
                            apply(cooled);
                        }
                        current.insert(field, until);
                    }
                    known = current;
                }
                Err(why) => self.failed(why),
            }
            if renewed.elapsed() >= RENEW_EVERY {
                renewed = tokio::time::Instant::now();
                self.renew().await;
            }
        }
    }

    async fn renew(&self) {
        let running = self.running().clone();
        for (set, leases) in running {
            let mut args = vec![LEASE.as_millis().to_string()];
            args.extend(leases);
            let renewed: Result<u64, Failed> = self.redis.eval(RENEW, &[set], &args).await;
            if let Err(why) = renewed {
                return self.failed(why);
            }
        }
    }

    fn running(&self) -> std::sync::MutexGuard<'_, HashMap<String, Vec<String>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `why` is logged once per pause in which Redis is skipped.
    fn failed(&self, why: Failed) {
        self.errors.fetch_add(1, Ordering::Relaxed);
        if let Some(why) = why {
            let seconds = RETRY_AFTER.as_secs();
            tracing::warn!(
                "limits are not shared with other processes for {seconds} s, and each has its own: {why}"
            );
        }
    }
}

fn cooled(field: &str, left_ms: u64) -> Option<Cooled> {
    let (deployment, model) = serde_json::from_str(field).ok()?;
    Some(Cooled { deployment, model, time: Duration::from_millis(left_ms) })
}

impl Lease {
    /// Whether it is counted: Redis has answered.
    pub fn is_counted(&self) -> bool {
        self.second.is_some()
    }

    /// The request's actual tokens; without them, the expected ones stay counted.
    pub fn used(&mut self, tokens: u64) {
        self.tokens = Some(tokens);
    }

    /// What it cost, in millionths of a dollar.
    pub fn cost(&mut self, cost: u64) {
        self.cost = cost;
    }

    /// Names in Redis: of each account its counts, and its running requests.
    fn keys(&self) -> Vec<String> {
        let names = |a: &Account| [format!("{NAMES}{}", a.name), running_set(a)];
        self.accounts.iter().flat_map(names).collect()
    }

    fn sets(&self) -> impl Iterator<Item = String> {
        self.accounts.iter().filter(|a| a.has_running()).map(running_set)
    }

    /// It is renewed until it is dropped.
    fn remember(&self) {
        let mut running = self.limits.running();
        for set in self.sets() {
            running.entry(set).or_default().push(self.name.clone());
        }
    }

    fn forget(&self) {
        let mut running = self.limits.running();
        for set in self.sets() {
            if let Some(leases) = running.get_mut(&set) {
                leases.retain(|name| *name != self.name);
                if leases.is_empty() {
                    running.remove(&set);
                }
            }
        }
    }
}

fn running_set(account: &Account) -> String {
    format!("{NAMES}{}:running", account.name)
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some(second) = self.second else { return };
        self.forget();
        let mut args = vec![self.name.clone(), second.to_string(), self.cost.to_string()];
        for account in &self.accounts {
            let tokens = self.tokens.unwrap_or(account.tokens);
            args.extend([account.counted(account.tokens).to_string(), account.counted(tokens).to_string()]);
            args.push(u8::from(account.budget.is_some()).to_string());
        }
        let (keys, limits) = (self.keys(), Arc::clone(&self.limits));
        spawn(async move {
            let released: Result<u64, Failed> = limits.redis.eval(RELEASE, &keys, &args).await;
            if let Err(why) = released {
                limits.failed(why);
            }
        });
    }
}

/// At the end of the process there is no runtime: leases then end by themselves.
fn spawn(work: impl Future<Output = ()> + Send + 'static) {
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        drop(runtime.spawn(work));
    }
}
