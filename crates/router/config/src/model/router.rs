//! How a deployment is chosen, and what happens when it fails. Read by the router for each request.

use std::time::Duration;

use super::{GroupName, RedisServer};

/// `router_settings`, and the same keys of `litellm_settings`, which have lower precedence. Defaults are LiteLLM's.
#[derive(Debug, Clone, PartialEq)]
pub struct RouterSettings {
    /// `routing_strategy`.
    pub strategy: Strategy,
    /// `model_group_alias`: other names of groups.
    pub aliases: Vec<Alias>,
    /// `fallbacks`: groups that are tried when one fails.
    pub fallbacks: Vec<Fallback>,
    /// `context_window_fallbacks`: fallbacks for prompts that are too long.
    pub context_window_fallbacks: Vec<Fallback>,
    /// `content_policy_fallbacks`: fallbacks for requests that a provider's filter refuses.
    pub content_policy_fallbacks: Vec<Fallback>,
    /// `default_fallbacks`: for groups without fallbacks.
    pub default_fallbacks: Vec<String>,
    /// `max_fallbacks`: maximum number of groups that are tried after the first (5).
    pub max_fallbacks: u32,
    /// `num_retries`: attempts after the first within a group (2).
    pub num_retries: u32,
    /// `retry_after`: minimum time before a retry (0).
    pub retry_after: Duration,
    /// `retry_policy`: retries by kind of error; default `num_retries`.
    pub retry_policy: ErrorCounts,
    /// `model_group_retry_policy`: the same for one group.
    pub group_retry_policy: Vec<(String, ErrorCounts)>,
    /// `allowed_fails`: failures per minute before a deployment's cooldown. `None`: the cooldown
    /// starts when more than half of at least five requests in a minute failed.
    pub allowed_fails: Option<u32>,
    /// `allowed_fails_policy`: the same by kind of error.
    pub allowed_fails_policy: ErrorCounts,
    /// `cooldown_time` (5 s).
    pub cooldown_time: Duration,
    /// `disable_cooldowns`.
    pub disable_cooldowns: bool,
    /// `timeout`, or `request_timeout`: time limit of a request with all its attempts (6000 s).
    pub timeout: Duration,
    /// `stream_timeout`: time limit to a stream's first piece. `None`: as `timeout`.
    pub stream_timeout: Option<Duration>,
    /// `enable_pre_call_checks`: prompts are counted, and deployments with too small a context are excluded. (Prompts for
    /// local models are always counted: that is exact and cheap.)
    pub enable_pre_call_checks: bool,
    /// Requests of a session use the same deployment while it can answer.
    pub sticky: Option<Sticky>,
    /// `enable_tag_filtering`: a request's tags select deployments of a group.
    pub tags: Option<TagFilter>,
    /// `redis_url`, `redis_host`, ...: the server through which several processes share limits and cooldowns.
    pub redis: Option<RedisServer>,
    /// `routing_strategy_args.lowest_latency_buffer`: how much slower than the fastest one is still equal: 0.1 is a
    /// tenth (0).
    pub latency_buffer: f64,
    /// `routing_strategy_args.ttl`: how long a measured latency is used (one hour).
    pub latency_ttl: Duration,
}

impl Default for RouterSettings {
    fn default() -> Self {
        Self {
            strategy: Strategy::default(),
            aliases: Vec::new(),
            fallbacks: Vec::new(),
            context_window_fallbacks: Vec::new(),
            content_policy_fallbacks: Vec::new(),
            default_fallbacks: Vec::new(),
            max_fallbacks: 5,
            num_retries: 2,
            retry_after: Duration::ZERO,
            retry_policy: ErrorCounts::default(),
            group_retry_policy: Vec::new(),
            allowed_fails: None,
            allowed_fails_policy: ErrorCounts::default(),
            cooldown_time: Duration::from_secs(5),
            disable_cooldowns: false,
            timeout: Duration::from_secs(6000),
            stream_timeout: None,
            enable_pre_call_checks: false,
            sticky: None,
            tags: None,
            redis: None,
            latency_buffer: 0.0,
            latency_ttl: Duration::from_secs(3600),
        }
    }
}

/// How tags select deployments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TagFilter {
    /// `tag_filtering_match_any`: one common tag is enough (true); else a deployment needs all tags of the request.
    pub match_any: bool,
}

/// How one deployment of a group is chosen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Strategy {
    /// `simple-shuffle`: random, by weight.
    #[default]
    SimpleShuffle,
    /// `least-busy`: fewest requests in flight.
    LeastBusy,
    /// `usage-based-routing`, `-v2`: fewest tokens in the current minute, within `tpm` and `rpm`.
    UsageBased,
    /// `latency-based-routing`: the fastest recently: time to the first piece for streams, else time per token.
    LatencyBased,
    /// `cost-based-routing`: the cheapest.
    CostBased,
    /// `prefix-affinity`: the one that saw the longest prefix of this conversation, unless it is much busier than others.
    PrefixAffinity,
}

impl Strategy {
    /// Its name in the file.
    pub fn name(self) -> &'static str {
        match self {
            Self::SimpleShuffle => "simple-shuffle",
            Self::LeastBusy => "least-busy",
            Self::UsageBased => "usage-based-routing",
            Self::LatencyBased => "latency-based-routing",
            Self::CostBased => "cost-based-routing",
            Self::PrefixAffinity => "prefix-affinity",
        }
    }
}

/// Another name of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alias {
    /// The name for clients.
    pub name: String,
    /// The group (or cascade) that it refers to.
    pub group: String,
    /// Whether `/v1/models` leaves it out.
    pub hidden: bool,
}

/// Groups that are tried in order if one cannot answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fallback {
    /// The failed group; `*` is any.
    pub group: GroupName,
    /// The groups to try instead.
    pub to: Vec<String>,
}

/// A count for each kind of error (`BadRequestErrorRetries`, `RateLimitErrorAllowedFails`, ...); `None` if it is not set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ErrorCounts {
    /// 400, except those below.
    pub bad_request: Option<u32>,
    /// 401 and 403.
    pub authentication: Option<u32>,
    /// 408, and timeouts.
    pub timeout: Option<u32>,
    /// 429.
    pub rate_limit: Option<u32>,
    /// A provider's content filter.
    pub content_policy: Option<u32>,
    /// 500 and above, and broken connections.
    pub internal_server: Option<u32>,
    /// 404.
    pub not_found: Option<u32>,
}

/// Sessions (`sticky`, our own).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sticky {
    /// Keys of sessions; the first that a request has counts.
    pub by: Vec<SessionKey>,
    /// How long a session is remembered after its last request (one hour).
    pub ttl: Duration,
}

/// The key of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionKey {
    /// A header, by its name in lower case: `x-session-id`.
    Header(String),
    /// The request's `user` (Anthropic's `metadata.user_id`).
    User,
    /// The client's key.
    ApiKey,
}
