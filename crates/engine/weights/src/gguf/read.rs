//! The GGUF parser: bytes of one file to metadata and a table of tensors.
//!
//! Layout (versions 2 and 3, little-endian): magic, version, number of tensors, number of keys; the keys, each with a
//! type and a value; the tensor table (name, dimensions from the innermost, type, offset); padding to the alignment;
//! the data, to which offsets are relative. <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>
//!
//! Nothing is reserved by a count that the file states before that count has been held against the bytes that are
//! left and against the bounds below, so memory stays proportional to the file.

use std::fmt;
use std::ops::Range;

use super::value_type as ty;
use super::{ALIGNMENT_DEFAULT, ALIGNMENT_KEY, DIMS_MAX, MAGIC};
use crate::quant::ik_rows::Row;
use crate::{Error, GgmlType, Metadata, TensorInfo, Value};

/// Elements of all arrays of a file together; the largest vocabularies with their merges have under a million.
const ELEMENTS_MAX: u64 = 1 << 25;
/// Elements of one array of booleans (flags of layers), which take 32 times their size in the file.
const BOOLS_MAX: u64 = 1 << 16;
/// Arrays in arrays.
const DEPTH_MAX: usize = 4;
/// The tensor table of a file; a model of 61 layers with 384 separate experts has 70 thousand.
const TENSORS_MAX: u64 = 1 << 20;
/// Keys of a file.
const KEYS_MAX: u64 = 1 << 16;
/// Least bytes of a key (length, one letter, type, one byte) and of a tensor (length, one letter, one dimension).
const KEY_BYTES_MIN: u64 = 8 + 1 + 4 + 1;
const TENSOR_BYTES_MIN: u64 = 8 + 1 + 4 + 8 + 4 + 8;
/// Bytes of a key or of a tensor's name.
const NAME_BYTES_MAX: usize = 1 << 16;

/// One parsed file.
pub(super) struct Part {
    pub metadata: Metadata,
    /// Each tensor and its bytes in the file, in the order of the table.
    pub tensors: Vec<(TensorInfo, Range<usize>)>,
}

/// Parses `bytes`, which messages call `file`.
pub(super) fn parse(file: &str, bytes: &[u8]) -> Result<Part, Error> {
    let mut r = Reader { file, bytes, pos: 0, elements_left: ELEMENTS_MAX };
    let (tensor_count, key_count) = r.header()?;
    let mut metadata = Metadata::new(file);
    for i in 0..key_count {
        let key = r.name(&Place::KeyNumber(i, key_count))?;
        let value = r.value(&Place::Key(&key))?;
        if metadata.insert(&key, value).is_some() {
            return Err(Error::key(file, &key, "occurs twice in the file; the file is damaged"));
        }
    }
    let alignment = alignment(&metadata)?;
    let mut table = Vec::new();
    for i in 0..tensor_count {
        table.push(r.tensor(&Place::TensorNumber(i, tensor_count))?);
    }
    let data_start = (r.pos as u64).next_multiple_of(alignment);
    let tensors = table
        .into_iter()
        .map(|(info, offset)| {
            let range = data_range(&info, offset, data_start, alignment, bytes.len())
                .map_err(|what| Error::tensor(file, &info.name, what))?;
            Ok((info, range))
        })
        .collect::<Result<Vec<_>, Error>>()?;
    no_overlap(file, &tensors)?;
    Ok(Part { metadata, tensors })
}

fn alignment(metadata: &Metadata) -> Result<u64, Error> {
    match metadata.opt_u32(ALIGNMENT_KEY)? {
        None => Ok(ALIGNMENT_DEFAULT),
        Some(a) if a.is_power_of_two() => Ok(a.into()),
        Some(a) => {
            Err(Error::key(metadata.file(), ALIGNMENT_KEY, format!("is {a}; expected a power of two")))
        }
    }
}

/// The range of a tensor's bytes in the file, or what is wrong with its shape or offset.
fn data_range(
    info: &TensorInfo,
    offset: u64,
    data_start: u64,
    alignment: u64,
    file_len: usize,
) -> Result<Range<usize>, String> {
    let size = size_bytes(info)?;
    if !offset.is_multiple_of(alignment) {
        return Err(format!("has offset {offset}, which is not a multiple of the alignment {alignment}"));
    }
    let start = data_start.checked_add(offset);
    let (Some(start), Some(end)) = (start, start.and_then(|s| s.checked_add(size))) else {
        return Err(format!("has offset {offset}, which no file can have"));
    };
    if end > file_len as u64 {
        return Err(format!(
            "needs bytes {start}..{end}, but the file ends at {file_len}; it is truncated or damaged, download it \
             again"
        ));
    }
    Ok(start as usize..end as usize)
}

/// Size of the whole tensor in the file; an error where [`TensorInfo::size_bytes`] saturates.
fn size_bytes(info: &TensorInfo) -> Result<u64, String> {
    let cols = info.shape.last().copied().unwrap_or(1);
    let block = info.ty.block_len();
    if cols % block != 0 {
        return Err(format!("has rows of {cols} values; {} needs a multiple of {block}", info.ty));
    }
    let values = info.shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d as u64));
    let scale = Row::of(info.ty).map_or(0, |row| row.scale_bytes as u64);
    values
        .and_then(|n| {
            let scales = (n / cols.max(1) as u64).checked_mul(scale)?;
            (n / block as u64).checked_mul(info.ty.block_bytes() as u64)?.checked_add(scales)
        })
        .ok_or_else(|| format!("has shape {:?}, which is larger than any file", info.shape))
}

fn no_overlap(file: &str, tensors: &[(TensorInfo, Range<usize>)]) -> Result<(), Error> {
    let mut order: Vec<usize> = (0..tensors.len()).collect();
    order.sort_by_key(|&i| tensors[i].1.start);
    for pair in order.windows(2) {
        let ((a, at), (b, bt)) = (&tensors[pair[0]], &tensors[pair[1]]);
        if at.end > bt.start {
            let what = format!(
                "at bytes {}..{} overlaps tensor '{}' at {}..{}; the file is damaged",
                bt.start, bt.end, a.name, at.start, at.end
            );
            return Err(Error::tensor(file, &b.name, what));
        }
    }
    Ok(())
}

/// What is being read, for messages.
enum Place<'a> {
    Header,
    KeyNumber(u64, u64),
    Key(&'a str),
    TensorNumber(u64, u64),
    Tensor(&'a str),
}

struct Reader<'a> {
    file: &'a str,
    bytes: &'a [u8],
    pos: usize,
    elements_left: u64,
}

impl<'a> Reader<'a> {
    fn left(&self) -> u64 {
        (self.bytes.len() - self.pos) as u64
    }

    /// The error that `what` is wrong at `place`.
    fn fail<T>(&self, place: &Place, what: impl fmt::Display) -> Result<T, Error> {
        let file = self.file;
        Err(match place {
            Place::Header => Error::format(file, format!("header {what}")),
            Place::KeyNumber(i, n) => Error::format(file, format!("metadata key {} of {n} {what}", i + 1)),
            Place::TensorNumber(i, n) => Error::format(file, format!("tensor {} of {n} {what}", i + 1)),
            Place::Key(key) => Error::key(file, key, what.to_string()),
            Place::Tensor(name) => Error::tensor(file, name, what.to_string()),
        })
    }

    /// The next `n` bytes.
    fn take(&mut self, n: u64, place: &Place) -> Result<&'a [u8], Error> {
        let (pos, left) = (self.pos, self.left());
        if n > left {
            let what = format!(
                "needs {n} bytes at offset {pos}, but only {left} are left; the file is truncated or damaged, \
                 download it again"
            );
            return self.fail(place, what);
        }
        self.pos += n as usize;
        Ok(&self.bytes[pos..self.pos])
    }

    fn array<const N: usize>(&mut self, place: &Place) -> Result<[u8; N], Error> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64, place)?);
        Ok(out)
    }
    fn u32(&mut self, place: &Place) -> Result<u32, Error> {
        self.array(place).map(u32::from_le_bytes)
    }
    fn u64(&mut self, place: &Place) -> Result<u64, Error> {
        self.array(place).map(u64::from_le_bytes)
    }

    /// Checks magic and version; numbers of tensors and of keys.
    fn header(&mut self) -> Result<(u64, u64), Error> {
        let place = &Place::Header;
        let magic: [u8; 4] = self.array(place)?;
        if magic != MAGIC {
            let what = match &magic {
                b"ggjt" | b"tjgg" | b"ggml" | b"lmgg" | b"ggmf" | b"fmgg" => {
                    "is of a GGML format from before GGUF; convert the original model again".to_string()
                }
                _ => {
                    format!("begins with bytes {magic:02x?}; a GGUF file begins with {MAGIC:02x?} (\"GGUF\")")
                }
            };
            return self.fail(place, what);
        }
        match self.u32(place)? {
            2 | 3 => {}
            1 => {
                let what = "has GGUF version 1, which is not supported; convert the original model again";
                return self.fail(place, what);
            }
            v if (1..=0xffff).contains(&v.swap_bytes()) => {
                let what = format!(
                    "is big-endian (version {} with its bytes swapped), and only little-endian files are supported; \
                     convert it with gguf-convert-endian",
                    v.swap_bytes()
                );
                return self.fail(place, what);
            }
            v => return self.fail(place, format!("has GGUF version {v}; versions 2 and 3 are supported")),
        }
        let tensors = self.count("tensors", TENSOR_BYTES_MIN, TENSORS_MAX, place)?;
        let keys = self.count("metadata keys", KEY_BYTES_MIN, KEYS_MAX, place)?;
        Ok((tensors, keys))
    }

    /// A count of items that take at least `bytes_min` bytes each.
    fn count(&mut self, of: &str, bytes_min: u64, max: u64, place: &Place) -> Result<u64, Error> {
        let n = self.u64(place)?;
        let left = self.left();
        if n > left / bytes_min {
            let what = format!(
                "declares {n} {of}, but only {left} bytes are left; the file is truncated or damaged, download it again"
            );
            return self.fail(place, what);
        }
        if n > max {
            return self.fail(place, format!("declares {n} {of}; at most {max} are supported"));
        }
        Ok(n)
    }

    fn str(&mut self, place: &Place) -> Result<&'a str, Error> {
        let n = self.u64(place)?;
        let at = self.pos;
        match std::str::from_utf8(self.take(n, place)?) {
            Ok(s) => Ok(s),
            Err(e) => self.fail(place, format!("has a string at offset {at} that is not UTF-8: {e}")),
        }
    }

    /// A key or a tensor's name.
    fn name(&mut self, place: &Place) -> Result<String, Error> {
        let at = self.pos;
        let name = self.str(place)?;
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            let n = name.len();
            return self.fail(
                place,
                format!("has a name of {n} bytes at offset {at}; expected 1 to {NAME_BYTES_MAX}"),
            );
        }
        Ok(name.to_string())
    }

    fn value(&mut self, place: &Place) -> Result<Value, Error> {
        let type_id = self.u32(place)?;
        Ok(match type_id {
            ty::U8 | ty::U16 | ty::U32 | ty::U64 => {
                let bytes = self.take(ty::size(type_id), place)?;
                let mut wide = [0; 8];
                wide[..bytes.len()].copy_from_slice(bytes);
                Value::U64(u64::from_le_bytes(wide))
            }
            ty::I8 => Value::I64(i8::from_le_bytes(self.array(place)?).into()),
            ty::I16 => Value::I64(i16::from_le_bytes(self.array(place)?).into()),
            ty::I32 => Value::I64(i32::from_le_bytes(self.array(place)?).into()),
            ty::I64 => Value::I64(i64::from_le_bytes(self.array(place)?)),
            ty::F32 => Value::F64(f32::from_le_bytes(self.array(place)?).into()),
            ty::F64 => Value::F64(f64::from_le_bytes(self.array(place)?)),
            ty::BOOL => Value::Bool(self.bool(place)?),
            ty::STRING => Value::Str(self.str(place)?.to_string()),
            ty::ARRAY => self.array_value(place, 1)?,
            other => {
                let at = self.pos - 4;
                return self
                    .fail(place, format!("has value type {other} at offset {at}; types 0 to 12 are known"));
            }
        })
    }

    fn bool(&mut self, place: &Place) -> Result<bool, Error> {
        match self.array(place)? {
            [0] => Ok(false),
            [1] => Ok(true),
            [other] => self.fail(place, format!("holds {other}; a boolean is 0 or 1")),
        }
    }

    fn array_value(&mut self, place: &Place, depth: usize) -> Result<Value, Error> {
        let type_id = self.u32(place)?;
        if type_id > ty::F64 {
            return self.fail(place, format!("is an array of type {type_id}; types 0 to 12 are known"));
        }
        let max = if type_id == ty::BOOL { BOOLS_MAX } else { ELEMENTS_MAX };
        let n = self.count("elements", ty::size(type_id), max, place)?;
        let Some(left) = self.elements_left.checked_sub(n) else {
            return self.fail(place, format!("brings the arrays of this file past {ELEMENTS_MAX} elements"));
        };
        self.elements_left = left;
        Ok(match type_id {
            ty::ARRAY if depth == DEPTH_MAX => {
                return self.fail(place, format!("has arrays in arrays deeper than {DEPTH_MAX}"));
            }
            ty::ARRAY => {
                Value::Array((0..n).map(|_| self.array_value(place, depth + 1)).collect::<Result<_, _>>()?)
            }
            ty::STRING => {
                Value::Strs((0..n).map(|_| self.str(place).map(str::to_string)).collect::<Result<_, _>>()?)
            }
            ty::BOOL => {
                Value::Array((0..n).map(|_| self.bool(place).map(Value::Bool)).collect::<Result<_, _>>()?)
            }
            ty::U64 => {
                let ints = self.numbers(n, i64::from_le_bytes, place)?;
                if let Some(&x) = ints.iter().find(|x| **x < 0) {
                    return self.fail(place, format!("holds {}, which is more than {}", x as u64, i64::MAX));
                }
                Value::Ints(ints)
            }
            ty::U8 => Value::Ints(self.numbers(n, |b| u8::from_le_bytes(b).into(), place)?),
            ty::I8 => Value::Ints(self.numbers(n, |b| i8::from_le_bytes(b).into(), place)?),
            ty::U16 => Value::Ints(self.numbers(n, |b| u16::from_le_bytes(b).into(), place)?),
            ty::I16 => Value::Ints(self.numbers(n, |b| i16::from_le_bytes(b).into(), place)?),
            ty::U32 => Value::Ints(self.numbers(n, |b| u32::from_le_bytes(b).into(), place)?),
            ty::I32 => Value::Ints(self.numbers(n, |b| i32::from_le_bytes(b).into(), place)?),
            ty::I64 => Value::Ints(self.numbers(n, i64::from_le_bytes, place)?),
            ty::F32 => Value::Floats(self.numbers(n, |b| f32::from_le_bytes(b).into(), place)?),
            _ => Value::Floats(self.numbers(n, f64::from_le_bytes, place)?),
        })
    }

    /// `n` numbers of `N` bytes each; `n` has been checked against the remaining bytes.
    fn numbers<T, const N: usize>(
        &mut self,
        n: u64,
        read: impl Fn([u8; N]) -> T,
        place: &Place,
    ) -> Result<Vec<T>, Error> {
        let bytes = self.take(n * N as u64, place)?;
        Ok(bytes.as_chunks().0.iter().map(|b| read(*b)).collect())
    }

    /// One row of the tensor table: the tensor, and its offset in the data.
    fn tensor(&mut self, place: &Place) -> Result<(TensorInfo, u64), Error> {
        let name = self.name(place)?;
        let place = &Place::Tensor(&name);
        let dims = self.u32(place)?;
        if !(1..=DIMS_MAX).contains(&dims) {
            return self.fail(place, format!("has {dims} dimensions; expected 1 to {DIMS_MAX}"));
        }
        let mut shape = Vec::with_capacity(dims as usize);
        for _ in 0..dims {
            match usize::try_from(self.u64(place)?) {
                Ok(0) => return self.fail(place, "has a dimension of 0; expected at least 1"),
                Ok(d) => shape.push(d),
                Err(_) => return self.fail(place, "has a dimension larger than this machine's memory"),
            }
        }
        shape.reverse(); // the file counts from the innermost dimension
        let type_id = self.u32(place)?;
        let Some(ty) = GgmlType::from_id(type_id) else {
            let in_files = |t: &&GgmlType| t.is_in_gguf() || Row::of(**t).is_some();
            let known =
                GgmlType::ALL.iter().filter(in_files).map(|t| t.name()).collect::<Vec<_>>().join(", ");
            let what = format!("has GGML type {type_id}, which is not supported (known: {known})");
            return self.fail(place, what);
        };
        let offset = self.u64(place)?;
        Ok((TensorInfo { name, ty, shape }, offset))
    }
}
