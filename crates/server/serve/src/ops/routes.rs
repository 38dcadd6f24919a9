//! Metrics of the router. Counted by `gateway::routed_request`, once per request.

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
