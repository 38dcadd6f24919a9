//! Rotation, storing keys and values, and attention.

use octet_compute::Error;
use octet_compute::backend::{Attention, KvType, Norm, RopePairing};
use octet_compute::batch::Batch;

use crate::backend::{Buf, Cache, LayerStore, Prologue, Vulkan, chunks};
use crate::kernel::Kernel;

/// The number of a type in `kv.glsl`.
fn number(ty: KvType) -> u32 {
    match ty {
        KvType::F32 => 0,
        KvType::F16 => 1,
        KvType::Q8_0 => 2,
    }
}

impl Vulkan {
    pub(crate) fn rope(
        &mut self,
        batch: &Batch,
        a: &Attention<Self>,
        layer: usize,
        cache: &Cache,
        q: &Buf,
        k: &Buf,
        v: &Buf,
    ) -> Result<(), Error> {
        let LayerStore::Kv { keys, values, .. } = &cache.layers[layer] else {
            unreachable!("layer {layer} has no keys and values")
        };
        self.use_batch(batch)?;
        self.prepare_angles(batch, a)?;
        let dummy = self.dummy.clone();
        let weight =
            |n: &'_ Option<Norm<Self>>| n.as_ref().map_or_else(|| dummy.clone(), |n| n.weight.buffer.clone());
        let (q_norm, k_norm) = (weight(&a.norms[0]), weight(&a.norms[1]));
        let rope =
            a.rope.as_ref().ok_or_else(|| Error("layers without rotation are not supported".into()))?;
        let eps = a.norms[0].as_ref().map_or(0.0, |n| n.eps);
        let block = self.block()?;
        let (words, angles, places) = (block.words.clone(), block.angles.clone(), block.places);
        let factors = self.scratch()?.factors.clone();
        let stride = if a.gated { 2 * a.k_dim } else { a.k_dim };
        let norm = self.qk_norm(batch.len(), a, q, k)?;
        let buffers =
            [&q.buffer, &k.buffer, &v.buffer, &q_norm, &k_norm, &words, keys, values, &angles, &factors];
        let push = [
            a.heads as u32,
            a.kv_heads as u32,
            a.k_dim as u32,
            stride as u32,
            (rope.dims / 2) as u32,
            norm,
            eps.to_bits(),
            places,
            0,
            batch.len() as u32,
        ];
        let adjacent = u32::from(rope.pairing == RopePairing::Adjacent);
        let constants = [number(cache.kv.keys), number(cache.kv.values), adjacent];
        let groups = [(a.heads + 2 * a.kv_heads) as u32, batch.len() as u32, 1];
        self.recorder.barrier()?;
        self.recorder.dispatch(Kernel::Rope, constants, &buffers, &push, groups)
    }

    /// Puts sines and cosines of the batch's positions in the block. All layers share them.
    fn prepare_angles(&mut self, batch: &Batch, a: &Attention<Self>) -> Result<(), Error> {
        self.before_host_write()?;
        let Some(rope) = &a.rope else { return Ok(()) };
        let frequencies =
            rope.inv_freq.host.clone().ok_or_else(|| Error("too many rotated dimensions".into()))?;
        let prologue = Prologue::Angles(frequencies, rope.scale);
        let is_known = self.prologue.iter().any(|p| match (p, &prologue) {
            (Prologue::Angles(f, s), Prologue::Angles(g, t)) => f == g && s == t,
            _ => false,
        });
        if is_known {
            return self.prepare(&prologue, batch);
        }
        if self.prologue.iter().any(|p| matches!(p, Prologue::Angles(..))) {
            return Err(Error(
                "layers that rotate by different frequencies are not supported on this device".into(),
            ));
        }
        self.prepare(&prologue, batch)?;
        self.prologue.push(prologue);
        Ok(())
    }

    /// The number that `rope.comp` has for the norm of queries and keys: 0 for none, 1 for each head's, 2 for all heads together (OLMoE), whose
    /// factors are a stage of their own.
    fn qk_norm(&mut self, n: usize, a: &Attention<Self>, q: &Buf, k: &Buf) -> Result<u32, Error> {
        match &a.norms[0] {
            None => Ok(0),
            Some(norm) if norm.len == a.k_dim => Ok(1),
            Some(norm) => {
                self.recorder.barrier()?;
                self.norm_factors(n, a.heads * a.k_dim, &q.buffer, norm.eps, 0)?;
                self.norm_factors(n, a.kv_heads * a.k_dim, &k.buffer, norm.eps, n)?;
                Ok(2)
            }
        }
    }

    pub(crate) fn attention(
        &mut self,
        batch: &Batch,
        a: &Attention<Self>,
        layer: usize,
        cache: &Cache,
        q: &Buf,
        out: &Buf,
    ) -> Result<(), Error> {
        let LayerStore::Kv { keys, values, .. } = &cache.layers[layer] else {
            unreachable!("layer {layer} has no keys and values")
        };
        self.use_batch(batch)?;
        self.traffic.add_layer(cache, layer);
        let scratch = self.scratch()?;
        let (partial, tickets, ticket) =
            (scratch.partial.clone(), scratch.tickets.clone(), scratch.attention_tickets);
        let block = self.block()?;
        let (words, positions, tables, pages) =
            (block.words.clone(), block.positions, block.tables, block.pages);
        let chunks = chunks(batch);
        let (rows, quantise) = (self.input()?, a.k_dim.is_multiple_of(32));
        let stride = if a.gated { 2 * a.k_dim } else { a.k_dim } as u32;
        let (heads, dim) = (a.heads as u32, a.k_dim as u32);
        let token_bytes = 4 * (a.heads * chunks * (a.k_dim + 2)) as u64;
        let at_once = (partial.bytes / token_bytes) as usize;
        if at_once == 0 {
            return Err(Error(format!("a context of {chunks} chunks is too long for this device")));
        }
        let scale = a.scale;
        for first in (0..batch.len()).step_by(at_once) {
            let n = (batch.len() - first).min(at_once) as u32;
            let push = [
                heads,
                a.kv_heads as u32,
                dim,
                stride,
                first as u32,
                chunks as u32,
                positions,
                tables,
                pages,
                scale.to_bits(),
                a.gated.into(),
                quantise.into(),
                ticket,
            ];
            let constants = [number(cache.kv.keys), number(cache.kv.values), dim.div_ceil(64)];
            let (q, out) = (&q.buffer, &out.buffer);
            let buffers = [q, keys, values, &words, &partial, out, &rows.quants, &rows.scales, &tickets];
            self.recorder.barrier()?;
            self.recorder.dispatch(Kernel::Attend, constants, &buffers, &push, [chunks as u32, heads, n])?;
        }
        self.prepared = quantise.then(|| out.buffer.clone());
        Ok(())
    }
}
