//! The GGUF writer: metadata and the tensor table first, then the tensors' bytes as they come.

use std::collections::HashSet;
use std::io::Write;

use super::value_type as ty;
use super::{ALIGNMENT_DEFAULT, ALIGNMENT_KEY, DIMS_MAX, MAGIC};
use crate::{Error, Metadata, TensorInfo, Value};

const VERSION: u32 = 3;
/// ggml keeps names in 64 bytes with a zero at the end, and refuses longer ones.
const NAME_BYTES_MAX: usize = 63;

/// Writes one GGUF file (version 3, little-endian) front to back.
///
/// Integers are written in 32 bits where they fit and floats as f32: that is what readers of the known keys expect.
pub struct Writer<W: Write> {
    out: W,
    file: String,
    tensors: Vec<TensorInfo>,
    alignment: u64,
    /// Tensor being written, and how many of its bytes have been.
    current: usize,
    written: u64,
}

impl<W: Write> Writer<W> {
    /// Writes metadata and the table of `tensors`; their bytes follow through [`Writer::append`], in this order.
    /// Messages call the file what `metadata` calls it. Fails on a tensor that GGUF cannot hold.
    pub fn new(mut out: W, metadata: &Metadata, tensors: Vec<TensorInfo>) -> Result<Self, Error> {
        let file = metadata.file().to_string();
        let alignment = match metadata.opt_u32(ALIGNMENT_KEY)? {
            None => ALIGNMENT_DEFAULT,
            Some(a) if a.is_power_of_two() => a.into(),
            Some(a) => {
                return Err(Error::key(&file, ALIGNMENT_KEY, format!("is {a}; expected a power of two")));
            }
        };
        let mut head = Vec::new();
        head.extend(MAGIC);
        head.extend(VERSION.to_le_bytes());
        head.extend((tensors.len() as u64).to_le_bytes());
        head.extend((metadata.iter().count() as u64).to_le_bytes());
        for (key, value) in metadata.iter() {
            put_str(&mut head, key);
            put_value(&mut head, value).map_err(|what| Error::key(&file, key, what))?;
        }
        put_table(&mut head, &tensors, alignment).map_err(|(t, what)| Error::tensor(&file, &t, what))?;
        head.resize(head.len().next_multiple_of(alignment as usize), 0);
        out.write_all(&head).map_err(|e| Error::io(&file, e))?;
        Ok(Self { out, file, tensors, alignment, current: 0, written: 0 })
    }

    /// The tensor whose bytes come next; `None` when all have been written.
    pub fn current(&self) -> Option<&TensorInfo> {
        self.tensors.get(self.current)
    }

    /// Writes the next bytes of the current tensor, all of them or a piece; padding follows by itself.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let Some(info) = self.tensors.get(self.current) else {
            return Err(Error::format(&self.file, "has all its tensors; more bytes were given"));
        };
        let size = info.size_bytes();
        self.written += bytes.len() as u64;
        if self.written > size {
            let what = format!("has {size} bytes; {} were given", self.written);
            return Err(Error::tensor(&self.file, &info.name, what));
        }
        self.out.write_all(bytes).map_err(|e| Error::io(&self.file, e))?;
        if self.written == size {
            let padding = vec![0; (size.next_multiple_of(self.alignment) - size) as usize];
            self.out.write_all(&padding).map_err(|e| Error::io(&self.file, e))?;
            (self.current, self.written) = (self.current + 1, 0);
        }
        Ok(())
    }

    /// Flushes and gives the writer back. Fails when bytes are missing.
    pub fn finish(mut self) -> Result<W, Error> {
        if let Some(info) = self.current() {
            let what = format!("has {} of its {} bytes", self.written, info.size_bytes());
            return Err(Error::tensor(&self.file, &info.name, what));
        }
        self.out.flush().map_err(|e| Error::io(&self.file, e))?;
        Ok(self.out)
    }
}

/// The tensor table with offsets in the data, or the tensor that cannot be written and why.
fn put_table(out: &mut Vec<u8>, tensors: &[TensorInfo], alignment: u64) -> Result<(), (String, String)> {
    let mut offset = 0u64;
    let mut names = HashSet::new();
    for t in tensors {
        let bad = |what: String| Err((t.name.clone(), what));
        if t.name.is_empty() || t.name.len() > NAME_BYTES_MAX {
            return bad(format!("has a name of {} bytes; expected 1 to {NAME_BYTES_MAX}", t.name.len()));
        }
        if !names.insert(&t.name) {
            return bad("is given twice".into());
        }
        let dims = 1..=DIMS_MAX as usize;
        let Some(&cols) = t.shape.last().filter(|_| dims.contains(&t.shape.len()) && !t.is_empty()) else {
            return bad(format!(
                "has shape {:?}; expected 1 to {DIMS_MAX} dimensions, none of them 0",
                t.shape
            ));
        };
        if cols % t.ty.block_len() != 0 {
            return bad(format!(
                "has rows of {cols} values; {} needs a multiple of {}",
                t.ty,
                t.ty.block_len()
            ));
        }
        put_str(out, &t.name);
        out.extend((t.shape.len() as u32).to_le_bytes());
        for &d in t.shape.iter().rev() {
            out.extend((d as u64).to_le_bytes());
        }
        out.extend((t.ty as u32).to_le_bytes());
        out.extend(offset.to_le_bytes());
        let end = t.size_bytes().checked_next_multiple_of(alignment).and_then(|n| offset.checked_add(n));
        let Some(end) = end else {
            return bad(format!("has shape {:?}, which is larger than any file", t.shape));
        };
        offset = end;
    }
    Ok(())
}

fn put_str(out: &mut Vec<u8>, s: &str) {
    out.extend((s.len() as u64).to_le_bytes());
    out.extend(s.as_bytes());
}

/// A value with its type in front of it.
fn put_value(out: &mut Vec<u8>, value: &Value) -> Result<(), String> {
    let mut put = |id: u32, bytes: &[u8]| {
        out.extend(id.to_le_bytes());
        out.extend(bytes);
    };
    match value {
        Value::U64(x) => match u32::try_from(*x) {
            Ok(x) => put(ty::U32, &x.to_le_bytes()),
            Err(_) => put(ty::U64, &x.to_le_bytes()),
        },
        Value::I64(x) => match i32::try_from(*x) {
            Ok(x) => put(ty::I32, &x.to_le_bytes()),
            Err(_) => put(ty::I64, &x.to_le_bytes()),
        },
        Value::F64(x) if fits_f32(*x) => put(ty::F32, &(*x as f32).to_le_bytes()),
        Value::F64(x) => put(ty::F64, &x.to_le_bytes()),
        Value::Bool(x) => put(ty::BOOL, &[u8::from(*x)]),
        Value::Str(s) => {
            put(ty::STRING, &[]);
            put_str(out, s);
        }
        Value::Array(_) | Value::Strs(_) | Value::Ints(_) | Value::Floats(_) => {
            put(ty::ARRAY, &[]);
            put_array(out, value)?;
        }
    }
    Ok(())
}

/// An array: type of its elements, their number, and they.
fn put_array(out: &mut Vec<u8>, value: &Value) -> Result<(), String> {
    let mut head = |id: u32, n: usize| {
        out.extend(id.to_le_bytes());
        out.extend((n as u64).to_le_bytes());
    };
    match value {
        Value::Strs(v) => {
            head(ty::STRING, v.len());
            v.iter().for_each(|s| put_str(out, s));
        }
        Value::Ints(v) if v.iter().all(|&x| i32::try_from(x).is_ok()) => {
            head(ty::I32, v.len());
            out.extend(v.iter().flat_map(|&x| (x as i32).to_le_bytes()));
        }
        Value::Ints(v) => {
            head(ty::I64, v.len());
            out.extend(v.iter().flat_map(|x| x.to_le_bytes()));
        }
        Value::Floats(v) if v.iter().all(|&x| fits_f32(x)) => {
            head(ty::F32, v.len());
            out.extend(v.iter().flat_map(|&x| (x as f32).to_le_bytes()));
        }
        Value::Floats(v) => {
            head(ty::F64, v.len());
            out.extend(v.iter().flat_map(|x| x.to_le_bytes()));
        }
        Value::Array(v) if !v.is_empty() && v.iter().all(|x| matches!(x, Value::Bool(_))) => {
            head(ty::BOOL, v.len());
            out.extend(v.iter().map(|x| u8::from(*x == Value::Bool(true))));
        }
        Value::Array(v) => {
            head(ty::ARRAY, v.len());
            v.iter().try_for_each(|x| put_array(out, x))?;
        }
        other => return Err(format!("is an array that holds {other:?}; expected booleans or arrays")),
    }
    Ok(())
}

/// Whether f32 can hold `x`, rounded: what lies past its range keeps 64 bits.
fn fits_f32(x: f64) -> bool {
    !x.is_finite() || (x as f32).is_finite()
}
