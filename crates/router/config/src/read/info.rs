//! `model_info`, and the prices in `litellm_params`.

use crate::fields::Fields;
use crate::{Mode, ModelInfo};

/// Modes of models whose requests are forwarded unread.
const PASSED: [&str; 6] =
    ["audio_transcription", "audio_speech", "image_generation", "image_edit", "moderation", "rerank"];

/// LiteLLM's modes of models that are not offered here.
const NOT_OFFERED: [&str; 8] = [
    "realtime",
    "video_generation",
    "ocr",
    "search",
    "vector_store",
    "batch",
    "audio_translation",
    "guardrail",
];

/// The purpose of a deployment, or why it cannot be offered. LiteLLM takes any word: one that it does not know itself changes nothing.
pub(crate) fn mode(info: Option<&Fields>) -> Result<Mode, String> {
    let given = info.and_then(|i| Some((i, i.get("mode")?, i.text("mode")?)));
    let Some((info, node, mode)) = given else { return Ok(Mode::Chat) };
    if let Some(passed) = PASSED.iter().find(|name| **name == mode) {
        return Ok(Mode::Passed(passed));
    }
    let near = match mode.as_str() {
        "chat" | "responses" => return Ok(Mode::Chat),
        "completion" => return Ok(Mode::Completion),
        "embedding" => return Ok(Mode::Embedding),
        other if NOT_OFFERED.contains(&other) => {
            return Err(format!("models of mode {} are not supported", crate::problem::quoted(other)));
        }
        "embeddings" => Some(("embedding", Mode::Embedding)),
        "tts" | "speech" => Some(("audio_speech", Mode::Passed("audio_speech"))),
        "stt" | "transcription" => Some(("audio_transcription", Mode::Passed("audio_transcription"))),
        _ => None,
    };
    let read_as = near.map_or("ignored".into(), |(name, _)| format!("read as '{name}'"));
    let text = format!("{} is not one of LiteLLM's modes: {read_as}", crate::problem::quoted(&mode));
    info.reader.note(&node.span, "model_info.mode", text);
    Ok(near.map_or(Mode::Chat, |(_, mode)| mode))
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
        max_output_tokens: info.count("max_output_tokens", 1).or(info.count("max_tokens", 1)),
        supports_vision: info.bool("supports_vision"),
        supports_function_calling: info.bool("supports_function_calling"),
        supports_reasoning: info.bool("supports_reasoning"),
        access_groups: info.texts("access_groups").unwrap_or_default(),
        unchecked: info.bool("disable_background_health_check").unwrap_or(false),
        other,
        ..base
    }
}
