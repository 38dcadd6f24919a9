//! The keys of `litellm_settings`: answers, their cache and callbacks, and defaults of new keys.

use super::CACHE;
use crate::keys::{Kind, Section, key};

/// `litellm_settings`.
pub static LITELLM: Section = Section {
    name: "litellm_settings",
    doc: "LiteLLM's settings; router_settings take precedence",
    keys: &[
        key(
            "drop_params",
            Kind::Any,
            "drop parameters that a provider does not support (false: refuse the request)",
        ),
        key(
            "modify_params",
            Kind::Bool,
            "add messages and tools that a provider requires (false: refuse the request)",
        ),
        key("request_timeout", Kind::Seconds, "as router_settings.timeout"),
        key("stream_timeout", Kind::Seconds, "as router_settings.stream_timeout"),
        key("num_retries", Kind::Count, "as router_settings.num_retries"),
        key("allowed_fails", Kind::Count, "as router_settings.allowed_fails"),
        key("cooldown_time", Kind::Seconds, "as router_settings.cooldown_time"),
        key("fallbacks", Kind::Fallbacks, "as router_settings.fallbacks"),
        key("context_window_fallbacks", Kind::Fallbacks, "as router_settings.context_window_fallbacks"),
        key("content_policy_fallbacks", Kind::Fallbacks, "as router_settings.content_policy_fallbacks"),
        key("default_fallbacks", Kind::Texts, "as router_settings.default_fallbacks"),
        key(
            "callbacks",
            Kind::Texts,
            "where finished requests are reported: otel, langfuse, langfuse_otel, generic_api, or a name in callback_settings (docs/callbacks.md)",
        ),
        key("success_callback", Kind::Texts, "as callbacks, for answered requests"),
        key("failure_callback", Kind::Texts, "as callbacks, for failed requests"),
        key(
            "service_callback",
            Kind::Texts,
            "prometheus is always on, at /metrics; others are reported in a note",
        )
        .or(&["service_callbacks"]),
        key(
            "cache",
            Kind::Bool,
            "store answers, and return them for the same request (false): docs/caching.md",
        ),
        key("cache_params", Kind::Section(&CACHE), "where they are stored, and for how long"),
        key("max_budget", Kind::Number, "budget of all requests in USD").guard(),
        key("budget_duration", Kind::Seconds, "period of the budget").guard(),
        key(
            "default_key_generate_params",
            Kind::Section(&KEY_PARAMS),
            "defaults of new keys",
        )
        .guard(),
        key(
            "default_internal_user_params",
            Kind::Section(&USER_PARAMS),
            "defaults of new users (with keys.database)",
        )
        .guard(),
        key(
            "default_team_params",
            Kind::Section(&TEAM_PARAMS),
            "defaults of new teams (with keys.database)",
        )
        .guard(),
        key(
            "max_internal_user_budget",
            Kind::Number,
            "default budget, in USD, of new users with the role internal_user, after default_internal_user_params",
        )
        .guard(),
        key(
            "default_max_internal_user_budget",
            Kind::Number,
            "an older name of max_internal_user_budget",
        )
        .guard(),
        key(
            "max_end_user_budget",
            Kind::Number,
            "budget, in USD, of each end user (the user of requests) that has none of its own",
        )
        .guard(),
        key("internal_user_budget_duration", Kind::Seconds, "the period of these budgets").guard(),
        key(
            "upperbound_key_generate_params",
            Kind::Section(&KEY_BOUNDS),
            "upper bounds for /key/generate and /key/update, which are also defaults of new keys",
        )
        .guard(),
    ],
    warned: &[
        (
            &[
                "enable_redis_auth_cache",
                "enable_caching_on_provider_specific_optional_params",
                "supported_call_types",
            ],
            "it has no effect here; litellm_settings.cache_params configures the cache",
        ),
        (
            &[
                "set_verbose",
                "telemetry",
                "suppress_debug_info",
                "log_raw_request_response",
                "turn_off_message_logging",
                "redact_user_api_key_info",
                "redact_messages_in_exceptions",
                "global_disable_no_log_param",
                "store_audit_logs",
                "disable_streaming_logging",
                "log_client_error_tracebacks",
                "log_auth_failure_key_identity",
                "request_correlation_in_logs",
                "standard_logging_payload_excluded_fields",
            ],
            "the log never contains messages and keys; RUST_LOG sets its level",
        ),
        (&["json_logs"], "octet serve --log-format json writes the log as JSON"),
        (
            &[
                "langfuse_default_tags",
                "s3_callback_params",
                "gcs_callback_params",
                "datadog_params",
                "datadog_llm_observability_params",
                "custom_prometheus_metadata_labels",
                "custom_prometheus_tags",
                "prometheus_metrics_config",
                "prometheus_initialize_budget_metrics",
                "disable_end_user_cost_tracking",
                "extra_spend_tag_headers",
                "disable_end_user_cost_tracking_prometheus_only",
                "enable_end_user_cost_tracking_prometheus_only",
                "require_auth_for_metrics_endpoint",
                "audit_log_callbacks",
                "s3_audit_callback_params",
                "aws_sqs_callback_params",
                "newrelic_params",
                "langfuse_enable_update_trace_keys",
                "langsmith_batch_size",
                "argilla_batch_size",
                "argilla_transformation_object",
                "generic_logger_headers",
                "default_team_settings",
                "cold_storage_custom_logger",
                "allow_dynamic_callback_disabling",
                "include_cost_in_streaming_usage",
                "prometheus_*",
            ],
            "it has no effect here; see docs/callbacks.md; /metrics has the figures",
        ),
        (
            &[
                "key_generation_settings",
                "default_user_params",
                "personal_key_generation",
                "team_key_generation",
                "max_ui_session_budget",
                "default_soft_budget",
                "default_key_max_budget_alert_emails",
                "key_alias_pattern",
                "enable_key_alias_format_validation",
                "validate_end_user_id_in_db",
                "add_user_information_to_llm_headers",
                "overwrite_user_with_key_hash",
                "scim_admin_group",
                "scim_upsert_user",
            ],
            "use default_internal_user_params and default_team_params (docs/keys.md)",
        ),
        (
            &["skip_system_message_in_guardrail", "skip_tool_message_in_guardrail", "presidio_logging_only"],
            "guardrails are not supported",
        ),
        (
            &[
                "budget_reset_time",
                "budget_rollover",
                "budget_exceeded_status_code",
                "budget_exceeded_throttle_percentage",
            ],
            "a budget is reset budget_duration after it was set; requests beyond it get status 429",
        ),
        (
            &[
                "check_provider_endpoint",
                "enable_json_schema_validation",
                "disable_token_counter",
                "enable_preview_features",
                "force_ipv4",
                "disable_default_user_agent",
                "return_response_headers",
                "forward_traceparent_to_llm_provider",
                "network_mock",
                "reasoning_auto_summary",
                "use_aiohttp_transport",
                "disable_aiohttp_transport",
                "aiohttp_trust_env",
                "ui_theme_config",
                "mcp_aliases",
                "public_model_groups",
                "public_model_groups_links",
                "cost_discount_config",
                "cost_margin_config",
                "priority_reservation",
                "priority_reservation_settings",
                "num_retries_per_request",
                "enable_azure_ad_token_refresh",
                "image_generation_settings",
                "user_url_validation",
                "disable_hf_tokenizer_download",
                "disable_copilot_system_to_assistant",
                "drop_params_in_responses",
                "enable_loadbalancing_on_batch_endpoints",
                "key_alias",
                "model_group_settings",
                "websearch_interception_params",
                "code_interpreter_interception_params",
                "mcp_semantic_tool_filter",
                "mcp_tool_search",
                "enable_anthropic_prompt_caching",
                "anthropic_prompt_caching_ttl",
                "route_all_chat_openai_to_responses",
                "global_prompt_directory",
                "global_bitbucket_config",
                "global_gitlab_config",
                "public_mcp_servers",
                "public_agent_groups",
                "default_in_memory_ttl",
                "default_redis_ttl",
                "default_redis_batch_cache_expiry",
                "expose_router_debug_in_errors",
                "custom_prompt_dict",
                "vertex_ai_safety_settings",
                "sse_keepalive_ping_interval_seconds",
                "anthropic_sse_ping_interval_seconds",
                "model_cost_map_url",
                "require_managed_files",
                "responses",
                "disable_add_transform_inline_image_block",
                "disable_stop_sequence_limit",
                "use_chat_completions_url_for_anthropic_messages",
            ],
            "it has no effect here",
        ),
        (
            &["custom_provider_map"],
            "Python plugins are not supported: use an OpenAI-compatible server with api_base",
        ),
        (&["input_callback"], "Python plugins are not supported"),
        (
            &["ssl_verify", "ssl_certificate", "ssl_security_level"],
            "certificates are always verified; add yours to the system's (SSL_CERT_FILE)",
        ),
        (&["model_alias_map"], "use router_settings.model_group_alias"),
    ],
    refused: &[
        (
            &[
                "guardrails",
                "banned_keywords_list",
                "azure_content_safety_params",
                "prompt_injection_params",
                "presidio_ad_hoc_recognizers",
                "output_parse_pii",
                "llm_guard_mode",
                "llamaguard_model_name",
                "llamaguard_unsafe_content_categories",
                "openai_moderations_model_name",
                "google_moderation_confidence_threshold",
            ],
            "guardrails are not supported: put a filter in front, or use the provider's",
        ),
        (
            &["max_end_user_budget_id", "default_end_user_params", "max_user_budget"],
            "budgets of end users are set by max_end_user_budget, and for single ones by /customer/new",
        ),
        (&["tag_budget_config"], "budgets of tags are not supported: give each a key with a budget"),
        (&["post_call_rules", "pre_call_rules"], "Python plugins are not supported, and a rule may refuse requests"),
        (
            &["blocked_user_list"],
            "access rules must not be ignored: give users their own keys, and revoke those",
        ),
        (
            &["block_requests_for_models_without_pricing"],
            "requests without a known price are not blocked: set input_cost_per_token and output_cost_per_token, or keys.prices",
        ),
        (
            &[
                "api_key",
                "api_base",
                "openai_key",
                "azure_key",
                "anthropic_key",
                "groq_key",
                "openrouter_key",
                "proxy_auth",
            ],
            "set keys and addresses in the entries of model_list",
        ),
    ],
    open: false,
};

/// `default_key_generate_params`.
pub static KEY_PARAMS: Section = Section {
    name: "default_key_generate_params",
    doc: "defaults of new keys",
    keys: &[
        key("max_budget", Kind::Number, "USD").guard(),
        key("budget_duration", Kind::Seconds, "period of the budget").guard(),
        key("duration", Kind::Seconds, "how long the key is valid").guard(),
        key("models", Kind::Texts, "groups that it may use").guard(),
        key("rpm_limit", Kind::Count, "maximum requests per minute").guard(),
        key("tpm_limit", Kind::Count, "maximum tokens per minute").guard(),
        key("max_parallel_requests", Kind::Count, "maximum concurrent requests").guard(),
        key("user_id", Kind::Text, "its user").guard(),
        key("team_id", Kind::Text, "its team").guard(),
    ],
    warned: &[(&["metadata", "permissions", "key_alias"], "set it when the key is created (docs/keys.md)")],
    refused: &[],
    open: false,
};

/// `default_internal_user_params`.
pub static USER_PARAMS: Section = Section {
    name: "default_internal_user_params",
    doc: "defaults of new users, except those with the user_role proxy_admin",
    keys: &[
        key("max_budget", Kind::Number, "USD").guard(),
        key("budget_duration", Kind::Seconds, "period of the budget").guard(),
        key("models", Kind::Texts, "groups that the user may use").guard(),
        key("rpm_limit", Kind::Count, "maximum requests per minute").guard(),
        key("tpm_limit", Kind::Count, "maximum tokens per minute").guard(),
        key("max_parallel_requests", Kind::Count, "maximum concurrent requests").guard(),
        key("teams", Kind::Any, "teams of which the user becomes a member: ids, or mappings with a team_id")
            .guard(),
        key("user_role", Kind::Text, "displayed only"),
    ],
    warned: &[
        (&["available_teams"], "users cannot join teams themselves"),
        (&["user_email", "user_alias", "metadata"], "set them when the user is created (docs/keys.md)"),
    ],
    refused: &[],
    open: false,
};

/// `default_internal_user_params.teams`, if it is a mapping.
pub static USER_TEAM: Section = Section {
    name: "default_internal_user_params.teams",
    doc: "a team of new users",
    keys: &[key("team_id", Kind::Text, "its id").guard()],
    warned: &[(&["user_role"], "roles have no effect")],
    refused: &[(&["max_budget_in_team"], "budgets of a team's members are not enforced")],
    open: false,
};

/// `default_team_params`.
pub static TEAM_PARAMS: Section = Section {
    name: "default_team_params",
    doc: "defaults of new teams",
    keys: &[
        key("max_budget", Kind::Number, "USD").guard(),
        key("budget_duration", Kind::Seconds, "period of the budget").guard(),
        key("rpm_limit", Kind::Count, "maximum requests per minute").guard(),
        key("tpm_limit", Kind::Count, "maximum tokens per minute").guard(),
    ],
    warned: &[
        (&["models"], "LiteLLM uses these only for teams created by single sign-on, which is not supported"),
        (&["team_member_permissions"], "only the master key manages teams"),
        (&["organization_id"], "organizations are not supported"),
    ],
    refused: &[],
    open: false,
};

/// `upperbound_key_generate_params`.
pub static KEY_BOUNDS: Section = Section {
    name: "upperbound_key_generate_params",
    doc: "upper bounds of new keys",
    keys: &[
        key("max_budget", Kind::Number, "USD").guard(),
        key("budget_duration", Kind::Seconds, "period of the budget").guard(),
        key("duration", Kind::Seconds, "how long the key is valid").guard(),
        key("max_parallel_requests", Kind::Count, "maximum concurrent requests").guard(),
        key("tpm_limit", Kind::Count, "maximum tokens per minute").guard(),
        key("rpm_limit", Kind::Count, "maximum requests per minute").guard(),
    ],
    warned: &[],
    refused: &[],
    open: false,
};
