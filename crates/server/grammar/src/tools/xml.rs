//! Calls as tags around bare text: Qwen3-Coder's syntax, and similar ones derived from templates.
//!
//! Parameters may come in any order, each at most once, with all required ones: a rule with one bit of state each. A string is written
//! unquoted, other values as JSON.

use octet_parser::Types;
use serde_json::{Map, Value};

use super::bare::{self, Bare};
use super::{Arguments, Rules};
use crate::schema::{Policy, Prepared, lists_elsewhere, pointer_segment, types};
use crate::{Error, Tool, lark, regex};

/// Maximum number of parameters in any order: the bits of a rule's state. Further ones come in the schema's order.
const ORDERLESS_MAX: usize = 60;

/// One parameter.
struct Parameter {
    name: String,
    required: bool,
    /// What follows its name, in Lark: its value, with the end of the parameter.
    rule: String,
}

/// The form of parameters.
pub(super) struct Form {
    /// Before a parameter's name, in Lark.
    pub open: String,
    /// Between the name and a string, in Lark.
    pub text: String,
    /// Between the name and any other value, in Lark.
    pub other: String,
    /// The values.
    pub bare: Bare,
}

/// Writes rule `call{i}` of Qwen3-Coder's syntax: what follows `<function=`, up to the closing tag.
pub(super) fn write(
    rules: &mut Rules,
    i: usize,
    tool: &Tool,
    given: Option<&Arguments<'_>>,
) -> Result<(), Error> {
    let between = lark::literal(">\n");
    let form = Form {
        open: lark::literal("<parameter="),
        text: between.clone(),
        other: between,
        bare: Bare::qwen(),
    };
    let end = format!("{}close", lark::literal("</function>\n"));
    let list = list(rules, &i.to_string(), given, &form, &end)?;
    rules.rule(&format!("call{i}"), &format!("{}{list}", lark::literal(&format!("{}>\n", tool.name))));
    Ok(())
}

/// Writes the rules of a tool's parameters followed by `end`, with `i` in their names; returns a reference to them.
pub(super) fn list(
    rules: &mut Rules,
    i: &str,
    given: Option<&Arguments<'_>>,
    form: &Form,
    end: &str,
) -> Result<String, Error> {
    let alternatives = given.map(Arguments::alternatives).unwrap_or_default();
    if let (Some(arguments), false) = (given, alternatives.is_empty()) {
        // The checks of the whole: of its size, and that one alternative excludes the others.
        let whole = arguments.prepare(arguments.schema, &arguments.path, true)?;
        rules.warn(whole.warnings);
        let each = alternatives.iter().enumerate();
        let lists: Result<Vec<String>, Error> =
            each.map(|(k, one)| list(rules, &format!("{i}_{k}"), Some(one), form, end)).collect();
        return Ok(format!("({})", lists?.join(" | ")));
    }
    let (parameters, others) = match given {
        None => (Vec::new(), true),
        Some(arguments) => parameters(rules, i, arguments, form)?,
    };
    if !rules.text.contains("\ntext: ") && !rules.text.starts_with("text: ") {
        rules.text.push_str(&form.bare.rules());
    }
    let list = format!("list{i}");
    let other = others.then(|| other(rules, i, &parameters, form));
    if parameters.len() > ORDERLESS_MAX {
        let mut body = String::new();
        for p in &parameters {
            let one = one(p, form);
            body.push_str(&if p.required { format!("{one} ") } else { format!("[{one}] ") });
        }
        let other = other.map_or(String::new(), |o| format!("({o})* "));
        rules.rule(&list, &format!("{body}{other}{end}"));
        return Ok(list);
    }
    // Required ones have the lowest bits, so that one condition covers them.
    let mut order: Vec<&Parameter> = parameters.iter().collect();
    order.sort_by_key(|p| !p.required);
    let required = order.iter().filter(|p| p.required).count();
    let mut alternatives = vec![match required {
        0 => end.to_string(),
        n => format!("{end} %if is_ones([0:{n}])"),
    }];
    for (bit, p) in order.iter().enumerate() {
        alternatives.push(format!("{} {list}::set_bit({bit}) %if bit_clear({bit})", one(p, form)));
    }
    let state = !order.is_empty();
    if let Some(other) = other {
        alternatives.push(format!("{other} {list}{}", if state { "::_" } else { "" }));
    }
    rules.rule(&format!("{list}{}", if state { "::_" } else { "" }), &alternatives.join("\n    | "));
    Ok(if state { format!("{list}::0x0") } else { list })
}

/// A parameter, from its tag to its end.
fn one(p: &Parameter, form: &Form) -> String {
    format!("{}{}{}", form.open, lark::literal(&p.name), p.rule)
}

/// A parameter with another name and any value.
fn other(rules: &mut Rules, i: &str, listed: &[Parameter], form: &Form) -> String {
    let name = format!("OTHER{i}");
    let listed: Vec<String> = listed.iter().map(|p| lark::literal(&p.name)).collect();
    let not = if listed.is_empty() { String::new() } else { format!(" & ~({})", listed.join("| ")) };
    rules.rule(&name, &format!("/[^<>\\n]{{1,256}}/{not}"));
    format!("{}{name} {}text", form.open, form.text)
}

/// The listed parameters of a schema, with rules for their values; and whether others are allowed.
fn parameters(
    rules: &mut Rules,
    i: &str,
    arguments: &Arguments<'_>,
    form: &Form,
) -> Result<(Vec<Parameter>, bool), Error> {
    let Value::Object(schema) = arguments.schema else { return Ok((Vec::new(), false)) };
    // The whole schema is prepared for its checks: of sizes and unsupported keywords.
    let whole = arguments.prepare(arguments.schema, &arguments.path, true)?;
    rules.warn(whole.warnings);
    for name in [
        "$ref",
        "allOf",
        "anyOf",
        "oneOf",
        "patternProperties",
        "minProperties",
        "maxProperties",
        "enum",
        "const",
    ] {
        if schema.contains_key(name) {
            problem(rules, arguments, &arguments.path, super::not_at_the_top(name))?;
        }
    }
    let others = allows_others(schema);
    let required = schema.get("required").and_then(Value::as_array);
    let required: Vec<&str> = required.into_iter().flatten().filter_map(Value::as_str).collect();
    let empty = Map::new();
    let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&empty);
    let mut out = listed(rules, i, arguments, form, (properties, &required))?;
    for name in required {
        if !properties.contains_key(name) {
            if others && bare::is_name(name) {
                out.push(Parameter { name: name.into(), required: true, rule: format!("{}text", form.text) });
            } else {
                let what = format!("'{}' is required and not listed in 'properties'", name.escape_debug());
                problem(rules, arguments, &arguments.path, what)?;
            }
        }
    }
    Ok((out, others))
}

/// Whether parameters that a schema does not list are allowed.
fn allows_others(schema: &Map<String, Value>) -> bool {
    match schema.get("additionalProperties") {
        None => lists_elsewhere(schema),
        Some(value) => value != &Value::Bool(false),
    }
}

/// The parameters of `properties`, with rules for their values.
fn listed(
    rules: &mut Rules,
    i: &str,
    arguments: &Arguments<'_>,
    form: &Form,
    (properties, required): (&Map<String, Value>, &[&str]),
) -> Result<Vec<Parameter>, Error> {
    let mut out = Vec::new();
    for (j, (name, schema)) in properties.iter().enumerate() {
        let path = format!("{}/properties/{}", arguments.path, pointer_segment(name));
        let is_required = required.contains(&name.as_str());
        if !bare::is_name(name) {
            let what = "the name cannot be written in a tag: it is empty, or has <, > or a new line";
            problem(rules, arguments, &path, what.into())?;
            continue;
        }
        // Its warnings were reported with the whole.
        let prepared = arguments.prepare(schema, &path, false)?;
        let rule = value(rules, &format!("value{i}_{j}"), &prepared, (arguments, &path), form)?;
        match rule {
            Some(rule) => out.push(Parameter { name: name.clone(), required: is_required, rule }),
            None if is_required => {
                let what = "is required, and no value is valid".into();
                return Err(Error::Schema { subject: arguments.subject.clone(), path, what });
            }
            None => {}
        }
    }
    Ok(out)
}

/// A constraint that this syntax cannot enforce.
pub(super) fn problem(
    rules: &mut Rules,
    arguments: &Arguments<'_>,
    path: &str,
    what: String,
) -> Result<(), Error> {
    let error = Error::Schema { subject: arguments.subject.clone(), path: path.into(), what };
    if arguments.policy != Policy::Relax {
        return Err(error);
    }
    rules.warnings.push(format!("{error}; not enforced"));
    Ok(())
}

/// The values of a schema, by how they are written.
#[derive(Default)]
struct Split {
    /// Any text.
    text: bool,
    /// Text that matches all regexes of one of these lists.
    limited: Vec<Vec<String>>,
    /// Exactly these texts.
    choice: Vec<String>,
    /// Schemas of values written as JSON.
    json: Vec<Value>,
}

/// Writes the rule for a value; returns a reference to it, or `None` if no value is valid.
fn value(
    rules: &mut Rules,
    name: &str,
    prepared: &Prepared,
    (arguments, path): (&Arguments<'_>, &str),
    form: &Form,
) -> Result<Option<String>, Error> {
    let no_definitions = Map::new();
    let definitions = prepared.schema.get("$defs").and_then(Value::as_object).unwrap_or(&no_definitions);
    let mut split = Split::default();
    let mut schema = prepared.schema.clone();
    if let Value::Object(s) = &mut schema {
        s.remove("$defs");
    }
    let mut cutter = Cutter { definitions, bare: &form.bare, out: &mut split, dropped: Vec::new() };
    cutter.cut(&schema, 8);
    for what in cutter.dropped {
        problem(rules, arguments, path, what)?;
    }
    let mut alternatives = Vec::new();
    if split.text {
        alternatives.push(format!("{}text", form.text));
    } else {
        for (n, regexes) in split.limited.iter().enumerate() {
            let terminal = format!("{}_{n}", name.to_uppercase());
            rules.rule(&terminal, &form.bare.limited(regexes));
            alternatives.push(format!("{}{terminal} {}", form.text, form.bare.end()));
        }
        if !split.choice.is_empty() {
            alternatives.push(format!("{}{}", form.text, form.bare.choice(&split.choice)));
        }
    }
    if !split.json.is_empty() {
        let mut schema = match split.json.len() {
            1 => split.json.remove(0),
            _ => Value::Object(Map::from_iter([("anyOf".to_string(), Value::Array(split.json))])),
        };
        if let Value::Object(s) = &mut schema
            && !definitions.is_empty()
        {
            s.insert("$defs".into(), Value::Object(definitions.clone()));
        }
        let json = Prepared { schema, warnings: Vec::new(), open: prepared.open };
        alternatives.push(format!("{}{}{}", form.other, lark::json(&json), form.bare.end()));
    }
    if alternatives.len() == 1 && split.text {
        return Ok(alternatives.pop());
    }
    if alternatives.is_empty() {
        return Ok(None);
    }
    rules.rule(name, &alternatives.join(" | "));
    Ok(Some(name.into()))
}

/// Splits a schema.
struct Cutter<'a> {
    bare: &'a Bare,
    definitions: &'a Map<String, Value>,
    out: &'a mut Split,
    /// Constraints that get lost.
    dropped: Vec<String>,
}

impl Cutter<'_> {
    fn cut(&mut self, value: &Value, left: u32) {
        let schema = match value {
            Value::Bool(false) => return,
            Value::Object(schema) if !schema.is_empty() => schema,
            // Anything: any text, which parsers convert to JSON if possible.
            _ => return self.out.text = true,
        };
        let taken = types(schema, self.definitions);
        if taken == Types::NONE {
            return;
        }
        if !taken.has(Types::STRING) {
            return self.out.json.push(value.clone());
        }
        let combined =
            ["$ref", "allOf", "anyOf", "oneOf"].iter().filter(|k| schema.contains_key(**k)).count();
        let valued = schema.contains_key("enum") || schema.contains_key("const");
        match left.checked_sub(1) {
            Some(left) if combined == 1 && schema.len() == 1 => self.apart(schema, left),
            _ if combined > 0 => self.unclear(taken),
            _ if valued => self.values(schema),
            _ => self.string(schema),
        }
    }

    /// A schema that is only a reference or alternatives.
    fn apart(&mut self, schema: &Map<String, Value>, left: u32) {
        let target = schema.get("$ref").and_then(Value::as_str).and_then(|r| r.strip_prefix("#/$defs/"));
        if let Some(target) = target.and_then(|name| self.definitions.get(name)) {
            return self.cut(target, left);
        }
        match (schema.get("anyOf"), schema.get("allOf")) {
            (Some(Value::Array(any)), _) => any.iter().for_each(|v| self.cut(v, left)),
            (_, Some(Value::Array(all))) if all.len() == 1 => self.cut(&all[0], left),
            _ => self.unclear(types(schema, self.definitions)),
        }
    }

    /// Strings with constraints that cannot be separated from other types.
    fn unclear(&mut self, taken: Types) {
        self.out.text = true;
        if taken == Types::STRING {
            self.dropped
                .push("rules for a string that are combined are not supported in this model's syntax".into());
        }
    }

    fn values(&mut self, schema: &Map<String, Value>) {
        let constant = schema.get("const").map(std::slice::from_ref);
        let listed = schema.get("enum").and_then(Value::as_array).map(Vec::as_slice);
        let mut others = Vec::new();
        for value in constant.or(listed).unwrap_or_default() {
            match value {
                Value::String(s) if self.bare.is_value(s) => self.out.choice.push(s.clone()),
                Value::String(s) => self
                    .dropped
                    .push(format!("the value '{}' holds a tag of this model's calls", s.escape_debug())),
                other => others.push(other.clone()),
            }
        }
        if !others.is_empty() {
            let mut schema = schema.clone();
            schema.remove("const");
            schema.insert("enum".into(), Value::Array(others));
            self.without_string(schema);
        }
    }

    /// A schema without alternatives except its types.
    fn string(&mut self, schema: &Map<String, Value>) {
        let mut regexes = Vec::new();
        let bound = |name: &str| schema.get(name).and_then(Value::as_u64);
        if let (min, Some(max)) = (bound("minLength").unwrap_or(0), bound("maxLength")) {
            regexes.push(format!("(?s:.{{{min},{max}}})"));
        } else if let Some(min) = bound("minLength").filter(|n| *n > 0) {
            regexes.push(format!("(?s:.{{{min},}})"));
        }
        if let Some(Ok(pattern)) = schema.get("pattern").and_then(Value::as_str).map(regex::search) {
            regexes.push(pattern);
        }
        if let Some(format) = schema.get("format").and_then(Value::as_str) {
            self.dropped.push(format!(
                "the format '{}' is not supported in this model's syntax",
                format.escape_debug()
            ));
        }
        if regexes.is_empty() {
            self.out.text = true;
        } else {
            self.out.limited.push(regexes);
        }
        if !schema.contains_key("type") || schema.get("type").is_some_and(|t| t != "string") {
            self.without_string(schema.clone());
        }
    }

    /// The same schema for all other types.
    fn without_string(&mut self, mut schema: Map<String, Value>) {
        let listed = schema.contains_key("enum");
        match schema.get_mut("type") {
            Some(Value::Array(names)) => names.retain(|n| n != "string"),
            Some(Value::String(name)) if name == "string" => return,
            Some(_) => {}
            None if listed => {}
            None => {
                let names = ["null", "boolean", "number", "array", "object"];
                schema.insert("type".into(), names.map(Value::from).to_vec().into());
            }
        }
        self.out.json.push(Value::Object(schema));
    }
}
