//! Random weights: blocks of any type with random but valid content.
//!
//! The quants are random bits, and only the fields that scale a block are set: values have zero mean and the wanted standard
//! deviation, never NaN, and a spread of scales over blocks. Nothing is quantised, so this runs at memory speed.

use half::f16;

use super::{
    GgmlType, field, float, fp8, ik, iq1, iq2, iq3, iq4, legacy, levels, mxfp4, nvfp4, q1, q2_k, q3_k, q4_k,
    q5_k, q6_k, tq, write_f16, zero_point,
};

/// Fills `out` with whole blocks of `ty` whose values are random, of zero mean and standard deviation `scale`.
///
/// Floats are roughly normal; quantised values are uniform over the format's levels, under scales that vary from block
/// to block (or sub-block). `rng_state` is any number, and the same number gives the same bytes on every machine; it
/// comes back changed, so that the next call continues. Types whose scales are those of rows ([`super::ik_rows`]) have values near 1. `scale` counts up to [`SCALE_MAX`]: every value is finite.
///
/// # Panics
/// When `out` is not whole blocks.
pub fn random_blocks(ty: GgmlType, rng_state: &mut u64, scale: f32, out: &mut [u8]) {
    use GgmlType as T;
    assert!(out.len().is_multiple_of(ty.block_bytes()), "whole blocks");
    let scale = scale.abs().min(SCALE_MAX);
    // The numbers below are the root mean square of a value where `d` is 1: that of the quant (less its middle), times
    // that of the sub-block's scale if there is one.
    let d = |unit: f32| Scales::new(scale / unit);
    let state = rng_state;
    match ty {
        T::F32 => normal(state, scale, 4, out, float::f32_to_le),
        T::F16 => normal(state, scale, 2, out, float::f32_to_f16),
        T::BF16 => normal(state, scale, 2, out, float::f32_to_bf16),

        // These quants reach further down than up: d takes either sign, as ggml's own does.
        T::Q4_0 => only_d::<18>(state, out, legacy::D, d(4.637).either_sign()),
        T::Q5_0 => only_d::<22>(state, out, legacy::D, d(9.247).either_sign()),
        T::IQ4_NL => only_d::<{ iq4::BYTES_NL }>(state, out, iq4::D, d(67.44).either_sign()),
        // The range's start is such that the middle quant is 0.
        T::Q4_1 => d_and_m::<20>(state, out, d(4.610).offset(-7.5)),
        T::Q5_1 => d_and_m::<24>(state, out, d(9.233).offset(-15.5)),
        T::Q8_0 => q8_0(state, out, d(73.90)),

        // Minimum = scale, and dmin = d times the middle quant: every sub-block has zero mean.
        T::Q2_K => q2_k(state, out, d(1.118 * 11.73).offset(1.5)),
        T::Q4_K => scales_of_6_bits::<{ q4_k::BYTES }>(state, out, d(4.610 * 48.39).offset(7.5)),
        T::Q5_K => scales_of_6_bits::<{ q5_k::BYTES }>(state, out, d(9.233 * 48.39).offset(15.5)),

        // Signed scales or sign bits: any bits will do.
        T::Q3_K => only_d::<{ q3_k::BYTES }>(state, out, q3_k::D, d(2.345 * 18.48)),
        T::Q6_K => only_d::<{ q6_k::BYTES }>(state, out, q6_k::D, d(18.48 * 73.90)),
        T::IQ4_XS => only_d::<{ iq4::BYTES_XS }>(state, out, iq4::D, d(67.44 * 18.48)),
        T::IQ2_XXS => only_d::<{ iq2::BYTES_XXS }>(state, out, iq2::D, d(23.12 * 9.233 / 4.0)),
        T::IQ2_XS => only_d::<{ iq2::BYTES_XS }>(state, out, iq2::D, d(24.22 * 9.233 / 4.0)),
        T::IQ2_S => only_d::<{ iq2::BYTES_S }>(state, out, iq2::D, d(24.43 * 9.233 / 4.0)),
        T::IQ3_XXS => only_d::<{ iq3::BYTES_XXS }>(state, out, iq3::D, d(30.85 * 9.233 / 2.0)),
        T::IQ3_S => only_d::<{ iq3::BYTES_S }>(state, out, iq3::D, d(7.594 * 18.47)),
        T::IQ1_S => only_d::<{ iq1::BYTES_S }>(state, out, iq1::D_S, d(0.781 * 9.220)),
        T::IQ1_M => iq1_m(state, out, d(0.781 * 9.220)),
        T::TQ1_0 => only_d::<{ tq::BYTES_TQ1 }>(state, out, tq::D_TQ1, d(0.8165)),
        T::TQ2_0 => tq2_0(state, out, d(std::f32::consts::FRAC_1_SQRT_2)),
        T::MXFP4 => mxfp4(state, out, scale / 5.852),
        T::NVFP4 => nvfp4(state, out, scale / 2.926),
        T::Q1_0 => only_d::<{ q1::BYTES }>(state, out, q1::D, d(1.0)),
        T::Q2_0 => q2_0(state, out, d(std::f32::consts::FRAC_1_SQRT_2)),
        T::F8_E4M3 => normal(state, scale, 1, out, to_e4m3),
        T::F8_128 => f8::<{ fp8::BYTES_128 }>(state, out, scale),
        T::F8_32 => f8::<{ fp8::BYTES_32 }>(state, out, scale),
        T::I4_Z => patch::<{ zero_point::BYTES }>(state, out, |b| {
            d(4.637).put_d(b, zero_point::D);
            b[zero_point::Z] = 7 + (b[zero_point::Z] & 1);
        }),
        T::I8_Z => i8_under(state, out, d(73.90), |_, which| 127.0 + (which & 1) as f32),
        T::I8_M => i8_under(state, out, d(73.90), |d, _| -127.5 * d),
        T::NF4 => under_f32(state, out, d(0.5172)),
        T::FP4 => under_f32(state, out, d(0.4868)),
        T::Q6_0 => only_d::<{ ik::BYTES_Q6_0 }>(state, out, ik::D, d(18.48).either_sign()),
        T::IQ2_K => only_d::<{ ik::BYTES_2 }>(state, out, ik::D, d(4.637 * 18.30).either_sign()),
        T::IQ3_K => only_d::<{ ik::BYTES_3 }>(state, out, ik::D, d(18.47 * 33.98)),
        T::IQ4_K => only_d::<{ ik::BYTES_4 }>(state, out, ik::D, d(18.48 * 67.32).either_sign()),
        T::IQ5_K => only_d::<{ ik::BYTES_5 }>(state, out, ik::D, d(18.48 * 66.23).either_sign()),
        T::IQ6_K => only_d::<{ ik::BYTES_6 }>(state, out, ik::D, d(73.90 * 64.78).either_sign()),
        // Their blocks have no scale: any bits will do.
        T::IQ2_KS => patch::<70>(state, out, |_| {}),
        T::IQ3_KS => patch::<102>(state, out, |_| {}),
        T::IQ4_KS => patch::<136>(state, out, |_| {}),
        T::IQ5_KS => patch::<168>(state, out, |_| {}),
        T::IQ4_KSS | T::IQ4_KT => patch::<128>(state, out, |_| {}),
        T::IQ2_KL => patch::<86>(state, out, |_| {}),
        T::IQ1_KT => patch::<56>(state, out, |_| {}),
        T::IQ2_KT => patch::<68>(state, out, |_| {}),
        T::IQ3_KT => patch::<100>(state, out, |_| {}),
    }
}

/// To the nearest E4M3, at most the largest one.
fn to_e4m3(x: &[f32], out: &mut [u8]) {
    for (x, q) in x.iter().zip(out) {
        let magnitude = x.abs();
        let above = fp8::E4M3[..0x7f].partition_point(|&v| v <= magnitude).clamp(1, 0x7e);
        let (low, high) = (fp8::E4M3[above - 1], fp8::E4M3[above]);
        let nearest = if magnitude - low < high - magnitude { above - 1 } else { above };
        *q = nearest as u8 | u8::from(*x < 0.0) << 7;
    }
}

/// Scales of powers of two around the wanted one, and values of deviation 16, where E4M3 is finest for their whole range.
fn f8<const BYTES: usize>(state: &mut u64, out: &mut [u8], scale: f32) {
    const UNIT: f32 = 16.0;
    let mut values = vec![0; BYTES - fp8::QS];
    for block in out.as_chunks_mut::<BYTES>().0 {
        let bits = next(state);
        let factor = [0.8, 1.16619][(bits & 1) as usize]; // of mean square 1
        normal(state, UNIT, 1, &mut values, to_e4m3);
        let (head, q) = block.split_at_mut(fp8::QS);
        head.copy_from_slice(&(scale / UNIT * factor).to_le_bytes());
        q.copy_from_slice(&values);
    }
}

/// Q2_0 without its value 2, which would give the values a mean.
fn q2_0(state: &mut u64, out: &mut [u8], scales: Scales) {
    patch::<{ q1::BYTES }>(state, out, |b| {
        for q in &mut b[q1::QS..] {
            *q = (*q & 0x55) + (*q >> 1 & 0x55);
        }
        scales.put_d(b, q1::D);
    });
}

/// Scales of E4M3 around `d`; such small or large ones as the type has are the limit.
fn nvfp4(state: &mut u64, out: &mut [u8], d: f32) {
    let mut scales = [0; 16];
    to_e4m3(&std::array::from_fn::<_, 16, _>(|i| d / 1.0117 * (0.75 + i as f32 / 30.0)), &mut scales);
    patch::<{ nvfp4::BYTES }>(state, out, |b| {
        for s in &mut b[nvfp4::SCALES] {
            *s = scales[usize::from(*s & 15)].max(1);
        }
    });
}

/// Larger standard deviations are clamped to this, so that every scale and every value fits an f16.
pub const SCALE_MAX: f32 = 16384.0;

/// The next 64 bits of splitmix64.
#[inline(always)]
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ *state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// Roughly normal values, each from the sum of four random bytes (deviation 147.8), which `encode` then writes.
fn normal(state: &mut u64, scale: f32, value_bytes: usize, out: &mut [u8], encode: fn(&[f32], &mut [u8])) {
    const PAIRS: u64 = 0x00ff_00ff_00ff_00ff;
    let unit = scale / 147.8;
    let value = |sum: u64| (sum as i32 - 510) as f32 * unit;
    let mut piece = [0.0; 64];
    for out in out.chunks_mut(piece.len() * value_bytes) {
        for two in piece.as_chunks_mut::<2>().0 {
            let word = next(state);
            let sums = (word & PAIRS) + (word >> 8 & PAIRS);
            let sums = sums + (sums >> 16); // the values' sums are in the low halves of the two 32-bit halves
            *two = [value(sums & 0x3ff), value(sums >> 32 & 0x3ff)];
        }
        encode(&piece[..out.len() / value_bytes], out);
    }
}

/// Random bits, then `f` on each block, by pieces that stay in the cache between the two.
fn patch<const BYTES: usize>(state: &mut u64, out: &mut [u8], f: impl Fn(&mut [u8; BYTES])) {
    for piece in out.chunks_mut(BYTES * (16384 / BYTES)) {
        let (words, rest) = piece.as_chunks_mut::<8>();
        for word in words {
            *word = next(state).to_le_bytes();
        }
        if !rest.is_empty() {
            rest.copy_from_slice(&next(state).to_le_bytes()[..rest.len()]);
        }
        for block in piece.as_chunks_mut().0 {
            f(block);
        }
    }
}

/// Sixteen scales around the wanted one; which of them a block gets, the random bits in the scale's place decide.
struct Scales {
    d: [f16; 16],
    m: [f16; 16],
    sign: u8,
}

impl Scales {
    /// From 3/4 to 5/4 of `d`, of which the root mean square is 1.0117 times their mean.
    fn new(d: f32) -> Self {
        let d = std::array::from_fn(|i| f16::from_f32(d / 1.0117 * (0.75 + i as f32 / 30.0)));
        Self { d, m: d, sign: 0 }
    }

    /// `d` also takes a random sign.
    fn either_sign(self) -> Self {
        Self { sign: 0x80, ..self }
    }

    /// The block's second scale (`m`, `dmin`) is `ratio * d`.
    fn offset(self, ratio: f32) -> Self {
        Self { m: self.d.map(|d| f16::from_f32(d.to_f32() * ratio)), ..self }
    }

    /// Replaces the random bytes at `at` by a scale; returns which one it was.
    #[inline(always)]
    fn put_d(&self, block: &mut [u8], at: usize) -> usize {
        let which = usize::from(block[at] & 15);
        let [low, high] = self.d[which].to_le_bytes();
        block[at] = low;
        block[at + 1] = high | block[at + 1] & self.sign;
        which
    }

    /// Puts both scales.
    #[inline(always)]
    fn put_both(&self, block: &mut [u8], d_at: usize, m_at: usize) {
        let which = self.put_d(block, d_at);
        write_f16(block, m_at, self.m[which]);
    }
}

/// Bytes under scales of few bits, with which sums and products of them are exact.
fn i8_under(state: &mut u64, out: &mut [u8], scales: Scales, second: impl Fn(f32, usize) -> f32) {
    use zero_point::{BYTES_8, D_8, M_8};
    patch::<BYTES_8>(state, out, |b| {
        let which = usize::from(b[D_8] & 15);
        let d = scales.d[which].to_f32();
        b[D_8..D_8 + 4].copy_from_slice(&d.to_le_bytes());
        b[M_8..M_8 + 4].copy_from_slice(&second(d, which).to_le_bytes());
    });
}

/// Levels under a magnitude, of either sign: NF4's have a mean.
fn under_f32(state: &mut u64, out: &mut [u8], scales: Scales) {
    patch::<{ levels::BYTES }>(state, out, |b| {
        let d = scales.d[usize::from(b[levels::D] & 15)].to_f32();
        let d = if b[levels::D] & 16 == 0 { d } else { -d };
        b[levels::D..levels::D + 4].copy_from_slice(&d.to_le_bytes());
    });
}

fn only_d<const BYTES: usize>(state: &mut u64, out: &mut [u8], at: usize, scales: Scales) {
    patch::<BYTES>(state, out, |b| {
        scales.put_d(b, at);
    });
}

fn d_and_m<const BYTES: usize>(state: &mut u64, out: &mut [u8], scales: Scales) {
    patch::<BYTES>(state, out, |b| scales.put_both(b, legacy::D, legacy::M));
}

fn q8_0(state: &mut u64, out: &mut [u8], scales: Scales) {
    patch::<34>(state, out, |b| {
        scales.put_d(b, legacy::D);
        // ggml never writes -128, and kernels may count on that.
        for q in &mut b[legacy::QS_0..] {
            *q = (*q as i8).max(-127) as u8;
        }
    });
}

/// Scales and minima from 8 to 15.
fn q2_k(state: &mut u64, out: &mut [u8], scales: Scales) {
    patch::<{ q2_k::BYTES }>(state, out, |b| {
        for s in &mut b[q2_k::SCALES] {
            let scale = *s & 7 | 8;
            *s = scale | scale << 4;
        }
        scales.put_both(b, q2_k::D, q2_k::DMIN);
    });
}

/// Q4_K and Q5_K: scales and minima from 32 to 63.
fn scales_of_6_bits<const BYTES: usize>(state: &mut u64, out: &mut [u8], scales: Scales) {
    patch::<BYTES>(state, out, |b| {
        let fields = field::<8>(b, q4_k::SCALES.start).map(|s| s & 31 | 32);
        b[q4_k::SCALES].copy_from_slice(&q4_k::pack_scales(&fields, &fields));
        scales.put_both(b, q4_k::D, q4_k::DMIN);
    });
}

/// `d` lies in the top nibbles of the four scale words.
fn iq1_m(state: &mut u64, out: &mut [u8], scales: Scales) {
    patch::<{ iq1::BYTES_M }>(state, out, |b| {
        let words = b[iq1::SCALES_M].as_chunks_mut::<2>().0;
        let d = scales.d[usize::from(words[0][1] >> 4)].to_bits();
        for (i, [_, high]) in words.iter_mut().enumerate() {
            *high = *high & 15 | ((d >> (4 * i)) as u8) << 4;
        }
    });
}

/// A quant is the sum of two random bits: 0, 1, 2, never 3, for which the format has no use.
fn tq2_0(state: &mut u64, out: &mut [u8], scales: Scales) {
    patch::<{ tq::BYTES_TQ2 }>(state, out, |b| {
        for q in &mut b[tq::QS_TQ2] {
            *q = (*q & 0x55) + (*q >> 1 & 0x55);
        }
        scales.put_d(b, tq::D_TQ2);
    });
}

/// Only powers of two are scales: blocks take the next lower and the next higher one of `d` in such numbers that the
/// mean square is that of `d`.
fn mxfp4(state: &mut u64, out: &mut [u8], d: f32) {
    let (exponent, mantissa) =
        (d.to_bits() >> 23 & 255, f32::from_bits(d.to_bits() & 0x7f_ffff | 1f32.to_bits()));
    let sixteenths_higher = ((mantissa * mantissa - 1.0) / 3.0 * 16.0).round() as u32;
    // A half scale's bias is 128, an f32's 127.
    let exponents: [u8; 16] =
        std::array::from_fn(|i| exponent as u8 + 1 + u8::from((i as u32) < sixteenths_higher));
    patch::<{ mxfp4::BYTES }>(state, out, |b| b[mxfp4::E] = exponents[usize::from(b[mxfp4::E] & 15)]);
}
