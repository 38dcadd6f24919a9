//! A deployment on another server: its address, its key and its provider's quirks.

use super::params::{Defaults, continues, provider_params};
use super::providers::{self, Known, Quirk};
use super::{Credential, hosted};
use crate::fields::Fields;
use crate::problem::quoted;
use crate::reader::Reader;
use crate::yaml::Value;
use crate::{Changes, Provider, Remote, ResponsesUse, Secret, Span, header};

/// Reads it; `None` if it is invalid or left out, which was reported.
pub(crate) fn read(
    params: &Fields,
    model: &str,
    mut changes: Changes,
    defaults: &Defaults,
) -> Option<Remote> {
    let reader = params.reader;
    let span = params.get("model").map_or(params.span, |n| &n.span);
    let (known, model) = known_provider(params, model, span)?;
    let word = without_word(known.provider, model);
    let chats = word.is_some_and(|(word, _)| word == "responses");
    let model = word.map_or(model, |(_, rest)| rest);
    let credential = credential(params, defaults);
    let route = or_left_out(reader, span, hosted::route(params, known.provider, known.prefix, model))?;
    let own_base = params.name("api_base").or_else(|| credential?.api_base.clone()).or(route.base);
    // A provider's key from a variable is not sent to another address.
    let elsewhere = own_base.is_some() && known.base.is_some();
    let base = own_base.or_else(|| known.base_variables.iter().find_map(|v| reader.variable(v)));
    let base = match (base, known.base) {
        (Some(base), _) => base,
        (None, Some(theirs)) => filled(reader, params, theirs, route.region.as_deref())?,
        (None, None) => {
            let variable = known.base_variables.first().map_or(String::new(), |v| format!(" (or set {v})"));
            let what =
                format!("{}/{model} needs an api_base: the base URL of its API{variable}", known.prefix);
            reader.unfit(span, what);
            return None;
        }
    };
    let api_base = with_path(address(params, &base)?, &route.path);
    let api_key = key(params, known, credential, elsewhere);
    let provider = match route.provider {
        Provider::OpenAi if !api_base.starts_with("https://api.openai.com/") => Provider::OpenAiCompatible,
        provider => provider,
    };
    // Models of other publishers at Vertex AI have OpenAI's API and Google's tokens.
    let account = if known.provider == Provider::Vertex { known.provider } else { provider };
    let auth = or_left_out(reader, span, hosted::auth(params, account, route.region, api_key.is_some()))?;
    let mut extra_headers = headers(params);
    let model = quirks(known, &route.model, api_key.as_ref(), &mut changes, &mut extra_headers);
    let api_version = params.header("api_version").or_else(|| credential?.api_version.clone());
    provider_params(params, provider, &mut changes);
    Some(Remote {
        provider,
        model,
        api_base,
        api_key,
        organization: params.header("organization").or_else(|| credential?.organization.clone()),
        api_version: match provider {
            Provider::AzureOpenAi => api_version.or_else(|| reader.variable("AZURE_API_VERSION")),
            _ => api_version,
        },
        extra_headers,
        auth,
        family: String::new(),
        responses: match known.has(Quirk::SpeaksResponses) && !elsewhere {
            _ if chats => ResponsesUse::Chats,
            true => ResponsesUse::Same,
            false => ResponsesUse::None,
        },
        continues: continues(params, provider, known.continues(), &changes),
        changes,
    })
}

/// The provider of a model's name, and the name without it.
fn known_provider<'m>(params: &Fields, model: &'m str, span: &Span) -> Option<(&'static Known, &'m str)> {
    match providers::split(model, params.name("custom_llm_provider").as_deref()) {
        Ok(found) => Some(found),
        Err(providers::Unknown::Mistyped(why)) => {
            params.reader.wrong(span, format!("litellm_params.model: {why}"));
            None
        }
        Err(providers::Unknown::NotSpoken(why)) => {
            params.reader.unfit(span, why);
            None
        }
    }
}

/// The value, or a report that the entry is left out.
fn or_left_out<V>(reader: &Reader, span: &Span, value: Result<V, String>) -> Option<V> {
    value.map_err(|why| reader.unfit(span, why)).ok()
}

/// The key of an entry: its own, its credential's, or the provider's variable. A variable that is not set is reported, unless the
/// provider works without a key.
fn key(params: &Fields, known: &Known, credential: Option<&Credential>, elsewhere: bool) -> Option<Secret> {
    let reader = params.reader;
    let has_own = params.has("api_key");
    let own_key = params.secret("api_key");
    let own_key = own_key.or_else(|| credential?.api_key.clone());
    let given = has_own || credential.is_some_and(|c| c.api_key.is_some());
    if given || elsewhere {
        return own_key;
    }
    let found = known.key_variables.iter().find_map(|v| Some((v, reader.variable(v)?)));
    let found = found.and_then(|(variable, key)| {
        let key = Secret::new(&key)?;
        let what = format!("the environment variable {variable}");
        reader.sendable(params.span, &what, key.expose()).then_some(key)
    });
    if let (None, Some(first), true) = (
        &found,
        known.key_variables.first(),
        known.provider != Provider::Bedrock
            && (known.base.is_some()
                || known.provider == Provider::AzureOpenAi
                    && hosted::entra(params).is_ok_and(|application| application.is_none())),
    ) {
        reader.lacks(params.span, first);
    }
    found
}

/// An address with its region and variables filled in. `None` if one is not set, which was reported.
fn filled(reader: &Reader, params: &Fields, base: &str, region: Option<&str>) -> Option<String> {
    let (Some(start), Some(end)) = (base.find('{'), base.find('}')) else { return Some(base.into()) };
    let name = &base[start + 1..end];
    let value = if name == "REGION" { region.map(String::from) } else { reader.variable(name) };
    let Some(value) = value else {
        reader.lacks(params.span, name);
        return None;
    };
    Some(format!("{}{value}{}", &base[..start], &base[end + 1..]))
}

/// The word and the model of `openai/responses/o3-pro` or `azure/o_series/NAME`: the word selects an API in LiteLLM's proxy, and is not
/// part of the name.
pub fn without_word(provider: Provider, model: &str) -> Option<(&str, &str)> {
    let (word, rest) = model.split_once('/').filter(|(_, rest)| !rest.is_empty())?;
    let is_word = match provider {
        Provider::OpenAi => word == "responses",
        Provider::AzureOpenAi => matches!(word, "responses" | "o_series" | "gpt5_series"),
        _ => false,
    };
    is_word.then_some((word, rest))
}

/// Applies a provider's quirks; returns the model's name at the provider.
fn quirks(
    known: &Known,
    model: &str,
    key: Option<&Secret>,
    changes: &mut Changes,
    headers: &mut Vec<(String, Secret)>,
) -> String {
    let mut model = model.to_string();
    for quirk in known.quirks {
        match *quirk {
            Quirk::MaxTokens => {
                let rename = &mut changes.edits.rename;
                if !rename.iter().any(|(from, _)| from == "max_completion_tokens") {
                    rename.push(("max_completion_tokens".into(), "max_tokens".into()));
                }
            }
            Quirk::KeyHeader(name) => headers.extend(key.map(|key| (name.to_string(), key.clone()))),
            Quirk::RouterSuffix => {
                if let Some((server, rest)) = model.split_once('/').filter(|(_, rest)| rest.contains('/')) {
                    model = format!("{rest}:{server}");
                }
            }
            Quirk::SpeaksResponses => {}
        }
    }
    model
}

fn credential<'a>(params: &Fields, defaults: &Defaults<'a>) -> Option<&'a Credential> {
    let name = params.name("litellm_credential_name")?;
    let found = defaults.credentials.iter().find(|c| c.name == name);
    if found.is_none() {
        let near = crate::problem::nearest(&name, defaults.credentials.iter().map(|c| c.name.as_str()));
        let near = near.map_or(String::new(), |n| format!(" (did you mean '{n}'?)"));
        let span = params.get("litellm_credential_name").map_or(params.span, |n| &n.span);
        params.reader.wrong(span, format!("credential_list has no entry {}{near}", quoted(&name)));
    }
    found
}

/// An address with the path of a cloud's project. It may have one, as far as the model, as LiteLLM takes them.
fn with_path(address: String, path: &str) -> String {
    let Some((_, own)) = path.split_once("/locations/") else { return address + path };
    let Some((before, project)) = address.split_once("/projects/") else { return address + path };
    let Some((project, location)) = project.split_once("/locations/") else { return address + path };
    let location = location.split('/').next().unwrap_or_default();
    let after = own.split_once('/').map_or(String::new(), |(_, after)| format!("/{after}"));
    format!("{before}/projects/{project}/locations/{location}{after}")
}

/// Whether the host of an address is a name that ends in a number, such as `qwen3.6`: names of services may, in a container's network.
/// Names with dots that consist of numbers alone are addresses with a typing error.
fn is_named(base: &str) -> bool {
    let Some((scheme, rest)) = base.split_once("://") else { return false };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let (host, port) = authority.split_once(':').unwrap_or((authority, "80"));
    matches!(scheme, "http" | "https")
        && host.contains(|c: char| c.is_ascii_alphabetic())
        && host.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'))
        && !host.starts_with("0x")
        && port.parse::<u16>().is_ok()
        && !path.contains(['?', '#', '@', ' '])
}

/// An address without its final slash.
fn address(params: &Fields, base: &str) -> Option<String> {
    let span = params.get("api_base").map_or(params.span, |n| &n.span);
    let wrong = |why: &str| {
        params.reader.wrong(span, format!("api_base {why}: use a URL like http://127.0.0.1:8000/v1"));
        None
    };
    match url::Url::parse(base) {
        Err(url::ParseError::InvalidIpv4Address) if is_named(base) => {
            Some(base.trim_end_matches('/').to_string())
        }
        Ok(url) if !matches!(url.scheme(), "http" | "https") => {
            let why = "api_base starts with neither http:// nor https://";
            params.reader.unfit(span, format!("{why}: use a URL like http://127.0.0.1:8000/v1"));
            None
        }
        // Not quoted: it contains a password.
        Ok(url) if !url.username().is_empty() || url.password().is_some() => {
            wrong("contains a password, which belongs in api_key")
        }
        Ok(url) if url.query().is_some() || url.fragment().is_some() => wrong("contains a '?' or '#'"),
        Ok(url) => Some(url.as_str().trim_end_matches('/').to_string()),
        // Usually a placeholder.
        Err(e) => {
            let way = match params.get("api_base").map(|n| &n.value) {
                Some(Value::Text(text)) if text.contains("${") => {
                    "a variable is written os.environ/NAME, not ${NAME}".into()
                }
                Some(Value::Text(text)) if text.starts_with("os.environ/") => {
                    format!("set {} to one like http://127.0.0.1:8000/v1", &text["os.environ/".len()..])
                }
                _ => "use one like http://127.0.0.1:8000/v1".into(),
            };
            params.reader.unfit(span, format!("api_base is not a valid URL ({e}): {way}"));
            None
        }
    }
}

fn headers(params: &Fields) -> Vec<(String, Secret)> {
    let mut out = Vec::new();
    for entry in params.map("extra_headers").unwrap_or_default() {
        if let Some(why) = header::wrong_name(&entry.key) {
            params.reader.wrong(&entry.span, format!("extra_headers: {} {why}", quoted(&entry.key)));
            continue;
        }
        let value = match &entry.node.value {
            Value::Text(t) => {
                let what = format!("the value of {}", quoted(&entry.key));
                params.reader.secret(&entry.node.span, &what, t)
            }
            Value::Int(i) => Secret::new(&i.to_string()),
            Value::Bool(b) => Secret::new(&b.to_string()),
            _ => {
                params.wrong("extra_headers", &entry.node, "a text");
                None
            }
        };
        out.extend(value.map(|value| (entry.key.clone(), value)));
    }
    out
}
