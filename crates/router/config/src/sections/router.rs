//! The keys of `router_settings`.

use crate::keys::{Kind, Section, key};

use super::STICKY;

/// `router_settings`.
pub static ROUTER: Section = Section {
    name: "router_settings",
    doc: "how one of several is chosen, and what happens when it fails",
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
        key("context_window_fallbacks", Kind::Fallbacks, "those for prompts that are too long"),
        key("content_policy_fallbacks", Kind::Fallbacks, "those for what a provider refuses"),
        key("default_fallbacks", Kind::Texts, "for groups that have none of their own"),
        key("max_fallbacks", Kind::Count, "most groups that are tried after the first (5)"),
        key("num_retries", Kind::Count, "attempts after the first within a group (2)"),
        key("retry_after", Kind::Seconds, "least time before a further attempt (0)"),
        key("retry_policy", Kind::Section(&RETRY_POLICY), "retries by what went wrong"),
        key("model_group_retry_policy", Kind::MapOf(&RETRY_POLICY), "the same for one group"),
        key("allowed_fails", Kind::Count, "failures in a minute that a deployment may have before it rests"),
        key("allowed_fails_policy", Kind::Section(&ALLOWED_FAILS_POLICY), "the same by what went wrong"),
        key("cooldown_time", Kind::Seconds, "how long it rests (5)"),
        key("disable_cooldowns", Kind::Bool, "deployments never rest (false)"),
        key("timeout", Kind::Seconds, "longest time of a request with all its attempts (6000)"),
        key("stream_timeout", Kind::Seconds, "longest time to a stream's first piece (timeout)"),
        key(
            "enable_pre_call_checks",
            Kind::Bool,
            "leave out deployments whose window is too small (false; always for local models)",
        ),
        key("default_max_parallel_requests", Kind::Count, "max_parallel_requests of entries that do not say")
            .guard(),
        key(
            "enable_tag_filtering",
            Kind::Bool,
            "a request's tags choose among the deployments of a group (false): docs/routing.md",
        )
        .guard(),
        key(
            "tag_filtering_match_any",
            Kind::Bool,
            "one tag in common is enough (true); else a deployment needs all of the request's",
        )
        .guard(),
        key("sticky", Kind::Section(&STICKY), "requests of one session stay with one deployment"),
    ],
    warned: &[
        (
            &[
                "redis_host",
                "redis_port",
                "redis_password",
                "redis_url",
                "redis_db",
                "redis_username",
                "redis_ssl",
                "cache_responses",
                "cache_kwargs",
                "caching_groups",
            ],
            "limits are counted in this process; litellm_settings.cache_params says where answers are kept",
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
            "it does nothing here",
        ),
        (&["weights"], "weights stand in the entries of model_list: litellm_params.weight"),
        (&["routing_groups"], "routing_strategy is one for all groups"),
        (
            &["tag_routing", "tag_routing_prefix"],
            "deployments are not chosen by tags here: give them model_names of their own",
        ),
        (
            &["optional_pre_call_checks", "deployment_affinity_ttl_seconds"],
            "use router_settings.sticky, or routing_strategy: prefix-affinity",
        ),
        (
            &["custom_routing_strategy", "custom_routing_strategy_class"],
            "Python is not run here; routing_strategy names one of the strategies",
        ),
        (&["enable_weighted_failover"], "weights always count, also for further attempts"),
        (
            &[
                "enable_health_check_routing",
                "health_check_staleness_threshold",
                "health_check_ignore_transient_errors",
                "background_health_check_model_groups",
            ],
            "a deployment whose check fails always rests",
        ),
        (
            &["ignore_invalid_deployments"],
            "an entry whose key is not set is left out with a note, and what is wrong otherwise is an error",
        ),
        (
            &["assistants_config", "search_tools", "guardrail_list", "router_general_settings"],
            "this service of LiteLLM's is not offered here",
        ),
    ],
    refused: &[
        (&["default_litellm_params"], "write the parameters into the entries; a YAML anchor repeats them"),
        (&["model_list"], "it stands at the top of the file"),
        (
            &["provider_budget_config"],
            "budgets are for keys and for all requests together (litellm_settings.max_budget)",
        ),
        (&["plugins", "fallback_access_check", "fallback_budget_check"], "Python is not run here"),
    ],
    open: false,
};

/// `routing_strategy_args`.
pub static STRATEGY_ARGS: Section = Section {
    name: "routing_strategy_args",
    doc: "of latency-based-routing",
    keys: &[
        key("ttl", Kind::Seconds, "how long a measured latency counts (3600)"),
        key(
            "lowest_latency_buffer",
            Kind::Number,
            "how much slower than the fastest still counts as fast; 0.1 is a tenth (0)",
        ),
    ],
    warned: &[(&["max_latency_list_size", "rpm", "tpm"], "it does nothing here")],
    refused: &[],
    open: false,
};

/// `retry_policy`.
pub static RETRY_POLICY: Section = Section {
    name: "retry_policy",
    doc: "retries by what went wrong; what is not said has num_retries",
    keys: &[
        key("BadRequestErrorRetries", Kind::Count, "400"),
        key("AuthenticationErrorRetries", Kind::Count, "401 and 403"),
        key("TimeoutErrorRetries", Kind::Count, "408, and no answer in time"),
        key("RateLimitErrorRetries", Kind::Count, "429"),
        key("ContentPolicyViolationErrorRetries", Kind::Count, "a provider's filter"),
        key("InternalServerErrorRetries", Kind::Count, "500 and above, and connections that break"),
        key("NotFoundErrorRetries", Kind::Count, "404"),
        key("DefaultRetries", Kind::Count, "what is not said, instead of num_retries"),
    ],
    warned: &[(&["ServiceUnavailableErrorRetries"], "it counts as InternalServerErrorRetries")],
    refused: &[],
    open: false,
};

/// `allowed_fails_policy`.
pub static ALLOWED_FAILS_POLICY: Section = Section {
    name: "allowed_fails_policy",
    doc: "failures in a minute by what went wrong; what is not said has allowed_fails",
    keys: &[
        key("BadRequestErrorAllowedFails", Kind::Count, "400"),
        key("AuthenticationErrorAllowedFails", Kind::Count, "401 and 403"),
        key("TimeoutErrorAllowedFails", Kind::Count, "408, and no answer in time"),
        key("RateLimitErrorAllowedFails", Kind::Count, "429"),
        key("ContentPolicyViolationErrorAllowedFails", Kind::Count, "a provider's filter"),
        key("InternalServerErrorAllowedFails", Kind::Count, "500 and above, and connections that break"),
        key("NotFoundErrorAllowedFails", Kind::Count, "404"),
    ],
    warned: &[(
        &["ServiceUnavailableErrorAllowedFails", "BadGatewayErrorAllowedFails"],
        "it counts as InternalServerErrorAllowedFails",
    )],
    refused: &[],
    open: false,
};
