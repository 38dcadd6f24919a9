//! Fields that Ollama's chat, generate and embed share.

use crate::core::{Chat, Effort, GenerateRequest, KeepAlive, ResponseFormat, Sampling};
use crate::json::{Field, Object, Result};
use crate::openai;
use crate::rules::{Rules, refused, tuning, tuning_but};

const LOADING: &str = "the server's own settings say how models are loaded";

/// Rules for `options`.
const OPTIONS: Rules = &[
    ("numa", tuning(LOADING)),
    ("num_batch", tuning(LOADING)),
    ("num_gpu", tuning(LOADING)),
    ("main_gpu", tuning(LOADING)),
    ("low_vram", tuning(LOADING)),
    ("f16_kv", tuning_but("[true]", LOADING)),
    ("use_mmap", tuning(LOADING)),
    ("use_mlock", tuning(LOADING)),
    ("num_thread", tuning(LOADING)),
    ("logits_all", tuning(LOADING)),
    ("num_keep", tuning("nothing is cut from a prompt")),
    ("penalize_newline", tuning("Ollama itself has dropped it")),
    ("vocab_only", refused("the server loads whole models")),
    ("embedding_only", refused("the server loads whole models")),
    ("max_tokens", refused("send 'num_predict'")),
    ("min_tokens", refused("send it to /v1/chat/completions")),
];

/// Rules for both bodies.
const RULES: Rules = &[
    ("truncate", tuning("a prompt that does not fit is refused, never cut")),
    ("shift", tuning("an answer ends where the context does")),
    ("_debug_render_only", refused("use /apply-template")),
];

/// The parsed `options`.
#[derive(Debug, Default)]
pub(super) struct Options {
    pub sampling: Sampling,
    pub max_tokens: Option<u32>,
    pub stop: Vec<String>,
    pub context_length: Option<u32>,
}

/// Reads `options`.
pub(super) fn options(o: &mut Object) -> Result<Options> {
    let Some(f) = o.take("options") else { return Ok(Options::default()) };
    let mut o = f.object()?;
    let options = Options {
        sampling: openai::sampling(&mut o)?,
        // In Ollama, 0 is no limit, too.
        max_tokens: o.take("num_predict").map(|f| f.limit(0)).transpose()?.flatten().filter(|n| *n > 0),
        stop: o.read("stop", openai::stop)?.unwrap_or_default(),
        context_length: o.read("num_ctx", |f| f.count(0..=u32::MAX))?.filter(|n| *n > 0),
    };
    o.finish(&[OPTIONS, openai::SAMPLERS])?;
    Ok(options)
}

/// Parses the fields that chat and generate share into `r`.
pub(super) fn common(o: &mut Object, r: &mut GenerateRequest) -> Result<()> {
    let options = options(o)?;
    r.sampling = options.sampling;
    r.max_tokens = options.max_tokens;
    r.stop = options.stop;
    r.context_length = options.context_length;
    r.stream = o.read("stream", Field::bool)?.unwrap_or(true);
    r.include_usage = true;
    r.response_format = o.read("format", format)?.unwrap_or_default();
    r.response_format_field = "format".into();
    r.logprobs = logprobs(o)?;
    Ok(())
}

/// Ends parsing: checks the remaining fields by the endpoint's `tables` and the shared ones, and records warnings.
pub(super) fn finish(mut o: Object, r: &mut GenerateRequest, tables: &[Rules]) -> Result<()> {
    r.timeout = o.timeout()?;
    let warnings = o.warnings();
    let tables: Vec<Rules> = tables.iter().copied().chain([RULES]).collect();
    r.extra = o.finish(&tables)?;
    r.warnings = warnings.take();
    Ok(())
}

fn format(f: Field) -> Result<ResponseFormat> {
    match f.as_str() {
        Some("") => Ok(ResponseFormat::Text),
        Some("json") => Ok(ResponseFormat::JsonObject),
        _ if f.is_object() => {
            let schema = f.raw();
            Ok(ResponseFormat::JsonSchema { name: None, description: None, schema, strict: None })
        }
        _ => Err(f.expected("\"json\" or a JSON schema")),
    }
}

fn logprobs(o: &mut Object) -> Result<Option<u32>> {
    let on = o.read("logprobs", Field::bool)?.unwrap_or(false);
    let top = o.read("top_logprobs", |f| f.count(0..=openai::TOP_LOGPROBS_MAX))?.unwrap_or(0);
    // Ollama's own clients send a number without the switch, which has no effect.
    Ok(on.then_some(top))
}

/// `think`: a boolean, or an effort level.
pub(super) fn think(o: &mut Object, chat: &mut Chat) -> Result<()> {
    let Some(f) = o.take("think") else { return Ok(()) };
    if f.is_string() {
        chat.reasoning.effort = Some(f.one_of(&Effort::NAMES)?);
        chat.reasoning.enabled = Some(true);
    } else if f.value().is_boolean() {
        chat.reasoning.enabled = Some(f.bool()?);
    } else {
        return Err(f.expected("true, false or how much: \"low\", \"medium\", \"high\""));
    }
    Ok(())
}

/// `keep_alive`: seconds, or a Go duration (`5m`, `1h30m`); negative means forever.
pub(super) fn keep_alive(o: &mut Object) -> Result<Option<KeepAlive>> {
    let Some(f) = o.take("keep_alive") else { return Ok(None) };
    let seconds = match f.value() {
        serde_json::Value::Number(n) => n.as_f64(),
        serde_json::Value::String(text) => duration_s(text),
        _ => None,
    };
    match seconds.filter(|s| s.is_finite()) {
        Some(s) if s < 0.0 => Ok(Some(KeepAlive::Forever)),
        Some(s) => Ok(Some(KeepAlive::Seconds(s))),
        None => Err(f.expected("a number of seconds, or a text like \"5m\" or \"1h30m\"")),
    }
}

/// Seconds; `None` if it is not a duration.
fn duration_s(text: &str) -> Option<f64> {
    const UNITS: [(&str, f64); 8] = [
        ("ns", 1e-9),
        ("us", 1e-6),
        ("\u{b5}s", 1e-6),
        ("\u{3bc}s", 1e-6),
        ("ms", 1e-3),
        ("s", 1.0),
        ("m", 60.0),
        ("h", 3600.0),
    ];
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text.strip_prefix('+').unwrap_or(text)),
    };
    let number = |text: &str| {
        let digits = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        if digits { text.parse::<f64>().ok() } else { None }
    };
    // Go requires a unit; several clients omit it.
    if let Some(plain) = number(rest) {
        return Some(sign * plain);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total = 0.0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let value = number(&rest[..end])?;
        rest = &rest[end..];
        let end = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        let (_, unit) = UNITS.iter().find(|(name, _)| *name == &rest[..end])?;
        total += value * unit;
        rest = &rest[end..];
    }
    Some(sign * total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_in_gos_format() {
        for (text, seconds) in [
            ("5m", Some(300.0)),
            ("1h30m", Some(5400.0)),
            ("1.5s", Some(1.5)),
            ("250ms", Some(0.25)),
            ("-1m", Some(-60.0)),
            ("-1", Some(-1.0)),
            ("0", Some(0.0)),
            ("300", Some(300.0)),
            ("5 m", None),
            ("m", None),
            ("", None),
            ("-", None),
            ("1.2.3s", None),
            ("inf", None),
            ("5d", None),
        ] {
            assert_eq!(duration_s(text), seconds, "{text:?}");
        }
    }
}
