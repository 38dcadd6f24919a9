//! Parts of `litellm_params` that targets of several kinds share.

use serde_json::{Map, Value as Json, json};

use super::{Credential, engine};
use crate::fields::Fields;
use crate::sections::{BODY_KEYS, OLLAMA_OPTIONS};
use crate::{Changes, PriceList, Process, Provider, Target};

/// Settings of all entries, and the entries of other sections that they refer to.
pub(crate) struct Defaults<'a> {
    pub credentials: &'a [Credential],
    pub drop_params: bool,
    pub modify_params: bool,
    pub max_parallel_requests: Option<u32>,
    /// Default prices.
    pub prices: &'a PriceList,
    pub processes: &'a [Process],
}

/// Reads parameters that only some providers have.
pub(super) fn provider_params(params: &Fields, provider: Provider, changes: &mut Changes) {
    let reader = params.reader;
    engine::ignore(params, provider);
    if provider == Provider::Ollama {
        let tokens: Option<u64> = params.count("num_ctx", 1);
        if let Some(tokens) = tokens {
            option(changes, "num_ctx", tokens.into());
        }
        if let Some(node) = params.get("keep_alive") {
            changes.extra_body.entry("keep_alive").or_insert_with(|| reader.json(node));
        }
    }
    if let Some(node) = params.get("web_search_options") {
        if has_openais_form(provider) {
            changes.extra_body.entry("web_search_options").or_insert_with(|| reader.json(node));
        } else {
            let text = format!("ignored: {} has no such parameter", provider.name());
            reader.note(&node.span, "litellm_params.web_search_options", text);
        }
    }
    let of_ollama = OLLAMA_OPTIONS.iter().map(|name| (*name, true));
    for (name, is_option) in BODY_KEYS.iter().map(|name| (*name, false)).chain(of_ollama) {
        let Some(node) = params.get(name) else { continue };
        match provider {
            Provider::Ollama if is_option => option(changes, name, reader.json(node)),
            _ if has_openais_form(provider) => {} // see `body_defaults`
            _ => {
                let text = format!("ignored: {} has no such parameter", provider.name());
                reader.note(&node.span, format!("litellm_params.{name}"), text);
            }
        }
    }
}

fn has_openais_form(provider: Provider) -> bool {
    matches!(provider, Provider::OpenAi | Provider::AzureOpenAi | Provider::OpenAiCompatible)
}

/// Defaults of requests that only providers with OpenAI's form of them have, as they are.
pub(super) fn body_defaults(params: &Fields, target: &Target) -> Map<String, Json> {
    let Target::Remote(far) = target else { return Map::new() };
    let names = BODY_KEYS.iter().chain(OLLAMA_OPTIONS).filter(|_| has_openais_form(far.provider));
    names.filter_map(|name| Some((name.to_string(), params.reader.json(params.get(name)?)))).collect()
}

/// Sets one of Ollama's options, unless `extra_body` has it.
fn option(changes: &mut Changes, name: &str, value: Json) {
    if let Json::Object(options) = changes.extra_body.entry("options").or_insert_with(|| json!({})) {
        options.entry(name).or_insert(value);
    }
}

/// Whether a server can continue an assistant message. Not if the configuration changes the fields that request it: the server would
/// start a new answer in the middle of one.
pub(super) fn continues(params: &Fields, provider: Provider, usual: bool, changes: &Changes) -> bool {
    let given = params.bool("continues");
    if given == Some(true) && provider != Provider::OpenAiCompatible {
        let span = params.get("continues").map_or(params.span, |n| &n.span);
        let text = format!("ignored: {} cannot continue a message", provider.name());
        params.reader.note(span, "litellm_params.continues", text);
        return false;
    }
    let edits = &changes.edits;
    let asks = |name: &String| matches!(name.as_str(), "continue_final_message" | "add_generation_prompt");
    let renamed = edits.rename.iter().flat_map(|(from, to)| [from, to]);
    let mut changed =
        edits.drop.iter().chain(edits.set.keys()).chain(changes.extra_body.keys()).chain(renamed);
    given.unwrap_or(usual) && !changed.any(asks)
}
