//! The verbs `rope_store` and `attend`: keys and values into pages, and attention over them.

use super::device::Cpu;
use super::huge::HugeVec;
use super::memory::LayerStore;
use super::scratch::Scratch;
use super::team::{Shards, Team};
use super::vector::{
    KvData, KvPages, QueryTile, VectorKernels, partial_len, rope_angles, rope_angles_by_axis,
};
use crate::backend::{Attention, KvType, KvTypes, Norm, RopePairing};
use crate::batch::{Batch, PAGE_TOKENS, Span};

/// Maximum number of rotated pairs of a head.
const MAX_PAIRS: usize = 512;

fn kv_data(bytes: &HugeVec, ty: KvType) -> KvData<'_> {
    // SAFETY: mapped memory is aligned to 64 bytes, lengths are whole values, and any bits are a value.
    unsafe {
        match ty {
            KvType::F32 => KvData::F32(std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / 4)),
            KvType::F16 => KvData::F16(std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / 2)),
            KvType::Q8_0 => KvData::Q8_0(bytes),
        }
    }
}

/// Writes one head of a key or a value to its place, in the cache's type.
fn store(vector: &VectorKernels, ty: KvType, x: &[f32], out: &mut [u8]) {
    match ty {
        KvType::F32 => {
            for (x, out) in x.iter().zip(out.chunks_exact_mut(4)) {
                out.copy_from_slice(&x.to_ne_bytes());
            }
        }
        KvType::F16 => {
            // SAFETY: the cache is aligned to 64 bytes, and heads start at multiples of their own size in values.
            vector.to_f16(x, unsafe { std::slice::from_raw_parts_mut(out.as_mut_ptr().cast(), x.len()) });
        }
        KvType::Q8_0 => vector.to_q8_0(x, out),
    }
}

/// RMS norm of all heads of a token together. Few models have it: plain code, the same for every instruction set.
fn norm_whole(row: &mut [f32], norm: &Norm<Cpu>) {
    let squares: f32 = row.iter().map(|x| x * x).sum();
    let scale = 1.0 / (squares / row.len() as f32 + norm.eps).sqrt();
    row.iter_mut().zip(norm.weight.iter()).for_each(|(x, w)| *x *= scale * w);
}

/// Sines and cosines of a token's position.
struct Angles<'a> {
    cos: &'a [f32],
    sin: &'a [f32],
    /// The first rotated dimension, and how dimensions are paired.
    at: usize,
    pairing: RopePairing,
    /// The rotated dimensions are this many parts, each paired within itself.
    parts: usize,
}

impl Angles<'_> {
    /// Rotates a head in place.
    fn rotate(&self, vector: &VectorKernels, head: &mut [f32]) {
        let Self { cos, sin, at, pairing, parts } = *self;
        if parts == 1 {
            return vector.norm_rope(&mut head[at..], None, 0.0, cos, sin, pairing);
        }
        let pairs = cos.len() / parts;
        for part in 0..parts {
            let (from, angles) = (at + part * 2 * pairs, part * pairs..(part + 1) * pairs);
            vector.norm_rope(&mut head[from..], None, 0.0, &cos[angles.clone()], &sin[angles], pairing);
        }
    }
}

/// The norm and the rotation of the heads of a token `[heads, stride]`, in place.
fn prepare(
    vector: &VectorKernels,
    a: &Attention<Cpu>,
    row: &mut [f32],
    stride: usize,
    norm: Option<&Norm<Cpu>>,
    angles: &Angles,
) {
    let d = a.k_dim;
    let (whole, of_heads) = match norm {
        Some(n) if n.len > d => (norm, None),
        _ => (None, norm),
    };
    if let Some(norm) = whole.filter(|_| !a.norm_last) {
        norm_whole(row, norm);
    }
    for head in row.chunks_exact_mut(stride) {
        let head = &mut head[..d];
        match of_heads {
            // The usual case is one pass.
            Some(n) if n.len == d && !n.centred && !a.norm_last && angles.at == 0 && angles.parts == 1 => {
                vector.norm_rope(head, Some(&n.weight[..]), n.eps, angles.cos, angles.sin, angles.pairing);
                continue;
            }
            Some(n) if !a.norm_last => norm_head(vector, head, n),
            _ => {}
        }
        angles.rotate(vector, head);
        if let Some(n) = of_heads.filter(|_| a.norm_last) {
            norm_head(vector, head, n);
        }
    }
    if let Some(norm) = whole.filter(|_| a.norm_last) {
        norm_whole(row, norm);
    }
}

/// A norm of the first dimensions of a head, in place.
fn norm_head(vector: &VectorKernels, head: &mut [f32], norm: &Norm<Cpu>) {
    let head = &mut head[..norm.len];
    if norm.centred {
        let mean = head.iter().sum::<f32>() / head.len() as f32;
        head.iter_mut().for_each(|x| *x -= mean);
    }
    vector.norm_rope(head, Some(&norm.weight[..]), norm.eps, &[], &[], RopePairing::Half);
    if let Some(bias) = &norm.bias {
        vector.add(head, &bias[..norm.len]);
    }
}

pub(super) fn rope_store(
    team: &mut Team,
    vector: &VectorKernels,
    batch: &Batch,
    a: &Attention<Cpu>,
    ty: KvTypes,
    layer: &mut LayerStore,
    q: &mut [f32],
    kv: Option<(&mut [f32], &[f32])>,
) {
    let LayerStore::Kv { keys, values, group, .. } = layer else {
        unreachable!("an attention layer has keys and values")
    };
    let group = *group;
    let (d, pairs) = (a.k_dim, a.rope.as_ref().map_or(0, |r| r.dims / 2));
    let stride = if a.gated { 2 * d } else { d };
    let mut none = [];
    let (k, v) = kv.map_or((None, &[][..]), |(k, v)| (Some(k), v));
    let stores = k.is_some();
    let (q, k) = (Shards::new(q), Shards::new(k.unwrap_or(&mut none)));
    let (keys, values) = (Shards::new(keys), Shards::new(values));
    team.run(|w| {
        let (mut cos, mut sin) = ([0.0; MAX_PAIRS], [0.0; MAX_PAIRS]);
        let (cos, sin) = (&mut cos[..pairs], &mut sin[..pairs]);
        for t in w.items(batch.len()) {
            let position = batch.positions()[t];
            let axes = a.rope.as_ref().and_then(|r| r.axes.as_ref());
            match (&a.rope, axes, batch.turns()) {
                (Some(r), Some(axes), Some(turns)) => {
                    rope_angles_by_axis(turns[t], &axes.of_pair, &r.inv_freq[..pairs], r.scale, cos, sin);
                }
                (Some(r), ..) => rope_angles(position, &r.inv_freq[..pairs], r.scale, cos, sin),
                (None, ..) => {}
            }
            let (at, pairing) = a.rope.as_ref().map_or((0, RopePairing::Half), |r| (r.at, r.pairing));
            let angles = Angles { cos, sin, at, pairing, parts: axes.map_or(1, |a| a.parts) };
            // SAFETY: each token is one thread's.
            let row = unsafe { q.part(t * a.heads * stride, a.heads * stride) };
            prepare(vector, a, row, stride, a.norms[0].as_ref(), &angles);
            if let Some([scale, n, first]) = a.position_scale {
                let factor = 1.0 + scale * (1.0 + ((position as f32 + first) / n).floor()).ln();
                row.chunks_exact_mut(stride).for_each(|head| head[..d].iter_mut().for_each(|x| *x *= factor));
            }
            if !stores {
                continue;
            }
            // SAFETY: as above.
            let row = unsafe { k.part(t * a.kv_heads * d, a.kv_heads * d) };
            prepare(vector, a, row, d, a.norms[1].as_ref(), &angles);
            let (page, slot) = batch.page_of(span_of(batch, t), group, position as usize);
            let place = |h: usize| (page * a.kv_heads + h) * PAGE_TOKENS + slot;
            // SAFETY: tokens of a batch have places of their own in the cache: `Batch::push` sees to it.
            unsafe {
                for (h, x) in row.chunks_exact(d).enumerate() {
                    let len = ty.keys.row_bytes(d);
                    store(vector, ty.keys, x, keys.part(place(h) * len, len));
                }
                if !a.values_in_keys {
                    let row = &v[t * a.kv_heads * a.v_dim..][..a.kv_heads * a.v_dim];
                    let len = ty.values.row_bytes(a.v_dim);
                    for (h, x) in row.chunks_exact(a.v_dim).enumerate() {
                        store_value(vector, a, ty.values, x, values.part(place(h) * len, len));
                    }
                }
            }
        }
    });
}

/// Maximum dimensions of a value head that is normalised or scaled.
const MAX_VALUE: usize = 1024;

/// Stores a value, after its norm and scale if the layer has them.
fn store_value(vector: &VectorKernels, a: &Attention<Cpu>, ty: KvType, x: &[f32], out: &mut [u8]) {
    if a.norms[2].is_none() && a.value_scale == 1.0 {
        return store(vector, ty, x, out);
    }
    let mut room = [0.0; MAX_VALUE];
    let value = &mut room[..x.len()];
    value.copy_from_slice(x);
    if let Some(norm) = &a.norms[2] {
        norm_head(vector, value, norm);
    }
    value.iter_mut().for_each(|x| *x *= a.value_scale);
    store(vector, ty, value, out);
}

fn span_of(batch: &Batch, token: usize) -> &Span {
    let i = batch.spans().partition_point(|s| s.start + s.len <= token);
    &batch.spans()[i]
}

pub(super) fn attend(
    team: &mut Team,
    vector: &VectorKernels,
    scratch: &mut Scratch,
    batch: &Batch,
    a: &Attention<Cpu>,
    ty: KvTypes,
    layer: &LayerStore,
    q: &[f32],
    out: &mut [f32],
) {
    let LayerStore::Kv { keys, values, group, .. } = layer else {
        unreachable!("an attention layer has keys and values")
    };
    let (d, dv, heads, len) = (a.k_dim, a.v_dim, a.heads, partial_len(a.v_dim));
    let stride = if a.gated { 2 * d } else { d };
    let rows = scratch.partials.len() / len;
    let blocks = batch.blocks().filter(|_| a.two_way);
    scratch.attend.fill(batch, heads, a.kv_heads, a.window, blocks.is_some(), team.threads(), rows);
    let plan = &scratch.attend;
    let (partials, threads, per_thread) =
        (Shards::new(&mut scratch.partials), Shards::new(&mut scratch.threads), scratch.per_thread);
    let out = Shards::new(out);
    team.run(|w| {
        // SAFETY: each thread has a part of its own.
        let own = unsafe { threads.part(w.id * per_thread, per_thread) };
        for i in w.items(plan.items.len()) {
            let item = &plan.items[i];
            let span = &batch.spans()[item.span];
            let kv = KvPages {
                keys: kv_data(keys, ty.keys),
                values: if a.values_in_keys { kv_data(keys, ty.keys) } else { kv_data(values, ty.values) },
                kv_heads: a.kv_heads,
                k_dim: d,
                v_dim: dv,
                v_row: if a.values_in_keys { d } else { dv },
                table: batch.table(span, *group),
            };
            let tile = QueryTile {
                q: &q[item.token * heads * stride..],
                heads,
                gated: a.gated,
                tokens: item.tokens,
                position: span.past + item.token - span.start,
                kv_head: item.kv_head,
                window: a.window,
                blocks: blocks.map(|b| &b[item.token..item.token + item.tokens]),
                scale: a.scale,
                softcap: a.softcap,
                sinks: a.sinks.as_deref(),
            };
            // SAFETY: each item has partial results, or heads of its tokens, of its own.
            unsafe {
                match item.split {
                    Some((chunk, row)) => {
                        let partials = partials.part(row * len, heads / a.kv_heads * len);
                        vector.attend_chunk(&kv, &tile, chunk, own, partials);
                    }
                    None => {
                        let out = out.ptr(item.token * heads * dv, item.tokens * heads * dv);
                        vector.attend_tile(&kv, &tile, own, out);
                    }
                }
            }
        }
        if plan.splits.is_empty() {
            return;
        }
        w.barrier();
        for i in w.items(plan.splits.len() * heads) {
            let (split, h) = (&plan.splits[i / heads], i % heads);
            let at = (split.token * heads + h) * stride + d;
            let gate = a.gated.then(|| &q[at..at + dv]);
            let sink = a.sinks.as_ref().map(|s| s[h]);
            // SAFETY: partial results are only read after the barrier; each item has a head of its own.
            let (partials, out) = unsafe {
                let rows = split.chunks * heads - h;
                (
                    partials.read((split.row + h) * len, rows * len),
                    out.part((split.token * heads + h) * dv, dv),
                )
            };
            vector.attend_merge(partials, heads * len, split.chunks, gate, sink, own, out);
        }
    });
}

/// Bytes of keys and values that one call reads.
pub(super) fn bytes(batch: &Batch, a: &Attention<Cpu>, ty: KvTypes) -> usize {
    let seen = |s: &Span| s.past + s.len - a.window.first(s.past);
    let positions: usize = batch.spans().iter().map(seen).sum();
    let values = if a.values_in_keys { 0 } else { ty.values.row_bytes(a.v_dim) };
    positions * a.kv_heads * (ty.keys.row_bytes(a.k_dim) + values)
}
