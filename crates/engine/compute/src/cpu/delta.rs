//! The verb `gdn`: convolution, delta rule and gated norm, shared out by heads.
//!
//! Guesses leave no trace in a state. Their inputs are kept beside it, and those that were right go through the recurrence once more,
//! in front of the tokens of the next step. That costs arithmetic on a state that is read and written for these tokens anyway; for
//! Qwen3.5-35B-A3B 1 MB of inputs a guess is kept, where a copy of the states has 63 MB.

use super::device::Cpu;
use super::memory::LayerStore;
use super::scratch::Scratch;
use super::team::{Shards, Team};
use super::vector::{Conv, GDN_COLUMNS, GdnColumns, VectorKernels};
use crate::backend::{Gdn, HeadOrder};
use crate::batch::{Batch, Span};

/// Inputs of the verb: see [`crate::Backend::gdn`].
pub(super) struct Inputs<'a> {
    pub qkv: &'a [f32],
    pub z: &'a [f32],
    pub b: &'a [f32],
    pub alpha: &'a [f32],
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
    let LayerStore::Gdn { conv, conv_len, state, state_len, kept, kept_rows } = layer else {
        unreachable!("a Gated DeltaNet layer has a state")
    };
    let (conv_len, state_len, kept_rows) = (*conv_len, *state_len, *kept_rows);
    let (channels, taps) = (g.channels(), g.conv_kernel);
    let (k_dim, v_dim, v_heads) = (g.k_dim, g.v_dim, g.v_heads);
    let kept_len = channels + 2 * v_heads; // rows of `qkv`, `b` and `alpha`
    // What the pointers below rely on. Of the batch they rely on slots that differ, which `Batch::push` sees to.
    assert!(
        conv_len == (taps - 1) * channels && state_len == v_heads * k_dim * v_dim,
        "a cache of this shape"
    );
    assert!(
        g.conv.len() >= taps * channels
            && inputs.qkv.len() >= batch.len() * channels
            && inputs.b.len() >= batch.len() * v_heads
            && inputs.alpha.len() >= batch.len() * v_heads,
        "weights and inputs of this shape"
    );
    for s in batch.spans() {
        assert!(s.guesses.max(s.redo.first + s.redo.len) <= kept_rows, "as many guesses as the cache holds");
    }
    let s = &mut scratch.delta;
    s.starts.clear();
    let mut n = 0; // tokens, those to redo included
    for span in batch.spans() {
        s.starts.push(n);
        n += span.recurrent_len();
    }
    assert!(s.beta.len() >= n * v_heads && s.v.len() >= n * v_heads * v_dim, "a step of the planned size");
    let starts = &s.starts[..];
    let (q, k, kq, v) =
        (Shards::new(&mut s.q), Shards::new(&mut s.k), Shards::new(&mut s.kq), Shards::new(&mut s.v));
    let (beta, decay) = (Shards::new(&mut s.beta), Shards::new(&mut s.decay));
    let (conv, state, out) = (Shards::new(conv), Shards::new(state), Shards::new(out));
    let kept = Shards::new(kept);
    let (threads, per_thread) = (Shards::new(&mut scratch.threads), scratch.per_thread);
    // Where the inputs of guess `i` of a slot are kept, from value `at` on.
    let kept_at = |span: &Span, i: usize, at: usize| (span.slot * kept_rows + i) * kept_len + at;

    // One head of the convolution over a span: `channel` is its first, `out` its place for the span's first token.
    let convolve = |span: &Span, channel: usize, width: usize, out: *mut f32| {
        // SAFETY: each (slot, channel) and each place in `out` belongs to one item, for spans of a batch have slots of their
        // own. Inputs have `n` rows; as many are kept as were checked above.
        unsafe {
            let item = Conv {
                weights: g.conv[channel..].as_ptr(),
                weights_stride: channels,
                input: std::ptr::null(),
                input_stride: channels,
                state: conv.ptr(span.slot * conv_len, conv_len).add(channel),
                state_stride: channels,
                out,
                out_stride: width,
                tokens: span.len,
                guesses: span.guesses,
                channels: width,
                taps,
            };
            let redo = span.redo;
            if redo.len > 0 {
                let first = kept_at(span, redo.first, channel);
                vector.conv_silu(&Conv {
                    input: kept.ptr(first, (redo.len - 1) * kept_len + width),
                    input_stride: kept_len,
                    tokens: redo.len,
                    guesses: 0,
                    ..item
                });
            }
            if span.len > 0 {
                let input = inputs.qkv[span.start * channels + channel..].as_ptr();
                vector.conv_silu(&Conv { input, out: out.add(redo.len * width), ..item });
            }
            for i in 0..span.guesses {
                let row = (span.start + span.len - span.guesses + i) * channels + channel;
                kept.part(kept_at(span, i, channel), width).copy_from_slice(&inputs.qkv[row..row + width]);
            }
        }
    };

    team.run(|w| {
        let per_span = g.k_heads + v_heads + 1;
        for i in w.items(batch.spans().len() * per_span) {
            let (span, head) = (&batch.spans()[i / per_span], i % per_span);
            let (start, len) = (starts[i / per_span], span.recurrent_len());
            // SAFETY: each item writes heads, or gates, of its own span.
            unsafe {
                if head < g.k_heads {
                    let at = (head * n + start) * k_dim;
                    let (q, k) = (q.part(at, len * k_dim), k.part(at, len * k_dim));
                    convolve(span, head * k_dim, k_dim, q.as_mut_ptr());
                    convolve(span, (g.k_heads + head) * k_dim, k_dim, k.as_mut_ptr());
                    vector.gdn_keys(k_dim, q, k, kq.part(head * n + start, len));
                } else if head < g.k_heads + v_heads {
                    let head = head - g.k_heads;
                    let v = v.part((head * n + start) * v_dim, len * v_dim);
                    convolve(span, 2 * g.k_heads * k_dim + head * v_dim, v_dim, v.as_mut_ptr());
                } else {
                    let at = |i: usize| (start + i) * v_heads;
                    for i in 0..span.redo.len {
                        let row = kept.part(kept_at(span, span.redo.first + i, channels), 2 * v_heads);
                        let (b, alpha) = row.split_at(v_heads);
                        vector.gdn_beta(beta.part(at(i), v_heads), b);
                        vector.gdn_decay(decay.part(at(i), v_heads), alpha, &g.dt_bias, &g.a);
                    }
                    for (i, row) in (span.start..span.start + span.len).enumerate() {
                        let range = row * v_heads..(row + 1) * v_heads;
                        let (b, alpha) = (&inputs.b[range.clone()], &inputs.alpha[range]);
                        let to = at(span.redo.len + i);
                        vector.gdn_beta(beta.part(to, v_heads), b);
                        vector.gdn_decay(decay.part(to, v_heads), alpha, &g.dt_bias, &g.a);
                        if let Some(guess) = (i + span.guesses).checked_sub(span.len) {
                            let row = kept.part(kept_at(span, guess, channels), 2 * v_heads);
                            row[..v_heads].copy_from_slice(b);
                            row[v_heads..].copy_from_slice(alpha);
                        }
                    }
                }
            }
        }
        w.barrier();
        // SAFETY: each thread has a part of its own.
        let own = unsafe { threads.part(w.id * per_thread, per_thread) };
        for i in w.items(batch.spans().len() * v_heads) {
            let (span, head) = (&batch.spans()[i / v_heads], i % v_heads);
            let (start, len, redo) = (starts[i / v_heads], span.recurrent_len(), span.redo.len);
            if len == 0 {
                continue;
            }
            let k_head = match g.order {
                HeadOrder::Grouped => head / (v_heads / g.k_heads),
                HeadOrder::Tiled => head % g.k_heads,
            };
            // A single token reads its state once, row after row; more keep a part of it in the first-level cache.
            let columns = if len == 1 { v_dim } else { GDN_COLUMNS };
            // SAFETY: each (slot, head) and its outputs belong to one item, for spans of a batch have slots of their own; the
            // rest is only read after the barrier.
            unsafe {
                let v = v.part((head * n + start) * v_dim, len * v_dim);
                let state = state.part(span.slot * state_len + head * k_dim * v_dim, k_dim * v_dim);
                for column in (0..v_dim).step_by(columns) {
                    let item = GdnColumns {
                        state: state[column..].as_mut_ptr(),
                        state_stride: v_dim,
                        q: q.ptr((k_head * n + start) * k_dim, len * k_dim),
                        k: k.ptr((k_head * n + start) * k_dim, len * k_dim),
                        qk_stride: k_dim,
                        kq: kq.ptr(k_head * n + start, len),
                        beta: beta.ptr(start * v_heads, len * v_heads).add(head),
                        decay: decay.ptr(start * v_heads, len * v_heads).add(head),
                        gate_stride: v_heads,
                        v: v[column..].as_mut_ptr(),
                        v_stride: v_dim,
                        tokens: len,
                        guesses: span.guesses,
                        k_dim,
                        columns: columns.min(v_dim - column),
                    };
                    vector.gdn_columns(&item, own);
                }
                // what is redone has had its outputs in its own step
                for (i, o) in v.chunks_exact(v_dim).skip(redo).enumerate() {
                    let at = ((span.start + i) * v_heads + head) * v_dim;
                    vector.gated_rms_norm(o, &g.norm, g.eps, &inputs.z[at..at + v_dim], out.part(at, v_dim));
                }
            }
        }
    });
}

/// Bytes of state that one call reads and writes.
pub(super) fn bytes(batch: &Batch, g: &Gdn<Cpu>) -> usize {
    let state = g.v_heads * g.k_dim * g.v_dim + (g.conv_kernel - 1) * g.channels();
    2 * 4 * state * batch.spans().len()
}
