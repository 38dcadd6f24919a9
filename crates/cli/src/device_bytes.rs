//! Sizes of what lies in a graphics device's memory, as its backend stores it.

use octet_compute::backend::KvType;
use octet_engine::models::plan::Plan;
use octet_engine::models::{Limits, derive};
use octet_engine::report::Report;
use octet_engine::vision::Options;
use octet_weights::GgmlType;

/// Host memory for a device: two staging buffers of 16 MiB, and the batches of two steps.
pub const STAGING_BYTES: u64 = 48 << 20;
/// Device memory besides weights, caches and activations: partial sums of attention, and the unused end of the last block of small buffers.
pub const FIXED_BYTES: u64 = 96 << 20;

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

/// Bytes of a device for a step's activations, which take `own` bytes on the processor.
pub fn step_bytes(report: &Report, limits: &Limits, own: u64) -> u64 {
    match report.config.encoder() {
        // They are kept twice, as f32 and quantised to bytes.
        None => 2 * own,
        // There are far more of them, so they are counted more exactly.
        Some(_) => own.saturating_add(encoder_bytes(&report.config.plan, limits.batch_tokens)),
    }
}

/// What an encoder's steps of this many tokens take on a device besides what they take on the processor: the inputs of projections as f32 and in bytes,
/// and what feed-forward blocks write.
fn encoder_bytes(plan: &Plan, tokens: usize) -> u64 {
    let (step, widths) = (derive::step_shape(plan, 1, 1), derive::widths(plan));
    let pooled = plan.pool.iter().flat_map(|pool| &pool.layers).map(|layer| layer.matrix.shape[1]);
    let cols = [plan.hidden, widths.out, step.intermediate, step.expert_intermediate];
    let cols = cols.into_iter().chain(pooled).max().unwrap_or(0);
    let experts = step.top_k * (10 * step.expert_intermediate + 4 * cols);
    ((10 * cols + 10 * step.intermediate + experts) as u64).saturating_mul(tokens as u64)
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

#[cfg(feature = "vulkan")]
#[cfg(test)]
mod tests {
    use octet_compute::Batch;
    use octet_engine::engine;
    use octet_engine::models;
    use octet_vulkan::{MemoryLimit, Vulkan, VulkanOptions};
    use octet_weights::gguf::{self, Writer};
    use octet_weights::{Metadata, Model, TensorInfo, Value};

    use super::*;
    use crate::device_memory::{bill, with_spare};

    const CONTEXT: usize = 4096;
    const WIDTH: usize = 256;

    /// An encoder of zeros.
    fn encoder() -> Model {
        let mut metadata = Metadata::default();
        metadata.insert("general.architecture", Value::Str("eurobert".into()));
        for (key, n) in [
            ("context_length", CONTEXT),
            ("embedding_length", WIDTH),
            ("feed_forward_length", 4 * WIDTH),
            ("block_count", 1),
            ("attention.head_count", 4),
            ("attention.head_count_kv", 4),
            ("pooling_type", 1),
        ] {
            metadata.insert(&format!("eurobert.{key}"), Value::U64(n as u64));
        }
        metadata.insert("eurobert.attention.layer_norm_rms_epsilon", Value::F64(1e-5));
        let square = ["attn_q", "attn_k", "attn_v", "attn_output"].map(|n| (n, vec![WIDTH; 2]));
        let wide = ["ffn_gate", "ffn_up"].map(|n| (n, vec![4 * WIDTH, WIDTH]));
        let norms = ["attn_norm", "ffn_norm"].map(|n| (n, vec![WIDTH]));
        let layer = square.into_iter().chain(wide).chain([("ffn_down", vec![WIDTH, 4 * WIDTH])]).chain(norms);
        let layer = layer.map(|(name, shape)| (format!("blk.0.{name}.weight"), shape));
        let others = [("token_embd.weight", vec![64, WIDTH]), ("output_norm.weight", vec![WIDTH])];
        let all = layer.chain(others.map(|(name, shape)| (name.to_string(), shape)));
        let tensors: Vec<_> =
            all.map(|(name, shape)| TensorInfo { name, ty: GgmlType::F32, shape }).collect();
        let mut writer = Writer::new(Vec::new(), &metadata, tensors.clone()).unwrap();
        tensors.iter().for_each(|t| writer.append(&vec![0; 4 * t.len()]).unwrap());
        gguf::from_bytes("encoder", writer.finish().unwrap().into()).unwrap()
    }

    #[test]
    fn an_encoder_takes_no_more_of_a_device_than_was_planned() {
        let Some(index) = octet_testkit::vulkan_device() else { return };
        let file = encoder();
        let report = Report::new(&file).unwrap();
        let options = engine::Options::default().for_config(&report.config);
        let limits = with_spare(options.limits(CONTEXT, 0).unwrap());
        assert_eq!(limits.batch_tokens, CONTEXT);
        let planned = bill(&report, &limits, false).total();
        let load = |bytes| {
            let memory_limit = Some(MemoryLimit::new(bytes));
            let options =
                VulkanOptions { index, memory_limit, lazy_kernels: true, ..VulkanOptions::default() };
            models::load(&file, Vulkan::new(&options).unwrap(), limits.clone(), &mut |_, _| {})
        };
        let mut model = load(planned).unwrap();
        let mut batch = Batch::default();
        batch.push(&[1, 2, 3], 0, 0, &[0], 1);
        batch.see(0..3);
        model.step(&batch).unwrap();
        let states = model.hidden().unwrap().to_vec();
        assert_eq!(model.pool(&states[..WIDTH]).unwrap().len(), WIDTH);
        assert!(load(planned / 2).is_err(), "{planned} bytes are too many");
    }
}
