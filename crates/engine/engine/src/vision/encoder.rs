//! Runs a tower over an image, in pieces: some hundred patches in one part of a block at a time, so that running answers go on between
//! them. Attention is that of any model over a cache of one layer: the keys and values of all patches are written first, then each piece of
//! queries attends to all of them.

use std::ops::Range;
use std::sync::Arc;

use octet_compute::backend::{Backend, Out, Pass, Times, Window};
use octet_compute::batch::{Batch, PAGE_TOKENS};
use octet_compute::inspect::Inspect;

use super::plan::{PIECE_TOKENS, Tower};
use super::resized::Resized;
use super::weights::{Bounds, Output, Weights};
use crate::Error;
use crate::models::decoder::{Op, Project};
use crate::models::derive;

/// A loaded tower. Computes one image at a time.
pub trait Encoder: Send {
    /// The tower.
    fn tower(&self) -> &Tower;
    /// Bytes of its weights.
    fn bytes(&self) -> u64;
    /// Begins with an image, instead of the last one, in pieces of at most `most` patches and [`PIECE_TOKENS`], but whole tokens. Results
    /// are the same for any number.
    ///
    /// # Errors
    /// If there is no memory for it.
    fn start(&mut self, image: Arc<Resized>, most: usize) -> Result<(), Error>;
    /// Computes a piece. The image's embeddings when it is complete: for each token [`Tower::width`] values.
    ///
    /// # Errors
    /// If the device fails.
    fn advance(&mut self) -> Result<Option<Vec<f32>>, Error>;
    /// Whether its device was lost: it computes nothing any more.
    fn is_lost(&self) -> bool;
    /// Number of completed blocks, and the states of all patches `[patches, hidden]`.
    fn hidden(&mut self) -> (usize, Vec<f32>);
    /// Computes a whole image.
    ///
    /// # Errors
    /// As [`Encoder::start`] and [`Encoder::advance`].
    fn encode(&mut self, image: Arc<Resized>) -> Result<Vec<f32>, Error> {
        self.start(image, PIECE_TOKENS)?;
        loop {
            if let Some(embeddings) = self.advance()? {
                return Ok(embeddings);
            }
        }
    }
}

/// Activations of a piece.
struct Scratch<B: Backend> {
    /// Pixels, keys, values, attention's output, a block's result before its norm.
    x: B::Buf,
    k: B::Buf,
    v: B::Buf,
    attended: B::Buf,
    sum: B::Buf,
    /// Tokens, and on the way to them.
    out: B::Buf,
    merged: [B::Buf; 2],
    /// Gates and their factors, where projections are bounded.
    inner: [B::Buf; 2],
}

pub(super) struct Loaded<B: Backend> {
    be: B,
    work: Work<B>,
    bytes: u64,
    job: Option<Job<B>>,
}

/// What computes a tower's pieces.
pub(super) struct Work<B: Backend> {
    pub tower: Tower,
    weights: Weights<B>,
    cache: B::Cache,
    scratch: Scratch<B>,
}

/// An image being computed.
pub(super) struct Job<B: Backend> {
    image: Arc<Resized>,
    pieces: Vec<Piece<B>>,
    stage: Stage,
    /// The next piece of the stage.
    next: usize,
    /// Embeddings so far `[tokens, width]`.
    embeddings: Vec<f32>,
    /// Normed states of patches, where tokens are their means.
    states: Vec<f32>,
}

/// Some patches.
pub(super) struct Piece<B: Backend> {
    batch: Batch,
    /// The same for blocks that attend within windows.
    windows: Option<Batch>,
    len: usize,
    /// The first of its patches. After the last one of a tile comes the tile's further state, if the tower has such.
    patch: usize,
    patches: usize,
    /// States `[len, hidden]`, and queries.
    h: B::Buf,
    q: B::Buf,
}

/// What is done with each piece in turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Embed,
    /// The first part of a block: keys and values of attention.
    Keys(usize),
    /// The rest of a block.
    Block(usize),
    Output,
}

/// Bounded projections are in blocks with a norm before and after, and with a gate.
const BOUNDED: &str = "a bounded block has norms and a gate";

/// `to = w . x` with bounded values of both, of `n` rows, from `from` to `width` values. Changes `x`.
fn bounded<B: Backend>(
    be: &mut B,
    [n, from, width]: [usize; 3],
    x: &mut B::Buf,
    w: &B::Weight,
    bounds: &Bounds,
    to: &mut B::Buf,
) {
    be.clamp(n * from, bounds.input, x);
    be.linear(n, x, w, Out::Write(to));
    be.clamp(n * width, bounds.output, to);
}

impl<B: Backend> Loaded<B> {
    /// Compiles its kernels, where the backend has any: otherwise the first image would wait for them.
    pub fn new(
        mut be: B,
        tower: Tower,
        weights: Weights<B>,
        cache: B::Cache,
        bytes: u64,
    ) -> Result<Self, Error> {
        let mut work = Work::new(&mut be, tower, weights, cache)?;
        work.compile_kernels(&mut be)?;
        Ok(Self { be, work, bytes, job: None })
    }
}

impl<B: Backend> Work<B> {
    fn new(be: &mut B, tower: Tower, weights: Weights<B>, cache: B::Cache) -> Result<Self, Error> {
        let w = derive::widths(&tower.blocks);
        let inner = if tower.bounded { tower.inner() } else { 0 };
        let (rows, merged) = (tower.piece_rows(), tower.merged());
        let mut buf = |width: usize| be.buf(rows * width);
        let scratch = Scratch {
            x: buf(tower.patch_len_max().max(tower.hidden()))?,
            k: buf(w.kv[0])?,
            v: buf(w.kv[1])?,
            attended: buf(w.out)?,
            sum: buf(tower.hidden())?,
            out: buf(tower.out)?,
            merged: [buf(merged)?, buf(merged)?],
            inner: [buf(inner)?, buf(inner)?],
        };
        Ok(Self { tower, weights, cache, scratch })
    }

    /// A piece of these patches, which are of one tile where the tower has further states.
    fn piece(
        &self,
        be: &mut B,
        image: &Resized,
        part: Range<usize>,
        pages: &[u32],
    ) -> Result<Piece<B>, Error> {
        let (hidden, q) = (self.tower.hidden(), derive::widths(&self.tower.blocks).qkv);
        let (patch, patches, tile) = (part.start, part.len(), self.tower.tile_patches(image));
        // Further states before it.
        let before = if self.tower.class.is_some() { patch / tile } else { 0 };
        let is_last = part.end.is_multiple_of(tile) && self.tower.class.is_some();
        let (from, len) = (patch + before, patches + usize::from(is_last));
        let mut batch = Batch::default();
        batch.push(&vec![0; len], from, 0, pages, 0);
        let turn = |i| {
            let [x, y] = self.tower.place(image, i);
            [0, y as u32, x as u32]
        };
        batch.turn((patch..patch + len).map(turn));
        let mut windows = None;
        if self.tower.window.is_some() || self.tower.tile().is_some() {
            let batch = windows.insert(batch.clone());
            let mut i = patch;
            while i < part.end {
                let window = self.tower.window_of(image, i);
                i = window.end;
                let further = usize::from(self.tower.class.is_some());
                batch.see(window.start + before..window.end + before + further);
            }
        }
        batch.see(0..self.tower.rows(image));
        let (h, q) = (be.buf(len * hidden)?, be.buf(len * q)?);
        Ok(Piece { batch, windows, len, patch, patches, h, q })
    }

    /// An image in pieces of these patches each.
    pub fn job(
        &self,
        be: &mut B,
        image: Arc<Resized>,
        parts: impl Iterator<Item = Range<usize>>,
    ) -> Result<Job<B>, Error> {
        let pages: Vec<u32> = (0..self.tower.rows(&image).div_ceil(PAGE_TOKENS) as u32).collect();
        let pieces = parts.map(|part| self.piece(be, &image, part, &pages)).collect::<Result<_, _>>()?;
        let states = match self.weights.output {
            Output::Merge(_) => Vec::new(),
            Output::Pool(_) => vec![0.0; image.patches() * self.tower.hidden()],
        };
        let embeddings = vec![0.0; image.len() * self.tower.width()];
        Ok(Job { image, pieces, stage: Stage::Embed, next: 0, embeddings, states })
    }

    /// Patches to states.
    fn embed(&mut self, be: &mut B, image: &Resized, piece: &mut Piece<B>) -> Result<(), Error> {
        let (hidden, n) = (self.tower.hidden(), piece.patches);
        let len = self.tower.patch_len() * image.frames;
        let mut pixels = vec![0.0; n * len];
        let mut positions = vec![0.0; n * hidden];
        let rows = pixels.chunks_exact_mut(len).zip(positions.chunks_exact_mut(hidden));
        for (i, (pixels, position)) in rows.enumerate() {
            self.tower.patch(image, piece.patch + i, pixels);
            self.tower.add_position(&self.weights.table, image, piece.patch + i, position);
        }
        let (pixels, positions) = (be.vector(&pixels)?, be.vector(&positions)?);
        let (w, s, h) = (&self.weights, &mut self.scratch, &mut piece.h);
        let class = w.class.as_ref().filter(|_| piece.len > n);
        let project = w.frames.as_ref().filter(|_| image.frames > 1).unwrap_or(&w.patch);
        Ok(be.step(Pass::Other, &piece.batch, |be| {
            let [of_values, of_patches, of_both] = &w.norms;
            match of_values {
                None => be.linear(n, &pixels, project, Out::Write(h)),
                Some(norm) => {
                    be.norm(n, Some(&pixels), norm, Out::Write(&mut s.x));
                    be.linear(n, &s.x, project, Out::Write(h));
                }
            }
            if let Some(norm) = of_patches {
                be.norm(n, None, norm, Out::Write(h));
            }
            be.add(n * hidden, Some(&positions), 1.0, h);
            if let Some(norm) = of_both {
                be.norm(n, None, norm, Out::Write(h));
            }
            if let Some(class) = class {
                be.place(&[n as u32], hidden, class, [0, hidden], Out::Write(h));
            }
        })?)
    }

    /// Queries, keys and values of block `i`, if it is attention.
    fn keys(&mut self, be: &mut B, i: usize, piece: &mut Piece<B>) -> Result<(), Error> {
        let branch = &self.weights.blocks[i].branches[0];
        let Op::Attention { spec, project: Project::Direct { q, k: Some(k), v: Some(v) }, .. } = &branch.op
        else {
            return Ok(());
        };
        let (s, cache, pre) = (&mut self.scratch, &mut self.cache, branch.pre.as_ref());
        let bounds = self.weights.bounds.get(i).zip(pre);
        Ok(be.step(Pass::Other, &piece.batch, |be| {
            match bounds {
                None => be.project(piece.len, &piece.h, pre, [q, k, v], [&mut piece.q, &mut s.k, &mut s.v]),
                Some((bounds, pre)) => {
                    let to = [&mut piece.q, &mut s.k, &mut s.v];
                    for ((w, to), bounds) in [q, k, v].into_iter().zip(to).zip(bounds) {
                        be.norm(piece.len, Some(&piece.h), pre, Out::Write(&mut s.sum));
                        bounded(be, [piece.len, pre.len, pre.len], &mut s.sum, w, bounds, to);
                    }
                }
            }
            be.rope_store(&piece.batch, spec, 0, cache, &mut piece.q, Some((&mut s.k, &s.v)));
        })?)
    }

    /// The rest of block `i`.
    fn block(&mut self, be: &mut B, i: usize, piece: &mut Piece<B>) -> Result<(), Error> {
        let block = &self.weights.blocks[i];
        let (s, cache, branch, n) = (&mut self.scratch, &self.cache, &block.branches[0], piece.len);
        let (bounds, hidden, inner) = (self.weights.bounds.get(i), self.tower.hidden(), self.tower.inner());
        let scales = self.weights.scales.get(i);
        let is_apart = block.post.is_some() || scales.is_some();
        let sees_all = !matches!(&branch.op, Op::Attention { spec, .. } if spec.window != Window::All);
        let batch = piece.windows.as_ref().filter(|_| !sees_all).unwrap_or(&piece.batch);
        Ok(be.step(Pass::Other, batch, |be| {
            match (&branch.op, is_apart) {
                (Op::Attention { spec, out, .. }, is_apart) => {
                    be.attend(batch, spec, 0, cache, &piece.q, &mut s.attended);
                    match (bounds, is_apart) {
                        (Some(bounds), _) => {
                            bounded(be, [n, hidden, hidden], &mut s.attended, out, &bounds[3], &mut s.sum);
                        }
                        (None, true) => be.linear(n, &s.attended, out, Out::Write(&mut s.sum)),
                        (None, false) => {
                            be.linear(n, &s.attended, out, Out::Add(&mut piece.h, block.add));
                        }
                    }
                }
                (Op::Glu(glu), false) => {
                    be.glu(n, None, branch.pre.as_ref(), glu, Out::Add(&mut piece.h, block.add));
                }
                (Op::Glu(glu), true) => match bounds {
                    Some(bounds) => {
                        let pre = branch.pre.as_ref().expect(BOUNDED);
                        let gate = glu.gate.as_ref().expect(BOUNDED);
                        let [a, b] = &mut s.inner;
                        for (w, to, bounds) in [(gate, &mut *a, &bounds[0]), (&glu.up, &mut *b, &bounds[1])] {
                            be.norm(n, Some(&piece.h), pre, Out::Write(&mut s.sum));
                            bounded(be, [n, hidden, inner], &mut s.sum, w, bounds, to);
                        }
                        be.multiply(n, inner, Times::Activated(glu.act), a, b, [0, inner]);
                        bounded(be, [n, inner, hidden], a, &glu.down, &bounds[2], &mut s.sum);
                    }
                    None => be.glu(n, Some(&piece.h), branch.pre.as_ref(), glu, Out::Write(&mut s.sum)),
                },
                _ => unreachable!("towers have attention and feed-forward blocks"),
            }
            if let Some(scales) = scales {
                be.multiply(n, hidden, Times::Itself, &mut s.sum, scales, [0, 0]);
            }
            match &block.post {
                Some(post) => be.norm(n, Some(&s.sum), post, Out::Add(&mut piece.h, block.add)),
                None if is_apart => be.add(n * hidden, Some(&s.sum), block.add, &mut piece.h),
                None => {}
            }
        })?)
    }

    /// Rows `at` of the embeddings of a piece's tokens: the patches of each token merged.
    fn merged(
        &mut self,
        be: &mut B,
        at: usize,
        deep: Option<usize>,
        job: &mut Job<B>,
        piece: usize,
    ) -> Result<(), Error> {
        let merge = match (deep, &self.weights.output) {
            (Some(i), _) => &self.weights.deep[i].1,
            (None, Output::Merge(merge)) => merge,
            (None, Output::Pool(_)) => return Ok(()),
        };
        let piece = &job.pieces[piece];
        let (hidden, out, width) = (self.tower.hidden(), self.tower.out, self.tower.width());
        let each = self.tower.merge * self.tower.merge;
        let (s, tokens) = (&mut self.scratch, piece.patches / each);
        be.step(Pass::Other, &piece.batch, |be| {
            let [a, b] = &mut s.merged;
            let mut x = &piece.h;
            if let Some(norm) = &merge.norm {
                be.norm(piece.patches * hidden / norm.len, Some(x), norm, Out::Write(&mut s.x));
                x = &s.x;
            }
            if let Some(first) = &merge.first {
                let is_last = merge.middle.is_none() && merge.glu.is_none();
                be.linear(tokens, x, first, Out::Write(if is_last { &mut s.out } else { &mut *a }));
                x = a;
            }
            if let Some(middle) = &merge.middle {
                be.linear(tokens, x, &middle.project, Out::Write(b));
                be.norm(tokens, None, &middle.norm, Out::Write(b));
                be.multiply(tokens, middle.norm.len, Times::Activated(middle.act), b, &middle.ones, [0, 0]);
                x = b;
            }
            if let Some(glu) = &merge.glu {
                be.glu(tokens, Some(x), None, glu, Out::Write(&mut s.out));
            }
        })?;
        let mut values = vec![0.0; tokens * out];
        be.read(&s.out, &mut values);
        for (i, values) in values.chunks_exact(out).enumerate() {
            let [x, y] = self.tower.place(&job.image, piece.patch + i * each).map(|p| p / self.tower.merge);
            let token = y * job.image.tokens[0] + x;
            job.embeddings[token * width + at..][..out].copy_from_slice(values);
        }
        Ok(())
    }

    /// The states of a piece after the last block, where tokens are means of patches.
    fn collect(&mut self, be: &mut B, job: &mut Job<B>, piece: usize) -> Result<(), Error> {
        let Output::Pool(pool) = &self.weights.output else { return Ok(()) };
        let (piece, hidden, s) = (&job.pieces[piece], self.tower.hidden(), &mut self.scratch);
        let values = &mut job.states[piece.patch * hidden..(piece.patch + piece.patches) * hidden];
        match &pool.norm {
            None => be.read(&piece.h, values),
            Some(norm) => {
                be.step(Pass::Other, &piece.batch, |be| {
                    be.norm(piece.patches, Some(&piece.h), norm, Out::Write(&mut s.x));
                })?;
                be.read(&s.x, values);
            }
        }
        Ok(())
    }

    /// The means of the patches of each token, projected.
    fn pooled(&mut self, be: &mut B, job: &mut Job<B>) -> Result<(), Error> {
        let Output::Pool(pool) = &self.weights.output else { return Ok(()) };
        let (hidden, out, merge) = (self.tower.hidden(), self.tower.out, self.tower.merge);
        let [columns, _] = job.image.grid;
        let tokens: Vec<usize> = (0..job.image.len()).collect();
        for tokens in tokens.chunks(PIECE_TOKENS) {
            let mut means = vec![0.0; tokens.len() * hidden];
            for (mean, &token) in means.chunks_exact_mut(hidden).zip(tokens) {
                let [x, y] = [token % job.image.tokens[0], token / job.image.tokens[0]].map(|t| t * merge);
                for inside in 0..merge * merge {
                    let patch = (y + inside / merge) * columns + x + inside % merge;
                    let state = &job.states[patch * hidden..][..hidden];
                    mean.iter_mut().zip(state).for_each(|(m, v)| *m += v);
                }
                mean.iter_mut().for_each(|m| *m = *m / (merge * merge) as f32 * pool.factor);
                if let Some([bias, scale]) = &pool.shift {
                    for (m, (b, s)) in mean.iter_mut().zip(bias.iter().zip(scale)) {
                        *m = (*m - b) * s;
                    }
                }
            }
            let (x, n, s) = (be.vector(&means)?, tokens.len(), &mut self.scratch);
            be.step(Pass::Other, &Batch::default(), |be| {
                be.project(n, &x, Some(&pool.last), [&pool.project], [&mut s.out]);
            })?;
            let values = &mut job.embeddings[tokens[0] * out..(tokens[0] + n) * out];
            be.read(&s.out, values);
        }
        Ok(())
    }

    /// Computes the next piece of a job; true if it is complete.
    pub fn step(&mut self, be: &mut B, job: &mut Job<B>) -> Result<bool, Error> {
        let at = job.next;
        let out = self.tower.out;
        match job.stage {
            Stage::Embed => self.embed(be, &job.image, &mut job.pieces[at])?,
            Stage::Keys(i) => self.keys(be, i, &mut job.pieces[at])?,
            Stage::Block(i) => {
                self.block(be, i, &mut job.pieces[at])?;
                let block = &self.weights.blocks[i];
                let is_last = self.weights.blocks.get(i + 1).is_none_or(|next| next.layer != block.layer);
                let deep = self.weights.deep.iter().position(|(layer, _)| is_last && *layer == block.layer);
                if let Some(deep) = deep {
                    self.merged(be, (1 + deep) * out, Some(deep), job, at)?;
                }
            }
            Stage::Output => {
                self.merged(be, 0, None, job, at)?;
                self.collect(be, job, at)?;
            }
        }
        job.next += 1;
        if job.next < job.pieces.len() {
            return Ok(false);
        }
        job.next = 0;
        let begin = |i: usize| match self.weights.blocks.get(i).map(|b| &b.branches[0].op) {
            None => Stage::Output,
            Some(Op::Attention { .. }) => Stage::Keys(i),
            Some(_) => Stage::Block(i),
        };
        job.stage = match job.stage {
            Stage::Embed => begin(0),
            Stage::Keys(i) => Stage::Block(i),
            Stage::Block(i) => begin(i + 1),
            Stage::Output => {
                self.pooled(be, job)?;
                return Ok(true);
            }
        };
        Ok(false)
    }
}

impl<B: Backend + Inspect> Encoder for Loaded<B> {
    fn tower(&self) -> &Tower {
        &self.work.tower
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn start(&mut self, image: Arc<Resized>, most: usize) -> Result<(), Error> {
        self.job = None;
        let n = image.patches();
        // Whole tokens, where their patches follow each other.
        let each = self.work.tower.merge * self.work.tower.merge;
        let most = (most.min(PIECE_TOKENS) / each * each).max(each);
        // Those of a tile, where something comes after each.
        let tile = if self.work.tower.class.is_some() { self.work.tower.tile_patches(&image) } else { n };
        let tiles = (0..n).step_by(tile.max(1)).map(|from| from..(from + tile).min(n));
        let parts =
            tiles.flat_map(|t| t.clone().step_by(most).map(move |from| from..(from + most).min(t.end)));
        self.job = Some(self.work.job(&mut self.be, image, parts)?);
        Ok(())
    }

    fn advance(&mut self) -> Result<Option<Vec<f32>>, Error> {
        let Some(mut job) = self.job.take() else { return Ok(None) };
        if self.work.step(&mut self.be, &mut job)? {
            // What was read last may be undefined.
            if self.be.has_failed() {
                self.be.step(Pass::Other, &Batch::default(), |_| {})?;
            }
            return Ok(Some(job.embeddings));
        }
        self.job = Some(job);
        Ok(None)
    }

    fn is_lost(&self) -> bool {
        self.be.is_lost()
    }

    fn hidden(&mut self) -> (usize, Vec<f32>) {
        let hidden = self.work.tower.hidden();
        let Some(job) = &self.job else { return (0, Vec::new()) };
        let mut values = vec![0.0; job.image.patches() * hidden];
        for piece in &job.pieces {
            let range = piece.patch * hidden..(piece.patch + piece.patches) * hidden;
            self.be.read(&piece.h, &mut values[range]);
        }
        let layer = |i: usize| self.work.weights.blocks[i].layer;
        let blocks = match job.stage {
            Stage::Embed => 0,
            Stage::Keys(i) | Stage::Block(i) => layer(i),
            Stage::Output => self.work.tower.blocks.layers,
        };
        (blocks, values)
    }
}
