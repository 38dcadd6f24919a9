//! Any bytes as config.json and, after a zero byte each, the other text files of a checkpoint.
#![no_main]

use std::collections::BTreeMap;

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;

const FILES: [&str; 6] = [
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "tokenizer.json",
    "chat_template.json",
    "chat_template.jinja",
];
/// Two names that depend on config.json: a norm, and a multi-token-prediction layer.
const HEADER: &[u8] = br#"{"model.norm.weight":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},
"mtp.layers.0.input_layernorm.weight":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#;

fuzz_target!(|data: &[u8]| {
    let pieces = data.splitn(FILES.len(), |b| *b == 0);
    let mut files: BTreeMap<_, _> =
        FILES.into_iter().map(String::from).zip(pieces.map(Bytes::copy_from_slice)).collect();
    let weights = [&(HEADER.len() as u64).to_le_bytes()[..], HEADER, &[0; 8]].concat();
    files.insert("model.safetensors".into(), weights.into());
    let Ok(m) = octet_weights::hf::from_files("dir", files) else { return };
    for t in m.tensors() {
        m.tensor(&t.name, &t.shape).expect("an accepted tensor can be read");
    }
});
