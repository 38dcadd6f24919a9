//! The towers: a file each, which reads a projector's metadata into a [`Tower`].

mod gemma3;
mod gemma4;
mod gemma4_unified;
mod glm4v;
mod idefics3;
mod internvl;
mod pixtral;
mod qwen25;
mod qwen3;

use octet_weights::Model;

use super::keys::{Keys, Read};
use super::plan::Tower;
use crate::Error;

/// A kind of tower.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    /// The projector's kind: `clip.projector_type`.
    pub kind: &'static str,
    /// Models that have it.
    pub models: &'static str,
    /// Architectures of their text models.
    pub architectures: &'static [&'static str],
    read: Read,
}

const fn row(
    kind: &'static str,
    models: &'static str,
    architectures: &'static [&'static str],
    read: Read,
) -> Kind {
    Kind { kind, models, architectures, read }
}

/// All supported towers.
pub static TOWERS: &[Kind] = &[
    row(
        "qwen3vl_merger",
        "Qwen3.5, Qwen3.6, Qwen3-VL",
        &["qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe"],
        qwen3::plan,
    ),
    row("qwen2.5vl_merger", "Qwen2.5-VL", &["qwen2vl"], qwen25::plan),
    row("gemma3", "Gemma 3", &["gemma3"], gemma3::plan),
    row("gemma4v", "Gemma 4", &["gemma4"], gemma4::plan),
    row("gemma4uv", "Gemma 4 12B", &["gemma4"], gemma4_unified::plan),
    row("glm4v", "GLM-4.1V, GLM-4.5V, GLM-4.6V", &["glm4", "glm4moe"], glm4v::plan),
    row(
        "internvl",
        "InternVL 3 and 3.5",
        &["internlm2", "llama", "qwen2", "qwen3", "qwen3moe", "gpt-oss"],
        internvl::plan,
    ),
    row("idefics3", "SmolVLM, Idefics3", &["llama"], idefics3::plan),
    row(
        "pixtral",
        "Pixtral 12B, Mistral Small 3.1 and 3.2, Ministral 3, Devstral Small 2",
        &["llama", "mistral3", "mistral4"],
        pixtral::plan,
    ),
];

/// The tower that a projector's file describes.
///
/// # Errors
/// If the file is no projector for images, or one of an unknown kind, or its metadata cannot be used.
pub fn tower(model: &Model) -> Result<Tower, Error> {
    let meta = &model.metadata;
    let bad = |key: &str, what: String| Error::from(octet_weights::Error::key(meta.file(), key, what));
    match meta.str("general.architecture")? {
        "clip" => {}
        other => {
            let what =
                format!("is '{other}'; a file that reads images has 'clip' (its name begins with mmproj)");
            return Err(bad("general.architecture", what));
        }
    }
    let (key, kind) = match meta.opt_str("clip.vision.projector_type")? {
        Some(kind) => ("clip.vision.projector_type", kind),
        None => ("clip.projector_type", meta.str("clip.projector_type")?),
    };
    let Some(found) = TOWERS.iter().find(|t| t.kind == kind) else {
        let known = TOWERS.iter().map(|t| t.kind).collect::<Vec<_>>().join(", ");
        return Err(bad(key, format!("is '{kind}', which is not supported (known: {known})")));
    };
    (found.read)(&Keys::new(model, kind != gemma4_unified::KIND)?)
}
