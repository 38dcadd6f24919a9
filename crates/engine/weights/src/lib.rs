//! Model files as named, typed tensors: GGUF (v2, v3, split) and Hugging Face directories (safetensors).
//!
//! Everything in a model file is untrusted: every length, offset, count, type and shape is checked before use. Both formats are read
//! into one form, GGUF's: canonical metadata keys (`qwen35moe.block_count`, `tokenizer.chat_template`, ...) and canonical tensor names
//! (`blk.0.attn_q.weight`). The engine reads models only through [`Model`], independent of the file format.

mod config_fields;
mod error;
pub mod gguf;
pub mod hf;
#[cfg_attr(not(target_os = "linux"), path = "lost_pages_none.rs")]
pub mod lost_pages;
mod map;
pub mod metadata;
mod open;
pub mod quant;
mod ranges;
mod safetensors;
mod schemes;
mod source;
mod stamp;
mod tensor;

pub use error::Error;
pub use map::Mapped;
pub use metadata::{Metadata, Value};
pub use quant::GgmlType;
pub use ranges::{Piece, Unread};
pub use stamp::Stamp;
pub use tensor::{Matrix, RowScales, Tensor, TensorInfo};

/// A source of tensors: a GGUF file, a set of split files, a Hugging Face directory, or made-up weights.
pub trait Source: Send + Sync {
    /// Every tensor in the order of the file.
    fn tensors(&self) -> &[TensorInfo];
    /// The bytes of tensor `index` of [`Source::tensors`]. Cheap for mapped files (no copy).
    fn data(&self, index: usize) -> Result<bytes::Bytes, Error>;
    /// A factor of each row of tensor `index`, where it has some; see [`Matrix::scales`].
    fn scales(&self, _index: usize) -> Result<Option<RowScales>, Error> {
        Ok(None)
    }
    /// Whether tensor `index` is in a file as [`Source::data`] returns it, so that parts of it can be read from there.
    fn is_plain(&self, _index: usize) -> bool {
        false
    }
    /// Where tensor `index` is in its file; `None` unless [`Source::is_plain`].
    fn piece(&self, _index: usize) -> Result<Option<Piece>, Error> {
        Ok(None)
    }
    /// The caller has packed this tensor and will not read it soon: its pages may be dropped from memory.
    fn release(&self, _index: usize) {}
    /// Names of tensors in the files without a canonical name, which cannot be requested. The engine refuses models with any, except
    /// those of multi-token prediction (`mtp.*`), as their purpose is unknown.
    fn ignored(&self) -> &[String] {
        &[]
    }
    /// The files that contain all tensors, in a fixed order; empty if they are not in files.
    fn files(&self) -> &[Mapped] {
        &[]
    }
    /// Whether all that was read of the files so far was there; see [`Mapped::check`].
    ///
    /// # Errors
    /// If one was truncated, or the drive could not read it.
    fn check_files(&self) -> Result<(), Error> {
        self.files().iter().try_for_each(Mapped::check)
    }
    /// Size of all tensors in bytes.
    fn size_bytes(&self) -> u64 {
        self.tensors().iter().map(|t| t.size_bytes()).sum()
    }
}

/// An opened model: metadata, tensors by name, and a name for messages.
pub struct Model {
    /// Canonical metadata (GGUF keys).
    pub metadata: Metadata,
    /// The model's name in messages: the path that was opened, or "synthetic".
    pub origin: String,
    source: Box<dyn Source>,
    by_name: std::collections::HashMap<String, usize>,
}

impl Model {
    /// Creates a model from its parts. Fails if two tensors have the same name.
    pub fn new(origin: String, metadata: Metadata, source: Box<dyn Source>) -> Result<Self, Error> {
        let mut by_name = std::collections::HashMap::new();
        for (i, t) in source.tensors().iter().enumerate() {
            if by_name.insert(t.name.clone(), i).is_some() {
                return Err(Error::tensor(&origin, &t.name, "occurs twice in the file; the file is damaged"));
            }
        }
        Ok(Self { metadata, origin, source, by_name })
    }

    /// Every tensor in the order of the file.
    pub fn tensors(&self) -> &[TensorInfo] {
        self.source.tensors()
    }

    /// Names of tensors in the files that are not used; see [`Source::ignored`].
    pub fn ignored(&self) -> &[String] {
        self.source.ignored()
    }

    /// The files that contain all tensors; see [`Source::files`].
    pub fn files(&self) -> &[Mapped] {
        self.source.files()
    }

    /// Whether all that was read of the files so far was there; see [`Mapped::check`].
    ///
    /// # Errors
    /// If one was truncated, or the drive could not read it.
    pub fn check_files(&self) -> Result<(), Error> {
        self.source.check_files()
    }

    /// Size of all weights in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.source.size_bytes()
    }

    /// Name, type and shape of a tensor, if the file has it.
    pub fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).map(|&i| &self.source.tensors()[i])
    }

    /// An optional tensor of the architecture.
    pub fn optional(&self, name: &str) -> Result<Option<Tensor>, Error> {
        let Some(&i) = self.by_name.get(name) else { return Ok(None) };
        let info = self.source.tensors()[i].clone();
        let data = self.source.data(i)?;
        let tensor = Tensor::new(&self.origin, info, data)?;
        Ok(Some(Tensor { scales: self.source.scales(i)?, ..tensor }))
    }

    /// A required tensor of the architecture, with exactly this shape (outermost dimension first).
    pub fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor, Error> {
        let t = self.optional(name)?.ok_or_else(|| {
            Error::tensor(&self.origin, name, format!("is missing; expected shape {shape:?}"))
        })?;
        t.expect_shape(&self.origin, shape)?;
        Ok(t)
    }

    /// A factor of each row of a tensor, where it has some; see [`Source::scales`].
    pub fn scales(&self, name: &str) -> Result<Option<RowScales>, Error> {
        self.by_name.get(name).map_or(Ok(None), |&i| self.source.scales(i))
    }
    /// Whether parts of a tensor can be read from its file when they are needed: see [`Model::unread`].
    pub fn is_plain(&self, name: &str) -> bool {
        self.by_name.get(name).is_some_and(|&i| self.source.is_plain(i))
    }

    /// A required tensor of this shape, to read parts of it from its file when they are needed. `None` if it is not in a file as it is.
    pub fn unread(&self, name: &str, shape: &[usize]) -> Result<Option<Unread>, Error> {
        let Some(&i) = self.by_name.get(name) else { return self.tensor(name, shape).map(|_| None) };
        let info = &self.source.tensors()[i];
        info.expect_shape(&self.origin, shape)?;
        let Some(bytes) = self.source.piece(i)? else { return Ok(None) };
        info.check(&self.origin, bytes.len())?;
        Ok(Some(Unread { ty: info.ty, bytes }))
    }

    /// Tells the source that `name` has been packed; see [`Source::release`].
    pub fn release(&self, name: &str) {
        if let Some(&i) = self.by_name.get(name) {
            self.source.release(i);
        }
    }
}
