//! The keys of `litellm_settings.cache_params`.

use crate::keys::{Kind, Section, key};

/// `cache_params`.
pub static CACHE: Section = Section {
    name: "cache_params",
    doc: "where answers are kept and for how long; see docs/caching.md",
    keys: &[
        key(
            "type",
            Kind::Text,
            "local (memory) or redis; without it redis if a server is named, here or by REDIS_URL or REDIS_HOST",
        ),
        key("host", Kind::Text, "of Redis; without it REDIS_HOST"),
        key("port", Kind::Count, "of Redis (6379); without it REDIS_PORT"),
        key("username", Kind::Text, "of Redis; without it REDIS_USERNAME"),
        key("password", Kind::Secret, "of Redis; without it REDIS_PASSWORD"),
        key(
            "url",
            Kind::Secret,
            "of Redis, instead of host and port: redis:// or, with TLS, rediss://; without it REDIS_URL",
        ),
        key("ssl", Kind::Bool, "TLS to Redis (false)"),
        key("db", Kind::Count, "number of the database in Redis (0)"),
        key("ttl", Kind::Seconds, "how long an answer is kept (10 minutes in memory, 1 minute in Redis)"),
        key("default_in_memory_ttl", Kind::Seconds, "beats ttl if answers are kept in memory"),
        key("default_in_redis_ttl", Kind::Seconds, "beats ttl if answers are kept in Redis"),
        key("namespace", Kind::Text, "what the names of entries begin with"),
        key(
            "supported_call_types",
            Kind::Texts,
            "which requests are looked at: acompletion, atext_completion, aembedding, aresponses, anthropic_messages (all)",
        ),
        key(
            "mode",
            Kind::OneOf(&["default_on", "default_off"]),
            "default_off looks only at requests with cache: {use-cache: true}",
        ),
        key(
            "max_messages",
            Kind::Any,
            "conversations with more messages are not looked at (4); null looks at all",
        ),
        key(
            "shared_between_keys",
            Kind::Bool,
            "a virtual key gets answers to another one's requests too (false)",
        ),
        key("max_memory", Kind::Size, "what answers in memory may take together (64 MiB)"),
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
            "one Redis server is used, with a password: no cluster, no sentinel, no cloud's identity",
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
            "answers are kept in memory or in Redis, and found by the same request alone",
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
            "requests share one connection to Redis, and wait at most 500 ms for it",
        ),
    ],
    refused: &[],
    open: false,
};
