//! How often to try, when to leave a deployment alone, and where to go instead: the configuration's settings, as
//! `dispatch` asks for them.

use std::time::Duration;

use octet_config::{ErrorCounts, Fallback, RouterSettings, Sticky, TagFilter};

use crate::failure::{FailureKind, is_of_the_request};

/// The count for failures of this kind, where one is given.
fn count(counts: &ErrorCounts, kind: FailureKind) -> Option<u32> {
    use FailureKind as K;
    match kind {
        K::BadRequest => counts.bad_request,
        K::Authentication => counts.authentication,
        K::Timeout => counts.timeout,
        K::RateLimited => counts.rate_limit,
        K::ContentPolicy => counts.content_policy,
        K::Connect | K::Server | K::Protocol => counts.internal_server,
        K::NotFound => counts.not_found,
        K::ContextWindow | K::Cancelled => None,
    }
}

/// When and how to try again.
#[derive(Debug, Clone, PartialEq)]
pub struct Retries {
    /// Attempts after the first, within a group and an order.
    pub num: u32,
    /// Instead, by kind of failure.
    pub by_kind: ErrorCounts,
    /// Instead, by group.
    pub by_group: Vec<(String, ErrorCounts)>,
    /// The first pause is between zero and this; each further one may be twice as long.
    pub backoff: Duration,
    /// No pause is longer than this, unless the provider asks for it.
    pub backoff_max: Duration,
    /// No pause is shorter than this (`retry_after`).
    pub pause_min: Duration,
}

impl Retries {
    /// How often a request to `group` that fails in this way is tried again. `own`: what the deployment says.
    pub fn after(&self, kind: FailureKind, group: &str, own: Option<u32>) -> u32 {
        let of_group = self.by_group.iter().find(|(name, _)| name == group);
        let by_kind = of_group.and_then(|(_, c)| count(c, kind)).or_else(|| count(&self.by_kind, kind));
        match by_kind {
            Some(n) => n,
            None if is_of_the_request(kind) => 0,
            None => own.unwrap_or(self.num),
        }
    }

    /// The pause before retry `n`, from 0: full jitter, so that those who failed together do not come back together.
    pub fn pause(&self, n: u32, rng: &mut fastrand::Rng) -> Duration {
        let ceiling = self.backoff.saturating_mul(1 << n.min(16)).min(self.backoff_max);
        ceiling.mul_f64(rng.f64()).max(self.pause_min)
    }
}

/// When a deployment is left alone.
#[derive(Debug, Clone, PartialEq)]
pub struct Cooldown {
    /// Never.
    pub disabled: bool,
    /// For how long, unless the deployment or the provider says otherwise.
    pub time: Duration,
    /// Failures a minute that are borne.
    pub allowed_fails: Option<u32>,
    /// The same by kind of failure.
    pub by_kind: ErrorCounts,
    /// More than this share of a minute's requests failing is too much,
    pub share_max: f64,
    /// if there were so many.
    pub requests_min: u32,
}

impl Cooldown {
    /// Whether a failure of this kind is the deployment's fault.
    pub fn counts(&self, kind: FailureKind) -> bool {
        !is_of_the_request(kind) || self.allowed(kind).is_some()
    }

    /// Failures of just this kind that are borne, where that is set.
    pub fn allowed(&self, kind: FailureKind) -> Option<u32> {
        count(&self.by_kind, kind)
    }
}

/// Which groups answer instead.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Fallbacks {
    /// After any failure.
    pub general: Vec<Fallback>,
    /// Where the prompt did not fit.
    pub context_window: Vec<Fallback>,
    /// Where the content was refused.
    pub content_policy: Vec<Fallback>,
    /// Where nothing else is named, and for names that nobody knows.
    pub default: Vec<String>,
    /// Most groups that are tried after the first.
    pub max: u32,
}

impl Fallbacks {
    /// The groups to try after `group` failed in this way.
    pub fn after(&self, group: &str, kind: FailureKind) -> &[String] {
        let own: &[Fallback] = match kind {
            FailureKind::ContextWindow => &self.context_window,
            FailureKind::ContentPolicy => &self.content_policy,
            _ => &[],
        };
        lookup(own, group).or_else(|| lookup(&self.general, group)).unwrap_or(&self.default)
    }

    /// All, for a check of the names in it.
    pub fn all(&self) -> impl Iterator<Item = &Fallback> {
        self.general.iter().chain(&self.context_window).chain(&self.content_policy)
    }
}

/// What is said of `group`, or else of the narrowest name with stars that it matches.
fn lookup<'a>(all: &'a [Fallback], group: &str) -> Option<&'a [String]> {
    let matching = all.iter().filter(|f| f.group.as_str() == group || f.group.matches(group));
    let best =
        matching.max_by_key(|f| if f.group.as_str() == group { usize::MAX } else { f.group.specificity() });
    best.map(|f| f.to.as_slice())
}

/// Everything that holds for all groups.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// When to try again.
    pub retries: Retries,
    /// When to leave a deployment alone.
    pub cooldown: Cooldown,
    /// Where to go instead.
    pub fallbacks: Fallbacks,
    /// Most time for a request with all that is tried; for streams until the first event.
    pub timeout: Duration,
    /// Most time to the first event of a stream.
    pub stream_timeout: Option<Duration>,
    /// Most time between two events of a stream.
    pub idle: Duration,
    /// Most time to wait until a deployment may be asked again, where all of a group are at their limits or left alone.
    pub wait_max: Duration,
    /// Count prompts before they are sent wherever that is possible.
    pub check_context: bool,
    /// What sessions are known by.
    pub sticky: Option<Sticky>,
    /// Whether a request's tags choose among the deployments of a group, and how.
    pub tags: Option<TagFilter>,
    /// How much slower than the fastest is as good.
    pub latency_buffer: f64,
    /// How long a measured latency counts.
    pub latency_ttl: Duration,
}

impl Policy {
    /// What the settings mean.
    pub fn of(s: &RouterSettings) -> Self {
        Self {
            retries: Retries {
                num: s.num_retries,
                by_kind: s.retry_policy,
                by_group: s.group_retry_policy.clone(),
                backoff: Duration::from_millis(500),
                backoff_max: Duration::from_secs(8),
                pause_min: s.retry_after,
            },
            cooldown: Cooldown {
                disabled: s.disable_cooldowns,
                time: s.cooldown_time,
                allowed_fails: s.allowed_fails,
                by_kind: s.allowed_fails_policy,
                share_max: 0.5,
                requests_min: 5,
            },
            fallbacks: Fallbacks {
                general: s.fallbacks.clone(),
                context_window: s.context_window_fallbacks.clone(),
                content_policy: s.content_policy_fallbacks.clone(),
                default: s.default_fallbacks.clone(),
                max: s.max_fallbacks,
            },
            timeout: s.timeout,
            stream_timeout: s.stream_timeout,
            idle: IDLE,
            wait_max: WAIT_MAX,
            check_context: s.enable_pre_call_checks,
            sticky: s.sticky.clone(),
            tags: s.tags,
            latency_buffer: s.latency_buffer,
            latency_ttl: s.latency_ttl,
        }
    }
}

/// A stream that says nothing for so long is dead: providers send signs of life several times a minute.
const IDLE: Duration = Duration::from_secs(300);
/// A client would rather hear when to come again than wait for longer.
const WAIT_MAX: Duration = Duration::from_secs(10);
