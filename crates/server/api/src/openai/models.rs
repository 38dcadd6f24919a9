//! `/v1/models`.

use serde_json::{Value, json};

use crate::core::ModelInfo;

/// The answer to `GET /v1/models`.
pub fn list(models: &[ModelInfo]) -> Value {
    json!({"object": "list", "data": models.iter().map(one).collect::<Vec<_>>()})
}

/// The answer to `GET /v1/models/{id}`, with fields for vLLM's, llama.cpp's and Mistral's clients.
pub fn one(m: &ModelInfo) -> Value {
    let inputs: &[&str] = if m.abilities.vision { &["text", "image"] } else { &["text"] };
    let mut out = json!({
        "id": m.id,
        "aliases": m.aliases,
        "object": "model",
        "created": m.created_s,
        "owned_by": "octet",
        "root": m.id,
        "parent": null,
        "max_model_len": m.context_length,
        // Mistral's library reads no model without its kind.
        "type": "base",
        "max_context_length": m.context_length,
        "capabilities": {
            "completion_chat": m.abilities.completion,
            "function_calling": m.abilities.tools,
            "reasoning": m.abilities.thinking,
            "vision": m.abilities.vision,
        },
        // The same for clients of OpenRouter and of llama-server.
        "architecture": {"input_modalities": inputs, "output_modalities": ["text"]},
        "meta": {
            "n_ctx_train": m.trained_context_length,
            "n_embd": m.embedding_length,
            "n_params": m.parameters,
            "size": m.size_bytes,
        },
    });
    if let Some(why) = &m.unhealthy {
        out["unhealthy"] = why.as_str().into();
    }
    out
}
