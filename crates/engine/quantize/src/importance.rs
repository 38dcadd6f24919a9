//! Importance matrices: how large each column's inputs are, as `octet imatrix` and llama-imatrix write them.
//!
//! GGUF: `general.type` is "imatrix"; for each matrix `NAME.in_sum2` (F32, `[experts, columns]`: sums of squared inputs) and
//! `NAME.counts` (F32, `[experts, 1]`: rows seen). The older format (`.dat`) holds means times the number of calls.

use std::collections::HashMap;
use std::path::Path;

use octet_weights::{GgmlType, Metadata, Model, TensorInfo, Value, gguf};

use crate::Error;

const MAX_BYTES: u64 = 8 << 30;
const SUMS: &str = ".in_sum2";
const COUNTS: &str = ".counts";

/// What was seen of one matrix, or of a stack of experts.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen {
    /// Columns of a matrix.
    pub columns: usize,
    /// Sums of squared inputs, `[experts, columns]`.
    pub sums: Vec<f32>,
    /// Rows seen, by expert.
    pub counts: Vec<f32>,
}

/// An importance matrix.
#[derive(Debug, Clone, Default)]
pub struct Importance {
    /// The file's name.
    pub file: String,
    /// Names of the texts.
    pub datasets: Vec<String>,
    /// Parts of texts that were read, and tokens in each.
    pub chunks: u64,
    /// Tokens of a chunk.
    pub chunk_tokens: u64,
    /// By name of the weight: `blk.0.attn_q.weight`.
    pub seen: HashMap<String, Seen>,
}

impl Importance {
    /// Reads either format.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let file = path.display().to_string();
        let bad = |what: String| Error::Importance { file: file.clone(), what };
        let io = |e: std::io::Error| Error::Weights(octet_weights::Error::io(&file, e));
        let bytes = std::fs::metadata(path).map_err(io)?.len();
        if bytes > MAX_BYTES {
            return Err(bad(format!("has {bytes} bytes, more than any importance matrix")));
        }
        let mut magic = [0; 4];
        let mut opened = std::fs::File::open(path).map_err(io)?;
        std::io::Read::read_exact(&mut opened, &mut magic).map_err(io)?;
        if magic != gguf::MAGIC {
            return Self::from_bytes(&file, std::fs::read(path).map_err(io)?.into());
        }
        Self::from_gguf(&file, &Model::open(path)?)
    }

    /// Reads either format; messages call it `file`.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub fn from_bytes(file: &str, bytes: bytes::Bytes) -> Result<Self, Error> {
        if bytes.starts_with(&gguf::MAGIC) {
            return Self::from_gguf(file, &gguf::from_bytes(file, bytes)?);
        }
        Self::from_dat(file, &bytes).ok_or_else(|| Error::Importance {
            file: file.into(),
            what: "is no importance matrix, neither GGUF nor the older format (.dat), or is cut off".into(),
        })
    }

    fn from_gguf(file: &str, model: &Model) -> Result<Self, Error> {
        let bad = |what: String| Error::Importance { file: file.into(), what };
        let meta = &model.metadata;
        if meta.opt_str("general.type")? != Some("imatrix") {
            return Err(bad(
                "is a GGUF file, and no importance matrix (general.type is not 'imatrix')".into()
            ));
        }
        let number = |key: &str| Ok::<_, Error>(meta.opt_u32(key)?.unwrap_or(0).into());
        let mut all = Self {
            file: file.into(),
            datasets: meta.opt_strs("imatrix.datasets")?.unwrap_or_default().to_vec(),
            chunks: number("imatrix.chunk_count")?,
            chunk_tokens: number("imatrix.chunk_size")?,
            seen: HashMap::new(),
        };
        for info in model.tensors() {
            let Some(name) = info.name.strip_suffix(SUMS) else { continue };
            let values = |name: &str| Ok::<_, Error>(model.optional(name)?.map(|t| t.to_f32()));
            let sums = values(&info.name)?.unwrap_or_default();
            let counts = values(&format!("{name}{COUNTS}"))?
                .ok_or_else(|| bad(format!("has '{}' and no '{name}{COUNTS}'", info.name)))?;
            let columns = info.shape.last().copied().unwrap_or(0);
            if counts.is_empty() || columns == 0 || sums.len() != counts.len() * columns {
                return Err(bad(format!(
                    "'{}' has shape {:?}, and there are {} counts",
                    info.name,
                    info.shape,
                    counts.len()
                )));
            }
            if let Some(odd) = sums.iter().chain(&counts).find(|v| !v.is_finite() || **v < 0.0) {
                return Err(bad(format!("'{}' holds {odd}; expected finite numbers from 0 up", info.name)));
            }
            all.seen.insert(name.into(), Seen { columns, sums, counts });
        }
        if all.seen.is_empty() {
            return Err(bad(format!("has no tensors called NAME{SUMS}")));
        }
        Ok(all)
    }

    /// The older format: number of entries; for each the name, the number of calls, the values; then the last chunk and the text's name.
    fn from_dat(file: &str, bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let int = |rest: &mut &[u8]| {
            let (head, tail) = rest.split_first_chunk::<4>()?;
            *rest = tail;
            usize::try_from(i32::from_le_bytes(*head)).ok()
        };
        let text = |rest: &mut &[u8], n: usize| {
            let (head, tail) = rest.split_at_checked(n)?;
            *rest = tail;
            String::from_utf8(head.to_vec()).ok()
        };
        let mut all = Self { file: file.into(), ..Self::default() };
        for _ in 0..int(&mut rest)? {
            let n = int(&mut rest)?;
            let name = text(&mut rest, n)?;
            let (calls, columns) = (int(&mut rest)?.max(1), int(&mut rest)?);
            let (values, tail) = rest.split_at_checked(columns.checked_mul(4)?)?;
            rest = tail;
            let sums: Vec<f32> = values.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
            if columns == 0 || sums.iter().any(|v| !v.is_finite() || *v < 0.0) {
                return None;
            }
            all.seen.insert(name, Seen { columns, sums, counts: vec![calls as f32] });
        }
        if let Some(chunks) = int(&mut rest) {
            all.chunks = chunks as u64;
            if let Some(dataset) = int(&mut rest).and_then(|n| text(&mut rest, n)) {
                all.datasets.push(dataset);
            }
        }
        (!all.seen.is_empty()).then_some(all)
    }

    /// Weights of the columns of each matrix of a tensor, `[matrices, columns]`: mean squares, and 1 where nothing was seen. `None` if the
    /// tensor was not seen.
    pub(crate) fn weights(
        &self,
        name: &str,
        matrices: usize,
        columns: usize,
    ) -> Result<Option<Vec<f32>>, Error> {
        let Some(seen) = self.seen.get(name) else { return Ok(None) };
        // The older format has a stack's values in one list.
        let one_list = seen.counts.len() == 1 && seen.sums.len() == matrices * columns;
        if !(one_list || seen.columns == columns && seen.counts.len() == matrices) {
            return Err(Error::OtherModel {
                file: self.file.clone(),
                tensor: name.into(),
                found: seen.columns,
                found_experts: seen.counts.len(),
                columns,
                experts: matrices,
            });
        }
        let mean = |(m, sums): (usize, &[f32])| {
            let count = seen.counts[if one_list { 0 } else { m }];
            sums.iter().map(|s| if count > 0.0 { s / count } else { 1.0 }).collect::<Vec<_>>()
        };
        Ok(Some(seen.sums.chunks(columns).enumerate().flat_map(mean).collect()))
    }

    /// The GGUF file, to be written.
    pub fn to_model(&self) -> Result<Model, Error> {
        let mut meta = Metadata::new(&self.file);
        meta.insert("general.type", Value::Str("imatrix".into()));
        meta.insert("imatrix.datasets", Value::Strs(self.datasets.clone()));
        meta.insert("imatrix.chunk_count", Value::U64(self.chunks));
        meta.insert("imatrix.chunk_size", Value::U64(self.chunk_tokens));
        let mut names: Vec<&String> = self.seen.keys().collect();
        names.sort();
        let (mut infos, mut data) = (Vec::new(), Vec::new());
        for name in names {
            let seen = &self.seen[name];
            for (end, columns, values) in [(SUMS, seen.columns, &seen.sums), (COUNTS, 1, &seen.counts)] {
                let shape = vec![seen.counts.len(), columns];
                infos.push(TensorInfo { name: format!("{name}{end}"), ty: GgmlType::F32, shape });
                data.push(values.iter().flat_map(|v| v.to_le_bytes()).collect());
            }
        }
        Ok(Model::new(self.file.clone(), meta, Box::new(InMemory { infos, data }))?)
    }
}

/// A file's tensors, in memory.
struct InMemory {
    infos: Vec<TensorInfo>,
    data: Vec<bytes::Bytes>,
}

impl octet_weights::Source for InMemory {
    fn tensors(&self) -> &[TensorInfo] {
        &self.infos
    }

    fn data(&self, index: usize) -> Result<bytes::Bytes, octet_weights::Error> {
        Ok(self.data[index].clone())
    }
}
