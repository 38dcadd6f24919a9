//! Writes a `Converse` request.

use serde_json::{Map, Value, json};

use super::SIGNED;
use crate::ApiError;
use crate::core::{
    Chat, GenerateRequest, Image, ImageSource, Message, Part, ReasoningPart, ResponseFormat, Role, Tool,
    ToolChoice,
};
use crate::dialect::Body;

/// The request. The model and streaming are in the URL.
///
/// # Errors
/// Prompts without messages.
pub fn body(request: &GenerateRequest) -> Result<Body, ApiError> {
    let chat = request.chat_only()?;
    let mut b = Body::empty();
    conversation(&mut b, chat);
    tools(&mut b, chat);
    let config = config(&mut b, request, chat);
    b.set("inferenceConfig", (!config.is_empty()).then_some(config));
    Ok(b)
}

fn config(b: &mut Body, r: &GenerateRequest, chat: &Chat) -> Map<String, Value> {
    let s = &r.sampling;
    let mut c = Body::empty();
    c.set("maxTokens", r.max_tokens);
    c.set("temperature", s.temperature);
    c.set("topP", s.top_p);
    c.set("stopSequences", (!r.stop.is_empty()).then(|| r.stop.clone()));
    b.drop_if(s.top_k.is_some(), "top_k");
    b.drop_all_but_the_basics(r);
    b.drop_if(r.response_format != ResponseFormat::Text, "response_format");
    b.drop_if(!chat.template_kwargs.is_empty(), "chat_template_kwargs");
    // Each model family has its own fields for it, which belong into extra_body's additionalModelRequestFields.
    let wanted = chat.reasoning.enabled == Some(true)
        || chat.reasoning.effort.is_some()
        || chat.reasoning.budget_tokens.is_some();
    b.drop_if(wanted, "reasoning_effort");
    c.json
}

fn tools(b: &mut Body, chat: &Chat) {
    // A conversation with tool calls is refused without the tools' descriptions.
    if chat.tools.is_empty() || chat.tool_choice == ToolChoice::None && !calls_tools(chat) {
        return;
    }
    let tools: Vec<Value> = chat.tools.iter().map(tool).collect();
    let mut config = json!({"tools": tools});
    match &chat.tool_choice {
        ToolChoice::Auto => {}
        // The API has no value for it.
        ToolChoice::None => b.drop_tool_choice(chat),
        ToolChoice::Required => config["toolChoice"] = json!({"any": {}}),
        ToolChoice::Named(name) => config["toolChoice"] = json!({"tool": {"name": name}}),
    }
    b.drop_parallel_tool_calls(chat);
    b.set("toolConfig", Some(config));
}

fn calls_tools(chat: &Chat) -> bool {
    chat.messages.iter().any(|m| !m.tool_calls.is_empty() || m.role == Role::Tool)
}

fn tool(t: &Tool) -> Value {
    let mut schema = t.parameters.clone();
    schema.entry("type").or_insert("object".into());
    let mut spec = json!({"name": t.name, "inputSchema": {"json": schema}});
    if let Some(text) = t.description.as_deref().filter(|d| !d.is_empty()) {
        spec["description"] = text.into();
    }
    json!({"toolSpec": spec})
}

/// Writes `system` and `messages`. Tool results are user messages here, and adjacent messages of one role are merged.
fn conversation(b: &mut Body, chat: &Chat) {
    let mut system = Vec::new();
    let mut messages: Vec<(&str, Vec<Value>)> = Vec::new();
    let mut files = 0;
    for m in &chat.messages {
        let (role, blocks) = match m.role {
            Role::System | Role::Developer => {
                system.extend(parts(m, &mut files));
                continue;
            }
            Role::User => ("user", parts(m, &mut files)),
            Role::Tool => ("user", vec![tool_result(m, &mut files)]),
            Role::Assistant => ("assistant", assistant(m, &mut files)),
        };
        match messages.last_mut() {
            Some((last, all)) if *last == role => all.extend(blocks),
            _ if blocks.is_empty() => {}
            _ => messages.push((role, blocks)),
        }
    }
    b.set("system", (!system.is_empty()).then_some(system));
    let messages: Vec<Value> =
        messages.into_iter().map(|(role, blocks)| json!({"role": role, "content": blocks})).collect();
    b.set("messages", Some(messages));
    let by_address =
        |p: &Part| matches!(p, Part::Image { image, .. } if matches!(image.source, ImageSource::Url(_)));
    b.drop_if(chat.messages.iter().any(|m| m.content.iter().any(by_address)), "image_url");
}

fn parts(m: &Message, files: &mut usize) -> Vec<Value> {
    m.content.iter().filter_map(|p| part(p, files)).collect()
}

/// `None` for an empty text, which the provider refuses, and for images by URL, which are reported as dropped.
fn part(p: &Part, files: &mut usize) -> Option<Value> {
    match p {
        Part::Text { text, .. } if text.is_empty() => None,
        Part::Text { text, .. } => Some(json!({"text": text})),
        Part::Image { image, .. } => file(image, files),
    }
}

fn file(image: &Image, files: &mut usize) -> Option<Value> {
    let ImageSource::Base64 { data, .. } = &image.source else { return None };
    let format = image.media_type().and_then(|t| t.rsplit('/').next()).unwrap_or("png");
    let source = json!({"bytes": data});
    Some(if image.is_document() {
        *files += 1;
        let format = if format == "plain" { "txt" } else { format };
        json!({"document": {"format": format, "name": format!("document {files}"), "source": source}})
    } else {
        let format = if format == "jpg" { "jpeg" } else { format };
        json!({"image": {"format": format, "source": source}})
    })
}

fn tool_result(m: &Message, files: &mut usize) -> Value {
    let mut content = parts(m, files);
    if content.is_empty() {
        // It must not be empty.
        content.push(json!({"text": "(no output)"}));
    }
    let id = safe_id(m.tool_call_id.as_deref().unwrap_or(""));
    let mut result = json!({"toolUseId": id, "content": content});
    if m.is_error {
        result["status"] = "error".into();
    }
    json!({"toolResult": result})
}

fn assistant(m: &Message, files: &mut usize) -> Vec<Value> {
    let mut blocks = Vec::new();
    for r in &m.reasoning {
        if let ReasoningPart::Text { text, signature: Some(signature) } = r
            && let Some(signature) = signature.strip_prefix(SIGNED)
        {
            let text = json!({"text": text, "signature": signature});
            blocks.push(json!({"reasoningContent": {"reasoningText": text}}));
        }
    }
    blocks.extend(parts(m, files));
    for call in &m.tool_calls {
        let input = call.exact_arguments();
        blocks.push(json!({"toolUse": {"toolUseId": safe_id(&call.id), "name": call.name, "input": input}}));
    }
    blocks
}

/// An id with the characters and the length that the provider allows.
fn safe_id(id: &str) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() || c == '_' || c == '-' { c } else { '_' };
    id.chars().take(64).map(safe).collect()
}
