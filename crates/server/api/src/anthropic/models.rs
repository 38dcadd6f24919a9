//! `/v1/models` for Anthropic's clients (those that send `anthropic-version`).

use serde_json::{Value, json};

use crate::core::ModelInfo;
use crate::time::rfc3339;

/// The answer to `GET /v1/models`, in a single page.
pub fn list(models: &[ModelInfo]) -> Value {
    let id = |m: Option<&ModelInfo>| m.map(|m| m.id.clone());
    json!({
        "data": models.iter().map(one).collect::<Vec<_>>(),
        "first_id": id(models.first()),
        "last_id": id(models.last()),
        "has_more": false,
    })
}

/// The answer to `GET /v1/models/{id}`.
pub fn one(m: &ModelInfo) -> Value {
    json!({
        "type": "model",
        "id": m.id,
        "display_name": m.id,
        "lifecycle": "active",
        "created_at": rfc3339(m.created_s),
        "max_input_tokens": m.context_length,
        "max_tokens": m.context_length,
    })
}
