//! `/api/tags`, `/api/show`, `/api/ps` and `/api/version`.

use serde_json::{Map, Value, json};

use crate::core::{Message, ModelInfo, Part};
use crate::json::{self, Field, Result};
use crate::rules::tuning;
use crate::time::rfc3339;

/// 9999-12-31: the expiry of models that are never unloaded.
const NEVER_S: u64 = 253_402_300_799;

/// The answer to `GET /api/tags`. Other names of a model have entries of their own, as with `ollama cp`: clients look names up here before
/// they ask for them.
pub fn tags(models: &[ModelInfo]) -> Value {
    let entry = |m: &ModelInfo| {
        let mut out = entry(m);
        out["modified_at"] = rfc3339(m.created_s).into();
        out["size"] = m.size_bytes.into();
        out["capabilities"] = capabilities(m).into();
        out
    };
    let named = |m: &ModelInfo| {
        let names = std::iter::once(&m.id).chain(&m.aliases);
        names.map(|name| ModelInfo { id: name.clone(), ..m.clone() }).collect::<Vec<_>>()
    };
    json!({"models": models.iter().flat_map(named).map(|m| entry(&m)).collect::<Vec<_>>()})
}

/// The answer to `GET /api/ps`: the loaded models.
pub fn ps(models: &[ModelInfo]) -> Value {
    let entry = |m: &ModelInfo| {
        let loaded = m.loaded?;
        let mut out = entry(m);
        out["size"] = loaded.memory_bytes.into();
        out["size_vram"] = loaded.accelerator_bytes.into();
        out["expires_at"] = rfc3339(loaded.expires_s.unwrap_or(NEVER_S)).into();
        out["context_length"] = m.context_length.into();
        Some(out)
    };
    json!({"models": models.iter().filter_map(entry).collect::<Vec<_>>()})
}

/// Parses a `POST /api/show`: the name of the model.
///
/// # Errors
/// Fields that are unknown or of the wrong type, by name.
pub fn parse_show(body: &[u8]) -> Result<String> {
    let mut o = json::parse(body)?;
    let model = match o.take_any(&["model", "name"])? {
        Some(f) => f.name()?,
        None => o.require("model")?.name()?,
    };
    // Vocabularies are never listed.
    o.read("verbose", Field::bool)?;
    for name in ["system", "template"] {
        o.only(name, &["".into()], "a model is shown as it is")?;
    }
    o.finish(&[&[("options", tuning("a model is shown as it is"))]])?;
    Ok(model)
}

/// Parses a `POST /api/pull`: the name of the model, and whether the answer is a stream.
///
/// # Errors
/// Fields of the wrong type, by name.
pub fn parse_pull(body: &[u8]) -> Result<(String, bool)> {
    let mut o = json::parse(body)?;
    let model = match o.take_any(&["model", "name"])? {
        Some(f) => f.name()?,
        None => o.require("model")?.name()?,
    };
    let stream = o.read("stream", Field::bool)?.unwrap_or(true);
    let why = "a model that is served is there already";
    o.finish(&[&[("insecure", tuning(why)), ("username", tuning(why)), ("password", tuning(why))]])?;
    Ok((model, stream))
}

/// The answer to `POST /api/pull` of a model that is served: a JSON object, or a stream of lines.
pub fn pulled(stream: bool) -> String {
    let success = json!({"status": "success"});
    if stream {
        format!("{}\n{success}\n", json!({"status": "pulling manifest"}))
    } else {
        success.to_string()
    }
}

/// The answer to `POST /api/show`.
pub fn show(m: &ModelInfo) -> Value {
    let mut info = Map::new();
    info.insert("general.architecture".into(), m.family.as_str().into());
    info.insert("general.parameter_count".into(), m.parameters.into());
    info.insert(format!("{}.context_length", m.family), m.context_length.into());
    info.insert(format!("{}.embedding_length", m.family), m.embedding_length.into());
    let defaults = &m.defaults;
    let mut out = json!({
        "license": m.license.as_deref().unwrap_or(""),
        "modelfile": "",
        "parameters": parameters(&defaults.parameters),
        "template": m.template.as_deref().unwrap_or(""),
        "details": details(m),
        "model_info": info,
        "capabilities": capabilities(m),
        "modified_at": rfc3339(m.created_s),
    });
    if let Some(system) = &defaults.system {
        out["system"] = system.as_str().into();
    }
    if !defaults.messages.is_empty() {
        out["messages"] = defaults.messages.iter().map(message).collect();
    }
    out
}

/// A message of a model's beginning: role and text.
pub fn message(m: &Message) -> Value {
    let text: String = m.content.iter().filter_map(Part::as_text).collect();
    json!({"role": m.role.name(), "content": text})
}

/// Settings as Ollama writes them: a line for each, and for each text of a list.
fn parameters(all: &[(String, Value)]) -> String {
    let line = |name: &str, value: &Value| format!("{name:<30} {value}");
    let lines = all.iter().flat_map(|(name, value)| match value {
        Value::Array(values) => values.iter().map(|v| line(name, v)).collect(),
        one => vec![line(name, one)],
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The answer to `GET /api/version`. Clients compare it with the Ollama release that has the features they need, so `version` must be
/// an Ollama version.
pub fn version(version: &str) -> Value {
    json!({"version": version})
}

fn entry(m: &ModelInfo) -> Value {
    // Ollama's client slices it without checking its length.
    let digest = m.digest.as_deref().filter(|d| d.len() >= 12).map_or_else(|| "0".repeat(64), str::to_string);
    json!({"name": m.id, "model": m.id, "digest": digest, "details": details(m)})
}

fn capabilities(m: &ModelInfo) -> Vec<&'static str> {
    let a = m.abilities;
    let all = [
        (a.completion, "completion"),
        (a.tools, "tools"),
        (a.vision, "vision"),
        (a.thinking, "thinking"),
        (a.embedding, "embedding"),
    ];
    all.iter().filter(|(has, _)| *has).map(|(_, name)| *name).collect()
}

fn details(m: &ModelInfo) -> Value {
    json!({
        "parent_model": "",
        "format": m.format,
        "family": m.family,
        "families": [m.family],
        "parameter_size": parameter_size(m.parameters),
        "quantization_level": m.quantization,
    })
}

/// `35.1B`, `596.0M`.
fn parameter_size(n: u64) -> String {
    match n {
        0..1_000 => n.to_string(),
        1_000..1_000_000 => format!("{:.1}K", n as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1}M", n as f64 / 1e6),
        _ => format!("{:.1}B", n as f64 / 1e9),
    }
}
