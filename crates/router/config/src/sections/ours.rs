//! Keys that LiteLLM does not have: cascades, sessions, the server, virtual keys.

use crate::keys::{Kind, Section, key};

/// An entry of `cascades`.
pub static CASCADE: Section = Section {
    name: "cascades",
    doc: "a name that a fast model answers, or a strong one where it is needed",
    keys: &[
        key("model_name", Kind::Text, "what clients ask for"),
        key("fast", Kind::Text, "the group for what is easy"),
        key("strong", Kind::Text, "the group for what is hard"),
        key("rules", Kind::List(&RULE), "looked at in turn; the first whose conditions all hold decides")
            .guard(),
        key(
            "prerouter",
            Kind::Section(&PREROUTER),
            "guesses from the prompt alone whether the fast model will be right",
        )
        .guard(),
        key("confidence", Kind::Section(&CONFIDENCE), "how sure the fast model has to be").guard(),
    ],
    warned: &[],
    refused: &[],
    open: false,
};

/// A rule of a cascade.
pub static RULE: Section = Section {
    name: "rules",
    doc: "which requests go where without asking the fast model; all conditions have to hold",
    keys: &[
        key("name", Kind::Text, "what headers and logs say"),
        key("to", Kind::OneOf(&["fast", "strong"]), "where it sends them (strong)").guard(),
        key("check", Kind::Bool, "with to: fast, whether the fast model still has to be sure (false)")
            .guard(),
        key("min_tokens", Kind::Count, "least number of tokens in the prompt").guard(),
        key("max_tokens", Kind::Count, "greatest number of tokens in the prompt").guard(),
        key("min_messages", Kind::Count, "least number of messages").guard(),
        key("max_messages", Kind::Count, "greatest number of messages").guard(),
        key("tools", Kind::Bool, "whether tools are given").guard(),
        key("code", Kind::Bool, "whether a message has a block of code").guard(),
        key("images", Kind::Bool, "whether a message has an image").guard(),
        key("header", Kind::TextMap, "headers and patterns for their values: {x-tier: gold}").guard(),
        key("system", Kind::Text, "a pattern that is found in the system prompt").guard(),
        key("user", Kind::Text, "a pattern that is found in the user's last message").guard(),
    ],
    warned: &[],
    refused: &[],
    open: false,
};

/// `prerouter` of a cascade.
pub static PREROUTER: Section = Section {
    name: "prerouter",
    doc: "logistic regression over an embedding of the user's last message: unlikely answers are not tried",
    keys: &[
        key("file", Kind::Text, "the weights, as octet route calibrate --prerouter FILE writes them").guard(),
        key("threshold", Kind::Number, "least probability that the fast model's answer is right (0.5)")
            .guard(),
        key("embed", Kind::Text, "the group whose local model makes the embedding (the fast group)"),
    ],
    warned: &[],
    refused: &[],
    open: false,
};

/// `confidence` of a cascade.
pub static CONFIDENCE: Section = Section {
    name: "confidence",
    doc: "how sure the fast model has to be; needs signal and threshold, or another threshold",
    keys: &[
        key("window", Kind::Count, "tokens that are held back and measured (16)"),
        key(
            "signal",
            Kind::Text,
            "what is measured: top1, margin or entropy of each token, then .mean, .min or .q25 (any quantile) over the window: margin.q25",
        )
        .guard(),
        key("threshold", Kind::Number, "least value of the signal; of entropy the greatest").guard(),
        key("probe", Kind::Bool, "measure a greedy copy of the answer's beginning, so that temperature and seed do not matter (true for models in this process)"),
        key("tool_calls", Kind::Bool, "a call that breaks its tool's schema goes to the strong model (true)").guard(),
        key("self_check", Kind::Number, "least probability of yes when the fast model is asked whether its whole answer is right").guard(),
        key("mean_logprob", Kind::Number, "an older signal: least mean log-probability of the tokens: -0.5").guard(),
        key("margin", Kind::Number, "an older form of signal: margin.mean: 1.0").guard(),
        key("skip_thoughts", Kind::Bool, "tokens of reasoning do not count (true)"),
    ],
    warned: &[],
    refused: &[],
    open: false,
};

/// `router_settings.sticky`.
pub static STICKY: Section = Section {
    name: "sticky",
    doc: "requests of one session stay with one deployment",
    keys: &[
        key("by", Kind::Texts, "what tells sessions apart: header:NAME, user, key (header:x-session-id)"),
        key("ttl", Kind::Seconds, "how long a session is remembered (3600)"),
    ],
    warned: &[],
    refused: &[],
    open: false,
};

/// `server`.
pub static SERVER: Section = Section {
    name: "server",
    doc: "the flags of octet serve; a flag beats its key",
    keys: &[
        key("host", Kind::Text, "address to listen at (127.0.0.1)").guard(),
        key("port", Kind::Count, "port to listen at (8080)"),
        key("api_key", Kind::Secret, "a key that clients must send; or a list of them").guard(),
        key("api_key_file", Kind::Text, "a file with such keys, one a line").guard(),
        key("cors_origin", Kind::Texts, "web pages that may use the server").guard().or(&["cors_origins"]),
        key("timeout", Kind::Seconds, "longest time of a request, its answer included (3600)"),
        key("max_body", Kind::Size, "longest body of a request (32MiB)").guard(),
        key("max_connections", Kind::Count, "most connections at once (1024)").guard(),
        key("memory_limit", Kind::Size, "what all local models may take together").guard(),
        key("load_queue", Kind::Count, "requests that may wait for a local model to be loaded (64)"),
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
        key("database", Kind::Text, "the SQLite file in which they are kept; needs a master_key").guard(),
        key(
            "prices",
            Kind::Text,
            "a file of prices that beats the built-in list, in its form (docs/keys.md); none: only entries have prices",
        ),
        key("usage_days", Kind::Count, "how long the usage by day is kept (400)"),
    ],
    warned: &[],
    refused: &[],
    open: false,
};
