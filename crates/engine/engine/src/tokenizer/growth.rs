//! Bounds on what a tokenizer file makes of a text, and on what it makes the loader do: one place for all growth that a file asks for.

use serde_json::Value;

use super::added::Added;

/// Maximum number of times by which all steps together may lengthen a text. NFKC, `Replace` and Metaspace together reach 99.
const GROWTH_MAX: u64 = 256;
/// Maximum number of steps.
const STEPS_MAX: usize = 64;
/// Maximum length of a text that is put in place of another, or in front.
const PUT_BYTES_MAX: usize = 256;
/// Maximum length of an added token: searching for one takes space and time by its length for each text.
const ADDED_BYTES_MAX: usize = 1024;
/// Maximum length of all added tokens together.
const ALL_ADDED_BYTES_MAX: usize = 8 << 20;

/// By how much Unicode's own steps may lengthen a text: U+FDFA is the longest. After one of them the others find little to lengthen.
const UNICODE_GROWTH: u64 = 11;

/// By how much one step may lengthen a text: bytes after it for each byte before, rounded up; and whether it is one of Unicode's.
fn growth(step: &Value) -> Result<(u64, bool), String> {
    let text = |v: &Value| v.as_str().map_or(0, str::len);
    let put = |v: &Value| match text(v) {
        n if n > PUT_BYTES_MAX => {
            Err(format!("has a step that puts a text of {n} bytes; at most {PUT_BYTES_MAX} are allowed"))
        }
        n => Ok(n as u64),
    };
    let times = match step["type"].as_str().unwrap_or("") {
        "Replace" => put(&step["content"])?.div_ceil(text(&step["pattern"]["String"]).max(1) as u64),
        "Prepend" => {
            put(&step["prepend"])?;
            1
        }
        "Metaspace" => put(&step["replacement"])?,
        // A byte is written as a character.
        "ByteLevel" => 2,
        "NFC" | "NFD" | "NFKC" | "NFKD" | "Lowercase" | "StripAccents" | "Nmt" | "BertNormalizer"
        | "Precompiled" => {
            return Ok((UNICODE_GROWTH, true));
        }
        _ => 1,
    };
    Ok((times.max(1), false))
}

/// The steps of a normaliser or pre-tokenizer, without the sequences that they are in.
fn steps<'a>(part: &'a Value, out: &mut Vec<&'a Value>) {
    let lists: Vec<&Vec<Value>> =
        [&part["normalizers"], &part["pretokenizers"]].into_iter().filter_map(Value::as_array).collect();
    match lists.is_empty() {
        true => out.push(part),
        false => lists.into_iter().flatten().for_each(|step| steps(step, out)),
    }
}

/// Fails if the normaliser and the pre-tokenizer may make a text much longer, or take many steps.
pub(super) fn check_steps(parts: [Option<&Value>; 2]) -> Result<(), String> {
    let mut all = Vec::new();
    parts.into_iter().flatten().for_each(|part| steps(part, &mut all));
    if all.len() > STEPS_MAX {
        return Err(format!(
            "has {} normalizers and pre-tokenizers; at most {STEPS_MAX} are allowed",
            all.len()
        ));
    }
    let (mut times, mut has_unicode) = (1u64, false);
    for step in all {
        let (growth, is_unicode) = growth(step)?;
        if !is_unicode || !std::mem::replace(&mut has_unicode, true) {
            times = times.saturating_mul(growth);
        }
    }
    if times > GROWTH_MAX {
        return Err(format!(
            "has normalizers that may make a text {times} times as long; at most {GROWTH_MAX} times are allowed"
        ));
    }
    Ok(())
}

/// Fails if added tokens are too long to search for.
pub(super) fn check_added<'a>(added: impl Iterator<Item = &'a Added>) -> Result<(), String> {
    let mut all = 0usize;
    for token in added {
        let bytes = token.pattern.len().max(token.text.len());
        if bytes > ADDED_BYTES_MAX {
            return Err(format!(
                "has the added token {} of {bytes} bytes; at most {ADDED_BYTES_MAX} are allowed",
                token.id
            ));
        }
        all += bytes;
    }
    if all > ALL_ADDED_BYTES_MAX {
        return Err(format!(
            "has added tokens of {all} bytes in total; at most {ALL_ADDED_BYTES_MAX} are allowed"
        ));
    }
    Ok(())
}
