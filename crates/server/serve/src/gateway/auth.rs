//! Who may come in, what they may ask, and who pays. Asked by `http` before anything is sent.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use hyper::HeaderMap;
use octet_api::core::{GenerateRequest, Usage};
use octet_api::{ApiError, ErrorKind, shortened};
use octet_callbacks::Callbacks;
use octet_config::{Condition, Config, ModelInfo, Price, PriceList, SessionKey};
use octet_keys::{Ask, Grant, Prices, Refusal, Usd};
use octet_router::{Answered, Resolved, Spent};
use tokio::sync::Semaphore;

use super::Gateway;
use super::cache::Responses;
use super::caller::{Bearer, Caller};
use super::watch::{Seen, look};
use crate::ops::Keys;

/// What is known of a deployment, for lists and bills.
pub struct About {
    /// What it costs.
    pub prices: Prices,
    /// Who answers there, by LiteLLM's name.
    pub provider: String,
    /// What the configuration says of it.
    pub info: ModelInfo,
}

/// What of a configuration is not the router's.
pub struct Current {
    /// The server's own keys.
    pub keys: Keys,
    /// Places for requests at once.
    pub places: Option<Arc<Semaphore>>,
    /// By deployment.
    pub about: HashMap<String, About>,
    /// Whether keys may use deployments by the names of groups that these are in.
    pub has_access_groups: bool,
    /// Whether all requests together have a budget.
    pub has_total: bool,
    /// Names that lists leave out.
    pub unlisted: HashSet<String>,
    /// What the configuration says of new keys.
    pub key_settings: Arc<octet_config::KeysSettings>,
    /// Whether keys are held to their models when another one falls back to those.
    pub guard_fallbacks: bool,
    /// Whether routes go by headers.
    pub headers: bool,
    /// What models cost where their entries do not say.
    pub price_list: PriceList,
    /// Where finished requests are reported.
    pub callbacks: Option<Arc<Callbacks>>,
    /// What the configuration says of them.
    pub told: Vec<octet_config::Callback>,
    /// Answers that are given again.
    pub responses: Option<Arc<Responses>>,
    /// The files that it came from.
    pub files: Vec<PathBuf>,
    /// How these were soon after they had been read: what changes before somebody watches them is a change, too.
    pub seen: Seen,
    /// When it was read, in seconds since 1970 UTC.
    pub created_s: u64,
}

impl Current {
    /// What `config` says beside the router's table. `old` goes on if the configuration says the same of it.
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
            about.insert(
                d.id.clone(),
                About { prices, provider: provider(&d.target, &d.info), info: info.clone() },
            );
        }
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
            key_settings: Arc::new(config.keys.clone()),
            guard_fallbacks: !config.keys.open_fallbacks,
            places: config.server.max_parallel_requests.map(|n| Arc::new(Semaphore::new(n as usize))),
            about,
            unlisted: unlisted.flat_map(|p| std::iter::once(&p.id).chain(&p.aliases)).cloned().collect(),
            headers,
            price_list: config.prices.clone(),
            callbacks: None,
            told: config.callbacks.clone(),
            responses: Responses::new(config, old)?,
            files: config.files.clone(),
            seen: look(&config.files),
            created_s: now.as_secs(),
        })
    }
}

impl Current {
    /// What a deployment costs; one with a star in its name costs what its model does.
    pub fn prices(&self, deployment: &str, model: Option<&str>) -> Option<Prices> {
        let about = self.about.get(deployment)?;
        let pattern = about.info.priced_as.as_deref().filter(|name| name.contains('*'));
        let of_model = pattern.zip(model).and_then(|(pattern, model)| {
            let (provider, _) = pattern.split_once('/')?;
            priced(&self.price_list.get(&format!("{provider}/{model}"))?).ok()
        });
        Some(of_model.unwrap_or(about.prices))
    }

    /// What an answer cost.
    pub fn cost(&self, who: Option<&Answered>, usage: Option<&Usage>) -> Usd {
        let prices = who.and_then(|who| self.prices(&who.deployment, Some(&who.model)));
        prices.zip(usage).map_or(Usd::ZERO, |(prices, usage)| prices.cost(&counted(usage)))
    }
}

/// Tokens as the store of keys counts them.
pub fn counted(usage: &Usage) -> octet_keys::Usage {
    octet_keys::Usage {
        input: usage.prompt_tokens,
        cached: usage.cached_tokens.unwrap_or(0),
        cache_written: usage.cache_written_tokens.unwrap_or(0),
        output: usage.completion_tokens,
    }
}

/// A price of the list, as bills count.
fn priced(price: &Price) -> Result<Prices, octet_keys::Error> {
    let prices = Prices::new(price.input, price.output)?;
    let prices = price.cache_read.map_or(Ok(prices), |usd| prices.cache_read(usd))?;
    price.cache_write.map_or(Ok(prices), |usd| prices.cache_write(usd))
}

/// Who answers for a target, by LiteLLM's name.
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

/// Paths that are the operator's: what others ask shows there.
const OPERATORS: &[&str] = &["/metrics", "/metrics/history", "/props", "/experts"];

impl Gateway {
    /// Whether everybody may come in.
    pub fn is_open(&self) -> bool {
        self.store.is_none() && self.current().keys.is_empty()
    }

    /// Whether there are keys besides the server's own.
    pub fn has_virtual_keys(&self) -> bool {
        self.store.is_some()
    }

    /// Virtual keys and what they spent.
    pub fn store(&self) -> Option<&Arc<octet_keys::Store>> {
        self.store.as_ref()
    }

    /// What the configuration says of new keys.
    pub fn key_settings(&self) -> Arc<octet_config::KeysSettings> {
        self.current().key_settings.clone()
    }

    /// Whether `key` is one of the server's own.
    pub fn is_own_key(&self, key: &str) -> bool {
        self.current().keys.has(key)
    }

    /// Who a request comes from, if that is somebody who may come in.
    pub fn admit(&self, path: &str, headers: &HeaderMap) -> Result<Caller, ApiError> {
        let current = self.current();
        let keys = &current.keys;
        if self.is_open() || (!keys.is_empty() && keys.admit(headers)) {
            return Ok(Caller::Trusted);
        }
        let no_key = || {
            let what =
                "no API key, or not a known one; send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'";
            ApiError::new(ErrorKind::Authentication, what)
        };
        let Some(store) = &self.store else { return Err(no_key()) };
        let secret = Keys::sent(headers).ok_or_else(no_key)?;
        let id = store.check(secret).map_err(|e| refused(&e))?;
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
                store.allows_in(&key.secret, name, &self.access_groups(&current, name))
            }
            (Caller::Key(_), None) => false,
            (Caller::Trusted, _) => true,
        }
    }

    /// Refuses a model that `caller` may not use.
    pub fn permit(&self, caller: &Caller, name: &str) -> Result<(), ApiError> {
        if self.may_use(caller, name) {
            return Ok(());
        }
        let what = format!("this API key may not use the model '{}'", shortened(name));
        Err(ApiError { code: Some("model_not_allowed".into()), ..ApiError::new(ErrorKind::Permission, what) })
    }

    /// The groups that a key may name instead of `name`.
    fn access_groups<'a>(&self, current: &'a Current, name: &str) -> Vec<&'a str> {
        if !current.has_access_groups {
            return Vec::new();
        }
        let table = self.router().table();
        let Resolved::Group { group, .. } = table.resolve(name) else { return Vec::new() };
        let about = group.deployments.iter().filter_map(|d| current.about.get(d.id()));
        about.flat_map(|a| &a.info.access_groups).map(String::as_str).collect()
    }

    /// Lets a request through that is billed: to its key, and to the budget of all requests where there is one. `bytes` of it came. Without
    /// a file of keys nothing is billed.
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
                return Err(ApiError::new(ErrorKind::Authentication, "this API key is not known"));
            }
        };
        let name = &request.model;
        let (prices, output_max) = self.dearest(&current, name);
        let output = request.max_tokens.map(u64::from).or(output_max).unwrap_or(OUTPUT_GUESS);
        let ask = Ask { input: bytes / BYTES_PER_TOKEN, output, prices };
        let mut grants = Vec::new();
        grants.push(match caller {
            Caller::Key(key) => {
                let groups = self.access_groups(&current, name);
                store.authorize_in(&key.secret, name, &groups, &ask).map_err(|e| refused(&e))?
            }
            Caller::Trusted => store.grant_own(name),
        });
        if current.has_total {
            grants.push(store.authorize_total(name, &ask).map_err(|e| refused(&e))?);
        }
        Ok(Some(Bill { grants, prices, input: ask.input, output, current }))
    }

    /// The prices of the most expensive deployment that may answer for `name`, and its longest answer.
    fn dearest(&self, current: &Current, name: &str) -> (Prices, Option<u64>) {
        let table = self.router().table();
        let names = match table.resolve(name) {
            Resolved::Cascade { cascade, .. } => vec![cascade.fast.clone(), cascade.strong.clone()],
            _ => vec![name.to_string()],
        };
        let one = octet_keys::Usage { input: 1000, output: 1000, ..Default::default() };
        let mut dearest: Option<(Prices, Option<u64>)> = None;
        for name in &names {
            let Resolved::Group { group, name, .. } = table.resolve(name) else { continue };
            for d in &group.deployments {
                // A star in the deployment's model stands for what the client asks for.
                let model = group.name.fill(name, octet_router::Target::model(&d.target));
                let Some(prices) = current.prices(d.id(), model.as_deref()) else { continue };
                if dearest.is_none_or(|(known, _)| prices.cost(&one) > known.cost(&one)) {
                    dearest =
                        Some((prices, current.about.get(d.id()).and_then(|a| a.info.max_output_tokens)));
                }
            }
        }
        dearest.unwrap_or_default()
    }
}

/// What is taken for the longest answer where nobody gives a limit.
const OUTPUT_GUESS: u64 = 1024;
/// Bytes that make a token, about.
const BYTES_PER_TOKEN: u64 = 4;

/// A request that somebody pays for.
pub struct Bill {
    grants: Vec<Grant>,
    prices: Prices,
    input: u64,
    output: u64,
    current: Arc<Current>,
}

impl Bill {
    /// It is known who answers, and with which model.
    pub fn answered_by(&mut self, deployment: &str, model: Option<&str>) {
        if let Some(prices) = self.current.prices(deployment, model) {
            self.prices = prices;
        }
        let ask = Ask { input: self.input, output: self.output, prices: self.prices };
        self.grants.iter_mut().for_each(|grant| grant.reserve(&ask));
    }

    /// An answer was thrown away, which whoever gave it bills all the same.
    pub fn add(&mut self, spent: &Spent) {
        let prices = self.current.prices(&spent.deployment, None).unwrap_or_default();
        let mut took = self.took(spent.usage.as_ref(), spent.pieces);
        // What was counted may be no more than the prompt.
        took.output = took.output.max(spent.pieces);
        self.grants.iter_mut().for_each(|grant| grant.add(&took, &prices));
    }

    /// It is over. Where nobody counted, because the client left or the provider does not, what came is estimated: `tokens` of it.
    pub fn settle(self, usage: Option<&Usage>, tokens: u64) {
        let took = self.took(usage, tokens);
        for grant in self.grants {
            grant.settle(&took, &self.prices);
        }
    }

    /// It is over, and there was no answer but those that were [thrown away](Bill::add).
    pub fn settle_added(self) {
        for grant in self.grants {
            grant.settle(&octet_keys::Usage::default(), &Prices::default());
        }
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
