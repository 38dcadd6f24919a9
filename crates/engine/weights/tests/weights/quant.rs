//! The block formats of `octet_weights::quant` against ggml: its golden vectors, and digests of what its C code makes of
//! the same pseudo-random bytes (ggml 0.25.3 and gguf-py 0.19 agree on all of them).

use octet_testkit::Golden;
use octet_weights::GgmlType as T;
use octet_weights::quant::{NoQuantizer, SCALE_MAX, ik_rows, quantize, random_blocks};
use proptest::prelude::*;

const GOLDEN: &str = "golden/quant/ggml_dequant.safetensors";

/// FNV-1a over the bits of ggml's `dequantize_row_X` of 8192 values, whose bytes are splitmix64 from the type's id.
const DEQUANTIZED: &[(T, u64)] = &[
    (T::F16, 0xd6438c0351b36325),
    (T::Q4_0, 0x882abdc25b143725),
    (T::Q4_1, 0x99a185884092983f),
    (T::Q5_0, 0xdcefd7812f5b1325),
    (T::Q5_1, 0x16099daa1b444561),
    (T::Q8_0, 0x3d93cae52b219ca5),
    (T::Q2_K, 0x6687faa3eeccb942),
    (T::Q3_K, 0x25ce588cddf4c5a5),
    (T::Q4_K, 0x7d57a8109d04fb7a),
    (T::Q5_K, 0x8b5a2e0ef4fbe959),
    (T::Q6_K, 0x71984298909c066d),
    (T::IQ2_XXS, 0x2f759308f7ce44f1),
    (T::IQ2_XS, 0xae73ce7d1ca8b3ed),
    (T::IQ3_XXS, 0x329971e20f45701d),
    (T::IQ1_S, 0x4ae877f0eb7f84c5),
    (T::IQ4_NL, 0x650f720fdd67ca25),
    (T::IQ3_S, 0xc4eda256c31338f5),
    (T::IQ2_S, 0xe9e3b7a027b329e1),
    (T::IQ4_XS, 0xfe62ef9015bc3a4b),
    (T::IQ1_M, 0x2f31359d31307865),
    (T::BF16, 0xd7dc30614548a325),
    (T::TQ1_0, 0x825aa7cd66172325),
    (T::TQ2_0, 0x2d2d5811f5686325),
    (T::MXFP4, 0xbab7e6062574a325),
];

/// FNV-1a over the bytes of ggml's `quantize_row_X_ref` of 8192 values, see [`source`].
const QUANTIZED: &[(T, u64)] = &[
    (T::Q4_0, 0x5a29f8f577c3c074),
    (T::Q4_1, 0x3f255b0d3e03afed),
    (T::Q5_0, 0x9fff31d167e86f7e),
    (T::Q5_1, 0x9c47850747307a78),
    (T::Q8_0, 0x6084cba82fafd319),
    (T::TQ1_0, 0x46a21dbc3e7641e5),
    (T::TQ2_0, 0xe2dea15c05de4c16),
    (T::MXFP4, 0x674fa036004ae4e2),
    (T::F16, 0xa3f38641eebefeb6),
    (T::BF16, 0xe38bdf933ca29206),
];

fn splitmix(mut state: u64, len: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < len {
        state = state.wrapping_add(0x9e3779b97f4a7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58476d1ce4e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d049bb133111eb);
        bytes.extend((z ^ (z >> 31)).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Uniform values, every run of 32 with another power of two from 2^-10 to 2^9 as its limit.
fn source(seed: u64, len: usize) -> Vec<f32> {
    let bytes = splitmix(seed, 4 * len);
    let value = |(i, &b): (usize, &[u8; 4])| {
        let unit = i32::from_le_bytes(b) as f32 / 2f32.powi(31);
        unit * 2f32.powi((i / 32 % 20) as i32 - 10)
    };
    bytes.as_chunks().0.iter().enumerate().map(value).collect()
}

fn fnv(items: impl IntoIterator<Item = u32>) -> u64 {
    items.into_iter().fold(0xcbf29ce484222325, |h, v| (h ^ u64::from(v)).wrapping_mul(0x100000001b3))
}

/// Bits of values; all NaNs are one.
fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|v| if v.is_nan() { f32::NAN.to_bits() } else { v.to_bits() }).collect()
}

fn dequantized(ty: T, data: &[u8]) -> Vec<f32> {
    let mut out = vec![0.0; data.len() / ty.block_bytes() * ty.block_len()];
    ty.dequantize(data, &mut out);
    out
}

fn quantized(ty: T, x: &[f32]) -> Result<Vec<u8>, NoQuantizer> {
    let mut out = vec![0; x.len() / ty.block_len() * ty.block_bytes()];
    quantize(ty, x, &mut out).map(|()| out)
}

fn rms(x: impl ExactSizeIterator<Item = f32>) -> f32 {
    let n = x.len() as f64;
    (x.map(|v| f64::from(v).powi(2)).sum::<f64>() / n).sqrt() as f32
}

/// Values that look like weights: near normal, deviation 1.
fn weights(seed: u64, len: usize) -> Vec<f32> {
    let mut bytes = vec![0; 4 * len];
    random_blocks(T::F32, &mut { seed }, 1.0, &mut bytes);
    dequantized(T::F32, &bytes)
}

#[test]
fn ids_and_names_lead_back_to_the_type() {
    for &ty in T::ALL {
        assert_eq!(T::from_id(ty.id()), ty.is_in_gguf().then_some(ty));
        assert_eq!(T::from_name(ty.name()), Some(ty));
        assert_eq!(T::from_name(&ty.to_string().to_lowercase()), Some(ty));
    }
    assert_eq!(T::from_id(4), None, "Q4_2 was withdrawn");
    assert_eq!(T::from_id(9), None, "Q8_1 holds activations");
    assert_eq!(T::from_name("q4_k_m"), None, "a mix of types, not a type");
}

#[test]
fn dequantisers_equal_ggml_to_the_bit() {
    let Some(golden) = Golden::open(GOLDEN) else { return };
    let mut seen = 0;
    for &ty in T::ALL {
        let Some(raw) = golden.bytes(&format!("{ty}.raw")) else { continue };
        let expected = golden.f32(&format!("{ty}.f32")).expect("raw and f32 come in pairs");
        assert_eq!(bits(&dequantized(ty, &raw)), bits(&expected), "{ty}");
        seen += 1;
    }
    assert_eq!(seen, 21);
}

/// Types that came later, and IQ1_M, which the other file lacks.
#[test]
fn newer_dequantisers_equal_ggml_to_the_bit() {
    let Some(golden) = Golden::open("formats/ggml/ggml_dequant_new.safetensors") else { return };
    let mut seen = 0;
    for key in golden.keys() {
        let Some((of, form)) = key.strip_suffix("raw").and_then(|k| k.split_once('.')) else { continue };
        let ty = T::from_name(of).unwrap_or_else(|| panic!("{of} is not known"));
        let want = golden.f32(&format!("{of}.{form}f32")).expect("raw and f32 come in pairs");
        assert_eq!(bits(&dequantized(ty, &golden.bytes(&key).unwrap())), bits(&want), "{key}");
        seen += 1;
    }
    assert_eq!(seen, 8);
}

/// ik_llama.cpp's types.
const IK: [T; 16] = [
    T::Q6_0,
    T::IQ2_K,
    T::IQ3_K,
    T::IQ4_K,
    T::IQ5_K,
    T::IQ6_K,
    T::IQ4_KS,
    T::IQ2_KS,
    T::IQ4_KSS,
    T::IQ5_KS,
    T::IQ2_KT,
    T::IQ3_KT,
    T::IQ4_KT,
    T::IQ3_KS,
    T::IQ2_KL,
    T::IQ1_KT,
];

/// A GGUF file with one tensor of two rows of 512 values, as its library writes it.
fn one_tensor(id: u32, raw: &[u8]) -> Vec<u8> {
    let mut out = b"GGUF".to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend([1u64.to_le_bytes(), 0u64.to_le_bytes()].concat());
    out.extend(1u64.to_le_bytes());
    out.push(b'w');
    out.extend(2u32.to_le_bytes());
    out.extend([512u64.to_le_bytes(), 2u64.to_le_bytes()].concat());
    out.extend(id.to_le_bytes());
    out.extend(0u64.to_le_bytes());
    out.resize(out.len().next_multiple_of(32), 0);
    out.extend(raw);
    out
}

#[test]
fn types_of_ik_llama_cpp_are_read_to_the_bit() {
    let Some(golden) = Golden::open("formats/ggml/ik_types.safetensors") else { return };
    for ty in IK {
        let raw = golden.bytes(&format!("{ty}.q_raw")).unwrap();
        let want = golden.f32(&format!("{ty}.q_f32")).unwrap();
        let row = ik_rows::Row::of(ty);
        let id = row.map_or(ty.id(), |row| row.id);
        let read = |raw: &[u8]| octet_weights::gguf::from_bytes("x.gguf", one_tensor(id, raw).into());
        let tensor = read(&raw).unwrap().optional("w").unwrap().unwrap();
        assert_eq!((tensor.info.ty, bits(&tensor.to_f32())), (ty, bits(&want)), "{ty}");
        let rms = rms(want.iter().copied());
        let half = tensor.matrix().slice_rows(1, 2).to_f32();
        assert_eq!(bits(&half), bits(&want[512..]), "{ty}: rows keep their scales");
        assert!(read(&raw[1..]).is_err(), "{ty} is cut off");
        if let Some(row) = row {
            // Blocks without scales are near 1, and a scale that is no number is refused.
            let plain = rms_of_blocks(ty, &tensor.data);
            assert!((0.2..5.0).contains(&plain) && rms > 0.0, "{ty}: {plain}");
            let mut odd = raw.clone();
            odd[raw.len() / 2..][..row.scale_bytes].fill(0xff);
            let e = read(&odd).unwrap().optional("w").unwrap_err().to_string();
            assert!(e.contains("x.gguf") && e.contains("row 1") && e.contains("finite"), "{e}");
        }
    }
}

fn rms_of_blocks(ty: T, data: &[u8]) -> f32 {
    rms(dequantized(ty, data).into_iter())
}

#[test]
fn quantisers_equal_ggml_to_the_byte() {
    let Some(golden) = Golden::open(GOLDEN) else { return };
    let mut seen = 0;
    for &ty in T::ALL {
        let Some(expected) = golden.bytes(&format!("{ty}.q_raw")) else { continue };
        let x = golden.f32(&format!("{ty}.src_f32")).expect("q_raw and src_f32 come in pairs");
        assert_eq!(quantized(ty, &x), Ok(expected), "{ty}");
        seen += 1;
    }
    assert_eq!(seen, 8);
}

#[test]
fn dequantisers_have_ggmls_digests() {
    for &(ty, digest) in DEQUANTIZED {
        let raw = splitmix(u64::from(ty.id()), 8192 / ty.block_len() * ty.block_bytes());
        assert_eq!(fnv(bits(&dequantized(ty, &raw))), digest, "{ty}");
    }
    let others = [T::F32, T::NVFP4, T::Q1_0, T::Q2_0, T::F8_E4M3, T::F8_128, T::F8_32].len()
        + [T::I4_Z, T::I8_Z, T::I8_M, T::NF4, T::FP4].len();
    assert_eq!(DEQUANTIZED.len() + others + IK.len(), T::ALL.len(), "those have tests of their own");
}

#[test]
fn quantisers_have_ggmls_digests() {
    for &(ty, digest) in QUANTIZED {
        let bytes = quantized(ty, &source(1000 + u64::from(ty.id()), 8192)).expect("a type with a quantiser");
        assert_eq!(fnv(bytes.into_iter().map(u32::from)), digest, "{ty}");
    }
}

/// Every E4M3 number by its definition, and blocks under a scale.
#[test]
fn eight_bit_floats_are_what_the_specification_says() {
    let all: Vec<u8> = (0..=255).collect();
    let values = dequantized(T::F8_E4M3, &all);
    for (byte, value) in all.iter().zip(&values) {
        let (e, m) = (i32::from(byte >> 3 & 15), f32::from(byte & 7));
        let magnitude = if e == 0 { m / 8.0 * 2f32.powi(-6) } else { (1.0 + m / 8.0) * 2f32.powi(e - 7) };
        let want = if byte & 0x80 == 0 { magnitude } else { -magnitude };
        assert!(*value == want || byte & 0x7f == 0x7f && value.is_nan(), "{byte}: {value}, {want}");
    }
    for (ty, len) in [(T::F8_128, 128), (T::F8_32, 32)] {
        let block = [&0.3f32.to_le_bytes()[..], &all[..len]].concat();
        let want: Vec<f32> = values[..len].iter().map(|v| v * 0.3).collect();
        assert_eq!(bits(&dequantized(ty, &block)), bits(&want));
    }
}

#[test]
fn codebook_types_have_no_quantiser() {
    for ty in [T::IQ1_S, T::IQ1_M, T::IQ2_XXS, T::IQ2_XS, T::IQ2_S, T::IQ3_XXS, T::IQ3_S] {
        assert_eq!(quantized(ty, &[0.0; 256]), Err(NoQuantizer(ty)));
    }
    assert!(NoQuantizer(T::IQ2_S).to_string().contains("IQ2_S"));
}

/// The worst error of `quantize` on weights, as a share of the largest magnitude of the (super-)block, and the root mean
/// square error on normal weights, as a share of their deviation.
fn error_bounds(ty: T) -> Option<(f32, f32)> {
    // Half a step, plus what scales lose by their own rounding; a symmetric format's positive end is one step short.
    Some(match ty {
        T::F32 => (0.0, 0.0),
        T::F16 => (2f32.powi(-11), 3e-4),
        T::BF16 => (2f32.powi(-8), 2e-3),
        T::Q4_0 => (1.0 / 8.0, 0.088),
        T::Q4_1 => (2.0 / 30.0, 0.081),
        T::Q5_0 => (1.0 / 16.0, 0.044),
        T::Q5_1 => (2.0 / 62.0, 0.039),
        T::Q8_0 => (1.0 / 254.0, 0.0055),
        T::Q2_K => (2.0 * (1.0 / 6.0 + 1.0 / 15.0), 0.34),
        T::Q3_K => (1.0 / 4.0 + 1.0 / 16.0, 0.16),
        T::Q4_K => (2.0 * (1.0 / 30.0 + 1.0 / 63.0), 0.081),
        T::Q5_K => (2.0 * (1.0 / 62.0 + 1.0 / 63.0), 0.04),
        T::Q6_K => (1.0 / 32.0 + 1.0 / 128.0, 0.02),
        T::IQ4_NL => (14.0 / 127.0, 0.083),
        T::IQ4_XS => (14.0 / 127.0 + 1.0 / 32.0, 0.083),
        T::TQ1_0 | T::TQ2_0 => (0.5, 0.8),
        T::MXFP4 => (0.25, 0.125),
        T::IQ1_S | T::IQ1_M | T::IQ2_XXS | T::IQ2_XS | T::IQ2_S | T::IQ3_XXS | T::IQ3_S => return None,
        T::NVFP4 | T::Q1_0 | T::Q2_0 | T::F8_E4M3 | T::F8_128 | T::F8_32 => return None,
        T::I4_Z | T::I8_Z | T::I8_M | T::NF4 | T::FP4 => return None,
        ty if IK.contains(&ty) => return None,
        ty => panic!("{ty} has no bound"),
    })
}

#[test]
fn quantisers_have_small_errors_on_weights() {
    let x = weights(1, 1 << 16);
    for &ty in T::ALL {
        let Some((_, bound)) = error_bounds(ty) else { continue };
        let y = dequantized(ty, &quantized(ty, &x).expect("a type with a quantiser"));
        let error = rms(x.iter().zip(&y).map(|(x, y)| x - y));
        assert!(error <= bound, "{ty}: rms error {error}, expected at most {bound}");
    }
}

#[test]
fn quantisers_keep_zeros_and_survive_odd_values() {
    for &ty in T::ALL {
        if error_bounds(ty).is_none() {
            continue;
        }
        let zeros = dequantized(ty, &quantized(ty, &[0.0; 256]).expect("a quantiser"));
        assert!(zeros.iter().all(|&v| v == 0.0), "{ty}");
        for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, 1e-45, -1e-40] {
            let mut x = weights(2, 256);
            x[7] = odd;
            assert!(quantized(ty, &x).is_ok());
            assert!(quantized(ty, &[odd; 256]).is_ok());
        }
    }
}

#[test]
fn random_blocks_look_like_weights() {
    for &ty in T::ALL {
        for scale in [0.005f32, 0.02, 1.0] {
            // Blocks without a scale of their own.
            if ik_rows::Row::of(ty).is_some() {
                continue;
            }
            // Their numbers end there: a matrix has a factor beside them.
            if matches!(ty, T::NVFP4 | T::F8_E4M3) && scale < 1.0 {
                continue;
            }
            let mut state = 42;
            let mut data = vec![0; (1 << 16) / ty.block_len() * ty.block_bytes()];
            random_blocks(ty, &mut state, scale, &mut data);
            assert_ne!(state, 42);
            let x = dequantized(ty, &data);
            let mean = x.iter().map(|&v| f64::from(v)).sum::<f64>() / x.len() as f64;
            let deviation = rms(x.iter().copied());
            assert!((0.93..1.07).contains(&(deviation / scale)), "{ty}: {deviation}, wanted {scale}");
            assert!(mean.abs() < 0.03 * f64::from(scale), "{ty}: mean {mean} at {scale}");
        }
    }
}

#[test]
fn random_blocks_are_finite_at_any_scale_and_repeat_by_seed() {
    for &ty in T::ALL {
        let mut a = vec![0; 16 * 256 / ty.block_len() * ty.block_bytes()];
        for scale in [0.0, 1e-30, 1e-6, SCALE_MAX, f32::MAX] {
            random_blocks(ty, &mut 7, scale, &mut a);
            assert!(dequantized(ty, &a).iter().all(|v| v.is_finite()), "{ty} at {scale}");
        }
        let mut b = vec![0; a.len()];
        random_blocks(ty, &mut 7, f32::MAX, &mut b);
        assert!(a == b, "{ty}");
        random_blocks(ty, &mut 8, f32::MAX, &mut b);
        assert!(a != b, "{ty}");
        random_blocks(ty, &mut 7, 1.0, &mut []);
    }
}

proptest! {
    #[test]
    fn any_bytes_dequantise(seed: u64, blocks in 0usize..5, fill in prop::option::of(any::<u8>())) {
        for &ty in T::ALL {
            let mut data = splitmix(seed, blocks * ty.block_bytes());
            if let Some(byte) = fill {
                data.fill(byte);
            }
            prop_assert_eq!(dequantized(ty, &data).len(), blocks * ty.block_len());
        }
    }

    #[test]
    fn quantisers_keep_their_error_bound(
        x in prop::collection::vec(-1f32..1.0, 256),
        exponent in -6i32..12,
        offset in prop::option::of(-1f32..1.0),
    ) {
        let x: Vec<f32> = x.iter().map(|v| (v + offset.unwrap_or(0.0)) * 2f32.powi(exponent)).collect();
        for &ty in T::ALL {
            let Some((bound, _)) = error_bounds(ty) else { continue };
            let y = dequantized(ty, &quantized(ty, &x).expect("a type with a quantiser"));
            let largest = x.iter().fold(0f32, |m, v| m.max(v.abs()));
            for (i, (x, y)) in x.iter().zip(&y).enumerate() {
                // The bound, 0.2 % of the largest value for the f16 scales and offsets, and half a step of a subnormal f16
                // (3e-8) times the largest scale of a sub-block and the largest weight (Q6_K: 127 * 32).
                let allowed = bound * largest * 1.01 + if bound == 0.0 { 0.0 } else { 2e-3 * largest + 1.3e-4 };
                prop_assert!((x - y).abs() <= allowed, "{}: value {} is {}, came back as {}", ty, i, x, y);
            }
        }
    }
}
