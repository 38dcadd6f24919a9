//! Pages and states on the device. Made by `backend`, which moves them; the verbs read and write them.

use std::sync::Arc;

use octet_compute::backend::{KvType, KvTypes};
use octet_compute::batch::PAGE_TOKENS;

use crate::memory::Buffer;

/// Caches of one layer.
pub(crate) enum LayerStore {
    Kv {
        keys: Arc<Buffer>,
        values: Arc<Buffer>,
        heads: usize,
        dim: usize,
    },
    /// `kept`: inputs of guesses `[slots, kept_rows, channels + 2 * v_heads]`.
    Gdn {
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
