//! The file's tree as a [`Config`]. One file a section.

mod any_provider;
mod cache;
mod callbacks;
mod cascades;
mod check;
mod deployments;
mod engine;
mod hosted;
mod info;
mod ours;
mod params;
mod processes;
mod provider_table;
mod providers;
mod proxy;
mod remote;
mod router;
#[cfg(test)]
mod tests;

#[cfg(test)]
pub(crate) use provider_table::is_provider;

use crate::fields::Fields;
use crate::reader::Reader;
use crate::sections::{CREDENTIAL, CREDENTIAL_VALUES, GENERAL, KEYS, LITELLM, ROOT, ROUTER};
use crate::yaml::{Node, Value};
use crate::{Config, Secret};

/// An entry of `credential_list`.
pub(crate) struct Credential {
    pub name: String,
    pub api_base: Option<String>,
    pub api_key: Option<Secret>,
    pub api_version: Option<String>,
    pub organization: Option<String>,
}

/// Reads everything. If there are errors, the result is `None` or incomplete.
pub(crate) fn config(reader: &Reader, root: &Node) -> Option<Config> {
    let fields = Fields::new(reader, &ROOT, root)?;
    variables(&fields);
    // Read by `load`, before everything else.
    let _ = fields.get("include");
    let credentials = credentials(&fields);
    let litellm = fields.section("litellm_settings", &LITELLM);
    let general = fields.section("general_settings", &GENERAL);
    let router_fields = fields.section("router_settings", &ROUTER);
    let mut router = router::settings(router_fields.as_ref(), litellm.as_ref());
    let keys = fields.section("keys", &KEYS);
    let prices = ours::prices(keys.as_ref());
    let (processes, process_settings) = processes::read(&fields, &mut router);
    let defaults = params::Defaults {
        credentials: &credentials,
        drop_params: litellm.as_ref().and_then(|l| deployments::drop_params(l).0).unwrap_or(false),
        modify_params: litellm.as_ref().and_then(|l| l.bool("modify_params")).unwrap_or(false),
        max_parallel_requests: router_fields
            .as_ref()
            .and_then(|r| r.count("default_max_parallel_requests", 1)),
        processes: &processes,
        prices: &prices,
    };
    let (deployments, skipped) = deployments::read(&fields, &defaults);
    let mut config = Config {
        deployments,
        skipped,
        router,
        cascades: cascades::cascades(&fields),
        processes,
        process_settings,
        server: ours::server(&fields, general.as_ref()),
        keys: ours::keys(&fields, keys.as_ref(), general.as_ref(), litellm.as_ref()),
        prices,
        cache: cache::cache(litellm.as_ref()),
        callbacks: callbacks::callbacks(&fields, litellm.as_ref()),
        hooks: callbacks::hooks(&fields),
        alerts: general.as_ref().map_or(Vec::new(), callbacks::alerts),
        mcp_servers: fields
            .json_map("mcp_servers")
            .map_or(serde_json::Value::Null, serde_json::Value::Object),
        health: proxy::health(general.as_ref()),
        files: Vec::new(),
        notes: Vec::new(),
    };
    // Names that are missing because their entry is invalid are not reported twice.
    if !reader.failed() {
        check::names(reader, root, &config);
        check::known_fallbacks(&mut config);
    }
    Some(config)
}

fn variables(fields: &Fields) {
    for entry in fields.map("environment_variables").unwrap_or_default() {
        // `REDIS_PASSWORD:` without a value sets nothing.
        if entry.node.value == Value::Null {
            continue;
        }
        if let serde_json::Value::String(value) = scalar_text(fields.reader.json(&entry.node)) {
            fields.reader.set_variable(&entry.key, value);
        } else {
            fields.wrong(&entry.key, &entry.node, "a text");
        }
    }
}

/// LiteLLM converts other values to texts.
fn scalar_text(value: serde_json::Value) -> serde_json::Value {
    match value {
        serde_json::Value::Number(n) => n.to_string().into(),
        serde_json::Value::Bool(b) => if b { "True" } else { "False" }.into(),
        other => other,
    }
}

fn credentials(fields: &Fields) -> Vec<Credential> {
    let mut out: Vec<Credential> = Vec::new();
    for node in fields.list("credential_list").unwrap_or_default() {
        let Some(entry) = Fields::new(fields.reader, &CREDENTIAL, node) else { continue };
        let _ = entry.get("credential_info"); // for people
        let Some(name) = entry.name("credential_name") else {
            fields.reader.wrong(&node.span, "an entry of credential_list needs a credential_name");
            continue;
        };
        let Some(values) = entry.section("credential_values", &CREDENTIAL_VALUES) else { continue };
        if out.iter().any(|c| c.name == name) {
            fields.reader.wrong(&node.span, format!("credential_name '{name}' is listed twice"));
        }
        // Deployments that use it are left out if its key is not set; here that is only noted.
        let (credential, missing) = fields.reader.leaving_out(|| Credential {
            name,
            api_base: values.text("api_base"),
            api_key: values.secret("api_key"),
            api_version: values.header("api_version"),
            organization: values.header("organization"),
        });
        for reason in missing {
            fields.reader.note(&node.span, "credential_list", reason);
        }
        out.push(credential);
    }
    out
}
