//! A suite of tasks as data: reads it, and makes one repetition of a task.

use anyhow::{Context, bail, ensure};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::needle::{self, Needle};
use super::parse::{regex, schema};
use crate::random::mixed;

/// The suite that the program brings.
const GAUNTLET: &str = include_str!("gauntlet.toml");
pub const GAUNTLET_NAME: &str = "gauntlet";

/// Tasks.
#[derive(Debug)]
pub struct Suite {
    pub name: String,
    tasks: Vec<Task>,
}

/// The file. Tasks are read once more when their variables are filled in.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: String,
    task: Vec<Map<String, Value>>,
}

/// A task, or a needle at one depth.
#[derive(Debug, Clone)]
pub struct Task {
    pub name: String,
    /// Without the fields above.
    fields: Map<String, Value>,
    variants: Vec<Map<String, Value>>,
    /// The needle, and its depth in percent.
    needle: Option<(Needle, u32)>,
}

/// What is asked in one repetition, and how the answer is judged.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// What the user says.
    prompt: Option<String>,
    /// The conversation, in OpenAI's form: instead of a prompt.
    #[serde(default, deserialize_with = "json")]
    messages: Option<Value>,
    /// The system's message.
    system: Option<String>,
    /// Most tokens of the answer.
    pub max_tokens: Option<u64>,
    /// Tools in OpenAI's form.
    #[serde(default, deserialize_with = "json")]
    pub tools: Option<Value>,
    /// Whether the schema of the check goes with the request.
    #[serde(default)]
    response_format: bool,
    pub check: Check,
}

/// How an answer is judged.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Check {
    /// The text after the last "Answer:", or else all of it, is one of these, but for white space and marks around it.
    Exact(Vec<String>),
    /// So is the last number in it.
    Number(Number),
    /// The pattern occurs in the answer.
    Regex(String),
    /// The answer is JSON of this form.
    Json(Form),
    /// The answer makes these calls, in any order, and no others.
    Calls(Vec<Call>),
    /// The answer's code passes tests.
    Python(Tests),
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Number {
    pub value: f64,
    /// How far from it is near enough.
    #[serde(default)]
    pub within: f64,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Form {
    /// JSON schema.
    #[serde(deserialize_with = "some_json")]
    pub schema: Value,
    /// Values at JSON pointers. A text has to occur in the answer's text.
    #[serde(default)]
    pub values: Map<String, Value>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    pub name: String,
    #[serde(default)]
    pub arguments: Map<String, Value>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tests {
    /// A name that the answer has to define.
    pub defines: String,
    /// Functions `test_...`, which see all names of the answer's code, and its text as `SOURCE`.
    pub tests: String,
}

/// JSON, also as a text.
fn json<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Value>, D::Error> {
    some_json(from).map(Some)
}

fn some_json<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Value, D::Error> {
    match Value::deserialize(from)? {
        Value::String(text) => serde_json::from_str(&text).map_err(serde::de::Error::custom),
        value => Ok(value),
    }
}

impl Suite {
    /// The suite of this name, or of a file.
    pub fn open(name: &str) -> anyhow::Result<Self> {
        if name == GAUNTLET_NAME {
            return Self::read(GAUNTLET);
        }
        let path = std::path::Path::new(name);
        ensure!(
            path.exists(),
            "{name}: there is no such suite and no such file; the built-in suite is '{GAUNTLET_NAME}'"
        );
        Self::read(&crate::chat::read(path)?).with_context(|| name.to_string())
    }

    fn read(text: &str) -> anyhow::Result<Self> {
        let file: File = toml::from_str(text)?;
        let mut tasks: Vec<Task> = Vec::new();
        for fields in file.task {
            for task in read_task(fields)? {
                ensure!(!tasks.iter().any(|t| t.name == task.name), "two tasks are named '{}'", task.name);
                tasks.push(task);
            }
        }
        ensure!(!tasks.is_empty(), "has no tasks");
        // Each variant has to be complete: a mistake in the file shows before the first question.
        for task in &tasks {
            for repetition in 0..task.variants.len() {
                task.question(repetition, 0).with_context(|| format!("task '{}'", task.name))?;
            }
        }
        Ok(Self { name: file.name, tasks })
    }

    /// The tasks whose names begin with one of these; all, without any.
    pub fn tasks(&self, wanted: &[String]) -> anyhow::Result<Vec<&Task>> {
        for name in wanted {
            let known = self.tasks.iter().map(|t| t.name.as_str()).collect::<Vec<_>>();
            ensure!(
                known.iter().any(|k| k.starts_with(name.as_str())),
                "the suite has no task '{name}'; it has {}",
                known.join(", ")
            );
        }
        let is_wanted = |t: &&Task| wanted.is_empty() || wanted.iter().any(|w| t.name.starts_with(w));
        Ok(self.tasks.iter().filter(is_wanted).collect())
    }
}

/// One task, or one of each depth of a needle.
fn read_task(mut fields: Map<String, Value>) -> anyhow::Result<Vec<Task>> {
    let Some(Value::String(name)) = fields.remove("name") else { bail!("a task has no name") };
    let read = || -> anyhow::Result<Vec<Task>> {
        let variants: Vec<Map<String, Value>> = match fields.remove("variant") {
            Some(list) => serde_json::from_value(list).context("variant")?,
            None => vec![Map::new()],
        };
        ensure!(!variants.is_empty(), "has an empty list of variants");
        let needle: Option<Needle> =
            fields.remove("needle").map(serde_json::from_value).transpose().context("needle")?;
        let Some(needle) = needle else {
            return Ok(vec![Task { name: name.clone(), fields, variants, needle: None }]);
        };
        needle.check()?;
        let at = |depth: &u32| Task {
            name: format!("{name} {depth}%"),
            fields: fields.clone(),
            variants: variants.clone(),
            needle: Some((needle.clone(), *depth)),
        };
        Ok(needle.depths.iter().map(at).collect())
    };
    read().with_context(|| format!("task '{name}'"))
}

impl Task {
    /// The question of a repetition, counted from 0. The seed chooses a needle's text.
    pub fn question(&self, repetition: usize, seed: u64) -> anyhow::Result<Question> {
        let mut values = self.variants[repetition % self.variants.len()].clone();
        if let Some((needle, depth)) = &self.needle {
            let seed = mixed(seed ^ mixed(repetition as u64) ^ u64::from(*depth));
            let number = needle::number(seed);
            values.insert("number".into(), number.into());
            let sentence = filled(&needle.sentence, &values)?;
            values.insert("haystack".into(), needle.haystack(&sentence, *depth, seed).into());
        }
        let fields = fill(Value::Object(self.fields.clone()), &values)?;
        let question: Question = serde_json::from_value(fields)?;
        ensure!(
            question.prompt.is_some() != question.messages.is_some(),
            "has to have either a prompt or messages"
        );
        ensure!(
            !question.response_format || matches!(question.check, Check::Json(_)),
            "has a response_format, but its check is no JSON schema"
        );
        match &question.check {
            Check::Regex(pattern) => drop(regex(pattern)?),
            Check::Json(form) => drop(schema(&form.schema)?),
            _ => {}
        }
        Ok(question)
    }
}

impl Question {
    /// The fields of the request that the question decides.
    pub fn request(&self) -> Map<String, Value> {
        let mut out = Map::new();
        let mut messages: Vec<Value> = Vec::new();
        let said = |role: &str, text: &str| serde_json::json!({"role": role, "content": text.trim()});
        messages.extend(self.system.as_deref().map(|text| said("system", text)));
        messages.extend(self.prompt.as_deref().map(|text| said("user", text)));
        messages.extend(self.messages.iter().flat_map(|m| m.as_array().cloned().unwrap_or_default()));
        out.insert("messages".into(), messages.into());
        if let Some(tools) = &self.tools {
            out.insert("tools".into(), tools.clone());
        }
        if let (true, Check::Json(form)) = (self.response_format, &self.check) {
            let schema = serde_json::json!({"name": "answer", "strict": true, "schema": form.schema});
            out.insert(
                "response_format".into(),
                serde_json::json!({"type": "json_schema", "json_schema": schema}),
            );
        }
        out
    }
}

/// Puts values into the `{{name}}` of all texts. A text that is nothing else becomes the value itself.
fn fill(value: Value, values: &Map<String, Value>) -> anyhow::Result<Value> {
    Ok(match value {
        Value::String(text) => {
            let alone = text.strip_prefix("{{").and_then(|t| t.strip_suffix("}}"));
            match alone.and_then(|name| values.get(name)) {
                Some(value) => value.clone(),
                None => filled(&text, values)?.into(),
            }
        }
        Value::Array(all) => all.into_iter().map(|v| fill(v, values)).collect::<Result<_, _>>()?,
        Value::Object(all) => {
            let all = all.into_iter().map(|(k, v)| Ok((k, fill(v, values)?)));
            Value::Object(all.collect::<anyhow::Result<_>>()?)
        }
        value => value,
    })
}

/// The same for one text.
fn filled(text: &str, values: &Map<String, Value>) -> anyhow::Result<String> {
    let is_name = |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
    let (mut out, mut rest) = (String::new(), text);
    while let Some(at) = rest.find("{{") {
        let (before, after) = rest.split_at(at);
        out += before;
        // Braces around anything else are the text's own.
        let Some((name, end)) = after[2..].split_once("}}").filter(|(name, _)| is_name(name)) else {
            out += "{{";
            rest = &after[2..];
            continue;
        };
        match values.get(name) {
            Some(Value::String(value)) => out += value.trim_end_matches('\n'),
            Some(value) => out += &value.to_string(),
            None => bail!("has {{{{{name}}}}}, but a variant has no '{name}'"),
        }
        rest = end;
    }
    Ok(out + rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_suite_is_complete() {
        let suite = Suite::open(GAUNTLET_NAME).unwrap();
        assert_eq!(suite.name, GAUNTLET_NAME);
        let names: Vec<&str> = suite.tasks.iter().map(|t| t.name.as_str()).collect();
        for name in
            ["lru-cache", "list-aliasing", "train-and-bird", "json-by-schema", "tool-call", "needle 50%"]
        {
            assert!(names.contains(&name), "{name}: {names:?}");
        }
        for task in &suite.tasks {
            for repetition in 0..7 {
                let request = Value::Object(task.question(repetition, 1).unwrap().request()).to_string();
                assert!(!request.contains("{{"), "{}: {request}", task.name);
            }
        }
        assert_eq!(suite.tasks(&["needle".into(), "lru".into()]).unwrap().len(), 6);
        assert!(suite.tasks(&["nothing".into()]).unwrap_err().to_string().contains("train-and-bird"));
    }

    #[test]
    fn repetitions_go_through_the_variants() {
        let text = r#"
            name = "s"
            [[task]]
            name = "t"
            prompt = "{{a}} and {{b}}, {not this}"
            check.number = { value = "{{b}}" }
            variant = [{ a = "x", b = 1.5 }, { a = "y", b = 2 }]
        "#;
        let suite = Suite::read(text).unwrap();
        let asked = |i| suite.tasks[0].question(i, 0).unwrap();
        assert_eq!(asked(0).prompt.unwrap(), "x and 1.5, {not this}");
        assert_eq!(asked(3).prompt.unwrap(), "y and 2, {not this}");
        assert!(matches!(asked(1).check, Check::Number(Number { value: 2.0, .. })));
    }

    #[test]
    fn mistakes_are_named() {
        let task = |more: &str| format!("name = \"s\"\n[[task]]\nname = \"t\"\n{more}");
        for (more, words) in [
            ("prompt = \"p\"", "check"),
            ("prompt = \"{{a}}\"\ncheck.exact = [\"x\"]", "no 'a'"),
            ("check.exact = [\"x\"]", "either a prompt or messages"),
            ("prompt = \"p\"\ncheck.regex = \"(\"", "regex"),
            ("prompt = \"p\"\ncheck.json.schema = { type = 3 }", "schema"),
            ("prompt = \"p\"\ncheck.json.schema = '{'", "EOF"),
            ("prompt = \"p\"\nchecks.exact = [\"x\"]", "checks"),
            ("prompt = \"p\"\ncheck.exact = [\"x\"]\nresponse_format = true", "no JSON schema"),
            (
                "prompt = \"p\"\ncheck.exact = [\"x\"]\nneedle = { words = 9, depths = [101], sentence = \"s\" }",
                "101",
            ),
        ] {
            let e = format!("{:#}", Suite::read(&task(more)).unwrap_err());
            assert!(e.contains(words) && e.contains("task 't'"), "{more}: {e}");
        }
        let twice = task("prompt = \"p\"\ncheck.exact = [\"x\"]\n")
            + "[[task]]\nname = \"t\"\nprompt = \"p\"\ncheck.exact = [\"x\"]";
        assert!(Suite::read(&twice).unwrap_err().to_string().contains("two tasks"));
    }
}
