//! Parses YAML into a tree of values with their places. Untrusted: size, depth and the expansion of aliases are bounded.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use serde_core::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::options::DuplicateKeyPolicy;
use serde_saphyr::{Location, Spanned};

use crate::problem::quoted;
use crate::{Note, Problem, Span};

/// Maximum size of a file. Hand-written files have some hundred lines.
pub(crate) const FILE_BYTES_MAX: usize = 4 << 20;
/// Maximum number of values of a file, including those repeated by aliases.
const NODES_MAX: usize = 100_000;
/// Maximum depth.
const DEPTH_MAX: usize = 32;

/// A value with its place.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Node {
    pub span: Span,
    pub value: Value,
}

/// A key with its place, and its value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Entry {
    pub key: String,
    pub span: Span,
    pub node: Node,
}

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Null,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

impl Value {
    /// Its kind, for an error; a text is not quoted because it may be a secret.
    pub fn describe(&self) -> &'static str {
        match self {
            Self::Null => "nothing",
            Self::Bool(_) => "true or false",
            Self::Int(_) | Self::Float(_) => "a number",
            Self::Text(_) => "a text",
            Self::List(_) => "a list",
            Self::Map(_) => "a mapping",
        }
    }
}

impl Value {
    /// Whether it is off: `null`, `false`, an empty text, list or mapping.
    pub fn is_off(&self) -> bool {
        match self {
            Self::Null | Self::Bool(false) => true,
            Self::Text(t) => t.trim().is_empty() || t.eq_ignore_ascii_case("none"),
            Self::List(items) => items.is_empty(),
            Self::Map(entries) => entries.is_empty(),
            _ => false,
        }
    }
}

/// Reads one document. Of duplicate keys in a mapping the last one is used, as in PyYAML; the others are noted.
pub(crate) fn parse(file: &Arc<str>, text: &str, notes: &mut Vec<Note>) -> Result<Node, Problem> {
    let at = |line, column| Span { file: file.clone(), line, column };
    if text.len() > FILE_BYTES_MAX {
        let text = format!("the file has {} bytes; the maximum is {FILE_BYTES_MAX}", text.len());
        return Err(Problem { span: at(1, 1), text });
    }
    if text.lines().all(|l| l.trim().is_empty() || l.trim_start().starts_with('#')) {
        return Ok(Node { span: at(1, 1), value: Value::Null });
    }
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_nodes: NODES_MAX,
            max_events: 4 * NODES_MAX,
            max_depth: DEPTH_MAX,
            max_documents: 1,
            max_total_scalar_bytes: FILE_BYTES_MAX,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: NODES_MAX,
            max_replay_stack_depth: DEPTH_MAX,
        },
        duplicate_keys: DuplicateKeyPolicy::PassThrough,
        with_snippet: false,
    };
    let raw: Spanned<Raw> = serde_saphyr::from_str_with_options(text, options).map_err(|e| {
        let (line, column) = e.location().map_or((1, 1), place);
        // The message repeats the place at its end or in words; it quotes the file's text briefly at most.
        Problem { span: at(line, column), text: format!("invalid YAML: {}", brief(&e.to_string())) }
    })?;
    let mut budget = NODES_MAX;
    node(raw, (file, text), &mut budget, notes)
}

/// The first line of a message, shortened because it may quote a secret.
fn brief(message: &str) -> String {
    let line = message.lines().next().unwrap_or_default();
    let quoted = quoted(line);
    if line.chars().count() > 300 { quoted } else { line.to_string() }
}

fn place(location: Location) -> (u32, u32) {
    let number = |n: u64| u32::try_from(n).unwrap_or(u32::MAX).max(1);
    (number(location.line()), number(location.column()))
}

/// A value as serde reads it.
enum Raw {
    Null,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(String),
    List(Vec<Spanned<Raw>>),
    Map(Vec<(Spanned<Raw>, Spanned<Raw>)>),
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Raw;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }
            fn visit_unit<E>(self) -> Result<Raw, E> {
                Ok(Raw::Null)
            }
            fn visit_none<E>(self) -> Result<Raw, E> {
                Ok(Raw::Null)
            }
            fn visit_bool<E>(self, v: bool) -> Result<Raw, E> {
                Ok(Raw::Bool(v))
            }
            fn visit_i64<E>(self, v: i64) -> Result<Raw, E> {
                Ok(Raw::Int(v.into()))
            }
            fn visit_u64<E>(self, v: u64) -> Result<Raw, E> {
                Ok(Raw::Int(v.into()))
            }
            fn visit_f64<E>(self, v: f64) -> Result<Raw, E> {
                Ok(Raw::Float(v))
            }
            fn visit_str<E>(self, v: &str) -> Result<Raw, E> {
                Ok(Raw::Text(v.to_string()))
            }
            fn visit_string<E>(self, v: String) -> Result<Raw, E> {
                Ok(Raw::Text(v))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Raw, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = seq.next_element()? {
                    items.push(item);
                }
                Ok(Raw::List(items))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Raw, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Raw::Map(entries))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

/// The letter of a one-letter boolean of YAML 1.1: LiteLLM's reader (PyYAML) reads `y` and `n` as
/// texts, and `yes`, `no`, `on` and `off` as booleans, and so does this one.
fn letter(at: Location, text: &str) -> Option<&str> {
    let start = usize::try_from(at.span().byte_offset()?).ok()?;
    let letter = text.get(start..start + 1).filter(|l| matches!(*l, "y" | "Y" | "n" | "N"))?;
    let more = text[start + 1..].starts_with(|c: char| c.is_ascii_alphabetic());
    (!more).then_some(letter)
}

/// A key that YAML 1.1 reads as a boolean, as it is written: `on`.
fn word(at: Location, text: &str) -> Option<&str> {
    let rest = text.get(usize::try_from(at.span().byte_offset()?).ok()?..)?;
    let end = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
    Some(&rest[..end]).filter(|word| !word.is_empty())
}

/// `source`: the file's name and its text.
fn node(
    raw: Spanned<Raw>,
    source: (&Arc<str>, &str),
    budget: &mut usize,
    notes: &mut Vec<Note>,
) -> Result<Node, Problem> {
    let (file, text) = source;
    let defined = raw.defined;
    // The place where an alias is used, not where it is defined: the user looks there.
    let (line, column) = place(raw.referenced);
    let span = Span { file: file.clone(), line, column };
    *budget = match budget.checked_sub(1) {
        Some(left) => left,
        None => {
            return Err(Problem {
                span,
                text: format!(
                    "the file has more than {NODES_MAX} values, including those repeated by aliases"
                ),
            });
        }
    };
    let value = match raw.value {
        Raw::Null => Value::Null,
        Raw::Bool(b) => letter(defined, text).map_or(Value::Bool(b), |l| Value::Text(l.into())),
        Raw::Int(i) => Value::Int(i),
        Raw::Float(f) => Value::Float(f),
        Raw::Text(t) => Value::Text(t),
        Raw::List(items) => {
            Value::List(items.into_iter().map(|i| node(i, source, budget, notes)).collect::<Result<_, _>>()?)
        }
        Raw::Map(entries) => Value::Map(map(entries, source, budget, notes)?),
    };
    Ok(Node { span, value })
}

/// The entries of a mapping. Of duplicate keys the last one is used, as in PyYAML; the others are reported.
fn map(
    entries: Vec<(Spanned<Raw>, Spanned<Raw>)>,
    source: (&Arc<str>, &str),
    budget: &mut usize,
    notes: &mut Vec<Note>,
) -> Result<Vec<Entry>, Problem> {
    let mut out: Vec<Entry> = Vec::with_capacity(entries.len());
    let mut seen: HashMap<String, usize> = HashMap::with_capacity(entries.len());
    for (key, value) in entries {
        let written = word(key.defined, source.1);
        let Node { span, value: name } = node(key, source, budget, notes)?;
        let key = match name {
            Value::Text(t) => t,
            Value::Int(i) => i.to_string(),
            Value::Float(f) => f.to_string(),
            Value::Bool(b) => written.map_or_else(|| b.to_string(), str::to_string),
            other => {
                let text = format!("a key must be a text, not {}", other.describe());
                return Err(Problem { span, text });
            }
        };
        let entry = Entry { key, span, node: node(value, source, budget, notes)? };
        match seen.get(&entry.key) {
            Some(&at) => {
                let text = format!("duplicate key; this one is ignored, line {} is used", entry.span.line);
                notes.push(Note { span: out[at].span.clone(), key: entry.key.clone(), text });
                out[at] = entry;
            }
            None => {
                seen.insert(entry.key.clone(), out.len());
                out.push(entry);
            }
        }
    }
    Ok(out)
}
