//! Calls as tags around bare text: Qwen3-Coder's syntax. Called by `tools`.
//!
//! Parameters come in any order, each at most once, the required ones all: a rule with one bit of state for each. A string is
//! written as it is, all else as JSON.

use serde_json::{Map, Value};

use super::{Arguments, Rules, bare};
use crate::schema::{Policy, Prepared, Types, pointer_segment, types};
use crate::{Error, Tool, lark, regex};

/// Most parameters in any order: the bits of a rule's state. More come in the order of the schema.
const ORDERLESS_MAX: usize = 60;

/// One parameter.
struct Parameter {
    name: String,
    required: bool,
    /// Name of the rule for its value, with the end of the parameter.
    rule: String,
}

/// Writes rule `call{i}`: what stands behind `<function=`, up to the closing tag.
pub(super) fn write(
    rules: &mut Rules,
    i: usize,
    tool: &Tool,
    given: Option<&Arguments<'_>>,
) -> Result<(), Error> {
    let (parameters, others) = match given {
        None => (Vec::new(), true),
        Some(arguments) => parameters(rules, i, arguments)?,
    };
    if !rules.text.contains("\ntext: ") && !rules.text.starts_with("text: ") {
        rules.text.push_str(&bare::rules());
    }
    let list = format!("list{i}");
    let end = format!("{}close", lark::literal("</function>\n"));
    let other = others.then(|| other(rules, i, &parameters));
    if parameters.len() > ORDERLESS_MAX {
        let mut body = String::new();
        for p in &parameters {
            let one = one(p);
            body.push_str(&if p.required { format!("{one} ") } else { format!("[{one}] ") });
        }
        let other = other.map_or(String::new(), |o| format!("({o})* "));
        rules.rule(&list, &format!("{body}{other}{end}"));
        rules.rule(&format!("call{i}"), &format!("{}{list}", lark::literal(&format!("{}>\n", tool.name))));
        return Ok(());
    }
    // Required ones have the lowest bits, so that one condition covers them.
    let mut order: Vec<&Parameter> = parameters.iter().collect();
    order.sort_by_key(|p| !p.required);
    let required = order.iter().filter(|p| p.required).count();
    let mut alternatives = vec![match required {
        0 => end,
        n => format!("{end} %if is_ones([0:{n}])"),
    }];
    for (bit, p) in order.iter().enumerate() {
        alternatives.push(format!("{} {list}::set_bit({bit}) %if bit_clear({bit})", one(p)));
    }
    let state = !order.is_empty();
    if let Some(other) = other {
        alternatives.push(format!("{other} {list}{}", if state { "::_" } else { "" }));
    }
    rules.rule(&format!("{list}{}", if state { "::_" } else { "" }), &alternatives.join("\n    | "));
    let start = if state { format!("{list}::0x0") } else { list };
    rules.rule(&format!("call{i}"), &format!("{}{start}", lark::literal(&format!("{}>\n", tool.name))));
    Ok(())
}

/// A parameter, from its tag to its end.
fn one(p: &Parameter) -> String {
    format!("{}{}", lark::literal(&format!("<parameter={}>\n", p.name)), p.rule)
}

/// A parameter of any other name, with any value.
fn other(rules: &mut Rules, i: usize, listed: &[Parameter]) -> String {
    let name = format!("OTHER{i}");
    let listed: Vec<String> = listed.iter().map(|p| lark::literal(&p.name)).collect();
    let not = if listed.is_empty() { String::new() } else { format!(" & ~({})", listed.join("| ")) };
    rules.rule(&name, &format!("/[^<>\\n]{{1,256}}/{not}"));
    format!("{}{name} {}text", lark::literal("<parameter="), lark::literal(">\n"))
}

/// The parameters that a schema lists, their values' rules written; and whether it takes others.
fn parameters(
    rules: &mut Rules,
    i: usize,
    arguments: &Arguments<'_>,
) -> Result<(Vec<Parameter>, bool), Error> {
    let Value::Object(schema) = arguments.schema else { return Ok((Vec::new(), false)) };
    // The whole is prepared for its checks: of sizes, of what is not supported.
    let whole = arguments.prepare(arguments.schema, &arguments.path, true)?;
    rules.warnings.extend(whole.warnings);
    for name in
        ["allOf", "anyOf", "oneOf", "patternProperties", "minProperties", "maxProperties", "enum", "const"]
    {
        if schema.contains_key(name) {
            problem(
                rules,
                arguments,
                &arguments.path,
                format!("'{name}' is not supported at the top of a tool's parameters in this model's syntax"),
            )?;
        }
    }
    let combined = ["allOf", "anyOf", "oneOf"].iter().any(|k| schema.contains_key(*k));
    let others = match schema.get("additionalProperties") {
        None => combined && !schema.contains_key("properties"),
        Some(value) => value != &Value::Bool(false),
    };
    let required: Vec<&str> = schema
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let empty = Map::new();
    let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&empty);
    let mut out = Vec::new();
    for (j, (name, value)) in properties.iter().enumerate() {
        let path = format!("{}/properties/{}", arguments.path, pointer_segment(name));
        let is_required = required.contains(&name.as_str());
        if !bare::is_name(name) {
            let what = "the name cannot be written in a tag: it is empty, or has <, > or a new line";
            problem(rules, arguments, &path, what.into())?;
            continue;
        }
        // Its own findings were reported with the whole.
        let prepared = arguments.prepare(value, &path, false)?;
        let rule = self::value(rules, &format!("value{i}_{j}"), &prepared, arguments, &path)?;
        match rule {
            Some(rule) => out.push(Parameter { name: name.clone(), required: is_required, rule }),
            None if is_required => {
                let what = "is required, and no value is valid".into();
                return Err(Error::Schema { subject: arguments.subject.clone(), path, what });
            }
            None => {}
        }
    }
    for name in required {
        if !properties.contains_key(name) {
            if others && bare::is_name(name) {
                out.push(Parameter { name: name.into(), required: true, rule: "text".into() });
            } else {
                let what = format!("'{}' is required and not listed in 'properties'", name.escape_debug());
                problem(rules, arguments, &arguments.path, what)?;
            }
        }
    }
    Ok((out, others))
}

/// Something that this syntax cannot enforce.
fn problem(rules: &mut Rules, arguments: &Arguments<'_>, path: &str, what: String) -> Result<(), Error> {
    let error = Error::Schema { subject: arguments.subject.clone(), path: path.into(), what };
    if arguments.policy != Policy::Relax {
        return Err(error);
    }
    rules.warnings.push(format!("{error}; not enforced"));
    Ok(())
}

/// What a schema takes, split by how it is written.
#[derive(Default)]
struct Split {
    /// Any text.
    text: bool,
    /// Text that meets all regexes of one of these.
    limited: Vec<Vec<String>>,
    /// Exactly these texts.
    choice: Vec<String>,
    /// Schemas of what is written as JSON.
    json: Vec<Value>,
}

/// Writes the rule for a value and gives its name; `None` where no value is valid.
fn value(
    rules: &mut Rules,
    name: &str,
    prepared: &Prepared,
    arguments: &Arguments<'_>,
    path: &str,
) -> Result<Option<String>, Error> {
    let no_definitions = Map::new();
    let definitions = prepared.schema.get("$defs").and_then(Value::as_object).unwrap_or(&no_definitions);
    let mut split = Split::default();
    let mut schema = prepared.schema.clone();
    if let Value::Object(s) = &mut schema {
        s.remove("$defs");
    }
    let mut cutter = Cutter { definitions, out: &mut split, dropped: Vec::new() };
    cutter.cut(&schema, 8);
    for what in cutter.dropped {
        problem(rules, arguments, path, what)?;
    }
    let mut alternatives = Vec::new();
    if split.text {
        alternatives.push("text".to_string());
    } else {
        for (n, regexes) in split.limited.iter().enumerate() {
            let terminal = format!("{}_{n}", name.to_uppercase());
            rules.rule(&terminal, &bare::limited(regexes));
            alternatives.push(terminal);
        }
        if !split.choice.is_empty() {
            alternatives.push(bare::choice(&split.choice));
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
        alternatives.push(format!("{}{}", lark::json(&json), bare::end()));
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

/// Takes a schema apart.
struct Cutter<'a> {
    definitions: &'a Map<String, Value>,
    out: &'a mut Split,
    /// What gets lost.
    dropped: Vec<String>,
}

impl Cutter<'_> {
    fn cut(&mut self, value: &Value, left: u32) {
        let schema = match value {
            Value::Bool(false) => return,
            Value::Object(schema) if !schema.is_empty() => schema,
            // Whatever: any text, which whoever reads the call takes for JSON if it is.
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

    /// A schema that is nothing but a reference or alternatives.
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

    /// Strings among others, by rules that are not simply told apart.
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
                Value::String(s) if bare::is_value(s) => self.out.choice.push(s.clone()),
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

    /// A schema with no alternatives but its types.
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
