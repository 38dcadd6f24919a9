//! A model with other types: tensors are quantised when they are read, by several threads.

use std::num::NonZeroUsize;
use std::sync::Mutex;

use bytes::Bytes;
use octet_weights::quant::float;
use octet_weights::{GgmlType, Matrix, Metadata, Model, Source, Tensor, TensorInfo, Value, gguf};

use crate::importance::Importance;
use crate::mix::{self, Facts};
use crate::{Error, FileType, TYPES, canonical, fit, quantize};

/// Values that a thread quantises at a time.
const AT_ONCE: usize = 1 << 17;
/// Written by every converter since 2023.
const QUANTIZATION_VERSION: u64 = 2;

/// A wish for some tensors: `ffn_down_exps=q5_k`.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorType {
    /// A part of the names; `*` stands for anything.
    pub pattern: String,
    /// Their type.
    pub ty: GgmlType,
}

impl std::str::FromStr for TensorType {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self, Error> {
        let bad = |pattern: &str, name: &str, why| Error::TensorType {
            pattern: pattern.into(),
            name: name.into(),
            why,
        };
        let (pattern, name) = s.split_once('=').ok_or_else(|| bad(s, "", "expected NAME=TYPE"))?;
        let ty = GgmlType::from_name(name).filter(|ty| TYPES.contains(ty));
        let ty = ty.ok_or_else(|| bad(pattern, name, "such a type cannot be made"))?;
        if pattern.is_empty() {
            return Err(bad(pattern, name, "expected NAME=TYPE"));
        }
        Ok(Self { pattern: pattern.into(), ty })
    }
}

impl TensorType {
    /// Whether a name has the pattern's pieces, in their order.
    fn matches(&self, name: &str) -> bool {
        let mut rest = name;
        self.pattern.split('*').all(|piece| match rest.find(piece) {
            Some(at) => {
                rest = &rest[at + piece.len()..];
                true
            }
            None => false,
        })
    }
}

/// What to make.
#[derive(Debug, Default)]
pub struct Options {
    /// The mix of types; `None` keeps the types that GGUF files have, and makes the others BF16.
    pub file_type: Option<FileType>,
    /// Instead of `file_type`: the best mix for a file of at most so many bytes.
    pub fit: Option<u64>,
    /// Types of some tensors; the last one that matches counts.
    pub tensor_types: Vec<TensorType>,
    /// Weights of the columns' errors.
    pub importance: Option<Importance>,
    /// Keep the blocks for multi-token prediction.
    pub keep_mtp: bool,
    /// Threads; all processors by default.
    pub threads: Option<NonZeroUsize>,
}

/// The model as a GGUF file of these types has it. Its tensors are computed when they are read. `progress` gets the tensors that were
/// measured for [`Options::fit`], and their number.
pub fn make(model: Model, options: Options, progress: &mut dyn FnMut(u64, u64)) -> Result<Model, Error> {
    let model = canonical::canonical(model, options.keep_mtp)?;
    let mut metadata = model.metadata.clone();
    for key in ["split.no", "split.count", "split.tensors.count"] {
        metadata.remove(key);
    }
    let facts = Facts::new(&metadata, options.importance.is_some());
    let mut targets = targets(&model, &options, &facts)?;
    if let Some(limit) = options.fit {
        let limit = limit.saturating_sub(head_bytes(&metadata, &model)?);
        let fitted = fit::fit(&model, options.importance.as_ref(), limit, progress)?;
        for (t, ty) in model.tensors().iter().zip(&mut targets) {
            if let Some((_, fitted)) = fitted.iter().find(|(name, _)| *name == t.name) {
                *ty = *fitted;
            }
        }
        metadata.remove("general.file_type");
    }
    wishes(&model, &options, &mut targets)?;
    if let Some(file_type) = options.file_type {
        metadata.insert("general.file_type", Value::U64(file_type.id()));
    }
    if options.file_type.is_some() || options.fit.is_some() {
        metadata.insert("general.quantization_version", Value::U64(QUANTIZATION_VERSION));
    }
    if let Some(importance) = &options.importance {
        metadata.insert("quantize.imatrix.file", Value::Str(importance.file.clone()));
        if let Some(dataset) = importance.datasets.first() {
            metadata.insert("quantize.imatrix.dataset", Value::Str(dataset.clone()));
        }
        metadata.insert("quantize.imatrix.entries_count", Value::U64(importance.seen.len() as u64));
        metadata.insert("quantize.imatrix.chunks_count", Value::U64(importance.chunks));
    }
    let (mut infos, mut contents) = (Vec::new(), Vec::new());
    for (index, (info, ty)) in model.tensors().iter().zip(&targets).enumerate() {
        let mut name = info.name.clone();
        infos.push(TensorInfo { ty: *ty, ..info.clone() });
        contents.push(Content::Tensor(index));
        // Factors of whole matrices are tensors of their own in a file.
        if *ty == info.ty
            && let Some(factors) = factors(&model, info)?
        {
            name.truncate(name.len() - ".weight".len());
            infos.push(TensorInfo {
                name: format!("{name}.scale"),
                ty: GgmlType::F32,
                shape: vec![factors.len()],
            });
            contents.push(Content::Bytes(factors.iter().flat_map(|v| v.to_le_bytes()).collect()));
        }
    }
    let threads =
        options.threads.or_else(|| std::thread::available_parallelism().ok()).map_or(1, NonZeroUsize::get);
    let origin = model.origin.clone();
    let source = Made { model, infos, contents, importance: options.importance, threads };
    Ok(Model::new(origin, metadata, Box::new(source))?)
}

/// The type of each tensor.
fn targets(model: &Model, options: &Options, facts: &Facts) -> Result<Vec<GgmlType>, Error> {
    let tensors = model.tensors();
    Ok(match options.file_type {
        None if options.fit.is_some() => vec![GgmlType::F32; tensors.len()],
        None => tensors.iter().map(|t| kept(model, t)).collect::<Result<_, _>>()?,
        Some(file_type) => {
            let mixed = mix::types(file_type, facts, tensors).into_iter();
            mixed.map(|ty| ty.unwrap_or(GgmlType::F32)).collect()
        }
    })
}

/// Bytes of a file before its tensors, and between them.
fn head_bytes(metadata: &Metadata, model: &Model) -> Result<u64, Error> {
    let infos =
        model.tensors().iter().map(|t| TensorInfo { ty: GgmlType::F32, ..t.clone() }).collect::<Vec<_>>();
    let (mut head, tensors) = (Vec::new(), infos.len() as u64);
    gguf::Writer::new(&mut head, metadata, infos)?;
    Ok(head.len() as u64 + 32 * tensors)
}

/// Changes the types of tensors that have wishes.
fn wishes(model: &Model, options: &Options, types: &mut [GgmlType]) -> Result<(), Error> {
    let tensors = model.tensors();
    for wish in &options.tensor_types {
        let mut found = false;
        for (t, ty) in tensors.iter().zip(types.iter_mut()) {
            if !wish.matches(&t.name) || !mix::is_quantised(t) {
                continue;
            }
            let columns = t.shape.last().copied().unwrap_or(0);
            if !columns.is_multiple_of(wish.ty.block_len()) {
                return Err(Error::Rows {
                    pattern: wish.pattern.clone(),
                    tensor: t.name.clone(),
                    columns,
                    ty: wish.ty,
                });
            }
            *ty = wish.ty;
            found = true;
        }
        if !found {
            return Err(Error::NoSuchTensor { pattern: wish.pattern.clone() });
        }
    }
    Ok(())
}

/// The type of a tensor that need not change.
fn kept(model: &Model, info: &TensorInfo) -> Result<GgmlType, Error> {
    if !mix::is_quantised(info) {
        return Ok(GgmlType::F32);
    }
    let is_plain = info.ty.is_in_gguf();
    let has_scales = is_plain && model.scales(&info.name)?.is_some();
    Ok(match is_plain {
        true if !has_scales => info.ty,
        true if info.ty == GgmlType::NVFP4 && factors(model, info)?.is_some() => info.ty,
        true if info.ty == GgmlType::F32 => GgmlType::F32,
        _ => GgmlType::BF16,
    })
}

/// The factor of each matrix of an NVFP4 tensor, if it has some, and all rows of a matrix have the same.
fn factors(model: &Model, info: &TensorInfo) -> Result<Option<Vec<f32>>, Error> {
    if info.ty != GgmlType::NVFP4 || !info.name.ends_with(".weight") {
        return Ok(None);
    }
    let Some(scales) = model.scales(&info.name)? else { return Ok(None) };
    let matrices = if info.shape.len() > 2 { info.shape[0] } else { 1 };
    let rows = (scales.len() / matrices.max(1)).max(1);
    let same = scales.chunks(rows).all(|m| m.iter().all(|v| *v == m[0] && f64::from(*v as f32) == *v));
    Ok(same.then(|| scales.chunks(rows).map(|m| m[0] as f32).collect()))
}

enum Content {
    /// A tensor of the model, in the type wanted.
    Tensor(usize),
    Bytes(Bytes),
}

struct Made {
    model: Model,
    infos: Vec<TensorInfo>,
    contents: Vec<Content>,
    importance: Option<Importance>,
    threads: usize,
}

impl Source for Made {
    fn tensors(&self) -> &[TensorInfo] {
        &self.infos
    }

    fn data(&self, index: usize) -> Result<Bytes, octet_weights::Error> {
        let source = match &self.contents[index] {
            Content::Bytes(bytes) => return Ok(bytes.clone()),
            Content::Tensor(source) => &self.model.tensors()[*source],
        };
        let tensor = self.model.tensor(&source.name, &source.shape)?;
        let ty = self.infos[index].ty;
        // NVFP4's factors are tensors beside.
        if ty == source.ty && (tensor.scales.is_none() || ty == GgmlType::NVFP4) {
            return Ok(tensor.data);
        }
        // A file's own error is passed on, any other as what is wrong with the tensor.
        self.convert(&tensor, ty).map_err(|e| match e {
            Error::Weights(e) => e,
            other => octet_weights::Error::format(&self.model.origin, other.to_string()),
        })
    }

    fn check_files(&self) -> Result<(), octet_weights::Error> {
        self.model.check_files()
    }

    fn release(&self, index: usize) {
        if let Content::Tensor(source) = &self.contents[index] {
            self.model.release(&self.model.tensors()[*source].name);
        }
    }
}

impl Made {
    fn convert(&self, tensor: &Tensor, ty: GgmlType) -> Result<Bytes, Error> {
        let matrix = tensor.matrix();
        let matrices = if tensor.info.shape.len() > 2 { tensor.info.shape[0] } else { 1 };
        let weights = match &self.importance {
            Some(all) => all.weights(&tensor.info.name, matrices, matrix.cols)?,
            None => None,
        };
        let rows_each = (matrix.rows / matrices).max(1);
        let row_bytes = matrix.cols / ty.block_len() * ty.block_bytes();
        let mut out = vec![0; matrix.rows * row_bytes];
        let rows_at_once = (AT_ONCE / matrix.cols.max(1)).clamp(1, rows_each);
        // A piece has rows of one matrix.
        let pieces = out.chunks_mut((rows_each * row_bytes).max(1)).enumerate().flat_map(|(m, out)| {
            let of_matrix = out.chunks_mut((rows_at_once * row_bytes).max(1)).enumerate();
            of_matrix.map(move |(i, out)| (m, m * rows_each + i * rows_at_once, out))
        });
        let work = Mutex::new((pieces, None));
        let columns = matrix.cols;
        let run = || {
            let mut values = vec![0.0; rows_at_once * columns];
            loop {
                let piece = {
                    let mut work = work.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    if work.1.is_some() { None } else { work.0.next() }
                };
                let Some((m, first, out)) = piece else { return };
                let rows = out.len() / row_bytes;
                let values = &mut values[..rows * columns];
                let importance = weights.as_ref().map(|w| &w[m * columns..(m + 1) * columns]);
                if let Err(e) = self
                    .rows(tensor, &matrix, first, values)
                    .map(|()| quantize(ty, values, columns, importance, out))
                {
                    work.lock().unwrap_or_else(std::sync::PoisonError::into_inner).1.get_or_insert(e);
                }
            }
        };
        std::thread::scope(|scope| {
            (1..self.threads).for_each(|_| drop(scope.spawn(run)));
            run();
        });
        match work.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).1 {
            Some(e) => Err(e),
            None => Ok(out.into()),
        }
    }

    /// The values of consecutive rows, which must be finite.
    fn rows(&self, tensor: &Tensor, matrix: &Matrix, first: usize, values: &mut [f32]) -> Result<(), Error> {
        for (i, row) in values.chunks_exact_mut(matrix.cols).enumerate() {
            match (matrix.ty, &matrix.scales) {
                (GgmlType::BF16, None) => float::bf16_to_f32(matrix.row(first + i), row),
                _ => matrix.dequantize_row(first + i, row),
            }
            if let Some(value) = row.iter().find(|v| !v.is_finite()) {
                return Err(Error::NotFinite {
                    file: self.model.origin.clone(),
                    tensor: tensor.info.name.clone(),
                    row: first + i,
                    value: *value,
                });
            }
        }
        Ok(())
    }
}
