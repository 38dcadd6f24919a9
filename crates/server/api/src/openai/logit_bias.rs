//! `logit_bias` of all dialects: pairs or an object. Called by `fields` and by llama.cpp's completions.

use serde_json::Value;

use crate::json::{Field, Result};

/// Biases of token ids, and of texts.
pub(crate) type Biases = (Vec<(u32, f64)>, Vec<(String, f64)>);

/// Pairs `[token, bias]` or an object; a token is an id or, with `texts`, a text; `false` bans it. Biases are clamped to 100 in either
/// direction, where nothing is left to chance.
pub(crate) fn biases(f: Field, texts: bool) -> Result<Biases> {
    let bias = |f: Field| match f.value() {
        Value::Bool(false) => Ok(f64::NEG_INFINITY),
        _ => f.clamped(-100.0..=100.0),
    };
    let (mut ids, mut by_text) = (Vec::new(), Vec::new());
    if f.is_object() {
        for (key, f) in f.object()?.into_fields() {
            match key.parse::<u32>() {
                Ok(id) => ids.push((id, bias(f)?)),
                Err(_) if texts => by_text.push((key, bias(f)?)),
                Err(_) => return Err(f.error("must have token ids (whole numbers) as keys")),
            }
        }
    } else {
        for f in f.array()? {
            let wrong = f.expected("a pair of a token and its bias");
            let mut pair = f.array()?;
            let (Some(token), Some(value), None) = (pair.next(), pair.next(), pair.next()) else {
                return Err(wrong);
            };
            if token.is_string() && texts {
                by_text.push((token.string()?, bias(value)?));
            } else {
                ids.push((token.count(0..=u32::MAX)?, bias(value)?));
            }
        }
    }
    // The last one wins, as in llama.cpp.
    ids.reverse();
    ids.sort_by_key(|(id, _)| *id);
    ids.dedup_by_key(|(id, _)| *id);
    Ok((ids, by_text))
}
