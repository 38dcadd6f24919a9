//! The keys of `callback_settings` and `hooks`.

use crate::keys::{Kind, Section, key};

/// An entry of `callback_settings`.
pub static CALLBACK: Section = Section {
    name: "callback_settings",
    doc: "a named webhook, for litellm_settings.callbacks",
    keys: &[
        key("callback_type", Kind::Text, "generic_api: finished requests as JSON"),
        key("endpoint", Kind::Text, "the address"),
        key("headers", Kind::TextMap, "additional headers"),
        key(
            "event_types",
            Kind::Texts,
            "llm_api_success, llm_api_failure. Default: those of the list that contains its name",
        ),
        key(
            "log_format",
            Kind::OneOf(&["json_array", "ndjson", "single"]),
            "json_array: one array; ndjson: one line per request; single: one report per request",
        ),
    ],
    warned: &[
        (
            &[
                "message_logging",
                "capture_message_content",
                "turn_off_message_logging",
                "enable_events",
                "enable_metrics",
            ],
            "prompts and answers are never sent; metrics are at /metrics",
        ),
        (
            &["max_retries", "retry_delay", "timeout", "batch_size", "flush_interval"],
            "a batch is sent each second, and retried three times",
        ),
    ],
    refused: &[],
    open: true,
};

/// An entry of `hooks`.
pub static HOOK: Section = Section {
    name: "hooks[]",
    doc: "a server that sees each request or answer, and may change or refuse it",
    keys: &[
        key("url", Kind::Secret, "its address, which gets a POST").guard(),
        key(
            "on",
            Kind::OneOf(&["request", "response"]),
            "what it sees: requests (the default), or answers; a streamed answer is sent when it has been seen",
        )
        .guard(),
        key(
            "fail",
            Kind::OneOf(&["open", "closed"]),
            "if it does not answer, what it should see passes (open) or is refused (closed; the default)",
        )
        .guard(),
        key("timeout", Kind::Seconds, "time limit of its answer (5)"),
    ],
    warned: &[],
    refused: &[],
    open: false,
};
