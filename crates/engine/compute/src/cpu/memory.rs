//! Memory of the CPU backend: buffers, packed projections and caches. Made by `backend`, used by every verb.

use super::huge::HugeVec;
use super::pack::Packed;
use crate::backend::{Error, KvTypes, PageGroup};

/// Zeroed f32 values in their own mapping.
pub struct Buf(pub(super) HugeVec);

impl Buf {
    /// No values, without memory.
    pub(super) fn none() -> Self {
        Self(HugeVec::none())
    }

    pub(super) fn zeroed(len: usize) -> Result<Self, Error> {
        let bytes =
            len.checked_mul(4).ok_or_else(|| Error(format!("{len} values do not fit into memory")))?;
        HugeVec::zeroed(bytes).map(Self).map_err(|e| Error(format!("no memory for {bytes} bytes: {e}")))
    }
}

impl std::ops::Deref for Buf {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        if self.0.is_empty() {
            return &[]; // no mapping, and so no aligned pointer
        }
        // SAFETY: mapped memory is aligned to 64 bytes, its length is a multiple of 4, and any bits are an f32.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), self.0.len() / 4) }
    }
}

impl std::ops::DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [f32] {
        if self.0.is_empty() {
            return &mut [];
        }
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), self.0.len() / 4) }
    }
}

/// A packed projection, or one of each expert, and their biases `[rows]` or `[experts, rows]`.
pub struct Weight {
    pub(super) packed: Packed,
    pub(super) bias: Option<Vec<f32>>,
    /// Its number among those whose inputs are watched.
    pub(super) watched: Option<usize>,
    /// Of experts that are read when they are needed: their layer in the store. `packed` has its slots, `bias` those of all experts.
    pub(super) stored: Option<usize>,
}

/// The cache of one layer.
pub(super) enum LayerStore {
    None,
    /// Keys and values `[pages, kv_heads, PAGE_TOKENS, dim]` in their types, the bytes of a page of each, and which pages these are.
    Kv {
        keys: HugeVec,
        values: HugeVec,
        page: [usize; 2],
        group: PageGroup,
    },
    /// As in [`LayerCache::State`], and the inputs of each slot's guesses `[slots, kept_rows, inputs]`.
    State {
        conv: Buf,
        conv_len: usize,
        state: Buf,
        state_len: usize,
        kept: Buf,
        kept_rows: usize,
    },
}

impl LayerStore {
    /// Whether it has keys and values in pages of this group.
    pub(super) fn is_in(&self, of: PageGroup) -> bool {
        matches!(self, Self::Kv { group, .. } if *group == of)
    }
}

/// All layers' caches.
pub struct Cache {
    pub(super) layers: Vec<LayerStore>,
    pub(super) kv: KvTypes,
}
