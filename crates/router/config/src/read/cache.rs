//! LiteLLM's response cache.

use std::time::Duration;

use crate::fields::Fields;
use crate::problem::quoted;
use crate::sections::CACHE;
use crate::yaml::Value;
use crate::{CacheStore, CachedCalls, RedisServer, ResponseCache, Secret};

/// Default maximum size of all answers in memory.
const MEMORY_BYTES: u64 = 64 << 20;
/// Default maximum number of messages: long conversations are rarely repeated.
const MESSAGES_MAX: usize = 4;
const REDIS_PORT: u16 = 6379;

/// `litellm_settings.cache` and `cache_params`; `None` if nothing is cached.
pub(crate) fn cache(litellm: Option<&Fields>) -> Option<ResponseCache> {
    let fields = litellm?;
    let is_on = fields.bool("cache").unwrap_or(false);
    let params = fields.section("cache_params", &CACHE);
    if !is_on {
        if let Some(node) = fields.get("cache_params").filter(|_| !fields.has("cache")) {
            let what = "answers are cached only with litellm_settings.cache: true";
            fields.reader.note(&node.span, "litellm_settings.cache_params", what);
        }
        return None;
    }
    let p = params.as_ref();
    // An unreachable cache does not prevent the start.
    let (server, missing) = fields.reader.leaving_out(|| server(p, fields));
    if !missing.is_empty() {
        for reason in missing {
            let span = p.map_or(fields.span, |p| p.span);
            fields.reader.note(
                span,
                "litellm_settings.cache_params",
                format!("answers are not cached: {reason}"),
            );
        }
        return None;
    }
    // All are read, so that errors in one that does not count are reported, too.
    let time = |name: &'static str| -> Option<Duration> { p?.limit(name) };
    let (ttl, of_memory, of_redis) =
        (time("ttl"), time("default_in_memory_ttl"), time("default_in_redis_ttl"));
    let store = store(fields, p, server)?;
    let own = if matches!(store, CacheStore::Redis(_)) { of_redis } else { of_memory };
    Some(ResponseCache {
        store,
        ttl: own.or(ttl),
        namespace: p.and_then(|p| p.name("namespace")),
        calls: p.and_then(calls).unwrap_or_default(),
        opt_in: p
            .and_then(|p| p.one_of("mode", &[("default_on", false), ("default_off", true)]))
            .unwrap_or(false),
        messages_max: messages_max(p),
        shared: p.and_then(|p| p.bool("shared_between_keys")).unwrap_or(false),
    })
}

/// Where answers are stored; `None` if the type is not supported or its server is missing, which is reported.
fn store(fields: &Fields, params: Option<&Fields>, server: Option<RedisServer>) -> Option<CacheStore> {
    let kind = params.and_then(|p| p.name("type"));
    let bytes_max = params.and_then(|p| p.size("max_memory", 1)).unwrap_or(MEMORY_BYTES);
    let why = match (kind.as_deref(), server) {
        (Some("local"), _) | (None, None) => return Some(CacheStore::Memory { bytes_max }),
        (Some("redis") | None, Some(server)) => return Some(CacheStore::Redis(server)),
        (Some("redis"), None) => {
            "answers are not cached: redis needs host or url, or REDIS_HOST or REDIS_URL in the environment"
                .into()
        }
        (Some(other), _) => {
            format!("answers are not cached in {}: type must be local or redis", quoted(other))
        }
    };
    let span = params.and_then(|p| p.get("type")).map_or(fields.span, |n| &n.span);
    fields.reader.note(span, "litellm_settings.cache_params.type", why);
    None
}

/// The server that the section names, or the environment.
fn server(params: Option<&Fields>, fields: &Fields) -> Option<RedisServer> {
    let variable = |name: &str| fields.reader.variable(name).filter(|v| !v.is_empty());
    let text = |name: &'static str| params.and_then(|p| p.name(name));
    let secret = |name: &'static str| params.and_then(|p| p.secret(name));
    let (url, host) = (secret("url"), text("host"));
    // A server that is named here is not mixed with another one from the environment.
    let from_environment = url.is_none() && host.is_none();
    let url = url.or_else(|| if from_environment { Secret::new(&variable("REDIS_URL")?) } else { None });
    let host = host.or_else(|| if from_environment { variable("REDIS_HOST") } else { None });
    if url.is_none() && host.is_none() {
        return None;
    }
    let port = params.and_then(|p| p.count("port", 1));
    Some(RedisServer {
        url,
        host: host.unwrap_or_default(),
        port: port.or_else(|| variable("REDIS_PORT")?.parse().ok()).unwrap_or(REDIS_PORT),
        username: text("username").or_else(|| variable("REDIS_USERNAME")),
        password: secret("password").or_else(|| Secret::new(&variable("REDIS_PASSWORD")?)),
        tls: params
            .and_then(|p| p.bool("ssl"))
            .unwrap_or_else(|| variable("REDIS_SSL").is_some_and(|v| v.eq_ignore_ascii_case("true"))),
        db: params.and_then(|p| p.count::<u32>("db", 0)).map_or(0, i64::from),
    })
}

fn messages_max(params: Option<&Fields>) -> Option<usize> {
    let Some((p, node)) = params.and_then(|p| Some((p, p.get("max_messages")?))) else {
        return Some(MESSAGES_MAX);
    };
    match node.value {
        Value::Null => None,
        _ => p.count_of("max_messages", node, 0).or(Some(MESSAGES_MAX)),
    }
}

/// LiteLLM's names of calls; those with the prefix `a` are the same.
fn calls(fields: &Fields) -> Option<CachedCalls> {
    let node = fields.get("supported_call_types")?;
    let mut out =
        CachedCalls { chat: false, text: false, embeddings: false, responses: false, messages: false };
    for name in fields.texts("supported_call_types")? {
        match name.as_str() {
            "completion" | "acompletion" => out.chat = true,
            "text_completion" | "atext_completion" => out.text = true,
            "embedding" | "aembedding" => out.embeddings = true,
            "responses" | "aresponses" => out.responses = true,
            "anthropic_messages" | "aanthropic_messages" => out.messages = true,
            "transcription" | "atranscription" | "rerank" | "arerank" => {}
            other => {
                let what = format!("{} is not a call whose answers can be cached", quoted(other));
                fields.reader.note(&node.span, "litellm_settings.cache_params.supported_call_types", what);
            }
        }
    }
    Some(out)
}
