//! GGUF files, versions 2 and 3: reader (single and split files) and writer.

mod read;
mod scales;
pub(crate) mod split;
mod write;

use std::path::Path;

use bytes::Bytes;

use crate::map::Mapped;
use crate::quant::ik_rows::Row;
use crate::source::{Convert, Files, Place};
use crate::{Error, Model};

pub use write::Writer;

/// First bytes of every GGUF file.
pub const MAGIC: [u8; 4] = *b"GGUF";
const ALIGNMENT_DEFAULT: u64 = 32;
const ALIGNMENT_KEY: &str = "general.alignment";
/// Most dimensions of a tensor.
pub(crate) const DIMS_MAX: u32 = 4;

/// Ids of value types in a GGUF file.
mod value_type {
    pub const U8: u32 = 0;
    pub const I8: u32 = 1;
    pub const U16: u32 = 2;
    pub const I16: u32 = 3;
    pub const U32: u32 = 4;
    pub const I32: u32 = 5;
    pub const F32: u32 = 6;
    pub const BOOL: u32 = 7;
    pub const STRING: u32 = 8;
    pub const ARRAY: u32 = 9;
    pub const U64: u32 = 10;
    pub const I64: u32 = 11;
    pub const F64: u32 = 12;

    /// Bytes of a value of this type; the least that a string (its length) and an array (type and length) take.
    pub fn size(id: u32) -> u64 {
        match id {
            U8 | I8 | BOOL => 1,
            U16 | I16 => 2,
            U32 | I32 | F32 => 4,
            ARRAY => 12,
            _ => 8,
        }
    }
}

/// Opens a GGUF file; any part of a split set opens the whole set.
pub(crate) fn open(path: &Path) -> Result<Model, Error> {
    let file = Mapped::open(path)?;
    let part = read::parse(&file.name, &file.bytes)?;
    let parts = match split::parts_of(path, &part.metadata)? {
        None => vec![(file, part)],
        Some(set) => split::open_all(set, (file, part))?,
    };
    model(path.display().to_string(), parts)
}

/// A GGUF file whose bytes are at hand; messages call it `name`. A part of a split set is refused.
pub fn from_bytes(name: &str, bytes: Bytes) -> Result<Model, Error> {
    let file = Mapped::in_memory(name, bytes);
    let part = read::parse(name, &file.bytes)?;
    if split::count(&part.metadata)? > 1 {
        return Err(Error::format(name, "is one part of several; open it by its path, beside the others"));
    }
    model(name.into(), vec![(file, part)])
}

/// Gives a tensor the name that llama.cpp's converter gives it: Ollama's writes the bias of a Gated DeltaNet's time steps without its suffix.
/// (A duplicate is an error as any other.)
fn usual_name(name: &mut String) {
    if name.starts_with("blk.") && name.ends_with(".ssm_dt") {
        name.push_str(".bias");
    }
}

/// Puts the parts together: metadata of the first, tensors of all.
fn model(origin: String, parts: Vec<(Mapped, read::Part)>) -> Result<Model, Error> {
    let mut files = Vec::with_capacity(parts.len());
    let mut tensors = Vec::new();
    let mut metadata = None;
    for (index, (file, part)) in parts.into_iter().enumerate() {
        metadata.get_or_insert(part.metadata);
        files.push(file);
        tensors.extend(part.tensors.into_iter().map(|(mut info, range)| {
            let stored = info.ty;
            usual_name(&mut info.name);
            let place = match Row::of(stored) {
                Some(row) => Place::Rows { file: index, range, row },
                None => Place::Plain { file: index, range, stored, convert: Convert::None },
            };
            (info, place)
        }));
    }
    let metadata = metadata.ok_or_else(|| Error::format(&origin, "has no parts"))?;
    let scales = scales::take(&files, &mut tensors)?;
    Model::new(origin, metadata, Box::new(Files::new(files, tensors, Vec::new()).with_scales(scales)))
}
