//! Parses llama.cpp's further samplers, in any dialect.

use crate::core::MoreSampling;
use crate::json::{Field, Object, Result};

/// Maximum number of DRY sequence breakers.
const BREAKERS_MAX: usize = 64;
/// Maximum length of one in bytes; they are searched in the whole vocabulary.
const BREAKER_BYTES_MAX: usize = 64;

/// Names, aliases and letters of samplers, for `samplers`.
const SAMPLERS: &[(&str, &[&str], char)] = &[
    ("penalties", &[], 'e'),
    ("dry", &[], 'd'),
    ("top_n_sigma", &["top-n-sigma"], 's'),
    ("temperature", &["temp"], 't'),
    ("top_k", &["top-k"], 'k'),
    ("typ_p", &["typical_p", "typical", "typ-p", "typical-p", "typ"], 'y'),
    ("top_p", &["top-p", "nucleus"], 'p'),
    ("min_p", &["min-p"], 'm'),
    ("xtc", &[], 'x'),
];

/// llama.cpp's samplers of other versions and of `/infill`, with their letters: left out of `samplers`, with a warning.
const OTHERS: &[(&str, &[&str], char)] = &[
    ("infill", &[], 'i'),
    ("tfs_z", &["tfs-z", "tfs"], 'f'),
    ("adaptive_p", &["adaptive-p"], 'a'),
    ("softmax", &[], '\0'),
];

/// The name of a sampler by any of its names.
pub fn sampler_name(name: &str) -> Option<&'static str> {
    SAMPLERS.iter().find(|s| s.0 == name || s.1.contains(&name)).map(|s| s.0)
}

/// The name of a sampler by its letter.
pub fn sampler_letter(letter: char) -> Option<&'static str> {
    SAMPLERS.iter().find(|s| s.2 == letter).map(|s| s.0)
}

/// Parses the fields.
pub(super) fn read(o: &mut Object) -> Result<MoreSampling> {
    // As in llama.cpp, values beyond an end mean the same as that end.
    let share = |f: Field| f.clamped(0.0..=1.0);
    let positive = |f: Field| f.number(0.0..=f64::from(f32::MAX));
    let any = |f: Field| f.number(f64::from(f32::MIN)..=f64::from(f32::MAX));
    let last_n = o.read("dry_penalty_last_n", |f| f.integer(-1..=i64::from(i32::MAX)))?;
    Ok(MoreSampling {
        typical_p: o.take_any(&["typical_p", "typ_p"])?.map(share).transpose()?,
        top_n_sigma: o.read("top_n_sigma", any)?,
        xtc_probability: o.read("xtc_probability", share)?,
        xtc_threshold: o.read("xtc_threshold", share)?,
        dry_multiplier: o.read("dry_multiplier", positive)?,
        // As in llama.cpp, values below 1 mean the default.
        dry_base: o.read("dry_base", any)?.filter(|b| *b >= 1.0),
        dry_allowed_length: o.read("dry_allowed_length", |f| f.count(0..=u32::MAX))?,
        dry_penalty_last_n: last_n.map(|n| n as i32),
        dry_sequence_breakers: o.read("dry_sequence_breakers", breakers)?,
        dynatemp_range: o.read("dynatemp_range", |f| f.clamped(0.0..=f64::from(f32::MAX)))?,
        dynatemp_exponent: o.read("dynatemp_exponent", positive)?,
        mirostat: o.read("mirostat", |f| f.count(0..=2))?,
        mirostat_tau: o.read("mirostat_tau", positive)?,
        mirostat_eta: o.read("mirostat_eta", positive)?,
        min_keep: o.read("min_keep", |f| f.count(0..=u32::MAX))?,
        samplers: o.read("samplers", samplers)?,
        text_bias: Vec::new(),
    })
}

fn breakers(f: Field) -> Result<Vec<String>> {
    let what = format!("an array of 1 to {BREAKERS_MAX} strings of at most {BREAKER_BYTES_MAX} bytes");
    let wrong = f.expected(what);
    if f.value().as_array().is_none_or(|b| b.is_empty() || b.len() > BREAKERS_MAX) {
        return Err(wrong);
    }
    let texts = f.list(Field::string)?;
    if texts.iter().any(|t| t.len() > BREAKER_BYTES_MAX) { Err(wrong) } else { Ok(texts) }
}

/// A list of names, or a string of letters.
fn samplers(f: Field) -> Result<Vec<String>> {
    let by_letter = f.as_str().map(|letters| letters.chars().map(String::from).collect());
    let asked: Vec<String> = match (by_letter, f.value().as_array()) {
        (Some(letters), _) => letters,
        (None, Some(names)) if names.iter().all(serde_json::Value::is_string) => {
            names.iter().filter_map(|n| n.as_str()).map(str::to_string).collect()
        }
        _ => return Err(f.expected("an array of names or a string of letters")),
    };
    let by_letter = f.is_string();
    let mut out: Vec<String> = Vec::new();
    for name in &asked {
        let letter = name.chars().next().filter(|_| by_letter);
        let is_other = |(n, aliases, l): &&(&str, &[&str], char)| {
            letter.map_or_else(|| *n == name || aliases.contains(&name.as_str()), |letter| letter == *l)
        };
        if let Some((other, ..)) = OTHERS.iter().find(is_other) {
            f.warn(format_args!("names the sampler '{other}', which is left out: there is none here"));
            continue;
        }
        match letter.map_or_else(|| sampler_name(name), sampler_letter) {
            Some(known) if out.iter().any(|n| n == known) => {
                return Err(f.error(format_args!("names the sampler '{known}' twice")));
            }
            Some(known) => out.push(known.to_string()),
            None => {
                let known: Vec<&str> = SAMPLERS.iter().map(|s| s.0).collect();
                let name = crate::json::shortened(name);
                let what = format_args!(
                    "names the sampler '{name}', which is not supported; there are: {}",
                    known.join(", ")
                );
                return Err(f.error(what));
            }
        }
    }
    Ok(out)
}
