//! The verb `gdn`: convolution, delta rule and gated norm, split by heads.
//!
//! A state never includes guesses. Their inputs are kept beside it, and accepted guesses go through the recurrence once more, before the
//! tokens of the next step. That costs arithmetic on a state that is read and written for these tokens anyway. For Qwen3.5-35B-A3B it
//! keeps 1 MB of inputs per guess; a copy of the states has 63 MB.

use super::device::Cpu;
use super::memory::{Buf, LayerStore};
use super::scratch::Scratch;
use super::team::{Shards, Team};
use super::vector::{Conv, GDN_COLUMNS, GdnColumns, VectorKernels};
use crate::backend::{Gdn, HeadOrder};
use crate::batch::{Batch, Span};

/// Inputs of the verb: see [`crate::Backend::gdn`].
pub(super) struct Inputs<'a> {
    pub qkv: Channels<'a>,
    pub z: &'a [f32],
    pub b: &'a [f32],
    pub alpha: &'a [f32],
}

/// The inputs of the convolution, side by side in one buffer or in three.
pub(super) struct Channels<'a> {
    /// Each buffer `[n, width]`, its width, and the first of its channels.
    parts: [(&'a [f32], usize, usize); 3],
}

impl<'a> Channels<'a> {
    pub fn new(g: &Gdn<Cpu>, buffers: &[&'a Buf]) -> Self {
        let (widths, mut first) = (g.widths(buffers.len()), 0);
        let parts = std::array::from_fn(|i| {
            let part = (buffers.get(i).map_or(&[][..], |b| &b[..]), widths[i], first);
            first += widths[i];
            part
        });
        assert!(first == g.channels(), "one buffer or three");
        Self { parts }
    }

    /// The buffer with these channels of a head, its width, and the place of `channel` in a row.
    fn of(&self, channel: usize) -> (&'a [f32], usize, usize) {
        let part = self.parts.iter().rev().find(|p| p.1 > 0 && p.2 <= channel);
        let (buffer, width, first) = *part.expect("the first part begins at 0");
        (buffer, width, channel - first)
    }
}

pub(super) fn gdn(
    team: &mut Team,
    vector: &VectorKernels,
    scratch: &mut Scratch,
    batch: &Batch,
    g: &Gdn<Cpu>,
    layer: &mut LayerStore,
    inputs: &Inputs,
    out: &mut [f32],
) {
    let LayerStore::State { conv, conv_len, state, state_len, kept, kept_rows } = layer else {
        unreachable!("a Gated DeltaNet layer has a state")
    };
    let shape = StoreShape { conv_len: *conv_len, state_len: *state_len, kept_rows: *kept_rows };
    check_shapes(batch, g, shape, inputs);
    for span in batch.spans().iter().filter(|s| s.from != s.slot) {
        copy_slot(conv, *conv_len, span);
        copy_slot(state, *state_len, span);
        if span.redo.len > 0 {
            copy_slot(kept, *kept_rows * row_len(g), span);
        }
    }
    let s = &mut scratch.delta;
    let tokens = s.place_spans(batch);
    assert!(
        s.beta.len() >= tokens * g.v_heads
            && s.decay.len() >= tokens * g.decays()
            && s.v.len() >= tokens * g.v_heads * g.v_dim,
        "a step of the planned size"
    );
    let call = Call {
        vector,
        batch,
        g,
        inputs,
        starts: &s.starts,
        tokens,
        q: Shards::new(&mut s.q),
        k: Shards::new(&mut s.k),
        kq: Shards::new(&mut s.kq),
        v: Shards::new(&mut s.v),
        beta: Shards::new(&mut s.beta),
        decay: Shards::new(&mut s.decay),
        shape,
        conv: Shards::new(conv),
        state: Shards::new(state),
        kept: Shards::new(kept),
        out: Shards::new(out),
    };
    let (threads, per_thread) = (Shards::new(&mut scratch.threads), scratch.per_thread);
    team.run(|w| {
        let per_span = g.k_heads + g.v_heads + 1;
        for i in w.items(batch.spans().len() * per_span) {
            // SAFETY: each item of this phase is run once.
            unsafe { call.prepare(i / per_span, i % per_span) };
        }
        w.barrier();
        // SAFETY: each thread has a part of its own.
        let own = unsafe { threads.part(w.id * per_thread, per_thread) };
        for i in w.items(batch.spans().len() * g.v_heads) {
            // SAFETY: each item is run once, after the barrier.
            unsafe { call.recur(i / g.v_heads, i % g.v_heads, own) };
        }
    });
}

/// Values of a kept row.
fn row_len(g: &Gdn<Cpu>) -> usize {
    g.channels() + g.v_heads + g.decays()
}

/// Copies the `len` values of the slot that a span starts from to its own.
pub(super) fn copy_slot(values: &mut [f32], len: usize, span: &Span) {
    values.copy_within(span.from * len..(span.from + 1) * len, span.slot * len);
}

/// Sizes of a layer's store, in values and rows.
#[derive(Clone, Copy)]
struct StoreShape {
    /// Values of a slot's last inputs of the convolution.
    conv_len: usize,
    /// Values of a slot's recurrent state.
    state_len: usize,
    /// Guesses whose inputs a slot can keep.
    kept_rows: usize,
}

/// Checks what the pointers of [`Call`] rely on. It also relies on each span having a slot of its own, which no other span reads: `Batch` checks that.
fn check_shapes(batch: &Batch, g: &Gdn<Cpu>, shape: StoreShape, inputs: &Inputs) {
    let (channels, taps) = (g.channels(), g.conv_kernel);
    assert!(
        shape.conv_len == (taps - 1) * channels && shape.state_len == g.v_heads * g.k_dim * g.v_dim,
        "a cache of this shape"
    );
    assert!(
        g.conv.len() >= taps * channels
            && inputs.qkv.parts.iter().all(|(b, width, _)| b.len() >= batch.len() * width)
            && inputs.b.len() >= batch.len() * g.v_heads
            && inputs.alpha.len() >= batch.len() * g.decays()
            && g.dt_bias.len() == g.decays()
            && g.a.len() == g.decays(),
        "weights and inputs of this shape"
    );
    for s in batch.spans() {
        let kept = s.guesses.max(s.redo.first + s.redo.len);
        assert!(kept <= shape.kept_rows, "as many guesses as the cache holds");
    }
}

/// One call of the verb: its inputs, its scratch memory, and the layer's store.
struct Call<'a> {
    vector: &'a VectorKernels,
    batch: &'a Batch,
    g: &'a Gdn<Cpu>,
    inputs: &'a Inputs<'a>,
    /// See [`super::scratch::DeltaScratch`].
    starts: &'a [usize],
    /// Tokens in the scratch memory, those to redo included.
    tokens: usize,
    q: Shards<'a, f32>,
    k: Shards<'a, f32>,
    kq: Shards<'a, f32>,
    v: Shards<'a, f32>,
    beta: Shards<'a, f32>,
    decay: Shards<'a, f32>,
    shape: StoreShape,
    /// `[slots, taps - 1, channels]`
    conv: Shards<'a, f32>,
    /// `[slots, v_heads, k_dim, v_dim]`
    state: Shards<'a, f32>,
    /// `[slots, kept_rows, channels + v_heads + decays]`: rows of `qkv`, `b` and `alpha`.
    kept: Shards<'a, f32>,
    out: Shards<'a, f32>,
}

impl Call<'_> {
    /// Index in `kept` of value `at` of the inputs of guess `i`.
    fn kept_at(&self, span: &Span, i: usize, at: usize) -> usize {
        (span.slot * self.shape.kept_rows + i) * row_len(self.g) + at
    }

    /// The first phase for one item of a span: a key head (its queries and keys), then a value head, and last the gates of all heads.
    ///
    /// # Safety
    /// No two threads run the same item.
    unsafe fn prepare(&self, span: usize, item: usize) {
        let (g, n) = (self.g, self.tokens);
        let (start, span) = (self.starts[span], &self.batch.spans()[span]);
        let len = span.recurrent_len();
        // SAFETY: each item writes heads, or gates, of its own span.
        unsafe {
            if item < g.k_heads {
                let at = (item * n + start) * g.k_dim;
                let (q, k) = (self.q.part(at, len * g.k_dim), self.k.part(at, len * g.k_dim));
                self.convolve(span, item * g.k_dim, g.k_dim, q.as_mut_ptr());
                self.convolve(span, (g.k_heads + item) * g.k_dim, g.k_dim, k.as_mut_ptr());
                self.vector.gdn_keys(g.k_dim, q, k, self.kq.part(item * n + start, len));
            } else if item < g.k_heads + g.v_heads {
                let head = item - g.k_heads;
                let v = self.v.part((head * n + start) * g.v_dim, len * g.v_dim);
                self.convolve(span, 2 * g.k_heads * g.k_dim + head * g.v_dim, g.v_dim, v.as_mut_ptr());
            } else {
                self.gates(span, start);
            }
        }
    }

    /// The convolution of one head over a span. `channel` is the head's first; `out` is the place of the span's first token.
    ///
    /// # Safety
    /// No other thread has these channels of this span; `out` has room for `width` values of each token.
    unsafe fn convolve(&self, span: &Span, channel: usize, width: usize, out: *mut f32) {
        let (channels, taps) = (self.g.channels(), self.g.conv_kernel);
        let (qkv, stride, place) = self.inputs.qkv.of(channel);
        // SAFETY: spans of a batch have slots of their own, and the caller has these channels. `check_shapes` has checked the numbers
        // of rows of inputs and of kept guesses.
        unsafe {
            let item = Conv {
                weights: self.g.conv[channel..].as_ptr(),
                weights_stride: channels,
                input: std::ptr::null(),
                input_stride: stride,
                state: self.conv.ptr(span.slot * self.shape.conv_len, self.shape.conv_len).add(channel),
                state_stride: channels,
                out,
                out_stride: width,
                tokens: span.len,
                guesses: span.guesses,
                channels: width,
                taps,
                bias: std::ptr::null(),
                silu: true,
            };
            let redo = span.redo;
            if redo.len > 0 {
                let stride = row_len(self.g);
                let first = self.kept_at(span, redo.first, channel);
                self.vector.conv(&Conv {
                    input: self.kept.ptr(first, (redo.len - 1) * stride + width),
                    input_stride: stride,
                    tokens: redo.len,
                    guesses: 0,
                    ..item
                });
            }
            if span.len > 0 {
                let input = qkv[span.start * stride + place..].as_ptr();
                self.vector.conv(&Conv { input, out: out.add(redo.len * width), ..item });
            }
            for i in 0..span.guesses {
                let row = (span.start + span.len - span.guesses + i) * stride + place;
                let kept = self.kept.part(self.kept_at(span, i, channel), width);
                kept.copy_from_slice(&qkv[row..row + width]);
            }
        }
    }

    /// `beta` and `decay` of a span's tokens, which start at `start` in the scratch memory; keeps the inputs of its guesses.
    ///
    /// # Safety
    /// No other thread has the gates of this span.
    unsafe fn gates(&self, span: &Span, start: usize) {
        let (g, v_heads, channels) = (self.g, self.g.v_heads, self.g.channels());
        let decays = g.decays();
        // SAFETY: spans have tokens and slots of their own, and the caller has this span's.
        unsafe {
            let write = |token: usize, b: &[f32], alpha: &[f32]| {
                let at = start + token;
                self.vector.gdn_beta(self.beta.part(at * v_heads, v_heads), b);
                self.vector.gdn_decay(self.decay.part(at * decays, decays), alpha, &g.dt_bias, &g.a);
            };
            for i in 0..span.redo.len {
                let row = self.kept.part(self.kept_at(span, span.redo.first + i, channels), v_heads + decays);
                let (b, alpha) = row.split_at(v_heads);
                write(i, b, alpha);
            }
            for (i, row) in (span.start..span.start + span.len).enumerate() {
                let b = &self.inputs.b[row * v_heads..(row + 1) * v_heads];
                let alpha = &self.inputs.alpha[row * decays..(row + 1) * decays];
                write(span.redo.len + i, b, alpha);
                if let Some(guess) = (i + span.guesses).checked_sub(span.len) {
                    let row = self.kept.part(self.kept_at(span, guess, channels), v_heads + decays);
                    row[..v_heads].copy_from_slice(b);
                    row[v_heads..].copy_from_slice(alpha);
                }
            }
        }
    }

    /// The second phase for one value head of a span: the recurrence and the gated norm. `own` is the thread's scratch memory.
    ///
    /// # Safety
    /// No two threads run the same item, and all items of [`Call::prepare`] are done.
    unsafe fn recur(&self, span: usize, head: usize, own: &mut [f32]) {
        let (g, n) = (self.g, self.tokens);
        let (v_heads, k_dim, v_dim, decays) = (g.v_heads, g.k_dim, g.v_dim, g.decays());
        let (start, span) = (self.starts[span], &self.batch.spans()[span]);
        let len = span.recurrent_len();
        if len == 0 {
            return;
        }
        let k_head = match g.order {
            HeadOrder::Grouped => head / (v_heads / g.k_heads),
            HeadOrder::Tiled => head % g.k_heads,
        };
        // A single token reads its state once, row after row; more keep a part of it in the L1 cache.
        let columns = if len == 1 { v_dim } else { GDN_COLUMNS };
        // SAFETY: each (slot, head) and its outputs belong to one item, for spans of a batch have slots of their own; the
        // rest is only read after the barrier.
        unsafe {
            let v = self.v.part((head * n + start) * v_dim, len * v_dim);
            let state =
                self.state.part(span.slot * self.shape.state_len + head * k_dim * v_dim, k_dim * v_dim);
            for column in (0..v_dim).step_by(columns) {
                let item = GdnColumns {
                    state: state[column..].as_mut_ptr(),
                    state_stride: v_dim,
                    q: self.q.ptr((k_head * n + start) * k_dim, len * k_dim),
                    k: self.k.ptr((k_head * n + start) * k_dim, len * k_dim),
                    qk_stride: k_dim,
                    kq: self.kq.ptr(k_head * n + start, len),
                    beta: self.beta.ptr(start * v_heads, len * v_heads).add(head),
                    decay: self.decay.ptr(start * decays, len * decays).add(head * (decays / v_heads)),
                    beta_stride: v_heads,
                    decay_stride: decays,
                    row_decay: g.row_decay,
                    v: v[column..].as_mut_ptr(),
                    v_stride: v_dim,
                    tokens: len,
                    guesses: span.guesses,
                    k_dim,
                    columns: columns.min(v_dim - column),
                };
                self.vector.gdn_columns(&item, own);
            }
            // Tokens that are processed again had their outputs in their own step.
            for (i, o) in v.chunks_exact(v_dim).skip(span.redo.len).enumerate() {
                let at = ((span.start + i) * v_heads + head) * v_dim;
                let z = &self.inputs.z[at..at + v_dim];
                let out = self.out.part(at, v_dim);
                if g.sigmoid_gate {
                    self.vector.rms_norm(o, &g.norm, g.eps, out);
                    self.vector.sigmoid_mul(out, z);
                } else {
                    self.vector.gated_rms_norm(o, &g.norm, g.eps, z, out);
                }
            }
        }
    }
}

/// Bytes of state that one call reads and writes.
pub(super) fn bytes(batch: &Batch, g: &Gdn<Cpu>) -> usize {
    let state = g.v_heads * g.k_dim * g.v_dim + (g.conv_kernel - 1) * g.channels();
    2 * 4 * state * batch.spans().len()
}
