//! Any bytes as an index (two bytes of length, then the index) and as the shard that follows it. Without an index the
//! rest is a checkpoint in one file.
#![no_main]

use std::collections::BTreeMap;

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;

const CONFIG: &str = r#"{"model_type":"qwen3_5","hidden_size":4,"intermediate_size":8,"num_hidden_layers":2,
"num_attention_heads":2,"vocab_size":6,"rms_norm_eps":1e-6,"max_position_embeddings":64,"rope_theta":1e7,"head_dim":8,
"linear_num_value_heads":4,"linear_value_head_dim":2,"linear_num_key_heads":2,"linear_key_head_dim":2,
"linear_conv_kernel_dim":4,"mtp_num_hidden_layers":1}"#;

fuzz_target!(|data: &[u8]| {
    let Some((length, rest)) = data.split_first_chunk() else { return };
    let Some((index, shard)) = rest.split_at_checked(u16::from_le_bytes(*length).into()) else { return };
    let mut files = BTreeMap::from([("config.json".to_string(), Bytes::from_static(CONFIG.as_bytes()))]);
    if index.is_empty() {
        files.insert("model.safetensors".into(), Bytes::copy_from_slice(shard));
    } else {
        files.insert("model.safetensors.index.json".into(), Bytes::copy_from_slice(index));
        files.insert("a.safetensors".into(), Bytes::copy_from_slice(shard));
    }
    let Ok(m) = octet_weights::hf::from_files("dir", files) else { return };
    for t in m.tensors() {
        match m.tensor(&t.name, &t.shape) {
            Ok(read) => assert_eq!(read.to_f32().len(), t.len()),
            // Only quantised ones are read later, and may hold numbers that are refused.
            Err(e) => assert!(e.to_string().contains("holds"), "an accepted tensor can be read: {e}"),
        }
    }
});
