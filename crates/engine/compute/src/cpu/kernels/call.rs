//! One call of a matrix kernel. Made by `Kernels::group`, read by every kernel.

use crate::cpu::activations::ActView;
use crate::cpu::pack::Layout;

/// One call of a kernel. `group` is a group of `layout`, which has as many columns as `acts`; `tokens` are rows of `acts`,
/// written in the form that the kind reads; `out` has room for `[tokens][ROWS]`.
pub(super) struct Call<'a> {
    pub layout: &'a Layout,
    pub group: *const u8,
    /// Rows of the group without the padding.
    pub rows: usize,
    pub acts: ActView<'a>,
    pub tokens: &'a [u32],
    pub out: *mut f32,
    /// The end of the group, and the distance from there to the weights that this thread reads next.
    pub end: *const u8,
    pub jump: usize,
    /// Distance of the software prefetch, at most a group: each byte of the next one is prefetched.
    pub distance: usize,
}

impl Call<'_> {
    /// Distance from `p`, weights in use, to the weights to prefetch now.
    #[inline(always)]
    pub fn prefetch_distance(&self, p: *const u8) -> usize {
        let distance = self.distance;
        if p.wrapping_add(distance) < self.end { distance } else { distance.wrapping_add(self.jump) }
    }
}

/// A kernel. Unsafe: `Call`'s contract, the right kind, and the instruction set it is compiled for.
pub(super) type Kernel = unsafe fn(&Call<'_>);
