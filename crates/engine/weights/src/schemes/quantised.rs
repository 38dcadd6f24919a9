//! A quantised matrix, and how its rows are read from its parts. Made by `schemes::collect`, read by `source`.

use std::ops::Range;

use bytes::Bytes;

use super::Group;
use crate::map::Mapped;
use crate::quant::legacy;
use crate::{Error, GgmlType, RowScales};

/// Rows that are read at a time: a cache line of the words that hold a column of them.
const ROWS: usize = 128;
/// Larger matrices are read by several threads.
const PARALLEL_BYTES: usize = 1 << 20;

/// What a scheme makes of a group of tensors.
pub(crate) struct Opened {
    pub ty: GgmlType,
    /// Outermost dimension first.
    pub shape: Vec<usize>,
    /// Labels of the parts that `reader` gets, in its order.
    pub parts: Vec<&'static str>,
    pub reader: Box<dyn Read>,
}

/// Reads rows of a matrix. All dimensions before the last one are rows.
pub(crate) trait Read: Send + Sync {
    /// Writes `rows` into `out` as whole blocks of the matrix's type; `parts` are the bytes of its tensors. An error says what is wrong
    /// with which of them.
    fn rows(&self, parts: &[&[u8]], rows: Range<usize>, out: &mut [u8]) -> Result<(), (usize, String)>;

    /// A factor of each row, if it has some.
    fn scales(&self, _parts: &[&[u8]]) -> Result<Option<Vec<f64>>, (usize, String)> {
        Ok(None)
    }
}

/// A part's location.
struct Place {
    name: String,
    file: usize,
    range: Range<usize>,
}

/// A matrix in parts.
pub(crate) struct Quantised {
    ty: GgmlType,
    shape: Vec<usize>,
    places: Vec<Place>,
    reader: Box<dyn Read>,
    /// The type that it is given out as, if another one.
    recoded: Option<GgmlType>,
}

impl Quantised {
    pub fn new(group: &Group, opened: Opened) -> Self {
        let place = |label: &&str| {
            let part = group.part(label);
            let part = part.unwrap_or_else(|| unreachable!("a scheme reads parts that it has found"));
            Place { name: part.entry.name.clone(), file: part.file, range: part.entry.range.clone() }
        };
        let places = opened.parts.iter().map(place).collect();
        Self { ty: opened.ty, shape: opened.shape, places, reader: opened.reader, recoded: None }
    }

    /// The type that it is given out as.
    pub fn ty(&self) -> GgmlType {
        self.recoded.unwrap_or(self.ty)
    }

    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The file and the name of its first part, for messages.
    pub fn origin(&self) -> (usize, &str) {
        (self.places[0].file, &self.places[0].name)
    }

    /// Files and ranges of its parts.
    pub fn places(&self) -> impl Iterator<Item = (usize, &Range<usize>)> {
        self.places.iter().map(|p| (p.file, &p.range))
    }

    /// Its rows in the form of its type.
    pub fn data(&self, files: &[Mapped]) -> Result<Bytes, Error> {
        let parts = self.parts(files);
        let cols = self.shape.last().copied().unwrap_or(1);
        let rows = self.shape.iter().product::<usize>() / cols.max(1);
        let row_bytes = |ty: GgmlType| cols / ty.block_len() * ty.block_bytes();
        let (stored, given) = (row_bytes(self.ty), row_bytes(self.ty()));
        let scales = match self.recoded {
            Some(_) => self.reader.scales(&parts).map_err(|bad| self.error(files, bad))?,
            None => None,
        };
        let mut out = vec![0; rows * given];
        let read = |first: usize, out: &mut [u8]| {
            let range = first..first + out.len() / given.max(1);
            let Some(ty) = self.recoded else { return self.reader.rows(&parts, range, out) };
            let mut own = vec![0; range.len() * stored];
            self.reader.rows(&parts, range.clone(), &mut own)?;
            let scales = scales.as_ref().map(|s| s[range.clone()].into());
            recode(crate::Matrix { ty: self.ty, rows: range.len(), cols, data: own.into(), scales }, ty, out);
            Ok(())
        };
        each(&mut out, ROWS * given.max(1), |i, out| read(i * ROWS, out))
            .map_err(|bad| self.error(files, bad))?;
        Ok(out.into())
    }

    /// A factor of each row, if it has some.
    pub fn scales(&self, files: &[Mapped]) -> Result<Option<RowScales>, Error> {
        // F32 holds them.
        if self.recoded == Some(GgmlType::F32) {
            return Ok(None);
        }
        let scales = self.reader.scales(&self.parts(files)).map_err(|bad| self.error(files, bad))?;
        Ok(scales.map(Into::into))
    }

    fn parts<'a>(&self, files: &'a [Mapped]) -> Vec<&'a [u8]> {
        self.places
            .iter()
            .map(|p| {
                files[p.file].will_read(&p.range);
                &files[p.file].bytes[p.range.clone()]
            })
            .collect()
    }

    fn error(&self, files: &[Mapped], (part, what): (usize, String)) -> Error {
        let place = &self.places[part];
        Error::tensor(&files[place.file].name, &place.name, what)
    }
}

/// Calls `read` with each piece of `out` and its number; on several threads if there is much of it. The first error in order.
fn each<E: Send>(
    out: &mut [u8],
    piece: usize,
    read: impl Fn(usize, &mut [u8]) -> Result<(), E> + Sync,
) -> Result<(), E> {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    if out.len() < PARALLEL_BYTES || threads == 1 {
        return out.chunks_mut(piece).enumerate().try_for_each(|(i, out)| read(i, out));
    }
    let mut shares: Vec<Vec<(usize, &mut [u8])>> = (0..threads).map(|_| Vec::new()).collect();
    out.chunks_mut(piece).enumerate().for_each(|item| shares[item.0 % threads].push(item));
    let read = &read;
    let work = |share: Vec<(usize, &mut [u8])>| {
        share.into_iter().find_map(|(i, out)| read(i, out).err().map(|e| (i, e)))
    };
    let errors: Vec<(usize, E)> = std::thread::scope(|s| {
        let running: Vec<_> = shares.into_iter().map(|share| s.spawn(move || work(share))).collect();
        let join = |t: std::thread::ScopedJoinHandle<'_, _>| match t.join() {
            Ok(found) => found,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        running.into_iter().filter_map(join).collect()
    });
    errors.into_iter().min_by_key(|(i, _)| *i).map_or(Ok(()), |(_, e)| Err(e))
}

/// The rows of `m` as `ty`, which holds their values: F32, or Q8_0 for integers of fewer bits.
fn recode(m: crate::Matrix, ty: GgmlType, out: &mut [u8]) {
    match (m.ty, ty) {
        (GgmlType::Q4_0, GgmlType::Q8_0) => {
            for (from, to) in m.data.as_chunks::<18>().0.iter().zip(out.as_chunks_mut::<34>().0) {
                to[..legacy::QS_0].copy_from_slice(&from[..legacy::QS_0]);
                for (i, q) in from[legacy::QS_0..].iter().enumerate() {
                    to[legacy::QS_0 + i] = (q & 15).wrapping_sub(8);
                    to[legacy::QS_0 + 16 + i] = (q >> 4).wrapping_sub(8);
                }
            }
        }
        _ => {
            for (v, to) in m.to_f32().into_iter().zip(out.as_chunks_mut().0) {
                *to = v.to_le_bytes();
            }
        }
    }
}

/// The type that all experts of one projection are given out as, if they differ: one that holds the values of all.
pub(crate) fn unify<'a>(types: impl IntoIterator<Item = &'a mut Quantised>, plain: bool) -> GgmlType {
    let mut all: Vec<&mut Quantised> = types.into_iter().collect();
    let is_int = |q: &&mut Quantised| matches!(q.ty, GgmlType::Q4_0 | GgmlType::Q8_0);
    let common = if !plain && all.iter().all(is_int) { GgmlType::Q8_0 } else { GgmlType::F32 };
    for q in &mut all {
        q.recoded = (q.ty != common).then_some(common);
    }
    common
}
