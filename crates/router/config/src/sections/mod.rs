//! Every key of the file, and how it is handled. Docs/router-keys.md is generated from it.

mod cache;
mod callbacks;
mod deployment;
mod general;
mod litellm;
mod ours;
mod processes;
mod router;

pub(crate) use cache::CACHE;
pub(crate) use callbacks::{CALLBACK, HOOK};
pub(crate) use deployment::{
    BODY_KEYS, CREDENTIAL, CREDENTIAL_VALUES, ENGINE_KEYS, MODEL, MODEL_INFO, OLLAMA_OPTIONS, PARAMS,
    SAMPLING,
};
pub(crate) use general::GENERAL;
pub(crate) use litellm::{KEY_BOUNDS, KEY_PARAMS, LITELLM, TEAM_PARAMS, USER_PARAMS, USER_TEAM};
pub(crate) use ours::{CASCADE, CONFIDENCE, KEYS, PREROUTER, RULE, SERVER, STICKY};
pub(crate) use processes::{FILTERS, GROUP, HOOKS, ON_STARTUP, PROCESS, PROCESSES};
pub(crate) use router::{ALLOWED_FAILS_POLICY, RETRY_POLICY, ROUTER, STRATEGY_ARGS};

use crate::keys::{Kind, Section, Verdict, key};

/// The file.
pub static ROOT: Section = Section {
    name: "the file",
    doc: "Octet's configuration, which may also be LiteLLM's config.yaml",
    keys: &[
        key("model_list", Kind::List(&MODEL), "the models; entries of one model_name are one group"),
        key(
            "router_settings",
            Kind::Section(&ROUTER),
            "how a deployment is chosen, and what happens when it fails",
        ),
        key(
            "litellm_settings",
            Kind::Section(&LITELLM),
            "LiteLLM's settings; router_settings take precedence",
        )
        .guard(),
        key("general_settings", Kind::Section(&GENERAL), "LiteLLM's settings of the proxy").guard(),
        key(
            "environment_variables",
            Kind::TextMap,
            "variables for os.environ/NAME; they take precedence over the process's",
        ),
        key(
            "include",
            Kind::Texts,
            "further files, relative to this file's folder; their lists are added, their other keys take precedence",
        ),
        key(
            "hooks",
            Kind::List(&HOOK),
            "servers that see each request or answer, and may change or refuse it",
        )
        .guard(),
        key("callback_settings", Kind::MapOf(&CALLBACK), "named webhooks, for litellm_settings.callbacks"),
        key(
            "credential_list",
            Kind::List(&CREDENTIAL),
            "named keys and addresses, for litellm_credential_name",
        ),
        key(
            "cascades",
            Kind::List(&CASCADE),
            "names that a fast model answers, or a strong one if necessary",
        )
        .guard(),
        key(
            "processes",
            Kind::Section(&PROCESSES),
            "servers that are started on demand, in llama-swap's keys",
        ),
        key(
            "server",
            Kind::Section(&SERVER),
            "the flags of octet serve; a flag takes precedence over its key",
        )
        .guard(),
        key("keys", Kind::Section(&KEYS), "virtual keys and budgets").guard(),
        key(
            "mcp_servers",
            Kind::Json,
            "MCP servers for the chat page's tools, by name: command, args, env, or url, headers; as in a file of mcpServers",
        ),
    ],
    warned: &[
        (&["mcp_tools", "mcp_semantic_tool_filter"], "not supported: clients connect to MCP servers"),
        (
            &[
                "vector_store_registry",
                "search_tools",
                "assistant_settings",
                "files_settings",
                "finetune_settings",
                "prompts",
                "agents",
                "agent_list",
                "sandbox_tools",
                "pass_through_endpoints",
            ],
            "this service of LiteLLM's proxy is not supported",
        ),
        (
            &["classifier_plugin"],
            "Python plugins are not supported; use the rules of a cascade (docs/routing.md)",
        ),
        (
            &["default_vertex_config"],
            "set vertex_project, vertex_location and vertex_credentials in the entry, or VERTEXAI_PROJECT",
        ),
        (
            &["worker_registry", "proxy_batch_write_at"],
            "the server is one process: there are no workers to coordinate",
        ),
    ],
    refused: &[
        (
            &["guardrails", "policies", "policy_attachments"],
            "guardrails are not supported: put a filter in front, or use the provider's",
        ),
        (&["plugins"], "Python plugins are not supported, and a plugin may refuse requests"),
    ],
    open: false,
};

/// All sections.
pub(crate) fn all() -> Vec<&'static Section> {
    fn add(section: &'static Section, out: &mut Vec<&'static Section>) {
        if out.iter().any(|s| s.name == section.name) {
            return;
        }
        out.push(section);
        for key in section.keys {
            if let Kind::Section(inner) | Kind::List(inner) | Kind::MapOf(inner) = key.kind {
                add(inner, out);
            }
        }
    }
    let mut out = Vec::new();
    add(&ROOT, &mut out);
    out
}

/// Whether `section.key` has no effect here.
pub(crate) fn is_unused(path: &str) -> bool {
    all().iter().any(|s| {
        let inner = path.strip_prefix(s.name).and_then(|p| p.strip_prefix('.'));
        let key = if s.name == ROOT.name { Some(path).filter(|p| !p.contains('.')) } else { inner };
        key.is_some_and(|k| !s.open && s.verdict(k) != Verdict::Honoured)
    })
}

/// The right section of a key that is in the wrong one of LiteLLM's sections.
pub(crate) fn place(section: &Section, name: &str) -> Option<&'static str> {
    let all: [&Section; 5] = [&GENERAL, &LITELLM, &ROUTER, &PARAMS, &MODEL_INFO];
    if !all.iter().any(|s| s.name == section.name) {
        return None;
    }
    // Facts about a model that this program does not read belong there too.
    let is_fact = |s: &Section| s.name == MODEL_INFO.name && name.starts_with("supports_");
    let has = |s: &Section| s.key(name).is_some() || is_fact(s);
    all.into_iter().find(|s| s.name != section.name && has(s)).map(|s| s.name)
}
