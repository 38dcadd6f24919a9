//! The keys of `processes`: those of a llama-swap file.

use crate::keys::{Kind, Section, key};

/// `processes`.
pub static PROCESSES: Section = Section {
    name: "processes",
    doc: "servers that are started on demand, in llama-swap's keys",
    keys: &[
        key("models", Kind::MapOf(&PROCESS), "the servers by name; clients ask for them by it"),
        key("groups", Kind::MapOf(&GROUP), "which may run at the same time"),
        key("macros", Kind::Json, "texts for ${NAME}"),
        key("healthCheckTimeout", Kind::Count, "seconds that one may take to get ready (120, at least 15)"),
        key("startPort", Kind::Count, "first port for ${PORT} (5800)"),
        key("globalTTL", Kind::Count, "ttl of models that do not say (0: for good)"),
        key("hooks", Kind::Section(&HOOKS), "what is done at the start"),
    ],
    warned: &[
        (
            &[
                "logLevel",
                "logTimeFormat",
                "logToStdout",
                "logRequests",
                "metricsMaxInMemory",
                "captureBuffer",
                "performance",
            ],
            "RUST_LOG says how much the log has",
        ),
        (&["sendLoadingState"], "nothing is put into an answer while a server starts"),
        (&["includeAliasesInList"], "aliases are always listed"),
        (&["ui"], "it does nothing here"),
    ],
    refused: &[
        (&["apiKeys"], "put the keys under server.api_key, so that they count for all models"),
        (&["peers"], "servers elsewhere are entries of model_list; `octet config import` writes them"),
        (&["matrix"], "use groups to say which may run at the same time"),
        (&["profiles"], "use groups to say which may run at the same time"),
    ],
    open: false,
};

/// An entry of `models`.
pub static PROCESS: Section = Section {
    name: "processes.models",
    doc: "a server that is started on demand",
    keys: &[
        key("cmd", Kind::Text, "the program and its arguments; no shell runs it"),
        key("cmdStop", Kind::Text, "what ends it, instead of a signal; ${PID} is its number"),
        key("proxy", Kind::Text, "where it listens (http://localhost:${PORT})"),
        key("env", Kind::Texts, "NAME=value, added to its environment"),
        key("aliases", Kind::Texts, "other names for clients"),
        key("name", Kind::Text, "for people"),
        key("description", Kind::Text, "for people"),
        key("checkEndpoint", Kind::Text, "the path that answers 200 when it is ready (/health), or none"),
        key("ttl", Kind::Number, "seconds that it stays unused (globalTTL); 0 is for good"),
        key("unloadTimeout", Kind::Count, "seconds that it may take to end before it is killed (10)"),
        key("useModelName", Kind::Text, "the model's name in requests to it"),
        key("filters", Kind::Section(&FILTERS), "parameters that are left out or set"),
        key("concurrencyLimit", Kind::Count, "most requests at once (10)"),
        key("unlisted", Kind::Bool, "leave it out of /v1/models (false)"),
        key("metadata", Kind::Json, "for clients that ask"),
        key("macros", Kind::Json, "texts for ${NAME} in this entry"),
    ],
    warned: &[
        (&["sendLoadingState"], "nothing is put into an answer while a server starts"),
        (&["timeouts"], "the timeouts of router_settings and litellm_params count"),
        (&["capabilities"], "what a model can do is found out by asking it"),
    ],
    refused: &[],
    open: false,
};

/// `filters`.
pub static FILTERS: Section = Section {
    name: "filters",
    doc: "parameters that are left out or set",
    keys: &[
        key("stripParams", Kind::Text, "parameters that are left out, with commas").or(&["strip_params"]),
        key("setParams", Kind::Json, "parameters as they are here"),
    ],
    warned: &[],
    refused: &[(
        &["setParamsByID"],
        "make an entry of model_list for each name, with model: process/ID and set_params",
    )],
    open: false,
};

/// An entry of `groups`.
pub static GROUP: Section = Section {
    name: "processes.groups",
    doc: "servers that belong together",
    keys: &[
        key("swap", Kind::Bool, "one member runs at a time (true)"),
        key("exclusive", Kind::Bool, "when one starts, those of other groups end (true)"),
        key("persistent", Kind::Bool, "other groups do not end its members (false)"),
        key("members", Kind::Texts, "names of servers"),
    ],
    warned: &[],
    refused: &[],
    open: false,
};

/// `hooks`.
pub static HOOKS: Section = Section {
    name: "hooks",
    doc: "what is done at the start",
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
