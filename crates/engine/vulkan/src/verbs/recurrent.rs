//! Mamba-2 and short convolutions, and the states of all convolutions.

use std::sync::Arc;

use octet_compute::Error;
use octet_compute::backend::{ShortConv, Ssm};
use octet_compute::batch::Batch;

use super::linear::{Before, Prepare};
use crate::backend::{Buf, Cache, LayerStore, Vulkan};
use crate::kernel::Kernel;
use crate::memory::Buffer;
use crate::record::Dispatch;

/// Values of the state of a dimension that `ssm.comp` takes.
const STATE_MAX: usize = 512;

/// Inputs of a recurrent layer that are kept for guesses.
pub(crate) struct Inputs<'a> {
    /// Those of the convolution.
    pub(crate) rows: &'a Arc<Buffer>,
    /// Two others, with their widths.
    pub(crate) others: [(&'a Buf, usize); 2],
    /// The rows are `[b | c | x]`, and the convolution's input is `b * x`.
    pub(crate) is_product: bool,
}

impl Vulkan {
    /// Updates a convolution's state and keeps the inputs of guesses, beside the next stage: this one still reads the old state.
    pub(crate) fn defer_conv_state(
        &mut self,
        batch: &Batch,
        store: &LayerStore,
        channels: usize,
        taps: usize,
        inputs: &Inputs<'_>,
    ) -> Result<(), Error> {
        let LayerStore::State { conv, kept, kept_rows, .. } = store else {
            unreachable!("the layer has no recurrent state")
        };
        let block = self.block()?;
        let (words, spans) = (block.words.clone(), block.spans);
        let [(beta, beta_width), (alpha, alpha_width)] = inputs.others;
        let width = channels + beta_width + alpha_width;
        let [channels, rows, beta_width, alpha_width] =
            [channels, taps - 1, beta_width, alpha_width].map(|n| n as u32);
        let buffers = [inputs.rows, conv, &words, &beta.buffer, &alpha.buffer, kept];
        self.recorder.defer(Dispatch {
            kernel: Kernel::ConvState,
            constants: [inputs.is_product.into(), 0, 0, 0],
            buffers: buffers.map(|b| b.clone()).to_vec(),
            push: vec![channels, rows, spans, beta_width, alpha_width, *kept_rows],
            groups: [width.div_ceil(64) as u32, batch.spans().len() as u32, 1],
        });
        Ok(())
    }

    pub(crate) fn mamba(
        &mut self,
        batch: &Batch,
        s: &Ssm<Self>,
        layer: usize,
        cache: &Cache,
        [z, xbc, dt]: [&Buf; 3],
        out: &Buf,
    ) -> Result<(), Error> {
        let store = &cache.layers[layer];
        let LayerStore::State { conv, state, kept, kept_rows, .. } = store else {
            unreachable!("the layer has no recurrent state")
        };
        if s.state > STATE_MAX {
            return Err(Error(format!(
                "states of {} values are not supported on this device: it takes up to {STATE_MAX}",
                s.state
            )));
        }
        self.use_batch(batch)?;
        self.recorder.traffic.add_layer(cache, layer);
        self.prepared = None;
        let dummy = self.dummy.clone();
        let block = self.block()?;
        let (words, spans) = (block.words.clone(), block.spans);
        let slices = s.dim.div_ceil(32);
        let push = [
            s.heads as u32,
            s.groups as u32,
            s.dim as u32,
            s.state as u32,
            s.channels() as u32,
            (s.taps - 1) as u32,
            spans,
            *kept_rows,
            slices as u32,
            s.conv_bias.is_some().into(),
        ];
        let buffers = [
            &xbc.buffer,
            &dt.buffer,
            &s.conv.buffer,
            s.conv_bias.as_ref().map_or(&dummy, |b| &b.buffer),
            &s.dt_bias.buffer,
            &s.a.buffer,
            &s.d.buffer,
            conv,
            state,
            &words,
            kept,
            &z.buffer,
            &out.buffer,
        ];
        let constants = [s.state.div_ceil(8) as u32, 0, 0, 0];
        let groups = [(s.heads * slices) as u32, batch.spans().len() as u32, 1];
        self.recorder.barrier()?;
        self.recorder.dispatch(Kernel::Ssm, constants, &buffers, &push, groups)?;
        let inputs = Inputs { rows: &xbc.buffer, others: [(dt, s.heads), (dt, 0)], is_product: false };
        self.defer_conv_state(batch, store, s.channels(), s.taps, &inputs)?;
        match &s.norm {
            // A batch without tokens only processes `redo`.
            Some(norm) if !batch.is_empty() => {
                let mut to = self.input()?;
                to.floats = out.buffer.clone();
                let groups = s.heads * s.dim / norm.len;
                self.recorder.barrier_beside()?;
                // In place: each invocation writes what only it reads.
                self.prepare_as(&Prepare {
                    n: batch.len() * groups,
                    cols: norm.len,
                    x: &out.buffer,
                    stride: norm.len,
                    before: Before::Norm(norm),
                    gather: None,
                    weights: groups,
                    forms: [false, true],
                    add: 0.0,
                    to: &to,
                })
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn short_convolution(
        &mut self,
        batch: &Batch,
        s: &ShortConv<Self>,
        layer: usize,
        cache: &Cache,
        bcx: &Buf,
        out: &Buf,
    ) -> Result<(), Error> {
        let store = &cache.layers[layer];
        let LayerStore::State { conv, kept, kept_rows, .. } = store else {
            unreachable!("the layer has no recurrent state")
        };
        self.use_batch(batch)?;
        self.recorder.traffic.add_layer(cache, layer);
        self.prepared = None;
        let block = self.block()?;
        let (words, spans) = (block.words.clone(), block.spans);
        let push = [s.width as u32, (s.taps - 1) as u32, spans, *kept_rows];
        let buffers = [&bcx.buffer, conv, &words, kept, &s.conv.buffer, &out.buffer];
        let groups = [s.width.div_ceil(64) as u32, batch.spans().len() as u32, 1];
        self.recorder.barrier()?;
        self.recorder.dispatch(Kernel::ShortConv, [0; 4], &buffers, &push, groups)?;
        let inputs = Inputs { rows: &bcx.buffer, others: [(bcx, 0), (bcx, 0)], is_product: true };
        self.defer_conv_state(batch, store, s.width, s.taps, &inputs)
    }
}
