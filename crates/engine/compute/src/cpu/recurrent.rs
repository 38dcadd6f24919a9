//! The verbs `ssm` (Mamba-2) and `short_conv`. As in `gdn`, a state never includes guesses, whose inputs are kept beside it.

use super::delta::copy_slot;
use super::device::Cpu;
use super::memory::LayerStore;
use super::scratch::Scratch;
use super::team::{Shards, Team};
use super::vector::{Conv, SsmHead, VectorKernels};
use crate::backend::{ShortConv, Ssm};
use crate::batch::{Batch, Span};

/// A layer's store during a call, whose spans have slots of their own.
struct Store<'a> {
    conv: Shards<'a, f32>,
    conv_len: usize,
    state: Shards<'a, f32>,
    state_len: usize,
    kept: Shards<'a, f32>,
    kept_rows: usize,
    /// Values of a kept row.
    inputs: usize,
}

impl<'a> Store<'a> {
    /// Moves the state of each span to its own slot, and checks the sizes that pointers rely on.
    fn open(layer: &'a mut LayerStore, batch: &Batch, inputs: usize, conv: usize, state: usize) -> Self {
        let LayerStore::State { conv: c, conv_len, state: s, state_len, kept, kept_rows } = layer else {
            unreachable!("a recurrent layer has a state")
        };
        assert!((*conv_len, *state_len) == (conv, state), "a cache of this shape");
        for span in batch.spans() {
            let rows = span.guesses.max(span.redo.first + span.redo.len);
            assert!(rows <= *kept_rows, "as many guesses as the cache holds");
            if span.from != span.slot {
                copy_slot(c, *conv_len, span);
                copy_slot(s, *state_len, span);
                if span.redo.len > 0 {
                    copy_slot(kept, *kept_rows * inputs, span);
                }
            }
        }
        Self {
            conv: Shards::new(c),
            conv_len: *conv_len,
            state: Shards::new(s),
            state_len: *state_len,
            kept: Shards::new(kept),
            kept_rows: *kept_rows,
            inputs,
        }
    }

    /// Index in `kept` of value `at` of the inputs of guess `i` of a span.
    fn kept_at(&self, span: &Span, i: usize, at: usize) -> usize {
        (span.slot * self.kept_rows + i) * self.inputs + at
    }
}

/// Convolves `width` channels from `channel` on over a span: first its accepted guesses, then its tokens `input` `[n, stride]`, and keeps
/// the inputs of its guesses. `out` has room for `width` values of each token, those to redo first.
///
/// # Safety
/// No other thread has these channels of this span, and the pointers are valid for the shapes.
unsafe fn convolve(
    vector: &VectorKernels,
    store: &Store,
    span: &Span,
    shape: &Conv,
    channel: usize,
    input: &[f32],
    out: *mut f32,
) {
    let stride = shape.input_stride;
    // SAFETY: the caller's.
    unsafe {
        let item = Conv {
            weights: shape.weights.add(channel),
            bias: if shape.bias.is_null() { shape.bias } else { shape.bias.add(channel) },
            state: store.conv.ptr(span.slot * store.conv_len, store.conv_len).add(channel),
            out,
            tokens: span.len,
            guesses: span.guesses,
            ..*shape
        };
        let redo = span.redo;
        if redo.len > 0 {
            let first = store.kept_at(span, redo.first, channel);
            vector.conv(&Conv {
                input: store.kept.ptr(first, (redo.len - 1) * store.inputs + shape.channels),
                input_stride: store.inputs,
                tokens: redo.len,
                guesses: 0,
                ..item
            });
        }
        if span.len > 0 {
            let input = input[span.start * stride + channel..].as_ptr();
            vector.conv(&Conv { input, out: out.add(redo.len * shape.out_stride), ..item });
        }
        for i in 0..span.guesses {
            let at = (span.start + span.len - span.guesses + i) * stride + channel;
            let kept = store.kept.part(store.kept_at(span, i, channel), shape.channels);
            kept.copy_from_slice(&input[at..at + shape.channels]);
        }
    }
}

/// Channels that one thread convolves at a time.
const CHANNELS: usize = 64;

pub(super) fn ssm(
    team: &mut Team,
    vector: &VectorKernels,
    scratch: &mut Scratch,
    batch: &Batch,
    s: &Ssm<Cpu>,
    layer: &mut LayerStore,
    [z, xbc, dt]: [&[f32]; 3],
    out: &mut [f32],
) {
    let (channels, inner, n) = (s.channels(), s.heads * s.dim, batch.len());
    let store = Store::open(layer, batch, channels + s.heads, (s.taps - 1) * channels, inner * s.state);
    assert!(
        xbc.len() >= n * channels
            && z.len() >= n * inner
            && dt.len() >= n * s.heads
            && s.conv.len() >= s.taps * channels
    );
    let delta = &mut scratch.delta;
    let tokens = delta.place_spans(batch);
    assert!(delta.v.len() >= tokens * channels, "a step of the planned size");
    let (starts, y) = (&delta.starts, Shards::new(&mut delta.v));
    let (out, threads, per_thread) =
        (Shards::new(out), Shards::new(&mut scratch.threads), scratch.per_thread);
    let call = SsmCall { vector, batch, s, store: &store, dt, z, y: &y, starts, out: &out };
    team.run(|w| {
        let shape = Conv {
            weights: s.conv.as_ptr(),
            weights_stride: channels,
            input: std::ptr::null(),
            input_stride: channels,
            state: std::ptr::null_mut(),
            state_stride: channels,
            out: std::ptr::null_mut(),
            out_stride: channels,
            tokens: 0,
            guesses: 0,
            channels: CHANNELS,
            taps: s.taps,
            bias: s.conv_bias.as_ref().map_or(std::ptr::null(), |b| b.as_ptr()),
            silu: true,
        };
        let parts = channels.div_ceil(CHANNELS);
        for i in w.items(batch.spans().len() * parts) {
            let (span, channel) = (&batch.spans()[i / parts], i % parts * CHANNELS);
            let shape = Conv { channels: CHANNELS.min(channels - channel), ..shape };
            let at = starts[i / parts] * channels + channel;
            // SAFETY: each item has channels of a span of its own; the sizes were checked.
            unsafe {
                let room = (span.recurrent_len().max(1) - 1) * channels + shape.channels;
                let y = y.ptr(at, if span.recurrent_len() == 0 { 0 } else { room });
                convolve(vector, &store, span, &shape, channel, xbc, y);
            }
        }
        w.barrier();
        for i in w.items(batch.spans().len() * s.heads) {
            // SAFETY: each item is run once, after the barrier.
            unsafe { call.head(i / s.heads, i % s.heads, threads.part(w.id * per_thread, per_thread)) };
        }
        let Some(norm) = &s.norm else { return };
        w.barrier();
        for t in w.items(n) {
            // SAFETY: each token is one thread's.
            let row = unsafe { out.part(t * inner, inner) };
            for (x, weight) in row.chunks_exact_mut(norm.len).zip(norm.weight.chunks_exact(norm.len)) {
                vector.norm_rope(x, Some(weight), norm.eps, &[], &[], crate::backend::RopePairing::Half);
            }
        }
    });
}

/// The second phase of `ssm`.
struct SsmCall<'a> {
    vector: &'a VectorKernels,
    batch: &'a Batch,
    s: &'a Ssm<Cpu>,
    store: &'a Store<'a>,
    dt: &'a [f32],
    z: &'a [f32],
    /// Convolved inputs `[tokens, channels]`, those to redo first.
    y: &'a Shards<'a, f32>,
    starts: &'a [usize],
    out: &'a Shards<'a, f32>,
}

impl SsmCall<'_> {
    /// The recurrence of one head of a span, and its gate. `own` is the thread's scratch memory.
    ///
    /// # Safety
    /// No two threads run the same item, and the convolution is done.
    unsafe fn head(&self, span: usize, h: usize, own: &mut [f32]) {
        let (s, channels) = (self.s, self.s.channels());
        let (start, span) = (self.starts[span], &self.batch.spans()[span]);
        let (inner, size) = (s.heads * s.dim, s.dim * s.state);
        let group = h / (s.heads / s.groups);
        // Outputs of tokens that are processed again, and the state of guesses.
        let (spare, guessed) = own[..s.dim + size].split_at_mut(s.dim);
        // SAFETY: each head of a slot is one item's; what others wrote lies before the barrier.
        unsafe {
            let state = self.store.state.part(span.slot * self.store.state_len + h * size, size);
            for i in 0..span.recurrent_len() {
                let y = self.y.read((start + i) * channels, channels);
                let token = span.start + i.wrapping_sub(span.redo.len);
                let dt = match i.checked_sub(span.redo.len) {
                    None => {
                        let at = self.store.kept_at(span, span.redo.first + i, channels + h);
                        self.store.kept.read(at, 1)[0]
                    }
                    Some(_) => self.dt[token * s.heads + h],
                };
                let t = dt + s.dt_bias[h];
                let step = if t > 20.0 { t } else { t.exp().ln_1p() };
                let head = SsmHead {
                    step,
                    decay: (s.a[h] * step).exp(),
                    d: s.d[h],
                    x: &y[h * s.dim..][..s.dim],
                    b: &y[inner + group * s.state..][..s.state],
                    c: &y[inner + (s.groups + group) * s.state..][..s.state],
                };
                let out = match i < span.redo.len {
                    true => &mut *spare,
                    false => self.out.part(token * inner + h * s.dim, s.dim),
                };
                // Guesses advance a copy.
                let first_guess = span.recurrent_len() - span.guesses;
                if i == first_guess {
                    guessed.copy_from_slice(state);
                }
                let state = if i < first_guess { &mut *state } else { &mut *guessed };
                self.vector.ssm_head(&head, state, out);
                if i >= span.redo.len {
                    let z = &self.z[token * inner + h * s.dim..][..s.dim];
                    out.iter_mut().zip(z).for_each(|(y, z)| *y *= z / (1.0 + (-z).exp()));
                }
            }
            for i in 0..span.guesses {
                let token = span.start + span.len - span.guesses + i;
                let at = self.store.kept_at(span, i, channels + h);
                self.store.kept.part(at, 1)[0] = self.dt[token * s.heads + h];
            }
        }
    }
}

pub(super) fn short_conv(
    team: &mut Team,
    vector: &VectorKernels,
    scratch: &mut Scratch,
    batch: &Batch,
    s: &ShortConv<Cpu>,
    layer: &mut LayerStore,
    bcx: &[f32],
    out: &mut [f32],
) {
    let width = s.width;
    let store = Store::open(layer, batch, width, (s.taps - 1) * width, 0);
    assert!(bcx.len() >= batch.len() * 3 * width && s.conv.len() >= s.taps * width);
    let delta = &mut scratch.delta;
    let tokens = delta.place_spans(batch);
    let rows = batch.len();
    assert!(delta.q.len() >= rows * width && delta.v.len() >= tokens * width, "a step of the planned size");
    let (product, y) = (Shards::new(&mut delta.q), Shards::new(&mut delta.v));
    let (starts, out) = (&delta.starts, Shards::new(out));
    team.run(|w| {
        let shape = Conv {
            weights: s.conv.as_ptr(),
            weights_stride: width,
            input: std::ptr::null(),
            input_stride: width,
            state: std::ptr::null_mut(),
            state_stride: width,
            out: std::ptr::null_mut(),
            out_stride: width,
            tokens: 0,
            guesses: 0,
            channels: CHANNELS,
            taps: s.taps,
            bias: std::ptr::null(),
            silu: false,
        };
        for t in w.items(rows) {
            let [b, _, x] = [0, 1, 2].map(|i| &bcx[(3 * t + i) * width..][..width]);
            // SAFETY: each token is one thread's.
            let row = unsafe { product.part(t * width, width) };
            row.iter_mut().zip(b.iter().zip(x)).for_each(|(p, (b, x))| *p = b * x);
        }
        w.barrier();
        // SAFETY: written before the barrier.
        let input = unsafe { product.read(0, rows * width) };
        let parts = width.div_ceil(CHANNELS);
        for i in w.items(batch.spans().len() * parts) {
            let (span, channel) = (&batch.spans()[i / parts], i % parts * CHANNELS);
            let (start, len) = (starts[i / parts], span.recurrent_len());
            if len == 0 {
                continue;
            }
            let shape = Conv { channels: CHANNELS.min(width - channel), ..shape };
            // SAFETY: each item has channels of a span of its own; the sizes were checked.
            unsafe {
                let y = y.ptr(start * width + channel, (len - 1) * width + shape.channels);
                convolve(vector, &store, span, &shape, channel, input, y);
                for t in 0..span.len {
                    let row = std::slice::from_raw_parts(y.add((span.redo.len + t) * width), shape.channels);
                    let c = &bcx[(3 * (span.start + t) + 1) * width + channel..][..shape.channels];
                    let out = out.part((span.start + t) * width + channel, shape.channels);
                    out.iter_mut().zip(row.iter().zip(c)).for_each(|(o, (y, c))| *o = y * c);
                }
            }
        }
    });
}
