//! The server and virtual keys.

use crate::fields::Fields;
use crate::problem::quoted;
use crate::sections::{KEY_BOUNDS, KEY_PARAMS, SERVER, TEAM_PARAMS, USER_PARAMS, USER_TEAM};
use crate::yaml::Value;
use crate::{
    KeyBounds, KeyDefaults, KeysSettings, LimitDefaults, PriceList, Secret, ServerSettings, UserDefaults,
};

/// `server`, and the same settings in `general_settings`.
pub(crate) fn server(fields: &Fields, general: Option<&Fields>) -> ServerSettings {
    let mut out = ServerSettings::default();
    if let Some(general) = general {
        if let Some(node) = general.get("master_key") {
            out.master_key = general.secret("master_key");
            // A mistyped word must not open a server.
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
            s.reader.wrong(span, "server.host must be an address to listen at, like 127.0.0.1 or 0.0.0.0");
        }
        parsed
    });
    out.port = s.count("port", 0);
    out.api_keys = api_keys(&s);
    out.api_keys.extend(keys_of_file(&s));
    out.cors_origins = s.texts("cors_origin").unwrap_or_default();
    out.allowed_hosts = s.texts("allowed_host").unwrap_or_default();
    out.timeout = s.time("timeout");
    out.max_body = s.size("max_body", 1).or(out.max_body);
    out.max_connections = s.count("max_connections", 1);
    out.memory_limit = s.size("memory_limit", 1);
    out.load_queue = s.count("load_queue", 1);
    out.allow_image_urls = s.bool("allow_image_urls");
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
    /// Enough for some thousand keys.
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
    // An empty file must not open the server.
    if keys.is_empty() {
        reader.wrong(span, format!("server.api_key_file: {shown} contains no key"));
    }
    keys
}

/// The default key database if a budget needs one.
const DATABASE: &str = "octet-keys.db";

/// The largest budget of the key database, in US dollars.
const BUDGET_MAX: f64 = 1e9;

/// `keys`, and LiteLLM's budgets for all requests.
pub(crate) fn keys(
    fields: &Fields,
    own: Option<&Fields>,
    general: Option<&Fields>,
    litellm: Option<&Fields>,
) -> KeysSettings {
    let mut out = KeysSettings::default();
    if let Some(l) = litellm {
        litellm_keys(l, &mut out);
    }
    let of_all = general.and_then(|g| g.count("max_parallel_requests", 1));
    let parallel = &mut out.defaults.limits.max_parallel_requests;
    *parallel = parallel.or(of_all);
    out.open_fallbacks = general.and_then(|g| g.bool("enforce_fallback_model_access")) == Some(false);
    let locked = general.is_some_and(|g| g.has("master_key"));
    out.database_url = general.and_then(|g| database_url(g, own, locked));
    // Without a database the spend would be lost at the next start.
    for (name, path) in [
        ("max_budget", "litellm_settings.max_budget"),
        ("max_end_user_budget", "litellm_settings.max_end_user_budget"),
    ] {
        let has_database = own.is_some_and(|k| k.has("database")) || out.database_url.is_some();
        let Some(node) = litellm.and_then(|l| l.get(name)).filter(|_| !has_database) else { continue };
        if locked {
            let text = format!(
                "the spend is kept in {DATABASE}, beside this file; keys.database names another file"
            );
            fields.reader.note(&node.span, path, text);
            out.database = Some(fields.reader.path(&node.span, DATABASE));
        } else {
            let why =
                "it needs a general_settings.master_key, and a file to keep the spend in (keys.database)";
            fields.reader.not_enforced(&node.span, path, why);
            (out.max_budget, out.max_end_user_budget) = (None, None);
        }
    }
    let Some(k) = own else { return out };
    if let Some(path) = k.name("database") {
        out.database = Some(k.reader.path(k.span, &path));
        if !locked {
            let text =
                "keys.database needs general_settings.master_key: without it every client could create keys";
            k.reader.wrong(k.span, text);
        }
    }
    out.usage_days = k.count("usage_days", 1).unwrap_or(out.usage_days);
    out
}

/// The PostgreSQL database, unless a file is named. A missing variable or another kind of database is noted: then there are no virtual keys.
fn database_url(general: &Fields, own: Option<&Fields>, locked: bool) -> Option<Secret> {
    let node = general.get("database_url")?;
    // LiteLLM accepts anything that it cannot use.
    let is_text = matches!(node.value, Value::Text(_));
    let (url, missing) =
        general.reader.leaving_out(|| if is_text { general.secret("database_url") } else { None });
    let is_postgres = |url: &Secret| {
        let url = url.expose();
        url.starts_with("postgresql://") || url.starts_with("postgres://")
    };
    let why = match (missing.first(), &url) {
        (Some(missing), _) => missing.clone(),
        _ if own.is_some_and(|k| k.has("database")) => "keys.database takes precedence".into(),
        (None, None) if !is_text => "only postgresql:// is supported".into(),
        (None, Some(url)) if !is_postgres(url) => "only postgresql:// is supported".into(),
        _ if !locked => {
            "it needs general_settings.master_key: without it every client could create keys".into()
        }
        _ => return url,
    };
    general.reader.note(&node.span, "general_settings.database_url", format!("not used: {why}"));
    None
}

/// LiteLLM's budget of all requests, and its defaults and bounds of new keys, users and teams.
fn litellm_keys(l: &Fields, out: &mut KeysSettings) {
    out.max_budget = l.number("max_budget", 0.0, BUDGET_MAX);
    out.max_end_user_budget = l.number("max_end_user_budget", 0.0, BUDGET_MAX);
    out.budget_duration = l.limit("budget_duration");
    if let Some(p) = l.section("default_key_generate_params", &KEY_PARAMS) {
        out.defaults = KeyDefaults {
            limits: limits(&p),
            duration: p.limit("duration"),
            user: p.name("user_id"),
            team: p.name("team_id"),
        };
    }
    if let Some(p) = l.section("default_internal_user_params", &USER_PARAMS) {
        out.user_defaults = UserDefaults {
            limits: limits(&p),
            teams: user_teams(&p),
            role: p.name("user_role"),
            ..UserDefaults::default()
        };
    }
    let older = l.number("default_max_internal_user_budget", 0.0, BUDGET_MAX);
    out.user_defaults.internal_max_budget = l.number("max_internal_user_budget", 0.0, BUDGET_MAX).or(older);
    out.user_defaults.internal_budget_duration = l.limit("internal_user_budget_duration");
    if let Some(p) = l.section("default_team_params", &TEAM_PARAMS) {
        out.team_defaults = limits(&p);
    }
    if let Some(p) = l.section("upperbound_key_generate_params", &KEY_BOUNDS) {
        out.bounds = KeyBounds {
            max_budget: p.number("max_budget", 0.0, BUDGET_MAX),
            budget_duration: p.limit("budget_duration"),
            duration: p.limit("duration"),
            max_parallel_requests: p.count("max_parallel_requests", 0),
            tpm_limit: p.count("tpm_limit", 0),
            rpm_limit: p.count("rpm_limit", 0),
        };
    }
}

/// The limits that new keys, users or teams get.
fn limits(p: &Fields) -> LimitDefaults {
    let has = |name| p.section.key(name).is_some();
    LimitDefaults {
        max_budget: p.number("max_budget", 0.0, BUDGET_MAX),
        budget_duration: p.limit("budget_duration"),
        models: if has("models") { p.texts("models").unwrap_or_default() } else { Vec::new() },
        rpm_limit: p.count("rpm_limit", 0),
        tpm_limit: p.count("tpm_limit", 0),
        max_parallel_requests: if has("max_parallel_requests") {
            p.count("max_parallel_requests", 0)
        } else {
            None
        },
    }
}

/// `default_internal_user_params.teams`: ids, or mappings with a `team_id`.
fn user_teams(p: &Fields) -> Vec<String> {
    let mut teams = Vec::new();
    for node in p.list("teams").unwrap_or_default() {
        match &node.value {
            Value::Map(_) => {
                let Some(team) = Fields::new(p.reader, &USER_TEAM, node) else { continue };
                if !team.has("team_id") {
                    p.reader.wrong(&node.span, "an entry of teams needs a team_id");
                }
                teams.extend(team.name("team_id"));
            }
            _ => teams.extend(p.text_of("teams", node)),
        }
    }
    teams
}

/// `keys.prices`.
pub(crate) fn prices(keys: Option<&Fields>) -> PriceList {
    /// Enough for ten thousand models.
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
