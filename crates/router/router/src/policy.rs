//! Retries, cooldown and fallbacks: the configuration's settings in the form that `dispatch` uses.

use std::time::Duration;

use octet_config::{ErrorCounts, Fallback, RouterSettings, Sticky, TagFilter};

use crate::failure::{FailureKind, is_of_the_deployment, is_of_the_request};

/// The number for failures of this kind, if one is set.
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
        K::ContextWindow | K::Cancelled | K::Memory | K::ClientTimeout => None,
    }
}

/// Retries.
#[derive(Debug, Clone, PartialEq)]
pub struct Retries {
    /// Retries after the first attempt, within a group and an order.
    pub num: u32,
    /// Overrides by kind of failure.
    pub by_kind: ErrorCounts,
    /// Overrides by group.
    pub by_group: Vec<(String, ErrorCounts)>,
    /// The first pause is between zero and this; each further one may be twice as long.
    pub backoff: Duration,
    /// No pause is longer than this, unless the provider asks for it.
    pub backoff_max: Duration,
    /// No pause is shorter than this (`retry_after`).
    pub pause_min: Duration,
}

impl Retries {
    /// Number of retries of a request to `group` after this failure. `own`: the deployment's setting.
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

/// Cooldown of deployments.
#[derive(Debug, Clone, PartialEq)]
pub struct Cooldown {
    /// Disabled.
    pub disabled: bool,
    /// Its duration, unless the deployment or the provider sets another.
    pub time: Duration,
    /// Allowed failures per minute.
    pub allowed_fails: Option<u32>,
    /// Allowed failures by kind.
    pub by_kind: ErrorCounts,
    /// Cooldown starts if more than this share of a minute's requests failed,
    pub share_max: f64,
    /// and there were at least this many requests.
    pub requests_min: u32,
}

impl Cooldown {
    /// Whether a failure of this kind counts against the deployment.
    pub fn counts(&self, kind: FailureKind) -> bool {
        is_of_the_deployment(kind) || self.allowed(kind).is_some()
    }

    /// Allowed failures of exactly this kind, if set.
    pub fn allowed(&self, kind: FailureKind) -> Option<u32> {
        count(&self.by_kind, kind)
    }
}

/// Fallback groups.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Fallbacks {
    /// After any failure.
    pub general: Vec<Fallback>,
    /// If the prompt exceeded the context.
    pub context_window: Vec<Fallback>,
    /// If the provider's content filter refused.
    pub content_policy: Vec<Fallback>,
    /// If no other is configured, and for unknown names.
    pub default: Vec<String>,
    /// Maximum number of groups tried after the first.
    pub max: u32,
}

impl Fallbacks {
    /// The groups to try after this failure of `group`.
    pub fn after(&self, group: &str, kind: FailureKind) -> &[String] {
        let own: &[Fallback] = match kind {
            FailureKind::ContextWindow => &self.context_window,
            FailureKind::ContentPolicy => &self.content_policy,
            _ => &[],
        };
        lookup(own, group).or_else(|| lookup(&self.general, group)).unwrap_or(&self.default)
    }

    /// All fallbacks, to check their names.
    pub fn all(&self) -> impl Iterator<Item = &Fallback> {
        self.general.iter().chain(&self.context_window).chain(&self.content_policy)
    }
}

/// The setting of `group`, or of the most specific wildcard that it matches.
fn lookup<'a>(all: &'a [Fallback], group: &str) -> Option<&'a [String]> {
    let matching = all.iter().filter(|f| f.group.as_str() == group || f.group.matches(group));
    let best =
        matching.max_by_key(|f| if f.group.as_str() == group { usize::MAX } else { f.group.specificity() });
    best.map(|f| f.to.as_slice())
}

/// Settings for all groups.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// Retries.
    pub retries: Retries,
    /// Cooldown.
    pub cooldown: Cooldown,
    /// Fallbacks.
    pub fallbacks: Fallbacks,
    /// Time limit of a request with all attempts; for streams until the first event.
    pub timeout: Duration,
    /// Time limit until the first event of a stream.
    pub stream_timeout: Option<Duration>,
    /// Time limit between two events of a stream.
    pub idle: Duration,
    /// Maximum time to wait if all deployments of a group are at their limits or in cooldown.
    pub wait_max: Duration,
    /// Count prompts before sending, if possible.
    pub check_context: bool,
    /// Keys of sessions.
    pub sticky: Option<Sticky>,
    /// Whether and how tags choose among the deployments of a group.
    pub tags: Option<TagFilter>,
    /// Latencies within this fraction of the lowest count as equal.
    pub latency_buffer: f64,
    /// How long a measured latency counts.
    pub latency_ttl: Duration,
}

impl Policy {
    /// Converts the settings.
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

/// A stream without events for this long is dead: providers send keep-alives several times a minute.
const IDLE: Duration = Duration::from_secs(300);
/// Beyond this, a client is better served with an error that says when to retry.
const WAIT_MAX: Duration = Duration::from_secs(10);
