//! `model_info`, and the prices in `litellm_params`.

use crate::fields::Fields;
use crate::{Mode, ModelInfo};

/// Modes of models whose requests are forwarded unread.
const PASSED: [&str; 6] =
    ["audio_transcription", "audio_speech", "image_generation", "image_edit", "moderation", "rerank"];

/// The purpose of a deployment, or why it cannot be offered.
pub(crate) fn mode(info: Option<&Fields>) -> Result<Mode, String> {
    let Some(mode) = info.and_then(|i| i.text("mode")) else { return Ok(Mode::Chat) };
    if let Some(passed) = PASSED.iter().find(|name| **name == mode) {
        return Ok(Mode::Passed(passed));
    }
    match mode.as_str() {
        "chat" | "responses" => Ok(Mode::Chat),
        "completion" => Ok(Mode::Completion),
        "embedding" => Ok(Mode::Embedding),
        other => Err(format!("models of mode {} are not supported", crate::problem::quoted(other))),
    }
}

/// All other fields. `id` is read by the caller.
pub(crate) fn read(info: Option<&Fields>, params: &Fields, mode: Mode) -> ModelInfo {
    let cost = |name: &'static str| {
        let of = |f: &Fields| f.number(name, 0.0, f64::MAX);
        let (own, general) = (info.and_then(of), of(params));
        own.or(general)
    };
    let base = ModelInfo {
        mode,
        input_cost_per_token: cost("input_cost_per_token"),
        cached_input_cost_per_token: cost("cache_read_input_token_cost"),
        cache_write_cost_per_token: cost("cache_creation_input_token_cost"),
        output_cost_per_token: cost("output_cost_per_token"),
        ..ModelInfo::default()
    };
    let Some(info) = info else { return base };
    let mut other = serde_json::Map::new();
    for entry in info.others() {
        other.insert(entry.key.clone(), info.reader.json(&entry.node));
    }
    ModelInfo {
        base_model: info.text("base_model"),
        max_input_tokens: info.count("max_input_tokens", 1),
        max_output_tokens: info.count("max_output_tokens", 1),
        supports_vision: info.bool("supports_vision"),
        supports_function_calling: info.bool("supports_function_calling"),
        supports_reasoning: info.bool("supports_reasoning"),
        access_groups: info.texts("access_groups").unwrap_or_default(),
        unchecked: info.bool("disable_background_health_check").unwrap_or(false),
        other,
        ..base
    }
}
