//! An entry whose model is `*`: all models of the provider in its name.

use super::provider_table::KNOWN;
use super::providers::{INFERRED, known};
use crate::reader::Reader;
use crate::yaml::{Node, Value};

/// The deployments of an entry of `model_list`.
pub(crate) enum Entries {
    /// Just this entry.
    One,
    /// These entries, one for each available provider.
    Each(Vec<Node>),
    /// It is left out, for this reason.
    None(String),
}

/// Creates an entry for each provider of an entry with the model `*`, except for names that other entries have (`taken`): an entry of the
/// file is not combined with a generated one.
pub(crate) fn expand(reader: &Reader, node: &Node, taken: &dyn Fn(&str) -> bool) -> Entries {
    let text = |keys: &[&str]| match &value(node, keys)?.value {
        Value::Text(text) => reader.resolve(&node.span, text),
        _ => None,
    };
    if text(&["litellm_params", "model"]).as_deref() != Some("*") {
        return Entries::One;
    }
    let Some(group) = text(&["model_name"]) else { return Entries::One };
    if !group.contains('*') {
        return Entries::None("model: '*' stands for the requested name: set model_name: '*' too".into());
    }
    let with = |name: &str, model: &str| {
        let mut copy = node.clone();
        set(&mut copy, &["model_name"], group.replacen('*', name, 1));
        set(&mut copy, &["litellm_params", "model"], model.into());
        copy
    };
    let has = |key: &str| value(node, &["litellm_params", key]).is_some_and(|n| n.value != Value::Null);
    if has("api_base") || has("base_url") {
        return Entries::Each(vec![with("*", "custom_openai/*")]);
    }
    // A key in the entry is not sent to all providers: a model without a provider is OpenAI's.
    let own_key = has("api_key") || has("litellm_credential_name");
    let ready = |prefix: &str| {
        let Some(provider) = known(prefix) else { return false };
        let set = |names: &[&str]| names.iter().any(|v| reader.variable(v).is_some());
        let is_open = provider.key_variables.is_empty() && set(provider.base_variables);
        if own_key {
            prefix == "openai"
        } else {
            set(provider.key_variables) && provider.base.is_some() || is_open
        }
    };
    let prefixes = KNOWN.iter().map(|k| k.prefix).filter(|p| ready(p));
    let mut out: Vec<Node> = prefixes.map(|p| with(&format!("{p}/*"), &format!("{p}/*"))).collect();
    for (begin, prefix) in INFERRED.iter().filter(|(_, prefix)| ready(prefix)) {
        out.push(with(&format!("{begin}*"), &format!("{prefix}/{begin}*")));
    }
    if out.is_empty() {
        return Entries::None("no provider's key is set, like OPENAI_API_KEY".into());
    }
    out.retain(|made| !name(made).is_some_and(taken));
    Entries::Each(out)
}

/// The `model_name` of an entry.
pub(crate) fn name(node: &Node) -> Option<&str> {
    match &value(node, &["model_name"])?.value {
        Value::Text(text) => Some(text),
        _ => None,
    }
}

fn value<'a>(node: &'a Node, keys: &[&str]) -> Option<&'a Node> {
    let Some((key, rest)) = keys.split_first() else { return Some(node) };
    let Value::Map(entries) = &node.value else { return None };
    value(&entries.iter().find(|e| e.key == *key)?.node, rest)
}

fn set(node: &mut Node, keys: &[&str], text: String) {
    let Some((key, rest)) = keys.split_first() else {
        node.value = Value::Text(text);
        return;
    };
    let Value::Map(entries) = &mut node.value else { return };
    if let Some(entry) = entries.iter_mut().find(|e| e.key == *key) {
        set(&mut entry.node, rest, text);
    }
}
