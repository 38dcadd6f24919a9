//! The keys of `processes`: those of a llama-swap file.

use crate::keys::{Kind, Section, key};

/// `processes`.
pub static PROCESSES: Section = Section {
    name: "processes",
    doc: "servers that are started on demand, in llama-swap's keys",
    keys: &[
        key("models", Kind::MapOf(&PROCESS), "the servers by name, which clients use"),
        key("groups", Kind::MapOf(&GROUP), "which may run at the same time"),
        key("macros", Kind::Json, "texts for ${NAME}"),
        key("healthCheckTimeout", Kind::Count, "seconds to become ready (120, at least 15)"),
        key("startPort", Kind::Count, "first port for ${PORT} (5800)"),
        key("globalTTL", Kind::Count, "default ttl of models (0: they are never stopped)"),
        key("hooks", Kind::Section(&HOOKS), "actions at the start"),
    ],
    warned: &[
        (
            &["logLevel", "logTimeFormat", "logToStdout", "logRequests"],
            "RUST_LOG sets the log level; the servers' output is part of the log",
        ),
        (
            &["metricsMaxInMemory", "captureBuffer", "performance"],
            "the figures of requests are at /metrics, and the last requests at /admin",
        ),
        (&["sendLoadingState"], "no loading messages are sent while a server starts"),
        (&["includeAliasesInList"], "aliases are always listed"),
        (&["ui"], "it has no effect here"),
    ],
    refused: &[
        (&["apiKeys"], "use server.api_key, which applies to all models"),
        (&["peers"], "remote servers are entries of model_list; `octet config import` writes them"),
        (&["matrix"], "use groups"),
        (&["profiles"], "use groups"),
    ],
    open: false,
};

/// An entry of `models`.
pub static PROCESS: Section = Section {
    name: "processes.models",
    doc: "a server that is started on demand",
    keys: &[
        key("cmd", Kind::Text, "the program and its arguments; no shell runs it"),
        key(
            "cmdStop",
            Kind::Text,
            "the command that stops it, instead of a signal; ${PID} is its process id",
        ),
        key("proxy", Kind::Text, "the address at which it listens (http://localhost:${PORT})"),
        key("env", Kind::Texts, "NAME=value, added to its environment"),
        key("aliases", Kind::Texts, "other names for clients"),
        key("name", Kind::Text, "for people"),
        key("description", Kind::Text, "for people"),
        key("checkEndpoint", Kind::Text, "the path that returns 200 when it is ready (/health), or none"),
        key("ttl", Kind::Number, "idle seconds before it is stopped (globalTTL); 0: never"),
        key("unloadTimeout", Kind::Count, "seconds to stop before it is killed (10)"),
        key("useModelName", Kind::Text, "the model's name in requests to it"),
        key("filters", Kind::Section(&FILTERS), "changes of requests"),
        key("concurrencyLimit", Kind::Count, "maximum concurrent requests (10)"),
        key("unlisted", Kind::Bool, "do not list it in /v1/models (false)"),
        key("metadata", Kind::Json, "for clients of /v1/models"),
        key("macros", Kind::Json, "texts for ${NAME} in this entry"),
    ],
    warned: &[
        (&["sendLoadingState"], "no loading messages are sent while a server starts"),
        (&["timeouts"], "use the timeouts of router_settings and litellm_params"),
        (&["capabilities"], "lists of models have metadata, and what a client asks for is passed on"),
    ],
    refused: &[],
    open: false,
};

/// `filters`.
pub static FILTERS: Section = Section {
    name: "filters",
    doc: "changes of requests",
    keys: &[
        key("stripParams", Kind::Text, "dropped parameters, separated by commas").or(&["strip_params"]),
        key("setParams", Kind::Json, "parameters that take precedence over the client"),
        key(
            "setParamsByID",
            Kind::Json,
            "names for clients, each with parameters that take precedence over those: {'${MODEL_ID}:high': {reasoning_effort: high}}",
        ),
    ],
    warned: &[],
    refused: &[],
    open: false,
};

/// An entry of `groups`.
pub static GROUP: Section = Section {
    name: "processes.groups",
    doc: "servers that belong together",
    keys: &[
        key("swap", Kind::Bool, "one member runs at a time (true)"),
        key("exclusive", Kind::Bool, "when one starts, those of other groups are stopped (true)"),
        key("persistent", Kind::Bool, "other groups do not stop its members (false)"),
        key("members", Kind::Texts, "names of servers"),
    ],
    warned: &[],
    refused: &[],
    open: false,
};

/// `hooks`.
pub static HOOKS: Section = Section {
    name: "hooks",
    doc: "actions at the start",
    keys: &[key("on_startup", Kind::Section(&ON_STARTUP), "at the start")],
    warned: &[],
    refused: &[],
    open: false,
};

/// `hooks.on_startup`.
pub static ON_STARTUP: Section = Section {
    name: "on_startup",
    doc: "at the start",
    keys: &[key("preload", Kind::Texts, "servers that are started with the router")],
    warned: &[],
    refused: &[],
    open: false,
};
