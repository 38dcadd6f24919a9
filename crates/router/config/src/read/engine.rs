//! The engine's settings of a local model.

use crate::fields::Fields;
use crate::problem::quoted;
use crate::sections::ENGINE_KEYS;
use crate::yaml::Value;
use crate::{EngineSettings, KeepAlive, Provider};

/// Values of the flags of the same names.
const KV_TYPES: &[(&str, &str)] =
    &[("f16", "f16"), ("f32", "f32"), ("q8_0", "q8_0"), ("auto", "f16"), ("fp16", "f16"), ("fp32", "f32")];
const ISAS: &[(&str, &str)] = &[
    ("portable", "portable"),
    ("avx2", "avx2"),
    ("avx-vnni", "avx-vnni"),
    ("avx512", "avx512"),
    ("avx512-vnni", "avx512"),
    ("neon", "neon"),
    ("neon-i8mm", "neon-i8mm"),
];
const REASONING: &[(&str, &str)] = &[("deepseek", "deepseek"), ("hidden", "hidden"), ("none", "none")];
const TOOLS: &[(&str, &str)] =
    &[("qwen3_coder", "qwen3_coder"), ("hermes", "hermes"), ("openai", "openai"), ("none", "none")];

const SPECULATIVE: &[&str] = &["auto", "off", "mtp", "lookup", "ngram"];
/// The engine's maximum of draft tokens per step.
const DRAFT_MAX: usize = 16;

/// The speculation mode: a word, or `draft=` and a model.
fn speculative(params: &Fields) -> Option<String> {
    let node = params.get("speculative")?;
    // Some YAML readers read `off` as false.
    let how = if node.value == Value::Bool(false) { "off".into() } else { params.text("speculative")? };
    let draft = how.strip_prefix("draft=").is_some_and(|model| !model.is_empty());
    if !draft && !SPECULATIVE.contains(&how.as_str()) {
        let what =
            format!("speculative is {}; it must be one of auto, off, mtp, lookup, draft=MODEL", quoted(&how));
        params.reader.wrong(&node.span, what);
    }
    Some(how)
}

/// Reads them.
pub(crate) fn settings(params: &Fields) -> EngineSettings {
    let word = |name: &'static str, words: &[(&'static str, &'static str)]| {
        params.one_of(name, words).map(String::from)
    };
    let path = |name: &'static str| {
        let span = params.get(name).map_or(params.span, |n| &n.span);
        params.name(name).map(|p| params.reader.path(span, &p))
    };
    if params.has("ctx_size") && params.has("num_ctx") {
        params.reader.wrong(params.span, "ctx_size and num_ctx are the same: keep one of them");
    }
    EngineSettings {
        ctx_size: params.count("ctx_size", 0).or_else(|| params.count("num_ctx", 1)),
        ubatch_size: params.count("ubatch_size", 1),
        batch_size: params.count("batch_size", 1),
        kv_cache_dtype: word("kv_cache_dtype", KV_TYPES),
        cache_type_k: word("cache_type_k", KV_TYPES),
        cache_type_v: word("cache_type_v", KV_TYPES),
        threads: params.count("threads", 1),
        isa: word("isa", ISAS),
        no_pin: params.bool("no_pin"),
        exact: params.bool("exact"),
        no_memory_check: params.bool("no_memory_check"),
        no_packed: params.bool("no_packed"),
        parallel: params.count("parallel", 1),
        max_queue: params.count("max_queue", 1),
        kv_tokens: params.count("kv_tokens", 1),
        cache_ram: params.size("cache_ram", 1 << 20),
        cache_disk: path("cache_disk"),
        cache_disk_size: params.size("cache_disk_size", 1),
        keep_alive: keep_alive(params),
        reasoning_format: word("reasoning_format", REASONING),
        tool_call_parser: word("tool_call_parser", TOOLS),
        chat_template: path("chat_template"),
        speculative: speculative(params),
        draft_max: params.count("draft_max", 0).inspect(|n| {
            if *n > DRAFT_MAX {
                let span = params.get("draft_max").map_or(params.span, |n| &n.span);
                params.reader.wrong(span, format!("draft_max is {n}; it must be from 0 to {DRAFT_MAX}"));
            }
        }),
    }
}

/// A time; a negative one is forever.
fn keep_alive(params: &Fields) -> Option<KeepAlive> {
    let forever = match &params.get("keep_alive")?.value {
        Value::Int(i) => *i < 0,
        Value::Text(t) => t == "never" || t.starts_with('-'),
        _ => false,
    };
    if forever { Some(KeepAlive::Forever) } else { params.time("keep_alive").map(KeepAlive::For) }
}

/// Reports keys without effect for a remote model. Ollama has two of them.
pub(crate) fn ignore(params: &Fields, provider: Provider) {
    let ollama = |name: &str| provider == Provider::Ollama && matches!(name, "keep_alive" | "num_ctx");
    for name in ENGINE_KEYS.iter().chain(&["num_ctx"]).filter(|n| !ollama(n)) {
        if let Some(node) = params.get(name) {
            let text = "ignored: it is for local models (model: octet/...)";
            params.reader.note(&node.span, format!("litellm_params.{name}"), text);
        }
    }
}
