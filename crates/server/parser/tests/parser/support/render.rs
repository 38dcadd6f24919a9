//! Models' own chat templates, as transformers renders them: just what the reference templates use of Jinja.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, context};
use serde_json::Value as Json;

/// The template's source; `None` without reference data.
pub fn source(name: &str) -> Option<String> {
    let path = octet_testkit::shared(&format!("templates/{name}.jinja"))?;
    Some(std::fs::read_to_string(path).unwrap())
}

/// The prompt of `messages`.
pub fn render(source: &str, messages: &[Json], tools: &Json) -> String {
    let mut env = Environment::new();
    env.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().unwrap());
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    env.add_function("raise_exception", |message: String| -> Result<String, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    env.add_filter("tojson", |value: Value| python_json(&serde_json::to_value(&value).unwrap()));
    env.add_filter("string", |value: Value| match serde_json::to_value(&value).unwrap() {
        Json::Null => "None".into(),
        Json::Bool(true) => "True".into(),
        Json::Bool(false) => "False".into(),
        Json::String(text) => text,
        other => python_json(&other),
    });
    env.add_template("chat", source).unwrap();
    let messages: Value = messages.iter().map(|m| Value::from(Serde(m.clone()))).collect();
    let context = context! { messages, tools => Value::from(Serde(tools.clone())) };
    env.get_template("chat").unwrap().render(context).unwrap_or_else(|e| panic!("{e:#}"))
}

/// `json.dumps(value, ensure_ascii=False)`.
pub fn python_json(value: &Json) -> String {
    match value {
        Json::Array(items) => {
            format!("[{}]", items.iter().map(python_json).collect::<Vec<_>>().join(", "))
        }
        Json::Object(members) => {
            let members: Vec<String> = members
                .iter()
                .map(|(k, v)| format!("{}: {}", Json::from(k.as_str()), python_json(v)))
                .collect();
            format!("{{{}}}", members.join(", "))
        }
        other => other.to_string(),
    }
}
