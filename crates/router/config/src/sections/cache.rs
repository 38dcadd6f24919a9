//! The keys of `litellm_settings.cache_params`.

use crate::keys::{Kind, Section, key};

/// `cache_params`.
pub static CACHE: Section = Section {
    name: "cache_params",
    doc: "where answers are stored, and for how long; see docs/caching.md",
    keys: &[
        key(
            "type",
            Kind::Text,
            "local (memory) or redis. Default: redis if a server is given, here or by REDIS_URL or REDIS_HOST",
        ),
        key("host", Kind::Text, "of Redis. Default: REDIS_HOST"),
        key("port", Kind::Count, "of Redis. Default: REDIS_PORT, else 6379"),
        key("username", Kind::Text, "of Redis. Default: REDIS_USERNAME"),
        key("password", Kind::Secret, "of Redis. Default: REDIS_PASSWORD"),
        key(
            "url",
            Kind::Secret,
            "of Redis, instead of host and port: redis:// or, with TLS, rediss://. Default: REDIS_URL",
        ),
        key("ssl", Kind::Bool, "TLS to Redis (false)"),
        key("db", Kind::Count, "number of the database in Redis (0)"),
        key("ttl", Kind::Seconds, "lifetime of an answer (10 minutes in memory, 1 minute in Redis)"),
        key(
            "default_in_memory_ttl",
            Kind::Seconds,
            "takes precedence over ttl if answers are stored in memory",
        ),
        key(
            "default_in_redis_ttl",
            Kind::Seconds,
            "takes precedence over ttl if answers are stored in Redis",
        ),
        key("namespace", Kind::Text, "prefix of the entries' names"),
        key(
            "supported_call_types",
            Kind::Texts,
            "which requests are cached: acompletion, atext_completion, aembedding, aresponses, anthropic_messages (all)",
        ),
        key(
            "mode",
            Kind::OneOf(&["default_on", "default_off"]),
            "default_off: only requests with cache: {use-cache: true} are cached",
        ),
        key("max_messages", Kind::Any, "longer conversations are not cached (4); null: no limit"),
        key("shared_between_keys", Kind::Bool, "virtual keys share their answers (false)"),
        key("max_memory", Kind::Size, "maximum memory of all answers (64 MiB)"),
    ],
    warned: &[
        (
            &[
                "redis_startup_nodes",
                "startup_nodes",
                "service_name",
                "sentinel_nodes",
                "sentinel_password",
                "gcp_service_account",
                "gcp_ssl_ca_certs",
                "azure_redis_ad_token",
            ],
            "only one Redis server with a password is supported: no cluster, no sentinel, no cloud identity",
        ),
        (
            &[
                "s3_*",
                "gcs_*",
                "azure_*",
                "qdrant_*",
                "redis_semantic_*",
                "valkey_semantic_*",
                "semantic_cache_*",
                "similarity_threshold",
                "disk_cache_dir",
            ],
            "answers are stored in memory or in Redis, and found by an identical request only",
        ),
        (
            &[
                "redis_flush_size",
                "max_connections",
                "socket_timeout",
                "socket_connect_timeout",
                "ssl_*",
                "decode_responses",
                "health_check_interval",
                "retry_on_timeout",
            ],
            "all requests share one connection to Redis, and wait at most 500 ms for it",
        ),
    ],
    refused: &[],
    open: false,
};
