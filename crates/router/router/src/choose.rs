//! Chooses a deployment of a group for a request: a pure function of their states, the request, and a random source.

use octet_config::Strategy;
use serde::Serialize;

use crate::hash;
use crate::limit::LimitKind;
use crate::state::{Availability, DeploymentStatus, Limits, over_tokens};

/// The fixed properties of a deployment.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DeploymentSpec {
    /// Unique among all deployments.
    pub id: String,
    /// Lower orders are tried first; higher ones only if those cannot answer.
    pub order: u32,
    /// Its share of the group's requests. If no deployment of the group has one, `rpm` counts, else `tpm`, else all are equal; if some have
    /// one, it is 1 for the others.
    pub weight: Option<f64>,
    /// Its limits.
    pub limits: Limits,
    /// Maximum prompt in tokens.
    pub window_tokens: Option<u64>,
    /// Maximum answer in tokens.
    pub output_tokens: Option<u64>,
    /// Price of a prompt token and an answer token together; 0 for local models.
    pub cost: Option<f64>,
}

/// A deployment and its current state.
#[derive(Debug, Clone)]
pub struct Candidate<'a> {
    /// Its fixed properties.
    pub terms: &'a DeploymentSpec,
    /// Its state.
    pub live: DeploymentStatus,
    /// Requests at the target, including those of others, if known.
    pub load: Option<u32>,
    /// Tokens of this prompt in its cache, or in what was sent to it, if known.
    pub cached_tokens: Option<u64>,
    /// Tokens of this prompt, if counted.
    pub prompt_tokens: Option<u64>,
    /// Why the caller has excluded it.
    pub out: Option<Ineligible>,
}

/// The other parameters of the choice.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Requirements<'a> {
    /// The strategy.
    pub strategy: Strategy,
    /// Approximate tokens of the request, for limits.
    pub tokens: u64,
    /// Minimum tokens of the prompt if it was not counted.
    pub tokens_min: u64,
    /// The answer is streamed.
    pub stream: bool,
    /// Latencies within this fraction of the lowest count as equal.
    pub latency_buffer: f64,
    /// Requests with the same key go to the same deployment.
    pub session: Option<&'a str>,
    /// Identifies the beginning of the prompt.
    pub prefix: Option<u64>,
    /// Exclude deployments whose context is too short.
    pub check_context: bool,
    /// A context of this many tokens was too short: only larger ones are suitable.
    pub window_above: Option<u64>,
}

/// Why a deployment cannot get the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum Ineligible {
    /// It is in cooldown after failures.
    Cooling {
        /// The remaining time.
        for_ms: u64,
    },
    /// Its cooldown is over, and another request is its trial.
    OnTrial,
    /// It has its maximum of concurrent requests.
    Parallel {
        /// The limit.
        limit: u32,
    },
    /// It has reached its requests per minute.
    Rpm {
        /// The limit.
        limit: u64,
    },
    /// The request would exceed its tokens per minute.
    Tpm {
        /// The limit.
        limit: u64,
    },
    /// It would exceed them if running requests took what they may take.
    Reserved {
        /// The limit.
        limit: u64,
    },
    /// The prompt exceeds its context.
    ContextWindow {
        /// Tokens of the prompt, or a lower bound if it was not counted.
        tokens: u64,
        /// The context's size.
        window: u64,
    },
    /// It has already failed this request.
    Tried,
    /// It cannot continue another deployment's answer.
    CannotContinue,
    /// The request's tags exclude it.
    Tags,
    /// It is busy, and this request is only a shadow copy.
    NotIdle,
}

impl Ineligible {
    /// Whether waiting may help.
    pub fn passes(self) -> bool {
        matches!(
            self,
            Self::Cooling { .. }
                | Self::OnTrial
                | Self::Parallel { .. }
                | Self::Rpm { .. }
                | Self::Tpm { .. }
                | Self::Reserved { .. }
        )
    }

    /// The text for clients.
    pub fn text(self) -> String {
        match self {
            Self::Cooling { for_ms } => {
                format!("in cooldown for {:.1} s after failures", for_ms as f64 / 1e3)
            }
            Self::OnTrial => "on trial after failures".into(),
            Self::Parallel { limit } => format!("at its limit of {limit} concurrent requests"),
            Self::Rpm { limit } => format!("at its limit of {limit} requests a minute"),
            Self::Tpm { limit } => format!("at its limit of {limit} tokens a minute"),
            Self::Reserved { limit } => {
                format!("running requests may take the rest of its limit of {limit} tokens a minute")
            }
            Self::ContextWindow { tokens, window } => {
                format!("the prompt of at least {tokens} tokens exceeds its context of {window}")
            }
            Self::Tried => "it failed".into(),
            Self::CannotContinue => "it cannot continue another deployment's answer".into(),
            Self::Tags => "its tags do not match the request's".into(),
            Self::NotIdle => "not idle".into(),
        }
    }
}

/// The deployment that was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pick {
    /// Its index among the candidates.
    pub index: usize,
    /// Why it was chosen.
    pub why: &'static str,
}

/// Chooses a deployment. Only those with the lowest order that can answer are considered.
///
/// # Errors
/// If none can answer: the reason of each, in the candidates' order.
pub fn choose(
    candidates: &[Candidate<'_>],
    demand: &Requirements<'_>,
    rng: &mut fastrand::Rng,
) -> Result<Pick, Vec<Ineligible>> {
    let reasons: Vec<Option<Ineligible>> = candidates.iter().map(|c| unfit(c, demand)).collect();
    let fit = || (0..candidates.len()).filter(|i| reasons[*i].is_none());
    let Some(order) = fit().map(|i| candidates[i].terms.order).min() else {
        return Err(reasons.into_iter().flatten().collect());
    };
    let fit: Vec<usize> = fit().filter(|i| candidates[*i].terms.order == order).collect();
    if let [index] = fit[..] {
        return Ok(Pick { index, why: "the only one" });
    }
    let all: Vec<&Candidate<'_>> = fit.iter().map(|i| &candidates[*i]).collect();
    let weights = weights(&all);
    let (at, why) = match demand.strategy {
        Strategy::SimpleShuffle => match demand.session {
            Some(session) => {
                let key = hash::hash(&[session.as_bytes()]);
                (highest(&all, |i| hash::score(key, &all[i].terms.id, weights[i])), "session")
            }
            None => (by_weight(&weights, rng), "weight"),
        },
        Strategy::LeastBusy => (lowest(&all, &weights, rng, 0.0, |c| f64::from(busy(c))), "least busy"),
        Strategy::LatencyBased => {
            let latency = |c: &Candidate<'_>| latency(c, demand.stream);
            (lowest(&all, &weights, rng, demand.latency_buffer, latency), "latency")
        }
        Strategy::UsageBased => {
            let limited = all.iter().all(|c| c.terms.limits.tpm.is_some());
            let used = |c: &Candidate<'_>| {
                let used = c.live.tokens.saturating_add(c.live.reserved) as f64;
                match c.terms.limits.tpm {
                    Some(most) if limited => used / most.max(1) as f64,
                    _ => used,
                }
            };
            (lowest(&all, &weights, rng, 0.0, used), "usage")
        }
        Strategy::CostBased => {
            (lowest(&all, &weights, rng, 0.0, |c| c.terms.cost.unwrap_or(f64::INFINITY)), "cost")
        }
        Strategy::PrefixAffinity => by_prefix(&all, &weights, demand, rng),
    };
    Ok(Pick { index: fit[at], why })
}

/// Why this deployment cannot get the request; `None` if it can.
pub fn unfit(c: &Candidate<'_>, demand: &Requirements<'_>) -> Option<Ineligible> {
    if c.out.is_some() {
        return c.out;
    }
    let limits = &c.terms.limits;
    if let Some(window) = c.terms.window_tokens {
        let tokens = c.prompt_tokens.unwrap_or(demand.tokens_min);
        if demand.check_context && tokens > window {
            return Some(Ineligible::ContextWindow { tokens, window });
        }
        if let Some(above) = demand.window_above.filter(|above| window <= *above) {
            return Some(Ineligible::ContextWindow { tokens: tokens.max(above), window });
        }
    }
    match c.live.available {
        Availability::Ready | Availability::Trial => {}
        Availability::OnTrial => return Some(Ineligible::OnTrial),
        Availability::Cooling(time) => {
            return Some(Ineligible::Cooling { for_ms: u64::try_from(time.as_millis()).unwrap_or(u64::MAX) });
        }
    }
    let elsewhere = |kind: LimitKind| c.live.elsewhere == Some(kind);
    if let Some(limit) =
        limits.max_parallel.filter(|most| c.live.in_flight >= *most || elsewhere(LimitKind::Parallel))
    {
        return Some(Ineligible::Parallel { limit });
    }
    if let Some(limit) =
        limits.rpm.filter(|most| u64::from(c.live.requests) >= *most || elsewhere(LimitKind::Rpm))
    {
        return Some(Ineligible::Rpm { limit });
    }
    let tokens = c.prompt_tokens.unwrap_or(0).max(demand.tokens);
    let limit = limits.tpm?;
    if over_tokens(c.live.tokens, tokens, limit) || elsewhere(LimitKind::Tpm) {
        return Some(Ineligible::Tpm { limit });
    }
    let with_reserved = c.live.tokens.saturating_add(c.live.reserved);
    let is_reserved = over_tokens(with_reserved, tokens, limit) || elsewhere(LimitKind::Reserved);
    is_reserved.then_some(Ineligible::Reserved { limit })
}

/// The weights of a group's deployments.
fn weights(all: &[&Candidate<'_>]) -> Vec<f64> {
    let of =
        |get: &dyn Fn(&DeploymentSpec) -> Option<f64>| all.iter().map(|c| get(c.terms)).collect::<Vec<_>>();
    let given = of(&|t| t.weight);
    let mut out: Vec<f64> = if given.iter().any(Option::is_some) {
        given.into_iter().map(|w| w.unwrap_or(1.0)).collect()
    } else {
        let rpm: Option<Vec<f64>> = of(&|t| t.limits.rpm.map(|n| n as f64)).into_iter().collect();
        let tpm: Option<Vec<f64>> = of(&|t| t.limits.tpm.map(|n| n as f64)).into_iter().collect();
        rpm.or(tpm).unwrap_or_else(|| vec![1.0; all.len()])
    };
    out.iter_mut().for_each(|w| *w = if w.is_finite() { w.max(0.0) } else { 0.0 });
    // All are 0: all are equal.
    if out.iter().sum::<f64>() <= 0.0 {
        out.fill(1.0);
    }
    out
}

fn by_weight(weights: &[f64], rng: &mut fastrand::Rng) -> usize {
    let mut left = rng.f64() * weights.iter().sum::<f64>();
    for (i, w) in weights.iter().enumerate() {
        if left < *w {
            return i;
        }
        left -= w;
    }
    // Rounding errors: the last with any weight.
    weights.iter().rposition(|w| *w > 0.0).unwrap_or(0)
}

fn highest(all: &[&Candidate<'_>], score: impl Fn(usize) -> f64) -> usize {
    (0..all.len()).max_by(|a, b| score(*a).total_cmp(&score(*b))).unwrap_or(0)
}

/// One of those with the lowest value; by weight if several are `alike`.
fn lowest(
    all: &[&Candidate<'_>],
    weights: &[f64],
    rng: &mut fastrand::Rng,
    alike: f64,
    value: impl Fn(&Candidate<'_>) -> f64,
) -> usize {
    let values: Vec<f64> = all.iter().map(|c| value(c)).collect();
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let best: Vec<usize> = (0..all.len()).filter(|i| values[*i] <= least * (1.0 + alike)).collect();
    let weights: Vec<f64> = best.iter().map(|i| weights[*i]).collect();
    best[by_weight(&weights, rng)]
}

fn busy(c: &Candidate<'_>) -> u32 {
    c.load.unwrap_or(0).max(c.live.in_flight)
}

/// A deployment without measurements goes first, one request at a time.
fn latency(c: &Candidate<'_>, stream: bool) -> f64 {
    let measured = if stream { c.live.first_s } else { c.live.per_token_s };
    match measured {
        Some(s) => s,
        None if c.live.in_flight == 0 => 0.0,
        None => f64::INFINITY,
    }
}

/// How much more than its share of the load a deployment may have for its cache (Mirrokni, Thorup and Zadimoghaddam, "Consistent hashing
/// with bounded loads", 2018).
const LOAD_MAX: f64 = 2.0;
/// It may always have this many requests more than its share: with few requests, one more is much more than a share.
const LOAD_SLACK: f64 = 8.0;
/// Computing this many tokens of a prompt again is as bad as one more request at the deployment. Smaller values keep conversations
/// together, larger ones spread the load; see `router_prefix.rs` in the tests.
const REQUEST_TOKENS: f64 = 512.0;
/// So many requests of a deployment count as none while there are fewer requests than deployments: beside one, another is answered at
/// nearly the same speed, while an idle deployment would compute the instructions again.
const REQUESTS_FREE: f64 = 1.0;
/// Fewer cached tokens than this do not affect the choice.
const CACHED_MIN: u64 = 64;

/// The deployment with the least work: tokens of the prompt that are not in its cache, and the requests that it has already. Deployments
/// with much more than their share of the load are left out. Among equals the hash of the prompt's beginning decides, so that several
/// routers agree.
fn by_prefix(
    all: &[&Candidate<'_>],
    weights: &[f64],
    demand: &Requirements<'_>,
    rng: &mut fastrand::Rng,
) -> (usize, &'static str) {
    let sum: f64 = weights.iter().sum();
    let total = all.iter().map(|c| f64::from(busy(c))).sum::<f64>() + 1.0;
    let share = |i: usize| total * weights[i] / sum;
    // The bounds' sum exceeds the load, so at least one deployment with a weight is below its bound.
    let has_room = |i: &usize| {
        let most = (LOAD_MAX * share(*i)).ceil().max(share(*i) + LOAD_SLACK);
        weights[*i] > 0.0 && f64::from(busy(all[*i])) < most
    };
    let open: Vec<usize> = (0..all.len()).filter(has_room).collect();
    let cached = |i: usize| all[i].cached_tokens.filter(|n| *n >= CACHED_MIN).unwrap_or(0);
    let most_cached = open.iter().map(|i| cached(*i)).max().unwrap_or(0);
    // Twice the weight bears twice the requests.
    let average = sum / all.len() as f64;
    let free = if total <= all.len() as f64 { REQUESTS_FREE } else { 0.0 };
    let work = |i: usize| {
        let load = f64::from(busy(all[i])) * average / weights[i];
        // Where all else is equal, an idle one.
        (most_cached - cached(i)) as f64 + REQUEST_TOKENS * (load - free).max(0.0) + load
    };
    let least = open.iter().map(|i| work(*i)).fold(f64::INFINITY, f64::min);
    let best: Vec<usize> = open.into_iter().filter(|i| work(*i) <= least).collect();
    let at = match (&best[..], demand.prefix) {
        ([], _) => return (lowest(all, weights, rng, 0.0, |c| f64::from(busy(c))), "least busy"),
        (_, Some(prefix)) => {
            let score = |i: &usize| hash::score(prefix, &all[*i].terms.id, weights[*i]);
            best.iter().copied().max_by(|a, b| score(a).total_cmp(&score(b))).unwrap_or(best[0])
        }
        (_, None) => best[by_weight(&best.iter().map(|i| weights[*i]).collect::<Vec<_>>(), rng)],
    };
    let why = match (cached(at), demand.prefix) {
        (1.., _) => "cached prefix",
        (0, Some(_)) => "prefix",
        (0, None) => "least busy",
    };
    (at, why)
}
