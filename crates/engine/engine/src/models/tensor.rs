//! Tensors of a plan: names, shapes, and what is done with their values.

/// A tensor of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    /// Its name, for matrices without `.weight`.
    pub name: String,
    /// Its shape: `[rows, cols]` of a matrix, `[experts, rows, cols]` of a stack.
    pub shape: Vec<usize>,
    /// Only some rows of the tensor in the file, one part after the other; empty: all.
    pub parts: Vec<Part>,
    /// What is done with the values.
    pub change: Change,
}

impl Tensor {
    /// Some values.
    pub fn vector(name: impl Into<String>, len: usize) -> Self {
        Self { name: name.into(), shape: vec![len], parts: Vec::new(), change: Change::None }
    }

    /// A projection.
    pub fn matrix(name: impl Into<String>, rows: usize, cols: usize) -> Self {
        Self { shape: vec![rows, cols], ..Self::vector(name, 0) }
    }

    /// The projections of all experts or heads.
    pub fn stack(name: impl Into<String>, count: usize, rows: usize, cols: usize) -> Self {
        Self { shape: vec![count, rows, cols], ..Self::vector(name, 0) }
    }

    /// Rows `from..from + rows` of this matrix.
    pub fn rows(&self, from: usize, rows: usize) -> Self {
        self.every(from, rows, self.shape[0])
    }

    /// `len` rows from `from` on, and so on every `stride` rows.
    pub fn every(&self, from: usize, len: usize, stride: usize) -> Self {
        let whole = self.shape[0];
        let parts = vec![Part { from, len, stride, whole }];
        Self { shape: vec![whole / stride * len, self.shape[1]], parts, ..self.clone() }
    }

    /// These rows, then those of `other`, which are of the same tensor.
    pub fn then(mut self, other: Self) -> Self {
        self.shape[0] += other.shape[0];
        self.parts.extend(other.parts);
        self
    }

    /// These rows as `count` matrices, each transposed if `transposed`.
    pub fn split(self, count: usize, transposed: bool) -> Self {
        let (rows, cols) = (self.shape[0] / count, self.shape[1]);
        match transposed {
            false => Self { shape: vec![count, rows, cols], ..self },
            true => Self { shape: vec![count, cols, rows], change: Change::Transpose, ..self },
        }
    }

    /// Rows of the tensor in the file.
    pub fn whole(&self) -> usize {
        self.parts.first().map_or(self.shape[0], |p| p.whole)
    }

    /// The runs of rows, in order.
    pub fn runs(&self) -> Vec<std::ops::Range<usize>> {
        self.parts.iter().flat_map(|p| p.runs()).collect()
    }

    /// The same values, changed.
    pub fn change(self, change: Change) -> Self {
        Self { change, ..self }
    }
}

/// Rows of a tensor: `len` from row `from` on, and so on every `stride` rows up to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Part {
    pub from: usize,
    pub len: usize,
    pub stride: usize,
    /// Rows of the whole tensor.
    pub whole: usize,
}

impl Part {
    /// The runs of rows.
    pub fn runs(self) -> impl Iterator<Item = std::ops::Range<usize>> {
        (self.from..self.whole).step_by(self.stride).map(move |from| from..from + self.len)
    }
}

/// What a loader does with the values of a vector.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Change {
    /// Nothing.
    None,
    /// No tensor: all values are this one.
    Constant(f32),
    /// `[channels, taps]` becomes `[taps, channels]`; so does each matrix of a stack that is made of rows.
    Transpose,
    /// Multiplied by this.
    Scale(f32),
    /// Each value so many times.
    Repeat(usize),
}
