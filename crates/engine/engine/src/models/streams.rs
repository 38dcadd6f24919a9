//! Residual streams beside that of a decoder's blocks, and their part of a step; see [`super::plan::Streams`].

use octet_compute::Error;
use octet_compute::backend::{Act, AltUp, Backend, Norm, Out, Times};

/// The streams' weights.
#[allow(missing_docs)]
pub struct Streams<B: Backend> {
    pub count: usize,
    pub width: usize,
    pub expand: B::Experts,
    pub merge: B::Experts,
    pub layers: Vec<Layer<B>>,
}

/// A layer's part of them; see [`super::plan::AltUp`].
#[allow(missing_docs)]
pub struct Layer<B: Backend> {
    pub router: B::Weight,
    pub norm: Norm<B>,
    pub update: AltUp<B>,
    pub gate: B::Weight,
    pub out: B::Weight,
    pub act: Act,
    pub post: Norm<B>,
}

/// The streams of a step; empty in a model that has one.
pub struct Buffers<B: Backend> {
    /// All but the first: `[n, count - 1, width]`.
    rest: B::Buf,
    /// The same, before or after their projections.
    moved: B::Buf,
    /// The first one before a layer's blocks, then the input of what is added to the others: `[n, width]`.
    kept: B::Buf,
    /// `[n, count]`
    routed: B::Buf,
}

impl<B: Backend> Buffers<B> {
    /// For `tokens` tokens: `others` is the width of all but the first stream together.
    pub fn new(be: &mut B, tokens: usize, hidden: usize, [others, count]: [usize; 2]) -> Result<Self, Error> {
        Ok(Self {
            rest: be.buf(tokens * others)?,
            moved: be.buf(tokens * others)?,
            kept: be.buf(if others > 0 { tokens * hidden } else { 0 })?,
            routed: be.buf(tokens * count)?,
        })
    }
}

/// What the updates of streams read and write.
#[allow(missing_docs)]
pub struct Room<'a, B: Backend> {
    /// The first stream `[n, hidden]`.
    pub h: &'a mut B::Buf,
    pub streams: &'a mut Buffers<B>,
    /// Overwritten.
    pub rows: &'a mut Vec<u32>,
    pub z: &'a mut B::Buf,
    pub sum: &'a mut B::Buf,
    /// Embeddings of each layer `[n, layers, width]`.
    pub per_layer: &'a B::Buf,
    pub width: usize,
}

impl<B: Backend> Streams<B> {
    /// The others from the first.
    pub fn expand(&self, be: &mut B, n: usize, room: Room<'_, B>) {
        let Room { h, streams: s, rows, .. } = room;
        self.copy(be, n, h, rows, &mut s.moved);
        be.per_head(n, &s.moved, &self.expand, 0, &mut s.rest);
        self.level(be, n, &mut s.rest, &s.moved);
    }

    /// The first becomes the mean of all.
    pub fn merge(&self, be: &mut B, n: usize, room: Room<'_, B>) {
        let (Room { h, streams: s, rows, .. }, others) = (room, self.count - 1);
        be.per_head(n, &s.rest, &self.merge, 0, &mut s.moved);
        self.copy(be, n, h, rows, &mut s.rest);
        self.level(be, n, &mut s.moved, &s.rest);
        self.rows(n, [0, 1], rows);
        for i in 0..others {
            be.place(rows, self.width, &s.moved, [i * self.width, others * self.width], Out::Add(h, 1.0));
        }
        be.add(n * self.width, None, 1.0 / self.count as f32, h);
    }

    /// Before the blocks of `layer`.
    pub fn predict(&self, be: &mut B, n: usize, layer: usize, room: Room<'_, B>) {
        let (l, Room { h, streams: s, .. }) = (&self.layers[layer], room);
        be.project(n, h, Some(&l.norm), [&l.router], [&mut s.routed]);
        be.predict_streams(n, &l.update, &s.routed, h, &mut s.rest, &mut s.kept);
    }

    /// After the blocks of `layer`.
    pub fn correct(&self, be: &mut B, n: usize, layer: usize, room: Room<'_, B>) {
        let (l, others) = (&self.layers[layer], self.count - 1);
        let Room { h, streams: s, rows, z, sum, per_layer, width } = room;
        be.project(n, h, Some(&l.norm), [&l.router], [&mut s.routed]);
        be.correct_streams(n, &l.update, &s.routed, h, &mut s.rest, &mut s.kept);
        be.project(n, &s.kept, None, [&l.gate], [&mut *z]);
        let place = [layer * width, self.layers.len() * width];
        be.multiply(n, width, Times::Activated(l.act), z, per_layer, place);
        be.linear(n, z, &l.out, Out::Write(sum));
        be.norm(n, None, &l.post, Out::Write(sum));
        for i in 0..others {
            self.rows(n, [i, others], rows);
            be.place(rows, self.width, sum, [0, self.width], Out::Add(&mut s.rest, 1.0));
        }
    }

    /// `h` in place of each other stream.
    fn copy(&self, be: &mut B, n: usize, h: &B::Buf, rows: &mut Vec<u32>, out: &mut B::Buf) {
        for i in 0..self.count - 1 {
            self.rows(n, [i, self.count - 1], rows);
            be.place(rows, self.width, h, [0, self.width], Out::Write(out));
        }
    }

    /// Row `from` and each `step`-th after it, one for each token.
    fn rows(&self, n: usize, [from, step]: [usize; 2], rows: &mut Vec<u32>) {
        rows.clear();
        rows.extend((0..n).map(|t| (t * step + from) as u32));
    }

    /// The streams `x` get the root mean squares of those of `y`.
    fn level(&self, be: &mut B, n: usize, x: &mut B::Buf, y: &B::Buf) {
        be.multiply(n * (self.count - 1), self.width, Times::Levelled, x, y, [0, self.width]);
    }
}
