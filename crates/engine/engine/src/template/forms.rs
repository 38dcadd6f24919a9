//! The form of messages that a template accepts: whether content is text or a list of parts, and whether call arguments are text or
//! mappings. Found by rendering small chats; used by `ChatTemplate::render`.

use serde_json::{Map, Value, json};

use super::TemplateError;

/// The form of a message's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentForm {
    /// As given: a text, or a list of `{"type": "text", "text": ...}`, which most templates concatenate. As in transformers.
    TextOrParts,
    /// Always one text, parts on separate lines: the template drops a list, or prints it as Python does.
    Text,
    /// Always a list of parts: the template drops a text.
    Parts,
}

/// The form of a call's arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArgumentsForm {
    /// As a mapping.
    Object,
    /// As JSON text, as in OpenAI's API.
    Text,
}

/// The forms that a template accepts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Forms {
    /// By role, in the order of [`ROLES`]: templates treat them differently.
    content: [ContentForm; ROLES.len()],
    pub arguments: ArgumentsForm,
}

const ROLES: [&str; 4] = ["user", "system", "assistant", "tool"];

/// Texts that no template and no vocabulary contains.
const FIRST: &str = "zqfirst";
const SECOND: &str = "zqsecond";

impl Forms {
    /// Finds the forms; `render` turns messages and tools into a prompt, or `None` if the template rejects them.
    pub(super) fn find(render: impl Fn(&[Value], &[Value]) -> Option<String>) -> Self {
        let arguments = arguments(&render);
        let user = content(&render, "user", arguments, false);
        // The other messages, too, have to be parts if a user's has to.
        let parts = user == Some(ContentForm::Parts);
        let of = |role| if role == "user" { user } else { content(&render, role, arguments, parts) };
        let found = ROLES.map(of);
        // A role that the template lacks, or that it takes in other chats alone, is like the others; a tool's result is text.
        let known = found.iter().flatten().next().copied().unwrap_or(ContentForm::TextOrParts);
        let mut content = found.map(|form| form.unwrap_or(known));
        if found[ROLES.len() - 1].is_none() && known != ContentForm::Parts {
            content[ROLES.len() - 1] = ContentForm::Text;
        }
        Self { content, arguments }
    }

    /// The form of a message's content.
    pub(super) fn content(&self, role: &str) -> ContentForm {
        // Templates take other roles for the user's or the system's, if at all.
        let at = ROLES.iter().position(|r| *r == role).unwrap_or(0);
        self.content[at]
    }
}

/// The form for a role; `None` if the template lacks it.
fn content(
    render: &impl Fn(&[Value], &[Value]) -> Option<String>,
    role: &str,
    form: ArgumentsForm,
    others_are_parts: bool,
) -> Option<ContentForm> {
    let part = |text: &str| json!({"type": "text", "text": text});
    let parts = Value::from(vec![part(FIRST), part(SECOND)]);
    let chat = |content: &Value| {
        let hi = if others_are_parts { vec![part("hi")].into() } else { Value::from("hi") };
        let user = json!({"role": "user", "content": hi});
        let said = json!({"role": role, "content": content});
        match role {
            "user" => render(&[said], &[]),
            "system" => render(&[said, user], &[]),
            "assistant" => render(&[user.clone(), said, user], &[]),
            _ => {
                let mut call = call(json!({FIRST: "-"}));
                shape_arguments(&mut call["function"]["arguments"], form);
                let result =
                    json!({"role": role, "content": content, "tool_call_id": call["id"], "name": NAME});
                let called = json!({"role": "assistant", "content": "", "tool_calls": [call]});
                render(&[user, called, result], &[tool()])
            }
        }
    };
    let as_text = chat(&FIRST.into()).is_some_and(|p| p.contains(FIRST));
    let as_parts = chat(&parts).is_some_and(|p| p.contains(FIRST) && p.contains(SECOND) && !is_printed(&p));
    match (as_text, as_parts) {
        (true, true) => Some(ContentForm::TextOrParts),
        (true, false) => Some(ContentForm::Text),
        (false, true) => Some(ContentForm::Parts),
        (false, false) => None,
    }
}

/// Whether a list of parts was printed as Python data or JSON.
fn is_printed(prompt: &str) -> bool {
    [format!("'text': '{FIRST}'"), format!("\"text\": \"{FIRST}\"")].iter().any(|p| prompt.contains(p))
}

/// The function of the calls.
const NAME: &str = "zqname";

fn tool() -> Value {
    let parameters = json!({"type": "object", "properties": {FIRST: {"type": "string"}}});
    json!({"type": "function", "function": {"name": NAME, "description": "-", "parameters": parameters}})
}

fn call(arguments: Value) -> Value {
    json!({"type": "function", "id": "zqid12345", "function": {"name": NAME, "arguments": arguments}})
}

fn arguments(render: &impl Fn(&[Value], &[Value]) -> Option<String>) -> ArgumentsForm {
    let chat = |arguments: Value| {
        let messages = [
            json!({"role": "user", "content": "hi"}),
            json!({"role": "assistant", "content": "", "tool_calls": [call(arguments)]}),
        ];
        render(&messages, &[tool()]).filter(|p| p.contains(SECOND))
    };
    let object = json!({FIRST: SECOND});
    let python = format!("'{FIRST}': '{SECOND}'");
    if chat(object.clone()).is_some_and(|p| !p.contains(&python)) {
        return ArgumentsForm::Object;
    }
    let text = chat(object.to_string().into());
    if text.is_some_and(|p| !p.contains(&format!("\\\"{FIRST}"))) {
        ArgumentsForm::Text
    } else {
        ArgumentsForm::Object
    }
}

/// Converts messages to the form that the template accepts.
pub(super) fn shape(messages: &[Value], forms: Forms) -> Result<Vec<Value>, TemplateError> {
    let mut messages = messages.to_vec();
    for (i, message) in messages.iter_mut().enumerate() {
        if !message.is_object() {
            return Err(TemplateError::Input(format!(
                "messages[{i}] is not an object with a role and content"
            )));
        }
        let form = forms.content(message["role"].as_str().unwrap_or_default());
        if let Some(content) = message.get_mut("content") {
            shape_content(content, form);
        }
        let Some(calls) = message.get_mut("tool_calls").and_then(Value::as_array_mut) else { continue };
        for call in calls {
            let function = match call.get("function") {
                Some(_) => &mut call["function"],
                None => call,
            };
            if let Some(arguments) = function.get_mut("arguments") {
                shape_arguments(arguments, forms.arguments);
            }
        }
    }
    Ok(messages)
}

fn shape_content(content: &mut Value, form: ContentForm) {
    match (form, &*content) {
        (ContentForm::Text, Value::Array(parts)) => {
            // Lists with other parts than texts are left to the template.
            let texts: Option<Vec<&str>> =
                parts.iter().map(|p| (p["type"] == "text").then(|| p["text"].as_str())?).collect();
            if let Some(texts) = texts {
                *content = texts.join("\n").into();
            }
        }
        (ContentForm::Parts, Value::String(text)) => {
            *content = json!([{"type": "text", "text": text}]);
        }
        _ => {}
    }
}

/// Text that is not a JSON object stays text: clients' history need not have valid calls.
fn shape_arguments(arguments: &mut Value, form: ArgumentsForm) {
    match (form, &*arguments) {
        (ArgumentsForm::Object, Value::String(text)) => {
            if text.trim().is_empty() {
                *arguments = Value::Object(Map::new());
            } else if let Ok(object) = serde_json::from_str::<Map<String, Value>>(text) {
                *arguments = Value::Object(object);
            }
        }
        (ArgumentsForm::Text, Value::Object(_)) => {
            let value = minijinja::Value::from(minijinja::value::Serde(arguments.clone()));
            // If nested too deep, it stays a mapping.
            if let Ok(text) = super::python::json(&value, &super::python::JsonStyle::default()) {
                *arguments = text.into();
            }
        }
        _ => {}
    }
}
