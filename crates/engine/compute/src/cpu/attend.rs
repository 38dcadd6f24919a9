//! The verbs `rope_store` and `attend`: keys and values into pages, and attention over them.

use super::device::Cpu;
use super::huge::HugeVec;
use super::memory::LayerStore;
use super::scratch::Scratch;
use super::team::{Shards, Team};
use super::vector::{KvData, KvPages, QueryTile, VectorKernels, partial_len, rope_angles};
use crate::backend::{Attention, KvType, KvTypes};
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
fn norm_whole(row: &mut [f32], w: &[f32], eps: f32) {
    let squares: f32 = row.iter().map(|x| x * x).sum();
    let scale = 1.0 / (squares / row.len() as f32 + eps).sqrt();
    row.iter_mut().zip(w).for_each(|(x, w)| *x *= scale * w);
}

pub(super) fn rope_store(
    team: &mut Team,
    vector: &VectorKernels,
    batch: &Batch,
    a: &Attention<Cpu>,
    ty: KvTypes,
    layer: &mut LayerStore,
    q: &mut [f32],
    k: &mut [f32],
    v: &[f32],
) {
    let LayerStore::Kv { keys, values, .. } = layer else {
        unreachable!("an attention layer has keys and values")
    };
    let (d, pairs) = (a.head_dim, a.rope_dims / 2);
    let stride = if a.gated { 2 * d } else { d };
    let whole = a.qk_norm.as_ref().filter(|n| n.0.len() != d);
    let of_heads = a.qk_norm.as_ref().filter(|_| whole.is_none());
    assert!(whole.is_none_or(|n| !a.gated && (n.0.len(), n.1.len()) == (a.heads * d, a.kv_heads * d)));
    let (q, k) = (Shards::new(q), Shards::new(k));
    let (keys, values) = (Shards::new(keys), Shards::new(values));
    team.run(|w| {
        let (mut cos, mut sin) = ([0.0; MAX_PAIRS], [0.0; MAX_PAIRS]);
        let (cos, sin) = (&mut cos[..pairs], &mut sin[..pairs]);
        for t in w.items(batch.len()) {
            let position = batch.positions()[t];
            rope_angles(position, &a.inv_freq[..pairs], a.rope_scale, cos, sin);
            if let Some((wq, wk)) = whole {
                // SAFETY: each token is one thread's.
                let rows =
                    unsafe { [(q.part(t * wq.len(), wq.len()), wq), (k.part(t * wk.len(), wk.len()), wk)] };
                rows.into_iter().for_each(|(row, w)| norm_whole(row, w, a.eps));
            }
            for h in 0..a.heads {
                // SAFETY: each token is one thread's.
                let head = unsafe { q.part((t * a.heads + h) * stride, d) };
                vector.norm_rope(head, of_heads.map(|n| &n.0[..]), a.eps, cos, sin, a.rope_pairing);
            }
            let span = span_of(batch, t);
            let (page, row) = batch.page_of(span, position as usize);
            for h in 0..a.kv_heads {
                // SAFETY: as above.
                let head = unsafe { k.part((t * a.kv_heads + h) * d, d) };
                vector.norm_rope(head, of_heads.map(|n| &n.1[..]), a.eps, cos, sin, a.rope_pairing);
                let value = &v[(t * a.kv_heads + h) * d..][..d];
                let row = (page * a.kv_heads + h) * PAGE_TOKENS + row;
                for (ty, x, all) in [(ty.keys, &*head, &keys), (ty.values, value, &values)] {
                    let len = ty.row_bytes(d);
                    // SAFETY: tokens of a batch have places of their own in the cache: `Batch::push` sees to it.
                    store(vector, ty, x, unsafe { all.part(row * len, len) });
                }
            }
        }
    });
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
    let LayerStore::Kv { keys, values, .. } = layer else {
        unreachable!("an attention layer has keys and values")
    };
    let (d, heads, len) = (a.head_dim, a.heads, partial_len(a.head_dim));
    let stride = if a.gated { 2 * d } else { d };
    let rows = scratch.partials.len() / len;
    scratch.attend.fill(batch, heads, a.kv_heads, team.threads(), rows);
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
                values: kv_data(values, ty.values),
                kv_heads: a.kv_heads,
                head_dim: d,
                table: &batch.pages()[span.pages..],
            };
            let tile = QueryTile {
                q: &q[item.token * heads * stride..],
                heads,
                gated: a.gated,
                tokens: item.tokens,
                position: span.past + item.token - span.start,
                kv_head: item.kv_head,
            };
            // SAFETY: each item has partial results, or heads of its tokens, of its own.
            unsafe {
                match item.split {
                    Some((chunk, row)) => {
                        let partials = partials.part(row * len, heads / a.kv_heads * len);
                        vector.attend_chunk(&kv, &tile, chunk, own, partials);
                    }
                    None => {
                        let out = out.ptr(item.token * heads * d, item.tokens * heads * d);
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
            let gate = a.gated.then(|| &q[at..at + d]);
            // SAFETY: partial results are only read after the barrier; each item has a head of its own.
            let (partials, out) = unsafe {
                let rows = split.chunks * heads - h;
                (partials.read((split.row + h) * len, rows * len), out.part((split.token * heads + h) * d, d))
            };
            vector.attend_merge(partials, heads * len, split.chunks, gate, own, out);
        }
    });
}

/// Bytes of keys and values that one call reads.
pub(super) fn bytes(batch: &Batch, a: &Attention<Cpu>, ty: KvTypes) -> usize {
    let positions: usize = batch.spans().iter().map(|s| s.past + s.len).sum();
    let row = ty.keys.row_bytes(a.head_dim) + ty.values.row_bytes(a.head_dim);
    positions * a.kv_heads * row
}
