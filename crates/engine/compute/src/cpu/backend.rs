//! The verbs on a CPU: parallel regions of the team.

use octet_weights::Matrix;

use super::device::Cpu;
use super::huge::HugeVec;
use super::linear::{self, Input, Norm, Output};
use super::memory::{Buf, Cache, LayerStore, Weight};
use super::pack::Packed;
use super::profile::Verb;
use super::scratch::Scratch;
use super::team::Shards;
use super::{attend, delta, mlp, moe};
use crate::ExpertCounts;
use crate::backend::*;
use crate::batch::Batch;

const NO_SCRATCH: &str = "steps are run after `cache` has been called";

impl Backend for Cpu {
    type Buf = Buf;
    type Weight = Weight;
    type Experts = Packed;
    type Embedding = Matrix;
    type Cache = Cache;

    fn buf(&mut self, len: usize) -> Result<Buf, Error> {
        Buf::zeroed(len)
    }
    fn vector(&mut self, values: &[f32]) -> Result<Buf, Error> {
        let mut b = Buf::zeroed(values.len())?;
        b.copy_from_slice(values);
        Ok(b)
    }
    fn weight(&mut self, m: &Matrix, bias: Option<&[f32]>) -> Result<Weight, Error> {
        self.widest = self.widest.max(m.cols);
        Ok(Weight { packed: self.pack(std::slice::from_ref(m))?, bias: bias.map(<[f32]>::to_vec) })
    }
    fn experts(&mut self, m: &[Matrix]) -> Result<Packed, Error> {
        self.widest = self.widest.max(m.first().map_or(0, |m| m.cols));
        self.pack(m)
    }
    fn embedding(&mut self, m: &Matrix) -> Result<Matrix, Error> {
        Ok(m.clone())
    }
    fn cache(&mut self, shape: &CacheShape, step: StepShape) -> Result<Cache, Error> {
        shape.check()?;
        self.scratch = Some(Scratch::new(shape, step, self.team.threads(), self.widest)?);
        let layer = |l: &LayerCache| match *l {
            LayerCache::Kv { .. } => {
                let page = l.page_parts(shape.kv);
                let zeroed = |page: usize| {
                    let bytes =
                        page.checked_mul(shape.pages).ok_or_else(|| Error("a cache too large".into()))?;
                    HugeVec::zeroed(bytes)
                        .map_err(|e| Error(format!("no memory for {bytes} bytes of cache: {e}")))
                };
                Ok(LayerStore::Kv { keys: zeroed(page[0])?, values: zeroed(page[1])?, page })
            }
            LayerCache::Gdn { conv_rows, channels, v_heads, k_dim, v_dim } => {
                let (conv_len, state_len) = (conv_rows * channels, v_heads * k_dim * v_dim);
                let (conv, state) =
                    (Buf::zeroed(shape.slots * conv_len)?, Buf::zeroed(shape.slots * state_len)?);
                let kept_rows = shape.guesses;
                let kept = Buf::zeroed(shape.slots * shape.guesses * l.guess_bytes() / 4)?;
                Ok(LayerStore::Gdn { conv, conv_len, state, state_len, kept, kept_rows })
            }
        };
        Ok(Cache { layers: shape.layers.iter().map(layer).collect::<Result<_, Error>>()?, kv: shape.kv })
    }

    fn read(&mut self, src: &Buf, out: &mut [f32]) {
        out.copy_from_slice(&src[..out.len()]);
    }
    fn borrow<'a>(&'a self, buf: &'a Buf) -> Option<&'a [f32]> {
        Some(buf)
    }
    fn share(&mut self, buf: &Buf, count: usize, work: &(dyn Fn(usize, &[f32]) + Sync)) -> bool {
        self.team.run(|w| w.items(count).for_each(|i| work(i, buf)));
        true
    }
    fn reset_slot(&mut self, cache: &mut Cache, slot: usize) {
        for l in &mut cache.layers {
            if let LayerStore::Gdn { conv, conv_len, state, state_len, .. } = l {
                conv[slot * *conv_len..][..*conv_len].fill(0.0);
                state[slot * *state_len..][..*state_len].fill(0.0);
            }
        }
    }
    fn copy_slot(&mut self, cache: &mut Cache, from: usize, to: usize) {
        for l in &mut cache.layers {
            if let LayerStore::Gdn { conv, conv_len, state, state_len, .. } = l {
                conv.copy_within(from * *conv_len..(from + 1) * *conv_len, to * *conv_len);
                state.copy_within(from * *state_len..(from + 1) * *state_len, to * *state_len);
            }
        }
    }
    fn copy_page(&mut self, cache: &mut Cache, from: usize, to: usize) {
        for l in &mut cache.layers {
            if let LayerStore::Kv { keys, values, page } = l {
                for (buf, page) in [(keys, page[0]), (values, page[1])] {
                    buf.copy_within(from * page..(from + 1) * page, to * page);
                }
            }
        }
    }
    fn copy_rows(&mut self, from: &Weight, to: &mut Weight, rows: &[(u32, u32)]) {
        rows.iter().for_each(|&(a, b)| to.packed.copy_row(&from.packed, a as usize, b as usize));
    }
    fn save_slot(&mut self, cache: &Cache, slot: usize, mut out: &mut [u8]) {
        for l in &cache.layers {
            if let LayerStore::Gdn { conv, conv_len, state, state_len, .. } = l {
                for (buf, len) in [(conv, 4 * conv_len), (state, 4 * state_len)] {
                    let (now, rest) = out.split_at_mut(len);
                    now.copy_from_slice(&buf.0[slot * len..(slot + 1) * len]);
                    out = rest;
                }
            }
        }
    }
    fn load_slot(&mut self, cache: &mut Cache, slot: usize, mut data: &[u8]) {
        for l in &mut cache.layers {
            if let LayerStore::Gdn { conv, conv_len, state, state_len, .. } = l {
                for (buf, len) in [(conv, 4 * *conv_len), (state, 4 * *state_len)] {
                    let (now, rest) = data.split_at(len);
                    buf.0[slot * len..(slot + 1) * len].copy_from_slice(now);
                    data = rest;
                }
            }
        }
    }
    fn save_page(&mut self, cache: &Cache, page: usize, mut out: &mut [u8]) {
        for l in &cache.layers {
            if let LayerStore::Kv { keys, values, page: [k, v] } = l {
                for (buf, len) in [(keys, k), (values, v)] {
                    let (now, rest) = out.split_at_mut(*len);
                    now.copy_from_slice(&buf[page * len..(page + 1) * len]);
                    out = rest;
                }
            }
        }
    }
    fn load_page(&mut self, cache: &mut Cache, page: usize, mut data: &[u8]) {
        for l in &mut cache.layers {
            if let LayerStore::Kv { keys, values, page: [k, v] } = l {
                for (buf, len) in [(keys, k), (values, v)] {
                    let (now, rest) = data.split_at(*len);
                    buf[page * *len..(page + 1) * *len].copy_from_slice(now);
                    data = rest;
                }
            }
        }
    }

    fn step(&mut self, _: Pass, _: &Batch, body: impl FnOnce(&mut Self)) -> Result<(), Error> {
        self.permit = Some(self.arbiter.acquire());
        let _pinned = self.team.pin_caller();
        body(self);
        self.permit = None;
        Ok(())
    }

    fn embed(&mut self, table: &Matrix, tokens: &[u32], out: &mut Buf) {
        let start = self.begin();
        let out = Shards::new(out);
        self.team.run(|w| {
            for t in w.items(tokens.len()) {
                // SAFETY: each token is one thread's.
                table.dequantize_row(tokens[t] as usize, unsafe { out.part(t * table.cols, table.cols) });
            }
        });
        self.profile.add(Verb::Embed, start, tokens.len() * table.row_bytes());
    }

    fn norm_linear<const N: usize>(
        &mut self,
        n: usize,
        x: &Buf,
        norm: &Buf,
        eps: f32,
        w: [&Weight; N],
        out: [&mut Buf; N],
    ) {
        let start = self.begin();
        let Self { team, kernels, vector, scratch, .. } = self;
        let s = scratch.as_mut().expect(NO_SCRATCH);
        let form = linear::form(w.map(|w| &w.packed));
        let input = Input::new(&mut s.acts, n, n, norm.len(), team.threads(), form);
        let (threads, per_thread, tokens) = (Shards::new(&mut s.threads), s.per_thread, &s.tokens[..n]);
        let mut out = out.into_iter();
        let outputs = w.map(|w| Output::new(w, out.next().expect("an output for each weight")));
        let norm = Norm { vector, weights: norm, eps };
        team.run(|worker| {
            linear::prefetch(worker, kernels, w);
            // SAFETY: each thread has a part of its own.
            let own = unsafe { threads.part(worker.id * per_thread, per_thread) };
            let view = input.write(worker, kernels, |t, put| norm.row(x, t, own, put));
            linear::multiply(worker, kernels, w, &view, tokens, own, |i, g, t, y| outputs[i].set(g, t, y));
        });
        self.profile.add(Verb::NormLinear, start, w.iter().map(|w| w.packed.size_bytes()).sum());
    }

    fn rope_store(
        &mut self,
        batch: &Batch,
        a: &Attention<Self>,
        layer: usize,
        cache: &mut Cache,
        q: &mut Buf,
        k: &mut Buf,
        v: &Buf,
    ) {
        let start = self.begin();
        let kv = cache.kv;
        attend::rope_store(&mut self.team, &self.vector, batch, a, kv, &mut cache.layers[layer], q, k, v);
        self.profile.add(Verb::RopeStore, start, 0);
    }

    fn attend(
        &mut self,
        batch: &Batch,
        a: &Attention<Self>,
        layer: usize,
        cache: &Cache,
        q: &Buf,
        out: &mut Buf,
    ) {
        let start = self.begin();
        let s = self.scratch.as_mut().expect(NO_SCRATCH);
        let store = &cache.layers[layer];
        attend::attend(&mut self.team, &self.vector, s, batch, a, cache.kv, store, q, out);
        self.profile.add(Verb::Attend, start, attend::bytes(batch, a, cache.kv));
    }

    fn gdn(
        &mut self,
        batch: &Batch,
        g: &Gdn<Self>,
        layer: usize,
        cache: &mut Cache,
        qkv: &Buf,
        z: &Buf,
        b: &Buf,
        alpha: &Buf,
        out: &mut Buf,
    ) {
        let start = self.begin();
        let s = self.scratch.as_mut().expect(NO_SCRATCH);
        let inputs = delta::Inputs { qkv, z, b, alpha };
        delta::gdn(&mut self.team, &self.vector, s, batch, g, &mut cache.layers[layer], &inputs, out);
        self.profile.add(Verb::Gdn, start, delta::bytes(batch, g));
    }

    fn linear_add(&mut self, n: usize, x: &Buf, w: &Weight, h: &mut Buf) {
        let start = self.begin();
        let Self { team, kernels, scratch, .. } = self;
        let s = scratch.as_mut().expect(NO_SCRATCH);
        let (cols, form) = (w.packed.layout().cols(), linear::form([&w.packed]));
        let input = Input::new(&mut s.acts, n, n, cols, team.threads(), form);
        let (threads, per_thread, tokens) = (Shards::new(&mut s.threads), s.per_thread, &s.tokens[..n]);
        let output = Output::new(w, h);
        team.run(|worker| {
            linear::prefetch(worker, kernels, [w]);
            let view = input.write(worker, kernels, |t, put| put(&x[t * cols..(t + 1) * cols]));
            // SAFETY: each thread has a part of its own.
            let own = unsafe { threads.part(worker.id * per_thread, per_thread) };
            linear::multiply(worker, kernels, [w], &view, tokens, own, |_, g, t, y| output.add(g, t, y));
        });
        self.profile.add(Verb::LinearAdd, start, w.packed.size_bytes());
    }

    fn mlp(&mut self, n: usize, m: &Mlp<Self>, h: &mut Buf) {
        let start = self.begin();
        let s = self.scratch.as_mut().expect(NO_SCRATCH);
        mlp::mlp(&mut self.team, &self.kernels, &self.vector, s, n, m, h);
        let bytes = m.gate.packed.size_bytes() + m.up.packed.size_bytes() + m.down.packed.size_bytes();
        self.profile.add(Verb::Mlp, start, bytes);
    }

    fn records_routes(&self) -> bool {
        true
    }

    fn moe(&mut self, n: usize, m: &Moe<Self>, layer: usize, counts: &ExpertCounts, h: &mut Buf) {
        let start = self.begin();
        let s = self.scratch.as_mut().expect(NO_SCRATCH);
        moe::moe(&mut self.team, &self.kernels, &self.vector, s, n, m, h);
        s.routes.count(layer, counts);
        if counts.is_traced() {
            let shared = m.shared.as_ref().map(|_| &s.shared[..n]);
            s.routes.record(layer, n, shared, counts);
        }
        let bytes = moe::bytes(s, m);
        self.profile.add(Verb::Moe, start, bytes);
    }

    fn logits(&mut self, batch: &Batch, h: &Buf, norm: &Buf, eps: f32, head: &Weight, out: &mut Buf) {
        let start = self.begin();
        let Self { team, kernels, vector, scratch, .. } = self;
        let s = scratch.as_mut().expect(NO_SCRATCH);
        let (n, hidden) = (batch.outputs().len(), norm.len());
        let form = linear::form([&head.packed]);
        let input = Input::new(&mut s.acts, n, n, hidden, team.threads(), form);
        let (threads, per_thread, tokens) = (Shards::new(&mut s.threads), s.per_thread, &s.tokens[..n]);
        let output = Output::new(head, out);
        let norm = Norm { vector, weights: norm, eps };
        team.run(|w| {
            linear::prefetch(w, kernels, [head]);
            // SAFETY: each thread has a part of its own.
            let own = unsafe { threads.part(w.id * per_thread, per_thread) };
            let view = input.write(w, kernels, |i, put| norm.row(h, batch.outputs()[i] as usize, own, put));
            linear::multiply(w, kernels, [head], &view, tokens, own, |_, g, t, y| output.set(g, t, y));
        });
        self.profile.add(Verb::Logits, start, head.packed.size_bytes());
    }

    fn norm_outputs(&mut self, batch: &Batch, h: &Buf, norm: &Buf, eps: f32, out: &mut Buf) {
        let (vector, len, rows) = (&self.vector, norm.len(), batch.outputs());
        let out = Shards::new(out);
        self.team.run(|w| {
            for i in w.items(rows.len()) {
                let from = rows[i] as usize * len;
                // SAFETY: each row is one thread's.
                vector.rms_norm(&h[from..from + len], norm, eps, unsafe { out.part(i * len, len) });
            }
        });
    }

    fn norm(&mut self, n: usize, h: &Buf, norm: &Buf, eps: f32, out: &mut Buf) {
        let (vector, len) = (&self.vector, norm.len());
        let out = Shards::new(out);
        self.team.run(|w| {
            for t in w.items(n) {
                // SAFETY: each token is one thread's.
                vector.rms_norm(&h[t * len..(t + 1) * len], norm, eps, unsafe { out.part(t * len, len) });
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::cpu::CpuOptions;

    #[test]
    fn each_item_is_computed_once() {
        let options = CpuOptions { threads: Some(3), pin: false, ..CpuOptions::default() };
        let mut cpu = Cpu::new(&options).expect("a CPU");
        let buf = cpu.vector(&[1.0, 2.0, 3.0]).expect("memory");
        for count in [0, 1, 2, 40] {
            let calls: Vec<AtomicUsize> = (0..40).map(|_| AtomicUsize::new(0)).collect();
            let shared = cpu.share(&buf, count, &|i, values| {
                assert_eq!(values, [1.0, 2.0, 3.0]);
                calls[i].fetch_add(1, Ordering::Relaxed);
            });
            let calls: Vec<usize> = calls.iter().map(|n| n.load(Ordering::Relaxed)).collect();
            assert!(
                shared && calls.iter().enumerate().all(|(i, n)| *n == usize::from(i < count)),
                "{calls:?}"
            );
        }
    }
}
