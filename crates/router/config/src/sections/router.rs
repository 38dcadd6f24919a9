//! The keys of `router_settings`.

use crate::keys::{Kind, Section, key};

use super::STICKY;

/// `router_settings`.
pub static ROUTER: Section = Section {
    name: "router_settings",
    doc: "how a deployment is chosen, and what happens when it fails",
    keys: &[
        key(
            "routing_strategy",
            Kind::OneOf(&[
                "simple-shuffle",
                "least-busy",
                "usage-based-routing",
                "usage-based-routing-v2",
                "latency-based-routing",
                "cost-based-routing",
                "prefix-affinity",
            ]),
            "how one deployment of a group is chosen (simple-shuffle)",
        ),
        key("routing_strategy_args", Kind::Section(&STRATEGY_ARGS), "of latency-based-routing"),
        key(
            "model_group_alias",
            Kind::Json,
            "other names of groups: {gpt-4o: default}, {gpt-4o: {model: default, hidden: true}}",
        ),
        key(
            "fallbacks",
            Kind::Fallbacks,
            "groups that are tried when one fails: [{a: [b, c]}]; * is any group",
        ),
        key("context_window_fallbacks", Kind::Fallbacks, "fallbacks for prompts that are too long"),
        key("content_policy_fallbacks", Kind::Fallbacks, "fallbacks for requests that a provider refuses"),
        key("default_fallbacks", Kind::Texts, "for groups without fallbacks"),
        key("max_fallbacks", Kind::Count, "maximum number of groups that are tried after the first (5)"),
        key("num_retries", Kind::Count, "attempts after the first within a group (2)"),
        key("retry_after", Kind::Seconds, "minimum time before a retry (0)"),
        key("retry_policy", Kind::Section(&RETRY_POLICY), "retries by kind of error"),
        key("model_group_retry_policy", Kind::MapOf(&RETRY_POLICY), "the same for one group"),
        key("allowed_fails", Kind::Count, "failures per minute before a deployment's cooldown"),
        key("allowed_fails_policy", Kind::Section(&ALLOWED_FAILS_POLICY), "the same by kind of error"),
        key("cooldown_time", Kind::Seconds, "cooldown time (5)"),
        key("disable_cooldowns", Kind::Bool, "no cooldowns (false)"),
        key("timeout", Kind::Seconds, "time limit of a request with all its attempts (6000)"),
        key("stream_timeout", Kind::Seconds, "time limit to a stream's first piece (timeout)"),
        key(
            "enable_pre_call_checks",
            Kind::Bool,
            "exclude deployments whose context is too small (false; always on for local models)",
        ),
        key("default_max_parallel_requests", Kind::Count, "default max_parallel_requests of entries").guard(),
        key(
            "enable_tag_filtering",
            Kind::Bool,
            "a request's tags select deployments of a group (false): docs/routing.md",
        )
        .guard(),
        key(
            "tag_filtering_match_any",
            Kind::Bool,
            "one common tag is enough (true); else a deployment needs all tags of the request",
        )
        .guard(),
        key(
            "redis_url",
            Kind::Secret,
            "a Redis or Valkey server through which several processes share limits and cooldowns: redis:// or, with TLS, rediss://",
        ),
        key("redis_host", Kind::Text, "the same server by its name, instead of redis_url"),
        key("redis_port", Kind::Count, "its port (6379)"),
        key("redis_username", Kind::Text, "its user"),
        key("redis_password", Kind::Secret, "its password"),
        key("redis_db", Kind::Count, "number of its database (0)"),
        key("redis_ssl", Kind::Bool, "TLS to it (false)"),
        key("sticky", Kind::Section(&STICKY), "requests of a session use the same deployment"),
    ],
    warned: &[
        (
            &["cache_responses", "cache_kwargs", "caching_groups"],
            "litellm_settings.cache_params configures the response cache",
        ),
        (
            &[
                "default_priority",
                "polling_interval",
                "set_verbose",
                "debug_level",
                "client_ttl",
                "alerting_config",
                "max_retries",
                "model_group_affinity_config",
                "auto_router_capability_limit",
            ],
            "it has no effect here",
        ),
        (&["weights"], "set litellm_params.weight in the entries of model_list"),
        (&["routing_groups"], "routing_strategy is one for all groups"),
        (&["tag_routing", "tag_routing_prefix"], "use enable_tag_filtering, with tags in the entries"),
        (
            &["optional_pre_call_checks", "deployment_affinity_ttl_seconds"],
            "use router_settings.sticky, or routing_strategy: prefix-affinity",
        ),
        (
            &["custom_routing_strategy", "custom_routing_strategy_class"],
            "Python plugins are not supported; choose a routing_strategy",
        ),
        (&["enable_weighted_failover"], "weights always apply, also to retries"),
        (
            &[
                "enable_health_check_routing",
                "health_check_staleness_threshold",
                "health_check_ignore_transient_errors",
                "background_health_check_model_groups",
            ],
            "a failed check always starts a cooldown",
        ),
        (
            &["ignore_invalid_deployments"],
            "an entry whose key is not set is left out with a note; everything else is an error",
        ),
        (
            &["assistants_config", "search_tools", "guardrail_list", "router_general_settings"],
            "this service of LiteLLM is not supported",
        ),
    ],
    refused: &[
        (&["default_litellm_params"], "set the parameters in the entries; a YAML anchor repeats them"),
        (&["model_list"], "it belongs at the top level of the file"),
        (
            &["provider_budget_config"],
            "a budget is for a key or for all requests (litellm_settings.max_budget)",
        ),
        (&["plugins", "fallback_access_check", "fallback_budget_check"], "Python plugins are not supported"),
    ],
    open: false,
};

/// `routing_strategy_args`.
pub static STRATEGY_ARGS: Section = Section {
    name: "routing_strategy_args",
    doc: "of latency-based-routing",
    keys: &[
        key("ttl", Kind::Seconds, "how long a measured latency is used (3600)"),
        key(
            "lowest_latency_buffer",
            Kind::Number,
            "how much slower than the fastest is still equal; 0.1 is a tenth (0)",
        ),
    ],
    warned: &[(&["max_latency_list_size", "rpm", "tpm"], "it has no effect here")],
    refused: &[],
    open: false,
};

/// `retry_policy`.
pub static RETRY_POLICY: Section = Section {
    name: "retry_policy",
    doc: "retries by kind of error; default num_retries",
    keys: &[
        key("BadRequestErrorRetries", Kind::Count, "400"),
        key("AuthenticationErrorRetries", Kind::Count, "401 and 403"),
        key("TimeoutErrorRetries", Kind::Count, "408, and timeouts"),
        key("RateLimitErrorRetries", Kind::Count, "429"),
        key("ContentPolicyViolationErrorRetries", Kind::Count, "a provider's content filter"),
        key("InternalServerErrorRetries", Kind::Count, "500 and above, and broken connections"),
        key("NotFoundErrorRetries", Kind::Count, "404"),
        key("DefaultRetries", Kind::Count, "all other errors, instead of num_retries"),
    ],
    warned: &[(&["ServiceUnavailableErrorRetries"], "InternalServerErrorRetries applies")],
    refused: &[],
    open: false,
};

/// `allowed_fails_policy`.
pub static ALLOWED_FAILS_POLICY: Section = Section {
    name: "allowed_fails_policy",
    doc: "failures per minute by kind of error; default allowed_fails",
    keys: &[
        key("BadRequestErrorAllowedFails", Kind::Count, "400"),
        key("AuthenticationErrorAllowedFails", Kind::Count, "401 and 403"),
        key("TimeoutErrorAllowedFails", Kind::Count, "408, and timeouts"),
        key("RateLimitErrorAllowedFails", Kind::Count, "429"),
        key("ContentPolicyViolationErrorAllowedFails", Kind::Count, "a provider's content filter"),
        key("InternalServerErrorAllowedFails", Kind::Count, "500 and above, and broken connections"),
        key("NotFoundErrorAllowedFails", Kind::Count, "404"),
    ],
    warned: &[(
        &["ServiceUnavailableErrorAllowedFails", "BadGatewayErrorAllowedFails"],
        "InternalServerErrorAllowedFails applies",
    )],
    refused: &[],
    open: false,
};
