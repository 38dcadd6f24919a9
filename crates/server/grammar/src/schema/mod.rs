//! JSON schemas of clients: checked, limited, and rewritten for llguidance.
//!
//! llguidance refuses unknown keywords without a position, does not unescape references, and expands what a few lines can multiply to
//! gigabytes. So each schema is walked here first: annotations are dropped, definitions collected under `#/$defs`, and each error has
//! its position.

mod close;
mod keywords;
mod size;
mod types;
mod walk;

use octet_parser::Types;
use serde_json::{Map, Value};

use crate::Error;

pub use close::lists_elsewhere;
pub use types::types;

/// Whether a keyword says nothing about what is valid.
pub fn is_annotation(name: &str) -> bool {
    keywords::keyword(name) == keywords::Keyword::Annotation
}

/// What to do with unsupported keywords.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// Refuse them.
    Refuse,
    /// Drop them with a warning, which allows more than the schema does.
    Relax,
}

/// A schema for llguidance.
#[derive(Debug, Clone, PartialEq)]
pub struct Prepared {
    /// The schema; an object whose references point into its own `$defs`, or a boolean.
    pub schema: Value,
    /// What was dropped, and where.
    pub warnings: Vec<String>,
    /// Some object in it lists properties and allows others.
    pub open: bool,
}

/// Prepares a whole schema. Objects that list properties allow no others, see `close`. `closed`: so does a top-level object that lists
/// none, unless it says otherwise or is combined with schemas that list others.
pub fn prepare(schema: &Value, subject: &str, policy: Policy, closed: bool) -> Result<Prepared, Error> {
    prepare_part(schema, schema, "#", subject, policy, closed)
}

/// Prepares `part` of the document `root`, at `path`.
pub fn prepare_part(
    root: &Value,
    part: &Value,
    path: &str,
    subject: &str,
    policy: Policy,
    closed: bool,
) -> Result<Prepared, Error> {
    let mut walk = walk::Walk::new(root, path, subject, policy);
    let mut schema = walk.document(part)?;
    let walk::Outcome { definitions, pointers, mut warnings } = walk.finish();
    if let Value::Object(s) = &mut schema
        && closed
        && types(s, &definitions) == Types::OBJECT
        && !lists_elsewhere(s)
    {
        s.entry("additionalProperties").or_insert(Value::Bool(false));
    }
    let mut alternatives = types::Alternatives::new(&definitions, subject, policy, &mut warnings);
    schema = alternatives.settle(&schema, path)?;
    let mut settled = Map::new();
    for (name, definition) in &definitions {
        let at = pointers.get(name).map_or("#", String::as_str);
        settled.insert(name.clone(), alternatives.settle(definition, at)?);
    }
    let definitions = settled;
    size::check(&schema, &definitions, subject)?;
    if let Value::Object(s) = &mut schema
        && !definitions.is_empty()
    {
        s.insert("$defs".into(), Value::Object(definitions));
    }
    Ok(Prepared { open: is_open(&schema), schema, warnings })
}

/// Whether some object in it lists properties and allows others.
fn is_open(schema: &Value) -> bool {
    match schema {
        Value::Object(s) => {
            let listed = ["properties", "patternProperties"].iter().any(|k| s.contains_key(*k));
            listed && s.get("additionalProperties") != Some(&Value::Bool(false)) || s.values().any(is_open)
        }
        Value::Array(all) => all.iter().any(is_open),
        _ => false,
    }
}

/// The schema that a rewritten reference points to.
fn target<'a>(reference: &Value, definitions: &'a Map<String, Value>) -> Option<&'a Value> {
    definitions.get(reference.as_str()?.strip_prefix("#/$defs/")?)
}

/// Escapes a name for a JSON pointer.
pub fn pointer_segment(name: &str) -> String {
    let name: String = name.chars().take(100).collect();
    name.replace('~', "~0").replace('/', "~1").escape_debug().to_string()
}

#[cfg(test)]
mod tests;
