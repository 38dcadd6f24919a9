//! What each layer of a model is: attention to all positions or within a window, or another operation.

use super::families::Family;
use super::json::Fields;
use crate::Error;

/// What each layer is, if the configuration says: `sliding_attention`, `mamba`, `conv`, or Nemotron's letters.
pub(super) fn layer_kinds(text: &Fields, family: &Family, layers: usize) -> Result<Vec<String>, Error> {
    if let Some(pattern) = text.opt_str("hybrid_override_pattern")? {
        if pattern.len() != layers {
            let what = format!("has {} letters for {layers} layers", pattern.len());
            return Err(text.bad("hybrid_override_pattern", what));
        }
        if let Some(letter) = pattern.chars().find(|c| !"M*-E".contains(*c)) {
            let what = format!("has the letter '{}'; expected M, *, - or E", letter.escape_debug());
            return Err(text.bad("hybrid_override_pattern", what));
        }
        return Ok(pattern.chars().map(String::from).collect());
    }
    if let Some(linear) = text.opt_object("linear_attn_config")? {
        return linear_kinds(&linear, layers);
    }
    if let Some(windows) = text.opt_array("hybrid_layer_pattern")? {
        return hybrid_kinds(text, windows, layers);
    }
    let kinds = match text.opt_strs("layer_types")? {
        Some(mut kinds) => {
            // Step counts blocks for multi-token prediction there, too.
            if family.gguf == "step35" {
                kinds.truncate(layers);
            }
            known_kinds(text, &kinds, kinds_of(family))?;
            Some(kinds)
        }
        // All layers of Falcon-H1 are alike.
        None if family.gguf == "falcon-h1" => None,
        None => text.opt_strs("layers_block_type")?,
    };
    match kinds {
        Some(k) if k.len() != layers => {
            Err(text.bad("layer_types", format!("has {} entries for {layers} layers", k.len())))
        }
        Some(k) => Ok(k.into_iter().map(str::to_string).collect()),
        None => Ok(Vec::new()),
    }
}

/// MiMo's list of layers: 1 for those with a window.
fn hybrid_kinds(text: &Fields, windows: &[serde_json::Value], layers: usize) -> Result<Vec<String>, Error> {
    let kind = |window: &serde_json::Value| match window.as_u64() {
        Some(0) => Some("full_attention".to_string()),
        Some(1) => Some("sliding_attention".to_string()),
        _ => None,
    };
    let kinds: Option<Vec<String>> = windows.iter().map(kind).collect();
    kinds.filter(|k| k.len() == layers).ok_or_else(|| {
        text.bad("hybrid_layer_pattern", format!("is not an array of {layers} numbers, 0 or 1"))
    })
}

/// The entries of `layer_types` that a family has.
fn kinds_of(family: &Family) -> &'static [&'static str] {
    match family.gguf {
        "falcon-h1" => &["hybrid"],
        "qwen3next" => &["full_attention", "linear_attention"],
        "granitehybrid" => &["attention", "full_attention", "mamba"],
        "lfm2" | "lfm2moe" => &["conv", "full_attention"],
        "llama4" => &["chunked_attention", "full_attention"],
        _ => &["full_attention", "sliding_attention"],
    }
}

/// Refuses kinds of layers that are not among `known`.
pub(super) fn known_kinds(text: &Fields, kinds: &[&str], known: &[&str]) -> Result<(), Error> {
    let Some(i) = kinds.iter().position(|kind| !known.contains(kind)) else { return Ok(()) };
    let known = known.iter().map(|k| format!("'{k}'")).collect::<Vec<_>>().join(" or ");
    Err(text.bad("layer_types", format!("has '{}' for layer {i}; expected {known}", kinds[i])))
}

/// Kimi Linear's lists of layers, which count from 1.
fn linear_kinds(linear: &Fields, layers: usize) -> Result<Vec<String>, Error> {
    let mut kinds = vec![String::new(); layers];
    for (field, kind) in [("kda_layers", "linear_attention"), ("full_attn_layers", "full_attention")] {
        let wrong = || linear.bad(field, format!("is not an array of numbers from 1 to {layers}"));
        for layer in linear.opt_array(field)?.unwrap_or_default() {
            let at = layer.as_u64().and_then(|n| kinds.get_mut(usize::try_from(n).ok()?.checked_sub(1)?));
            *at.ok_or_else(wrong)? = kind.into();
        }
    }
    match kinds.iter().position(String::is_empty) {
        Some(i) => Err(linear.bad("kda_layers", format!("does not say what layer {} is", i + 1))),
        None => Ok(kinds),
    }
}
