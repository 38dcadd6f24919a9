//! The keys of `callback_settings`.

use crate::keys::{Kind, Section, key};

/// An entry of `callback_settings`.
pub static CALLBACK: Section = Section {
    name: "callback_settings",
    doc: "webhooks by a name that litellm_settings.callbacks may list",
    keys: &[
        key("callback_type", Kind::Text, "generic_api: finished requests as JSON"),
        key("endpoint", Kind::Text, "where they are sent"),
        key("headers", Kind::TextMap, "headers that are sent along"),
        key(
            "event_types",
            Kind::Texts,
            "llm_api_success, llm_api_failure; without it what the list says that names it",
        ),
        key(
            "log_format",
            Kind::OneOf(&["json_array", "ndjson", "single"]),
            "a list (json_array), a line for each, or a request for each",
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
            "prompts and answers are sent to nobody, and metrics stand at /metrics",
        ),
        (
            &["max_retries", "retry_delay", "timeout", "batch_size", "flush_interval"],
            "a batch is sent each second, and three more times where it is not taken",
        ),
    ],
    refused: &[],
    open: true,
};
