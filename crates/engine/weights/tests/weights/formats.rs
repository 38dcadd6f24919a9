//! Quantised checkpoints as their makers' own libraries dequantise them: digests of every tensor in `../shared/formats`.

use std::path::{Path, PathBuf};

use octet_weights::{GgmlType, Model, hf};
use serde_json::Value as Json;
use sha2::{Digest, Sha256};

/// Folders with a `golden.json`, two levels down.
fn checkpoints(root: &Path) -> Vec<PathBuf> {
    let list = |dir: &Path| -> Vec<PathBuf> {
        std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).filter(|p| p.is_dir()).collect()
    };
    let mut all: Vec<PathBuf> = list(root).iter().flat_map(|method| list(method)).collect();
    all.retain(|dir| dir.join("golden.json").exists());
    all.sort();
    all
}

/// The digest of f32 values; -0 counts as 0.
fn digest(values: &[f32]) -> String {
    let mut sha = Sha256::new();
    values.iter().for_each(|v| sha.update((v + 0.0).to_le_bytes()));
    sha.finalize().iter().map(|b| format!("{b:02x}")).collect()
}

#[test]
fn values_are_those_of_the_makers_libraries_to_the_bit() {
    let Some(root) = octet_testkit::shared("formats") else { return };
    let (mut tensors, mut folders) = (0, 0);
    for dir in checkpoints(&root) {
        let golden: Json = serde_json::from_slice(&std::fs::read(dir.join("golden.json")).unwrap()).unwrap();
        let model = hf::open_tensors(&dir).unwrap_or_else(|e| panic!("{e}"));
        for (name, want) in golden["sha256"].as_object().unwrap() {
            let tensor = model.optional(name).unwrap_or_else(|e| panic!("{e}"));
            let tensor = tensor.unwrap_or_else(|| panic!("{}: {name} is missing", dir.display()));
            assert_eq!(
                &digest(&tensor.to_f32()),
                want.as_str().unwrap(),
                "{} {name} {}",
                dir.display(),
                tensor.info.ty
            );
            tensors += 1;
        }
        folders += 1;
    }
    assert_eq!((folders, tensors), (45, 534));
}

/// Matrices are as small in memory as in the file, but for what is said here.
#[test]
fn nothing_is_widened() {
    let Some(root) = octet_testkit::shared("formats") else { return };
    // Act-order has no compact type; two bits become four.
    let wide = ["auto-round/int2-g32", "compressed-tensors/w4a16-g64-actorder", "gptq/int4-g64-actorder"];
    for dir in checkpoints(&root) {
        if wide.iter().any(|w| dir.ends_with(w)) {
            continue;
        }
        let model = hf::open_tensors(&dir).unwrap_or_else(|e| panic!("{e}"));
        let files: u64 = model.files().iter().map(|f| f.bytes.len() as u64).sum();
        assert!(
            model.size_bytes() < files + files / 6,
            "{}: {} of {files}",
            dir.display(),
            model.size_bytes()
        );
    }
}

/// A GGUF file with NVFP4 and its factors, as llama.cpp's converter writes it: the values of the checkpoint, but for one rounding.
#[test]
fn nvfp4_in_gguf_has_the_checkpoints_values() {
    let Some(root) = octet_testkit::shared("formats") else { return };
    let checkpoint =
        hf::open_tensors(root.join("compressed-tensors/nvfp4")).unwrap_or_else(|e| panic!("{e}"));
    let gguf = Model::open(root.join("ggml/nvfp4-llama.gguf")).unwrap_or_else(|e| panic!("{e}"));
    let names =
        [("attn_v", "self_attn.v_proj"), ("ffn_down", "mlp.down_proj"), ("ffn_gate", "mlp.gate_proj")];
    for (ours, theirs) in names {
        let a = gguf.optional(&format!("blk.0.{ours}.weight")).unwrap().unwrap();
        let b = checkpoint.optional(&format!("model.layers.0.{theirs}.weight")).unwrap().unwrap();
        assert_eq!((a.info.ty, b.info.ty), (GgmlType::NVFP4, GgmlType::NVFP4));
        for (a, b) in a.to_f32().iter().zip(b.to_f32()) {
            assert!((a - b).abs() <= 2e-7 * b.abs(), "{ours}: {a}, {b}");
        }
    }
    assert!(gguf.tensors().iter().all(|t| !t.name.ends_with("scale")));
}
