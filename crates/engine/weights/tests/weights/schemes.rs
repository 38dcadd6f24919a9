//! Each quantisation scheme on samples that are packed here: values to the bit, and what is refused.

use octet_weights::{GgmlType, hf};
use safetensors::Dtype;
use serde_json::{Value as Json, json};

use crate::support::samples::{self, ROWS, Sample, Stored, f32s, stored};
use crate::support::tiny_llama;

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|v| (v + 0.0).to_bits()).collect()
}

#[test]
fn values_are_exact() {
    for s in samples::all() {
        let got = s.read().unwrap_or_else(|e| panic!("{}: {e}", s.what));
        assert_eq!(got.len(), s.values.len(), "{}", s.what);
        let odd = bits(&got).iter().zip(bits(&s.values)).position(|(a, b)| *a != b);
        assert_eq!(odd.map(|i| (i, got[i], s.values[i])), None, "{}", s.what);
    }
}

/// Sizes in memory, in bits a weight: what kernels exist for is not widened.
#[test]
fn types_are_compact() {
    for (what, ty) in [
        ("gptq, 4 bits, groups of 32, symmetric: true", GgmlType::Q4_0),
        ("gptq, 4 bits, groups of 32, symmetric: false, act-order: false", GgmlType::I4_Z),
        ("gptq, 8 bits, groups of 128, symmetric: true", GgmlType::Q8_0),
        ("awq, groups of 128", GgmlType::I4_Z),
        ("pack-quantized, 5 bits, 160 columns, groups of 32, symmetric: true", GgmlType::Q5_0),
        ("fp8, tiles of 1 x [130, 256]", GgmlType::F8_128),
        ("fp8, tiles of 1 x [96, 352]", GgmlType::F8_32),
        ("fp8, a scale a row", GgmlType::F8_E4M3),
        ("ModelOpt nvfp4", GgmlType::NVFP4),
        ("gpt-oss", GgmlType::MXFP4),
        ("MLX affine, 4 bits", GgmlType::Q4_1),
        ("MLX affine, 6 bits", GgmlType::I8_M),
        ("MLX affine, 8 bits", GgmlType::I8_M),
        ("int-quantized", GgmlType::Q8_0),
        ("bitsandbytes NF4, 128 columns, nested: false", GgmlType::NF4),
        ("bitsandbytes NF4, 128 columns, nested: true", GgmlType::NF4),
        ("bitsandbytes FP4, 64 columns", GgmlType::FP4),
        ("bitsandbytes int8", GgmlType::Q8_0),
    ] {
        let all = samples::all();
        let s = all.iter().find(|s| s.what.starts_with(what)).unwrap_or_else(|| panic!("{what}"));
        assert_eq!(s.open().unwrap().tensors()[0].ty, ty, "{what}");
    }
}

fn refusal(s: &Sample) -> String {
    match s.read() {
        Ok(_) => panic!("{}: read, but must be refused", s.what),
        Err(e) => e.to_string(),
    }
}

#[test]
fn shapes_beyond_all_memory_are_refused() {
    for shape in [[1u64 << 63, 4], [1 << 32, 1 << 32], [(1 << 63) + 1, 2], [u64::MAX; 2]] {
        let mut all = samples::all();
        let s = all.iter_mut().find(|s| s.what.starts_with("bitsandbytes NF4")).unwrap();
        let state = s.tensors.iter_mut().find(|t| t.name.contains("quant_state")).unwrap();
        state.bytes = json!({"shape": shape, "blocksize": 64}).to_string().into_bytes();
        state.shape = vec![state.bytes.len()];
        assert!(refusal(s).contains("has the shape"), "{shape:?}");
    }
}

/// Without a part, or with one whose shape or type is wrong, the error names file and tensor, and what was expected.
#[test]
fn damaged_parts_are_named() {
    for s in samples::all() {
        for i in 0..s.tensors.len() {
            // What quantised activations need may be missing; zero points and orders too: then they are the usual ones.
            let name = &s.tensors[i].name;
            if ["input_scale", "zero_point", "g_idx"].iter().any(|end| name.ends_with(end)) {
                continue;
            }
            let mut without = s.clone();
            without.tensors.remove(i);
            if without.tensors.iter().all(|t| t.name.ends_with("input_scale")) {
                continue;
            }
            let said = refusal(&without);
            assert!(said.starts_with("dir/model.safetensors: tensor '"), "{} without {name}: {said}", s.what);

            let mut longer = s.clone();
            let t = &mut longer.tensors[i];
            let line = t.bytes.len() / t.shape.first().copied().unwrap_or(1).max(1);
            t.bytes.extend(vec![1; line]);
            match t.shape.first_mut() {
                Some(n) => *n += 1,
                None => t.shape = vec![2],
            }
            if let Ok(values) = longer.read() {
                // One more row of some layouts is a matrix again, and other numbers of scales are other tiles.
                assert!(
                    values.len() > s.values.len() || name.ends_with("scale_inv"),
                    "{} with a longer {name}",
                    s.what
                );
            }

            let mut other = s.clone();
            let t = &mut other.tensors[i];
            t.dtype = match t.dtype {
                Dtype::I64 | Dtype::F32 | Dtype::I32 | Dtype::U32 => Dtype::F64,
                _ => Dtype::BOOL,
            };
            let size = if t.dtype == Dtype::F64 { 8 } else { 1 };
            t.bytes = vec![1; t.shape.iter().product::<usize>() * size];
            let said = refusal(&other);
            assert!(said.starts_with("dir/model.safetensors: tensor '"), "{} with {name}: {said}", s.what);
        }
    }
}

/// Scales that are no finite numbers.
#[test]
fn scales_that_are_not_finite_are_refused() {
    for s in samples::all() {
        for (i, t) in s.tensors.iter().enumerate() {
            let is_scale = ["scale", "scales", "scale_inv", "biases", "absmax", "SCB", "scale_2"];
            if !is_scale.iter().any(|end| t.name.ends_with(end)) || t.name.ends_with("input_scale") {
                continue;
            }
            let nan: &[u8] = match t.dtype {
                Dtype::F32 => &[0, 0, 0xc0, 0x7f],
                Dtype::BF16 => &[0xc0, 0x7f],
                Dtype::F16 => &[0, 0x7e],
                Dtype::F8_E4M3 => &[0x7f],
                Dtype::U8 if t.name.contains("absmax") => continue,
                Dtype::U8 if s.what == "MLX nvfp4" => &[0x7f],
                _ => &[0xff],
            };
            let mut odd = s.clone();
            let bytes = &mut odd.tensors[i].bytes;
            let at = bytes.len() - nan.len();
            bytes[at..].copy_from_slice(nan);
            let said = refusal(&odd);
            assert!(said.contains(&t.name) && said.contains("finite"), "{} with {}: {said}", s.what, t.name);
        }
    }
}

#[test]
fn what_would_change_values_is_refused_by_name() {
    let all = samples::all();
    let nvfp4 = all.iter().find(|s| s.what == "ModelOpt nvfp4").unwrap();
    let with = |t: Stored| Sample { tensors: [&nvfp4.tensors[..], &[t]].concat(), ..nvfp4.clone() };
    let said = refusal(&with(stored("m.pre_quant_scale", Dtype::F32, &[128], f32s(&[1.0; 128]))));
    assert!(said.contains("tensor 'm.pre_quant_scale' scales the activations"), "{said}");
    let said = refusal(&with(stored("m.weight_g_idx", Dtype::I32, &[1], vec![0; 4])));
    assert!(
        said.contains("tensor 'm.weight_g_idx' is not one of the tensors that a matrix of FP4 has"),
        "{said}"
    );

    let exl3 = Sample {
        tensors: vec![
            stored("m.trellis", Dtype::I16, &[1, 1, 64], vec![0; 128]),
            stored("m.suh", Dtype::F16, &[16], vec![0; 32]),
            stored("m.svh", Dtype::F16, &[16], vec![0; 32]),
        ],
        ..nvfp4.clone()
    };
    assert!(refusal(&exl3).contains("is of an EXL3 checkpoint"), "{}", refusal(&exl3));

    for (config, want) in [
        (
            json!({"quantization_config": {"quant_method": "EXL3"}}),
            "'quantization_config.quant_method' is 'EXL3'",
        ),
        (
            json!({"text_config": {"quantization_config": {"rotation_config": {"r1": true}}}}),
            "rotation_config' rotates",
        ),
        (json!({"quantization_config": {"spinquant_config": "x"}}), "spinquant_config' rotates activations"),
    ] {
        let said = refusal(&Sample { config, ..nvfp4.clone() });
        assert!(said.starts_with("dir/config.json: field '") && said.contains(want), "{said}");
    }
    // Empty ones are written by the usual tools.
    let empty = json!({"quantization_config": {"transform_config": {}, "spinquant_config": null}});
    assert_eq!(Sample { config: empty, ..nvfp4.clone() }.read().unwrap(), nvfp4.values);
}

/// What config.json leaves out is read in the other places, and where it is wrong the tensors count.
#[test]
fn tensors_decide() {
    for s in samples::all() {
        let wrong = json!({"quantization_config": {
            "quant_method": "compressed-tensors", "bits": 3, "group_size": 48, "ignore": ["re:.*"], "sym": false,
            "weight_block_size": [48, 48],
        }});
        // These two only config.json can say.
        if s.what.starts_with("gptq, ") || s.what.starts_with("MLX affine") {
            continue;
        }
        let got = Sample { config: wrong, ..s.clone() }.read().unwrap_or_else(|e| panic!("{}: {e}", s.what));
        assert!(bits(&got) == bits(&s.values), "{}", s.what);
    }
    let all = samples::all();
    let v2 = all.iter().find(|s| s.what.starts_with("gptq_v2, 4")).unwrap();
    let config = v2.config["quantization_config"].clone();
    for name in
        ["hf_quant_config.json", "quantize_config.json", "quant_config.json", "quantization_config.json"]
    {
        let mut files = samples::files(&json!({}), &v2.tensors);
        let nested = json!({"quantization": config});
        let inner: &Json = if name.starts_with("hf") { &nested } else { &config };
        files.insert(name.into(), inner.to_string().into());
        let model = hf::tensors_from_files("dir", files).unwrap();
        assert_eq!(model.optional("m.weight").unwrap().unwrap().to_f32(), v2.values, "{name}");
    }
    let old = Sample { config: json!({"compression_config": config}), ..v2.clone() };
    assert_eq!(old.read().unwrap(), v2.values);
}

/// Experts of one layer in different types are given out in one that holds all.
#[test]
fn experts_of_different_types_are_unified() {
    let all = samples::all();
    let find = |what: &str| all.iter().find(|s| s.what.starts_with(what)).unwrap().clone();
    let (four, eight, plain) = (
        find("pack-quantized, 4 bits, 160 columns, groups of 32, symmetric: true"),
        find("pack-quantized, 8 bits, 160 columns, groups of 32, symmetric: true"),
        stored("m.weight", Dtype::F32, &[ROWS, 160], f32s(&[0.25; ROWS * 160])),
    );
    let expert = |e: usize, t: &Stored| Stored {
        name: t.name.replacen("m.", &format!("model.layers.0.mlp.experts.{e}.up_proj."), 1),
        ..t.clone()
    };
    let mut config: Json = serde_json::from_slice(&tiny_llama()["config.json"]).unwrap();
    for (k, v) in
        [("model_type", json!("qwen3_moe")), ("num_experts", json!(2)), ("num_experts_per_tok", json!(1))]
    {
        config[k] = v;
    }
    config["moe_intermediate_size"] = json!(8);
    config["rope_theta"] = json!(1e4);
    for (others, ty) in [(eight.tensors, GgmlType::Q8_0), (vec![plain], GgmlType::F32)] {
        let mut tensors: Vec<Stored> = four.tensors.iter().map(|t| expert(0, t)).collect();
        tensors.extend(others.iter().map(|t| expert(1, t)));
        let model = hf::from_files("dir", samples::files(&config, &tensors)).unwrap();
        for t in model.tensors() {
            assert_eq!(t.ty, ty, "{}", t.name);
        }
        let first = model.optional("blk.0.ffn_up.0.weight").unwrap().unwrap();
        assert_eq!(bits(&first.to_f32()), bits(&four.values));
    }
}
