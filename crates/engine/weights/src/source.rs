//! Tensors in files, as they are or converted to GGUF's convention when they are read. Built by `gguf` and `hf`.

use std::ops::Range;

use bytes::Bytes;

use crate::map::Mapped;
use crate::{Error, GgmlType, Source, TensorInfo};

/// A conversion of a tensor's values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Convert {
    /// The file's bytes, without a copy.
    None,
    /// F32 values `1 + w`: RMS norms that are stored around zero.
    PlusOne,
    /// F32 values `-exp(w)`: the decay of a state-space layer, stored as its logarithm.
    NegExp,
}

/// The location of a tensor's bytes.
pub(crate) struct Place {
    /// Index into the files.
    pub file: usize,
    /// Its bytes there; checked against the file's length and against the tensor's type and shape.
    pub range: Range<usize>,
    /// Type in the file; not always the tensor's own when `convert` does something.
    pub stored: GgmlType,
    pub convert: Convert,
}

/// Tensors of one or several files.
pub(crate) struct Files {
    files: Vec<Mapped>,
    infos: Vec<TensorInfo>,
    places: Vec<Place>,
    ignored: Vec<String>,
}

impl Files {
    pub fn new(mut files: Vec<Mapped>, tensors: Vec<(TensorInfo, Place)>, ignored: Vec<String>) -> Self {
        // Packed weights are as large as the files.
        let twice = files.iter().map(|f| f.bytes.len() as u64).fold(0, u64::saturating_add).saturating_mul(2);
        if memory_bytes().is_none_or(|all| twice < all) {
            files.iter_mut().for_each(Mapped::keep_cached);
        }
        let (infos, places) = tensors.into_iter().unzip();
        Self { files, infos, places, ignored }
    }
}

/// The machine's memory, if the system reports it.
fn memory_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kib = text.lines().find_map(|l| l.strip_prefix("MemTotal:"))?.trim().strip_suffix("kB")?;
    kib.trim().parse::<u64>().ok()?.checked_mul(1024)
}

impl Source for Files {
    fn tensors(&self) -> &[TensorInfo] {
        &self.infos
    }

    fn data(&self, index: usize) -> Result<Bytes, Error> {
        let place = &self.places[index];
        let file = &self.files[place.file];
        let convert: fn(f32) -> f32 = match place.convert {
            Convert::None => {
                file.will_read(&place.range);
                return Ok(file.bytes.slice(place.range.clone()));
            }
            Convert::PlusOne => |w| 1.0 + w,
            Convert::NegExp => |w| -(w as f64).exp() as f32,
        };
        let mut values = vec![0.0; self.infos[index].len()];
        place.stored.dequantize(&file.bytes[place.range.clone()], &mut values);
        Ok(values.into_iter().flat_map(|w| convert(w).to_le_bytes()).collect())
    }

    fn release(&self, index: usize) {
        let place = &self.places[index];
        self.files[place.file].release(&place.range);
    }

    fn files(&self) -> &[Mapped] {
        &self.files
    }

    fn ignored(&self) -> &[String] {
        &self.ignored
    }
}
