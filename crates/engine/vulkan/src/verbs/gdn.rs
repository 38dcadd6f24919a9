//! Gated DeltaNet.

use std::sync::Arc;

use octet_compute::Error;
use octet_compute::backend::{Gdn, HeadOrder};
use octet_compute::batch::Batch;

use super::{HEAD_TAIL_TOKENS_MAX, HEAD_TICKETS};
use crate::backend::{Buf, Cache, LayerStore, Vulkan};
use crate::kernel::Kernel;
use crate::record::Dispatch;

impl Vulkan {
    pub(crate) fn delta_net(
        &mut self,
        batch: &Batch,
        g: &Gdn<Self>,
        layer: usize,
        cache: &Cache,
        [qkv, z, beta, alpha]: [&Buf; 4],
        out: &Buf,
    ) -> Result<(), Error> {
        let LayerStore::Gdn { conv, state, kept, kept_rows, .. } = &cache.layers[layer] else {
            unreachable!("layer {layer} has no recurrent state")
        };
        self.use_batch(batch)?;
        self.traffic.add_layer(cache, layer);
        let block = self.block()?;
        let (words, spans) = (block.words.clone(), block.spans);
        let (channels, rows) = (g.channels() as u32, (g.conv_kernel - 1) as u32);
        let n_spans = batch.spans().len() as u32;
        let slices = g.v_dim.div_ceil(32) as u32;
        let n = batch.len();
        let (rows_out, quantise) = (self.input()?, g.v_dim.is_multiple_of(32) && g.v_dim <= 512);
        let tickets = self.scratch()?.tickets.clone();
        let has_tail = n > 0 && n <= HEAD_TAIL_TOKENS_MAX;
        let push = [
            g.k_heads as u32,
            g.v_heads as u32,
            g.k_dim as u32,
            g.v_dim as u32,
            channels,
            g.conv_kernel as u32,
            spans,
            slices,
            (g.k_dim as f32).powf(-0.5).to_bits(),
            *kept_rows,
            g.eps.to_bits(),
            HEAD_TICKETS,
        ];
        let tiled = u32::from(g.order == HeadOrder::Tiled);
        let tail = if has_tail { 1 + u32::from(quantise) } else { 0 };
        let constants = [g.k_dim.div_ceil(8) as u32, tiled, tail];
        let buffers = [
            &qkv.buffer,
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
        self.recorder.barrier()?;
        self.recorder.dispatch(
            Kernel::Gdn,
            constants,
            &buffers,
            &push,
            [g.v_heads as u32 * slices, n_spans, 1],
        )?;
        let buffers = [&qkv.buffer, conv, &words, &beta.buffer, &alpha.buffer, kept];
        let v_heads = g.v_heads as u32;
        let groups = [(channels + 2 * v_heads).div_ceil(64), n_spans, 1];
        let push = [channels, rows, spans, v_heads, *kept_rows];
        self.recorder.put_off(Dispatch {
            kernel: Kernel::ConvState,
            constants: [0; 3],
            buffers: buffers.map(Arc::clone).to_vec(),
            push: push.to_vec(),
            groups,
        });
        // A batch without tokens only processes `redo`.
        self.prepared = (n > 0 && quantise).then(|| out.buffer.clone());
        if n == 0 || has_tail {
            return Ok(());
        }
        self.recorder.barrier_beside()?;
        let push = [g.v_heads as u32, g.v_dim as u32, g.eps.to_bits()];
        let buffers = [&out.buffer, &z.buffer, &g.norm.buffer, &rows_out.quants, &rows_out.scales];
        let groups = [g.v_heads as u32, batch.len() as u32, 1];
        self.recorder.dispatch(Kernel::GdnOut, [quantise.into(), 0, 0], &buffers, &push, groups)
    }
}
