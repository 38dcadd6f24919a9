//! Keys that LiteLLM does not have: cascades, sessions, the server, virtual keys.

use crate::keys::{Kind, Section, key};

/// An entry of `cascades`.
pub static CASCADE: Section = Section {
    name: "cascades",
    doc: "a name that a fast model answers, or a strong one if necessary",
    keys: &[
        key("model_name", Kind::Text, "the name for clients"),
        key("fast", Kind::Text, "the group for easy requests"),
        key("strong", Kind::Text, "the group for hard requests"),
        key("rules", Kind::List(&RULE), "checked in order; the first one that matches decides").guard(),
        key(
            "prerouter",
            Kind::Section(&PREROUTER),
            "predicts from the prompt whether the fast model's answer will be right",
        )
        .guard(),
        key("confidence", Kind::Section(&CONFIDENCE), "the required confidence of the fast model").guard(),
    ],
    warned: &[],
    refused: &[],
    open: false,
};

/// A rule of a cascade.
pub static RULE: Section = Section {
    name: "rules",
    doc: "decides requests without the fast model; all conditions must match",
    keys: &[
        key("name", Kind::Text, "its name in headers and logs"),
        key("to", Kind::OneOf(&["fast", "strong"]), "the side for matching requests (strong)").guard(),
        key("check", Kind::Bool, "with to: fast, check the fast model's confidence (false)").guard(),
        key("min_tokens", Kind::Count, "minimum tokens of the prompt").guard(),
        key("max_tokens", Kind::Count, "maximum tokens of the prompt").guard(),
        key("min_messages", Kind::Count, "minimum number of messages").guard(),
        key("max_messages", Kind::Count, "maximum number of messages").guard(),
        key("tools", Kind::Bool, "whether tools are given").guard(),
        key("code", Kind::Bool, "whether a message contains a code block").guard(),
        key("images", Kind::Bool, "whether a message contains an image").guard(),
        key("header", Kind::TextMap, "headers and patterns for their values: {x-tier: gold}").guard(),
        key("system", Kind::Text, "a pattern to search in the system prompt").guard(),
        key("user", Kind::Text, "a pattern to search in the last user message").guard(),
    ],
    warned: &[],
    refused: &[],
    open: false,
};

/// `prerouter` of a cascade.
pub static PREROUTER: Section = Section {
    name: "prerouter",
    doc: "logistic regression over an embedding of the last user message",
    keys: &[
        key("file", Kind::Text, "the weights file, written by octet route calibrate --prerouter FILE")
            .guard(),
        key("threshold", Kind::Number, "minimum probability that the fast model's answer is right (0.5)")
            .guard(),
        key("embed", Kind::Text, "the group whose local model computes the embedding (the fast group)"),
    ],
    warned: &[],
    refused: &[],
    open: false,
};

/// `confidence` of a cascade.
pub static CONFIDENCE: Section = Section {
    name: "confidence",
    doc: "the required confidence of the fast model; needs signal and threshold, or another threshold",
    keys: &[
        key("window", Kind::Count, "tokens that are held back and measured (16)"),
        key(
            "signal",
            Kind::Text,
            "the measure: top1, margin or entropy of each token, then .mean, .min or .q25 (any quantile) over the window: margin.q25",
        )
        .guard(),
        key("threshold", Kind::Number, "minimum of the signal; maximum for entropy").guard(),
        key("probe", Kind::Bool, "measure a greedy copy of the answer's first tokens, so that temperature and seed have no effect (true for local models)"),
        key("tool_calls", Kind::Bool, "escalate if a tool call does not match its schema (true)").guard(),
        key("self_check", Kind::Number, "minimum probability that the fast model calls its complete answer right").guard(),
        key("mean_logprob", Kind::Number, "an older signal: minimum mean log-probability of the tokens: -0.5").guard(),
        key("margin", Kind::Number, "an older form of signal: margin.mean: 1.0").guard(),
        key("skip_thoughts", Kind::Bool, "do not measure reasoning tokens (true)"),
    ],
    warned: &[],
    refused: &[],
    open: false,
};

/// `router_settings.sticky`.
pub static STICKY: Section = Section {
    name: "sticky",
    doc: "requests of a session use the same deployment",
    keys: &[
        key("by", Kind::Texts, "keys of sessions: header:NAME, user, key (header:x-session-id)"),
        key("ttl", Kind::Seconds, "how long a session is remembered (3600)"),
    ],
    warned: &[],
    refused: &[],
    open: false,
};

/// `server`.
pub static SERVER: Section = Section {
    name: "server",
    doc: "the flags of octet serve; a flag takes precedence over its key",
    keys: &[
        key("host", Kind::Text, "address to listen at (127.0.0.1)").guard(),
        key("port", Kind::Count, "port to listen at (8080)"),
        key("api_key", Kind::Secret, "a key that clients must send; or a list of them").guard(),
        key("api_key_file", Kind::Text, "a file with such keys, one per line").guard(),
        key("cors_origin", Kind::Texts, "origins of web pages that may use the server")
            .guard()
            .or(&["cors_origins"]),
        key("allowed_host", Kind::Texts, "further host names that mean this machine, such as a reverse proxy's; * is any")
            .guard()
            .or(&["allowed_hosts"]),
        key("timeout", Kind::Seconds, "time limit of a request, including its answer (3600)"),
        key("max_body", Kind::Size, "maximum request body size (32MiB)").guard(),
        key("max_connections", Kind::Count, "maximum connections (1024)").guard(),
        key("memory_limit", Kind::Size, "maximum memory of all local models").guard(),
        key("load_queue", Kind::Count, "maximum requests that wait for a local model to load (64)"),
        key(
            "allow_image_urls",
            Kind::Bool,
            "download images that requests give by address, for models that take only the bytes; only from public addresses (false)",
        )
        .guard(),
    ],
    warned: &[],
    refused: &[],
    open: false,
};

/// `keys`.
pub static KEYS: Section = Section {
    name: "keys",
    doc: "virtual keys and budgets",
    keys: &[
        key("database", Kind::Text, "the SQLite file; needs a master_key").guard(),
        key(
            "prices",
            Kind::Text,
            "a price list that takes precedence over the built-in one, in its format (docs/keys.md); none: only entries have prices",
        ),
        key("usage_days", Kind::Count, "for how many days the daily usage is kept (400)"),
    ],
    warned: &[],
    refused: &[],
    open: false,
};
