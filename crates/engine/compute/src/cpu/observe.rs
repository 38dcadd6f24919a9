//! Adds up squared inputs of projections. Off unless [`Cpu::with_watch`] is called; the verbs of `backend` then call this.

use std::sync::PoisonError;

use super::device::Cpu;
use super::linear::norm_row;
use super::memory::Weight;
use super::scratch::Scratch;
use super::vector::VectorKernels;
use super::watch::{Sink, Watch, Watched};
use crate::backend::{Glu, Moe, Norm, Out};

impl Watch {
    /// Adds rows that are inputs of all `weights`, normalised if there is a norm.
    pub fn rows<'w>(
        &mut self,
        vector: &VectorKernels,
        norm: Option<&Norm<Cpu>>,
        rows: impl Iterator<Item = usize>,
        x: &[f32],
        weights: impl IntoIterator<Item = &'w Weight>,
    ) {
        let mut weights = weights.into_iter().peekable();
        let Some(columns) = weights.peek().map(|w| w.packed.layout().cols()) else { return };
        self.normalise(vector, norm, rows, x, columns);
        let mut all = self.sink.lock().unwrap_or_else(PoisonError::into_inner);
        for w in weights {
            each(&mut all, w, 0, self.inputs.chunks_exact(columns));
        }
    }

    fn normalise(
        &mut self,
        vector: &VectorKernels,
        norm: Option<&Norm<Cpu>>,
        rows: impl Iterator<Item = usize>,
        x: &[f32],
        columns: usize,
    ) {
        self.inputs.clear();
        for t in rows {
            let (row, at) = (&x[t * columns..(t + 1) * columns], self.inputs.len());
            self.inputs.extend_from_slice(row);
            if let Some(norm) = norm {
                norm_row(vector, norm, row, &mut self.inputs[at..]);
            }
        }
    }

    /// Before `glu` and `moe`: the inputs, which the verb may overwrite.
    pub fn before(
        &mut self,
        vector: &VectorKernels,
        norm: Option<&Norm<Cpu>>,
        n: usize,
        x: Option<&[f32]>,
        out: &Out<Cpu>,
        columns: usize,
    ) {
        let x = match (x, out) {
            (Some(x), _) => x,
            (None, Out::Write(out) | Out::Add(out, _)) => &out[..],
        };
        self.normalise(vector, norm, 0..n, x, columns);
    }

    /// After `glu`, or of a shared expert.
    pub fn glu(&mut self, n: usize, g: &Glu<Weight>, s: &Scratch) {
        let mut all = self.sink.lock().unwrap_or_else(PoisonError::into_inner);
        let (columns, inner) = (g.up.packed.layout().cols(), g.down.packed.layout().cols());
        for w in g.gate.iter().chain([&g.up]) {
            each(&mut all, w, 0, self.inputs.chunks_exact(columns));
        }
        each(&mut all, &g.down, 0, s.hidden[..n * inner].chunks_exact(inner));
    }

    /// After `moe`.
    pub fn moe(&mut self, n: usize, m: &Moe<Cpu>, s: &Scratch) {
        let (columns, inner) = (m.experts.up.packed.layout().cols(), m.experts.down.packed.layout().cols());
        {
            let mut all = self.sink.lock().unwrap_or_else(PoisonError::into_inner);
            for &e in s.routes.used() {
                let range = s.routes.of(e);
                let inputs = || {
                    s.routes.token[range.clone()]
                        .iter()
                        .map(|&t| &self.inputs[t as usize * columns..][..columns])
                };
                for w in m.experts.gate.iter().chain([&m.experts.up]) {
                    each(&mut all, w, e as usize, inputs());
                }
                let hidden = range.clone().map(|p| &s.expert_hidden[p * inner..(p + 1) * inner]);
                each(&mut all, &m.experts.down, e as usize, hidden);
            }
        }
        if let Some(shared) = &m.shared {
            self.glu(n, &shared.glu, s);
        }
    }
}

/// Adds rows to the sums of an expert of a projection.
fn each<'a>(all: &mut [Watched], w: &Weight, expert: usize, rows: impl Iterator<Item = &'a [f32]>) {
    let Some(seen) = w.watched.and_then(|i| all.get_mut(i)) else { return };
    let sums = &mut seen.sums[expert * seen.columns..(expert + 1) * seen.columns];
    for row in rows {
        sums.iter_mut().zip(row).for_each(|(s, v)| *s += v * v);
        seen.counts[expert] += 1;
    }
}

impl Cpu {
    /// Adds up the squared inputs of every projection that is loaded from now on.
    #[must_use]
    pub fn with_watch(self, sink: Sink) -> Self {
        Self { watch: Some(Box::new(Watch { sink, next: String::new(), inputs: Vec::new() })), ..self }
    }
}
