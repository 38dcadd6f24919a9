//! What few models have besides a decoder's blocks: further embeddings, and layers after pooling. Part of a decoder.

use octet_compute::backend::{Backend, Norm, Out, Pass, TableRow};
use octet_compute::{Batch, Error};

use super::plan::DenseAct;

/// A table of embeddings that are added to those of tokens.
#[allow(missing_docs)]
pub struct Added<B: Backend> {
    pub table: B::Embedding,
    pub row: TableRow,
    /// Values of a row.
    pub width: usize,
}

impl<B: Backend> Added<B> {
    /// Adds the rows of a batch to `h`. `room` is overwritten.
    pub fn add(&self, be: &mut B, batch: &Batch, room: &mut B::Buf, h: &mut B::Buf) {
        be.embed(batch, &self.table, self.row, 1.0, room);
        be.add(batch.len() * self.width, Some(room), 1.0, h);
    }
}

/// Embeddings of each layer; see [`super::plan::PerLayer`].
#[allow(missing_docs)]
pub struct PerLayer<B: Backend> {
    pub width: usize,
    pub table: B::Embedding,
    pub project: B::Weight,
    pub norm: Norm<B>,
    pub scales: [f32; 3],
}

/// Layers after pooling; see [`super::plan::Pool`].
pub struct Pool<B: Backend> {
    /// Each with the number of its outputs.
    pub layers: Vec<(Dense<B>, usize)>,
}

/// See [`super::plan::Dense`].
#[allow(missing_docs)]
pub struct Dense<B: Backend> {
    pub matrix: B::Weight,
    pub act: DenseAct,
    pub norm: Option<Norm<B>>,
}

impl<B: Backend> Pool<B> {
    /// A pooled state to the vector or score of its text.
    pub fn apply(&self, be: &mut B, state: &[f32]) -> Result<Vec<f32>, Error> {
        let (mut x, batch) = (state.to_vec(), Batch::default());
        for (layer, outputs) in &self.layers {
            let (input, mut y) = (be.vector(&x)?, be.buf(*outputs)?);
            be.step(Pass::Other, &batch, |be| be.linear(1, &input, &layer.matrix, Out::Write(&mut y)))?;
            x.resize(*outputs, 0.0);
            be.read(&y, &mut x);
            layer.act.apply(&mut x);
            if let Some(norm) = &layer.norm {
                let input = be.vector(&x)?;
                be.step(Pass::Other, &batch, |be| be.norm(1, Some(&input), norm, Out::Write(&mut y)))?;
                be.read(&y, &mut x);
            }
        }
        Ok(x)
    }
}
