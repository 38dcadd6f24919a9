//! Cascades, the server, virtual keys. Called by `read`.

use crate::fields::Fields;
use crate::problem::quoted;
use crate::sections::{CASCADE, CONFIDENCE, KEY_PARAMS, RULE, SERVER};
use crate::yaml::Value;
use crate::{
    Cascade, Condition, Confidence, HeaderMatch, KeyDefaults, KeysSettings, Pattern, PriceList, Rule, Secret,
    ServerSettings, Side,
};

/// `cascades`.
pub(crate) fn cascades(fields: &Fields) -> Vec<Cascade> {
    let mut out = Vec::new();
    for node in fields.list("cascades").unwrap_or_default() {
        let Some(entry) = Fields::new(fields.reader, &CASCADE, node) else { continue };
        let needed = |name: &'static str, what: &str| {
            let text = entry.name(name);
            if text.is_none() && !entry.has(name) {
                entry.reader.wrong(&node.span, format!("a cascade needs {name}: {what}"));
            }
            text
        };
        let names = (
            needed("model_name", "what clients ask for"),
            needed("fast", "the group for what is easy"),
            needed("strong", "the group for what is hard"),
        );
        let rules: Vec<Rule> = entry
            .list("rules")
            .unwrap_or_default()
            .iter()
            .enumerate()
            .filter_map(|(i, node)| rule(&Fields::new(fields.reader, &RULE, node)?, i + 1))
            .collect();
        let confidence = entry.section("confidence", &CONFIDENCE).and_then(|c| confidence(&c));
        if rules.is_empty() && confidence.is_none() && !entry.has("rules") && !entry.has("confidence") {
            entry.reader.wrong(
                &node.span,
                "a cascade needs rules or confidence: without them the fast model answers everything",
            );
        }
        if let (Some(name), Some(fast), Some(strong)) = names {
            out.push(Cascade { name, fast, strong, rules, confidence, span: node.span.clone() });
        }
    }
    out
}

fn rule(fields: &Fields, number: usize) -> Option<Rule> {
    let mut when = Vec::new();
    when.extend(fields.count("min_tokens", 0).map(Condition::MinTokens));
    when.extend(fields.count("max_tokens", 0).map(Condition::MaxTokens));
    when.extend(fields.count("min_messages", 0).map(Condition::MinMessages));
    when.extend(fields.count("max_messages", 0).map(Condition::MaxMessages));
    when.extend(fields.bool("tools").map(Condition::Tools));
    when.extend(fields.bool("code").map(Condition::Code));
    when.extend(fields.bool("images").map(Condition::Images));
    when.extend(headers(fields).into_iter().map(Condition::Header));
    when.extend(pattern(fields, "system").map(Condition::System));
    when.extend(pattern(fields, "user").map(Condition::User));
    let to = fields.one_of("to", &[("fast", Side::Fast), ("strong", Side::Strong)]).unwrap_or_default();
    let check = fields.bool("check").unwrap_or(false);
    if check && to == Side::Strong {
        fields.reader.wrong(fields.span, "check is for rules with to: fast; the strong model is not checked");
    }
    let name = fields.name("name").unwrap_or_else(|| format!("rule {number}"));
    if when.is_empty() {
        // A pattern that cannot be understood has been told.
        if ["header", "system", "user"].into_iter().any(|name| fields.has(name)) {
            return None;
        }
        fields.reader.wrong(fields.span, "a rule needs a condition, like min_tokens: 4000 or tools: true");
        return None;
    }
    Some(Rule { name, when, to, check })
}

fn pattern(fields: &Fields, name: &'static str) -> Option<Pattern> {
    let text = fields.name(name)?;
    compiled(fields, name, &text, fields.get(name).map_or(fields.span, |n| &n.span))
}

fn compiled(fields: &Fields, name: &str, text: &str, span: &crate::Span) -> Option<Pattern> {
    match Pattern::new(text) {
        Ok(pattern) => Some(pattern),
        Err(why) => {
            let why = why.lines().last().unwrap_or_default().trim_start_matches("error: ").to_string();
            fields
                .reader
                .wrong(span, format!("{}.{name} is no regular expression: {why}", fields.section.name));
            None
        }
    }
}

/// A header's name, or a mapping of names to patterns.
fn headers(fields: &Fields) -> Vec<HeaderMatch> {
    let Some(node) = fields.get("header") else { return Vec::new() };
    match &node.value {
        Value::Text(name) => vec![HeaderMatch { name: name.to_ascii_lowercase(), value: None }],
        Value::Map(entries) => entries
            .iter()
            .filter_map(|e| {
                let value = match &e.node.value {
                    Value::Null => None,
                    _ => Some(compiled(fields, "header", &fields.text_of("header", &e.node)?, &e.node.span)?),
                };
                Some(HeaderMatch { name: e.key.to_ascii_lowercase(), value })
            })
            .collect(),
        _ => {
            fields.wrong("header", node, "the name of a header, or a mapping of names to patterns");
            Vec::new()
        }
    }
}

fn confidence(fields: &Fields) -> Option<Confidence> {
    const WINDOW_MAX: u32 = 1024; // that much is held back from the client
    let confidence = Confidence {
        window: fields.count("window", 1).unwrap_or(16),
        mean_logprob: fields.number("mean_logprob", -1000.0, 0.0),
        margin: fields.number("margin", 0.0, 1000.0),
        skip_thoughts: fields.bool("skip_thoughts").unwrap_or(true),
    };
    if confidence.window > WINDOW_MAX {
        fields.reader.wrong(
            fields.span,
            format!("confidence.window is {}; at most {WINDOW_MAX} tokens are held back", confidence.window),
        );
    }
    if !fields.has("mean_logprob") && !fields.has("margin") {
        fields.reader.wrong(fields.span, "confidence needs a threshold: mean_logprob, margin or both");
        return None;
    }
    Some(confidence)
}

/// `server`, and what `general_settings` says of it.
pub(crate) fn server(fields: &Fields, general: Option<&Fields>) -> ServerSettings {
    let mut out = ServerSettings::default();
    if let Some(general) = general {
        if let Some(node) = general.get("master_key") {
            out.master_key = general.secret("master_key");
            // A server that was to be locked must not open because a word was mistyped.
            if out.master_key.is_none() && !fields.reader.failed() {
                fields.reader.wrong(&node.span, "general_settings.master_key is empty");
            }
        }
        out.max_parallel_requests = general.count("global_max_parallel_requests", 1);
        let megabytes = general.number("max_request_size_mb", 0.001, 1e6);
        out.max_body = megabytes.map(|mb| (mb * 1024.0 * 1024.0) as u64);
    }
    let Some(s) = fields.section("server", &SERVER) else { return out };
    out.host = s.name("host").and_then(|host| {
        let host = if host == "localhost" { "127.0.0.1" } else { &host };
        let parsed = host.parse().ok();
        if parsed.is_none() {
            let span = s.get("host").map_or(s.span, |n| &n.span);
            s.reader.wrong(span, "server.host is an address to listen at, like 127.0.0.1 or 0.0.0.0");
        }
        parsed
    });
    out.port = s.count("port", 0);
    out.api_keys = api_keys(&s);
    out.api_keys.extend(keys_of_file(&s));
    out.cors_origins = s.texts("cors_origin").unwrap_or_default();
    out.timeout = s.time("timeout");
    out.max_body = s.size("max_body", 1).or(out.max_body);
    out.max_connections = s.count("max_connections", 1);
    out.memory_limit = s.size("memory_limit", 1);
    out.load_queue = s.count("load_queue", 1);
    out
}

fn api_keys(fields: &Fields) -> Vec<Secret> {
    let Some(node) = fields.get("api_key") else { return Vec::new() };
    match &node.value {
        Value::List(items) => items
            .iter()
            .filter_map(|i| match &i.value {
                Value::Text(t) => fields.reader.secret(&i.span, "the key", t),
                _ => {
                    fields.wrong("api_key", i, "a text (put it in quotes)");
                    None
                }
            })
            .collect(),
        _ => fields.secret("api_key").into_iter().collect(),
    }
}

/// The keys of `api_key_file`, one a line.
fn keys_of_file(fields: &Fields) -> Vec<Secret> {
    /// Some thousand keys.
    const FILE_BYTES_MAX: u64 = 1 << 20;
    let Some((node, path)) = fields.get("api_key_file").zip(fields.name("api_key_file")) else {
        return Vec::new();
    };
    let (reader, span, shown) = (fields.reader, &node.span, quoted(&path));
    let text = match reader.read(&reader.path(span, &path), FILE_BYTES_MAX) {
        Ok(text) => text,
        Err(e) => {
            reader.wrong(span, format!("server.api_key_file: {shown} cannot be read: {e}"));
            return Vec::new();
        }
    };
    let lines = text.lines().enumerate().map(|(i, line)| (i + 1, line.trim()));
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let sendable = lines.filter(|(i, key)| reader.sendable(span, &format!("line {i} of {shown}"), key));
    let keys: Vec<Secret> = sendable.filter_map(|(_, key)| Secret::new(key)).collect();
    // An empty file must not open the server to everybody.
    if keys.is_empty() {
        reader.wrong(span, format!("server.api_key_file: {shown} holds no key"));
    }
    keys
}

/// Where spending is kept if a budget needs a place and the file names none.
const DATABASE: &str = "octet-keys.db";

/// `keys`, and LiteLLM's budgets for all requests.
pub(crate) fn keys(
    fields: &Fields,
    own: Option<&Fields>,
    general: Option<&Fields>,
    litellm: Option<&Fields>,
) -> KeysSettings {
    let mut out = KeysSettings::default();
    if let Some(l) = litellm {
        out.max_budget = l.number("max_budget", 0.0, f64::MAX);
        out.budget_duration = l.limit("budget_duration");
        if let Some(p) = l.section("default_key_generate_params", &KEY_PARAMS) {
            out.defaults = KeyDefaults {
                max_budget: p.number("max_budget", 0.0, f64::MAX),
                budget_duration: p.limit("budget_duration"),
                duration: p.limit("duration"),
                models: p.texts("models").unwrap_or_default(),
                rpm_limit: p.count("rpm_limit", 0),
                tpm_limit: p.count("tpm_limit", 0),
                max_parallel_requests: p.count("max_parallel_requests", 0),
            };
        }
    }
    let of_all = general.and_then(|g| g.count("max_parallel_requests", 1));
    out.defaults.max_parallel_requests = out.defaults.max_parallel_requests.or(of_all);
    out.open_fallbacks = general.and_then(|g| g.bool("enforce_fallback_model_access")) == Some(false);
    let locked = general.is_some_and(|g| g.has("master_key"));
    // What is forgotten at the next start could be spent again.
    if let Some(node) = litellm.and_then(|l| l.get("max_budget"))
        && !own.is_some_and(|k| k.has("database"))
    {
        let path = "litellm_settings.max_budget";
        if locked {
            let text =
                format!("what is spent is kept in {DATABASE}, beside this file; keys.database names another");
            fields.reader.note(&node.span, path, text);
            out.database = Some(fields.reader.path(&node.span, DATABASE));
        } else {
            let why = "it needs a general_settings.master_key, and a file in which is kept what was spent (keys.database)";
            fields.reader.not_enforced(&node.span, path, why);
            out.max_budget = None;
        }
    }
    let Some(k) = own else { return out };
    if let Some(path) = k.name("database") {
        out.database = Some(k.reader.path(k.span, &path));
        if !locked {
            let text = "keys.database needs general_settings.master_key: without it anybody could make keys";
            k.reader.wrong(k.span, text);
        }
    }
    out.usage_days = k.count("usage_days", 1).unwrap_or(out.usage_days);
    out
}

/// `keys.prices`.
pub(crate) fn prices(keys: Option<&Fields>) -> PriceList {
    /// Some ten thousand models.
    const FILE_BYTES_MAX: u64 = 1 << 20;
    let Some((fields, path)) = keys.and_then(|k| Some((k, k.name("prices")?))) else {
        return PriceList::default();
    };
    if path == "none" {
        return PriceList::none();
    }
    let (reader, span) = (fields.reader, fields.get("prices").map_or(fields.span, |n| &n.span));
    let text = reader.read(&reader.path(span, &path), FILE_BYTES_MAX).map_err(|e| e.to_string());
    match text.and_then(|text| PriceList::read(&text)) {
        Ok(list) => list,
        Err(why) => {
            reader.wrong(span, format!("keys.prices: {}: {why}", quoted(&path)));
            PriceList::none()
        }
    }
}
