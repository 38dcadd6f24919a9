//! Grammars of tool calls.

mod bare;
mod harmony;
pub mod header;
mod hermes;
mod literal;
mod native;
mod texts;
mod xml;

use std::collections::HashSet;
use std::fmt::Write;

use serde_json::{Map, Value};

use crate::limits::TOOLS_MAX;
use crate::schema::Policy;
use crate::{Error, Header, Tool, ToolMode, ToolSyntax, Vocabulary, lark};

/// The tag that begins a call: a token of its own in models that can call tools.
const CALL_OPEN: &str = "<tool_call>";
const CALL_CLOSE: &str = "</tool_call>";

/// Maximum number of alternatives of a tool's parameters in a syntax of tags: each has rules of its own.
const ALTERNATIVES_MAX: usize = 32;
/// Maximum length of a tool's name in errors.
const NAME_SHOWN_MAX: usize = 60;

/// The tools and their use in a request.
pub struct Calls<'a> {
    pub syntax: &'a ToolSyntax,
    pub tools: &'a [Tool],
    pub mode: &'a ToolMode,
    pub parallel: bool,
    /// The header before text.
    pub header: Option<&'a Header>,
}

/// A grammar being written.
#[derive(Debug, Default)]
pub struct Rules {
    /// Rules in Lark; the rule of the answer is `body`.
    pub text: String,
    /// What is not enforced.
    pub warnings: Vec<String>,
}

impl Rules {
    /// Adds what is not enforced. A part of a schema may be looked at twice.
    fn warn(&mut self, warnings: Vec<String>) {
        for warning in warnings {
            if !self.warnings.contains(&warning) {
                self.warnings.push(warning);
            }
        }
    }

    fn rule(&mut self, name: &str, body: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "{name}: {body}");
    }
}

/// What is wrong with a keyword beside which a syntax cannot write arguments.
fn not_at_the_top(name: &str) -> String {
    let alone = match name {
        "anyOf" | "oneOf" => format!(", unless alone, with at most {ALTERNATIVES_MAX} objects"),
        _ => String::new(),
    };
    format!("'{name}' is not supported at the top of a tool's parameters in this model's syntax{alone}")
}

impl Calls<'_> {
    /// Writes the rules. The arguments of the tools in `relaxed` are not constrained.
    pub fn write(&self, vocabulary: &Vocabulary, relaxed: &HashSet<usize>) -> Result<Rules, Error> {
        let tools = self.check()?;
        let mut rules = Rules::default();
        let mut calls = Vec::new();
        for (i, tool) in tools {
            let given = (!relaxed.contains(&i)).then(|| Arguments::of(tool)).transpose()?;
            if given.is_none() {
                rules
                    .warnings
                    .push(format!("no grammar could be made of {}; they are not enforced", subject(tool)));
            }
            match self.syntax {
                ToolSyntax::Native(syntax) => {
                    native::write(&mut rules, vocabulary, syntax, i, tool, given.as_ref())?;
                }
                ToolSyntax::Harmony { .. } => {
                    harmony::write(&mut rules, vocabulary, i, tool, given.as_ref())?
                }
                ToolSyntax::Hermes => hermes::write(&mut rules, i, tool, given.as_ref())?,
                ToolSyntax::Qwen3Coder => xml::write(&mut rules, i, tool, given.as_ref())?,
            }
            calls.push(format!("call{i}"));
        }
        let several = self.parallel && !matches!(self.mode, ToolMode::Named(_));
        if let ToolSyntax::Native(syntax) = self.syntax {
            native::section(&mut rules, vocabulary, syntax, &calls, several);
            if let Some(header) = self.header {
                header::body(&mut rules, vocabulary, header, syntax, *self.mode == ToolMode::Auto)?;
            } else if *self.mode == ToolMode::Auto && self.syntax.is_recognised_by_position(vocabulary) {
                native::or_text(&mut rules, syntax);
            }
            return Ok(rules);
        }
        if let ToolSyntax::Harmony { may_think } = self.syntax {
            harmony::answer(&mut rules, vocabulary, &calls, *may_think, *self.mode == ToolMode::Auto);
            return Ok(rules);
        }
        let tag = |name| vocabulary.special(name).map_or_else(|| lark::literal(name), lark::token);
        let open = tag(CALL_OPEN);
        let opened = match self.syntax {
            ToolSyntax::Hermes | ToolSyntax::Native(_) | ToolSyntax::Harmony { .. } => lark::literal("\n"),
            ToolSyntax::Qwen3Coder => lark::literal("\n<function="),
        };
        rules.rule("one", &format!("{open}{opened}({})", calls.join(" | ")));
        rules.rule("close", &tag(CALL_CLOSE));
        rules.rule("body", if several { "one (\"\\n\" one)*" } else { "one" });
        Ok(rules)
    }

    /// The tools that may be called, with their indices.
    fn check(&self) -> Result<Vec<(usize, &Tool)>, Error> {
        if self.tools.is_empty() || self.tools.len() > TOOLS_MAX {
            return Err(Error::Tools(format!("there are {}; expected 1 to {TOOLS_MAX}", self.tools.len())));
        }
        let mut names = HashSet::new();
        for tool in self.tools {
            let name: String = tool.name.escape_debug().take(NAME_SHOWN_MAX).collect();
            if tool.name.is_empty() || tool.name.len() > 256 {
                return Err(Error::Tools(format!(
                    "the name '{name}' has {} bytes; expected 1 to 256",
                    tool.name.len()
                )));
            }
            if *self.syntax != ToolSyntax::Hermes && !bare::is_name(&tool.name) {
                return Err(Error::Tools(format!(
                    "the name '{name}' cannot be written in a tag: it has <, > or a new line"
                )));
            }
            if !names.insert(tool.name.as_str()) {
                return Err(Error::Tools(format!("two are called '{name}'")));
            }
        }
        let all = self.tools.iter().enumerate();
        Ok(match self.mode {
            ToolMode::Auto | ToolMode::Required => all.collect(),
            ToolMode::Named(name) => {
                let found = all.into_iter().find(|(_, t)| t.name == *name);
                vec![found.ok_or_else(|| Error::Tools(format!("none is called '{}'", name.escape_debug())))?]
            }
        })
    }
}

/// The schema of a tool's arguments.
struct Arguments<'a> {
    /// The document of references.
    root: &'a Value,
    /// The schema of the arguments: the root, or its reference's target.
    schema: &'a Value,
    path: String,
    subject: String,
    policy: Policy,
}

impl<'a> Arguments<'a> {
    fn of(tool: &'a Tool) -> Result<Self, Error> {
        let policy = if tool.strict { Policy::Refuse } else { Policy::Relax };
        let (schema, path) = target(&tool.parameters, &tool.parameters, "#".into());
        let subject = subject(tool);
        if !schema.is_null() && !takes_objects(schema) {
            let what = "the parameters of a tool are a schema of type object".into();
            return Err(Error::Schema { subject, path, what });
        }
        Ok(Self { root: &tool.parameters, schema, path, subject, policy })
    }

    /// The alternatives, if the schema is a list of some that are objects: one call has the members of one of them.
    fn alternatives(&self) -> Vec<Self> {
        let Value::Object(schema) = self.schema else { return Vec::new() };
        let is_list = |name: &str| matches!(name, "anyOf" | "oneOf");
        let rest = |name: &&String| *name != "type" && !crate::schema::is_annotation(name);
        let mut asserting = schema.keys().filter(rest);
        let (Some(name), None) = (asserting.next().filter(|name| is_list(name)), asserting.next()) else {
            return Vec::new();
        };
        let members = schema[name].as_array().map(Vec::as_slice).unwrap_or_default();
        let each = members.iter().enumerate().map(|(k, member)| {
            let (schema, path) = target(self.root, member, format!("{}/{name}/{k}", self.path));
            Self { root: self.root, schema, path, subject: self.subject.clone(), policy: self.policy }
        });
        let is_plain = |one: &Self| {
            let keys = one.schema.as_object().into_iter().flat_map(Map::keys);
            takes_objects(one.schema) && !keys.into_iter().any(|key| is_list(key) || key == "$ref")
        };
        let each: Vec<Self> = each.take(ALTERNATIVES_MAX + 1).collect();
        if each.len() > ALTERNATIVES_MAX || !each.iter().all(is_plain) { Vec::new() } else { each }
    }

    fn prepare(&self, part: &Value, path: &str, closed: bool) -> Result<crate::schema::Prepared, Error> {
        crate::schema::prepare_part(self.root, part, path, &self.subject, self.policy, closed)
    }
}

/// The target of a schema that is only a reference (some generators write that), to a limited depth, and where it is. What stands beside
/// a reference holds too, so such a schema stays.
fn target<'a>(root: &'a Value, mut schema: &'a Value, mut path: String) -> (&'a Value, String) {
    for _ in 0..8 {
        let reference = schema.get("$ref").and_then(Value::as_str);
        let Some(pointer) = reference.and_then(|r| r.strip_prefix('#')) else { break };
        let is_silent = |(name, value): (&String, &Value)| {
            name == "$ref" || name == "type" && value == "object" || crate::schema::is_annotation(name)
        };
        let Some(found) = root.pointer(pointer) else { break };
        if !schema.as_object().into_iter().flatten().all(is_silent) {
            break;
        }
        (schema, path) = (found, format!("#{}", pointer.escape_debug()));
    }
    (schema, path)
}

fn takes_objects(schema: &Value) -> bool {
    schema.as_object().is_some_and(|s| s.get("type").is_none_or(|t| t == "object"))
}

fn subject(tool: &Tool) -> String {
    let name: String = tool.name.escape_debug().take(NAME_SHOWN_MAX).collect();
    format!("the parameters of the tool '{name}'")
}

/// The schema of no arguments.
fn nothing() -> Value {
    Value::Object(Map::from_iter([
        ("type".to_string(), Value::from("object")),
        ("properties".to_string(), Value::Object(Map::new())),
        ("additionalProperties".to_string(), Value::Bool(false)),
    ]))
}
