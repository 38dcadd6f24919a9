//! Copies on the device between steps: states, pages, and rows of weights.

use octet_compute::Error;
use octet_compute::batch::PageGroup;

use crate::backend::{Cache, LayerStore, Vulkan, Weight};
use crate::cache::device_row_bytes;
use crate::weights;

impl Vulkan {
    /// Makes a slot the state of an empty sequence.
    pub(crate) fn clear_state(&mut self, cache: &Cache, slot: usize) -> Result<(), Error> {
        self.recorder.barrier()?;
        for l in &cache.layers {
            if let LayerStore::State { conv, conv_bytes, state, state_bytes, .. } = l {
                for (b, n) in [(conv, *conv_bytes), (state, *state_bytes)] {
                    self.recorder.clear(b, slot as u64 * n, n)?;
                }
            }
        }
        self.recorder.barrier()
    }

    /// Copies the state of a slot.
    pub(crate) fn copy_state(&mut self, cache: &Cache, from: usize, to: usize) -> Result<(), Error> {
        self.recorder.barrier()?;
        for l in &cache.layers {
            if let LayerStore::State { conv, conv_bytes, state, state_bytes, .. } = l {
                for (b, n) in [(conv, *conv_bytes), (state, *state_bytes)] {
                    self.recorder.copy((b, from as u64 * n), (b, to as u64 * n), n)?;
                }
            }
        }
        self.recorder.barrier()
    }

    /// Copies a page of all layers of a group.
    pub(crate) fn copy_keys_and_values(
        &mut self,
        cache: &Cache,
        group: PageGroup,
        from: usize,
        to: usize,
    ) -> Result<(), Error> {
        self.recorder.barrier()?;
        for (b, ty, rows, dim) in cache.page_parts(group) {
            let n = (rows * device_row_bytes(ty, dim)) as u64;
            self.recorder.copy((&b, from as u64 * n), (&b, to as u64 * n), n)?;
        }
        self.recorder.barrier()
    }

    /// Copies rows of one matrix to another.
    pub(crate) fn copy_weight_rows(
        &mut self,
        from: &Weight,
        to: &Weight,
        rows: &[(u32, u32)],
    ) -> Result<(), Error> {
        assert!(
            (from.ty, from.cols) == (to.ty, to.cols),
            "rows are copied between matrices of one type and width"
        );
        self.recorder.barrier()?;
        let planes = [(&from.quants, &to.quants), (&from.high, &to.high), (&from.scales, &to.scales)];
        for ((a, b), n) in planes.into_iter().zip(weights::row_bytes(from.ty, from.cols)) {
            for &(row, place) in rows {
                self.recorder.copy((a, u64::from(row) * n), (b, u64::from(place) * n), n)?;
            }
        }
        self.recorder.barrier()
    }
}
