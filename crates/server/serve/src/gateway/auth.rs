//! Authentication, authorization, quotas and billing.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use hyper::HeaderMap;
use octet_api::core::{GenerateRequest, Usage};
use octet_api::{ApiError, ErrorKind, shortened};
use octet_cache::{Lease, SharedLimits};
use octet_callbacks::Callbacks;
use octet_config::{Condition, Config, ModelInfo, Price, PriceList, SessionKey};
use octet_keys::{Ask, EndUser, Grant, Prices, Refusal, Usd};
use octet_router::{Answered, Resolved, Spent, answers};
use tokio::sync::Semaphore;

use super::cache::Responses;
use super::caller::{Bearer, Caller};
use super::watch::{FileStates, file_states};
use super::{Gateway, shared};
use crate::blocking::spawn_blocking;
use crate::ops::{Keys, NO_KEY};

/// Information about a deployment, for lists and billing.
pub struct About {
    /// Its prices.
    pub prices: Prices,
    /// It is known to cost nothing.
    pub is_free: bool,
    /// Its provider, by LiteLLM's name.
    pub provider: String,
    /// Its `model_info`.
    pub info: ModelInfo,
}

/// The parts of a configuration that the router does not hold.
pub struct Current {
    /// The server's own keys.
    pub keys: Keys,
    /// Limits concurrent requests.
    pub places: Option<Arc<Semaphore>>,
    /// By deployment id.
    pub about: HashMap<String, About>,
    /// Whether deployments have access groups, which keys may name.
    pub has_access_groups: bool,
    /// Whether there is a global budget.
    pub has_total: bool,
    /// The budget of end users that have none of their own.
    pub end_user_budget: Option<octet_keys::Budget>,
    /// Names that are not listed.
    pub unlisted: HashSet<String>,
    /// Settings for new keys.
    pub key_settings: Arc<octet_config::KeysSettings>,
    /// Whether fallbacks are limited to the models that a key may use.
    pub guard_fallbacks: bool,
    /// Whether routing uses request headers.
    pub headers: bool,
    /// Prices of models whose entries have none.
    pub price_list: PriceList,
    /// Receivers of reports of finished requests.
    pub callbacks: Option<Arc<Callbacks>>,
    /// Servers that see each request first.
    pub hooks: Arc<[octet_config::Hook]>,
    /// Servers that see each answer before the client does.
    pub answer_hooks: Arc<[octet_config::Hook]>,
    /// Receivers of alerts.
    pub alerts: Vec<octet_config::AlertReceiver>,
    /// Their settings.
    pub callback_settings: Vec<octet_config::Callback>,
    /// The response cache.
    pub responses: Option<Arc<Responses>>,
    /// The files that it came from.
    pub files: Vec<PathBuf>,
    /// Their state soon after they were read, so that later changes are detected.
    pub file_states: FileStates,
    /// When it was read, in seconds since 1970 UTC.
    pub created_s: u64,
}

impl Current {
    /// Creates it from `config`. `old` stays in use if its settings are the same.
    pub fn new(config: &Config, flags: &Keys, old: Option<&Arc<Responses>>) -> Result<Self, String> {
        let own = config.server.master_key.iter().chain(&config.server.api_keys);
        let keys = own.map(|k| k.expose().to_string());
        let mut about = HashMap::new();
        for d in &config.deployments {
            let info = &d.info;
            let price = Price {
                input: info.input_cost_per_token.unwrap_or(0.0),
                output: info.output_cost_per_token.unwrap_or(0.0),
                cache_read: info.cached_input_cost_per_token,
                cache_write: info.cache_write_cost_per_token,
            };
            let prices = priced(&price).map_err(|e| format!("{}: '{}': {e}", d.span, d.group))?;
            // A provider's model without prices may cost something.
            let is_known = info.input_cost_per_token.or(info.output_cost_per_token).is_some()
                || !matches!(d.target, octet_config::Target::Remote(_));
            let (is_free, provider) = (is_known && prices.are_zero(), provider(&d.target, info));
            about.insert(d.id.clone(), About { prices, is_free, provider, info: info.clone() });
        }
        let end_user_budget = config.keys.max_end_user_budget.map(|usd| octet_keys::budget(usd, None));
        let end_user_budget = end_user_budget.transpose().map_err(|e| e.to_string())?;
        let by_header = |s: &octet_config::Sticky| s.by.iter().any(|k| matches!(k, SessionKey::Header(_)));
        let mut conditions = config.cascades.iter().flat_map(|c| &c.rules).flat_map(|r| &r.when);
        let headers = config.router.sticky.as_ref().is_some_and(by_header)
            || conditions.any(|c| matches!(c, Condition::Header(_)));
        let unlisted = config.processes.iter().filter(|p| p.unlisted);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Self {
            keys: flags.and(keys),
            has_access_groups: config.deployments.iter().any(|d| !d.info.access_groups.is_empty()),
            has_total: config.keys.max_budget.is_some(),
            end_user_budget,
            key_settings: Arc::new(config.keys.clone()),
            guard_fallbacks: !config.keys.open_fallbacks,
            places: config.server.max_parallel_requests.map(|n| Arc::new(Semaphore::new(n as usize))),
            about,
            unlisted: unlisted.flat_map(|p| std::iter::once(&p.id).chain(&p.aliases)).cloned().collect(),
            headers,
            price_list: config.prices.clone(),
            callbacks: None,
            hooks: config.hooks.iter().filter(|h| !h.on_response).cloned().collect(),
            answer_hooks: config.hooks.iter().filter(|h| h.on_response).cloned().collect(),
            alerts: config.alerts.clone(),
            callback_settings: config.callbacks.clone(),
            responses: Responses::new(config, old)?,
            files: config.files.clone(),
            file_states: file_states(&config.files),
            created_s: now.as_secs(),
        })
    }
}

impl Current {
    /// The prices of a deployment; one with a wildcard has the prices of the requested model.
    pub fn prices(&self, deployment: &str, model: Option<&str>) -> Option<Prices> {
        let about = self.about.get(deployment)?;
        Some(self.listed(about, model).unwrap_or(about.prices))
    }

    /// The prices of the requested model of a deployment with a wildcard.
    fn listed(&self, about: &About, model: Option<&str>) -> Option<Prices> {
        let pattern = about.info.priced_as.as_deref().filter(|name| name.contains('*'));
        let (provider, _) = pattern?.split_once('/')?;
        priced(&self.price_list.get(&format!("{provider}/{}", model?))?).ok()
    }

    /// Whether a deployment is known to cost nothing.
    fn is_free(&self, deployment: &str, model: Option<&str>) -> bool {
        let Some(about) = self.about.get(deployment) else { return false };
        self.listed(about, model).map_or(about.is_free, |prices| prices.are_zero())
    }

    /// The cost of an answer.
    pub fn cost(&self, who: Option<&Answered>, usage: Option<&Usage>) -> Usd {
        let prices = who.and_then(|who| self.prices(&who.deployment, Some(&who.model)));
        prices.zip(usage).map_or(Usd::ZERO, |(prices, usage)| prices.cost(&counted(usage)))
    }
}

/// Token counts for the key store.
pub fn counted(usage: &Usage) -> octet_keys::Usage {
    octet_keys::Usage {
        input: usage.prompt_tokens,
        cached: usage.cached_tokens.unwrap_or(0),
        cache_written: usage.cache_written_tokens.unwrap_or(0),
        output: usage.completion_tokens,
    }
}

/// Prices for billing.
fn priced(price: &Price) -> Result<Prices, octet_keys::Error> {
    let prices = Prices::new(price.input, price.output)?;
    let prices = price.cache_read.map_or(Ok(prices), |usd| prices.cache_read(usd))?;
    price.cache_write.map_or(Ok(prices), |usd| prices.cache_write(usd))
}

/// The provider of a target, by LiteLLM's name.
fn provider(target: &octet_config::Target, info: &ModelInfo) -> String {
    if let Some((name, _)) = info.priced_as.as_ref().and_then(|name| name.split_once('/')) {
        return name.into();
    }
    match target {
        octet_config::Target::Remote(remote) => remote.provider.name().into(),
        octet_config::Target::Local(_) => "octet".into(),
        octet_config::Target::Process(_) => "process".into(),
    }
}

/// Paths for the operator only: they show other clients' requests.
const OPERATORS: &[&str] = &["/metrics", "/metrics/history", "/props", "/experts"];

impl Gateway {
    /// Whether no key is needed.
    pub fn is_open(&self) -> bool {
        self.store.is_none() && self.current().keys.is_empty()
    }

    /// Whether there are virtual keys.
    pub fn has_virtual_keys(&self) -> bool {
        self.store.is_some()
    }

    /// The store of virtual keys and their usage.
    pub fn store(&self) -> Option<&Arc<octet_keys::Store>> {
        self.store.as_ref()
    }

    /// Settings for new keys.
    pub fn key_settings(&self) -> Arc<octet_config::KeysSettings> {
        self.current().key_settings.clone()
    }

    /// Whether `key` is one of the server's own.
    pub fn is_own_key(&self, key: &str) -> bool {
        self.current().keys.has(key)
    }

    /// The refusal of a request for its client; it is counted.
    pub fn refuse(&self, refusal: &Refusal, key: Option<&str>) -> ApiError {
        self.inference.metrics.routes.refused(refusal.reason(), key);
        refused(refusal)
    }

    /// Servers that see each request first.
    pub fn hooks(&self) -> Arc<[octet_config::Hook]> {
        Arc::clone(&self.current().hooks)
    }

    /// Servers that see each answer before the client does.
    pub fn answer_hooks(&self) -> Arc<[octet_config::Hook]> {
        Arc::clone(&self.current().answer_hooks)
    }

    /// The client for requests to other servers than deployments.
    pub fn client(&self) -> &octet_upstream::Client {
        &self.client
    }

    /// The name of the caller's virtual key.
    pub fn key_name(&self, caller: &Caller) -> Option<String> {
        match (caller, &self.store) {
            (Caller::Key(key), Some(store)) => store.name(&key.secret),
            _ => None,
        }
    }

    /// Authenticates a request.
    pub fn admit(&self, path: &str, headers: &HeaderMap) -> Result<Caller, ApiError> {
        let current = self.current();
        let keys = &current.keys;
        if self.is_open() || (!keys.is_empty() && keys.admit(headers)) {
            return Ok(Caller::Trusted);
        }
        let no_key = || {
            self.inference.metrics.routes.refused("no_key", None);
            ApiError::new(ErrorKind::Authentication, NO_KEY)
        };
        let Some(store) = &self.store else { return Err(no_key()) };
        let secret = Keys::sent(headers).ok_or_else(no_key)?;
        let id = store.check(secret).map_err(|e| self.refuse(&e, store.name(secret).as_deref()))?;
        if OPERATORS.contains(&path) {
            let what = "this API key may only use models; this endpoint needs the server's own key";
            return Err(ApiError::new(ErrorKind::Permission, what));
        }
        Ok(Caller::Key(Bearer { secret: secret.into(), id: id.to_string().into() }))
    }

    /// Whether `caller` may use `name`.
    pub fn may_use(&self, caller: &Caller, name: &str) -> bool {
        match (caller, &self.store) {
            (Caller::Key(key), Some(store)) => {
                let current = self.current();
                let names = self.other_names(&current, name);
                store.allows_in(&key.secret, name, &names.iter().map(String::as_str).collect::<Vec<_>>())
            }
            (Caller::Key(_), None) => false,
            (Caller::Trusted, _) => true,
        }
    }

    /// Fails if `caller` may not use the model.
    pub fn permit(&self, caller: &Caller, name: &str) -> Result<(), ApiError> {
        if self.may_use(caller, name) {
            return Ok(());
        }
        let key = match (caller, &self.store) {
            (Caller::Key(key), Some(store)) => store.name(&key.secret),
            _ => None,
        };
        self.inference.metrics.routes.refused("model", key.as_deref());
        let what = format!("this API key may not use the model '{}'", shortened(name));
        Err(ApiError { code: Some("model_not_allowed".into()), ..ApiError::new(ErrorKind::Permission, what) })
    }

    /// Other names that allow a key to use `name`: the model that it is an alias of, and the access groups that contain it.
    fn other_names(&self, current: &Current, name: &str) -> Vec<String> {
        let table = self.router().table();
        let mut out = Vec::new();
        match table.resolve(name) {
            Resolved::Group { group, name: resolved, .. } => {
                out.extend((resolved != name).then(|| resolved.to_string()));
                if current.has_access_groups {
                    let about = group.deployments.iter().filter_map(|d| current.about.get(d.id()));
                    out.extend(about.flat_map(|a| &a.info.access_groups).cloned());
                }
            }
            Resolved::Cascade { cascade, .. } => {
                out.extend((cascade.name != name).then(|| cascade.name.to_string()));
            }
            Resolved::Unknown => {}
        }
        out
    }

    /// Authorizes a request and reserves its cost: from its key's budget, and from the global one if there is one. `bytes` is its size.
    /// Without a key store nothing is billed.
    pub fn authorize(
        &self,
        caller: &Caller,
        request: &GenerateRequest,
        bytes: u64,
    ) -> Result<Option<Bill>, ApiError> {
        let current = self.current();
        let store = match (&self.store, caller) {
            (Some(store), _) => store,
            (None, Caller::Trusted) => return Ok(None),
            (None, Caller::Key(_)) => {
                return Err(ApiError::new(ErrorKind::Authentication, "invalid API key"));
            }
        };
        let name = &request.model;
        let Dearest { prices, output_max, is_free } = self.dearest(&current, name);
        let output = request.max_tokens.map(u64::from).or(output_max).unwrap_or(OUTPUT_GUESS);
        // Of a provider's answers each is as long as it may be.
        let answers = answers(request);
        let mut ask = Ask { input: bytes / BYTES_PER_TOKEN, output, prices, is_free: false };
        let end_user = request.user.as_deref().filter(|user| !user.is_empty());
        let end_user = end_user.map(|id| EndUser { id, budget: current.end_user_budget });
        let names = match caller {
            Caller::Key(_) => self.other_names(&current, name),
            Caller::Trusted => Vec::new(),
        };
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let grants = |ask: &Ask| {
            let granted = match caller {
                Caller::Key(key) => store.authorize_for(&key.secret, name, &names, ask, answers, end_user),
                Caller::Trusted => store.authorize_own(name, ask, answers, end_user),
            };
            let mut grants = vec![granted?];
            if current.has_total {
                match store.authorize_total_answers(name, ask, answers) {
                    Ok(granted) => grants.push(granted),
                    Err(refusal) => {
                        grants.into_iter().for_each(Grant::withdraw);
                        return Err(refusal);
                    }
                }
            }
            Ok(grants)
        };
        let mut granted = grants(&ask);
        if is_free && granted.as_ref().is_err_and(Refusal::is_budget) {
            ask.is_free = true;
            granted = grants(&ask);
        }
        let grants = granted.map_err(|e| {
            let is_total =
                matches!(e, Refusal::Total { .. } | Refusal::TotalAnswers | Refusal::TotalUnwritable { .. });
            let key = match caller {
                Caller::Key(key) if !is_total => store.name(&key.secret),
                _ => None,
            };
            self.refuse(&e, key.as_deref())
        })?;
        let (input, output) = (ask.input, ask.times(answers).output);
        let only_free = is_free.then(|| Arc::new(AtomicBool::new(ask.is_free)));
        Ok(Some(Bill { grants, prices, input, output, only_free, current }))
    }

    /// Whether all deployments that may answer for `name` are known to cost nothing.
    pub fn is_free(&self, name: &str) -> bool {
        self.dearest(&self.current(), name).is_free
    }

    /// The most expensive deployment that may answer for `name`.
    fn dearest(&self, current: &Current, name: &str) -> Dearest {
        let table = self.router().table();
        let names = match table.resolve(name) {
            Resolved::Cascade { cascade, .. } => vec![cascade.fast.clone(), cascade.strong.clone()],
            _ => vec![name.to_string()],
        };
        let one = octet_keys::Usage { input: 1000, output: 1000, ..Default::default() };
        let mut dearest: Option<Dearest> = None;
        let mut is_free = true;
        for name in &names {
            let Resolved::Group { group, name, .. } = table.resolve(name) else { continue };
            for d in &group.deployments {
                // A wildcard in the deployment's model stands for the requested name.
                let model = group.name.fill(name, octet_router::Target::model(&d.target));
                let Some(prices) = current.prices(d.id(), model.as_deref()) else { continue };
                is_free &= current.is_free(d.id(), model.as_deref());
                if dearest.as_ref().is_none_or(|known| prices.cost(&one) > known.prices.cost(&one)) {
                    let output_max = current.about.get(d.id()).and_then(|a| a.info.max_output_tokens);
                    dearest = Some(Dearest { prices, output_max, is_free });
                }
            }
        }
        dearest.map_or_else(Dearest::default, |dearest| Dearest { is_free, ..dearest })
    }
}

/// The most expensive deployment that may answer.
#[derive(Default)]
struct Dearest {
    prices: Prices,
    /// Its maximum answer length.
    output_max: Option<u64>,
    /// All that may answer are known to cost nothing.
    is_free: bool,
}

/// Assumed maximum answer length if there is no limit.
const OUTPUT_GUESS: u64 = 1024;
/// Approximate bytes per token.
const BYTES_PER_TOKEN: u64 = 4;

/// The bill of a request.
pub struct Bill {
    grants: Vec<Grant>,
    prices: Prices,
    input: u64,
    output: u64,
    /// For a model that costs nothing: whether a budget is spent, so that nothing else may answer. `None` for other models.
    only_free: Option<Arc<AtomicBool>>,
    current: Arc<Current>,
}

impl Bill {
    /// For a model that costs nothing: whether only such models may answer.
    pub fn only_free(&self) -> Option<Arc<AtomicBool>> {
        self.only_free.clone()
    }

    /// Takes the request out of all budgets, as one of them is spent; false if it may cost something, or was taken out already.
    pub fn pass_budgets(&mut self) -> bool {
        let Some(only_free) = &self.only_free else { return false };
        let was_free = only_free.swap(true, Ordering::Relaxed);
        self.grants.iter_mut().for_each(Grant::free);
        !was_free
    }

    /// Counts the request for all processes that share limits; without such limits, nothing.
    async fn share(&self, limits: &Arc<SharedLimits>) -> Result<Option<Lease>, Refusal> {
        let limited: Vec<octet_keys::Limited> = self.grants.iter().flat_map(Grant::limited).collect();
        if limited.is_empty() {
            return Ok(None);
        }
        let cost =
            self.grants.iter().map(|grant| shared::millionths(grant.reserved_cost())).max().unwrap_or(0);
        let counted = limits.acquire(limited.iter().map(shared::account).collect(), cost).await;
        counted.map(Some).map_err(|e| shared::refusal(&limited[e.account.min(limited.len() - 1)], e))
    }

    /// Counts the request in Redis, and covers it by what is leased of budgets. Budgets are counted in Redis, or, if that does not answer,
    /// leased in the database of keys.
    ///
    /// # Errors
    /// A failure of this server. The refusal is in the result.
    pub async fn count(
        mut self,
        shared: Option<&Arc<SharedLimits>>,
    ) -> Result<(Self, Result<Option<Lease>, Refusal>), ApiError> {
        let counted = match shared {
            Some(limits) => self.share(limits).await,
            None => Ok(None),
        };
        let is_counted = |lease: &Option<Lease>| lease.as_ref().is_some_and(Lease::is_counted);
        if counted.as_ref().map_or(true, is_counted) || self.is_covered() {
            return Ok((self, counted));
        }
        let (bill, covered) = spawn_blocking(move || {
            let covered = self.cover();
            (self, covered)
        })
        .await
        .map_err(|e| ApiError::new(ErrorKind::Internal, e.to_string()))?;
        Ok((bill, covered.and(counted)))
    }

    /// Whether what this process has leased of budgets covers the request.
    fn is_covered(&mut self) -> bool {
        self.grants.iter_mut().all(Grant::is_covered)
    }

    /// Leases what the request needs of budgets; waits for the database.
    fn cover(&mut self) -> Result<(), Refusal> {
        self.grants.iter_mut().try_for_each(Grant::cover)
    }

    /// The name of the key that it is for.
    pub fn key(&self) -> String {
        self.grants.first().map_or_else(String::new, Grant::name)
    }

    /// Ends the bill of a request that was not sent.
    pub fn withdraw(self) {
        self.grants.into_iter().for_each(Grant::withdraw);
    }

    /// Sets the deployment and model that answer.
    pub fn answered_by(&mut self, deployment: &str, model: Option<&str>) {
        if let Some(prices) = self.current.prices(deployment, model) {
            self.prices = prices;
        }
        let ask = Ask { input: self.input, output: self.output, prices: self.prices, is_free: false };
        self.grants.iter_mut().for_each(|grant| grant.reserve(&ask));
    }

    /// Adds an answer that was discarded: its provider bills it anyway.
    pub fn add(&mut self, spent: &Spent) {
        let prices = self.current.prices(&spent.deployment, None).unwrap_or_default();
        let mut took = self.took(spent.usage.as_ref(), spent.pieces);
        // The provider may have counted only the prompt.
        took.output = took.output.max(spent.pieces);
        self.grants.iter_mut().for_each(|grant| grant.add(&took, &prices));
    }

    /// Ends the bill, and returns the cost. Without a count, because the client left or the provider does not count, `tokens` is the estimate.
    pub fn settle(self, usage: Option<&Usage>, tokens: u64) -> Usd {
        let took = self.took(usage, tokens);
        self.end(&took)
    }

    fn end(self, took: &octet_keys::Usage) -> Usd {
        let costs = self.grants.into_iter().map(|grant| grant.settle(took, &self.prices));
        costs.max().unwrap_or(Usd::ZERO)
    }

    /// Ends the bill of a request without an answer, except [discarded](Bill::add) ones.
    pub fn settle_added(self) -> Usd {
        self.end(&octet_keys::Usage::default())
    }

    /// The tokens that limits count.
    pub fn tokens(&self, usage: Option<&Usage>, tokens: u64) -> u64 {
        self.took(usage, tokens).tokens()
    }

    fn took(&self, usage: Option<&Usage>, tokens: u64) -> octet_keys::Usage {
        match usage {
            Some(u) => counted(u),
            None => octet_keys::Usage { input: self.input, output: tokens, ..Default::default() },
        }
    }
}

fn refused(e: &Refusal) -> ApiError {
    let kind = match e.status() {
        401 => ErrorKind::Authentication,
        403 => ErrorKind::Permission,
        429 => ErrorKind::RateLimit,
        _ => ErrorKind::Overloaded,
    };
    ApiError {
        code: Some(e.code().into()),
        retry_after_s: e.retry_after_s(),
        ..ApiError::new(kind, e.to_string())
    }
}
