//! What is done with whole rows: norms, copies, several residual streams.

use super::device::Cpu;
use super::linear::norm_row;
use super::memory::Buf;
use super::scratch::Scratch;
use super::team::{Shards, Team};
use super::vector::VectorKernels;
use crate::backend::{AltUp, MAX_STREAMS, Norm, Out};

/// See [`crate::Backend::norm`].
pub(super) fn norm(
    team: &mut Team,
    vector: &VectorKernels,
    s: &mut Scratch,
    n: usize,
    x: Option<&Buf>,
    norm: &Norm<Cpu>,
    out: Out<Cpu>,
) {
    let len = norm.len;
    let (threads, per_thread) = (Shards::new(&mut s.threads), s.per_thread);
    let (out, add) = match out {
        Out::Write(out) => (Shards::new(out), None),
        Out::Add(out, scale) => (Shards::new(out), Some(scale)),
    };
    team.run(|w| {
        for t in w.items(n) {
            // SAFETY: each token is one thread's, and each thread has a part of its own.
            let (row, own) = unsafe { (out.part(t * len, len), threads.part(w.id * per_thread, per_thread)) };
            let own = &mut own[..len];
            let x = x.map_or(&*row, |x| &x[t * len..(t + 1) * len]);
            norm_row(vector, norm, x, own);
            match add {
                None => row.copy_from_slice(own),
                Some(scale) => vector.add_scaled(row, own, scale),
            }
        }
    });
}

/// See [`crate::Backend::place`]: a few rows of a prompt are not worth a region.
pub(super) fn place(
    vector: &VectorKernels,
    to: &[u32],
    width: usize,
    x: &[f32],
    [at, stride]: [usize; 2],
    out: Out<Cpu>,
) {
    let (out, scale) = match out {
        Out::Write(out) => (out, None),
        Out::Add(out, scale) => (out, Some(scale)),
    };
    for (i, &row) in to.iter().enumerate() {
        let (x, row) = (&x[i * stride + at..][..width], &mut out[row as usize * width..][..width]);
        match scale {
            None => row.copy_from_slice(x),
            Some(scale) => vector.add_scaled(row, x, scale),
        }
    }
}

/// Columns that a thread computes at a time: a step of one token is shared, too.
const COLUMNS: usize = 512;

/// Some columns of a token's streams.
pub(super) struct Columns<'a> {
    h: &'a mut [f32],
    kept: &'a mut [f32],
    /// The other streams.
    rest: [&'a mut [f32]; MAX_STREAMS - 1],
    /// Factors of the stream that goes through the layer.
    scale: &'a [f32],
}

/// `work` on all columns of all tokens, with `tanh` of what the token's router gave.
pub(super) fn streams(
    team: &mut Team,
    n: usize,
    a: &AltUp<Cpu>,
    routed: &[f32],
    [h, rest, kept]: [&mut Buf; 3],
    work: impl Fn(&AltUp<Cpu>, &[f32], Columns) + Sync,
) {
    let (width, others) = (a.width, a.streams - 1);
    let (h, rest, kept) = (Shards::new(h), Shards::new(rest), Shards::new(kept));
    let parts = width.div_ceil(COLUMNS);
    team.run(|w| {
        for item in w.items(n * parts) {
            let (t, from) = (item / parts, item % parts * COLUMNS);
            let len = COLUMNS.min(width - from);
            // SAFETY: each part of each token is one thread's.
            let [h, kept] = [&h, &kept].map(|x| unsafe { x.part(t * width + from, len) });
            let rest = std::array::from_fn(|i| match i < others {
                // SAFETY: likewise.
                true => unsafe { rest.part((t * others + i) * width + from, len) },
                false => &mut [][..],
            });
            let mut modes = [0.0; MAX_STREAMS];
            modes.iter_mut().zip(&routed[t * a.streams..][..a.streams]).for_each(|(m, x)| *m = x.tanh());
            let scale = &a.scale[from..from + len];
            work(a, &modes[..a.streams], Columns { h, kept, rest, scale });
        }
    });
}

fn weight(row: &[f32], modes: &[f32]) -> f32 {
    row.iter().zip(modes).map(|(w, m)| w * m).sum()
}

/// See [`crate::Backend::predict_streams`].
pub(super) fn predict(a: &AltUp<Cpu>, modes: &[f32], c: Columns) {
    let s = a.streams;
    let mut weights = [[0.0; MAX_STREAMS]; MAX_STREAMS];
    for (i, row) in weights.iter_mut().enumerate().take(s) {
        for (j, x) in row.iter_mut().enumerate().take(s) {
            *x = weight(&a.predict[(i * s + j) * s..][..s], modes);
        }
    }
    let Columns { h, kept, rest, .. } = c;
    let len = h.len();
    let mut old = [[0.0; COLUMNS]; MAX_STREAMS];
    old[0][..len].copy_from_slice(h);
    for (old, stream) in old[1..s].iter_mut().zip(&rest) {
        old[..len].copy_from_slice(stream);
    }
    for (i, weights) in weights[..s].iter().enumerate() {
        let stream = if i == 0 { &mut *h } else { &mut *rest[i - 1] };
        for (weight, old) in weights.iter().zip(&old[..s]) {
            stream.iter_mut().zip(old).for_each(|(x, old)| *x += weight * old);
        }
    }
    kept.copy_from_slice(h);
}

/// See [`crate::Backend::correct_streams`].
pub(super) fn correct(a: &AltUp<Cpu>, modes: &[f32], c: Columns) {
    let s = a.streams;
    let weight = |i: usize| 1.0 + weight(&a.correct[i * s..][..s], modes);
    let Columns { h, kept, mut rest, scale } = c;
    for (i, stream) in rest[..s - 1].iter_mut().enumerate() {
        let weight = weight(i + 1);
        for ((x, h), kept) in stream.iter_mut().zip(&*h).zip(&*kept) {
            *x += weight * (h - kept);
        }
    }
    let weight = weight(0);
    for ((h, kept), scale) in h.iter_mut().zip(kept).zip(scale) {
        *h = *kept + weight * (*h - *kept);
        *kept = scale * *h;
    }
}
