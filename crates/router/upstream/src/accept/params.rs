//! The rules of a request's outermost fields.

use octet_config::{Accepts, NoThinking};
use ring::digest::{SHA256, digest};
use serde_json::{Map, Value, json};

use super::{Report, Rules};
use crate::dialect::Dialect;
use crate::failure::Failure;

/// Fields of vLLM's and llama.cpp's clients that OpenAI refuses.
pub(crate) const NOT_OPENAI: &[&str] = &[
    "top_k",
    "min_p",
    "repetition_penalty",
    "repeat_penalty",
    "repeat_last_n",
    "min_tokens",
    "stop_token_ids",
    "ignore_eos",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
    "cache_prompt",
    "cache_salt",
    "include_reasoning",
    "thinking_token_budget",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
];

/// Fields that do not change what an answer means: they are dropped without being refused.
const HINTS: &[&str] = &[
    "user",
    "metadata",
    "store",
    "stream_options",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prompt_cache_options",
    "cache_prompt",
    "cache_salt",
    "include_reasoning",
    "add_generation_prompt",
    "verbosity",
];

pub(super) fn apply(
    rules: &Rules<'_>,
    json: &mut Map<String, Value>,
    report: &mut Report,
) -> Result<(), Failure> {
    let accepts = rules.accepts;
    for (from, to) in &accepts.rename {
        rename(json, from, to);
    }
    if rules.dialect == Dialect::OpenAiChat
        && let Some(length) = accepts.length.as_deref()
    {
        let other = if length == "max_tokens" { "max_completion_tokens" } else { "max_tokens" };
        rename(json, other, length);
    }
    effort(rules, json, report);
    refused(rules, json, report)?;
    fixed(rules, json, report)?;
    largest(rules, json, report);
    one_of(rules, json, report)?;
    stops(rules, json, report)?;
    user(accepts, json);
    only(rules, json, report)?;
    output(rules, json, report);
    Ok(())
}

/// The value keeps its place.
fn rename(json: &mut Map<String, Value>, from: &str, to: &str) {
    if let Some(value) = json.shift_remove(from)
        && !value.is_null()
        && json.get(to).is_none_or(Value::is_null)
    {
        json.insert(to.into(), value);
    }
}

/// Whether a value requests what would happen without the field.
fn is_neutral(field: &str, value: &Value) -> bool {
    match (field, value) {
        (_, Value::Null | Value::Bool(false)) => true,
        (_, Value::Array(items)) => items.is_empty(),
        (_, Value::Object(fields)) => fields.is_empty(),
        ("temperature" | "top_p" | "n" | "repetition_penalty", value) => value.as_f64() == Some(1.0),
        ("presence_penalty" | "frequency_penalty" | "top_logprobs" | "min_p" | "min_tokens", value) => {
            value.as_f64() == Some(0.0)
        }
        ("parallel_tool_calls", value) => *value == true,
        ("tool_choice", value) => *value == "auto",
        _ => false,
    }
}

/// Drops a field that the model refuses, or refuses the request.
fn drop_field(
    rules: &Rules<'_>,
    json: &mut Map<String, Value>,
    field: &str,
    why: &str,
    report: &mut Report,
) -> Result<(), Failure> {
    let Some(value) = json.get(field).filter(|_| !rules.is_set_here(field)) else { return Ok(()) };
    if HINTS.contains(&field) {
        if !matches!(field, "user" | "stream_options") && !is_neutral(field, value) {
            report.warn(field, &format!("is left out: {why}"));
        }
    } else if !is_neutral(field, value) {
        rules.refuse(field, why, report)?;
    }
    json.shift_remove(field);
    Ok(())
}

const NO_SUCH: &str = "the model does not accept it";

fn refused(rules: &Rules<'_>, json: &mut Map<String, Value>, report: &mut Report) -> Result<(), Failure> {
    for field in &rules.accepts.without {
        drop_field(rules, json, field, NO_SUCH, report)?;
        // Anthropic's name.
        if field == "stop" {
            drop_field(rules, json, "stop_sequences", NO_SUCH, report)?;
        }
    }
    let is_openai =
        matches!(rules.dialect, Dialect::OpenAiChat | Dialect::OpenAiCompletions | Dialect::OpenAiResponses);
    if rules.accepts.openai_form && is_openai {
        for field in NOT_OPENAI.iter().filter(|field| !rules.accepts.only.iter().any(|o| o == *field)) {
            drop_field(rules, json, field, NO_SUCH, report)?;
        }
    }
    Ok(())
}

/// The reasoning effort of a request, in any dialect.
fn effort_of(json: &Map<String, Value>) -> Option<&str> {
    let chat = json.get("reasoning_effort").and_then(|e| e.as_str().or_else(|| e["effort"].as_str()));
    let responses = || json.get("reasoning").and_then(|r| r["effort"].as_str());
    chat.or_else(responses).or_else(|| json.get("output_config").and_then(|c| c["effort"].as_str()))
}

fn fixed(rules: &Rules<'_>, json: &mut Map<String, Value>, report: &mut Report) -> Result<(), Failure> {
    let accepts = rules.accepts;
    let is_none = effort_of(json).map_or(accepts.default_effort_is_none, |effort| effort == "none");
    if accepts.fixed_unless_none && is_none {
        return Ok(());
    }
    for (field, only) in &accepts.fixed {
        let Some(value) = json.get(field).filter(|v| only.is_none() || v.as_f64() != *only) else { continue };
        let why = match only {
            Some(only) if !value.is_null() => format!("the model accepts only {only}"),
            _ => NO_SUCH.into(),
        };
        drop_field(rules, json, field, &why, report)?;
    }
    Ok(())
}

fn largest(rules: &Rules<'_>, json: &mut Map<String, Value>, report: &mut Report) {
    for (field, most) in &rules.accepts.max {
        let is_larger = json.get(field).and_then(Value::as_f64).is_some_and(|v| v > *most);
        if is_larger && !rules.is_set_here(field) {
            json.insert(field.clone(), (*most).into());
            report.warn(field, &format!("is lowered to {most}, the model's largest"));
        }
    }
}

fn one_of(rules: &Rules<'_>, json: &mut Map<String, Value>, report: &mut Report) -> Result<(), Failure> {
    let mut kept: Option<&str> = None;
    for field in &rules.accepts.one_of {
        match (kept, json.get(field).filter(|v| !v.is_null())) {
            (None, Some(_)) => kept = Some(field),
            (Some(first), Some(_)) => {
                let why = format!("the model accepts it only without '{first}'");
                drop_field(rules, json, field, &why, report)?;
            }
            _ => {}
        }
    }
    Ok(())
}

fn stops(rules: &Rules<'_>, json: &mut Map<String, Value>, report: &mut Report) -> Result<(), Failure> {
    let Some(most) = rules.accepts.stops_max else { return Ok(()) };
    for field in ["stop", "stop_sequences"] {
        let count = json.get(field).and_then(Value::as_array).map_or(0, Vec::len);
        if count > most && !rules.is_set_here(field) {
            rules.refuse(field, &format!("the model accepts {most} sequences, not {count}"), report)?;
            if let Some(Value::Array(all)) = json.get_mut(field) {
                all.truncate(most);
            }
        }
    }
    Ok(())
}

/// Replaces an end user's id that is too long by its hash, which is as stable and as unique.
fn user(accepts: &Accepts, json: &mut Map<String, Value>) {
    let Some(most) = accepts.user_chars_max else { return };
    for field in ["user", "safety_identifier", "prompt_cache_key"] {
        if let Some(Value::String(id)) = json.get_mut(field)
            && id.chars().count() > most
        {
            *id = hash(id.as_bytes()).chars().take(most).collect();
        }
    }
}

/// SHA-256 in hexadecimal: 64 characters.
pub(super) fn hash(bytes: &[u8]) -> String {
    digest(&SHA256, bytes).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn only(rules: &Rules<'_>, json: &mut Map<String, Value>, report: &mut Report) -> Result<(), Failure> {
    let only = &rules.accepts.only;
    let has_list =
        !only.is_empty() && matches!(rules.dialect, Dialect::OpenAiChat | Dialect::OpenAiCompletions);
    if !has_list {
        return Ok(());
    }
    let others: Vec<String> = json.keys().filter(|name| !only.contains(name)).cloned().collect();
    for field in others {
        drop_field(rules, json, &field, NO_SUCH, report)?;
    }
    Ok(())
}

/// All efforts, in their order.
const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];

/// The nearest effort that a model has: of two, the larger one. Nothing but `none` becomes `none`.
pub(crate) fn nearest_effort<'a>(asked: &str, known: &'a [String]) -> Option<&'a str> {
    let rank = |name: &str| EFFORTS.iter().position(|e| *e == name);
    let wanted = rank(asked)?;
    let candidates = known.iter().filter_map(|name| Some((rank(name)?, name.as_str())));
    let candidates = candidates.filter(|(at, _)| *at > 0 || wanted == 0);
    candidates.min_by_key(|(at, _)| (at.abs_diff(wanted), at < &wanted)).map(|(_, name)| name)
}

fn effort(rules: &Rules<'_>, json: &mut Map<String, Value>, report: &mut Report) {
    // Chats take a name alone.
    if let Some(Value::Object(of_responses)) = json.get_mut("reasoning_effort")
        && let Some(name) = of_responses.shift_remove("effort")
    {
        json.insert("reasoning_effort".into(), name);
    }
    if no_thinking(rules, json) {
        return;
    }
    let known = &rules.accepts.efforts;
    if known.is_empty() {
        return;
    }
    let Some(asked) = effort_of(json).filter(|e| !known.iter().any(|k| k == e)).map(String::from) else {
        return;
    };
    let Some(near) = nearest_effort(&asked, known) else { return };
    if rules.is_set_here("reasoning_effort") {
        return;
    }
    let near = Value::from(near);
    let field = if json.contains_key("reasoning_effort") {
        json.insert("reasoning_effort".into(), near.clone());
        "reasoning_effort"
    } else {
        let holder = if json.contains_key("reasoning") { "reasoning" } else { "output_config" };
        if let Some(Value::Object(fields)) = json.get_mut(holder) {
            fields.insert("effort".into(), near.clone());
        }
        holder
    };
    report.warn(
        field,
        &format!("is {near} instead of \"{asked}\": the model has the efforts {}", known.join(", ")),
    );
}

/// Says in the provider's own way that a chat is answered without thinking, if it does not know the effort `none`.
fn no_thinking(rules: &Rules<'_>, json: &mut Map<String, Value>) -> bool {
    let Some(form) = rules.accepts.none.filter(|_| rules.dialect == Dialect::OpenAiChat) else {
        return false;
    };
    let by_effort = json.get("reasoning_effort").is_some_and(|effort| effort == "none");
    // As vLLM's clients say it, and translations for such servers.
    let by_template = json.get("chat_template_kwargs").is_some_and(|vars| vars["enable_thinking"] == false);
    if !(by_effort || by_template) || rules.is_set_here("reasoning_effort") {
        return false;
    }
    // Whichever it is, without thinking.
    json.shift_remove("reasoning_effort");
    if by_template && let Some(Value::Object(vars)) = json.get_mut("chat_template_kwargs") {
        vars.shift_remove("enable_thinking");
        if vars.is_empty() {
            json.shift_remove("chat_template_kwargs");
        }
    }
    let (field, value) = match form {
        NoThinking::Disabled => ("thinking", json!({"type": "disabled"})),
        NoThinking::NotEnabled => ("enable_thinking", json!(false)),
    };
    json.entry(field).or_insert(value);
    true
}

/// Lowers the maximum answer length to the model's.
fn output(rules: &Rules<'_>, json: &mut Map<String, Value>, report: &mut Report) {
    let Some(most) = rules.output_tokens_max.or(rules.accepts.output_tokens_max) else { return };
    let (holder, fields): (Option<&str>, &[&str]) = match rules.dialect {
        Dialect::OpenAiChat => (None, &["max_tokens", "max_completion_tokens"]),
        Dialect::OpenAiCompletions | Dialect::AnthropicMessages => (None, &["max_tokens"]),
        Dialect::OpenAiResponses => (None, &["max_output_tokens"]),
        Dialect::Gemini => (Some("generationConfig"), &["maxOutputTokens"]),
        _ => return,
    };
    let json = match holder {
        None => json,
        Some(name) => match json.get_mut(name) {
            Some(Value::Object(inner)) => inner,
            _ => return,
        },
    };
    for field in fields {
        if json.get(*field).and_then(Value::as_u64).is_some_and(|n| n > u64::from(most)) {
            json.insert((*field).into(), most.into());
            report.warn(field, &format!("is lowered to {most}, the model's limit"));
        }
    }
}
