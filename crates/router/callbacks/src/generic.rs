//! Records as JSON with the names of LiteLLM's `StandardLoggingPayload`.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Map, Value, json};

use crate::record::Record;

/// A list of records.
pub fn array(batch: &[Arc<Record>]) -> Vec<u8> {
    let all: Vec<Value> = batch.iter().map(|r| payload(r)).collect();
    Value::from(all).to_string().into_bytes()
}

/// A record a line.
pub fn lines(batch: &[Arc<Record>]) -> Vec<u8> {
    let mut out = String::new();
    for record in batch {
        out += &payload(record).to_string();
        out.push('\n');
    }
    out.into_bytes()
}

/// One record.
pub fn one(record: &Record) -> Vec<u8> {
    payload(record).to_string().into_bytes()
}

/// Fields that a request cannot set by its metadata.
const OWN: &str = "user_api_key_";

fn payload(r: &Record) -> Value {
    let seconds =
        |after: Duration| (r.began + after).duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let call_type = match r.operation {
        "chat" => "acompletion",
        "embeddings" => "aembedding",
        _ => "atext_completion",
    };
    let (input, cached, output) = r.usage.unwrap_or_default();
    let theirs = r.metadata.iter().filter(|(name, _)| !name.starts_with(OWN));
    let mut metadata: Map<String, Value> = theirs.map(|(k, v)| (k.clone(), v.clone())).collect();
    let (user, team) = &r.owner;
    let owner = [
        ("user_api_key_hash", r.key.as_ref().map(|k| &k.0)),
        ("user_api_key_alias", r.key.as_ref().map(|k| &k.1)),
        ("user_api_key_user_id", user.as_ref()),
        ("user_api_key_team_id", team.as_ref()),
        ("user_api_key_end_user_id", r.user.as_ref()),
    ];
    metadata.extend(owner.map(|(name, value)| (name.to_string(), value.cloned().into())));
    let attempts = r.attempts.iter().map(|a| {
        json!({
            "model_id": a.deployment, "model_group": a.group, "start_after": a.after.as_secs_f64(), "took": a.took.as_secs_f64(),
            "error": a.error.as_ref().map(|e| e.message.clone()),
        })
    });
    let error = r.error.as_ref();
    json!({
        "id": r.id,
        "trace_id": r.context.trace_id(),
        "call_type": call_type,
        "stream": r.stream,
        "status": if error.is_some() { "failure" } else { "success" },
        "response_cost": r.cost,
        "custom_llm_provider": r.answered.as_ref().map(|a| &a.provider),
        "prompt_tokens": input,
        "completion_tokens": output,
        "total_tokens": input + output,
        "cached_tokens": cached,
        "startTime": seconds(Duration::ZERO),
        "endTime": seconds(r.took),
        "completionStartTime": seconds(r.first.unwrap_or(r.took)),
        "response_time": r.took.as_secs_f64(),
        "model": r.answered.as_ref().map_or(&r.requested_model, |a| &a.model),
        "model_id": r.answered.as_ref().map(|a| &a.deployment),
        "model_group": r.requested_model,
        "cache_hit": r.cached,
        "request_tags": r.tags,
        "end_user": r.user,
        "metadata": metadata,
        "model_parameters": json!({"max_tokens": r.max_tokens, "temperature": r.temperature}),
        "error_str": error.map(|e| &e.message),
        "error_information": error.map(|e| json!({"error_code": e.status.map(|s| s.to_string()), "error_class": e.kind, "error_message": e.message})),
        "attempts": attempts.collect::<Vec<_>>(),
        "messages": null,
        "response": null,
    })
}
