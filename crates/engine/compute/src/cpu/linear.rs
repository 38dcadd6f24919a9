//! Projections: rows of activations times packed weights, split by groups of rows. Called by most verbs.

use std::ops::Range;

use super::activations::{ActBlock, ActRows, ActView, Activations};
use super::kernels::Kernels;
use super::kind::{Form, ROWS};
use super::memory::Weight;
use super::pack::Packed;
use super::team::{Shards, Worker};
use super::vector::VectorKernels;

/// Tokens that a chunk of weights is multiplied with before it is read again: their activations stay in the L2 cache.
pub(super) const TOKEN_BLOCK: usize = 128;
/// Bytes of weights that a thread takes at a time: long enough to stream, short enough to balance the load.
const CHUNK_BYTES: usize = 64 << 10;

/// The forms of the activations that `weights` read.
pub(super) fn form<'a>(weights: impl IntoIterator<Item = &'a Packed>) -> Form {
    let none = Form { ints: false, floats: false };
    weights.into_iter().fold(none, |f, w| f.and(w.layout().kind().form()))
}

/// Up to this many tokens, every thread quantises all of them for itself, which is faster than a barrier.
const PRIVATE_TOKENS: usize = 1;

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

    /// Number of rows that [`Activations`] needs, in steps of up to `tokens` tokens.
    pub fn room(tokens: usize, threads: usize) -> usize {
        tokens.max(PRIVATE_TOKENS * threads)
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

/// A row's RMS norm, through `room`, for [`Input::write`].
pub(super) struct Norm<'a> {
    pub vector: &'a VectorKernels,
    pub weights: &'a [f32],
    pub eps: f32,
}

impl Norm<'_> {
    /// Gives the norm of row `t` of `x` to `put`.
    pub fn row(&self, x: &[f32], t: usize, room: &mut [f32], put: &dyn Fn(&[f32])) {
        let len = self.weights.len();
        let room = &mut room[..len];
        self.vector.rms_norm(&x[t * len..(t + 1) * len], self.weights, self.eps, room);
        put(room);
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
