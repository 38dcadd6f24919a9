//! Quantised checkpoints: one matrix of the model from the tensors that a method splits it into (`qweight`, `qzeros`, `scales`; ...).
//!
//! The tensors decide what a matrix is: their names, types and shapes. What config.json says about the quantisation ([`Settings`]) only
//! fills in what they leave open. Each method has a file with its layout; [`SCHEMES`] is the table of them. A matrix keeps its size: a
//! scheme re-blocks it into a type of [`crate::quant`] that holds the same values. Where there is none it becomes F32.

mod bitsandbytes;
mod fp4;
mod fp8;
mod group;
mod ints;
mod mlx;
mod packed;
mod quantised;
mod qweight;
mod settings;

use group::{Bad, Group};
use quantised::Opened;
pub(crate) use quantised::{Quantised, unify};
pub(crate) use settings::{FILES, Settings};

use crate::Error;
use crate::map::Mapped;
use crate::safetensors::Entry;

/// How a scheme opens a group of tensors: `None` if it is not one of its own.
type Open = fn(&Group, &Settings) -> Option<Result<Opened, Bad>>;

/// Every scheme. A group of tensors fits at most one.
const SCHEMES: &[(&str, Open)] = &[
    ("FP8", fp8::open),
    ("FP4", fp4::open),
    ("fused FP4 experts", fp4::open_fused),
    ("pack-quantized", packed::open),
    ("int-quantized", packed::open_bytes),
    ("GPTQ or AWQ", qweight::open),
    ("MLX", mlx::open),
    ("bitsandbytes 4 bit", bitsandbytes::open),
    ("bitsandbytes 8 bit", bitsandbytes::open_bytes),
];

/// A tensor of a checkpoint under its own name.
pub(crate) struct Logical {
    pub name: String,
    pub content: Content,
}

/// Where a tensor of a checkpoint comes from.
pub(crate) enum Content {
    /// A tensor of file `file` as it is.
    Plain { file: usize, entry: Entry },
    /// A quantised matrix.
    Quantised(Quantised),
}

/// Puts the parts of quantised matrices together. `used` is false for tensors that nobody reads, such as those of a vision tower: their
/// parts may be anything.
pub(crate) fn collect(
    files: &[Mapped],
    entries: Vec<Vec<Entry>>,
    settings: &Settings,
    used: impl Fn(&str) -> bool,
) -> Result<Vec<Logical>, Error> {
    let mut out = Vec::new();
    for group in group::groups(files, entries) {
        if group.is_plain() {
            let single = group.into_single();
            out.push(Logical {
                name: single.entry.name.clone(),
                content: Content::Plain { file: single.file, entry: single.entry },
            });
            continue;
        }
        if !used(&group.name()) {
            continue;
        }
        match open(&group, settings).map_err(|bad| group.error(files, bad))? {
            None => {}
            Some(opened) => {
                let name = group.name();
                let quantised = Quantised::new(&group, opened);
                out.push(Logical { name, content: Content::Quantised(quantised) });
            }
        }
    }
    Ok(out)
}

/// Opens a group by the scheme that it fits; `None` if all of it concerns activations only.
fn open(group: &Group, settings: &Settings) -> Result<Option<Opened>, Bad> {
    if let Some(part) = group.part("pre_quant_scale") {
        return Err(part.bad(
            "scales the activations of this matrix (AWQ by ModelOpt); it is not applied, and without it the output would \
             be wrong: take another quantisation of the model",
        ));
    }
    for (name, scheme) in SCHEMES {
        let Some(opened) = scheme(group, settings) else { continue };
        let opened = opened?;
        if let Some(odd) =
            group.parts.iter().find(|p| !p.is_ignorable() && !opened.parts.contains(&&*p.label))
        {
            return Err(odd.bad(format!("is not one of the tensors that a matrix of {name} has")));
        }
        return Ok(Some(opened));
    }
    match group.parts.iter().find(|p| !p.is_ignorable()) {
        None => Ok(None),
        Some(part) => Err(group.unreadable(part, settings)),
    }
}
