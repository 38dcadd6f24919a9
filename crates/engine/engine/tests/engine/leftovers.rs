//! A file with tensors that the engine does not use is refused, and the error names the tensor.

use bytes::Bytes;
use octet_compute::reference::Reference;
use octet_engine::models;
use octet_synth::{Mix, tiny};
use octet_weights::{GgmlType, Model, Source, TensorInfo};

/// A synthetic model with one more tensor.
struct WithExtra {
    inner: Model,
    tensors: Vec<TensorInfo>,
    ignored: Vec<String>,
}

impl Source for WithExtra {
    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }
    fn data(&self, index: usize) -> Result<Bytes, octet_weights::Error> {
        let info = &self.tensors[index];
        match self.inner.optional(&info.name)? {
            Some(t) => Ok(t.data),
            None => Ok(vec![0; info.size_bytes() as usize].into()),
        }
    }
    fn ignored(&self) -> &[String] {
        &self.ignored
    }
}

fn load(arch: &str, extra: Option<&str>, ignored: Option<&str>) -> Result<(), String> {
    let inner = tiny(arch, Mix::Of(GgmlType::F32)).expect("a tiny model can be made");
    let metadata = inner.metadata.clone();
    let mut tensors = inner.tensors().to_vec();
    tensors.extend(extra.map(|name| TensorInfo { name: name.into(), ty: GgmlType::F32, shape: vec![64] }));
    let ignored = ignored.map(str::to_string).into_iter().collect();
    let file = Model::new("made.gguf".into(), metadata, Box::new(WithExtra { inner, tensors, ignored }));
    let file = file.expect("names are unique");
    let limits = models::Limits { mtp: true, ..crate::common::limits() };
    models::load(&file, Reference, limits, &mut |_, _| {}).map(|_| ()).map_err(|e| e.to_string())
}

#[test]
fn tensors_without_a_use_are_refused() {
    for (arch, name) in [
        ("llama", "blk.0.attn_q_norm.weight"),
        ("llama", "blk.1.attn_sinks.weight"),
        ("qwen2", "blk.0.attn_norm.bias"),
        ("qwen3moe", "blk.0.exp_probs_b.bias"),
        ("qwen3", "output_norm.bias"),
        ("qwen3", "blk.99.attn_norm.weight"),
    ] {
        let e = load(arch, Some(name), None).expect_err(name);
        assert!(e.contains(name) && e.contains("made.gguf") && e.contains(arch), "{e}");
    }
    let e = load("llama", None, Some("model.layers.0.self_attn.sinks")).expect_err("an unknown name");
    assert!(e.contains("self_attn.sinks"), "{e}");
}

#[test]
fn vision_towers_and_prediction_blocks_are_ignored() {
    assert_eq!(load("llama", None, None), Ok(()));
    assert_eq!(load("qwen35", Some("v.blk.0.attn_q.weight"), None), Ok(()));
    assert_eq!(load("qwen35", Some("blk.4.nextn.embed_tokens.weight"), None), Ok(()));
    assert_eq!(load("qwen35", None, Some("mtp.layers.3.mlp.gate.weight")), Ok(()));
}
