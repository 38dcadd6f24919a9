//! The KV cache and the recurrent states on the device. Made by `backend`, which copies them; the verbs read and write them.

use std::sync::Arc;

use octet_compute::Error;
use octet_compute::backend::{CacheShape, KvType, KvTypes, LayerCache};
use octet_compute::batch::{PAGE_TOKENS, PageGroup};

use crate::memory::Buffer;

/// Values of a key that the kernels support at most, and of a value.
const KEY_DIM_MAX: usize = 640;
const VALUE_DIM_MAX: usize = 512;
/// Values of a key head of Gated DeltaNet that the kernels support at most.
pub(crate) const DELTA_DIM_MAX: usize = 512;
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
        /// Of a key, and of a value: 0 if values are part of the keys.
        dims: [usize; 2],
        group: PageGroup,
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
    /// Keys and values of all layers of a group.
    pub(crate) fn page_parts(&self, of: PageGroup) -> Vec<PagePart> {
        let parts = |layer: &LayerStore| match layer {
            LayerStore::Kv { keys, values, heads, dims: [k, v], group } if *group == of => {
                let rows = heads * PAGE_TOKENS;
                vec![(keys.clone(), self.kv.keys, rows, *k), (values.clone(), self.kv.values, rows, *v)]
            }
            _ => Vec::new(),
        };
        self.layers.iter().flat_map(parts).filter(|(.., dim)| *dim > 0).collect()
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
            LayerCache::Kv { kv_heads, k_dim, v_dim, group } => {
                for (dim, most) in [(k_dim, KEY_DIM_MAX), (v_dim, VALUE_DIM_MAX)] {
                    if dim > most || !dim.is_multiple_of(2) {
                        return Err(Error(format!(
                            "heads of {dim} values are not supported on this device: it takes even numbers up to {most}"
                        )));
                    }
                }
                let rows = shape.pages_of(group) * kv_heads * PAGE_TOKENS;
                let bytes = |ty, dim| ((rows * device_row_bytes(ty, dim)) as u64).max(16);
                Ok(Self::Kv {
                    keys: zeroed(bytes(shape.kv.keys, k_dim))?,
                    values: zeroed(bytes(shape.kv.values, v_dim))?,
                    heads: kv_heads,
                    dims: [k_dim, v_dim],
                    group,
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
