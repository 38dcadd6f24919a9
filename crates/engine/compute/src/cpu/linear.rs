//! Projections: rows of activations times packed weights, shared out by groups of rows. Called by most verbs.

use std::ops::Range;

use super::acts::{ActRows, ActView, Form};
use super::backend::Weight;
use super::kernels::Kernels;
use super::pack::{Packed, ROWS};
use super::team::{Shards, Worker};
use super::vector::VectorKernels;

/// Tokens that a chunk of weights meets before it is read again: their activations stay in the second-level cache.
pub(super) const TOKEN_BLOCK: usize = 128;
/// Weights that a thread takes at a time: long enough to stream, short enough to even out.
const CHUNK_BYTES: usize = 64 << 10;

/// The form of the activations that all of `weights` together read.
pub(super) fn form<'a>(weights: impl IntoIterator<Item = &'a Packed>) -> Form {
    let none = Form { ints: false, floats: false };
    weights.into_iter().fold(none, |f, w| f.and(w.layout().kind().acts()))
}

/// Writes the RMS norm of each of `n` rows of `x` as activations; ends without a barrier. `row` is this thread's.
pub(super) fn norm_rows(
    w: &Worker,
    kernels: &Kernels,
    vector: &VectorKernels,
    n: usize,
    x: &[f32],
    norm: &[f32],
    eps: f32,
    acts: &ActRows,
    form: Form,
    row: &mut [f32],
) {
    let row = &mut row[..norm.len()];
    for t in w.items(n) {
        vector.rms_norm(&x[t * norm.len()..(t + 1) * norm.len()], norm, eps, row);
        // SAFETY: each token's row is written by one thread, and read only after a barrier.
        unsafe { acts.write(kernels, t, row, form) };
    }
}

/// Writes each of `n` rows of `x` as activations; ends without a barrier.
pub(super) fn plain_rows(w: &Worker, kernels: &Kernels, n: usize, x: &[f32], acts: &ActRows, form: Form) {
    let cols = acts.cols();
    for t in w.items(n) {
        // SAFETY: as above.
        unsafe { acts.write(kernels, t, &x[t * cols..(t + 1) * cols], form) };
    }
}

/// Groups that a thread takes at a time, for a matrix of `groups` groups of `bytes` bytes.
pub(super) fn groups_per_chunk(groups: usize, bytes: usize, threads: usize) -> usize {
    (CHUNK_BYTES / bytes.max(1)).clamp(1, groups.div_ceil(4 * threads).max(1))
}

/// Multiplies `weights` (each with its own output) with all `tokens`: `put(i, group, tokens, tile)` receives the results
/// of rows `ROWS * group..` of weight `i` for some tokens as `[tokens][ROWS]`. Work is shared out among the team.
pub(super) fn multiply<const N: usize>(
    w: &Worker,
    kernels: &Kernels,
    weights: [&Weight; N],
    acts: &ActView,
    tokens: &[u32],
    tile: &mut [f32],
    put: impl Fn(usize, usize, &[u32], &[f32]),
) {
    let per_chunk = weights.map(|m| {
        let l = m.packed.layout();
        groups_per_chunk(l.groups(), l.group_bytes(), w.threads())
    });
    let chunks: [usize; N] =
        std::array::from_fn(|i| weights[i].packed.layout().groups().div_ceil(per_chunk[i]));
    for item in w.items(chunks.iter().sum()) {
        let (mut i, mut chunk) = (0, item);
        while chunk >= chunks[i] {
            chunk -= chunks[i];
            i += 1;
        }
        let groups =
            chunk * per_chunk[i]..((chunk + 1) * per_chunk[i]).min(weights[i].packed.layout().groups());
        multiply_groups(kernels, &weights[i].packed, groups, acts, tokens, tile, |g, tokens, tile| {
            put(i, g, tokens, &*tile);
        });
    }
}

/// Multiplies some groups of `packed` with all `tokens`, on this thread.
pub(super) fn multiply_groups(
    kernels: &Kernels,
    packed: &Packed,
    groups: Range<usize>,
    acts: &ActView,
    tokens: &[u32],
    tile: &mut [f32],
    mut put: impl FnMut(usize, &[u32], &mut [f32]),
) {
    for tokens in tokens.chunks(TOKEN_BLOCK) {
        let tile = &mut tile[..tokens.len() * ROWS];
        for g in groups.clone() {
            kernels.group(packed, g, acts, tokens, tile);
            put(g, tokens, tile);
        }
    }
}

/// Adds the bias of `weight`, where it has one, to the results of its rows `ROWS * group..`, `[tokens][ROWS]`.
pub(super) fn add_bias(weight: &Weight, group: usize, tile: &mut [f32]) {
    let Some(bias) = &weight.bias else { return };
    for y in tile.chunks_exact_mut(ROWS) {
        y.iter_mut().zip(&bias[group * ROWS..]).for_each(|(y, b)| *y += b);
    }
}

/// Where the results of one weight go: rows `[tokens, rows]`.
pub(super) struct Output<'a> {
    rows: usize,
    bias: Option<&'a [f32]>,
    out: Shards<'a, f32>,
}

impl<'a> Output<'a> {
    pub fn new(weight: &'a Weight, out: &'a mut [f32]) -> Self {
        Self { rows: weight.packed.layout().rows(), bias: weight.bias.as_deref(), out: Shards::new(out) }
    }

    /// Everything, for reading.
    ///
    /// # Safety
    /// Between two barriers no thread may write to it.
    pub unsafe fn read(&self) -> &'a [f32] {
        // SAFETY: the caller's.
        unsafe { self.out.read(0, self.out.len()) }
    }

    /// The row of token `t`.
    ///
    /// # Safety
    /// Between two barriers no other thread may use it.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn row(&self, t: usize) -> &'a mut [f32] {
        // SAFETY: the caller's.
        unsafe { self.out.part(t * self.rows, self.rows) }
    }

    /// Visits the part of each token's row that a tile holds: `(row of out, results)`.
    fn each(&self, group: usize, tokens: &[u32], tile: &[f32], f: impl Fn(&mut [f32], &[f32])) {
        let (from, len) = (group * ROWS, ROWS.min(self.rows - group * ROWS));
        for (&t, y) in tokens.iter().zip(tile.chunks_exact(ROWS)) {
            // SAFETY: each group of each token is computed by one thread.
            f(unsafe { self.out.part(t as usize * self.rows + from, len) }, &y[..len]);
        }
    }

    /// `out[t] = y + bias`
    pub fn set(&self, group: usize, tokens: &[u32], tile: &[f32]) {
        self.each(group, tokens, tile, |out, y| out.copy_from_slice(y));
        if let Some(bias) = self.bias {
            self.each(group, tokens, tile, |out, _| {
                out.iter_mut().zip(&bias[group * ROWS..]).for_each(|(o, b)| *o += b);
            });
        }
    }

    /// `out[t] += y + bias`
    pub fn add(&self, group: usize, tokens: &[u32], tile: &[f32]) {
        self.each(group, tokens, tile, |out, y| out.iter_mut().zip(y).for_each(|(o, y)| *o += y));
        if let Some(bias) = self.bias {
            self.each(group, tokens, tile, |out, _| {
                out.iter_mut().zip(&bias[group * ROWS..]).for_each(|(o, b)| *o += b);
            });
        }
    }
}
