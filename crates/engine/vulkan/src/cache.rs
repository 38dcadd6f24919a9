//! The KV cache and the recurrent states on the device. Made by `backend`, which copies them; the verbs read and write them.

use std::sync::Arc;

use octet_compute::Error;
use octet_compute::backend::{CacheShape, KvType, KvTypes, LayerCache};
use octet_compute::batch::PAGE_TOKENS;

use crate::memory::Buffer;

/// Values of a head that the kernels support at most.
pub(crate) const HEAD_DIM_MAX: usize = 512;
/// Guesses of a step at most: `block` stores them in a byte.
const GUESSES_MAX: usize = 255;
/// A span has two numbers of slots of 16 bits each.
const SLOTS_MAX: usize = 1 << 16;

/// Caches of one layer.
pub(crate) enum LayerStore {
    Kv {
        keys: Arc<Buffer>,
        values: Arc<Buffer>,
        heads: usize,
        dim: usize,
    },
    /// The layer keeps nothing.
    None,
    /// `kept`: inputs of guesses `[slots, kept_rows, inputs]`.
    State {
        conv: Arc<Buffer>,
        conv_bytes: u64,
        state: Arc<Buffer>,
        state_bytes: u64,
        kept: Arc<Buffer>,
        kept_rows: u32,
    },
}

/// Caches of all layers.
pub struct Cache {
    pub(crate) layers: Vec<LayerStore>,
    pub(crate) kv: KvTypes,
}

/// Keys or values of a layer: the buffer, its type, rows of a page, and values of a row.
pub(crate) type PagePart = (Arc<Buffer>, KvType, usize, usize);

/// Bytes of a row of `dim` keys or values of a head on the device.
pub fn device_row_bytes(ty: KvType, dim: usize) -> usize {
    match ty {
        KvType::F32 => 4 * dim,
        KvType::F16 => 2 * dim,
        KvType::Q8_0 => dim + dim / 8,
    }
}

impl Cache {
    /// Keys and values of a layer; `None` for one without.
    pub(crate) fn page_parts(&self, layer: &LayerStore) -> Option<[PagePart; 2]> {
        let LayerStore::Kv { keys, values, heads, dim } = layer else { return None };
        let rows = heads * PAGE_TOKENS;
        Some([(keys.clone(), self.kv.keys, rows, *dim), (values.clone(), self.kv.values, rows, *dim)])
    }
}

impl LayerStore {
    /// The cache of a layer. `zeroed` allocates buffers of this size in bytes.
    pub(crate) fn new(
        layer: &LayerCache,
        shape: &CacheShape,
        mut zeroed: impl FnMut(u64) -> Result<Arc<Buffer>, Error>,
    ) -> Result<Self, Error> {
        match *layer {
            LayerCache::None => Ok(Self::None),
            LayerCache::Kv { kv_heads, k_dim: head_dim, .. } => {
                if head_dim > HEAD_DIM_MAX || !head_dim.is_multiple_of(2) {
                    return Err(Error(format!(
                        "heads of {head_dim} values are not supported on this device: it takes even numbers up to {HEAD_DIM_MAX}"
                    )));
                }
                let rows = shape.pages * kv_heads * PAGE_TOKENS;
                let bytes = |ty| (rows * device_row_bytes(ty, head_dim)) as u64;
                Ok(Self::Kv {
                    keys: zeroed(bytes(shape.kv.keys))?,
                    values: zeroed(bytes(shape.kv.values))?,
                    heads: kv_heads,
                    dim: head_dim,
                })
            }
            LayerCache::State { conv, state, inputs } => {
                if shape.guesses > GUESSES_MAX {
                    return Err(Error(format!(
                        "{} guesses per step are not supported on this device: it takes up to {GUESSES_MAX}",
                        shape.guesses
                    )));
                }
                if shape.slots > SLOTS_MAX {
                    return Err(Error(format!(
                        "{} recurrent states are not supported on this device: it takes up to {SLOTS_MAX}",
                        shape.slots
                    )));
                }
                let (conv_bytes, state_bytes) = ((4 * conv) as u64, (4 * state) as u64);
                let kept_bytes = (4 * shape.guesses * inputs) as u64;
                Ok(Self::State {
                    conv: zeroed(shape.slots as u64 * conv_bytes)?,
                    conv_bytes,
                    state: zeroed(shape.slots as u64 * state_bytes)?,
                    state_bytes,
                    kept: zeroed((shape.slots as u64 * kept_bytes).max(16))?,
                    kept_rows: shape.guesses as u32,
                })
            }
        }
    }
}
