//! The verb `mlp`, a dense SwiGLU block, and the first half of such a block, which `moe` runs for each expert.

use std::ops::Range;

use super::activations::ActView;
use super::device::Cpu;
use super::kernels::Kernels;
use super::kind::ROWS;
use super::linear::{self, Input, Norm, Output, TOKEN_BLOCK, add_bias, form, groups_per_chunk, multiply};
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
    let (items, norm) = (pair.items(threads), Norm { vector, weights: &m.norm, eps: m.eps });
    let out = Output::new(&m.down, h);
    team.run(|w| {
        kernels.prefetch(pair.first(w.first_item(items), threads));
        // SAFETY: each thread has a part of its own.
        let own = unsafe { own.part(w.id * per_thread, per_thread) };
        // SAFETY: `h` is only read before the next barrier, and only written after it.
        let x = unsafe { out.read() };
        let view = input.write(w, kernels, |t, put| norm.row(x, t, own, put));
        for item in w.items(items) {
            let next = pair.first(item + 1, threads);
            pair.rows(kernels, vector, pair.item(item, threads), next, &view, tokens, own, |i, g, y| {
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

    fn groups_of_item(&self, threads: usize) -> usize {
        let layout = self.gate.layout();
        groups_per_chunk(layout.groups(), 2 * layout.group_bytes(), threads)
    }

    /// Items that it is cut into for so many threads.
    pub fn items(&self, threads: usize) -> usize {
        self.gate.layout().groups().div_ceil(self.groups_of_item(threads))
    }

    /// The groups of an item.
    pub fn item(&self, item: usize, threads: usize) -> Range<usize> {
        let groups = self.groups_of_item(threads);
        item * groups..((item + 1) * groups).min(self.gate.layout().groups())
    }

    /// What is read first of an item, if there is such an item.
    pub fn first(&self, item: usize, threads: usize) -> Option<(&'a Packed, usize)> {
        let groups = self.item(item, threads);
        (!groups.is_empty()).then_some((self.gate, self.base + groups.start))
    }

    /// `silu(gate . x) * (up . x)` of some groups of rows, for all `tokens` of `acts`: `put(i, group, y)` receives those
    /// of token `tokens[i]`. `next` is what this thread reads after.
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
        let (gate_tile, up_tile) = own.split_at_mut(TOKEN_BLOCK * ROWS);
        let all = self.gate.layout().rows();
        for (block, tokens) in tokens.chunks(TOKEN_BLOCK).enumerate() {
            let len = tokens.len() * ROWS;
            let (gate_tile, up_tile) = (&mut gate_tile[..len], &mut up_tile[..len]);
            for g in groups.clone() {
                let index = self.base + g;
                let next = if g + 1 < groups.end { Some((self.gate, index + 1)) } else { next };
                kernels.group(self.gate, index, Some((self.up, index)), acts, tokens, gate_tile);
                kernels.group(self.up, index, next, acts, tokens, up_tile);
                add_bias(self.biases[0], g, gate_tile);
                add_bias(self.biases[1], g, up_tile);
                vector.silu_mul(gate_tile, up_tile);
                for (i, y) in gate_tile.chunks_exact(ROWS).enumerate() {
                    put(block * TOKEN_BLOCK + i, g, &y[..ROWS.min(all - g * ROWS)]);
                }
            }
        }
    }
}
