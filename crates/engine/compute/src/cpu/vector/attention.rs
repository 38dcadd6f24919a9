//! Softmax attention over a paged cache.
//!
//! A query's result has the same bits whether it is computed alone (decode), in a tile with others (prefill), or with its
//! context split among threads: positions are processed in chunks of [`CHUNK`], counted from the start of the sequence.
//! A chunk gives a partial result (the softmax's maximum and sum, and the values weighted by it), made page by page;
//! the partial results are merged in ascending order. Each dot product and each sum over positions has one fixed order
//! of operations, whatever else the tile contains, and positions after a query's own are never read.

use std::ops::Range;

use super::kv_rows::{KvData, ROWS, load_rows};
use super::math::{exp, exp1, sigmoid};
use super::rows::scale_and_cap;
use super::simd::{MAX_LANES, Simd, aligned, padded};
use crate::backend::Window;
use crate::batch::PAGE_TOKENS;

/// Positions of a chunk.
pub const CHUNK: usize = 8 * PAGE_TOKENS;
/// One layer's cache of one sequence.
#[derive(Clone, Copy)]
pub struct KvPages<'a> {
    /// Keys.
    pub keys: KvData<'a>,
    /// Values.
    pub values: KvData<'a>,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Dimensions of a key.
    pub k_dim: usize,
    /// Dimensions of a value: the first ones of its row.
    pub v_dim: usize,
    /// Dimensions of a row of `values`: `v_dim`, or `k_dim` where the values are in the keys.
    pub v_row: usize,
    /// Page numbers of the sequence.
    pub table: &'a [u32],
}

/// Queries that share a key/value head: all heads of its group for some consecutive tokens of one span.
#[derive(Clone, Copy)]
pub struct QueryTile<'a> {
    /// `[tokens, heads, k_dim]`, or `[tokens, heads, 2, k_dim]` when gated, from the tile's first token on.
    pub q: &'a [f32],
    /// Query heads of the layer.
    pub heads: usize,
    /// Each head's query is followed by its gate.
    pub gated: bool,
    /// Tokens of the tile.
    pub tokens: usize,
    /// Position of the first one; all positions up to the last token's are in the cache.
    pub position: usize,
    /// The key/value head.
    pub kv_head: usize,
    /// The positions that a query attends to.
    pub window: Window,
    /// The block `[first, end]` of each token, which it sees, too; `None`: no token is in one.
    pub blocks: Option<&'a [[u32; 2]]>,
    /// Factor of the scores.
    pub scale: f32,
    /// Scores become `cap * tanh(score / cap)`.
    pub softcap: Option<f32>,
    /// Scores without a value, of all query heads.
    pub sinks: Option<&'a [f32]>,
}

/// Number of chunks that a query at `position` attends to.
pub fn chunks(position: usize) -> usize {
    position / CHUNK + 1
}

/// Values of a query's partial result: the weighted values, padded, then the maximum and the sum.
pub fn partial_len(head_dim: usize) -> usize {
    padded(head_dim) + MAX_LANES
}

/// Values of scratch memory for a tile of `queries` queries (tokens times heads of the group).
pub fn attend_scratch_len(queries: usize, k_dim: usize, v_dim: usize) -> usize {
    let rows = queries * padded(k_dim) + ROWS * padded(k_dim.max(v_dim));
    let partials = 2 * queries * partial_len(v_dim);
    MAX_LANES + rows + queries * (PAGE_TOKENS + 1) + partials
}

/// A tile for the inner functions.
#[derive(Clone, Copy)]
struct Shape<'a> {
    k_dim: usize,
    v_dim: usize,
    /// The same, padded.
    k_dims: usize,
    v_dims: usize,
    /// Query heads of the group.
    group: usize,
    tokens: usize,
    position: usize,
    kv_head: usize,
    window: Window,
    blocks: Option<&'a [[u32; 2]]>,
}

impl<'a> Shape<'a> {
    fn new(kv: &KvPages, tile: &QueryTile<'a>) -> Self {
        assert!(tile.tokens > 0 && tile.kv_head < kv.kv_heads && tile.heads.is_multiple_of(kv.kv_heads));
        Self {
            k_dim: kv.k_dim,
            v_dim: kv.v_dim,
            k_dims: padded(kv.k_dim),
            v_dims: padded(kv.v_dim),
            group: tile.heads / kv.kv_heads,
            tokens: tile.tokens,
            position: tile.position,
            kv_head: tile.kv_head,
            window: tile.window,
            blocks: tile.blocks,
        }
    }
    fn queries(self) -> usize {
        self.tokens * self.group
    }
    /// The first position that token `i` sees.
    fn first(self, i: usize) -> usize {
        self.seen(i).start
    }
    /// The end of the positions that token `i` sees.
    fn end(self, i: usize) -> usize {
        self.seen(i).end
    }
    fn seen(self, i: usize) -> Range<usize> {
        let position = self.position + i;
        let alone = [position, position + 1];
        self.window.seen(position, self.blocks.map_or(alone, |b| b[i].map(|p| p as usize)))
    }
    /// The first query that attends to `position` or any later one.
    fn first_query(self, position: usize) -> usize {
        let token = match self.blocks {
            None => position.saturating_sub(self.position).min(self.tokens),
            Some(_) => (0..self.tokens).find(|i| self.end(*i) > position).unwrap_or(self.tokens),
        };
        token * self.group
    }
    /// The first query that attends to no position before `end`: those from it on do not either.
    fn last_query(self, end: usize) -> usize {
        match self.window {
            Window::All => self.queries(),
            _ => {
                let is_past = |i: &usize| self.first(*i) >= end;
                (0..self.tokens).find(is_past).unwrap_or(self.tokens) * self.group
            }
        }
    }
    /// Number of positions from `base` on, at most a page, that query `i` may see: none comes after it or its block.
    fn limit(self, i: usize, base: usize) -> usize {
        self.end(i / self.group).saturating_sub(base).min(PAGE_TOKENS)
    }
    /// Number of positions from `base` on, at most a page, that lie before the window of query `i`.
    fn skipped(self, i: usize, base: usize) -> usize {
        self.first(i / self.group).saturating_sub(base).min(PAGE_TOKENS)
    }
}

/// The parts of the scratch memory.
struct Scratch<'a> {
    /// `[queries, k_dims]`, scaled.
    queries: &'a mut [f32],
    /// `[ROWS, k_dims or v_dims]`: keys or values in f32.
    rows: &'a mut [f32],
    /// `[queries, PAGE_TOKENS]`: scores, then their exponentials.
    scores: &'a mut [f32],
    /// `[queries]`: the factors of the weighted values so far.
    scales: &'a mut [f32],
    /// Two partial results of each query.
    partials: &'a mut [f32],
}

impl<'a> Scratch<'a> {
    fn cut(scratch: &'a mut [f32], t: Shape) -> Self {
        let n = t.queries();
        assert!(scratch.len() >= attend_scratch_len(n, t.k_dim, t.v_dim));
        let (queries, rest) = aligned(scratch).split_at_mut(n * t.k_dims);
        let (rows, rest) = rest.split_at_mut(ROWS * t.k_dims.max(t.v_dims));
        let (scores, rest) = rest.split_at_mut(n * PAGE_TOKENS);
        let (partials, rest) = rest.split_at_mut(2 * n * partial_len(t.v_dim));
        Self { queries, rows, scores, scales: &mut rest[..n], partials }
    }
}

/// Partial results of a tile over one chunk: `partials` is `[tokens, group, partial_len]`. Rows of tokens that lie before
/// the chunk are invalid and must not be merged.
#[inline(always)]
pub(super) fn attend_chunk<S: Simd>(
    s: S,
    kv: &KvPages<'_>,
    tile: &QueryTile<'_>,
    chunk: usize,
    scratch: &mut [f32],
    partials: &mut [f32],
) {
    let t = Shape::new(kv, tile);
    let mut scratch = Scratch::cut(scratch, t);
    pack_queries(s, tile, t, scratch.queries);
    chunk_partials(s, kv, t, tile.softcap, chunk, &mut scratch, partials);
}

/// Merges the partial results of one query: that of chunk `c` starts at `partials[c * chunk_stride]`.
/// `out` is `[v_dim]`, multiplied by `sigmoid(gate)` if there is one. `scratch` holds a partial result.
#[inline(always)]
pub(super) fn attend_merge<S: Simd>(
    s: S,
    partials: &[f32],
    chunk_stride: usize,
    chunks: usize,
    gate: Option<&[f32]>,
    sink: Option<f32>,
    scratch: &mut [f32],
    out: &mut [f32],
) {
    let len = partial_len(out.len());
    let sum = &mut scratch[..len];
    sum.copy_from_slice(&partials[..len]);
    for c in 1..chunks {
        fold(s, sum, &partials[c * chunk_stride..][..len]);
    }
    finish(s, sum, gate, sink, out);
}

/// Attention of a tile over its whole context. Head `h` of the tile's token `i` is written to
/// `out + i * heads * v_dim + h * v_dim`.
///
/// # Safety
/// The tile's heads in `out`, `[tokens, heads, v_dim]`, can be written, and no other thread uses them.
#[inline(always)]
pub(super) unsafe fn attend_tile<S: Simd>(
    s: S,
    kv: &KvPages<'_>,
    tile: &QueryTile<'_>,
    scratch: &mut [f32],
    out: *mut f32,
) {
    let t = Shape::new(kv, tile);
    let len = partial_len(t.v_dim);
    let mut scratch = Scratch::cut(scratch, t);
    pack_queries(s, tile, t, scratch.queries);
    let partials = std::mem::take(&mut scratch.partials);
    let (sums, next) = partials.split_at_mut(t.queries() * len);
    let begin = t.first(0) / CHUNK;
    chunk_partials(s, kv, t, tile.softcap, begin, &mut scratch, sums);
    for chunk in begin + 1..chunks(t.end(t.tokens - 1) - 1) {
        chunk_partials(s, kv, t, tile.softcap, chunk, &mut scratch, next);
        let first = t.first_query(chunk * CHUNK);
        for (sum, next) in sums.chunks_exact_mut(len).zip(next.chunks_exact(len)).skip(first) {
            fold(s, sum, next);
        }
    }
    let stride = if tile.gated { 2 * t.k_dim } else { t.k_dim };
    for (i, sum) in sums.chunks_exact(len).enumerate() {
        let head = t.kv_head * t.group + i % t.group;
        let row = i / t.group * tile.heads + head;
        // SAFETY: the caller's.
        let out = unsafe { std::slice::from_raw_parts_mut(out.add(row * t.v_dim), t.v_dim) };
        let gate = tile.gated.then(|| &tile.q[row * stride + t.k_dim..][..t.v_dim]);
        finish(s, sum, gate, tile.sinks.map(|s| s[head]), out);
    }
}

/// Copies the tile's queries, scaled and padded with zeros.
#[inline(always)]
fn pack_queries<S: Simd>(s: S, tile: &QueryTile, t: Shape, queries: &mut [f32]) {
    let stride = if tile.gated { 2 * t.k_dim } else { t.k_dim };
    let scale = s.splat(tile.scale);
    for (i, out) in queries.chunks_exact_mut(t.k_dims).enumerate() {
        let head = i / t.group * tile.heads + t.kv_head * t.group + i % t.group;
        let q = &tile.q[head * stride..][..t.k_dim];
        let (mut q, mut out) = (q.chunks_exact(S::LANES), out.chunks_exact_mut(S::LANES));
        for (q, out) in q.by_ref().zip(out.by_ref()) {
            s.write(out, s.mul(s.read(q), scale));
        }
        let mut rest = s.mul(s.read_part(q.remainder()), scale);
        for out in out {
            s.write(out, rest);
            rest = s.splat(0.0);
        }
    }
}

/// Fills `partials` `[queries, partial_len]` of the packed queries over one chunk.
#[inline(always)]
fn chunk_partials<S: Simd>(
    s: S,
    kv: &KvPages,
    t: Shape,
    softcap: Option<f32>,
    chunk: usize,
    scratch: &mut Scratch,
    partials: &mut [f32],
) {
    let len = partial_len(t.v_dim);
    let partials = &mut partials[..t.queries() * len];
    for p in partials.chunks_exact_mut(len) {
        p.fill(0.0);
        p[t.v_dims] = f32::NEG_INFINITY;
    }
    let end = t.end(t.tokens - 1).min((chunk + 1) * CHUNK);
    let begin = t.first(0) / PAGE_TOKENS * PAGE_TOKENS;
    for base in (begin.max(chunk * CHUNK)..end).step_by(PAGE_TOKENS) {
        let page = kv.table[base / PAGE_TOKENS] as usize * kv.kv_heads + t.kv_head;
        let rows = (end - base).min(PAGE_TOKENS);
        let (first, last) = (t.first_query(base), t.last_query(base + PAGE_TOKENS));

        for at in (0..rows).step_by(ROWS) {
            load_rows(s, kv.keys, page * PAGE_TOKENS + at, [t.k_dim; 2], scratch.rows);
            score(s, t, first..last, at, scratch);
        }
        for i in first..last {
            let row = &mut scratch.scores[i * PAGE_TOKENS..][..PAGE_TOKENS];
            if softcap.is_some() {
                scale_and_cap(s, row, 1.0, softcap);
            }
            row[t.limit(i, base)..].fill(f32::NEG_INFINITY);
            row[..t.skipped(i, base)].fill(f32::NEG_INFINITY);
            scratch.scales[i] = soften(s, row, &mut partials[i * len + t.v_dims..][..2]);
        }
        for at in (0..rows).step_by(ROWS) {
            load_rows(s, kv.values, page * PAGE_TOKENS + at, [t.v_dim, kv.v_row], scratch.rows);
            let mut i = first;
            while i < last {
                // Queries of one token have the same number of positions; those of all tokens do if the page is full.
                let limit = t.limit(i, base);
                let same = if limit == PAGE_TOKENS { last } else { i + t.group - i % t.group };
                if limit > at {
                    weigh(s, t, i..same, at, (limit - at).min(ROWS), scratch, partials);
                }
                i = same;
            }
        }
    }
}

/// Scores of `queries` against the `ROWS` keys in `scratch.rows`, which are positions `at..` of a page.
#[inline(always)]
fn score<S: Simd>(s: S, t: Shape, queries: std::ops::Range<usize>, at: usize, scratch: &mut Scratch) {
    let mut i = queries.start;
    while i < queries.end {
        let left = queries.end - i;
        // SAFETY: queries i .. i + Q exist, as do ROWS rows and PAGE_TOKENS scores of each query.
        i += unsafe {
            if left >= 4 && S::LANES == MAX_LANES {
                score_block::<S, 4>(s, t.k_dims, i, at, scratch)
            } else if left >= 2 {
                score_block::<S, 2>(s, t.k_dims, i, at, scratch)
            } else {
                score_block::<S, 1>(s, t.k_dims, i, at, scratch)
            }
        };
    }
}

/// `Q` queries from `i` on against `ROWS` keys, four keys at a time. Returns `Q`.
///
/// # Safety
/// The scratch memory has these queries, and `at + ROWS <= PAGE_TOKENS`.
#[inline(always)]
unsafe fn score_block<S: Simd, const Q: usize>(
    s: S,
    dims: usize,
    i: usize,
    at: usize,
    scratch: &mut Scratch,
) -> usize {
    // SAFETY: the caller's.
    unsafe {
        let q = scratch.queries.as_ptr().add(i * dims);
        let scores = scratch.scores.as_mut_ptr().add(i * PAGE_TOKENS + at);
        for key in (0..ROWS).step_by(4) {
            let k = scratch.rows.as_ptr().add(key * dims);
            let mut sums = [[s.splat(0.0); 4]; Q];
            for d in (0..dims).step_by(S::LANES) {
                let mut keys = [s.splat(0.0); 4];
                for (b, key) in keys.iter_mut().enumerate() {
                    *key = s.load(k.add(b * dims + d));
                }
                for (a, sums) in sums.iter_mut().enumerate() {
                    let q = s.load(q.add(a * dims + d));
                    for (sum, key) in sums.iter_mut().zip(keys) {
                        *sum = s.fma(q, key, *sum);
                    }
                }
            }
            for (a, sums) in sums.into_iter().enumerate() {
                scores.add(a * PAGE_TOKENS + key).cast::<[f32; 4]>().write_unaligned(s.sum4(sums));
            }
        }
    }
    Q
}

/// Turns a page of scores into exponentials relative to the maximum so far, and updates the maximum and sum in
/// `state`. Returns the factor for the weighted values so far.
#[inline(always)]
fn soften<S: Simd>(s: S, scores: &mut [f32], state: &mut [f32]) -> f32 {
    let mut max = s.splat(f32::NEG_INFINITY);
    for x in scores.chunks_exact(S::LANES) {
        max = s.max(max, s.read(x));
    }
    let before = state[0];
    let max = before.max(s.max_lane(max));
    let mut sum = s.splat(0.0);
    for x in scores.chunks_exact_mut(S::LANES) {
        let p = exp(s, s.sub(s.read(x), s.splat(max)));
        s.write(x, p);
        sum = s.add(sum, p);
    }
    let scale = exp1(s, before - max);
    state[0] = max;
    state[1] = state[1] * scale + s.sum(sum);
    scale
}

/// Adds the first `rows` values in `scratch.rows`, which are positions `at..` of a page, to the partial results of
/// `queries`, weighted by their exponentials.
#[inline(always)]
fn weigh<S: Simd>(
    s: S,
    t: Shape,
    queries: std::ops::Range<usize>,
    at: usize,
    rows: usize,
    scratch: &Scratch,
    partials: &mut [f32],
) {
    let mut i = queries.start;
    while i < queries.end {
        let left = queries.end - i;
        // SAFETY: queries i .. i + Q exist in scratch memory and in partials; rows <= ROWS.
        i += unsafe {
            if left >= 4 {
                weigh_block::<S, 4>(s, t, i, at, rows, scratch, partials)
            } else if left >= 2 {
                weigh_block::<S, 2>(s, t, i, at, rows, scratch, partials)
            } else {
                weigh_block::<S, 1>(s, t, i, at, rows, scratch, partials)
            }
        };
    }
}

/// [`weigh`] for `Q` queries from `i` on. Returns `Q`.
///
/// # Safety
/// The scratch memory and the partial results have these queries, `rows <= ROWS`, and `at + rows <= PAGE_TOKENS`.
#[inline(always)]
unsafe fn weigh_block<S: Simd, const Q: usize>(
    s: S,
    t: Shape,
    i: usize,
    at: usize,
    rows: usize,
    scratch: &Scratch,
    partials: &mut [f32],
) -> usize {
    let len = partial_len(t.v_dim);
    // SAFETY: the caller's.
    unsafe {
        let weights = scratch.scores.as_ptr().add(i * PAGE_TOKENS + at);
        let mut scales = [s.splat(1.0); Q];
        if at == 0 {
            for (a, scale) in scales.iter_mut().enumerate() {
                *scale = s.splat(scratch.scales[i + a]);
            }
        }
        let out = partials.as_mut_ptr().add(i * len);
        let mut d = 0;
        while d < t.v_dims {
            let (values, out) = (scratch.rows.as_ptr().add(d), out.add(d));
            let left = t.v_dims - d;
            d += if left >= 4 * S::LANES && S::LANES == MAX_LANES {
                weigh_dims::<S, Q, 4>(s, t.v_dims, rows, weights, scales, values, out, len)
            } else if left >= 2 * S::LANES {
                weigh_dims::<S, Q, 2>(s, t.v_dims, rows, weights, scales, values, out, len)
            } else {
                weigh_dims::<S, Q, 1>(s, t.v_dims, rows, weights, scales, values, out, len)
            };
        }
    }
    Q
}

/// `out[a] = out[a] * scales[a] + sum_r weights[a][r] * values[r]` for `Q` queries and `D` vectors of dimensions, rows
/// ascending. Returns the number of dimensions.
///
/// # Safety
/// `weights` has `Q` rows `PAGE_TOKENS` apart of `rows` values, `values` has `rows` rows `dims` apart and `out` has `Q` rows
/// `len` apart, of `D` vectors each.
#[inline(always)]
unsafe fn weigh_dims<S: Simd, const Q: usize, const D: usize>(
    s: S,
    dims: usize,
    rows: usize,
    weights: *const f32,
    scales: [S::V; Q],
    values: *const f32,
    out: *mut f32,
    len: usize,
) -> usize {
    // SAFETY: the caller's.
    unsafe {
        let mut sums = [[s.splat(0.0); D]; Q];
        for a in 0..Q {
            for b in 0..D {
                sums[a][b] = s.mul(s.load(out.add(a * len + b * S::LANES)), scales[a]);
            }
        }
        for r in 0..rows {
            let mut v = [s.splat(0.0); D];
            for (b, v) in v.iter_mut().enumerate() {
                *v = s.load(values.add(r * dims + b * S::LANES));
            }
            for (a, sums) in sums.iter_mut().enumerate() {
                let w = s.splat(*weights.add(a * PAGE_TOKENS + r));
                for (sum, v) in sums.iter_mut().zip(v) {
                    *sum = s.fma(w, v, *sum);
                }
            }
        }
        for a in 0..Q {
            for b in 0..D {
                s.store(out.add(a * len + b * S::LANES), sums[a][b]);
            }
        }
    }
    D * S::LANES
}

/// Merges the partial result `next` of a later chunk into `sum`.
#[inline(always)]
fn fold<S: Simd>(s: S, sum: &mut [f32], next: &[f32]) {
    let dims = sum.len() - MAX_LANES;
    let (values, state) = sum.split_at_mut(dims);
    let max = state[0].max(next[dims]);
    let (old, new) = (exp1(s, state[0] - max), exp1(s, next[dims] - max));
    for (x, y) in values.chunks_exact_mut(S::LANES).zip(next.chunks_exact(S::LANES)) {
        let v = s.fma(s.read(y), s.splat(new), s.mul(s.read(x), s.splat(old)));
        s.write(x, v);
    }
    state[0] = max;
    state[1] = state[1] * old + next[dims + 1] * new;
}

/// Divides by the softmax's sum, in which the sink takes part, and applies the gate.
#[inline(always)]
fn finish<S: Simd>(s: S, sum: &[f32], gate: Option<&[f32]>, sink: Option<f32>, out: &mut [f32]) {
    let [max, total] = [0, 1].map(|i| sum[padded(out.len()) + i]);
    let scale = s.splat(match sink {
        None => 1.0 / total,
        Some(sink) => {
            let largest = max.max(sink);
            let factor = exp1(s, max - largest);
            factor / (total * factor + exp1(s, sink - largest))
        }
    });
    let mut gate = gate.map(|g| g.chunks(S::LANES));
    for (out, x) in out.chunks_mut(S::LANES).zip(sum.chunks_exact(S::LANES)) {
        let mut v = s.mul(s.read(x), scale);
        let whole = out.len() == S::LANES;
        if let Some(g) = gate.as_mut().and_then(|g| g.next()) {
            let g = if whole { s.read(g) } else { s.read_part(g) };
            v = s.mul(v, sigmoid(s, g));
        }
        if whole { s.write(out, v) } else { s.write_part(out, v) }
    }
}
