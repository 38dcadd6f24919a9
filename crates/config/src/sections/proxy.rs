//! The keys of `litellm_settings` and `general_settings`.

use crate::keys::{Kind, Section, key};

/// `litellm_settings`.
pub static LITELLM: Section = Section {
    name: "litellm_settings",
    doc: "LiteLLM's; router_settings beat them",
    keys: &[
        key("drop_params", Kind::Bool, "leave out parameters that a provider can not take (false: refuse the request)"),
        key("request_timeout", Kind::Seconds, "as router_settings.timeout"),
        key("stream_timeout", Kind::Seconds, "as router_settings.stream_timeout"),
        key("num_retries", Kind::Count, "as router_settings.num_retries"),
        key("allowed_fails", Kind::Count, "as router_settings.allowed_fails"),
        key("cooldown_time", Kind::Seconds, "as router_settings.cooldown_time"),
        key("fallbacks", Kind::Fallbacks, "as router_settings.fallbacks"),
        key("context_window_fallbacks", Kind::Fallbacks, "as router_settings.context_window_fallbacks"),
        key("content_policy_fallbacks", Kind::Fallbacks, "as router_settings.content_policy_fallbacks"),
        key("default_fallbacks", Kind::Texts, "as router_settings.default_fallbacks"),
        key("callbacks", Kind::Texts, "prometheus is always there, at /metrics; others are named in a note"),
        key("success_callback", Kind::Texts, "as callbacks"),
        key("failure_callback", Kind::Texts, "as callbacks"),
        key("service_callback", Kind::Texts, "as callbacks").or(&["service_callbacks"]),
        key("max_budget", Kind::Number, "USD that all requests together may cost"),
        key("budget_duration", Kind::Seconds, "after which the budget starts anew"),
        key("default_key_generate_params", Kind::Section(&KEY_PARAMS), "what a new key gets where its maker does not say"),
    ],
    warned: &[
        (
            &["cache", "cache_params", "enable_redis_auth_cache", "enable_caching_on_provider_specific_optional_params", "supported_call_types"],
            "answers are not kept and repeated here; prompts of local models are (cache_ram, cache_disk)",
        ),
        (
            &[
                "set_verbose", "json_logs", "telemetry", "suppress_debug_info", "log_raw_request_response",
                "turn_off_message_logging", "redact_user_api_key_info", "redact_messages_in_exceptions",
                "global_disable_no_log_param", "store_audit_logs",
            ],
            "the log never holds messages and keys; RUST_LOG says how much it has",
        ),
        (
            &[
                "langfuse_default_tags", "s3_callback_params", "gcs_callback_params", "datadog_params", "datadog_llm_observability_params",
                "custom_prometheus_metadata_labels", "custom_prometheus_tags", "prometheus_metrics_config",
                "prometheus_initialize_budget_metrics", "disable_end_user_cost_tracking", "extra_spend_tag_headers",
                "disable_end_user_cost_tracking_prometheus_only", "enable_end_user_cost_tracking_prometheus_only",
                "require_auth_for_metrics_endpoint",
            ],
            "logs are not sent anywhere; /metrics and octet usage have the figures",
        ),
        (
            &[
                "default_internal_user_params", "default_team_settings", "default_team_params", "max_internal_user_budget",
                "internal_user_budget_duration", "default_max_internal_user_budget", "max_end_user_budget", "max_end_user_budget_id",
                "upperbound_key_generate_params", "key_generation_settings", "tag_budget_config", "default_user_params",
                "personal_key_generation", "team_key_generation",
            ],
            "there are keys here, and no users and teams",
        ),
        (&["guardrails", "skip_system_message_in_guardrail"], "guardrails are not run here"),
        (
            &[
                "modify_params", "enable_json_schema_validation", "disable_token_counter", "enable_preview_features", "force_ipv4",
                "disable_default_user_agent", "return_response_headers", "forward_traceparent_to_llm_provider", "network_mock",
                "reasoning_auto_summary", "use_aiohttp_transport", "disable_aiohttp_transport", "aiohttp_trust_env", "ui_theme_config",
                "mcp_aliases", "public_model_groups", "public_model_groups_links", "cost_discount_config", "cost_margin_config",
                "priority_reservation", "priority_reservation_settings", "num_retries_per_request", "enable_azure_ad_token_refresh",
                "image_generation_settings", "user_url_validation", "disable_hf_tokenizer_download", "disable_copilot_system_to_assistant",
                "drop_params_in_responses", "enable_loadbalancing_on_batch_endpoints", "key_alias",
            ],
            "it does nothing here",
        ),
    ],
    refused: &[
        (&["custom_provider_map"], "Python is not run here: a provider of your own is an OpenAI-compatible server with api_base"),
        (&["post_call_rules", "pre_call_rules", "input_callback"], "Python hooks are not run here; remove the key"),
        (&["ssl_verify", "ssl_certificate", "ssl_security_level"], "certificates are always checked; add yours to the system's (SSL_CERT_FILE)"),
        (&["api_key", "api_base", "openai_key"], "keys and addresses stand in the entries of model_list"),
        (&["model_alias_map"], "use router_settings.model_group_alias"),
    ],
    open: false,
};

/// `default_key_generate_params`.
pub static KEY_PARAMS: Section = Section {
    name: "default_key_generate_params",
    doc: "what a new key gets where its maker does not say",
    keys: &[
        key("max_budget", Kind::Number, "USD"),
        key("budget_duration", Kind::Seconds, "after which the budget starts anew"),
        key("duration", Kind::Seconds, "how long the key is good"),
        key("models", Kind::Texts, "groups that it may use"),
        key("rpm_limit", Kind::Count, "requests in a minute"),
        key("tpm_limit", Kind::Count, "tokens in a minute"),
        key("max_parallel_requests", Kind::Count, "requests at once"),
    ],
    warned: &[(&["metadata", "team_id", "user_id", "permissions", "key_alias"], "there are no users and teams here")],
    refused: &[],
    open: false,
};

/// `general_settings`.
pub static GENERAL: Section = Section {
    name: "general_settings",
    doc: "LiteLLM's, for the proxy itself",
    keys: &[
        key("master_key", Kind::Secret, "the key that may do everything; with it requests without a key are refused"),
        key("background_health_checks", Kind::Bool, "ask deployments now and then (false)"),
        key("health_check_interval", Kind::Seconds, "how often (300)"),
        key("health_check_timeout", Kind::Seconds, "how long one may take (10)"),
        key("max_request_size_mb", Kind::Number, "longest body of a request; as server.max_body"),
        key("global_max_parallel_requests", Kind::Count, "most requests at once"),
        key("max_parallel_requests", Kind::Count, "most requests of one key at once, where the key does not say"),
    ],
    warned: &[
        (
            &[
                "database_url", "database_connection_pool_limit", "database_connection_timeout", "database_type", "database_args",
                "allow_requests_on_db_unavailable", "disable_prisma_schema_update", "store_model_in_db", "store_prompts_in_spend_logs",
                "use_redis_transaction_buffer", "disable_spend_logs", "disable_spend_updates", "disable_error_logs", "disable_reset_budget",
                "proxy_budget_rescheduler_min_time", "proxy_budget_rescheduler_max_time", "proxy_batch_write_at",
                "proxy_batch_polling_interval", "maximum_spend_logs_retention_period", "maximum_spend_logs_retention_interval",
                "disable_adding_master_key_hash_to_db", "supported_db_objects", "user_api_key_cache_ttl", "spend_report_frequency",
            ],
            "no database is needed: keys and usage are kept in the file keys.database names",
        ),
        (
            &["alerting", "alerting_threshold", "alerting_args", "alert_types", "alert_to_webhook_url", "email_settings"],
            "alerts are not sent; let Prometheus watch /metrics",
        ),
        (
            &[
                "enable_jwt_auth", "litellm_jwtauth", "enable_oauth2_auth", "enable_oauth2_proxy_auth", "oauth2_config_mappings",
                "allow_user_auth", "ui_access_mode", "auto_redirect_ui_login_to_sso", "role_permissions", "role_mappings",
                "default_team_disabled", "user_mcp_management_mode", "control_plane_url", "allow_client_side_credentials", "sso_settings",
            ],
            "there is no single sign-on here: clients have keys",
        ),
        (
            &[
                "completion_model", "moderation_model", "image_generation_model", "infer_model_from_keys", "health_check_details",
                "use_shared_health_check", "enable_health_check_routing", "health_check_staleness_threshold", "enforce_user_param",
                "disable_master_key_return", "disable_retry_on_max_parallel_request_limit_error", "max_response_size_mb",
                "enable_public_model_hub", "forward_openai_org_id", "service_account_settings", "token_rate_limit_type",
                "always_include_stream_usage", "user_header_name", "user_header_mappings", "use_x_forwarded_for",
                "use_client_credentials_pass_through_routes", "reject_clientside_metadata_tags", "health_check_concurrency",
                "pass_through_endpoints", "coordination_redis", "mcp_internal_ip_ranges", "search_tools", "store_audit_logs",
            ],
            "it does nothing here",
        ),
        (
            &["key_management_system", "key_management_settings", "use_google_kms", "use_azure_key_vault", "use_aws_kms"],
            "keys come from the environment (os.environ/NAME) or a file (file:PATH)",
        ),
        (&["forward_client_headers_to_llm_api"], "headers of clients are not passed on; extra_headers adds some"),
    ],
    refused: &[
        (
            &[
                "custom_auth", "custom_auth_run_common_checks", "custom_sso", "custom_ui_sso_sign_in_handler", "custom_key_generate",
                "custom_key_update", "custom_auth_settings",
            ],
            "Python is not run here; use master_key and virtual keys",
        ),
        (&["litellm_key_header_name"], "keys are read from Authorization, x-api-key and api-key; remove the key"),
        (
            &["allowed_routes", "public_routes", "admin_only_routes", "allowed_ips"],
            "a rule about who may ask what must not be ignored: put a proxy in front for it, and remove the key",
        ),
    ],
    open: false,
};
