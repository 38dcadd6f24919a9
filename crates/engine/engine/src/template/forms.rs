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
    pub content: ContentForm,
    pub arguments: ArgumentsForm,
}

/// Texts that no template and no vocabulary contains.
const FIRST: &str = "zqfirst";
const SECOND: &str = "zqsecond";

impl Forms {
    /// Finds the forms; `render` turns messages and tools into a prompt, or `None` if the template rejects them.
    pub(super) fn find(render: impl Fn(&[Value], &[Value]) -> Option<String>) -> Self {
        Self { content: content(&render), arguments: arguments(&render) }
    }
}

fn content(render: &impl Fn(&[Value], &[Value]) -> Option<String>) -> ContentForm {
    let text = || Value::from(FIRST);
    let parts = || json!([{"type": "text", "text": FIRST}, {"type": "text", "text": SECOND}]);
    // Each role separately: a template may treat them differently, or lack some.
    let mut form = None;
    for role in ["user", "system", "assistant"] {
        let chat = |content: Value| {
            let mut messages = vec![json!({"role": role, "content": content})];
            if role == "assistant" {
                messages.insert(0, json!({"role": "user", "content": "hi"}));
            } else {
                messages.extend([
                    json!({"role": "assistant", "content": "hi"}),
                    json!({"role": "user", "content": "hi"}),
                ]);
                if role == "system" {
                    messages.swap(1, 2);
                }
            }
            render(&messages, &[])
        };
        let as_text = chat(text()).is_some_and(|p| p.contains(FIRST));
        let as_parts =
            chat(parts()).is_some_and(|p| p.contains(FIRST) && p.contains(SECOND) && !is_printed(&p));
        match (as_text, as_parts) {
            (true, true) => {
                form.get_or_insert(ContentForm::TextOrParts);
            }
            (true, false) => return ContentForm::Text,
            (false, true) => form = Some(ContentForm::Parts),
            // The template lacks this role.
            (false, false) => {}
        }
    }
    form.unwrap_or(ContentForm::TextOrParts)
}

/// Whether a list of parts was printed as Python data.
fn is_printed(prompt: &str) -> bool {
    [format!("': '{FIRST}'"), format!("\": \"{FIRST}\"")].iter().any(|p| prompt.contains(p))
}

fn arguments(render: &impl Fn(&[Value], &[Value]) -> Option<String>) -> ArgumentsForm {
    let name = "zqname";
    let parameters = json!({"type": "object", "properties": {FIRST: {"type": "string"}}});
    let tool =
        json!({"type": "function", "function": {"name": name, "description": "-", "parameters": parameters}});
    let chat = |arguments: Value| {
        let call = json!({"type": "function", "id": "zqid12345", "function": {"name": name, "arguments": arguments}});
        let messages = [
            json!({"role": "user", "content": "hi"}),
            json!({"role": "assistant", "content": "", "tool_calls": [call]}),
        ];
        render(&messages, std::slice::from_ref(&tool)).filter(|p| p.contains(SECOND))
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
        if let Some(content) = message.get_mut("content") {
            shape_content(content, forms.content);
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
