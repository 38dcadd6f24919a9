//! llama-swap's config.yaml: it becomes `processes`; its keys and peers are moved to their places here.

use super::lines::comment_out;
use super::{Imported, with_notes};
use crate::source::Source;
use crate::yaml::{self, Entry, Node, Value};
use crate::{Problems, load, sections};

/// Translates it.
pub(super) fn import(file: &str, text: &str, source: &dyn Source) -> Result<Imported, Problems> {
    let root = yaml::parse(&file.into(), text, &mut Vec::new()).map_err(|p| Problems(vec![p]))?;
    let entries: &[Entry] = if let Value::Map(entries) = &root.value { entries } else { &[] };
    let mut lines: Vec<String> = text.lines().map(String::from).collect();
    let mut changes = Vec::new();
    let (mut extra, mut inner) = (String::new(), String::new());
    for entry in entries {
        let (moved, to) = match entry.key.as_str() {
            "peers" => (peers(entry, &mut changes), &mut extra),
            "apiKeys" => (keys(entry), &mut extra),
            "routing" => (routing(entry, &mut changes), &mut inner),
            _ => continue,
        };
        if moved.is_empty() {
            continue;
        }
        if comment_out(&mut lines, &entry.span) {
            *to += &moved;
        } else {
            changes.push(format!(
                "TO DO, line {}: {} shares its line with others; write it on its own",
                entry.span.line, entry.key
            ));
        }
    }
    let mut out = String::from("processes:\n");
    for line in lines.iter().filter(|l| !l.starts_with("---") && !l.starts_with('%') && !l.starts_with("..."))
    {
        if line.trim().is_empty() {
            out.push('\n');
        } else {
            out += &format!("  {line}\n");
        }
    }
    out += &inner;
    out += &extra;
    let (problems, notes) = load::look(file, &out, source)?;
    // Line numbers of the user's file: one line was inserted before it.
    let line = |n: u32| n.saturating_sub(1);
    let unused = notes.iter().filter(|n| sections::is_unused(&n.key));
    let said = unused.map(|n| (line(n.span.line), format!("{}: {}", n.key, n.text))).collect();
    changes.extend(by_text(said).into_iter().map(|(at, text)| format!("{at}: {text}")));
    let left = problems.iter().map(|p| (line(p.span.line), p.text.clone())).collect();
    changes.extend(by_text(left).into_iter().map(|(at, text)| format!("TO DO, {at}: {text}")));
    Ok(with_notes("llama-swap's file", changes, &out))
}

/// What is said of several lines is said once: `line 5` or `lines 5, 9, 12`.
fn by_text(said: Vec<(u32, String)>) -> Vec<(String, String)> {
    let mut out: Vec<(Vec<String>, String)> = Vec::new();
    for (line, text) in said {
        match out.iter_mut().find(|(_, known)| *known == text) {
            Some((lines, _)) => lines.push(line.to_string()),
            None => out.push((vec![line.to_string()], text)),
        }
    }
    let at = |lines: Vec<String>| {
        let word = if lines.len() == 1 { "line" } else { "lines" };
        format!("{word} {}", lines.join(", "))
    };
    out.into_iter().map(|(lines, text)| (at(lines), text)).collect()
}

/// The section `routing`: its groups, as the older key `groups` has them. `matrix` is refused as that key is.
fn routing(entry: &Entry, changes: &mut Vec<String>) -> String {
    let mut out = String::new();
    let mut left = vec![(entry, "routing".to_string())];
    while let Some((entry, path)) = left.pop() {
        let Value::Map(fields) = &entry.node.value else { continue };
        for field in fields {
            let path = format!("{path}.{}", field.key);
            match path.as_str() {
                "routing.router" | "routing.router.settings" => left.push((field, path)),
                "routing.router.settings.groups" => out += &format!("  groups: {}\n", flow(&field.node)),
                "routing.router.settings.matrix" => out += &format!("  matrix: {}\n", flow(&field.node)),
                // Which of the two is used.
                "routing.router.use" => {}
                _ => changes.push(format!("TO DO, line {}: {path} has no counterpart", field.span.line)),
            }
        }
    }
    out
}

/// A value on one line, in YAML's flow style.
fn flow(node: &Node) -> String {
    match &node.value {
        Value::Map(fields) => {
            let fields: Vec<String> =
                fields.iter().map(|f| format!("{}: {}", quote(&f.key), flow(&f.node))).collect();
            format!("{{{}}}", fields.join(", "))
        }
        Value::List(items) => format!("[{}]", items.iter().map(flow).collect::<Vec<_>>().join(", ")),
        Value::Text(text) => quote(text),
        Value::Bool(value) => value.to_string(),
        Value::Int(value) => value.to_string(),
        Value::Float(value) => value.to_string(),
        Value::Null => "null".into(),
    }
}

/// Remote servers, as deployments.
fn peers(entry: &Entry, changes: &mut Vec<String>) -> String {
    let Value::Map(peers) = &entry.node.value else { return String::new() };
    let mut out = String::from("model_list:\n");
    let mut any = false;
    for peer in peers {
        let Value::Map(fields) = &peer.node.value else { continue };
        let text = |key: &str| {
            fields.iter().find(|f| f.key == key).and_then(|f| match &f.node.value {
                Value::Text(t) => Some(t.clone()),
                _ => None,
            })
        };
        let models = fields.iter().find(|f| f.key == "models").map(|f| &f.node.value);
        let Some((Value::List(models), Some(proxy))) = models.zip(Some(text("proxy"))) else {
            changes.push(format!(
                "TO DO, line {}: the peer '{}' has no models or no proxy",
                peer.span.line, peer.key
            ));
            continue;
        };
        let key = text("apiKey").map(variable);
        for model in models {
            let Value::Text(model) = &model.value else { continue };
            any = true;
            out += &format!("  - model_name: {}\n    litellm_params:\n", quote(model));
            out += &format!("      model: {}\n", quote(&format!("openai_like/{model}")));
            out += &format!(
                "      api_base: {}\n",
                quote(&format!("{}/v1", proxy.trim_end_matches('/').trim_end_matches("/v1")))
            );
            if let Some(key) = &key {
                out += &format!("      api_key: {}\n", quote(key));
            }
        }
    }
    if any { out } else { String::new() }
}

/// `${env.NAME}` becomes `os.environ/NAME`.
fn variable(text: String) -> String {
    let name = text.strip_prefix("${env.").and_then(|t| t.strip_suffix('}'));
    name.map_or(text.clone(), |n| format!("os.environ/{n}"))
}

fn keys(entry: &Entry) -> String {
    let Value::List(keys) = &entry.node.value else { return String::new() };
    let text = |v: &Value| if let Value::Text(t) = v { Some(variable(t.clone())) } else { None };
    let keys: Vec<String> = keys.iter().filter_map(|k| text(&k.value)).map(|k| quote(&k)).collect();
    if keys.is_empty() { String::new() } else { format!("server:\n  api_key: [{}]\n", keys.join(", ")) }
}

/// A text quoted for YAML: JSON's syntax.
pub(super) fn quote(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
