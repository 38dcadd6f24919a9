//! The configuration's information about models, in the shape of LiteLLM's `/model/info`.

use octet_config::Mode;
use octet_router::Resolved;
use serde_json::{Map, Value, json};

use super::auth::About;
use super::caller::Caller;
use super::{Current, Gateway};

impl Gateway {
    /// The deployments of all names that `caller` may use. Addresses and keys are left out.
    pub fn model_info(&self, caller: &Caller) -> Value {
        let (table, current) = (self.router().table(), self.current());
        let mut out = Vec::new();
        for name in table.names() {
            if current.unlisted.contains(name) || !self.may_use(caller, name) {
                continue;
            }
            let Resolved::Group { group, .. } = table.resolve(name) else {
                out.push(entry(name, name, Map::new()));
                continue;
            };
            for d in &group.deployments {
                let info = deployment_info(&current, d.id(), d.terms.window_tokens);
                let model = octet_router::Target::model(&d.target);
                // With its provider, as in LiteLLM's proxy and its file.
                let written = current.about.get(d.id()).map(|about| about.info.written.as_str());
                out.push(entry(name, written.filter(|w| !w.is_empty()).unwrap_or(model), info));
            }
        }
        json!({"data": out})
    }
}

fn entry(name: &str, model: &str, info: Map<String, Value>) -> Value {
    json!({"model_name": name, "litellm_params": {"model": model}, "model_info": info})
}

/// The information about a deployment; absent values are left out.
fn deployment_info(current: &Current, id: &str, window_tokens: Option<u64>) -> Map<String, Value> {
    let Some(About { info, .. }) = current.about.get(id) else { return Map::new() };
    // Known fields take precedence over other keys of the same name.
    let mut out = info.other.clone();
    let mut set = |name: &str, value: Value| {
        if !value.is_null() {
            out.insert(name.into(), value);
        }
    };
    set("id", id.into());
    let mode = match info.mode {
        Mode::Chat => "chat",
        Mode::Completion => "completion",
        Mode::Embedding => "embedding",
        Mode::Passed(mode) => mode,
    };
    set("mode", mode.into());
    set("base_model", info.base_model.clone().into());
    set("max_input_tokens", info.max_input_tokens.or(window_tokens).into());
    set("max_output_tokens", info.max_output_tokens.into());
    set("input_cost_per_token", info.input_cost_per_token.into());
    set("output_cost_per_token", info.output_cost_per_token.into());
    set("cache_read_input_token_cost", info.cached_input_cost_per_token.into());
    set("cache_creation_input_token_cost", info.cache_write_cost_per_token.into());
    set("supports_vision", info.supports_vision.into());
    set("supports_function_calling", info.supports_function_calling.into());
    set("supports_reasoning", info.supports_reasoning.into());
    if !info.access_groups.is_empty() {
        set("access_groups", info.access_groups.clone().into());
    }
    out
}
