//! The verb `mlp`, a dense SwiGLU block, and the first half of such a block, which `moe` runs for each expert.

use std::ops::Range;

use super::activations::ActView;
use super::device::Cpu;
use super::kernels::Kernels;
use super::kind::ROWS;
use super::linear::{self, Input, Norm, Output, TOKEN_BLOCK, add_bias, form, longest_run, multiply};
use super::memory::Weight;
use super::pack::Packed;
use super::scratch::Scratch;
use super::team::{Shards, Team};
use super::vector::VectorKernels;
use crate::backend::Mlp;

/// A dense SwiGLU block.
pub(super) fn mlp(
    team: &mut Team,
    kernels: &Kernels,
    vector: &VectorKernels,
    s: &mut Scratch,
    n: usize,
    m: &Mlp<Cpu>,
    h: &mut [f32],
) {
    let (hidden, inner, threads) = (m.norm.len(), m.gate.packed.layout().rows(), team.threads());
    let input = Input::new(&mut s.acts, n, n, hidden, threads, form([&m.gate.packed, &m.up.packed]));
    let inner_input = Input::new(&mut s.hidden_acts, n, n, inner, threads, form([&m.down.packed]));
    let (own, per_thread) = (Shards::new(&mut s.threads), s.per_thread);
    let (tokens, rows) = (&s.tokens[..n], Shards::new(&mut s.hidden));
    let pair = GateUp::new(&m.gate, &m.up);
    let (groups, norm) = (pair.groups(), Norm { vector, weights: &m.norm, eps: m.eps });
    let out = Output::new(&m.down, h);
    team.run(|w| {
        kernels.prefetch(pair.first(w.first_item(groups)));
        // SAFETY: each thread has a part of its own.
        let own = unsafe { own.part(w.id * per_thread, per_thread) };
        // SAFETY: `h` is only read before the next barrier, and only written after it.
        let x = unsafe { out.read() };
        let view = input.write(w, kernels, |t, put| norm.row(x, t, own, put));
        for run in w.runs(groups, pair.longest_run()) {
            let next = pair.first(run.end);
            pair.rows(kernels, vector, run, next, &view, tokens, own, |i, g, y| {
                // SAFETY: each group of each token is computed by one thread.
                unsafe { rows.part(i * inner + g * ROWS, y.len()) }.copy_from_slice(y);
            });
        }
        linear::prefetch(w, kernels, [&m.down]);
        w.barrier();
        // SAFETY: written before the barrier.
        let x = unsafe { rows.read(0, n * inner) };
        let view = inner_input.write(w, kernels, |t, put| put(&x[t * inner..(t + 1) * inner]));
        multiply(w, kernels, [&m.down], &view, tokens, own, |_, g, t, y| out.add(g, t, y));
    });
}

/// The gate and the up projection of a SwiGLU block: their groups are read in turn.
pub(super) struct GateUp<'a> {
    gate: &'a Packed,
    up: &'a Packed,
    /// Index of the first group of both.
    base: usize,
    biases: [Option<&'a [f32]>; 2],
}

impl<'a> GateUp<'a> {
    /// Those of a dense block.
    pub fn new(gate: &'a Weight, up: &'a Weight) -> Self {
        let biases = [gate, up].map(|w| w.bias.as_deref());
        Self { gate: &gate.packed, up: &up.packed, base: 0, biases }
    }

    /// Those of one expert.
    pub fn of_expert(gate: &'a Packed, up: &'a Packed, expert: u32) -> Self {
        Self { gate, up, base: expert as usize * gate.layout().groups(), biases: [None; 2] }
    }

    /// Rows of the result.
    pub fn width(&self) -> usize {
        self.gate.layout().rows()
    }

    /// Groups of rows of each of the two.
    pub fn groups(&self) -> usize {
        self.gate.layout().groups()
    }

    /// Groups of a run that a thread takes at a time.
    pub fn longest_run(&self) -> usize {
        longest_run(self.gate)
    }

    /// The weights that a run beginning with `group` reads first, if there is such a group.
    pub fn first(&self, group: usize) -> Option<(&'a Packed, usize)> {
        (group < self.groups()).then_some((self.gate, self.base + group))
    }

    /// `silu(gate . x) * (up . x)` of some groups of rows, for all `tokens` of `acts`: `put(i, group, y)` receives those
    /// of token `tokens[i]`. `next` are the weights that this thread reads afterwards.
    pub fn rows(
        &self,
        kernels: &Kernels,
        vector: &VectorKernels,
        groups: Range<usize>,
        next: Option<(&Packed, usize)>,
        acts: &ActView,
        tokens: &[u32],
        own: &mut [f32],
        mut put: impl FnMut(usize, usize, &[f32]),
    ) {
        let (gate_tiles, up_tiles) = own.split_at_mut(TOKEN_BLOCK * ROWS);
        let all = self.gate.layout().rows();
        for (block, tokens) in tokens.chunks(TOKEN_BLOCK).enumerate() {
            let len = tokens.len() * ROWS;
            // As many of the gate's groups as fit, then the same of the up projection: longer streams are faster.
            for run in chunks_of(groups.clone(), TOKEN_BLOCK / tokens.len()) {
                let then = if run.end < groups.end { Some((self.gate, self.base + run.end)) } else { next };
                let up = Some((self.up, self.base + run.start));
                self.multiply(self.gate, kernels, run.clone(), up, acts, tokens, gate_tiles);
                self.multiply(self.up, kernels, run.clone(), then, acts, tokens, up_tiles);
                let tiles = gate_tiles.chunks_exact_mut(len).zip(up_tiles.chunks_exact_mut(len));
                for (g, (gate, up)) in run.zip(tiles) {
                    add_bias(self.biases[0], g, gate);
                    add_bias(self.biases[1], g, up);
                    vector.silu_mul(gate, up);
                    for (i, y) in gate.chunks_exact(ROWS).enumerate() {
                        put(block * TOKEN_BLOCK + i, g, &y[..ROWS.min(all - g * ROWS)]);
                    }
                }
            }
        }
    }

    /// One of the two times `tokens`, a tile for each group.
    fn multiply(
        &self,
        of: &Packed,
        kernels: &Kernels,
        groups: Range<usize>,
        next: Option<(&Packed, usize)>,
        acts: &ActView,
        tokens: &[u32],
        tiles: &mut [f32],
    ) {
        let end = self.base + groups.end;
        let indices = self.base + groups.start..end;
        for (index, tile) in indices.zip(tiles.chunks_exact_mut(tokens.len() * ROWS)) {
            let next = if index + 1 < end { Some((of, index + 1)) } else { next };
            kernels.group(of, index, next, acts, tokens, tile);
        }
    }
}

/// `range` in parts of `len`.
fn chunks_of(range: Range<usize>, len: usize) -> impl Iterator<Item = Range<usize>> {
    range.clone().step_by(len).map(move |from| from..(from + len).min(range.end))
}
