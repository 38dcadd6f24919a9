//! The rules of Anthropic's messages: thinking, prefills, and reasoning that others signed.

use octet_api::anthropic::is_own_proof;
use octet_config::{Off, Thinking};
use serde_json::{Map, Value, json};

use super::{Report, Rules};
use crate::failure::Failure;

/// Anthropic's smallest budget.
const BUDGET_TOKENS_MIN: u64 = 1024;
/// Follows a prefill that the model does not accept, with `modify_params`.
const CONTINUE: &str = "Continue.";

pub(super) fn apply(
    rules: &Rules<'_>,
    json: &mut Map<String, Value>,
    report: &mut Report,
) -> Result<(), Failure> {
    let lost = foreign_proofs(json);
    let is_on = json.get("thinking").is_some_and(|t| t["type"] == "enabled");
    if lost && is_on && continues_a_call(json) {
        // The model would demand its own reasoning before the call.
        json.insert("thinking".into(), json!({"type": "disabled"}));
        report.warn("thinking", "is off for this turn: the call before it was made by another model");
    }
    thinking(rules, json, report)?;
    budget(json);
    prefill(rules, json, report)
}

/// Removes blocks of reasoning that another program signed: Anthropic refuses them. True if there were any.
pub(super) fn foreign_proofs(json: &mut Map<String, Value>) -> bool {
    let Some(Value::Array(messages)) = json.get_mut("messages") else { return false };
    let mut lost = false;
    for message in messages.iter_mut().filter(|m| m["role"] == "assistant") {
        let Some(Value::Array(blocks)) = message.get_mut("content") else { continue };
        let before = blocks.len();
        blocks.retain(|block| match block["type"].as_str() {
            Some("thinking") => block["signature"].as_str().is_some_and(is_own_proof),
            Some("redacted_thinking") => block["data"].as_str().is_some_and(is_own_proof),
            _ => true,
        });
        lost |= blocks.len() < before;
    }
    messages.retain(|m| m["content"].as_array().is_none_or(|blocks| !blocks.is_empty()));
    lost
}

/// Whether the last message answers a call of a turn without reasoning.
fn continues_a_call(json: &Map<String, Value>) -> bool {
    let Some(messages) = json.get("messages").and_then(Value::as_array) else { return false };
    let has = |m: &Value, kind: &str| {
        m["content"].as_array().is_some_and(|blocks| blocks.iter().any(|b| b["type"] == kind))
    };
    let answers = messages.last().is_some_and(|m| m["role"] == "user" && has(m, "tool_result"));
    let caller = messages.iter().rev().find(|m| m["role"] == "assistant");
    answers && caller.is_some_and(|m| !has(m, "thinking") && !has(m, "redacted_thinking"))
}

/// Writes `thinking` as the model takes it.
fn thinking(rules: &Rules<'_>, json: &mut Map<String, Value>, report: &mut Report) -> Result<(), Failure> {
    let accepts = rules.accepts;
    let is_claude = accepts.output_tokens_max.is_some();
    if !is_claude || rules.is_set_here("thinking") {
        return Ok(());
    }
    let kind = json.get("thinking").and_then(|t| t["type"].as_str()).map(String::from);
    match (kind.as_deref(), accepts.thinking) {
        (Some("enabled" | "adaptive"), None) => {
            rules.refuse("thinking", "the model does not think", report)?;
            json.shift_remove("thinking");
        }
        (Some("enabled"), Some(Thinking::Adaptive)) => to_adaptive(rules, json),
        (Some("adaptive"), Some(Thinking::Budget)) => to_budget(rules, json),
        (Some("disabled"), _) => match accepts.off {
            Off::Disabled => {}
            Off::Omit => drop(json.shift_remove("thinking")),
            Off::Never => {
                json.shift_remove("thinking");
                report.warn("thinking", "cannot be turned off: the model always thinks");
            }
        },
        _ => {}
    }
    if accepts.efforts.is_empty()
        && let Some(Value::Object(config)) = json.get_mut("output_config")
        && config.shift_remove("effort").is_some()
    {
        if kind.is_none() || kind.as_deref() == Some("disabled") {
            report.warn("output_config.effort", "is left out: the model has no effort levels");
        }
        if config.is_empty() {
            json.shift_remove("output_config");
        }
    }
    Ok(())
}

/// Budgets and their efforts, for models that have only one of them.
const LEVELS: [(&str, u64); 5] =
    [("low", 2048), ("medium", 8192), ("high", 16384), ("xhigh", 32000), ("max", 32000)];

fn to_adaptive(rules: &Rules<'_>, json: &mut Map<String, Value>) {
    let Some(Value::Object(old)) = json.shift_remove("thinking") else { return };
    let mut new = json!({"type": "adaptive"});
    if let Some(display) = old.get("display") {
        new["display"] = display.clone();
    }
    json.insert("thinking".into(), new);
    let Some(budget) = old.get("budget_tokens").and_then(Value::as_u64) else { return };
    let level = LEVELS.iter().find(|(_, most)| budget <= *most).map_or("max", |(name, _)| name);
    let level = super::params::nearest_effort(level, &rules.accepts.efforts).unwrap_or(level);
    let config = json.entry("output_config").or_insert_with(|| json!({}));
    if let Value::Object(config) = config {
        config.entry("effort").or_insert_with(|| level.into());
    }
}

fn to_budget(rules: &Rules<'_>, json: &mut Map<String, Value>) {
    let effort = json.get("output_config").and_then(|c| c["effort"].as_str()).unwrap_or("high");
    let wanted = LEVELS.iter().find(|(name, _)| *name == effort).map_or(16384, |(_, budget)| *budget);
    let limit = rules.accepts.output_tokens_max.map_or(u64::MAX, u64::from);
    let room = json.get("max_tokens").and_then(Value::as_u64).unwrap_or(limit);
    let Some(Value::Object(thinking)) = json.get_mut("thinking") else { return };
    if room <= BUDGET_TOKENS_MIN {
        json.shift_remove("thinking");
        return;
    }
    thinking.insert("type".into(), "enabled".into());
    thinking.insert("budget_tokens".into(), wanted.min((room / 2).max(BUDGET_TOKENS_MIN)).into());
}

/// A budget that leaves room for an answer, after `max_tokens` was lowered.
fn budget(json: &mut Map<String, Value>) {
    let Some(max_tokens) = json.get("max_tokens").and_then(Value::as_u64) else { return };
    let Some(Value::Object(thinking)) = json.get_mut("thinking") else { return };
    let budget = thinking.get("budget_tokens").and_then(Value::as_u64);
    if budget.is_some_and(|budget| budget >= max_tokens) && max_tokens > BUDGET_TOKENS_MIN {
        thinking.insert("budget_tokens".into(), (max_tokens / 2).max(BUDGET_TOKENS_MIN).into());
    }
}

/// The beginning of an answer: without blanks at its end, and only for models that continue one.
fn prefill(rules: &Rules<'_>, json: &mut Map<String, Value>, report: &mut Report) -> Result<(), Failure> {
    let Some(Value::Array(messages)) = json.get_mut("messages") else { return Ok(()) };
    let Some(last) = messages.last_mut().filter(|m| m["role"] == "assistant") else { return Ok(()) };
    if rules.accepts.no_prefill {
        let field = format!("messages[{}]", messages.len() - 1);
        if !rules.changes.modify_params {
            let what = format!(
                "'{field}' is refused: the model does not continue an assistant's message. End with a user message, or set \
                 modify_params: true to have one added"
            );
            let failure = Failure::new(crate::failure::FailureKind::BadRequest, what);
            return Err(Failure { param: Some(field), ..failure });
        }
        messages.push(json!({"role": "user", "content": CONTINUE}));
        report.warn(
            &field,
            "is followed by a user message: the model does not continue an assistant's message",
        );
        return Ok(());
    }
    let text = match &mut last["content"] {
        Value::Array(blocks) => blocks.last_mut().and_then(|block| block.get_mut("text")),
        content => Some(content),
    };
    if let Some(Value::String(text)) = text {
        text.truncate(text.trim_end().len());
    }
    let is_blank = |m: &Value| match &m["content"] {
        Value::String(text) => text.is_empty(),
        Value::Array(blocks) => blocks.iter().all(|b| b["text"] == ""),
        _ => false,
    };
    if messages.last().is_some_and(is_blank) {
        messages.pop();
    }
    Ok(())
}
