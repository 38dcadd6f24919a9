//! The verb `glu`, a dense feed-forward block, and the first half of such a block, which `moe` runs for each expert.

use std::ops::Range;

use super::activations::ActView;
use super::device::Cpu;
use super::kernels::Kernels;
use super::kind::ROWS;
use super::linear::{self, Input, Output, Source, add_bias, form, longest_run, multiply};
use super::memory::Weight;
use super::pack::Packed;
use super::scratch::{Scratch, TOKEN_BLOCK};
use super::team::{Shards, Team};
use super::vector::VectorKernels;
use crate::backend::{Act, Gate, Glu, LEVEL_MIN, Norm, Out, Times};

/// A dense block.
pub(super) fn glu(
    team: &mut Team,
    kernels: &Kernels,
    vector: &VectorKernels,
    s: &mut Scratch,
    n: usize,
    x: Option<&[f32]>,
    norm: Option<&Norm<Cpu>>,
    m: &Glu<Weight>,
    out: Out<Cpu>,
) {
    let layout = m.up.packed.layout();
    let (hidden, inner, threads) = (layout.cols(), layout.rows(), team.threads());
    let wanted = form(m.gate.iter().chain([&m.up]).map(|w| &w.packed));
    let input = Input::new(&mut s.acts, n, n, hidden, threads, wanted);
    let inner_input = Input::new(&mut s.hidden_acts, n, n, inner, threads, form([&m.down.packed]));
    let (own, per_thread) = (Shards::new(&mut s.threads), s.per_thread);
    let (tokens, rows) = (&s.tokens[..n], Shards::new(&mut s.hidden));
    let pair = GateUp::new(m, 0, 0);
    let (groups, source) = (pair.groups(), Source { vector, norm, cols: hidden });
    let out = Output::to(&m.down, out);
    team.run(|w| {
        kernels.prefetch(pair.first(w.first_item(groups)));
        // SAFETY: each thread has a part of its own.
        let own = unsafe { own.part(w.id * per_thread, per_thread) };
        // SAFETY: the residual stream is only read before the next barrier, and only written after it.
        let x = x.unwrap_or_else(|| unsafe { out.read() });
        let view = input.write(w, kernels, |t, put| source.row(x, t, own, put));
        for run in w.runs(groups, pair.longest_run()) {
            let next = pair.first(run.end);
            pair.rows(kernels, vector, run, next, &view, tokens, None, own, |i, g, y| {
                // SAFETY: each group of each token is computed by one thread.
                unsafe { rows.part(i * inner + g * ROWS, y.len()) }.copy_from_slice(y);
            });
        }
        linear::prefetch(w, kernels, [&m.down]);
        w.barrier();
        // SAFETY: written before the barrier.
        let x = unsafe { rows.read(0, n * inner) };
        let view = inner_input.write(w, kernels, |t, put| put(&x[t * inner..(t + 1) * inner]));
        multiply(w, kernels, [&m.down], &view, tokens, own, |_, g, t, y| out.put(g, t, y));
    });
}

/// The gate and the up projection of a block, or of one expert: their groups are read in turn.
pub(super) struct GateUp<'a> {
    gate: Option<&'a Packed>,
    up: &'a Packed,
    /// Index of the first group of both.
    base: usize,
    biases: [Option<&'a [f32]>; 2],
    act: Act,
}

impl<'a> GateUp<'a> {
    /// Those of expert `expert`, which is packed at `slot`; or of a dense block, which is its own expert 0.
    pub fn new(m: &'a Glu<Weight>, expert: u32, slot: u32) -> Self {
        let (layout, expert) = (m.up.packed.layout(), expert as usize);
        let bias = |w: &'a Weight| w.bias.as_deref().map(|b| &b[expert * layout.rows()..]);
        Self {
            gate: m.gate.as_ref().map(|w| &w.packed),
            up: &m.up.packed,
            base: slot as usize * layout.groups(),
            biases: [m.gate.as_ref().and_then(bias), bias(&m.up)],
            act: m.act,
        }
    }

    /// The projections.
    pub fn parts(&self) -> impl Iterator<Item = &'a Packed> + use<'a> {
        self.gate.into_iter().chain([self.up])
    }

    /// Rows of the result.
    pub fn width(&self) -> usize {
        self.up.layout().rows()
    }

    /// Groups of rows of each of the two.
    pub fn groups(&self) -> usize {
        self.up.layout().groups()
    }

    /// Groups of a run that a thread takes at a time.
    pub fn longest_run(&self) -> usize {
        longest_run(self.up)
    }

    /// The weights that a run beginning with `group` reads first, if there is such a group.
    pub fn first(&self, group: usize) -> Option<(&'a Packed, usize)> {
        (group < self.groups()).then_some((self.gate.unwrap_or(self.up), self.base + group))
    }

    /// `act(gate . x) * (up . x)` of some groups of rows, for all `tokens` of `acts`: `put(i, group, y)` receives those
    /// of token `tokens[i]`. Both products are multiplied by `weights[i]`, if given. `next` are the weights that this thread reads afterwards.
    pub fn rows(
        &self,
        kernels: &Kernels,
        vector: &VectorKernels,
        groups: Range<usize>,
        next: Option<(&Packed, usize)>,
        acts: &ActView,
        tokens: &[u32],
        weights: Option<&[f32]>,
        own: &mut [f32],
        mut put: impl FnMut(usize, usize, &[f32]),
    ) {
        let (gate_tiles, up_tiles) = own.split_at_mut(TOKEN_BLOCK * ROWS);
        let all = self.width();
        for (block, tokens) in tokens.chunks(TOKEN_BLOCK).enumerate() {
            let len = tokens.len() * ROWS;
            let weights = weights.map(|w| &w[block * TOKEN_BLOCK..]);
            // As many of the gate's groups as fit, then the same of the up projection: longer streams are faster.
            for run in chunks_of(groups.clone(), TOKEN_BLOCK / tokens.len()) {
                let then = if run.end < groups.end { self.first(run.end) } else { next };
                let up = Some((self.up, self.base + run.start));
                if let Some(gate) = self.gate {
                    self.multiply(gate, kernels, run.clone(), up, acts, tokens, gate_tiles);
                }
                self.multiply(self.up, kernels, run.clone(), then, acts, tokens, up_tiles);
                let tiles = gate_tiles.chunks_exact_mut(len).zip(up_tiles.chunks_exact_mut(len));
                for (g, (gate, up)) in run.zip(tiles) {
                    let y = self.activate(vector, g, gate, up, weights);
                    for (i, y) in y.chunks_exact(ROWS).enumerate() {
                        put(block * TOKEN_BLOCK + i, g, &y[..ROWS.min(all - g * ROWS)]);
                    }
                }
            }
        }
    }

    /// Biases, weights and activation of the products of one group; returns the result.
    fn activate<'t>(
        &self,
        vector: &VectorKernels,
        group: usize,
        gate: &'t mut [f32],
        up: &'t mut [f32],
        weights: Option<&[f32]>,
    ) -> &'t [f32] {
        let weigh = |tile: &mut [f32]| {
            let Some(weights) = weights else { return };
            for (y, w) in tile.chunks_exact_mut(ROWS).zip(weights) {
                y.iter_mut().for_each(|y| *y *= w);
            }
        };
        add_bias(self.biases[1], group, up);
        weigh(up);
        if self.gate.is_none() {
            vector.act(self.act, up);
            return up;
        }
        add_bias(self.biases[0], group, gate);
        weigh(gate);
        match self.act {
            Act::Silu => vector.silu_mul(gate, up),
            act => vector.act_mul(act, gate, up),
        }
        gate
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

/// `row = row times y`, where `y` has at least as many values as are needed.
pub(super) fn multiply_row(vector: &VectorKernels, times: Times, row: &mut [f32], y: &[f32]) {
    let len = row.len();
    match times {
        Times::Itself => row.iter_mut().zip(&y[..len]).for_each(|(x, y)| *x *= y),
        Times::Gated(Gate::Sigmoid) => vector.sigmoid_mul(row, &y[..len]),
        Times::Gated(Gate::Softplus) => vector.softplus_mul(row, &y[..len]),
        Times::GatedByOne(gate) => {
            let factor = match gate {
                Gate::Sigmoid => 1.0 / (1.0 + (-y[0]).exp()),
                Gate::Softplus => y[0].max(0.0) + (-y[0].abs()).exp().ln_1p(),
            };
            row.iter_mut().for_each(|x| *x *= factor);
        }
        Times::Activated(act) => vector.act_mul(act, row, &y[..len]),
        Times::ActivatedAbove { deviations, act } => {
            let mean = sum(&*row, |x| x) / len as f32;
            let variance = sum(&*row, |x| (x - mean) * (x - mean)) / len as f32;
            let bound = mean + deviations * variance.sqrt();
            row.iter_mut().for_each(|x| *x = (*x - bound).max(0.0));
            vector.act_mul(act, row, &y[..len]);
        }
        Times::Levelled => {
            let square = |v: &[f32]| vector.dot(v, v) / len as f32;
            let factor = square(&y[..len]).sqrt() / square(&*row).max(LEVEL_MIN).sqrt();
            row.iter_mut().for_each(|x| *x *= factor);
        }
    }
}

/// The sum of `f(x)`, in lanes: one sum in order would wait for each addition.
fn sum(x: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0.0; 16];
    for part in x.chunks(lanes.len()) {
        lanes.iter_mut().zip(part).for_each(|(lane, x)| *lane += f(*x));
    }
    lanes.iter().sum()
}

/// `range` in parts of `len`.
fn chunks_of(range: Range<usize>, len: usize) -> impl Iterator<Item = Range<usize>> {
    range.clone().step_by(len).map(move |from| from..(from + len).min(range.end))
}
