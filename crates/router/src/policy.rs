//! How often to try, when to stop asking a deployment, and where to go instead. Built by `table`; read by `dispatch`.

use std::collections::HashMap;
use std::time::Duration;

use crate::failure::{FailureKind, is_of_the_request};

/// A number by kind of failure, as `retry_policy` and `allowed_fails_policy` have it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ByKind {
    /// `BadRequestError`.
    pub bad_request: Option<u32>,
    /// `AuthenticationError`.
    pub authentication: Option<u32>,
    /// `TimeoutError`.
    pub timeout: Option<u32>,
    /// `RateLimitError`.
    pub rate_limit: Option<u32>,
    /// `ContentPolicyViolationError`.
    pub content_policy: Option<u32>,
    /// `InternalServerError`: no connection, a failure of the provider, an answer that can not be read.
    pub server: Option<u32>,
}

impl ByKind {
    /// The number for `kind`, where one is given.
    pub fn get(&self, kind: FailureKind) -> Option<u32> {
        use FailureKind as K;
        match kind {
            K::BadRequest => self.bad_request,
            K::Authentication => self.authentication,
            K::Timeout => self.timeout,
            K::RateLimited => self.rate_limit,
            K::ContentPolicy => self.content_policy,
            K::Connect | K::Server | K::Protocol => self.server,
            K::ContextWindow | K::NotFound | K::Cancelled => None,
        }
    }
}

/// When and how to try again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retries {
    /// Attempts after the first, within a group and an order.
    pub num: u32,
    /// Instead, by kind of failure.
    pub by_kind: ByKind,
    /// The first pause is between zero and this; each further one may be twice as long.
    pub backoff: Duration,
    /// No pause is longer than this, unless the provider asks for it.
    pub backoff_max: Duration,
    /// No pause is shorter than this (`retry_after`).
    pub pause_min: Duration,
}

impl Default for Retries {
    fn default() -> Self {
        Self {
            num: 2,
            by_kind: ByKind::default(),
            backoff: Duration::from_millis(500),
            backoff_max: Duration::from_secs(8),
            pause_min: Duration::ZERO,
        }
    }
}

impl Retries {
    /// How often a request that fails in this way is tried again.
    pub fn after(&self, kind: FailureKind, own: Option<u32>) -> u32 {
        let num = own.unwrap_or(self.num);
        match self.by_kind.get(kind) {
            Some(n) => n,
            None if is_of_the_request(kind) => 0,
            None => num,
        }
    }

    /// The pause before retry `n`, from 0: full jitter, so that those who failed together do not come back together.
    pub fn pause(&self, n: u32, retry_after: Option<Duration>, rng: &mut fastrand::Rng) -> Duration {
        let ceiling = self.backoff.saturating_mul(1 << n.min(16)).min(self.backoff_max);
        ceiling.mul_f64(rng.f64()).max(self.pause_min).max(retry_after.unwrap_or_default())
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
    pub by_kind: ByKind,
    /// More than this share of a minute's requests failing is too much,
    pub share_max: f64,
    /// if there were so many.
    pub requests_min: u32,
}

impl Default for Cooldown {
    fn default() -> Self {
        Self {
            disabled: false,
            time: Duration::from_secs(5),
            allowed_fails: None,
            by_kind: ByKind::default(),
            share_max: 0.5,
            requests_min: 5,
        }
    }
}

impl Cooldown {
    /// Whether a failure of this kind is the deployment's fault.
    pub fn counts(&self, kind: FailureKind) -> bool {
        !is_of_the_request(kind) || self.by_kind.get(kind).is_some()
    }

    /// Failures of just this kind that are borne, where that is set.
    pub fn allowed(&self, kind: FailureKind) -> Option<u32> {
        self.by_kind.get(kind)
    }
}

/// Which groups answer instead, by the name of the group that failed; `*` stands for all others.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Fallbacks {
    /// After any failure.
    pub general: HashMap<String, Vec<String>>,
    /// Where the prompt did not fit.
    pub context_window: HashMap<String, Vec<String>>,
    /// Where the content was refused.
    pub content_policy: HashMap<String, Vec<String>>,
    /// Where nothing else is named, and for names that nobody knows.
    pub default: Vec<String>,
    /// Most groups that are tried after the first.
    pub max: u32,
}

impl Fallbacks {
    /// The groups to try after `group` failed in this way.
    pub fn after(&self, group: &str, kind: FailureKind) -> &[String] {
        let own = match kind {
            FailureKind::ContextWindow => Some(&self.context_window),
            FailureKind::ContentPolicy => Some(&self.content_policy),
            _ => None,
        };
        own.and_then(|map| lookup(map, group)).or_else(|| lookup(&self.general, group)).unwrap_or(&self.default)
    }
}

fn lookup<'a>(map: &'a HashMap<String, Vec<String>>, group: &str) -> Option<&'a [String]> {
    map.get(group).or_else(|| map.get("*")).map(Vec::as_slice)
}

/// Everything that holds for all groups.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Policy {
    /// When to try again.
    pub retries: Retries,
    /// When to leave a deployment alone.
    pub cooldown: Cooldown,
    /// Where to go instead.
    pub fallbacks: Fallbacks,
    /// Most time for a request, with all that is tried; for streams until the first event.
    pub timeout: Option<Duration>,
    /// Most time to the first event of a stream, and between two.
    pub stream_timeout: Option<Duration>,
    /// Leave out deployments whose context is known to be too short.
    pub check_context: bool,
}
