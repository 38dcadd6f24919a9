//! Which encoder belongs to a type, compiled for several processors.

use octet_weights::GgmlType;
use octet_weights::quant;

use crate::{iq, k, single};

/// The types that can be made.
pub const TYPES: &[GgmlType] = &[
    GgmlType::F32,
    GgmlType::F16,
    GgmlType::BF16,
    GgmlType::Q8_0,
    GgmlType::Q4_0,
    GgmlType::Q4_1,
    GgmlType::Q5_0,
    GgmlType::Q5_1,
    GgmlType::Q2_K,
    GgmlType::Q3_K,
    GgmlType::Q4_K,
    GgmlType::Q5_K,
    GgmlType::Q6_K,
    GgmlType::IQ4_NL,
    GgmlType::IQ4_XS,
    GgmlType::IQ3_S,
    GgmlType::IQ3_XXS,
    GgmlType::IQ2_S,
    GgmlType::IQ2_XS,
    GgmlType::IQ2_XXS,
    GgmlType::IQ1_M,
    GgmlType::IQ1_S,
    GgmlType::MXFP4,
    GgmlType::NVFP4,
    GgmlType::TQ1_0,
    GgmlType::TQ2_0,
    GgmlType::Q1_0,
    GgmlType::Q2_0,
];

/// What is added to the importance of every column, as a part of the mean.
const LEAST_IMPORTANCE: f32 = 0.05;

/// Quantises rows of `columns` values into whole blocks of `ty`. With `importance`, a factor of each column's squared error, the sum of
/// these is made small, else the sum of squares. The same input gives the same bytes on every machine.
///
/// # Panics
/// When the lengths do not fit each other, `columns` is not whole blocks, or `ty` is not one of [`TYPES`].
pub fn quantize(ty: GgmlType, x: &[f32], columns: usize, importance: Option<&[f32]>, out: &mut [u8]) {
    assert!(columns > 0 && columns.is_multiple_of(ty.block_len()), "rows are whole blocks");
    assert!(x.len().is_multiple_of(columns), "whole rows");
    assert_eq!(out.len(), x.len() / ty.block_len() * ty.block_bytes(), "as many blocks as the values need");
    let encode = best();
    let Some(importance) = importance else { return encode(ty, x, None, out) };
    assert_eq!(importance.len(), columns, "a weight for each column");
    // What is of no importance in a sample is of some in use.
    let least = LEAST_IMPORTANCE * importance.iter().sum::<f32>() / columns as f32;
    let importance: Vec<f32> = importance.iter().map(|w| w + least).collect();
    let row_bytes = columns / ty.block_len() * ty.block_bytes();
    for (x, out) in x.chunks_exact(columns).zip(out.chunks_exact_mut(row_bytes)) {
        encode(ty, x, Some(&importance), out);
    }
}

type Encode = fn(GgmlType, &[f32], Option<&[f32]>, &mut [u8]);

fn best() -> Encode {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c") {
        // SAFETY: the processor has the instructions.
        return |ty, x, w, out| unsafe { encode_avx2(ty, x, w, out) };
    }
    encode_plain
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
fn encode_avx2(ty: GgmlType, x: &[f32], w: Option<&[f32]>, out: &mut [u8]) {
    encode(ty, x, w, out);
}

fn encode_plain(ty: GgmlType, x: &[f32], w: Option<&[f32]>, out: &mut [u8]) {
    encode(ty, x, w, out);
}

/// `w` has a weight for each value. No function here is fused (multiply and add), so every processor gives the same bytes.
#[inline(always)]
fn encode(ty: GgmlType, x: &[f32], w: Option<&[f32]>, out: &mut [u8]) {
    use GgmlType as T;
    match ty {
        T::Q8_0 => single::q8_0(x, out),
        T::Q4_0 => single::q4_0(x, w, out),
        T::Q4_1 => single::q4_1(x, w, out),
        T::Q5_0 => single::q5_0(x, w, out),
        T::Q5_1 => single::q5_1(x, w, out),
        T::Q2_K => k::q2_k(x, w, out),
        T::Q3_K => k::q3_k(x, w, out),
        T::Q4_K => k::q4_k(x, w, out),
        T::Q5_K => k::q5_k(x, w, out),
        T::Q6_K => k::q6_k(x, w, out),
        T::IQ4_NL => single::iq4_nl(x, w, out),
        T::IQ4_XS => k::iq4_xs(x, w, out),
        T::IQ3_S => iq::iq3_s(x, w, out),
        T::IQ3_XXS => iq::iq3_xxs(x, w, out),
        T::IQ2_S => iq::iq2_s(x, w, out),
        T::IQ2_XS => iq::iq2_xs(x, w, out),
        T::IQ2_XXS => iq::iq2_xxs(x, w, out),
        T::IQ1_M => iq::iq1_m(x, w, out),
        T::IQ1_S => iq::iq1_s(x, w, out),
        T::MXFP4 => single::mxfp4(x, w, out),
        T::NVFP4 => single::nvfp4(x, w, out),
        T::TQ1_0 => single::tq1_0(x, w, out),
        T::TQ2_0 => single::tq2_0(x, w, out),
        T::Q1_0 => single::q1_0(x, w, out),
        T::Q2_0 => single::q2_0(x, w, out),
        T::F32 | T::F16 | T::BF16 => quant::quantize(ty, x, out).unwrap_or_else(|e| panic!("{e}")),
        other => panic!("there is no encoder for {other}"),
    }
}
