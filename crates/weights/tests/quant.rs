//! The block formats of `octet_weights::quant` against ggml's own results (golden vectors).

use octet_testkit::Golden;
use octet_weights::GgmlType;

const GOLDEN: &str = "golden/quant/ggml_dequant.safetensors";

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn ids_and_names_lead_back_to_the_type() {
    for &ty in GgmlType::ALL {
        assert_eq!(GgmlType::from_id(ty.id()), Some(ty));
        assert_eq!(GgmlType::from_name(ty.name()), Some(ty));
        assert_eq!(GgmlType::from_name(&ty.to_string().to_lowercase()), Some(ty));
    }
    assert_eq!(GgmlType::from_id(4), None, "Q4_2 was withdrawn");
    assert_eq!(GgmlType::from_name("q4_k_m"), None, "a mix of types, not a type");
}

#[test]
fn dequantisers_equal_ggml_to_the_bit() {
    let Some(golden) = Golden::open(GOLDEN) else { return };
    for &ty in &[GgmlType::Q4_0, GgmlType::Q4_1, GgmlType::Q5_0, GgmlType::Q5_1, GgmlType::Q8_0] {
        let raw = golden.bytes(&format!("{ty}.raw")).expect("bytes");
        let expected = golden.f32(&format!("{ty}.f32")).expect("values");
        let mut out = vec![0.0; expected.len()];
        ty.dequantize(&raw, &mut out);
        assert_eq!(bits(&out), bits(&expected), "{ty}");
    }
}
