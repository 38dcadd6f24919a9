//! Projections: rows of activations times packed weights, split by groups of rows.

use std::ops::Range;

use super::activations::{ActBlock, ActRows, ActView, Activations};
use super::device::Cpu;
use super::kernels::Kernels;
use super::kind::{Form, ROWS};
use super::memory::Weight;
use super::pack::Packed;
use super::scratch::{PRIVATE_TOKENS, Scratch, TOKEN_BLOCK};
use super::team::{Shards, Team, Worker};
use super::vector::VectorKernels;
use crate::backend::{Norm, Out};

/// Bytes of weights that a thread takes at a time: long enough to stream, short enough to balance the load.
const CHUNK_BYTES: usize = 64 << 10;

/// The forms of the activations that `weights` read.
pub(super) fn form<'a>(weights: impl IntoIterator<Item = &'a Packed>) -> Form {
    let none = Form { ints: false, floats: false };
    weights.into_iter().fold(none, |f, w| f.and(w.layout().kind().form()))
}

/// Rows of activations that a region writes first, and then reads.
pub(super) struct Input<'a> {
    /// All rows; those of thread 0, of thread 1, ... where each thread has its own.
    rows: ActRows<'a>,
    count: usize,
    private: bool,
    form: Form,
}

impl<'a> Input<'a> {
    /// Room for `count` rows of `cols` values, as `form`, in a step of `tokens` tokens by `threads` threads.
    pub fn new(
        acts: &'a mut Activations,
        tokens: usize,
        count: usize,
        cols: usize,
        threads: usize,
        form: Form,
    ) -> Self {
        let private = tokens <= PRIVATE_TOKENS;
        Self { rows: acts.rows(if private { threads * count } else { count }, cols), count, private, form }
    }

    /// Whether each thread writes all rows for itself.
    pub fn is_private(&self) -> bool {
        self.private
    }

    /// The rows that this thread reads, in a region after the one that wrote them.
    pub fn view(&self, w: &Worker) -> ActView<'a> {
        // SAFETY: the region has ended, and no thread writes in this one.
        unsafe { self.of(w).view() }
    }

    /// The rows that this thread writes and reads.
    fn of(&self, w: &Worker) -> ActRows<'a> {
        if self.private { self.rows.part(w.id * self.count, self.count) } else { self.rows }
    }

    /// Quantises all rows: `row(t, put)` gives row `t` to `put`. In its phase the region hands out no other items, and
    /// what `row` reads no thread writes before the next barrier.
    pub fn write(
        &self,
        w: &Worker,
        kernels: &Kernels,
        row: impl FnMut(usize, &dyn Fn(&[f32])),
    ) -> ActView<'a> {
        let none = Self { rows: self.rows.part(0, 0), count: 0, ..*self };
        self.write_with(&none, w, kernels, row).0
    }

    /// The same with the rows of `other`, whose numbers follow.
    pub fn write_with(
        &self,
        other: &Self,
        w: &Worker,
        kernels: &Kernels,
        mut row: impl FnMut(usize, &dyn Fn(&[f32])),
    ) -> (ActView<'a>, ActView<'a>) {
        let (rows, others) = (self.of(w), other.of(w));
        let quantise = |x: &[f32], out: &mut [ActBlock]| kernels.quantise(x, out);
        // SAFETY: each row is one thread's: its own copy, or an item that others read after the barrier.
        let mut write = |i: usize| unsafe {
            match i.checked_sub(self.count) {
                None => row(i, &|x| rows.write(quantise, i, x, self.form)),
                Some(k) => row(i, &|x| others.write(quantise, k, x, other.form)),
            }
        };
        let count = self.count + other.count;
        if self.private {
            (0..count).for_each(write);
        } else {
            w.items(count).for_each(&mut write);
            w.barrier();
        }
        // SAFETY: written above, by this thread or before the barrier.
        unsafe { (rows.view(), others.view()) }
    }
}

/// Rows of an input, normalised if there is a norm, for [`Input::write`].
pub(super) struct Source<'a> {
    pub vector: &'a VectorKernels,
    pub norm: Option<&'a Norm<Cpu>>,
    pub cols: usize,
}

impl Source<'_> {
    /// Gives row `t` of `x` to `put`, through `room` if it is normalised.
    pub fn row(&self, x: &[f32], t: usize, room: &mut [f32], put: &dyn Fn(&[f32])) {
        let row = &x[t * self.cols..(t + 1) * self.cols];
        let Some(norm) = self.norm else { return put(row) };
        let room = &mut room[..self.cols];
        norm_row(self.vector, norm, row, room);
        put(room);
    }
}

/// `out = norm(x)`
pub(super) fn norm_row(vector: &VectorKernels, norm: &Norm<Cpu>, x: &[f32], out: &mut [f32]) {
    if norm.centred {
        vector.layer_norm(x, &norm.weight, norm.bias.as_deref(), norm.eps, out);
        return;
    }
    vector.rms_norm(x, &norm.weight, norm.eps, out);
    if let Some(bias) = &norm.bias {
        vector.add(out, bias);
    }
}

/// Groups that a thread takes at a time, for a matrix of `groups` groups of `bytes` bytes.
pub(super) fn groups_per_chunk(groups: usize, bytes: usize, threads: usize) -> usize {
    (CHUNK_BYTES / bytes.max(1)).clamp(1, groups.div_ceil(4 * threads).max(1))
}

/// Bytes of one matrix that a thread reads in one stream before it goes on in another one. Each new stream costs time, and bytes that the
/// processor's own prefetcher reads past its end: docs/performance-notes.md has figures.
const RUN_BYTES: usize = 128 << 10;

/// Groups of `weights` that make such a stream.
pub(super) fn longest_run(weights: &Packed) -> usize {
    (RUN_BYTES / weights.layout().group_bytes().max(1)).max(1)
}

/// Splits the groups of some matrices into items for the team.
struct Chunks<'a, const N: usize> {
    weights: [&'a Packed; N],
    /// Groups of an item, and items, of each matrix.
    groups: [usize; N],
    items: [usize; N],
}

impl<'a, const N: usize> Chunks<'a, N> {
    fn new(weights: [&'a Weight; N], threads: usize) -> Self {
        let weights = weights.map(|w| &w.packed);
        let groups =
            weights.map(|w| groups_per_chunk(w.layout().groups(), w.layout().group_bytes(), threads));
        let items = std::array::from_fn(|i| weights[i].layout().groups().div_ceil(groups[i]));
        Self { weights, groups, items }
    }
    fn len(&self) -> usize {
        self.items.iter().sum()
    }
    /// The matrix of an item, and its groups there.
    fn item(&self, item: usize) -> (usize, Range<usize>) {
        let (mut i, mut chunk) = (0, item);
        while chunk >= self.items[i] {
            chunk -= self.items[i];
            i += 1;
        }
        let all = self.weights[i].layout().groups();
        (i, chunk * self.groups[i]..((chunk + 1) * self.groups[i]).min(all))
    }
    /// The first group of an item, if there is one.
    fn first(&self, item: usize) -> Option<(&'a Packed, usize)> {
        (item < self.len()).then(|| {
            let (i, groups) = self.item(item);
            (self.weights[i], groups.start)
        })
    }
}

/// Prefetches the first bytes that this thread will read in [`multiply`], while other work is done.
pub(super) fn prefetch<const N: usize>(w: &Worker, kernels: &Kernels, weights: [&Weight; N]) {
    let chunks = Chunks::new(weights, w.threads());
    kernels.prefetch(chunks.first(w.first_item(chunks.len())));
}

/// Multiplies `weights` (each with its own output) with all `tokens`: `put(i, group, tokens, tile)` receives the results
/// of rows `ROWS * group..` of weight `i` for some tokens as `[tokens][ROWS]`. The team divides the work.
pub(super) fn multiply<const N: usize>(
    w: &Worker,
    kernels: &Kernels,
    weights: [&Weight; N],
    acts: &ActView,
    tokens: &[u32],
    tile: &mut [f32],
    put: impl Fn(usize, usize, &[u32], &[f32]),
) {
    let chunks = Chunks::new(weights, w.threads());
    for item in w.items(chunks.len()) {
        let (i, groups) = chunks.item(item);
        let next = chunks.first(item + 1);
        multiply_groups(kernels, chunks.weights[i], groups, next, acts, tokens, tile, |g, tokens, tile| {
            put(i, g, tokens, &*tile);
        });
    }
}

/// Multiplies some groups of `packed` with all `tokens`, on this thread, which then goes on with the group `next`.
pub(super) fn multiply_groups(
    kernels: &Kernels,
    packed: &Packed,
    groups: Range<usize>,
    next: Option<(&Packed, usize)>,
    acts: &ActView,
    tokens: &[u32],
    tile: &mut [f32],
    mut put: impl FnMut(usize, &[u32], &mut [f32]),
) {
    for tokens in tokens.chunks(TOKEN_BLOCK) {
        let tile = &mut tile[..tokens.len() * ROWS];
        for g in groups.clone() {
            let next = if g + 1 < groups.end { None } else { next };
            kernels.group(packed, g, next, acts, tokens, tile);
            put(g, tokens, tile);
        }
    }
}

/// Adds a bias, if there is one, to the results of the rows `ROWS * group..`, `[tokens][ROWS]`.
pub(super) fn add_bias(bias: Option<&[f32]>, group: usize, tile: &mut [f32]) {
    let Some(bias) = bias else { return };
    for y in tile.chunks_exact_mut(ROWS) {
        y.iter_mut().zip(&bias[group * ROWS..]).for_each(|(y, b)| *y += b);
    }
}

/// The output of one weight: rows `[tokens, rows]`.
pub(super) struct Output<'a> {
    rows: usize,
    bias: Option<&'a [f32]>,
    out: Shards<'a, f32>,
    /// The results are added, times this.
    add: Option<f32>,
}

impl<'a> Output<'a> {
    /// `out = y + bias`
    pub fn new(weight: &'a Weight, out: &'a mut [f32]) -> Self {
        Self {
            rows: weight.packed.layout().rows(),
            bias: weight.bias.as_deref(),
            out: Shards::new(out),
            add: None,
        }
    }

    /// As `out` says.
    pub fn to(weight: &'a Weight, out: Out<'a, Cpu>) -> Self {
        match out {
            Out::Write(out) => Self::new(weight, out),
            Out::Add(out, scale) => Self { add: Some(scale), ..Self::new(weight, out) },
        }
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
    pub fn each(&self, group: usize, tokens: &[u32], tile: &[f32], f: impl Fn(&mut [f32], &[f32])) {
        let (from, len) = (group * ROWS, ROWS.min(self.rows - group * ROWS));
        for (&t, y) in tokens.iter().zip(tile.chunks_exact(ROWS)) {
            // SAFETY: each group of each token is computed by one thread.
            f(unsafe { self.out.part(t as usize * self.rows + from, len) }, &y[..len]);
        }
    }

    /// Writes or adds the results of a group.
    pub fn put(&self, group: usize, tokens: &[u32], tile: &[f32]) {
        let scale = self.add.unwrap_or(1.0);
        match self.add {
            None => self.each(group, tokens, tile, |out, y| out.copy_from_slice(y)),
            Some(1.0) => {
                self.each(group, tokens, tile, |out, y| out.iter_mut().zip(y).for_each(|(o, y)| *o += y));
            }
            Some(s) => {
                self.each(group, tokens, tile, |out, y| out.iter_mut().zip(y).for_each(|(o, y)| *o += s * y));
            }
        }
        if let Some(bias) = self.bias {
            self.each(group, tokens, tile, |out, _| {
                out.iter_mut().zip(&bias[group * ROWS..]).for_each(|(o, b)| *o += scale * b);
            });
        }
    }
}

/// A projection of each head: see [`crate::Backend::per_head`].
pub(super) fn per_head(
    team: &mut Team,
    kernels: &Kernels,
    s: &mut Scratch,
    n: usize,
    x: &[f32],
    w: &Weight,
    rest: usize,
    out: &mut [f32],
) {
    let layout = w.packed.layout();
    let (rows, cols, groups) = (layout.rows(), layout.cols(), layout.groups());
    let heads = w.packed.count();
    let input = Input::new(&mut s.head_acts, n, n * heads, cols, team.threads(), form([&w.packed]));
    let (threads, per_thread) = (Shards::new(&mut s.threads), s.per_thread);
    let (tokens, out) = (&s.tokens[..n], Shards::new(out));
    let (from, to) = (cols + rest, rows + rest);
    team.run(|worker| {
        // SAFETY: each thread has a part of its own.
        let own = unsafe { threads.part(worker.id * per_thread, per_thread) };
        let view = input.write(worker, kernels, |i, put| put(&x[i * from..][..cols]));
        let copies = if rest > 0 { n * heads } else { 0 };
        for item in worker.items(heads * groups + copies) {
            if let Some(i) = item.checked_sub(heads * groups) {
                // SAFETY: each row is one thread's.
                unsafe { out.part(i * to + rows, rest) }.copy_from_slice(&x[i * from + cols..][..rest]);
                continue;
            }
            let (head, group) = (item / groups, item % groups);
            let (at, len) = (group * ROWS, ROWS.min(rows - group * ROWS));
            // The rows of this head's inputs lie `heads` apart.
            for tokens in tokens.chunks(TOKEN_BLOCK) {
                let mut ids = [0; TOKEN_BLOCK];
                let ids = &mut ids[..tokens.len()];
                ids.iter_mut().zip(tokens).for_each(|(id, t)| *id = *t * heads as u32 + head as u32);
                let tile = &mut own[..tokens.len() * ROWS];
                kernels.group(&w.packed, item, None, &view, ids, tile);
                for (id, y) in ids.iter().zip(tile.chunks_exact(ROWS)) {
                    // SAFETY: each group of each head is one thread's.
                    unsafe { out.part(*id as usize * to + at, len) }.copy_from_slice(&y[..len]);
                }
            }
        }
    });
}
