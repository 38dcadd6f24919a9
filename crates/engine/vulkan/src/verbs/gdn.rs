//! Gated DeltaNet.

use octet_compute::Error;
use octet_compute::backend::{Gdn, HeadOrder};
use octet_compute::batch::Batch;

use crate::backend::{Buf, Cache, LayerStore, Vulkan};
use crate::kernel::Kernel;

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
        let block = self.block()?;
        let (words, spans) = (block.words.clone(), block.spans);
        let (channels, rows) = (g.channels() as u32, (g.conv_kernel - 1) as u32);
        let n_spans = batch.spans().len() as u32;
        let slices = g.v_dim.div_ceil(32) as u32;
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
        ];
        let tiled = u32::from(g.order == HeadOrder::Tiled);
        let constants = [g.k_dim.div_ceil(8) as u32, tiled, 0];
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
        ];
        self.recorder.barrier();
        self.recorder.dispatch(
            Kernel::Gdn,
            constants,
            &buffers,
            &push,
            [g.v_heads as u32 * slices, n_spans, 1],
        )?;
        self.recorder.barrier();
        let buffers = [&qkv.buffer, conv, &words, &beta.buffer, &alpha.buffer, kept];
        let v_heads = g.v_heads as u32;
        let groups = [(channels + 2 * v_heads).div_ceil(64), n_spans, 1];
        let push = [channels, rows, spans, v_heads, *kept_rows];
        self.recorder.dispatch(Kernel::ConvState, [0; 3], &buffers, &push, groups)?;
        if batch.is_empty() {
            self.prepared = None;
            return Ok(()); // it only redoes
        }
        let push = [g.v_heads as u32, g.v_dim as u32, g.eps.to_bits()];
        let (rows, quantise) = (self.input()?, g.v_dim.is_multiple_of(32) && g.v_dim <= 512);
        let buffers = [&out.buffer, &z.buffer, &g.norm.buffer, &rows.quants, &rows.scales];
        let groups = [g.v_heads as u32, batch.len() as u32, 1];
        self.recorder.dispatch(Kernel::GdnOut, [quantise.into(), 0, 0], &buffers, &push, groups)?;
        self.prepared = quantise.then(|| out.buffer.clone());
        Ok(())
    }
}
