//! The types of tensors, against dry runs of llama-quantize.

use std::collections::BTreeMap;

use octet_quantize::{Facts, FileType, types};
use octet_weights::{GgmlType, TensorInfo};
use serde_json::Value;

fn tensor(name: String, shape: &[usize]) -> TensorInfo {
    TensorInfo { name, ty: GgmlType::BF16, shape: shape.to_vec() }
}

/// Qwen3.6-35B-A3B with its block for multi-token prediction.
fn large() -> (Facts, Vec<TensorInfo>) {
    let mut all = vec![
        tensor("token_embd.weight".into(), &[248_320, 2048]),
        tensor("output.weight".into(), &[248_320, 2048]),
    ];
    for i in 0..41 {
        let mut add = |name: &str, shape: &[usize]| all.push(tensor(format!("blk.{i}.{name}"), shape));
        if i % 4 == 3 || i == 40 {
            add("attn_q.weight", &[8192, 2048]);
            add("attn_k.weight", &[512, 2048]);
            add("attn_v.weight", &[512, 2048]);
            add("attn_output.weight", &[2048, 4096]);
            add("attn_q_norm.weight", &[256]);
        } else {
            add("attn_qkv.weight", &[8192, 2048]);
            add("attn_gate.weight", &[4096, 2048]);
            add("ssm_alpha.weight", &[32, 2048]);
            add("ssm_beta.weight", &[32, 2048]);
            add("ssm_out.weight", &[2048, 4096]);
            add("ssm_conv1d.weight", &[8192, 4]);
        }
        add("ffn_gate_inp.weight", &[256, 2048]);
        add("ffn_gate_inp_shexp.weight", &[2048]);
        for kind in ["exps", "shexp"] {
            let experts: &[usize] = if kind == "exps" { &[256] } else { &[] };
            add(&format!("ffn_gate_{kind}.weight"), &[experts, &[512, 2048]].concat());
            add(&format!("ffn_up_{kind}.weight"), &[experts, &[512, 2048]].concat());
            add(&format!("ffn_down_{kind}.weight"), &[experts, &[2048, 512]].concat());
        }
        if i == 40 {
            add("nextn.eh_proj.weight", &[2048, 4096]);
        }
    }
    (Facts { layers: 41, experts: 256, sharing: 8, is_70b: false, importance: false }, all)
}

fn small() -> (Facts, Vec<TensorInfo>) {
    let mut all = vec![tensor("token_embd.weight".into(), &[49_152, 576])];
    for i in 0..30 {
        let mut add = |name: &str, shape: &[usize]| all.push(tensor(format!("blk.{i}.{name}.weight"), shape));
        add("attn_q", &[576, 576]);
        add("attn_k", &[192, 576]);
        add("attn_v", &[192, 576]);
        add("attn_output", &[576, 576]);
        add("ffn_gate", &[1536, 576]);
        add("ffn_up", &[1536, 576]);
        add("ffn_down", &[576, 1536]);
    }
    (Facts { layers: 30, experts: 0, sharing: 3, is_70b: false, importance: false }, all)
}

/// Layers of a list such as `0-2,5`.
fn layers(list: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (a, b) = part.split_once('-').unwrap_or((part, part));
        a.parse::<usize>().unwrap()..=b.parse().unwrap()
    };
    list.split(',').flat_map(range).collect()
}

/// Compares with one object of the file: types by the names without blocks.
fn compare(what: &str, wanted: &Value, ours: &BTreeMap<String, GgmlType>) -> usize {
    let mut compared = 0;
    for (name, types) in wanted.as_object().unwrap() {
        let by_layer: Vec<(String, Vec<usize>)> = match types {
            Value::String(ty) => {
                let all = ours
                    .keys()
                    .filter_map(|n| n.strip_suffix(name.as_str())?.strip_prefix("blk.")?.strip_suffix('.'));
                vec![(ty.clone(), all.map(|i| i.parse().unwrap()).collect())]
            }
            by_type => by_type
                .as_object()
                .unwrap()
                .iter()
                .map(|(ty, l)| (ty.clone(), layers(l.as_str().unwrap())))
                .collect(),
        };
        for (ty, layers) in by_layer {
            let wanted = GgmlType::from_name(&ty).unwrap();
            let names: Vec<String> = match ours.contains_key(name) {
                true => vec![name.clone()],
                false => layers.iter().map(|i| format!("blk.{i}.{name}")).collect(),
            };
            assert!(!names.is_empty(), "{what}: no {name}");
            for n in names {
                assert_eq!(ours[&n], wanted, "{what}: {n}");
                compared += 1;
            }
        }
    }
    compared
}

#[test]
fn types_equal_llama_quantizes() {
    for (file, (facts, tensors)) in
        [("quantize_types.json", large()), ("quantize_types_smollm2-135m.json", small())]
    {
        let Some(path) = octet_testkit::shared(&format!("formats/{file}")) else { return };
        let all: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let mut compared = 0;
        for (name, row) in all["types"].as_object().unwrap() {
            // What llama-quantize refuses.
            if row["result"] != 0 {
                continue;
            }
            let file_type: FileType = name.parse().unwrap();
            for importance in [false, true] {
                let facts = Facts { importance, ..facts.clone() };
                let types = types(file_type, &facts, &tensors);
                let quantised = tensors.iter().zip(types).filter_map(|(t, ty)| Some((t.name.clone(), ty?)));
                let ours: BTreeMap<String, GgmlType> = quantised.collect();
                let mut wanted = row["tensors"].clone();
                if importance && let Some(other) = row["with_imatrix"]["tensors"].as_object() {
                    for (name, types) in other {
                        wanted[name] = types.clone();
                    }
                }
                compared += compare(&format!("{file} {name} {importance}"), &wanted, &ours);
            }
        }
        assert!(compared > 10_000, "{file}: {compared} tensors");
    }
}

/// Shapes that the files do not list, by the published rules.
#[test]
fn other_shapes_follow_the_same_rules() {
    let of = |file_type: &str, facts: &Facts, name: &str, columns: usize| {
        let list = [tensor(name.into(), &[512, columns]), tensor("output.weight".into(), &[512, columns])];
        types(file_type.parse().unwrap(), facts, &list)[0]
    };
    let mixtral = Facts { layers: 32, experts: 8, sharing: 4, is_70b: false, importance: false };
    for (name, ty) in [
        ("attn_v", GgmlType::Q8_0),
        ("attn_k", GgmlType::Q8_0),
        ("attn_output", GgmlType::Q5_K),
        ("attn_q", GgmlType::Q4_K),
    ] {
        assert_eq!(of("q4_k_m", &mixtral, &format!("blk.5.{name}.weight"), 4096), Some(ty), "{name}");
    }
    let llama = Facts { layers: 80, experts: 0, sharing: 8, is_70b: true, importance: false };
    assert_eq!(of("q3_k_m", &llama, "blk.40.attn_v.weight", 8192), Some(GgmlType::Q5_K));
    assert_eq!(of("q4_k_m", &llama, "blk.40.ffn_gate.weight", 96), Some(GgmlType::Q5_0));
    assert_eq!(of("q4_k_m", &llama, "blk.40.ffn_gate.weight", 100), Some(GgmlType::F16));
    assert_eq!(of("q4_k_m", &llama, "blk.40.attn_norm.weight", 8192), None);
    assert_eq!(of("q4_k_m", &llama, "blk.40.attn_q.bias", 8192), None);
}
