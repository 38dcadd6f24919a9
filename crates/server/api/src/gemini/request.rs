//! Parses a client's `generateContent`.

use serde_json::Value;

use super::content::{contents, several, texts};
use super::schema::{any_schema, json_schema};
use crate::core::{
    Chat, Effort, Family, GenerateRequest, Input, Message, ResponseFormat, Role, Tool, ToolChoice, ToolOrigin,
};
use crate::json::{self, Field, Object, Result, shortened};
use crate::openai::{no_parameters, seed, stop, unique};
use crate::rules::{Rules, echo, only, refused, tuning, tuning_but};

/// Fields of the body.
const RULES: Rules = &[
    ("safetySettings", tuning("this server does not filter content")),
    ("cachedContent", refused("prompts are cached without it: send the content itself")),
    ("labels", tuning("labels are not supported")),
    ("serviceTier", tuning("there is one service tier")),
    ("store", tuning("responses are not stored")),
];

/// The same if the settings disable filters.
const UNFILTERED: Rules = &[("safetySettings", echo())];

/// Fields of `generationConfig`.
const CONFIG: Rules = &[
    ("responseModalities", only(r#"[["TEXT"], ["MODALITY_UNSPECIFIED"]]"#, "answers are text")),
    ("speechConfig", refused("answers are text")),
    ("imageConfig", refused("answers are text")),
    ("audioTranscriptionConfig", tuning("audio is not supported")),
    ("mediaResolution", tuning("media is processed by the provider")),
    ("enableEnhancedCivicAnswers", tuning("only a provider uses it")),
    ("audioTimestamp", tuning("audio is not supported")),
    ("routingConfig", tuning("the model's name selects the deployment")),
    ("modelSelectionConfig", tuning("the model's name selects the deployment")),
];

/// Fields of a function declaration.
const FUNCTION: Rules = &[
    ("response", tuning("say in the description what the function returns")),
    ("responseJsonSchema", tuning("say in the description what the function returns")),
    ("behavior", tuning_but(r#"["UNSPECIFIED", "BLOCKING"]"#, "answers wait for their functions")),
];

/// Maximum number of answers to one prompt.
const CANDIDATES_MAX: u32 = 128;

/// Parses the body of a `generateContent`, with `model` and `stream` in it.
///
/// # Errors
/// Fields that are not supported, of the wrong type or out of range, by name.
pub fn parse(body: &[u8]) -> Result<GenerateRequest> {
    let mut o = json::parse(body)?;
    let mut r = request(&mut o)?;
    r.stream = o.read("stream", Field::bool)?.unwrap_or(false);
    finish(o, &mut r)?;
    Ok(r)
}

/// Parses the body of a `countTokens`: contents, or a whole request.
pub(super) fn parse_to_count(body: &[u8]) -> Result<GenerateRequest> {
    let mut o = json::parse(body)?;
    o.camel_case();
    let Some(whole) = o.take("generateContentRequest") else {
        let mut r = request(&mut o)?;
        finish(o, &mut r)?;
        return Ok(r);
    };
    let model = o.model()?;
    o.finish(&[])?;
    let mut whole = whole.object()?;
    let mut r = request(&mut whole)?;
    r.model = model;
    finish(whole, &mut r)?;
    Ok(r)
}

fn finish(mut o: Object, r: &mut GenerateRequest) -> Result<()> {
    r.timeout = o.timeout()?;
    let warnings = o.warnings();
    let is_open = |s: &Value| {
        matches!(s["threshold"].as_str(), Some("BLOCK_NONE" | "OFF" | "HARM_BLOCK_THRESHOLD_UNSPECIFIED"))
    };
    let unfiltered =
        o.peek("safetySettings").and_then(Value::as_array).is_some_and(|all| all.iter().all(is_open));
    r.extra = o.finish(&[if unfiltered { UNFILTERED } else { &[] }, RULES])?;
    r.warnings = warnings.take();
    Ok(())
}

fn request(o: &mut Object) -> Result<GenerateRequest> {
    o.camel_case();
    let model = o.model()?;
    let mut chat = Chat::default();
    if let Some(f) = o.take("systemInstruction") {
        let content = texts(f)?;
        if !content.is_empty() {
            chat.messages.push(Message { content, ..Message::empty(Role::System) });
        }
    }
    let first = chat.messages.len();
    chat.messages.extend(contents(o.require("contents")?, first)?);
    chat.continue_final =
        chat.messages.last().is_some_and(|m| m.role == Role::Assistant && m.tool_calls.is_empty());
    o.settle_unread(&chat.current_turn())?;
    if let Some(f) = o.take("tools") {
        for f in several(f)? {
            tools(f, &mut chat.tools)?;
        }
        unique(&chat.tools)?;
    }
    if let Some(f) = o.take("toolConfig") {
        let mut config = f.object()?;
        config.camel_case();
        if let Some(f) = config.take("functionCallingConfig") {
            choice(f, &mut chat)?;
        }
        config.finish(&[&[
            ("retrievalConfig", tuning("this server retrieves nothing")),
            ("includeServerSideToolInvocations", tuning("this server runs no tools itself")),
        ]])?;
    }
    let mut r = GenerateRequest::new(model, Input::Chat(chat));
    if let Some(f) = o.take("generationConfig") {
        config(f, &mut r)?;
    } else {
        hide_thoughts(&mut r, true);
    }
    r.include_usage = true;
    r.origin = Family::Gemini;
    Ok(r)
}

/// One entry of `tools`. Hosted tools are left out.
fn tools(f: Field, out: &mut Vec<Tool>) -> Result<()> {
    let mut o = f.object()?;
    o.camel_case();
    if let Some(f) = o.take("functionDeclarations") {
        for f in several(f)? {
            out.push(function(f)?);
        }
    }
    for (_, field) in o.into_fields() {
        if !field.value().is_null() {
            field.warn("is left out: this server has no such tool");
        }
    }
    Ok(())
}

fn function(f: Field) -> Result<Tool> {
    let mut o = f.object()?;
    o.camel_case();
    let theirs = o.read("parameters", Field::map)?.map(json_schema);
    // Gemini CLI writes Google's names of types here, too.
    let schema = o.read("parametersJsonSchema", Field::map)?.map(json_schema);
    let tool = Tool {
        name: o.require("name")?.name()?,
        description: o.read("description", Field::string)?,
        parameters: schema.or(theirs).unwrap_or_else(no_parameters),
        strict: None,
        cache: None,
        origin: ToolOrigin::default(),
    };
    o.finish(&[FUNCTION])?;
    Ok(tool)
}

fn choice(f: Field, chat: &mut Chat) -> Result<()> {
    let none = f.error("requires a call, but 'tools' has no function");
    let mut o = f.object()?;
    o.camel_case();
    let must = o.read("mode", |f| {
        f.one_of(&[
            ("AUTO", Some(false)),
            ("ANY", Some(true)),
            ("NONE", None),
            ("VALIDATED", Some(false)),
            ("MODE_UNSPECIFIED", Some(false)),
        ])
    })?;
    if let Some(f) = o.take("allowedFunctionNames") {
        let path = f.path();
        let names = f.list(Field::name)?;
        if let Some(name) = names.iter().find(|n| !chat.tools.iter().any(|t| t.name == **n)) {
            let what = format!("'{path}' names '{}', which is not in 'tools'", shortened(name));
            return Err(crate::ApiError::invalid(path, what));
        }
        if !names.is_empty() {
            chat.tools.retain(|t| names.contains(&t.name));
        }
    }
    chat.tool_choice = match must.unwrap_or(Some(false)) {
        None => ToolChoice::None,
        Some(false) => ToolChoice::Auto,
        Some(true) if chat.tools.is_empty() => return Err(none),
        Some(true) => ToolChoice::Required,
    };
    o.finish(&[&[("streamFunctionCallArguments", tuning("arguments come as a whole"))]])?;
    Ok(())
}

fn config(f: Field, r: &mut GenerateRequest) -> Result<()> {
    let mut o = f.object()?;
    o.camel_case();
    let penalty = |f: Field| f.number(-2.0..=2.0);
    let s = &mut r.sampling;
    s.temperature = o.read("temperature", |f| f.number(0.0..=f64::MAX))?;
    s.top_p = o.read("topP", |f| f.number(0.0..=1.0))?;
    s.top_k = o.read("topK", |f| f.count(0..=u32::MAX))?;
    s.presence_penalty = o.read("presencePenalty", penalty)?;
    s.frequency_penalty = o.read("frequencyPenalty", penalty)?;
    s.seed = o.take("seed").map(seed).transpose()?.flatten();
    r.max_tokens = o.read("maxOutputTokens", |f| f.most(1))?;
    r.n = o.read("candidateCount", |f| f.count(1..=CANDIDATES_MAX))?.unwrap_or(1);
    r.stop = o.take("stopSequences").map(stop).transpose()?.unwrap_or_default();
    let top = o.read("logprobs", |f| f.count(0..=crate::openai::TOP_LOGPROBS_MAX))?;
    r.logprobs = o.read("responseLogprobs", Field::bool)?.unwrap_or(false).then_some(top.unwrap_or(0));
    format(&mut o, r)?;
    let shown = match o.take("thinkingConfig") {
        Some(f) => thinking(f, r)?,
        None => false,
    };
    hide_thoughts(r, !shown);
    o.finish(&[CONFIG])?;
    Ok(())
}

/// Reasoning is sent only to clients that ask for it.
fn hide_thoughts(r: &mut GenerateRequest, hide: bool) {
    if let Input::Chat(chat) = &mut r.input {
        chat.reasoning.hide = hide;
    }
}

/// `thinkingConfig`; true if the client wants reasoning.
fn thinking(f: Field, r: &mut GenerateRequest) -> Result<bool> {
    let mut o = f.object()?;
    o.camel_case();
    let shown = o.read("includeThoughts", Field::bool)?.unwrap_or(false);
    let budget = o.read("thinkingBudget", |f| f.integer(-1..=i64::from(u32::MAX)))?;
    let level = o.read("thinkingLevel", |f| {
        let name = f.as_str().map(str::to_lowercase);
        match Effort::NAMES.iter().find(|(n, _)| name.as_deref() == Some(n)) {
            Some((_, effort)) => Ok(Some(*effort)),
            None if name.as_deref() == Some("thinking_level_unspecified") => Ok(None),
            None => Err(f.expected("\"MINIMAL\", \"LOW\", \"MEDIUM\" or \"HIGH\"")),
        }
    })?;
    o.finish(&[])?;
    let Input::Chat(chat) = &mut r.input else { return Ok(shown) };
    chat.reasoning.effort = level.flatten();
    // -1 lets the model decide.
    chat.reasoning.budget_tokens = budget.and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0);
    chat.reasoning.enabled = match budget {
        Some(0) => Some(false),
        Some(_) => Some(true),
        None => chat.reasoning.effort.map(|_| true),
    };
    Ok(shown)
}

fn format(o: &mut Object, r: &mut GenerateRequest) -> Result<()> {
    let theirs = o.take("responseSchema");
    let ours = o.take("responseJsonSchema");
    let field = ours.as_ref().or(theirs.as_ref()).map(Field::path);
    let schema = match (ours, theirs) {
        (Some(f), _) => Some(any_schema(crate::openai::schema(f)?)),
        (None, Some(f)) => Some(Value::Object(json_schema(f.map()?))),
        (None, None) => None,
    };
    let Some(kind) = o.take("responseMimeType") else {
        let Some(field) = field else { return Ok(()) };
        // Google refuses it, too: a schema describes the JSON but does not request JSON.
        let what = format!("'{field}' needs \"responseMimeType\": \"application/json\"");
        return Err(crate::ApiError::invalid(field, what));
    };
    r.response_format_field = field.unwrap_or_else(|| kind.path());
    r.response_format = match (kind.as_str(), schema) {
        (Some("application/json"), Some(schema)) => {
            ResponseFormat::JsonSchema { name: None, description: None, schema, strict: None }
        }
        (Some("application/json"), None) => ResponseFormat::JsonObject,
        (Some("text/x.enum"), Some(schema)) => {
            let values = schema["enum"].as_array().into_iter().flatten();
            let words: Vec<String> = values.filter_map(|v| v.as_str().map(String::from)).collect();
            if words.is_empty() {
                return Err(kind.error("needs a schema with an 'enum' of texts"));
            }
            ResponseFormat::Choice(words)
        }
        (Some("text/x.enum"), None) => return Err(kind.error("needs a 'responseSchema' with an 'enum'")),
        (Some("text/plain" | ""), _) => ResponseFormat::Text,
        _ => return Err(kind.unsupported("; text/plain, application/json and text/x.enum are")),
    };
    Ok(())
}
