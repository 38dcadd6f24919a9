//! `router_settings`, and the same keys of `litellm_settings`.

use crate::fields::Fields;
use crate::sections::{ALLOWED_FAILS_POLICY, RETRY_POLICY, STICKY, STRATEGY_ARGS};
use crate::yaml::{Entry, Value};
use crate::{
    Alias, ErrorCounts, Fallback, GroupName, RedisServer, RouterSettings, SessionKey, Sticky, Strategy,
    TagFilter,
};

const REDIS_PORT: u16 = 6379;

const STRATEGIES: &[(&str, Strategy)] = &[
    ("simple-shuffle", Strategy::SimpleShuffle),
    ("least-busy", Strategy::LeastBusy),
    ("usage-based-routing", Strategy::UsageBased),
    ("usage-based-routing-v2", Strategy::UsageBased),
    ("latency-based-routing", Strategy::LatencyBased),
    ("cost-based-routing", Strategy::CostBased),
    ("prefix-affinity", Strategy::PrefixAffinity),
];

/// Reads them. `router_settings` takes precedence.
pub(crate) fn settings(router: Option<&Fields>, litellm: Option<&Fields>) -> RouterSettings {
    let d = RouterSettings::default();
    let count = |name: &'static str| either(router, litellm, |f| f.count(name, 0));
    let mut generic = Vec::new();
    let mut lists = |name: &'static str| {
        let section = [router, litellm].into_iter().flatten().find(|f| f.has(name));
        // Both are read, so that errors in the one that does not count are reported, too.
        let unused =
            [router, litellm].into_iter().flatten().filter(|f| section.is_none_or(|s| !std::ptr::eq(s, *f)));
        for fields in unused {
            let _ = fallbacks(fields, name, &mut Vec::new());
        }
        section.map_or(Vec::new(), |fields| fallbacks(fields, name, &mut generic))
    };
    let fallbacks = lists("fallbacks");
    let context_window_fallbacks = lists("context_window_fallbacks");
    let content_policy_fallbacks = lists("content_policy_fallbacks");
    let texts = either(router, litellm, |f| f.texts("default_fallbacks"));
    let mut default_fallbacks = texts.unwrap_or_default();
    default_fallbacks.extend(generic);
    let args = router.and_then(|r| r.section("routing_strategy_args", &STRATEGY_ARGS));
    // The setting has two names.
    let timeout = (router.and_then(|r| r.limit("timeout")), litellm.and_then(|l| l.limit("request_timeout")));
    RouterSettings {
        strategy: router.and_then(|r| r.one_of("routing_strategy", STRATEGIES)).unwrap_or_default(),
        aliases: router.map_or(Vec::new(), aliases),
        fallbacks,
        context_window_fallbacks,
        content_policy_fallbacks,
        default_fallbacks,
        max_fallbacks: router.and_then(|r| r.count("max_fallbacks", 0)).unwrap_or(d.max_fallbacks),
        num_retries: count("num_retries").unwrap_or(d.num_retries),
        retry_after: router.and_then(|r| r.time("retry_after")).unwrap_or(d.retry_after),
        retry_policy: router
            .and_then(|r| r.section("retry_policy", &RETRY_POLICY))
            .map_or(ErrorCounts::default(), |p| retries(&p)),
        group_retry_policy: router.map_or(Vec::new(), group_policies),
        allowed_fails: count("allowed_fails"),
        allowed_fails_policy: router
            .and_then(|r| r.section("allowed_fails_policy", &ALLOWED_FAILS_POLICY))
            .map_or(ErrorCounts::default(), |p| fails(&p)),
        cooldown_time: either(router, litellm, |f| f.time("cooldown_time")).unwrap_or(d.cooldown_time),
        disable_cooldowns: router.and_then(|r| r.bool("disable_cooldowns")).unwrap_or(false),
        timeout: timeout.0.or(timeout.1).unwrap_or(d.timeout),
        stream_timeout: either(router, litellm, |f| f.limit("stream_timeout")),
        enable_pre_call_checks: router.and_then(|r| r.bool("enable_pre_call_checks")).unwrap_or(false),
        sticky: router.and_then(|r| r.section("sticky", &STICKY)).map(|s| sticky(&s)),
        tags: router.and_then(tags),
        redis: router.and_then(redis),
        latency_buffer: args
            .as_ref()
            .and_then(|a| a.number("lowest_latency_buffer", 0.0, 100.0))
            .unwrap_or(d.latency_buffer),
        latency_ttl: args.as_ref().and_then(|a| a.limit("ttl")).unwrap_or(d.latency_ttl),
    }
}

/// The Redis that several processes share. One whose address is missing in the environment is not used.
fn redis(fields: &Fields) -> Option<RedisServer> {
    let (server, missing) = fields.reader.leaving_out(|| {
        let (url, host) = (fields.secret("redis_url"), fields.name("redis_host"));
        let port = fields.count("redis_port", 1);
        let (username, password) = (fields.name("redis_username"), fields.secret("redis_password"));
        let (db, tls) = (fields.count::<u32>("redis_db", 0), fields.bool("redis_ssl"));
        if url.is_none() && host.is_none() {
            return None;
        }
        Some(RedisServer {
            url,
            host: host.unwrap_or_default(),
            port: port.unwrap_or(REDIS_PORT),
            username,
            password,
            tls: tls.unwrap_or(false),
            db: db.map_or(0, i64::from),
        })
    });
    if missing.is_empty() {
        return server;
    }
    for reason in missing {
        let key = if fields.has("redis_url") { "redis_url" } else { "redis_host" };
        let span = fields.get(key).map_or(fields.span, |node| &node.span);
        let what = format!("limits are not shared with other processes: {reason}");
        fields.reader.note(span, format!("router_settings.{key}"), what);
    }
    None
}

fn tags(fields: &Fields) -> Option<TagFilter> {
    let match_any = fields.bool("tag_filtering_match_any").unwrap_or(true);
    fields.bool("enable_tag_filtering").unwrap_or(false).then_some(TagFilter { match_any })
}

/// The value of the first section, else of the second. Both are read, so that errors in the one that does not count are reported, too.
fn either<T>(
    first: Option<&Fields>,
    second: Option<&Fields>,
    of: impl Fn(&Fields) -> Option<T>,
) -> Option<T> {
    let (first, second) = (first.and_then(&of), second.and_then(&of));
    first.or(second)
}

/// `[{a: [b, c]}, {d: [e]}]`. Names without a group (`[b, c]`) are for all groups: they are added to `generic`.
fn fallbacks(fields: &Fields, name: &'static str, generic: &mut Vec<String>) -> Vec<Fallback> {
    let mut out = Vec::new();
    for item in fields.list(name).unwrap_or_default() {
        match &item.value {
            Value::Text(_) => generic.extend(fields.text_of(name, item)),
            Value::Map(entries) => out.extend(entries.iter().filter_map(|e| fallback(fields, name, e))),
            _ => fields.wrong(name, item, "a mapping like {my-model: [other-model]}"),
        }
    }
    out
}

fn fallback(fields: &Fields, name: &'static str, entry: &Entry) -> Option<Fallback> {
    let to = match &entry.node.value {
        Value::List(items) if items.iter().any(|i| matches!(i.value, Value::Map(_))) => {
            let text = "a fallback must be the name of a group: add an entry of model_list for other parameters, and use its name";
            fields.reader.wrong(&entry.node.span, format!("{}.{name}: {text}", fields.section.name));
            return None;
        }
        // LiteLLM starts with it, and never uses it.
        Value::Int(_) | Value::Float(_) => {
            let text = format!("'{}' has a number instead of groups: ignored", entry.key);
            fields.reader.note(&entry.span, format!("{}.{name}", fields.section.name), text);
            return None;
        }
        _ => fields.texts_of(name, &entry.node)?,
    };
    if to.contains(&entry.key) {
        let text = format!("{}.{name}: '{}' falls back to itself", fields.section.name, entry.key);
        fields.reader.wrong(&entry.span, text);
        return None;
    }
    Some(Fallback { group: GroupName::new(&entry.key)?, to })
}

fn aliases(fields: &Fields) -> Vec<Alias> {
    let mut out = Vec::new();
    for entry in fields.map("model_group_alias").unwrap_or_default() {
        let name = entry.key.clone();
        match &entry.node.value {
            Value::Map(entries) => {
                let find = |key: &str| entries.iter().find(|e| e.key == key).map(|e| &e.node);
                if let Some(odd) = entries.iter().find(|e| !matches!(e.key.as_str(), "model" | "hidden")) {
                    fields.reader.wrong(
                        &odd.span,
                        format!("an alias has the keys model and hidden, not '{}'", odd.key),
                    );
                }
                let hidden = match find("hidden").map(|n| &n.value) {
                    Some(Value::Bool(b)) => *b,
                    None => false,
                    Some(other) => {
                        let text = format!("hidden: expected true or false, found {}", other.describe());
                        fields.reader.wrong(&entry.node.span, text);
                        false
                    }
                };
                match find("model").and_then(|n| fields.text_of("model_group_alias", n)) {
                    Some(group) => out.push(Alias { name, group, hidden }),
                    None => fields.wrong("model_group_alias", &entry.node, "a mapping with a model"),
                }
            }
            Value::List(items) if !items.is_empty() => {
                let text = format!("the alias '{name}' has a list: only its first group is used");
                fields.reader.note(&entry.span, "router_settings.model_group_alias", text);
                let group = fields.text_of("model_group_alias", &items[0]);
                out.extend(group.map(|group| Alias { name, group, hidden: false }));
            }
            _ => out.extend(fields.text_of("model_group_alias", &entry.node).map(|group| Alias {
                name,
                group,
                hidden: false,
            })),
        }
    }
    out
}

fn group_policies(fields: &Fields) -> Vec<(String, ErrorCounts)> {
    let entries = fields.map("model_group_retry_policy").unwrap_or_default();
    let read =
        |e: &Entry| Some((e.key.clone(), retries(&Fields::new(fields.reader, &RETRY_POLICY, &e.node)?)));
    entries.iter().filter_map(read).collect()
}

fn retries(f: &Fields) -> ErrorCounts {
    // Read once, so that an error in it is reported once.
    let others = f.count("DefaultRetries", 0);
    let count = |name: &'static str| f.count(name, 0).or(others);
    ErrorCounts {
        bad_request: count("BadRequestErrorRetries"),
        authentication: count("AuthenticationErrorRetries"),
        timeout: count("TimeoutErrorRetries"),
        rate_limit: count("RateLimitErrorRetries"),
        content_policy: count("ContentPolicyViolationErrorRetries"),
        internal_server: count("InternalServerErrorRetries"),
        not_found: count("NotFoundErrorRetries"),
    }
}

fn fails(f: &Fields) -> ErrorCounts {
    ErrorCounts {
        bad_request: f.count("BadRequestErrorAllowedFails", 0),
        authentication: f.count("AuthenticationErrorAllowedFails", 0),
        timeout: f.count("TimeoutErrorAllowedFails", 0),
        rate_limit: f.count("RateLimitErrorAllowedFails", 0),
        content_policy: f.count("ContentPolicyViolationErrorAllowedFails", 0),
        internal_server: f.count("InternalServerErrorAllowedFails", 0),
        not_found: f.count("NotFoundErrorAllowedFails", 0),
    }
}

fn sticky(fields: &Fields) -> Sticky {
    let mut by = Vec::new();
    for text in fields.texts("by").unwrap_or_else(|| vec!["header:x-session-id".into()]) {
        match text.as_str() {
            "user" => by.push(SessionKey::User),
            "key" => by.push(SessionKey::ApiKey),
            other => match other.strip_prefix("header:").map(str::trim).filter(|h| !h.is_empty()) {
                Some(name) => by.push(SessionKey::Header(name.to_ascii_lowercase())),
                None => {
                    let text = "sticky.by must be header:NAME, user or key";
                    fields.reader.wrong(fields.get("by").map_or(fields.span, |n| &n.span), text);
                }
            },
        }
    }
    let hour = std::time::Duration::from_secs(3600);
    Sticky { by, ttl: fields.limit("ttl").unwrap_or(hour) }
}
