//! Scaling of rotary frequencies in config.json.

use super::arch::Keys;
use super::json::Fields;
use crate::{Error, Value};

/// Rotary frequency scaling for contexts longer than the trained one.
pub(super) fn rope_scaling(p: &Fields, keys: &mut Keys) -> Result<(), Error> {
    let field = if p.get("rope_type").is_some() { "rope_type" } else { "type" };
    // Octet's names on the left, the checkpoint's on the right; those with `true` are required.
    let parameters: &[(&str, &str, bool)] = match p.opt_str(field)? {
        None if p.get("factor").is_some() => {
            return Err(p.bad(field, "is missing, and there is a factor; expected linear, llama3 or yarn"));
        }
        // "mrope" only concerns positions of images.
        None | Some("default" | "mrope") => return Ok(()),
        Some("linear") => &[],
        Some("llama3") => &[
            ("low_freq_factor", "low_freq_factor", true),
            ("high_freq_factor", "high_freq_factor", true),
            ("original_context_length", "original_max_position_embeddings", true),
        ],
        Some("yarn") => &[
            ("original_context_length", "original_max_position_embeddings", false),
            ("yarn_beta_fast", "beta_fast", false),
            ("yarn_beta_slow", "beta_slow", false),
        ],
        Some(other) => {
            let what = format!("is '{other}', which is not supported (known: default, linear, llama3, yarn)");
            return Err(p.bad(field, what));
        }
    };
    let (kind, factor) = (p.str(field)?, p.f64("factor")?);
    keys.put("rope.scaling.type", Value::Str(kind.into()));
    keys.put("rope.scaling.factor", Value::F64(factor));
    for &(key, field, required) in parameters {
        let key = format!("rope.scaling.{key}");
        if !required && p.get(field).is_none() {
            continue;
        }
        if field == "original_max_position_embeddings" {
            keys.put_u32(&key, p.u32(field)?);
        } else {
            keys.put(&key, Value::F64(p.f64(field)?));
        }
    }
    if kind == "yarn" { yarn_attention(p, factor, keys) } else { Ok(()) }
}

/// YaRN's attention factor. GGUF has it as a multiple of the usual one, `1 + 0.1 ln(factor)`.
fn yarn_attention(p: &Fields, factor: f64, keys: &mut Keys) -> Result<(), Error> {
    if p.opt_bool("truncate")? == Some(false) {
        keys.metadata.insert("octet.yarn_ramp", Value::Str("not rounded".into()));
    }
    let usual = |multiple: f64| if factor <= 1.0 { 1.0 } else { 1.0 + 0.1 * multiple * factor.ln() };
    let not_zero = |field: &str| Ok::<_, Error>(p.opt_f64(field)?.filter(|m| *m != 0.0));
    let stated = match (p.opt_f64("attention_factor")?, not_zero("mscale")?, not_zero("mscale_all_dim")?) {
        (Some(stated), ..) => stated,
        (None, Some(m), Some(all)) => usual(m) / usual(all),
        _ => return Ok(()),
    };
    keys.put("rope.scaling.attn_factor", Value::F64(stated / usual(1.0)));
    Ok(())
}

/// Pairs that turn by time, row and column of a token.
pub(super) fn sections(p: &Fields, keys: &mut Keys) -> Result<(), Error> {
    let Some(sections) = p.opt_array("mrope_section")? else { return Ok(()) };
    let mut sections = sections
        .iter()
        .map(|v| v.as_u64().and_then(|n| u32::try_from(n).ok()).map(i64::from))
        .collect::<Option<Vec<_>>>()
        .filter(|s| s.len() <= 4)
        .ok_or_else(|| p.bad("mrope_section", "is not an array of at most 4 unsigned integers"))?;
    sections.resize(4, 0); // GGUF always has four
    keys.put("rope.dimension_sections", Value::Ints(sections));
    Ok(())
}
