//! Normalisers and pre-tokenizers of a tokenizer.json: those whose work the crate `tokenizers` does safely for any text.

use serde::de::DeserializeOwned;
use serde_json::Value;
use tokenizers::normalizers::{NormalizerWrapper, Sequence};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;

use super::charsmap;

const NORMALIZERS: &[&str] = &[
    "NFC",
    "NFD",
    "NFKC",
    "NFKD",
    "Lowercase",
    "Prepend",
    "Replace",
    "Strip",
    "StripAccents",
    "Nmt",
    "BertNormalizer",
    "Precompiled",
    "Sequence",
];

const PRE_TOKENIZERS: &[&str] = &[
    "Split",
    "ByteLevel",
    "Digits",
    "Metaspace",
    "BertPreTokenizer",
    "Whitespace",
    "WhitespaceSplit",
    "Punctuation",
    "Sequence",
];

/// Expressions of `Replace` that match no empty text.
const REPLACED: &[&str] = &[" {2,}", "\\s+", "\\s{2,}"];

/// A normaliser; `None` for one of no steps.
pub(super) fn normalizer(v: &Value) -> Result<Option<NormalizerWrapper>, String> {
    if v.is_null() {
        return Ok(None);
    }
    let kind = known("normalizer", v, NORMALIZERS)?;
    let text = |v: &Value| v.as_str().is_some_and(|s| !s.is_empty());
    let replaces = |v: &Value| {
        text(&v["pattern"]["String"]) || v["pattern"]["Regex"].as_str().is_some_and(|r| REPLACED.contains(&r))
    };
    if kind == "Prepend" && !text(&v["prepend"]) || kind == "Replace" && !replaces(v) {
        return Err(format!("has a normalizer '{kind}' without a text to put or to look for"));
    }
    match kind {
        "Sequence" => {
            let list = v["normalizers"].as_array().ok_or("has a normalizer 'Sequence' without a list")?;
            let mut steps = Vec::with_capacity(list.len());
            for v in list {
                steps.extend(normalizer(v)?);
            }
            Ok((!steps.is_empty()).then(|| NormalizerWrapper::Sequence(Sequence::new(steps))))
        }
        "Precompiled" => match v["precompiled_charsmap"].as_str() {
            None | Some("") => Ok(None),
            Some(base64) => Ok(Some(NormalizerWrapper::Precompiled(charsmap::read(&decode(base64)?)?))),
        },
        _ => Ok(Some(parse("normalizer", v)?)),
    }
}

/// A pre-tokenizer.
pub(super) fn pre_tokenizer(v: &Value) -> Result<PreTokenizerWrapper, String> {
    if known("pre_tokenizer", v, PRE_TOKENIZERS)? == "Sequence" {
        for v in v["pretokenizers"].as_array().into_iter().flatten() {
            pre_tokenizer(v)?;
        }
    }
    parse("pre_tokenizer", v)
}

/// The type of a step, if it is one of `names`.
fn known<'a>(part: &str, v: &'a Value, names: &[&str]) -> Result<&'a str, String> {
    let kind = v["type"].as_str().unwrap_or("");
    if !names.contains(&kind) {
        return Err(format!("has a {part} '{kind}' that is not supported; supported: {}", names.join(", ")));
    }
    Ok(kind)
}

fn parse<T: DeserializeOwned>(part: &str, v: &Value) -> Result<T, String> {
    serde_json::from_value(v.clone()).map_err(|e| format!("has an unsupported {part}: {e}"))
}

/// Standard base64.
pub(super) fn decode(text: &str) -> Result<Vec<u8>, String> {
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut count) = (0u32, 0);
    for c in text.trim_end_matches('=').bytes() {
        let six = match c {
            b'A'..=b'Z' => c - b'A',
            b'a'..=b'z' => c - b'a' + 26,
            b'0'..=b'9' => c - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return Err(format!("has '{}' in base64", c as char)),
        };
        bits = bits << 6 | u32::from(six);
        count += 6;
        if count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_decoded() {
        assert_eq!(decode("aGVsbG8=").unwrap(), b"hello");
        assert_eq!(decode("////").unwrap(), [255; 3]);
        assert!(decode("a b").is_err());
    }
}
