//! Sizes of what lies in a graphics device's memory, as its backend stores it.

use octet_compute::backend::KvType;
use octet_engine::vision::Options;
use octet_weights::GgmlType;

/// Host memory for a device: two staging buffers of 16 MiB, and the batches of two steps.
pub const STAGING_BYTES: u64 = 48 << 20;
/// Device memory besides weights, caches and activations: partial sums of attention, and the unused end of the last block of small buffers.
pub const FIXED_BYTES: u64 = 64 << 20;

/// Estimated memory of a model on a graphics device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Split {
    /// Bytes of the device's own memory.
    pub device: u64,
    /// Bytes of the machine's memory: the embedding table, snapshots, logits, what reads images, and all experts if the device has slots for some.
    /// Without [`crate::device_memory::table_copy`], which a model does without.
    pub machine: u64,
}

/// The memory of the tower that reads a model's images, and of these. It lies where the tower runs; kept embeddings are in the machine's.
pub fn images(vision: &Options, exact: bool) -> Split {
    let (file, work) = (&vision.file, vision.work_bytes());
    let Some(tower) = vision.tower().ok().filter(|_| vision.on_device) else {
        return Split { device: 0, machine: file.size_bytes().saturating_add(work) };
    };
    let f32s = |values: u64| weight_bytes(GgmlType::F32, values);
    let weights = file.tensors().iter().map(|t| {
        let values = t.len() as u64;
        match tower.copies_in_f32(&t.name) as u64 {
            0 if !exact => weight_bytes(t.ty, values),
            copies => f32s(values.saturating_mul(copies.max(1))),
        }
    });
    // Rows of a step: what projections read as f32 and in bytes, what the feed-forward block and its experts write.
    let (step, cols) = (tower.step_shape(), tower.cols_max());
    let rows = (step.tokens * (10 * cols + 14 * step.intermediate)) as u64;
    let on_host = vision.cache_bytes + tower.host_bytes();
    Split {
        device: weights.fold(work.saturating_sub(on_host) + rows + FIXED_BYTES, u64::saturating_add),
        machine: on_host + STAGING_BYTES,
    }
}

/// Bytes of `values` weights on a device.
#[cfg(feature = "vulkan")]
pub fn weight_bytes(ty: GgmlType, values: u64) -> u64 {
    octet_vulkan::device_bytes(ty, values)
}

#[cfg(not(feature = "vulkan"))]
pub fn weight_bytes(ty: GgmlType, values: u64) -> u64 {
    values / ty.block_len() as u64 * ty.block_bytes() as u64
}

/// Whether a device can read an embedding table of this type.
#[cfg(feature = "vulkan")]
pub fn reads_table(ty: GgmlType) -> bool {
    octet_vulkan::reads_table(ty)
}

#[cfg(not(feature = "vulkan"))]
pub fn reads_table(_: GgmlType) -> bool {
    false
}

/// Bytes of a row of keys or values on a device.
#[cfg(feature = "vulkan")]
pub fn kv_row_bytes(ty: KvType, head_dim: usize) -> usize {
    octet_vulkan::device_row_bytes(ty, head_dim)
}

#[cfg(not(feature = "vulkan"))]
pub fn kv_row_bytes(ty: KvType, head_dim: usize) -> usize {
    ty.row_bytes(head_dim)
}
