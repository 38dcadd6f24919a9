//! Quantised matrices: the parts of one scheme, with sizes, types and bytes that the input changes.
//!
//! The first byte chooses the scheme. Then each part takes three bytes: what happens to it (missing, another type, another size), and by
//! how much. Two bytes are bits and group size in config.json; the rest are the parts' data, over and over.
#![no_main]

use std::collections::BTreeMap;

use libfuzzer_sys::fuzz_target;
use serde_json::json;

type Part = (&'static str, &'static str, &'static [u64]);

/// Schemes with 64 columns and 16 rows, or 128 where blocks need them.
const SCHEMES: &[&[Part]] = &[
    &[("m.qweight", "I32", &[8, 16]), ("m.qzeros", "I32", &[2, 2]), ("m.scales", "F16", &[2, 16]), ("m.g_idx", "I32", &[64])],
    &[("m.qweight", "I32", &[64, 2]), ("m.qzeros", "I32", &[2, 2]), ("m.scales", "F16", &[2, 16])],
    &[
        ("m.weight_packed", "I32", &[16, 8]),
        ("m.weight_scale", "BF16", &[16, 2]),
        ("m.weight_shape", "I64", &[2]),
        ("m.weight_zero_point", "I32", &[2, 2]),
        ("m.weight_g_idx", "I32", &[64]),
    ],
    &[("m.weight", "I8", &[16, 64]), ("m.weight_scale", "F32", &[16, 1]), ("m.weight_zero_point", "I8", &[16, 1])],
    &[("m.weight", "F8_E4M3", &[130, 192]), ("m.weight_scale_inv", "F32", &[2, 2])],
    &[("m.weight", "F8_E4M3", &[16, 64]), ("m.weight_scale", "U8", &[16, 2])],
    &[("m.gate_up_proj", "F8_E4M3", &[2, 16, 128]), ("m.gate_up_proj_scale_inv", "BF16", &[2, 1, 1])],
    &[("m.weight", "U8", &[16, 32]), ("m.weight_scale", "F8_E4M3", &[16, 4]), ("m.weight_scale_2", "F32", &[])],
    &[("m.weight_packed", "U8", &[16, 32]), ("m.weight_scale", "F8_E4M3", &[16, 4]), ("m.weight_global_scale", "F32", &[1])],
    &[("m.weight", "I8", &[16, 32]), ("m.scale", "F8_E8M0", &[16, 2])],
    &[("m.down_proj_blocks", "U8", &[2, 8, 2, 16]), ("m.down_proj_scales", "U8", &[2, 8, 2])],
    &[("m.weight", "U32", &[2, 8, 8]), ("m.scales", "BF16", &[2, 8, 1]), ("m.biases", "BF16", &[2, 8, 1])],
    &[
        ("m.weight", "U8", &[512, 1]),
        ("m.weight.absmax", "U8", &[16]),
        ("m.weight.quant_map", "F32", &[16]),
        ("m.weight.nested_absmax", "F32", &[1]),
        ("m.weight.nested_quant_map", "F32", &[256]),
        ("m.weight.quant_state.bitsandbytes__nf4", "U8", &[STATE.len() as u64]),
    ],
    &[("m.weight", "I8", &[16, 64]), ("m.SCB", "F32", &[16])],
];
const STATE: &str = r#"{"shape":[16,64],"blocksize":64,"nested_blocksize":256,"nested_offset":0.5}"#;
const TYPES: [(&str, u64); 10] = [
    ("I32", 4),
    ("U8", 1),
    ("I8", 1),
    ("F16", 2),
    ("BF16", 2),
    ("F32", 4),
    ("F8_E4M3", 1),
    ("F8_E8M0", 1),
    ("I64", 8),
    ("F8_E5M2", 1),
];

fuzz_target!(|data: &[u8]| {
    let Some((&[which, bits, group], mut rest)) = data.split_first_chunk() else { return };
    let mut header = serde_json::Map::new();
    let mut bytes = Vec::new();
    for (name, dtype, shape) in SCHEMES[usize::from(which) % SCHEMES.len()] {
        let Some((&[change, at, by], after)) = rest.split_first_chunk() else { return };
        rest = after;
        let (mut dtype, mut shape) = (*dtype, shape.to_vec());
        match change % 8 {
            1 => continue,
            2 => dtype = TYPES[usize::from(by) % TYPES.len()].0,
            3 if !shape.is_empty() => {
                let at = usize::from(at) % shape.len();
                shape[at] = u64::from(by);
            }
            4 => shape.push(u64::from(by % 4)),
            5 => drop(shape.pop()),
            _ => {}
        }
        let size = TYPES.iter().find(|(name, _)| *name == dtype).map_or(1, |(_, size)| *size);
        let len = (shape.iter().product::<u64>() * size) as usize;
        if len > 1 << 20 {
            return;
        }
        let start = bytes.len();
        let is_state = name.contains("quant_state") && change % 8 != 6;
        let fill = if is_state { STATE.as_bytes() } else { rest };
        match fill.is_empty() {
            true => bytes.resize(start + len, 0),
            false => bytes.extend(fill.iter().cycle().take(len)),
        }
        if name.ends_with("weight_shape") && len == 16 && change % 8 != 6 {
            bytes[start..].copy_from_slice(&[16u64.to_le_bytes(), 64u64.to_le_bytes()].concat());
        }
        header.insert((*name).into(), json!({"dtype": dtype, "shape": shape, "data_offsets": [start, bytes.len()]}));
    }
    let header = serde_json::Value::Object(header).to_string();
    let weights = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &bytes].concat();
    let config = json!({"quantization_config": {"bits": bits, "group_size": group, "sym": bits % 2 == 0}});
    let files = BTreeMap::from([
        ("config.json".to_string(), config.to_string().into()),
        ("model.safetensors".into(), weights.into()),
    ]);
    let Ok(m) = octet_weights::hf::tensors_from_files("dir", files) else { return };
    for t in m.tensors() {
        // Some numbers are refused when they are read.
        if let Ok(t) = m.tensor(&t.name, &t.shape) {
            assert_eq!(t.to_f32().len(), t.info.len());
        }
    }
});
