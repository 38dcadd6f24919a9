//! What a verb reads of its weights and of the cache.

use crate::backend::Weight;
use crate::cache::{Cache, LayerStore, device_row_bytes};
use crate::traffic::Traffic;
use crate::weights::row_bytes;

impl Traffic {
    pub(crate) fn add_weights(&mut self, weights: &[&Weight]) {
        self.add(weights.iter().map(|w| w.bytes()).sum::<u64>());
    }

    /// A stage reads the matrix of so many of its experts.
    pub(crate) fn add_routed(&mut self, weight: &Weight, experts: usize) {
        self.add_of_experts(weight.bytes() * experts as u64);
    }

    /// A verb works on the cache of this layer.
    pub(crate) fn add_layer(&mut self, cache: &Cache, layer: usize) {
        match &cache.layers[layer] {
            LayerStore::Kv { heads, dims, .. } => {
                let types = [cache.kv.keys, cache.kv.values];
                let rows: usize =
                    types.into_iter().zip(dims).map(|(ty, dim)| device_row_bytes(ty, *dim)).sum();
                self.add_per_position((heads * rows) as u64);
            }
            LayerStore::None => {}
            LayerStore::State { conv_bytes, state_bytes, .. } => {
                self.add_per_sequence(2 * (conv_bytes + state_bytes));
            }
        }
    }
}

impl Weight {
    /// Bytes of the matrix, or of one expert's.
    pub(crate) fn bytes(&self) -> u64 {
        row_bytes(self.ty, self.cols).iter().sum::<u64>() * self.rows as u64
    }
}
