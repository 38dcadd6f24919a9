//! Rotation, storing keys and values, and attention.

use octet_compute::Error;
use octet_compute::backend::{Attention, KvType, PageGroup, RopePairing, Window};
use octet_compute::batch::Batch;

use super::unsupported;
use crate::backend::{Buf, CHUNK_TOKENS, Cache, LayerStore, Prologue, Vulkan, chunks};
use crate::kernel::Kernel;

/// The number of a type in `kv.glsl`.
fn number(ty: KvType) -> u32 {
    match ty {
        KvType::F32 => 0,
        KvType::F16 => 1,
        KvType::Q8_0 => 2,
    }
}

/// What `rope.comp` has instead of a length for a norm of all heads together.
const WHOLE: u32 = u32::MAX;

/// The widest window around a token: positions after it are still numbers of 32 bits.
const AROUND_MAX: u32 = 1 << 30;

/// The index of a group's tables in the block.
fn table_of(group: PageGroup) -> usize {
    usize::from(group == PageGroup::Windowed)
}

impl Vulkan {
    /// Without keys and values, only queries are rotated: the layer attends to those of another one.
    pub(crate) fn rope(
        &mut self,
        batch: &Batch,
        a: &Attention<Self>,
        layer: usize,
        cache: &Cache,
        q: &Buf,
        kv: Option<[&Buf; 2]>,
    ) -> Result<(), Error> {
        let LayerStore::Kv { keys, values, group, .. } = &cache.layers[layer] else {
            unreachable!("layer {layer} has no keys and values")
        };
        self.use_batch(batch)?;
        let angles = self.prepare_angles(batch, a)?;
        let dummy = self.dummy.clone();
        let weights = a.norms.each_ref().map(|n| n.as_ref().map_or(&dummy, |n| &n.weight.buffer));
        let block = self.block()?;
        let (words, positions, places) =
            (block.words.clone(), block.positions, block.places[table_of(*group)]);
        let angles = angles.map_or_else(|| dummy.clone(), |i| block.angles[i].clone());
        let factors = self.scratch()?.factors.clone();
        let stride = if a.gated { 2 * a.k_dim } else { a.k_dim };
        let norms = self.head_norms(batch.len(), a, q, kv)?;
        let eps = a.norms.each_ref().map(|n| n.as_ref().map_or(0.0, |n| n.eps).to_bits());
        let [k, v] = kv.map_or([&dummy; 2], |kv| kv.map(|b| &b.buffer));
        let buffers =
            [&q.buffer, k, v, weights[0], weights[1], &words, keys, values, &angles, &factors, weights[2]];
        let rope = a.rope.as_ref();
        let turn = a.position_scale.unwrap_or([0.0, 1.0, 0.0]);
        // Pairs of a part that is paired within itself.
        let half = rope.map_or(1, |r| r.dims / 2 / r.axes.as_ref().map_or(1, |axes| axes.parts)).max(1);
        let push = [
            a.heads as u32,
            a.kv_heads as u32,
            a.k_dim as u32,
            stride as u32,
            rope.map_or(0, |r| r.dims / 2) as u32,
            places,
            batch.len() as u32,
            a.v_dim as u32,
            rope.map_or(0, |r| r.at) as u32,
            norms[0],
            norms[1],
            norms[2],
            eps[0],
            eps[1],
            eps[2],
            a.norm_last.into(),
            a.value_scale.to_bits(),
            positions,
            turn[0].to_bits(),
            turn[1].to_bits(),
            turn[2].to_bits(),
            half as u32,
        ];
        let adjacent = u32::from(rope.is_some_and(|r| r.pairing == RopePairing::Adjacent));
        let constants = [number(cache.kv.keys), number(cache.kv.values), adjacent, 0];
        let stored = match kv {
            None => 0,
            Some(_) if a.values_in_keys => a.kv_heads,
            Some(_) => 2 * a.kv_heads,
        };
        self.recorder.barrier()?;
        let groups = [(a.heads + stored) as u32, batch.len() as u32, 1];
        self.recorder.dispatch(Kernel::Rope, constants, &buffers, &push, groups)
    }

    /// Puts sines and cosines of the batch's positions in the block, and returns where. Layers that rotate alike share them.
    fn prepare_angles(&mut self, batch: &Batch, a: &Attention<Self>) -> Result<Option<usize>, Error> {
        self.before_host_write()?;
        let Some(rope) = &a.rope else { return Ok(None) };
        let frequencies =
            rope.inv_freq.host.clone().ok_or_else(|| Error("too many rotated dimensions".into()))?;
        let all = self.prologue.iter().filter_map(|p| match p {
            Prologue::Angles(f, scale, index, axes) => Some((f, *scale, *index, axes)),
            Prologue::Embed(..) => None,
        });
        let (mut used, mut known) = (0, None);
        for (f, scale, index, axes) in all {
            used = used.max(index + 1);
            if *f == frequencies && scale == rope.scale && *axes == rope.axes {
                known = Some(index);
            }
        }
        let index = known.unwrap_or(used);
        let prologue = Prologue::Angles(frequencies, rope.scale, index, rope.axes.clone());
        if let Some(blocks) = &mut self.blocks {
            blocks.iter_mut().try_for_each(|b| b.add_angles(&self.memory, index + 1))?;
        }
        self.prepare(&prologue, batch)?;
        if known.is_none() {
            self.prologue.push(prologue);
        }
        Ok(Some(index))
    }

    /// The numbers that `rope.comp` has for norms of queries, keys and values: 0 for none, the normalised values of each head, or [`WHOLE`] for
    /// one of all heads together (OLMoE), whose factors are a stage of their own.
    fn head_norms(
        &mut self,
        n: usize,
        a: &Attention<Self>,
        q: &Buf,
        kv: Option<[&Buf; 2]>,
    ) -> Result<[u32; 3], Error> {
        let lens = a.norms.each_ref().map(|n| n.as_ref().map_or(0, |n| n.len));
        if a.norms.iter().flatten().any(|n| n.centred || n.bias.is_some()) || lens[2] > a.v_dim {
            return Err(Error("this kind of norm of heads is not supported on this device".into()));
        }
        let is_whole = [0, 1].map(|i| lens[i] > a.k_dim);
        if is_whole != [false; 2] {
            self.recorder.barrier()?;
        }
        let of = [Some(q), kv.map(|kv| kv[0])];
        for (i, x) in of.into_iter().enumerate() {
            if let (true, Some(x), Some(norm)) = (is_whole[i], x, &a.norms[i]) {
                self.norm_factors(n, norm.len, &x.buffer, norm.eps, i * n)?;
            }
        }
        Ok([0, 1, 2].map(|i| if i < 2 && is_whole[i] { WHOLE } else { lens[i] as u32 }))
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
        let LayerStore::Kv { keys, values, group, .. } = &cache.layers[layer] else {
            unreachable!("layer {layer} has no keys and values")
        };
        self.use_batch(batch)?;
        self.recorder.traffic.add_layer(cache, layer);
        let dummy = self.dummy.clone();
        let scratch = self.scratch()?;
        let (partial, tickets, ticket) =
            (scratch.partial.clone(), scratch.tickets.clone(), scratch.attention_tickets);
        let block = self.block()?;
        let (words, positions, tables, pages, seen) =
            (block.words.clone(), block.positions, block.tables[table_of(*group)], block.pages, block.seen);
        let chunks = chunks(batch);
        // Latent values go through another product first, and may be wider than any row that is quantised.
        let quantise = a.v_dim.is_multiple_of(32) && !a.values_in_keys;
        let rows = self.input()?;
        let stride = if a.gated { 2 * a.k_dim } else { a.k_dim } as u32;
        let (heads, dim, v_dim) = (a.heads as u32, a.k_dim as u32, a.v_dim as u32);
        let token_bytes = 4 * (a.heads * chunks * (a.v_dim + 2)) as u64;
        let at_once = (partial.bytes / token_bytes) as usize;
        if at_once == 0 {
            // The number of chunks is a power of two.
            let fit = (partial.bytes / (4 * (a.heads * (a.v_dim + 2)) as u64)).max(1);
            let most = CHUNK_TOKENS << fit.ilog2();
            return Err(Error(format!(
                "attention of {} heads over more than {most} tokens is not supported on this device: give a smaller --ctx-size",
                a.heads
            )));
        }
        let (last, multiple) = match a.window {
            Window::All => (0, 0),
            Window::Last(n) => (u32::try_from(n).unwrap_or(u32::MAX), 0),
            Window::Chunk(n) => (0, u32::try_from(n).unwrap_or(u32::MAX)),
            // Without a block, a token sees itself.
            Window::Around(n) if a.two_way => (u32::try_from(n).map_or(AROUND_MAX, |n| n.min(AROUND_MAX)), 0),
            Window::Around(_) => return Err(unsupported()),
        };
        let special = [
            a.values_in_keys,
            a.softcap.is_some(),
            a.sinks.is_some(),
            a.window != Window::All,
            a.two_way,
            matches!(a.window, Window::Around(_)),
        ];
        let flags = special.iter().enumerate().map(|(bit, is)| u32::from(*is) << bit).sum();
        let sinks = a.sinks.as_ref().map_or(&dummy, |s| &s.buffer);
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
                a.scale.to_bits(),
                a.gated.into(),
                quantise.into(),
                ticket,
                v_dim,
                last,
                multiple,
                a.softcap.unwrap_or(0.0).to_bits(),
                seen,
            ];
            let constants = [number(cache.kv.keys), number(cache.kv.values), v_dim.div_ceil(64), flags];
            let (q, out) = (&q.buffer, &out.buffer);
            let buffers =
                [q, keys, values, &words, &partial, out, &rows.quants, &rows.scales, &tickets, sinks];
            self.recorder.barrier()?;
            self.recorder.dispatch(Kernel::Attend, constants, &buffers, &push, [chunks as u32, heads, n])?;
        }
        self.prepared = quantise.then(|| out.buffer.clone());
        Ok(())
    }
}
