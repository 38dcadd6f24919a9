//! Metrics of the router. Counted by `gateway::routed_request`, once per request.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use octet_api::core::Usage;
use octet_router::{Route, Step};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry as Exposed;

/// Label values come from the configuration, so clients cannot create new ones.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    group: String,
    deployment: String,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Deployed {
    deployment: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Failed {
    deployment: String,
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FallbackLabels {
    to: String,
    why: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Verdict {
    verdict: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Decision {
    by: &'static str,
    verdict: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Refused {
    reason: &'static str,
    key: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Keyed {
    key: String,
}

/// Maximum number of keys with labels of their own; further ones are counted as [`OTHERS`].
const KEYS_MAX: usize = 1000;
/// Stands for keys above the maximum.
const OTHERS: &str = "(others)";

const SECONDS: [f64; 14] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

/// All router metrics.
pub struct RouteMetrics {
    requests: Family<Answered, Counter>,
    failures: Family<Failed, Counter>,
    fallbacks: Family<FallbackLabels, Counter>,
    cascades: Family<Verdict, Counter>,
    decisions: Family<Decision, Counter>,
    continued: Counter,
    prompt_tokens: Family<Deployed, Counter>,
    generation_tokens: Family<Deployed, Counter>,
    seconds: Family<Deployed, Histogram, fn() -> Histogram>,
    first: Family<Deployed, Histogram, fn() -> Histogram>,
    refused: Family<Refused, Counter>,
    key_requests: Family<Keyed, Counter>,
    key_tokens: Family<Keyed, Counter>,
    key_cost: Family<Keyed, Counter<f64, AtomicU64>>,
    /// Answered and failed requests.
    outcomes: [AtomicU64; 2],
    /// The keys that have labels.
    keys: Mutex<HashSet<String>>,
    cached: Counter,
    cache_errors: Gauge,
    dropped: Gauge,
    busy: Gauge,
    reloads: Gauge,
}

impl RouteMetrics {
    /// Registers them.
    pub fn new(exposed: &mut Exposed) -> Self {
        let seconds: fn() -> Histogram = || Histogram::new(SECONDS);
        let out = Self {
            requests: Family::default(),
            failures: Family::default(),
            fallbacks: Family::default(),
            cascades: Family::default(),
            decisions: Family::default(),
            continued: Counter::default(),
            prompt_tokens: Family::default(),
            generation_tokens: Family::default(),
            seconds: Family::new_with_constructor(seconds),
            first: Family::new_with_constructor(seconds),
            refused: Family::default(),
            key_requests: Family::default(),
            key_tokens: Family::default(),
            key_cost: Family::default(),
            outcomes: Default::default(),
            keys: Mutex::default(),
            cached: Counter::default(),
            cache_errors: Gauge::default(),
            dropped: Gauge::default(),
            busy: Gauge::default(),
            reloads: Gauge::default(),
        };
        exposed.register("octet:routed_requests", "Requests by deployment and result", out.requests.clone());
        exposed.register("octet:route_failures", "Attempts that failed, by kind", out.failures.clone());
        exposed.register("octet:route_fallbacks", "Fallbacks to another group", out.fallbacks.clone());
        exposed.register("octet:route_confidence", "Confidence results of cascades", out.cascades.clone());
        exposed.register(
            "octet:route_decisions",
            "Decisions of cascades, by what decided: rule, prerouter, confidence, tool_calls, self_check",
            out.decisions.clone(),
        );
        let continued = "Answers continued by another deployment";
        exposed.register("octet:route_continued", continued, out.continued.clone());
        let prompt = "Prompt tokens, as counted by the deployment";
        exposed.register("octet:routed_prompt_tokens", prompt, out.prompt_tokens.clone());
        let generated = "Answer tokens, as counted by the deployment";
        exposed.register("octet:routed_generation_tokens", generated, out.generation_tokens.clone());
        exposed.register("octet:routed_seconds", "Request latency in seconds", out.seconds.clone());
        let first = "Time to the first piece of an answer in seconds";
        exposed.register("octet:routed_first_seconds", first, out.first.clone());
        let refused = "Requests that were refused before they were sent, by reason and key";
        exposed.register("octet:refused_requests", refused, out.refused.clone());
        exposed.register("octet:key_requests", "Billed requests by key", out.key_requests.clone());
        exposed.register("octet:key_tokens", "Tokens of prompts and answers by key", out.key_tokens.clone());
        exposed.register("octet:key_cost_dollars", "Cost by key in US dollars", out.key_cost.clone());
        let cached = "Response cache hits";
        exposed.register("octet:response_cache_hits", cached, out.cached.clone());
        let errors = "Redis failures";
        exposed.register("octet:response_cache_errors", errors, out.cache_errors.clone());
        let dropped = "Callback records dropped";
        exposed.register("octet:callback_records_dropped", dropped, out.dropped.clone());
        exposed.register("octet:routed_running", "Running routed requests", out.busy.clone());
        exposed.register("octet:config_reloads", "Configuration reloads", out.reloads.clone());
        out
    }

    /// Counts a request that was refused. `key`: the name of its key, if that is known.
    pub fn refused(&self, reason: &'static str, key: Option<&str>) {
        let key = key.map_or_else(String::new, |key| self.label(key));
        self.refused.get_or_create(&Refused { reason, key }).inc();
    }

    /// Answered and failed requests so far.
    pub fn outcomes(&self) -> (u64, u64) {
        let [answered, failed] = &self.outcomes;
        (answered.load(Ordering::Relaxed), failed.load(Ordering::Relaxed))
    }

    /// Counts a billed request of a key.
    pub fn billed(&self, key: &str, tokens: u64, dollars: f64) {
        let keyed = Keyed { key: self.label(key) };
        self.key_requests.get_or_create(&keyed).inc();
        self.key_tokens.get_or_create(&keyed).inc_by(tokens);
        self.key_cost.get_or_create(&keyed).inc_by(dollars);
    }

    /// The label of a key: its name, as long as there are not too many.
    fn label(&self, key: &str) -> String {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        if !keys.contains(key) {
            if keys.len() >= KEYS_MAX {
                return OTHERS.into();
            }
            keys.insert(key.to_string());
        }
        key.to_string()
    }

    /// Counts the time to the first piece of an answer.
    pub fn first(&self, deployment: &str, took: Duration) {
        let label = Deployed { deployment: deployment.to_string() };
        self.first.get_or_create(&label).observe(took.as_secs_f64());
    }

    /// Counts a request answered from the response cache.
    pub fn cached(&self) {
        self.cached.inc();
    }

    /// Counts a finished or cancelled request.
    pub fn count(&self, route: &Route, failed: bool, took: Duration, usage: Option<&Usage>) {
        for step in &route.steps {
            if let Some((by, verdict)) = step.decision() {
                self.decisions.get_or_create(&Decision { by, verdict }).inc();
            }
            match step {
                Step::Failed { deployment, kind, .. } => {
                    let failed = Failed { deployment: deployment.clone(), kind };
                    self.failures.get_or_create(&failed).inc();
                }
                Step::Fallback { to, why, .. } => {
                    self.fallbacks.get_or_create(&FallbackLabels { to: to.clone(), why }).inc();
                }
                Step::Confidence { verdict, .. } => {
                    self.cascades.get_or_create(&Verdict { verdict }).inc();
                }
                Step::Continued { .. } => {
                    self.continued.inc();
                }
                _ => {}
            }
        }
        for spent in &route.spent {
            if let Some(usage) = &spent.usage {
                self.tokens(&spent.deployment, usage);
            }
        }
        self.outcomes[usize::from(failed)].fetch_add(1, Ordering::Relaxed);
        let outcome = if failed { "failed" } else { "answered" };
        let Some(who) = &route.answered else {
            let nobody = Answered { group: String::new(), deployment: String::new(), outcome: "nobody" };
            self.requests.get_or_create(&nobody).inc();
            return;
        };
        let (group, deployment) = (who.group.clone(), who.deployment.clone());
        self.requests.get_or_create(&Answered { group, deployment, outcome }).inc();
        let label = Deployed { deployment: who.deployment.clone() };
        self.seconds.get_or_create(&label).observe(took.as_secs_f64());
        if let Some(usage) = usage {
            self.tokens(&who.deployment, usage);
        }
    }

    fn tokens(&self, deployment: &str, usage: &Usage) {
        let label = Deployed { deployment: deployment.to_string() };
        self.prompt_tokens.get_or_create(&label).inc_by(usage.prompt_tokens);
        self.generation_tokens.get_or_create(&label).inc_by(usage.completion_tokens);
    }

    /// Updates the gauges.
    pub fn now(&self, busy: usize, reloads: u64, (cache_errors, dropped): (u64, u64)) {
        self.dropped.set(i64::try_from(dropped).unwrap_or(i64::MAX));
        self.cache_errors.set(i64::try_from(cache_errors).unwrap_or(i64::MAX));
        self.busy.set(i64::try_from(busy).unwrap_or(i64::MAX));
        self.reloads.set(i64::try_from(reloads).unwrap_or(i64::MAX));
    }
}
