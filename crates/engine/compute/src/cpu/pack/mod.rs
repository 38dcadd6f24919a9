//! Packed weights, in the order in which the kernels read them; `kind` has the layout. Backends pack at load; `kernels` reads.

mod rows;

use std::ops::Range;
use std::sync::Arc;

use octet_weights::{GgmlType, Matrix};

use super::huge::HugeVec;
use super::kind::{FLOAT_STEP, Kind, ROWS, SUB, SUBS};
use crate::Error;

/// Shape and kind of packed matrices: how to find a group.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    pub(super) ty: GgmlType,
    pub(super) kind: Kind,
    rows: usize,
    pub(super) cols: usize,
    group_bytes: usize,
}

impl Layout {
    /// The layout of a `[rows, cols]` matrix of this type.
    pub fn new(ty: GgmlType, rows: usize, cols: usize) -> Result<Self, Error> {
        if !cols.is_multiple_of(ty.block_len()) {
            return Err(Error(format!("rows of {cols} values; {ty} needs a multiple of {}", ty.block_len())));
        }
        let kind = Kind::of(ty);
        let bytes = match kind.planes() {
            Some(p) => {
                let (blocks, rest) = (cols / (SUB * SUBS), cols / SUB % SUBS);
                let tail = if rest > 0 { p.block_bytes(rest) } else { 0 };
                blocks.checked_mul(p.block_bytes(SUBS)).and_then(|b| b.checked_add(tail))
            }
            None if kind == Kind::Raw || kind.scaled_columns().is_some() => {
                (cols / ty.block_len()).checked_mul(ty.block_bytes()).and_then(|b| b.checked_mul(ROWS))
            }
            None => {
                cols.checked_next_multiple_of(FLOAT_STEP).and_then(|c| c.checked_mul(ty.block_bytes() * ROWS))
            }
        };
        // Whole cache lines, so that every group starts on one.
        let group_bytes = bytes
            .and_then(|b| b.checked_next_multiple_of(64))
            .ok_or_else(|| Error(format!("a matrix of {rows} x {cols} values does not fit into memory")))?;
        Ok(Self { ty, kind, rows, cols, group_bytes })
    }
    /// Its kind.
    pub fn kind(&self) -> Kind {
        self.kind
    }
    /// The type in the file.
    pub fn ty(&self) -> GgmlType {
        self.ty
    }
    /// Rows without the padding.
    pub fn rows(&self) -> usize {
        self.rows
    }
    /// Columns without the padding.
    pub fn cols(&self) -> usize {
        self.cols
    }
    /// Groups of a matrix.
    pub fn groups(&self) -> usize {
        self.rows.div_ceil(ROWS)
    }
    /// Bytes of a group: a multiple of 64.
    pub fn group_bytes(&self) -> usize {
        self.group_bytes
    }

    /// Bytes of a matrix.
    pub fn matrix_bytes(&self) -> usize {
        self.groups() * self.group_bytes
    }

    /// Packs the rows of one group of `m`, `[ROWS * group..]`, into `out`, whose length is [`Layout::group_bytes`].
    ///
    /// # Panics
    /// If `m` has another type or shape than this layout, or lengths do not fit.
    pub fn pack_group(&self, m: &Matrix, group: usize, out: &mut [u8]) {
        assert!(m.ty == self.ty && m.rows == self.rows && m.cols == self.cols, "packed by another layout");
        self.pack_rows(&m.data, group, out);
    }

    /// The same from the bytes of a whole matrix.
    ///
    /// # Panics
    /// If lengths do not fit.
    pub fn pack_rows(&self, matrix: &[u8], group: usize, out: &mut [u8]) {
        let row = self.row_bytes();
        assert!(matrix.len() == self.rows * row, "a matrix of this layout");
        assert!(group < self.groups() && out.len() == self.group_bytes, "a group of this layout");
        // Copied first, from front to back: reading 32 rows of a file alternately is twice as slow.
        let rows = matrix[group * ROWS * row..self.rows.min((group + 1) * ROWS) * row].to_vec();
        let rows: Vec<&[u8]> = rows.chunks_exact(row.max(1)).collect();
        if rows.len() < ROWS || self.kind.planes().is_none() {
            out.fill(0);
        }
        rows::pack(self.kind, &rows, out);
    }

    /// Packs a whole matrix of [`Layout::row_bytes`] for each row.
    ///
    /// # Panics
    /// If lengths do not fit.
    pub fn pack_matrix(&self, matrix: &[u8], out: &mut [u8]) {
        assert!(out.len() == self.matrix_bytes(), "a matrix of this layout");
        for (group, out) in out.chunks_exact_mut(self.group_bytes.max(1)).enumerate() {
            self.pack_rows(matrix, group, out);
        }
    }

    /// Bytes of a row in the file's layout.
    pub fn row_bytes(&self) -> usize {
        self.cols / self.ty.block_len() * self.ty.block_bytes()
    }
}

/// Memory that nobody else reads or packs into.
fn own(data: &mut Arc<HugeVec>) -> &mut HugeVec {
    Arc::get_mut(data).expect("slots for experts are packed by those that read them")
}

/// Packed matrices of one shape, in one allocation: one projection, or that of every expert.
pub struct Packed {
    layout: Layout,
    /// Shared only by those that read experts into it: see [`Packed::shared`].
    data: Arc<HugeVec>,
    /// What each row's products are multiplied with, `[groups][ROWS]`; empty where that is 1.
    scales: Vec<f32>,
    /// Of matrices in a file that are not compared with their checksums yet.
    checks: Option<Arc<dyn Checks>>,
}

/// Compares matrices in a file with their checksums.
pub(super) trait Checks: Send + Sync {
    /// Compares one, unless that was done.
    fn check(&self, matrix: usize);
    /// Compares some groups of rows, counted over all matrices.
    fn check_groups(&self, groups: Range<usize>);
    /// All groups of this one were compared.
    fn set_checked(&self, matrix: usize);
    /// Whether one was compared.
    fn is_checked(&self, matrix: usize) -> bool;
    /// Whether all were compared.
    fn is_done(&self) -> bool;
}

impl Packed {
    /// Memory for `matrices` of this layout; no group is packed yet.
    pub fn zeroed(layout: Layout, matrices: usize) -> Result<Self, Error> {
        let bytes = layout.groups().checked_mul(layout.group_bytes).and_then(|b| b.checked_mul(matrices));
        let data = bytes
            .ok_or_else(|| std::io::ErrorKind::OutOfMemory.into())
            .and_then(HugeVec::zeroed)
            .map_err(|e| {
                Error(format!(
                    "no memory for {matrices} x {} x {} {}: {e}",
                    layout.rows, layout.cols, layout.ty
                ))
            })?;
        Ok(Self { layout, data: Arc::new(data), scales: Vec::new(), checks: None })
    }

    /// Matrices that are packed already. Those with `checks` are compared before they are used.
    pub(super) fn of_file(
        layout: Layout,
        data: HugeVec,
        scales: Vec<f32>,
        checks: Option<Arc<dyn Checks>>,
    ) -> Self {
        Self { layout, data: Arc::new(data), scales, checks }
    }

    /// What compares its matrices with checksums, if that is to be done before they are used.
    pub(super) fn checks(&self) -> Option<&dyn Checks> {
        self.checks.as_deref().filter(|c| !c.is_done())
    }

    /// Has its matrices compared by `checks`, as if they were in a file.
    #[cfg(test)]
    pub(super) fn set_checks(&mut self, checks: Arc<dyn Checks>) {
        self.checks = Some(checks);
    }

    /// Packs one matrix, on this thread only.
    pub fn pack(m: &Matrix) -> Result<Self, Error> {
        let layout = Layout::new(m.ty, m.rows, m.cols)?;
        let mut packed = Self::zeroed(layout, 1)?;
        for (g, out) in packed.groups_mut().enumerate() {
            layout.pack_group(m, g, out);
        }
        packed.set_scales(std::slice::from_ref(m));
        Ok(packed)
    }

    /// Takes the factors that `matrices`, all that are packed here in order, have beside their blocks ([`Matrix::scales`]).
    pub fn set_scales(&mut self, matrices: &[Matrix]) {
        if matrices.iter().all(|m| m.scales.is_none()) {
            return;
        }
        let padded = self.layout.groups() * ROWS;
        self.scales = vec![1.0; matrices.len() * padded];
        for (m, out) in matrices.iter().zip(self.scales.chunks_exact_mut(padded.max(1))) {
            let Some(scales) = &m.scales else { continue };
            out.iter_mut().zip(scales.iter()).for_each(|(out, s)| *out = *s as f32);
        }
    }

    /// The factors of all rows of all matrices, padded; empty if there are none.
    pub(super) fn all_scales(&self) -> &[f32] {
        &self.scales
    }

    /// The factors of the rows of group `index`, if there are some.
    pub fn scales(&self, index: usize) -> Option<&[f32]> {
        self.scales.get(index * ROWS..(index + 1) * ROWS)
    }

    /// Copies row `from` of `other` to row `to`. Both are single matrices of the same type and width. A row is spread over its whole group,
    /// so this touches as many cache lines as a product with all 32 rows.
    pub fn copy_row(&mut self, other: &Self, from: usize, to: usize) {
        let layout = self.layout;
        assert!(
            layout.ty == other.layout.ty && layout.cols == other.layout.cols,
            "rows are copied between matrices of one type and width"
        );
        assert!(from < other.layout.rows && to < layout.rows, "rows of both");
        let bytes = layout.group_bytes;
        let group = &mut own(&mut self.data)[to / ROWS * bytes..][..bytes];
        rows::copy(&layout, other.group(from / ROWS), from % ROWS, group, to % ROWS);
        if let (Some(own), Some(scale)) = (self.scales.get_mut(to), other.scales.get(from)) {
            *own = *scale;
        }
    }

    /// Number of matrices.
    pub fn count(&self) -> usize {
        self.data.len() / (self.layout.groups() * self.layout.group_bytes).max(1)
    }
    /// Shape and kind of each matrix.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }
    /// The bytes of group `index`; matrix `m`'s group `g` has index `m * layout().groups() + g`.
    pub fn group(&self, index: usize) -> &[u8] {
        let n = self.layout.group_bytes;
        // SAFETY: within the memory (checked), and nobody writes to a group that is in use (`group_to_pack`).
        unsafe { std::slice::from_raw_parts(self.data.part(index * n..(index + 1) * n), n) }
    }
    /// Every group in order, to pack into.
    pub fn groups_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        // A matrix without columns has groups of no bytes, and chunks of none would panic.
        own(&mut self.data).chunks_exact_mut(self.layout.group_bytes.max(1))
    }
    /// All groups.
    pub fn bytes(&self) -> &[u8] {
        &self.data
    }
    /// All groups, to pack into from several threads.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        own(&mut self.data)
    }
    /// The same memory once more, for those that pack matrices into it while others are in use, or that write it to a file.
    pub(super) fn shared(&self) -> Self {
        let (data, scales, checks) = (self.data.clone(), self.scales.clone(), self.checks.clone());
        Self { layout: self.layout, data, scales, checks }
    }
    /// The groups of matrix `index`, to pack into.
    ///
    /// # Safety
    /// Nobody else may use this matrix meanwhile.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn matrix_to_pack(&self, index: usize) -> &mut [u8] {
        let n = self.layout.matrix_bytes();
        // SAFETY: within the memory (checked), and the caller's.
        unsafe { std::slice::from_raw_parts_mut(self.data.part(index * n..(index + 1) * n), n) }
    }
    /// Size in bytes.
    pub fn size_bytes(&self) -> usize {
        self.data.len()
    }
}
