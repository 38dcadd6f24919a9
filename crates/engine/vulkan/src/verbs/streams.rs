//! Several residual streams: their prediction before a layer's blocks, and their correction after them.

use octet_compute::Error;
use octet_compute::backend::AltUp;

use super::Update;
use crate::backend::{Buf, Vulkan};
use crate::kernel::Kernel;

/// Columns of a workgroup.
const GROUP: usize = 256;

impl Vulkan {
    /// Updates the first stream, the others, and what is kept of the first.
    pub(crate) fn update_streams(
        &mut self,
        n: usize,
        a: &AltUp<Self>,
        update: Update,
        routed: &Buf,
        [h, rest, kept]: [&Buf; 3],
    ) -> Result<(), Error> {
        let weights = match update {
            Update::Predict => &a.predict,
            Update::Correct => &a.correct,
        };
        let buffers = [routed, weights, &a.scale, h, rest, kept].map(|b| &b.buffer);
        let groups = [a.width.div_ceil(GROUP) as u32, n as u32, 1];
        self.prepared = None;
        self.recorder.barrier()?;
        let push = [a.streams as u32, a.width as u32];
        self.recorder.dispatch(Kernel::Streams, [update as u32, 0, 0, 0], &buffers, &push, groups)
    }
}
