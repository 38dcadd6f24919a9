//! GGUF files and checkpoints for tests, well-formed and damaged.

#![allow(dead_code)] // each test file uses its part

pub mod samples;

use std::collections::BTreeMap;

use bytes::Bytes;
use octet_weights::gguf::Writer;
use octet_weights::{GgmlType, Metadata, Model, TensorInfo, Value};

/// A GGUF file put together piece by piece, so that each piece can be wrong.
#[derive(Clone)]
pub struct Raw {
    pub magic: [u8; 4],
    pub version: u32,
    pub tensor_count: Option<u64>,
    pub key_count: Option<u64>,
    pub keys: Vec<Vec<u8>>,
    pub tensors: Vec<Vec<u8>>,
    pub alignment: usize,
    pub data: Vec<u8>,
}

pub fn string(s: &[u8]) -> Vec<u8> {
    [&(s.len() as u64).to_le_bytes(), s].concat()
}

/// A key with its type and the value's bytes.
pub fn key(name: &str, type_id: u32, value: &[u8]) -> Vec<u8> {
    [&string(name.as_bytes())[..], &type_id.to_le_bytes(), value].concat()
}

/// An array: type and number of elements, and their bytes.
pub fn array(type_id: u32, count: u64, elements: &[u8]) -> Vec<u8> {
    [&type_id.to_le_bytes()[..], &count.to_le_bytes(), elements].concat()
}

/// A row of the tensor table; dimensions from the innermost, as in the file.
pub fn tensor(name: &str, dims: &[u64], type_id: u32, offset: u64) -> Vec<u8> {
    let mut out = string(name.as_bytes());
    out.extend((dims.len() as u32).to_le_bytes());
    out.extend(dims.iter().flat_map(|d| d.to_le_bytes()));
    out.extend(type_id.to_le_bytes());
    out.extend(offset.to_le_bytes());
    out
}

impl Raw {
    /// Two keys and two F32 tensors, `a.weight` [2, 4] and `b.weight` [8].
    pub fn small() -> Self {
        Self {
            magic: *b"GGUF",
            version: 3,
            tensor_count: None,
            key_count: None,
            keys: vec![
                key("general.architecture", 8, &string(b"llama")),
                key("llama.block_count", 4, &2u32.to_le_bytes()),
            ],
            tensors: vec![tensor("a.weight", &[4, 2], 0, 0), tensor("b.weight", &[8], 0, 32)],
            alignment: 32,
            data: (0..16u32).flat_map(|i| (i as f32).to_le_bytes()).collect(),
        }
    }

    /// Everything in front of the data, and the file.
    pub fn build(&self) -> (usize, Bytes) {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.tensor_count.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.key_count.unwrap_or(self.keys.len() as u64).to_le_bytes());
        out.extend(self.keys.concat());
        out.extend(self.tensors.concat());
        out.resize(out.len().next_multiple_of(self.alignment), 0);
        let head = out.len();
        out.extend(&self.data);
        (head, out.into())
    }

    pub fn open(&self) -> Result<Model, octet_weights::Error> {
        octet_weights::gguf::from_bytes("m.gguf", self.build().1)
    }
}

pub fn info(name: &str, ty: GgmlType, shape: &[usize]) -> TensorInfo {
    TensorInfo { name: name.into(), ty, shape: shape.to_vec() }
}

/// Metadata of a file called `m.gguf`.
pub fn metadata(keys: &[(&str, Value)]) -> Metadata {
    let mut m = Metadata::new("m.gguf");
    for (k, v) in keys {
        m.insert(k, v.clone());
    }
    m
}

/// Writes a GGUF file through the crate's own writer.
pub fn write(metadata: &Metadata, tensors: &[(TensorInfo, Vec<u8>)]) -> Vec<u8> {
    let infos = tensors.iter().map(|(t, _)| t.clone()).collect();
    let mut w = Writer::new(Vec::new(), metadata, infos).unwrap();
    for (_, data) in tensors {
        w.append(data).unwrap();
    }
    w.finish().unwrap()
}

/// What opening says when it must fail.
pub fn refusal(opened: Result<Model, octet_weights::Error>) -> String {
    match opened {
        Ok(_) => panic!("opened, but must be refused"),
        Err(e) => e.to_string(),
    }
}

/// Bytes of F32 values 0, 1, 2, ...
pub fn counting(values: usize) -> Vec<u8> {
    (0..values).flat_map(|i| (i as f32).to_le_bytes()).collect()
}

/// A safetensors file with F32 tensors of these names and shapes, through the reference implementation.
pub fn safetensors_file(tensors: &[(&str, &[usize])]) -> Vec<u8> {
    use safetensors::{Dtype, tensor::TensorView};
    let data: Vec<_> = tensors.iter().map(|(_, s)| counting(s.iter().product())).collect();
    let views = tensors
        .iter()
        .zip(&data)
        .map(|((name, shape), d)| (*name, TensorView::new(Dtype::F32, shape.to_vec(), d).unwrap()));
    safetensors::serialize(views, None).unwrap()
}

/// A one-layer llama: config.json and model.safetensors.
pub fn tiny_llama() -> BTreeMap<String, Bytes> {
    let config = serde_json::json!({
        "model_type": "llama", "hidden_size": 4, "intermediate_size": 8, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 6, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 64, "hidden_act": "silu", "tie_word_embeddings": true,
    });
    let weights = safetensors_file(&[
        ("model.embed_tokens.weight", &[6, 4]),
        ("model.norm.weight", &[4]),
        ("model.layers.0.input_layernorm.weight", &[4]),
        ("model.layers.0.self_attn.q_proj.weight", &[4, 4]),
    ]);
    BTreeMap::from([
        ("config.json".into(), config.to_string().into()),
        ("model.safetensors".into(), weights.into()),
    ])
}
