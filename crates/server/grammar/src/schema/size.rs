//! Computes the size of a schema as llguidance expands it.
//!
//! A plain reference costs nothing. But a reference with other keywords is replaced by its target, and alternatives are multiplied
//! with their neighbours. Twenty such references, each to two of the next, make a million; so the size is computed before the
//! expansion.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::target;
use crate::Error;
use crate::limits::{EXPANDED_MAX, STRING_RULES_MAX};

/// The size of an expanded schema.
#[derive(Debug, Clone)]
struct Size<'a> {
    /// Alternatives at its top level.
    alternatives: u64,
    /// Schemas and values in it.
    nodes: u64,
    /// Rules that apply to one string at once.
    rules: u64,
    /// The same for the strings in each property, and under [`OTHERS`] for those in items and in other properties.
    below: HashMap<&'a str, u64>,
}

/// Added to every property's count.
const OTHERS: &str = "";

impl Size<'_> {
    fn one() -> Self {
        Self { alternatives: 1, nodes: 1, rules: 0, below: HashMap::new() }
    }

    /// The maximum number of rules for a string in it.
    fn most_rules(&self) -> u64 {
        let others = self.below.get(OTHERS).copied().unwrap_or(0);
        let listed =
            self.below.iter().filter(|(name, _)| **name != OTHERS).map(|(_, n)| n.saturating_add(others));
        listed.max().unwrap_or(0).max(others).max(self.rules)
    }
}

/// Refuses a schema that grows too large.
pub fn check(schema: &Value, definitions: &Map<String, Value>, subject: &str) -> Result<(), Error> {
    let mut sizes = Sizes { definitions, known: HashMap::new() };
    let mut nodes = 0u64;
    let roots = std::iter::once(schema).chain(definitions.values());
    for root in roots {
        let size = sizes.of(root);
        nodes = nodes.saturating_add(size.nodes);
        if size.most_rules() > STRING_RULES_MAX {
            return Err(Error::TooComplex(format!(
                "{subject}: more than {STRING_RULES_MAX} patterns, formats and lengths have to be met by one string"
            )));
        }
    }
    if nodes > EXPANDED_MAX {
        let what =
            "written out, with the references and alternatives that are beside other keywords multiplied";
        return Err(Error::TooComplex(format!("{subject}: {what}, it has more than {EXPANDED_MAX} parts")));
    }
    Ok(())
}

struct Sizes<'a> {
    definitions: &'a Map<String, Value>,
    /// Sizes of definitions; one being computed counts as one (llguidance refuses such cycles).
    known: HashMap<&'a str, Size<'a>>,
}

impl<'a> Sizes<'a> {
    fn of(&mut self, value: &'a Value) -> Size<'a> {
        let Value::Object(schema) = value else { return Size::one() };
        let mut parts = Vec::new();
        let mut simple = Size { nodes: 0, ..Size::one() };
        for (name, value) in schema {
            match (name.as_str(), value) {
                ("$ref", v) => parts.push(Part::Reference(v)),
                ("allOf", Value::Array(all)) => parts.extend(all.iter().map(Part::All)),
                ("anyOf" | "oneOf", Value::Array(all)) => parts.push(Part::Any(all)),
                ("enum", Value::Array(all)) => parts.push(Part::Values(all)),
                ("const", v) => parts.push(Part::Values(std::slice::from_ref(v))),
                (name, v) => {
                    simple.nodes = simple.nodes.saturating_add(1);
                    simple.rules += u64::from(matches!(name, "pattern" | "format"));
                    self.children(name, v, &mut simple);
                }
            }
        }
        simple.rules += u64::from(schema.contains_key("minLength") || schema.contains_key("maxLength"));
        if simple.nodes > 0 {
            simple.alternatives = type_count(schema);
            simple.nodes = simple.nodes.saturating_mul(simple.alternatives);
            parts.push(Part::Simple(simple));
        }
        let alone = parts.len() <= 1;
        let mut out = Size::one();
        for part in parts {
            let size = self.part(part, alone);
            // All combinations of alternatives.
            out.nodes = (out.nodes.saturating_mul(size.alternatives))
                .saturating_add(size.nodes.saturating_mul(out.alternatives));
            out.alternatives = out.alternatives.saturating_mul(size.alternatives);
            out.rules = out.rules.saturating_add(size.rules);
            for (name, rules) in size.below {
                let sum = out.below.entry(name).or_default();
                *sum = sum.saturating_add(rules);
            }
        }
        out
    }

    fn part(&mut self, part: Part<'a>, alone: bool) -> Size<'a> {
        match part {
            Part::Reference(_) if alone => Size::one(),
            Part::Reference(reference) => self.inlined(reference),
            Part::All(value) => match value.get("$ref") {
                // Not kept as a reference: it is combined with its neighbours.
                Some(reference) if value.as_object().is_some_and(|s| s.len() == 1) => self.inlined(reference),
                _ => self.of(value),
            },
            Part::Any(all) => {
                let mut out = Size { alternatives: 0, nodes: 0, ..Size::one() };
                for value in all {
                    let size = if alone { self.of(value) } else { self.part(Part::All(value), false) };
                    out.alternatives = out.alternatives.saturating_add(size.alternatives);
                    out.nodes = out.nodes.saturating_add(size.nodes);
                    out.rules = out.rules.max(size.rules);
                    for (name, rules) in size.below {
                        let most = out.below.entry(name).or_default();
                        *most = rules.max(*most);
                    }
                }
                out
            }
            Part::Values(all) => {
                let nodes = all.iter().map(value_nodes).fold(0, u64::saturating_add);
                Size { alternatives: all.len() as u64, nodes, ..Size::one() }
            }
            Part::Simple(size) => size,
        }
    }

    fn inlined(&mut self, reference: &'a Value) -> Size<'a> {
        let (Some(name), Some(target)) = (reference.as_str(), target(reference, self.definitions)) else {
            return Size::one();
        };
        if let Some(size) = self.known.get(name) {
            return size.clone();
        }
        self.known.insert(name, Size::one());
        let size = self.of(target);
        self.known.insert(name, size.clone());
        size
    }

    /// Adds the schemas in a keyword.
    fn children(&mut self, name: &str, value: &'a Value, out: &mut Size<'a>) {
        let mut add = |name: &'a str, v: &'a Value| {
            let size = self.of(v);
            out.nodes = out.nodes.saturating_add(size.nodes);
            let most = out.below.entry(name).or_default();
            *most = size.most_rules().max(*most);
        };
        match (name, value) {
            ("properties", Value::Object(all)) => all.iter().for_each(|(name, v)| add(name, v)),
            ("patternProperties", Value::Object(all)) => all.values().for_each(|v| add(OTHERS, v)),
            ("items" | "prefixItems", Value::Array(all)) => all.iter().for_each(|v| add(OTHERS, v)),
            ("items" | "additionalItems" | "additionalProperties", v) => add(OTHERS, v),
            _ => {}
        }
    }
}

/// A part to be combined.
enum Part<'a> {
    Reference(&'a Value),
    All(&'a Value),
    Any(&'a [Value]),
    Values(&'a [Value]),
    /// The keywords other than alternatives, for each of the types.
    Simple(Size<'a>),
}

fn type_count(schema: &Map<String, Value>) -> u64 {
    match schema.get("type") {
        Some(Value::Array(all)) => all.len() as u64,
        Some(_) => 1,
        None => 6,
    }
}

fn value_nodes(value: &Value) -> u64 {
    match value {
        Value::Array(all) => all.iter().map(value_nodes).fold(1, u64::saturating_add),
        Value::Object(all) => all.values().map(value_nodes).fold(1, u64::saturating_add),
        _ => 1,
    }
}
