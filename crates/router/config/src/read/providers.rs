//! The provider of a model's name.

use super::provider_table::{KNOWN, OTHERS};
pub(crate) use super::provider_table::{Known, Quirk};
use crate::problem::mistyped;

/// The provider of this name.
pub(crate) fn known(prefix: &str) -> Option<&'static Known> {
    KNOWN.iter().find(|k| k.prefix == prefix)
}

/// Why a model's name has no known provider: a message for the user.
pub(crate) enum Unknown {
    /// It is probably a typing error.
    Mistyped(String),
    /// The provider is unsupported or unknown: the entry is left out.
    NotSpoken(String),
}

use Unknown::{Mistyped, NotSpoken};

/// The provider and the rest of a model's name: `openai/gpt-4o`. `stated` is `custom_llm_provider`.
pub(crate) fn split<'a>(model: &'a str, stated: Option<&str>) -> Result<(&'static Known, &'a str), Unknown> {
    if let Some(stated) = stated {
        let rest = model.strip_prefix(stated).and_then(|m| m.strip_prefix('/')).unwrap_or(model);
        return known(stated).map(|k| (k, rest)).ok_or_else(|| unknown(stated));
    }
    match model.split_once('/') {
        Some((prefix, rest)) => match known(prefix) {
            Some(_) if rest.is_empty() => Err(NotSpoken(format!("'{model}' has no model after the slash"))),
            Some(k) => Ok((k, rest)),
            None => Err(unknown(prefix)),
        },
        None => inferred(model).map(|k| (k, model)).ok_or_else(|| {
            let here = "octet/NAME is a local model, hosted_vllm/NAME with api_base one of your own server";
            NotSpoken(format!(
                "'{model}' has no provider: write it before the name, like openai/{model}; {here}"
            ))
        }),
    }
}

/// Prefixes of models that LiteLLM knows without a provider, and their providers.
pub(crate) const INFERRED: &[(&str, &str)] = &[
    ("gpt-", "openai"),
    ("chatgpt-", "openai"),
    ("o1", "openai"),
    ("o3", "openai"),
    ("o4", "openai"),
    ("text-embedding-", "openai"),
    ("davinci-", "openai"),
    ("babbage-", "openai"),
    ("ft:gpt-", "openai"),
    ("dall-e-", "openai"),
    ("whisper-1", "openai"),
    ("tts-1", "openai"),
    ("omni-moderation-", "openai"),
    ("claude-", "anthropic"),
    ("gemini-", "vertex_ai"),
    ("anthropic.claude-", "bedrock"),
    ("us.anthropic.claude-", "bedrock"),
    ("eu.anthropic.claude-", "bedrock"),
    ("apac.anthropic.claude-", "bedrock"),
    ("global.anthropic.claude-", "bedrock"),
    ("amazon.", "bedrock"),
    ("us.amazon.", "bedrock"),
    ("eu.amazon.", "bedrock"),
    ("apac.amazon.", "bedrock"),
    ("meta.llama", "bedrock"),
    ("us.meta.llama", "bedrock"),
    ("mistral.", "bedrock"),
    ("cohere.command-", "bedrock"),
    ("ai21.", "bedrock"),
    ("command-", "cohere"),
];

/// The provider of a model without one.
fn inferred(model: &str) -> Option<&'static Known> {
    let (_, prefix) = INFERRED.iter().find(|(begin, _)| model.starts_with(begin))?;
    known(prefix)
}

fn unknown(prefix: &str) -> Unknown {
    if prefix == "auto_router" {
        let text = "LiteLLM's automatic routers are not supported: use a cascade, which chooses a fast or a strong group \
                    by rules and confidence (docs/routing.md)";
        return NotSpoken(text.into());
    }
    if OTHERS.contains(&prefix) {
        return NotSpoken(format!(
            "the API of the provider '{prefix}' is not supported; if it has an OpenAI-compatible one, use \
             openai_like/MODEL with api_base and api_key"
        ));
    }
    let names = || KNOWN.iter().map(|k| k.prefix).chain(["octet", "process"]);
    match mistyped(prefix, names()) {
        Some(near) => Mistyped(format!("unknown provider '{prefix}': did you mean '{near}'?")),
        None => NotSpoken(format!(
            "unknown provider '{prefix}'; for an OpenAI-compatible server use openai_like/MODEL or hosted_vllm/MODEL with \
             api_base (docs/providers.md lists the providers)"
        )),
    }
}
