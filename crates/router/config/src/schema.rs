//! A JSON schema of the file, for editors. Generated from the reader's table of keys; printed by `octet config schema`.

use serde_json::{Map, Value, json};

use crate::keys::{Kind, Section};
use crate::sections::ROOT;

/// The schema, in draft 2020-12.
pub fn json() -> Value {
    let mut schema = section(&ROOT);
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    schema["title"] = "Octet's configuration".into();
    schema
}

fn section(section: &Section) -> Value {
    let (mut properties, mut patterns) = (Map::new(), Map::new());
    for key in section.keys {
        for name in std::iter::once(&key.name).chain(key.aliases) {
            let mut schema = kind(key.kind);
            schema["description"] = key.doc.into();
            properties.insert(name.to_string(), schema);
        }
    }
    for (names, why) in section.warned {
        for name in *names {
            let ignored = json!({"description": format!("ignored: {why}"), "deprecated": true});
            match name.strip_suffix('*') {
                Some(begin) => patterns.insert(format!("^{begin}"), ignored),
                None => properties.insert(name.to_string(), ignored),
            };
        }
    }
    // Refused keys are not listed: editors mark them.
    json!({
        "type": ["object", "null"],
        "description": section.doc,
        "properties": properties,
        "patternProperties": patterns,
        "additionalProperties": section.open,
    })
}

/// All values except lists and mappings may come from a variable, as a text.
fn kind(kind: Kind) -> Value {
    match kind {
        Kind::Text | Kind::Secret => json!({"type": ["string", "array", "null"]}),
        Kind::Bool => json!({"type": ["boolean", "string", "null"]}),
        Kind::Count => json!({"type": ["integer", "string", "null"], "minimum": 0}),
        Kind::Number => json!({"type": ["number", "string", "null"]}),
        Kind::Seconds => json!({"type": ["number", "string", "null"]}),
        Kind::Size => json!({"type": ["integer", "string", "null"], "minimum": 0}),
        Kind::OneOf(words) => json!({"type": ["string", "null"], "examples": words}),
        Kind::Texts => json!({"type": ["array", "string", "null"], "items": {"type": "string"}}),
        Kind::TextMap => json!({"type": ["object", "string", "null"]}),
        Kind::Json => json!({"type": ["object", "null"]}),
        Kind::Any => json!({}),
        Kind::Fallbacks => json!({
            "type": ["array", "null"],
            "items": {
                "type": ["object", "string"],
                "additionalProperties": {"type": ["array", "string"], "items": {"type": "string"}},
            },
        }),
        Kind::Section(inner) => section(inner),
        Kind::List(inner) => json!({"type": ["array", "null"], "items": section(inner)}),
        Kind::MapOf(inner) => json!({"type": ["object", "null"], "additionalProperties": section(inner)}),
    }
}

/// The keys as a Markdown table, for the documentation: section, key, value, effect.
pub fn markdown() -> String {
    let mut out = String::new();
    table(&ROOT, &mut out, &mut Vec::new());
    out
}

fn table(section: &'static Section, out: &mut String, done: &mut Vec<&'static str>) {
    if done.contains(&section.name) {
        return;
    }
    done.push(section.name);
    *out +=
        &format!("## {}\n\n{}.\n\n| key | | |\n|---|---|---|\n", title(section.name), capital(section.doc));
    for key in section.keys {
        let names: Vec<String> =
            std::iter::once(&key.name).chain(key.aliases).map(|n| format!("`{n}`")).collect();
        *out +=
            &format!("| {} | {} | {} |\n", names.join(", "), holds(key.kind), key.doc.replace('|', "\\|"));
    }
    out.push('\n');
    let refused = "Refused, unless `--ignore-unsupported` names it";
    for (heading, lists) in [("Ignored, with a note", section.warned), (refused, section.refused)] {
        for (names, why) in lists {
            let names: Vec<String> = names.iter().map(|n| format!("`{n}`")).collect();
            *out += &format!("- {heading}: {} ({why})\n", names.join(", "));
        }
    }
    if !(section.warned.is_empty() && section.refused.is_empty()) {
        out.push('\n');
    }
    for key in section.keys {
        if let Kind::Section(inner) | Kind::List(inner) | Kind::MapOf(inner) = key.kind {
            table(inner, out, done);
        }
    }
}

fn title(name: &str) -> String {
    if name == ROOT.name { "The file".into() } else { format!("`{name}`") }
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or(String::new(), |c| c.to_uppercase().chain(chars).collect())
}

fn holds(kind: Kind) -> String {
    match kind {
        Kind::Text => "text".into(),
        Kind::Secret => "key".into(),
        Kind::Bool => "true, false".into(),
        Kind::Count => "whole number".into(),
        Kind::Number => "number".into(),
        Kind::Seconds => "time".into(),
        Kind::Size => "size".into(),
        Kind::OneOf(words) => words.join(", "),
        Kind::Texts => "texts".into(),
        Kind::TextMap | Kind::Json => "mapping".into(),
        Kind::Any => "anything".into(),
        Kind::Fallbacks => "groups by group".into(),
        Kind::Section(s) | Kind::List(s) | Kind::MapOf(s) => format!("see `{}`", s.name),
    }
}
