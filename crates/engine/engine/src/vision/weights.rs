//! A tower's weights in a backend. Made by `load`, read by `encoder`.

use octet_compute::backend::{Act, Backend, Glu, Norm};

use crate::models::decoder::Block;

/// See [`super::plan::Middle`].
pub struct Middle<B: Backend> {
    pub project: B::Weight,
    pub norm: Norm<B>,
    pub act: Act,
    /// A row of ones.
    pub ones: B::Buf,
}

/// See [`super::plan::Merge`].
pub struct Merge<B: Backend> {
    pub norm: Option<Norm<B>>,
    pub first: Option<B::Weight>,
    pub middle: Option<Middle<B>>,
    pub glu: Option<Glu<B::Weight>>,
}

/// See [`super::plan::Pool`].
pub struct Pool<B: Backend> {
    pub norm: Option<Norm<B>>,
    pub factor: f32,
    pub shift: Option<[Vec<f32>; 2]>,
    pub last: Norm<B>,
    pub project: B::Weight,
}

/// See [`super::plan::Output`].
pub enum Output<B: Backend> {
    Merge(Merge<B>),
    Pool(Box<Pool<B>>),
}

/// Bounds of a projection, lower and upper: of what goes in, and of what comes out.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub input: [f32; 2],
    pub output: [f32; 2],
}

/// A tower's weights.
pub struct Weights<B: Backend> {
    pub patch: B::Weight,
    /// The same for frames of a video, if these are read.
    pub frames: Option<B::Weight>,
    /// Of a patch's values, of its projection, and of that with its position.
    pub norms: [Option<Norm<B>>; 3],
    /// The further state of each tile, with its position.
    pub class: Option<B::Buf>,
    pub blocks: Vec<Block<B>>,
    /// For each block, if there are any: those of queries, keys, values and output, or of gate, up and down.
    pub bounds: Vec<Vec<Bounds>>,
    /// Factors of the result of each block, if there are any.
    pub scales: Vec<B::Buf>,
    pub output: Output<B>,
    pub deep: Vec<(usize, Merge<B>)>,
    /// Values of the tower's positions.
    pub table: Vec<f32>,
}
