//! `processes`: llama-swap's models, groups and macros.

use std::time::Duration;

use serde_json::{Map, Value as Json};

use crate::fields::Fields;
use crate::problem::quoted;
use crate::sections::{FILTERS, GROUP, HOOKS, ON_STARTUP, PROCESS, PROCESSES};
use crate::yaml::Value;
use crate::{
    Alias, PortChoice, Process, ProcessFilters, ProcessGroup, ProcessSettings, RouterSettings, Secret, Span,
};

/// llama-swap's minimum.
const HEALTH_CHECK_MIN_S: u64 = 15;

/// Reads them; their aliases are added to the router's.
pub(crate) fn read(root: &Fields, router: &mut RouterSettings) -> (Vec<Process>, ProcessSettings) {
    let Some(fields) = root.section("processes", &PROCESSES) else {
        return (Vec::new(), ProcessSettings::default());
    };
    let macros = macros(&fields);
    let global_ttl = fields.count("globalTTL", 0).unwrap_or(0);
    let mut processes = Vec::new();
    for entry in fields.map("models").unwrap_or_default() {
        let Some(model) = Fields::new(root.reader, &PROCESS, &entry.node) else { continue };
        if let Some(process) = process(&model, &entry.key, &entry.span, &macros, global_ttl) {
            let alias =
                |name: &String| Alias { name: name.clone(), group: process.id.clone(), hidden: false };
            // Those with parameters of their own are groups.
            let by_name = &process.filters.set_params_by_name;
            let aliases = process.aliases.iter().filter(|name| !by_name.iter().any(|(n, _)| n == *name));
            router.aliases.extend(aliases.map(alias));
            processes.push(process);
        }
    }
    let d = ProcessSettings::default();
    let timeout =
        fields.count("healthCheckTimeout", 0).map(|s: u64| Duration::from_secs(s.max(HEALTH_CHECK_MIN_S)));
    let on_startup = fields.section("hooks", &HOOKS).and_then(|h| h.section("on_startup", &ON_STARTUP));
    let settings = ProcessSettings {
        health_check_timeout: timeout.unwrap_or(d.health_check_timeout),
        start_port: fields.count("startPort", 1).unwrap_or(d.start_port),
        preload: on_startup.and_then(|o| o.texts("preload")).unwrap_or_default(),
        groups: groups(&fields, &processes),
    };
    for id in settings.preload.iter().filter(|id| !processes.iter().any(|p| p.id == **id)) {
        fields
            .reader
            .wrong(fields.span, format!("hooks.on_startup.preload: there is no process {}", quoted(id)));
    }
    (processes, settings)
}

fn process(
    f: &Fields,
    id: &str,
    span: &Span,
    global: &[(String, String)],
    global_ttl: u64,
) -> Option<Process> {
    let mut known: Vec<(String, String)> = global.to_vec();
    known.extend(macros(f));
    let expander = Expander { fields: f, macros: &known, id };
    let text = |name: &'static str| {
        let at = f.get(name).map_or(f.span, |n| &n.span);
        f.name(name).and_then(|t| expander.expand(&t, at))
    };
    let cmd = text("cmd").and_then(|t| words(f, "cmd", &t));
    if cmd.is_none() && !f.has("cmd") {
        f.reader.wrong(span, format!("the process {} needs a cmd: the command that starts it", quoted(id)));
    }
    let cmd = cmd?;
    let proxy = if f.has("proxy") { text("proxy")? } else { "http://localhost:${PORT}".into() };
    // Checked with some port.
    let url = url::Url::parse(&proxy.replace("${PORT}", "1"));
    if !url.is_ok_and(|url| matches!(url.scheme(), "http" | "https")) {
        let what = format!("the process {}: proxy must be a URL like http://127.0.0.1:${{PORT}}", quoted(id));
        f.reader.wrong(span, what);
    }
    let port = proxy.contains("${PORT}") || cmd.iter().any(|w| w.contains("${PORT}"));
    let filters =
        f.section("filters", &FILTERS).map_or(ProcessFilters::default(), |filters| ProcessFilters {
            strip_params: strip_params(&filters),
            set_params: filters.json_map("setParams").unwrap_or_default(),
            set_params_by_name: set_params_by_name(&filters, &expander),
        });
    let mut aliases = f.texts("aliases").unwrap_or_default();
    for (name, _) in &filters.set_params_by_name {
        if name != id && !aliases.contains(name) {
            aliases.push(name.clone());
        }
    }
    // In llama-swap, -1 is the global value, and 0 never unloads.
    let ttl = f.number("ttl", -1.0, 1e9).filter(|t| *t >= 0.0).unwrap_or(global_ttl as f64);
    Some(Process {
        id: id.to_string(),
        name: f.text("name"),
        description: f.text("description"),
        cmd,
        cmd_stop: text("cmdStop").and_then(|t| words(f, "cmdStop", &t)),
        env: environment(&expander),
        proxy: proxy.trim_end_matches('/').to_string(),
        port: if port { PortChoice::Chosen } else { PortChoice::Fixed },
        aliases,
        check_endpoint: match text("checkEndpoint") {
            Some(path) if path == "none" => None,
            Some(path) => Some(format!("/{}", path.trim_start_matches('/'))),
            None => Some("/health".into()),
        },
        ttl: (ttl > 0.0).then(|| Duration::from_secs_f64(ttl)),
        unload_timeout: Duration::from_secs(f.count::<u32>("unloadTimeout", 1).unwrap_or(10).into()),
        use_model_name: text("useModelName"),
        filters,
        concurrency_limit: f.count("concurrencyLimit", 0).filter(|n| *n > 0),
        unlisted: f.bool("unlisted").unwrap_or(false),
        metadata: f.json_map("metadata").unwrap_or_default(),
        span: span.clone(),
    })
}

/// A text with commas, or a list.
fn strip_params(filters: &Fields) -> Vec<String> {
    let texts = filters.texts("stripParams").unwrap_or_default();
    let names = texts.iter().flat_map(|t| t.split(',')).map(|n| n.trim().to_string());
    // The model's name routes the request; llama-swap keeps it too.
    names.filter(|n| !n.is_empty() && n != "model").collect()
}

/// `setParamsByID`: parameters by the requested name, which may be `${MODEL_ID}:high`.
fn set_params_by_name(filters: &Fields, expander: &Expander) -> Vec<(String, Map<String, Json>)> {
    let mut out = Vec::new();
    for entry in filters.map("setParamsByID").unwrap_or_default() {
        let Some(name) = expander.expand(&entry.key, &entry.span) else { continue };
        match &entry.node.value {
            Value::Map(set) => {
                let mut set = filters.reader.json_map(set);
                set.shift_remove("model");
                out.push((name, set));
            }
            _ => filters.wrong("setParamsByID", &entry.node, "a mapping of parameters"),
        }
    }
    out
}

/// Splits a command like a shell; lines that begin with # are comments, and a \ at a line's end continues it.
fn words(f: &Fields, name: &'static str, command: &str) -> Option<Vec<String>> {
    let lines = command.lines().map(str::trim_end).filter(|l| !l.trim_start().starts_with('#'));
    let joined: Vec<&str> = lines.map(|l| l.strip_suffix('\\').unwrap_or(l)).collect();
    let words = shlex::split(&joined.join(" ")).filter(|w| !w.is_empty());
    if words.is_none() {
        let span = f.get(name).map_or(f.span, |n| &n.span);
        f.reader.wrong(span, format!("{name}: not a command: it is empty, or has an unclosed quote"));
    }
    words
}

fn environment(expander: &Expander) -> Vec<(String, Secret)> {
    let f = expander.fields;
    let mut out = Vec::new();
    for item in f.texts("env").unwrap_or_default() {
        let at = f.get("env").map_or(f.span, |n| &n.span);
        let Some(item) = expander.expand(&item, at) else { continue };
        match item.split_once('=') {
            Some((name, value)) if !name.is_empty() && !item.contains('\0') => {
                // An empty value is valid: it unsets a variable for a program.
                out.push((name.to_string(), Secret::verbatim(value)));
            }
            _ => f.reader.wrong(at, "env: an entry must be NAME=value"),
        }
    }
    out
}

fn macros(f: &Fields) -> Vec<(String, String)> {
    let mut out = Vec::new();
    for entry in f.map("macros").unwrap_or_default() {
        let value = match &entry.node.value {
            Value::Text(t) => t.clone(),
            Value::Int(i) => i.to_string(),
            Value::Float(n) => n.to_string(),
            Value::Bool(b) => b.to_string(),
            _ => {
                f.wrong("macros", &entry.node, "a text");
                continue;
            }
        };
        if matches!(entry.key.as_str(), "PORT" | "PID" | "MODEL_ID") || entry.key.starts_with("env.") {
            f.reader.wrong(
                &entry.span,
                format!("macros: {} is filled in by the router; choose another name", quoted(&entry.key)),
            );
            continue;
        }
        out.push((entry.key.clone(), value));
    }
    out
}

fn groups(f: &Fields, processes: &[Process]) -> Vec<ProcessGroup> {
    let mut out: Vec<ProcessGroup> = Vec::new();
    for entry in f.map("groups").unwrap_or_default() {
        let Some(group) = Fields::new(f.reader, &GROUP, &entry.node) else { continue };
        let members = group.texts("members").unwrap_or_default();
        let at = group.get("members").map_or(&entry.span, |n| &n.span);
        for member in &members {
            if !processes.iter().any(|p| p.id == *member) {
                f.reader
                    .wrong(at, format!("the group '{}': there is no process {}", entry.key, quoted(member)));
            } else if let Some(other) = out.iter().find(|g| g.members.contains(member)) {
                f.reader.wrong(
                    at,
                    format!(
                        "{} is in the groups '{}' and '{}'; it can be in one only",
                        quoted(member),
                        other.id,
                        entry.key
                    ),
                );
            }
        }
        out.push(ProcessGroup {
            id: entry.key.clone(),
            swap: group.bool("swap").unwrap_or(true),
            exclusive: group.bool("exclusive").unwrap_or(true),
            persistent: group.bool("persistent").unwrap_or(false),
            members,
        });
    }
    out
}

/// Fills in `${NAME}`.
struct Expander<'a> {
    fields: &'a Fields<'a>,
    macros: &'a [(String, String)],
    id: &'a str,
}

/// Macros within macros.
const DEPTH_MAX: usize = 16;
/// Maximum length of an expanded text: macros that repeat each other grow fast.
const EXPANDED_MAX: usize = 64 << 10;

impl Expander<'_> {
    fn expand(&self, text: &str, span: &Span) -> Option<String> {
        let mut out = String::new();
        match self.add(text, &mut out, 0) {
            Ok(()) => Some(out),
            Err(why) => {
                self.fields.reader.wrong(span, why);
                None
            }
        }
    }

    fn add(&self, text: &str, out: &mut String, depth: usize) -> Result<(), String> {
        if depth > DEPTH_MAX {
            return Err("macros: one contains itself, or they are nested too deep".into());
        }
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("${") {
            let (name, after) = after.split_once('}').ok_or("a '${' has no '}'")?;
            out.push_str(before);
            rest = after;
            // The last one is used: a model's own macros take precedence.
            let known = self.macros.iter().rev().find(|(n, _)| n == name);
            match (name, known, name.strip_prefix("env.")) {
                ("PORT" | "PID", ..) => out.push_str(&format!("${{{name}}}")),
                ("MODEL_ID", ..) => out.push_str(self.id),
                (_, Some((_, value)), _) => self.add(value, out, depth + 1)?,
                (_, None, Some(variable)) => match self.fields.reader.variable(variable) {
                    Some(value) => out.push_str(&value),
                    None => return Err(format!("the environment variable {variable} is not set")),
                },
                _ => {
                    return Err(format!(
                        "there is no macro ${{{name}}}: declare it under macros, or write ${{env.{name}}} for a variable"
                    ));
                }
            }
            if out.len() > EXPANDED_MAX {
                return Err(format!("macros: the expanded text exceeds {EXPANDED_MAX} bytes"));
            }
        }
        out.push_str(rest);
        Ok(())
    }
}
