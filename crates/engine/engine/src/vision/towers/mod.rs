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

/// All supported towers: the projector's kind, models that have it, and how it is read.
pub static TOWERS: &[(&str, &str, Read)] = &[
    ("qwen3vl_merger", "Qwen3.5, Qwen3.6, Qwen3-VL", qwen3::plan),
    ("qwen2.5vl_merger", "Qwen2.5-VL", qwen25::plan),
    ("gemma3", "Gemma 3", gemma3::plan),
    ("gemma4v", "Gemma 4", gemma4::plan),
    ("gemma4uv", "Gemma 4 12B", gemma4_unified::plan),
    ("glm4v", "GLM-4.1V, GLM-4.5V, GLM-4.6V", glm4v::plan),
    ("internvl", "InternVL 3 and 3.5", internvl::plan),
    ("idefics3", "SmolVLM, Idefics3", idefics3::plan),
    ("pixtral", "Pixtral 12B, Mistral Small 3.1 and 3.2, Ministral 3, Devstral Small 2", pixtral::plan),
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
    let Some((_, _, read)) = TOWERS.iter().find(|(name, ..)| *name == kind) else {
        let known = TOWERS.iter().map(|t| t.0).collect::<Vec<_>>().join(", ");
        return Err(bad(key, format!("is '{kind}', which is not supported (known: {known})")));
    };
    read(&Keys::new(model, kind != gemma4_unified::KIND)?)
}
