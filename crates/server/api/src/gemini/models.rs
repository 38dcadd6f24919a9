//! `/v1beta/models`.

use serde_json::{Value, json};

use crate::core::ModelInfo;

/// The answer to `GET /v1beta/models`, in a single page.
pub fn list(models: &[ModelInfo]) -> Value {
    json!({"models": models.iter().map(one).collect::<Vec<_>>()})
}

/// The answer to `GET /v1beta/models/{model}`.
pub fn one(m: &ModelInfo) -> Value {
    let mut methods = Vec::new();
    if m.abilities.completion || !m.abilities.embedding {
        methods.extend(["generateContent", "countTokens"]);
    }
    if m.abilities.embedding {
        methods.extend(["embedContent", "batchEmbedContents"]);
    }
    let mut out = json!({
        "name": format!("models/{}", m.id), "baseModelId": m.id, "version": "001", "displayName": m.id,
        "supportedGenerationMethods": methods, "thinking": m.abilities.thinking,
    });
    // An unknown context window is omitted.
    if m.context_length > 0 {
        out["inputTokenLimit"] = m.context_length.into();
        out["outputTokenLimit"] = m.context_length.into();
    }
    out
}
