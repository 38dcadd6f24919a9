//! Tensors in files, as they are or converted to GGUF's convention when they are read. Built by `gguf` and `hf`.

use std::collections::HashMap;
use std::ops::Range;

use bytes::Bytes;

use crate::map::Mapped;
use crate::quant::ik_rows::Row;
use crate::ranges::Piece;
use crate::schemes::Quantised;
use crate::{Error, GgmlType, RowScales, Source, TensorInfo};

/// A conversion of a tensor's values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Convert {
    /// The file's bytes, without a copy.
    None,
    /// F32 values `1 + w`: RMS norms that are stored around zero.
    PlusOne,
    /// F32 values `-exp(w)`: the decay of a state-space layer, stored as its logarithm.
    NegExp,
    /// The values as F32.
    Widen,
    /// Each matrix of a stack transposed: `[.., in, out]` in the file.
    Transpose,
}

/// The location of a tensor's bytes.
pub(crate) enum Place {
    /// One range of one file.
    Plain {
        /// Index into the files.
        file: usize,
        /// Its bytes there; checked against the file's length and against the tensor's type and shape.
        range: Range<usize>,
        /// Type in the file; not always the tensor's own when `convert` does something.
        stored: GgmlType,
        convert: Convert,
    },
    /// One range of one file, in which each row begins with its scale.
    Rows { file: usize, range: Range<usize>, row: Row },
    /// The parts of a quantised matrix.
    Quantised(Quantised),
}

/// Tensors of one or several files.
pub(crate) struct Files {
    files: Vec<Mapped>,
    infos: Vec<TensorInfo>,
    places: Vec<Place>,
    ignored: Vec<String>,
    /// Factors of tensors' rows, by name.
    scales: HashMap<String, RowScales>,
}

impl Files {
    pub fn new(mut files: Vec<Mapped>, tensors: Vec<(TensorInfo, Place)>, ignored: Vec<String>) -> Self {
        // Packed weights are as large as the files.
        let twice = files.iter().map(|f| f.bytes.len() as u64).fold(0, u64::saturating_add).saturating_mul(2);
        if memory_bytes().is_none_or(|all| twice < all) {
            files.iter_mut().for_each(Mapped::keep_cached);
        }
        let (infos, places) = tensors.into_iter().unzip();
        Self { files, infos, places, ignored, scales: HashMap::new() }
    }

    /// With factors of the rows of some tensors, by name.
    pub fn with_scales(self, scales: HashMap<String, RowScales>) -> Self {
        Self { scales, ..self }
    }
}

/// The machine's memory, if the system reports it.
fn memory_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kib = text.lines().find_map(|l| l.strip_prefix("MemTotal:"))?.trim().strip_suffix("kB")?;
    kib.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// `[.., rows, cols]` of `info` from `[.., cols, rows]` in the file; its type has one value a block.
fn transposed(stored: &[u8], info: &TensorInfo) -> Bytes {
    let size = info.ty.block_bytes();
    let [.., rows, cols] = info.shape[..] else { return Bytes::copy_from_slice(stored) };
    let mut out = Vec::with_capacity(stored.len());
    for matrix in stored.chunks_exact(rows * cols * size) {
        for (r, c) in (0..rows).flat_map(|r| (0..cols).map(move |c| (r, c))) {
            let at = (c * rows + r) * size;
            out.extend_from_slice(&matrix[at..at + size]);
        }
    }
    out.into()
}

impl Files {
    /// The rows of a tensor as the file has them, with their scales.
    fn rows(
        &self,
        index: usize,
        file: usize,
        range: &Range<usize>,
        row: Row,
    ) -> std::slice::ChunksExact<'_, u8> {
        let info = &self.infos[index];
        let blocks = info.shape.last().copied().unwrap_or(1) / info.ty.block_len() * info.ty.block_bytes();
        self.files[file].will_read(range);
        self.files[file].bytes[range.clone()].chunks_exact(row.scale_bytes + blocks)
    }

    /// The scales at the beginnings of rows.
    fn scales_of_rows(
        &self,
        index: usize,
        file: usize,
        range: &Range<usize>,
        row: Row,
    ) -> Result<RowScales, Error> {
        let scales: Vec<f64> = self.rows(index, file, range, row).map(|bytes| row.scale(bytes)).collect();
        match scales.iter().position(|s| !s.is_finite()) {
            None => Ok(scales.into()),
            Some(r) => {
                let what = format!("has a scale of {} for row {r}; expected finite numbers", scales[r]);
                Err(Error::tensor(&self.files[file].name, &self.infos[index].name, what))
            }
        }
    }
}

impl Source for Files {
    fn tensors(&self) -> &[TensorInfo] {
        &self.infos
    }

    fn data(&self, index: usize) -> Result<Bytes, Error> {
        let (file, range, stored, convert) = match &self.places[index] {
            Place::Quantised(q) => return q.data(&self.files),
            Place::Rows { file, range, row } => {
                let rows = self.rows(index, *file, range, *row);
                return Ok(rows.flat_map(|bytes| &bytes[row.scale_bytes..]).copied().collect());
            }
            Place::Plain { file, range, stored, convert } => (&self.files[*file], range, stored, convert),
        };
        let convert: fn(f32) -> f32 = match convert {
            Convert::None => {
                file.will_read(range);
                return Ok(file.bytes.slice(range.clone()));
            }
            Convert::PlusOne => |w| 1.0 + w,
            Convert::NegExp => |w| -(w as f64).exp() as f32,
            Convert::Widen => |w| w,
            Convert::Transpose => return Ok(transposed(&file.bytes[range.clone()], &self.infos[index])),
        };
        let mut values = vec![0.0; self.infos[index].len()];
        stored.dequantize(&file.bytes[range.clone()], &mut values);
        Ok(values.into_iter().flat_map(|w| convert(w).to_le_bytes()).collect())
    }

    fn scales(&self, index: usize) -> Result<Option<RowScales>, Error> {
        match &self.places[index] {
            Place::Quantised(q) => {
                let (own, given) = (q.scales(&self.files)?, self.scales.get(&self.infos[index].name));
                Ok(match (own, given) {
                    (Some(own), Some(given)) => {
                        Some(own.iter().zip(&given[..]).map(|(a, b)| a * b).collect())
                    }
                    (own, given) => own.or_else(|| given.cloned()),
                })
            }
            Place::Rows { file, range, row } => self.scales_of_rows(index, *file, range, *row).map(Some),
            Place::Plain { .. } => Ok(self.scales.get(&self.infos[index].name).cloned()),
        }
    }

    fn is_plain(&self, index: usize) -> bool {
        let name = &self.infos[index].name;
        matches!(&self.places[index], Place::Plain { file, convert: Convert::None, .. } if self.files[*file].stamp.is_some())
            && !self.scales.contains_key(name)
    }

    fn piece(&self, index: usize) -> Result<Option<Piece>, Error> {
        match &self.places[index] {
            Place::Plain { file, range, .. } if self.is_plain(index) => {
                let ranges = self.files[*file].ranges()?;
                Ok(ranges.map(|open| Piece::new(open, range.start as u64..range.end as u64)))
            }
            _ => Ok(None),
        }
    }

    fn release(&self, index: usize) {
        match &self.places[index] {
            Place::Plain { file, range, .. } | Place::Rows { file, range, .. } => {
                self.files[*file].release(range)
            }
            Place::Quantised(q) => q.places().for_each(|(file, range)| self.files[file].release(range)),
        }
    }

    fn files(&self) -> &[Mapped] {
        &self.files
    }

    fn ignored(&self) -> &[String] {
        &self.ignored
    }
}
