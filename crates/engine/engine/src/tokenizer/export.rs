//! A Hugging Face tokenizer under GGUF's keys, for other engines: tokens, their types, merges, and the name of the pre-tokenizer.

use octet_weights::{Metadata, Value};
use serde_json::Value as Json;

use super::{HUGGING_FACE_KEY, pre};

/// Types of tokens in GGUF files.
const NORMAL: i64 = 1;
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;
const UNUSED: i64 = 5;
/// More tokens than any vocabulary has.
const MAX_TOKENS: usize = 1 << 24;

/// Adds GGUF's keys to metadata that have a verbatim tokenizer.json only, which stays. `tokens` is the number of rows of the embedding
/// table. Does byte-level BPE, which nearly all current models have.
///
/// # Errors
/// What about the tokenizer has no form in GGUF.
pub fn to_gguf(metadata: &mut Metadata, tokens: usize) -> Result<(), String> {
    if metadata.get("tokenizer.ggml.tokens").is_some() {
        return Ok(());
    }
    let Some(Value::Str(raw)) = metadata.get(HUGGING_FACE_KEY) else {
        return Err("the tokenizer is no tokenizer.json".into());
    };
    let json: Json = serde_json::from_str(raw).map_err(|e| format!("tokenizer.json: {e}"))?;
    let model = &json["model"];
    let steps = steps(&json["pre_tokenizer"]);
    let is_bytes = steps.iter().any(|s| s["type"] == "ByteLevel");
    if model["type"] != "BPE" || !is_bytes {
        return Err(format!(
            "tokenizers of type {} without bytes as an alphabet have no keys here",
            model["type"]
        ));
    }
    let regexes: Vec<&str> = steps.iter().filter_map(|s| s["pattern"]["Regex"].as_str()).collect();
    let is_nfc = json["normalizer"].to_string().contains("\"NFC\"");
    let uses_own = steps.iter().any(|s| s["type"] == "ByteLevel" && s["use_regex"] != false);
    let others = steps.iter().any(|s| !matches!(s["type"].as_str(), Some("Split" | "ByteLevel")));
    let name = pre::name_of(&regexes, uses_own, is_nfc).filter(|_| !others);
    let name = name.ok_or("its words are split by expressions that no name in GGUF stands for")?;
    let (texts, types) = vocabulary(&json, tokens)?;
    let merges = merges(&model["merges"]).ok_or("tokenizer.json: the merges are not pairs of tokens")?;
    for (key, value) in [
        ("model", Value::Str("gpt2".into())),
        ("pre", Value::Str(name.into())),
        ("tokens", Value::Strs(texts)),
        ("token_type", Value::Ints(types)),
        ("merges", Value::Strs(merges)),
    ] {
        metadata.insert(&format!("tokenizer.ggml.{key}"), value);
    }
    Ok(())
}

/// A pre-tokenizer's steps: itself, or those of a sequence.
fn steps(pre: &Json) -> Vec<&Json> {
    match pre["pretokenizers"].as_array() {
        Some(all) => all.iter().collect(),
        None => vec![pre],
    }
}

/// Texts and types by id; ids without a token are padding.
fn vocabulary(json: &Json, tokens: usize) -> Result<(Vec<String>, Vec<i64>), String> {
    let bad = || "tokenizer.json: the vocabulary is not a map of tokens to ids".to_string();
    let mut all: Vec<Option<(String, i64)>> = vec![None; tokens.min(MAX_TOKENS)];
    let mut put = |id: &Json, text: &str, ty: i64| {
        let id = id
            .as_u64()
            .and_then(|id| usize::try_from(id).ok())
            .filter(|id| *id < MAX_TOKENS)
            .ok_or_else(bad)?;
        if id >= all.len() {
            all.resize(id + 1, None);
        }
        all[id] = Some((text.to_string(), ty));
        Ok::<_, String>(())
    };
    for (text, id) in json["model"]["vocab"].as_object().ok_or_else(bad)? {
        put(id, text, NORMAL)?;
    }
    for token in json["added_tokens"].as_array().into_iter().flatten() {
        let text = token["content"].as_str().ok_or_else(bad)?;
        put(&token["id"], text, if token["special"] == true { CONTROL } else { USER_DEFINED })?;
    }
    let padding = |(i, t): (usize, Option<(String, i64)>)| t.unwrap_or_else(|| (format!("[PAD{i}]"), UNUSED));
    Ok(all.into_iter().enumerate().map(padding).unzip())
}

/// Pairs with a space between: older files have them as one string, newer ones as a list.
fn merges(merges: &Json) -> Option<Vec<String>> {
    let pair = |m: &Json| match m {
        Json::String(s) => Some(s.clone()),
        Json::Array(two) => Some(format!("{} {}", two.first()?.as_str()?, two.get(1)?.as_str()?)),
        _ => None,
    };
    merges.as_array()?.iter().map(pair).collect()
}
