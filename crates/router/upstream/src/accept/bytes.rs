//! Applies the rules to a body that is forwarded: only the fields that may change are parsed, the others keep their bytes.

use octet_api::anthropic::FOREIGN_PROOFS;
use octet_config::{Accepts, ResponsesFor};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Report, Rules, messages, tools_need_responses};
use crate::dialect::Dialect;
use crate::failure::{Failure, FailureKind};
use crate::rewrite::{Field, fields, write_field};

/// Long fields, which are parsed only if a rule concerns them.
const LONG: [&str; 6] = ["messages", "input", "tools", "system", "contents", "prompt"];

/// Applies the rules to a body; returns it unchanged if none concerns it.
pub(crate) fn apply(rules: &Rules<'_>, body: Vec<u8>, report: &mut Report) -> Result<Vec<u8>, Failure> {
    let is_plain = rules.accepts.is_everything() && rules.output_tokens_max.is_none();
    if rules.is_empty() || (is_plain && !may_have_proofs(&body)) {
        return Ok(body);
    }
    let refused = |what: String| Failure::new(FailureKind::BadRequest, what);
    let all = fields(&body).map_err(refused)?;
    let messages_change = all.iter().any(|f| f.name == "messages" && messages_may_change(rules, f));
    let mut json = Map::new();
    for field in all.iter().filter(|f| is_parsed(rules.accepts, &f.name, messages_change)) {
        let value = serde_json::from_str(field.value.get())
            .map_err(|e| refused(format!("the body is not a JSON object: {e}")))?;
        json.insert(field.name.to_string(), value);
    }
    let before = (!messages_change).then(|| json.clone());
    super::apply(rules, &mut json, report)?;
    if before.is_some_and(|before| before == json) {
        return Ok(body);
    }
    let mut out = Vec::with_capacity(body.len() + 64);
    out.push(b'{');
    for field in &all {
        if !is_parsed(rules.accepts, &field.name, messages_change) {
            write_field(&mut out, &field.name, field.value.get());
        } else if let Some(value) = json.shift_remove(&*field.name) {
            write_field(&mut out, &field.name, &value.to_string());
        }
    }
    json.iter().for_each(|(name, value)| write_field(&mut out, name, &value.to_string()));
    out.push(b'}');
    Ok(out)
}

/// Whether messages of a body are parsed completely.
pub(crate) fn is_deep(rules: &Rules<'_>, body: &[u8]) -> bool {
    !rules.is_empty()
        && fields(body)
            .is_ok_and(|all| all.iter().any(|f| f.name == "messages" && messages_may_change(rules, f)))
}

fn is_parsed(accepts: &Accepts, name: &str, messages_change: bool) -> bool {
    let is_listed = |list: &[String]| list.iter().any(|item| item == name);
    !LONG.contains(&name)
        || (name == "messages" && messages_change)
        || is_listed(&accepts.without)
        || (!accepts.only.is_empty() && !is_listed(&accepts.only))
}

fn messages_may_change(rules: &Rules<'_>, field: &Field<'_>) -> bool {
    let raw = field.value.get().as_bytes();
    match rules.dialect {
        Dialect::OpenAiChat => messages::may_change(rules.accepts, raw),
        Dialect::AnthropicMessages => may_have_proofs(raw) || last_is_assistants(raw),
        Dialect::AnthropicCountTokens => may_have_proofs(raw),
        _ => false,
    }
}

/// Whether a conversation may have reasoning that another program signed.
fn may_have_proofs(raw: &[u8]) -> bool {
    FOREIGN_PROOFS.iter().any(|proof| memchr::memmem::find(raw, proof.as_bytes()).is_some())
}

#[derive(Deserialize)]
struct Role {
    role: String,
}

/// Whether the last message is the assistant's.
fn last_is_assistants(raw: &[u8]) -> bool {
    serde_json::from_slice::<Vec<Role>>(raw)
        .is_ok_and(|all| all.last().is_some_and(|m| m.role == "assistant"))
}

/// Whether a chat must use `/responses`, as its tools and its effort say.
pub(crate) fn uses_responses(accepts: &Accepts, body: &[u8]) -> bool {
    if accepts.responses != ResponsesFor::Tools || memchr::memmem::find(body, b"\"tools\"").is_none() {
        return false;
    }
    let Ok(all) = fields(body) else { return false };
    let value = |name: &str| all.iter().rev().find(|f| f.name == name).map(|f| f.value.get());
    let has_tools = value("tools").is_some_and(|tools| !matches!(tools, "[]" | "null"));
    let effort: Option<Value> = value("reasoning_effort").and_then(|e| serde_json::from_str(e).ok());
    let effort = effort.as_ref().and_then(|e| e.as_str().or_else(|| e["effort"].as_str()));
    tools_need_responses(accepts, has_tools, effort)
}
