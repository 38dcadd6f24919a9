//! A tensor of a file: type, shape and bytes whose length has been checked.

use std::sync::Arc;

use bytes::Bytes;

use crate::quant::{ik_rows, nvfp4};
use crate::{Error, GgmlType};

/// Name, type and shape (outermost dimension first; the last one is contiguous in memory).
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub struct TensorInfo {
    pub name: String,
    pub ty: GgmlType,
    pub shape: Vec<usize>,
}

impl TensorInfo {
    /// Number of values; saturates instead of overflowing.
    pub fn len(&self) -> usize {
        self.shape.iter().fold(1usize, |a, &b| a.saturating_mul(b))
    }
    /// True for a tensor with a zero dimension.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Number of bytes for the tensor's type and shape; saturates instead of overflowing.
    pub fn size_bytes(&self) -> u64 {
        (self.len() / self.ty.block_len()).saturating_mul(self.ty.block_bytes()) as u64
    }

    /// Checks that the shape fits the type, and `bytes` bytes fit the shape.
    pub fn check(&self, file: &str, bytes: usize) -> Result<(), Error> {
        let cols = self.shape.last().copied().unwrap_or(1);
        if cols % self.ty.block_len() != 0 {
            return Err(Error::tensor(
                file,
                &self.name,
                format!("has rows of {cols} values; {} needs a multiple of {}", self.ty, self.ty.block_len()),
            ));
        }
        if bytes as u64 != self.size_bytes() {
            return Err(Error::tensor(
                file,
                &self.name,
                format!("has {bytes} bytes; {} {:?} needs {}", self.ty, self.shape, self.size_bytes()),
            ));
        }
        Ok(())
    }

    /// Fails, naming the tensor, if its shape is not `shape`. Leading dimensions of 1 are ignored: GGUF writers do not agree on
    /// whether one row is a matrix or a vector.
    pub fn expect_shape(&self, file: &str, shape: &[usize]) -> Result<(), Error> {
        fn trimmed(s: &[usize]) -> &[usize] {
            &s[s.iter().take_while(|&&d| d == 1).count()..]
        }
        if trimmed(&self.shape) == trimmed(shape) {
            return Ok(());
        }
        let what = format!("has shape {:?}; expected {shape:?}", self.shape);
        Err(Error::tensor(file, &self.name, what))
    }
}

/// A tensor with its bytes; `data.len()` equals `info.size_bytes()` and rows are whole blocks.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct Tensor {
    pub info: TensorInfo,
    pub data: Bytes,
    /// A factor of each row, see [`Matrix::scales`].
    pub scales: Option<RowScales>,
}

/// A factor of each row of a matrix. In f64, so that a product with it is rounded once, and a file that divides by a factor gives the
/// same bits as its maker's library.
pub type RowScales = Arc<[f64]>;

/// A matrix `[rows, cols]` in the file's layout, which backends pack. Row `r` starts at byte `r * row_bytes()`.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct Matrix {
    pub ty: GgmlType,
    pub rows: usize,
    pub cols: usize,
    pub data: Bytes,
    /// What each row is multiplied with, `[rows]`, where a format has a scale beside its blocks: that of the whole matrix (NVFP4,
    /// per-tensor FP8), of each expert, or of each row.
    pub scales: Option<RowScales>,
}

impl Matrix {
    /// The same in memory of its own: a mapped file need not stay as it is.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn in_memory(&self) -> Result<Self, std::collections::TryReserveError> {
        let mut data = Vec::new();
        data.try_reserve_exact(self.data.len())?;
        data.extend_from_slice(&self.data);
        Ok(Self { data: data.into(), ..self.clone() })
    }
}

impl Tensor {
    /// Checks that the shape fits the type and the bytes fit the shape.
    pub fn new(file: &str, info: TensorInfo, data: Bytes) -> Result<Self, Error> {
        info.check(file, data.len())?;
        Ok(Self { info, data, scales: None })
    }

    /// Fails, naming the tensor, if its shape is not `shape`.
    pub fn expect_shape(&self, file: &str, shape: &[usize]) -> Result<(), Error> {
        self.info.expect_shape(file, shape)
    }

    /// All values as f32 (for small tensors: norms, biases).
    pub fn to_f32(&self) -> Vec<f32> {
        self.matrix().to_f32()
    }

    /// The tensor as a matrix: the last dimension is the columns, all others together are the rows.
    pub fn matrix(&self) -> Matrix {
        let cols = self.info.shape.last().copied().unwrap_or(1);
        let rows = self.info.len().checked_div(cols).unwrap_or(0);
        Matrix { ty: self.info.ty, rows, cols, data: self.data.clone(), scales: self.scales.clone() }
    }
}

impl Matrix {
    /// A matrix without scales beside its blocks; `data` holds whole rows.
    pub fn new(ty: GgmlType, rows: usize, cols: usize, data: Bytes) -> Self {
        Self { ty, rows, cols, data, scales: None }
    }
    /// Bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.cols / self.ty.block_len() * self.ty.block_bytes()
    }
    /// Bytes of row `r` in the file's own layout.
    pub fn row(&self, r: usize) -> &[u8] {
        let n = self.row_bytes();
        &self.data[r * n..(r + 1) * n]
    }
    /// Rows `from..to` without a copy.
    pub fn slice_rows(&self, from: usize, to: usize) -> Matrix {
        let n = self.row_bytes();
        let scales = self.scales.as_ref().map(|s| s[from..to].into());
        Matrix { rows: to - from, data: self.data.slice(from * n..to * n), scales, ..*self }
    }
    /// These rows in this order, copied.
    pub fn select_rows(&self, rows: &[usize]) -> Matrix {
        let mut data = Vec::with_capacity(rows.len() * self.row_bytes());
        rows.iter().for_each(|&r| data.extend_from_slice(self.row(r)));
        let scales = self.scales.as_ref().map(|s| rows.iter().map(|&r| s[r]).collect());
        Matrix { rows: rows.len(), data: data.into(), scales, ..*self }
    }
    /// Columns `range` of all rows, copied; `None` if the range does not fall on block boundaries.
    pub fn slice_cols(&self, range: std::ops::Range<usize>) -> Option<Matrix> {
        let block = self.ty.block_len();
        if !range.start.is_multiple_of(block) || !range.end.is_multiple_of(block) || range.end > self.cols {
            return None;
        }
        let bytes = |col: usize| col / block * self.ty.block_bytes();
        let mut data = Vec::with_capacity(self.rows * bytes(range.len()));
        for r in 0..self.rows {
            data.extend_from_slice(&self.row(r)[bytes(range.start)..bytes(range.end)]);
        }
        Some(Matrix { cols: range.len(), data: data.into(), scales: self.scales.clone(), ..*self })
    }
    /// Row `r` as f32.
    pub fn dequantize_row(&self, r: usize, out: &mut [f32]) {
        let row = self.row(r);
        match (&self.scales, self.ty) {
            (None, ty) => ty.dequantize(row, out),
            // As the makers' libraries multiply: a block's scale with the matrix's first.
            (Some(scales), GgmlType::NVFP4) => nvfp4::dequantize_scaled(row, scales[r], out),
            (Some(scales), ty) if ik_rows::Row::of(ty).is_some() => {
                ik_rows::dequantize_scaled(ty, row, scales[r], out);
            }
            (Some(scales), ty) => {
                ty.dequantize(row, out);
                out.iter_mut().for_each(|v| *v = (f64::from(*v) * scales[r]) as f32);
            }
        }
    }
    /// All values as f32, `[rows, cols]`.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.rows * self.cols];
        if self.cols > 0 {
            out.chunks_exact_mut(self.cols).enumerate().for_each(|(r, row)| self.dequantize_row(r, row));
        }
        out
    }
    /// `[cols, rows]` in f32.
    pub fn transposed(&self) -> Matrix {
        let (rows, cols, values) = (self.rows, self.cols, self.to_f32());
        let at = |i: usize| values[i % rows * cols + i / rows];
        let data = (0..values.len()).flat_map(|i| at(i).to_le_bytes()).collect::<Vec<u8>>();
        Matrix::new(GgmlType::F32, cols, rows, data.into())
    }
}
