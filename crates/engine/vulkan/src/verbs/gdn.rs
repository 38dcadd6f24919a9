//! Gated DeltaNet and Kimi Delta Attention.

use std::sync::Arc;

use octet_compute::Error;
use octet_compute::backend::{Gdn, HeadOrder};
use octet_compute::batch::Batch;

use super::recurrent::Inputs;
use super::{HEAD_TAIL_TOKENS_MAX, HEAD_TICKETS};
use crate::backend::{Buf, Cache, LayerStore, Vulkan};
use crate::kernel::Kernel;
use crate::memory::Buffer;

impl Vulkan {
    pub(crate) fn delta_net(
        &mut self,
        batch: &Batch,
        g: &Gdn<Self>,
        layer: usize,
        cache: &Cache,
        qkv: &[&Buf],
        [z, beta, alpha]: [&Buf; 3],
        out: &Buf,
    ) -> Result<(), Error> {
        self.use_batch(batch)?;
        let n = batch.len();
        let has_tail = n > 0 && n <= HEAD_TAIL_TOKENS_MAX;
        let quantise = g.v_dim.is_multiple_of(32) && g.v_dim <= 512;
        let tail = if has_tail { 1 + u32::from(quantise) } else { 0 };
        let qkv = self.side_by_side(n, g, qkv)?;
        self.recorder.barrier()?;
        self.recorder.traffic.add_layer(cache, layer);
        self.delta_rule(batch, g, &cache.layers[layer], &qkv, [z, beta, alpha], out, tail)?;
        let inputs =
            Inputs { rows: &qkv, others: [(beta, g.v_heads), (alpha, g.decays())], is_product: false };
        self.defer_conv_state(batch, &cache.layers[layer], g.channels(), g.conv_kernel, &inputs)?;
        // A batch without tokens only processes `redo`.
        self.prepared = (n > 0 && quantise).then(|| out.buffer.clone());
        if n == 0 || has_tail {
            return Ok(());
        }
        self.recorder.barrier_beside()?;
        self.gated_norm(n, g, z, out, quantise)
    }

    /// Queries, keys and values in one buffer: that of the caller, or a copy of its three.
    fn side_by_side(&mut self, n: usize, g: &Gdn<Self>, qkv: &[&Buf]) -> Result<Arc<Buffer>, Error> {
        if let [one] = qkv {
            return Ok(one.buffer.clone());
        }
        let (to, widths, mut at) = (self.scratch()?.channels.clone(), g.widths(qkv.len()), 0);
        self.recorder.barrier()?;
        for (part, width) in qkv.iter().zip(widths) {
            if n > 0 {
                self.copy_parts([n, width], (&to, [at, g.channels()]), (&part.buffer, [0, width]))?;
            }
            at += width;
        }
        Ok(to)
    }

    /// Starts convolution and delta rule. `tail`: 0 without the gated norm, 1 with it, 2 with its quantisation, too.
    fn delta_rule(
        &mut self,
        batch: &Batch,
        g: &Gdn<Self>,
        store: &LayerStore,
        qkv: &Arc<Buffer>,
        [z, beta, alpha]: [&Buf; 3],
        out: &Buf,
        tail: u32,
    ) -> Result<(), Error> {
        let LayerStore::State { conv, state, kept, kept_rows, .. } = store else {
            unreachable!("the layer has no recurrent state")
        };
        let block = self.block()?;
        let (words, spans) = (block.words.clone(), block.spans);
        let (rows_out, tickets) = (self.input()?, self.scratch()?.tickets.clone());
        let slices = g.v_dim.div_ceil(32) as u32;
        let push = [
            g.k_heads as u32,
            g.v_heads as u32,
            g.k_dim as u32,
            g.v_dim as u32,
            g.channels() as u32,
            g.conv_kernel as u32,
            spans,
            slices,
            (g.k_dim as f32).powf(-0.5).to_bits(),
            *kept_rows,
            g.eps.to_bits(),
            HEAD_TICKETS,
        ];
        let buffers = [
            qkv,
            &beta.buffer,
            &alpha.buffer,
            &g.conv.buffer,
            &g.dt_bias.buffer,
            &g.a.buffer,
            conv,
            state,
            &words,
            &out.buffer,
            kept,
            &z.buffer,
            &g.norm.buffer,
            &rows_out.quants,
            &rows_out.scales,
            &tickets,
        ];
        let is_tiled = u32::from(g.order == HeadOrder::Tiled);
        let kind = u32::from(g.row_decay) | u32::from(g.sigmoid_gate) << 1;
        let constants = [g.k_dim.div_ceil(8) as u32, is_tiled, tail, kind];
        let groups = [g.v_heads as u32 * slices, batch.spans().len() as u32, 1];
        self.recorder.dispatch(Kernel::Gdn, constants, &buffers, &push, groups)
    }

    /// Starts the gated norm of `n` tokens, where it is not the delta rule's tail.
    fn gated_norm(
        &mut self,
        n: usize,
        g: &Gdn<Self>,
        z: &Buf,
        out: &Buf,
        quantise: bool,
    ) -> Result<(), Error> {
        let rows_out = self.input()?;
        let push = [g.v_heads as u32, g.v_dim as u32, g.eps.to_bits()];
        let buffers = [&out.buffer, &z.buffer, &g.norm.buffer, &rows_out.quants, &rows_out.scales];
        let groups = [g.v_heads as u32, n as u32, 1];
        let constants = [quantise.into(), g.sigmoid_gate.into(), 0, 0];
        self.recorder.dispatch(Kernel::GdnOut, constants, &buffers, &push, groups)
    }
}
