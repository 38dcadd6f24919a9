//! Types whose blocks have one scale, or a scale and a low end: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, MXFP4, NVFP4, TQ1_0, TQ2_0, Q1_0,
//! Q2_0.

use half::f16;
use octet_weights::quant::{fp8, iq4, legacy, mxfp4, nvfp4, q1, tq};

use crate::affine;
use crate::lanes::{Groups, LANES, V, between, inverse, nearest};
use crate::symmetric::{self, E2m1, Iq4, Levels, Ternary, TernaryAndTwo, Whole};

/// Where the starts of Q4_1 and Q5_1 cut the range.
const CUTS: &[(f32, f32)] =
    &[(0.0, 0.0), (0.03, 0.03), (0.08, 0.02), (0.02, 0.08), (0.12, 0.12), (0.25, 0.05), (0.05, 0.25)];
/// Where the largest value lies, as a part of the outermost level.
const TRIES: &[f32] = &[1.0, -1.0, 0.94, -0.92, 1.08, -1.08, 1.16];
const TRIES_IQ4: &[f32] = &[1.0, -1.0, 0.92, -0.9, 1.08, -1.08, 1.2, -1.2];

/// A finite f16, and no 0 for what is not 0: a block whose scale is 0 has no values.
#[inline(always)]
pub(crate) fn to_f16(v: f32) -> f16 {
    let h = f16::from_f32(v.clamp(-65504.0, 65504.0));
    if h.to_bits() & 0x7fff == 0 && v != 0.0 {
        return f16::from_bits(1 | u16::from(v < 0.0) << 15);
    }
    h
}

/// Codes of sixteen groups in the order of the values: group `l` begins at `l * N`.
#[inline(always)]
pub(crate) fn codes<L: Levels, const N: usize>(g: &Groups<N>, step: &V, out: &mut [u8]) {
    let mut inv = [0.0; LANES];
    for l in 0..LANES {
        inv[l] = inverse(step[l]);
    }
    for i in 0..N {
        let mut c = [0u8; LANES];
        for l in 0..LANES {
            c[l] = L::code(L::level(g.x[i][l] * inv[l]));
        }
        for l in 0..LANES {
            out[l * N + i] = c[l];
        }
    }
}

/// Fits one step to each of up to sixteen blocks, and writes them with `pack(step, codes, block)`.
#[inline(always)]
fn one_step<L: Levels, const N: usize, const BYTES: usize>(
    x: &[f32],
    w: Option<&[f32]>,
    out: &mut [u8],
    tries: &[f32],
    turns: usize,
    pack: impl Fn(f16, &[u8; N], &mut [u8; BYTES]),
) {
    let mut q = [[0u8; N]; LANES];
    for (i, out) in out.chunks_mut(LANES * BYTES).enumerate() {
        let at = i * LANES * N;
        let g = Groups::<N>::load(&x[at..], w.map(|w| &w[at..]));
        let d = symmetric::fit::<L, N>(&g, tries, turns).map(to_f16);
        codes::<L, N>(&g, &d.map(f16::to_f32), q.as_flattened_mut());
        for (l, block) in out.as_chunks_mut::<BYTES>().0.iter_mut().enumerate() {
            pack(d[l], &q[l], block);
        }
    }
}

/// Low nibbles from the first half of the codes, high ones from the second; returns the fifth bits.
#[inline(always)]
pub(crate) fn nibbles(q: &[u8; 32], out: &mut [u8]) -> u32 {
    let mut fifth = 0;
    for i in 0..16 {
        out[i] = q[i] & 15 | q[16 + i] << 4;
        fifth |= u32::from(q[i] >> 4) << i | u32::from(q[16 + i] >> 4) << (16 + i);
    }
    fifth
}

#[inline(always)]
pub(crate) fn put(block: &mut [u8], at: usize, v: f16) {
    block[at..at + 2].copy_from_slice(&v.to_le_bytes());
}

#[inline(always)]
pub fn q4_0(x: &[f32], w: Option<&[f32]>, out: &mut [u8]) {
    one_step::<Whole<8>, 32, 18>(x, w, out, TRIES, 1, |d, q, b| {
        put(b, legacy::D, d);
        nibbles(q, &mut b[legacy::QS_0..]);
    });
}

#[inline(always)]
pub fn q5_0(x: &[f32], w: Option<&[f32]>, out: &mut [u8]) {
    one_step::<Whole<16>, 32, 22>(x, w, out, TRIES, 1, |d, q, b| {
        put(b, legacy::D, d);
        let fifth = nibbles(q, &mut b[legacy::QS_Q5_0..]);
        b[legacy::QH_Q5_0..legacy::QS_Q5_0].copy_from_slice(&fifth.to_le_bytes());
    });
}

/// Q8_0 rounds to the nearest step of the range: eight bits leave nothing to search for.
#[inline(always)]
pub fn q8_0(x: &[f32], out: &mut [u8]) {
    for (x, b) in x.as_chunks::<32>().0.iter().zip(out.as_chunks_mut::<34>().0) {
        let mut largest = [0.0f32; 8];
        for part in x.as_chunks::<8>().0 {
            for l in 0..8 {
                largest[l] = if part[l].abs() > largest[l] { part[l].abs() } else { largest[l] };
            }
        }
        let d = to_f16(largest.iter().fold(0.0, |a: f32, &b| a.max(b)) / 127.0);
        let inv = inverse(d.to_f32());
        put(b, legacy::D, d);
        for i in 0..32 {
            b[legacy::QS_0 + i] = between(nearest(x[i] * inv), -127.0, 127.0) as i32 as u8;
        }
    }
}

#[inline(always)]
pub fn iq4_nl(x: &[f32], w: Option<&[f32]>, out: &mut [u8]) {
    one_step::<Iq4, 32, { iq4::BYTES_NL }>(x, w, out, TRIES_IQ4, 1, |d, q, b| {
        put(b, iq4::D, d);
        nibbles(q, &mut b[iq4::QS_NL]);
    });
}

/// Q4_1 and Q5_1: a step and a low end.
#[inline(always)]
fn two_ends<const BYTES: usize>(
    x: &[f32],
    w: Option<&[f32]>,
    out: &mut [u8],
    top: f32,
    pack: impl Fn(&[u8; 32], &mut [u8; BYTES]),
) {
    let mut q = [[0u8; 32]; LANES];
    for (i, out) in out.chunks_mut(LANES * BYTES).enumerate() {
        let at = i * LANES * 32;
        let g = Groups::<32>::load(&x[at..], w.map(|w| &w[at..]));
        let fit = affine::fit(&g, top, false, CUTS, 3);
        let d = fit.step.map(to_f16);
        let step = d.map(f16::to_f32);
        // The low end that fits best to the step as it is stored.
        let mut s = affine::constant(&g);
        affine::assign(&g, &step, &fit.low, top, &mut s);
        let mut low = fit.low;
        for l in 0..LANES {
            low[l] = if s.w[l] > 0.0 { (s.wx[l] - step[l] * s.wq[l]) / s.w[l] } else { low[l] };
        }
        let m = low.map(to_f16);
        affine::codes(&g, &step, &m.map(f16::to_f32), top, q.as_flattened_mut());
        for (l, block) in out.as_chunks_mut::<BYTES>().0.iter_mut().enumerate() {
            put(block, legacy::D, d[l]);
            put(block, legacy::M, m[l]);
            pack(&q[l], block);
        }
    }
}

#[inline(always)]
pub fn q4_1(x: &[f32], w: Option<&[f32]>, out: &mut [u8]) {
    two_ends::<20>(x, w, out, 15.0, |q, b| {
        nibbles(q, &mut b[legacy::QS_Q4_1..]);
    });
}

#[inline(always)]
pub fn q5_1(x: &[f32], w: Option<&[f32]>, out: &mut [u8]) {
    two_ends::<24>(x, w, out, 31.0, |q, b| {
        let fifth = nibbles(q, &mut b[legacy::QS_Q5_1..]);
        b[legacy::QH_Q5_1..legacy::QS_Q5_1].copy_from_slice(&fifth.to_le_bytes());
    });
}

const TRIES_TERNARY: &[f32] = &[1.0, 1.4, 1.8, 2.3, 3.0, 5.0];

#[inline(always)]
pub fn tq2_0(x: &[f32], w: Option<&[f32]>, out: &mut [u8]) {
    one_step::<Ternary, 256, { tq::BYTES_TQ2 }>(x, w, out, TRIES_TERNARY, 2, |d, q, b| {
        put(b, tq::D_TQ2, d);
        b[tq::QS_TQ2].fill(0);
        for i in 0..256 {
            b[tq::QS_TQ2.start + i / 128 * 32 + i % 32] |= q[i] << (i / 32 % 4 * 2);
        }
    });
}

#[inline(always)]
pub fn tq1_0(x: &[f32], w: Option<&[f32]>, out: &mut [u8]) {
    one_step::<Ternary, 256, { tq::BYTES_TQ1 }>(x, w, out, TRIES_TERNARY, 2, |d, q, b| {
        put(b, tq::D_TQ1, d);
        tq::pack_tq1(q, b);
    });
}

#[inline(always)]
pub fn q2_0(x: &[f32], w: Option<&[f32]>, out: &mut [u8]) {
    const TRIES: &[f32] = &[1.0, -1.0, 0.6, -0.6, 0.8, -0.8, 1.3, -1.3, 1.7, -1.7];
    one_step::<TernaryAndTwo, 64, { q1::BYTES }>(x, w, out, TRIES, 2, |d, q, b| {
        put(b, q1::D, d);
        for i in 0..16 {
            b[q1::QS + i] = q[4 * i] | q[4 * i + 1] << 2 | q[4 * i + 2] << 4 | q[4 * i + 3] << 6;
        }
    });
}

/// Q1_0: signs, under the mean magnitude.
#[inline(always)]
pub fn q1_0(x: &[f32], w: Option<&[f32]>, out: &mut [u8]) {
    for (i, (x, b)) in x.as_chunks::<128>().0.iter().zip(out.as_chunks_mut::<{ q1::BYTES }>().0).enumerate() {
        let weight = |j: usize| w.map_or(1.0, |w| w[128 * i + j]);
        let all: f32 = (0..128).map(weight).sum();
        let sum: f32 = (0..128).map(|j| weight(j) * x[j].abs()).sum();
        put(b, q1::D, to_f16(sum * inverse(all)));
        for j in 0..16 {
            b[q1::QS + j] = (0..8).fold(0, |bits, k| bits | u8::from(x[8 * j + k] >= 0.0) << k);
        }
    }
}

/// MXFP4: the power of two with the least error, around that which puts the largest value between the upper levels.
#[inline(always)]
pub fn mxfp4(x: &[f32], w: Option<&[f32]>, out: &mut [u8]) {
    const BYTES: usize = mxfp4::BYTES;
    let mut q = [[0u8; 32]; LANES];
    for (i, out) in out.chunks_mut(LANES * BYTES).enumerate() {
        let at = i * LANES * 32;
        let g = Groups::<32>::load(&x[at..], w.map(|w| &w[at..]));
        let largest = symmetric::extreme(&g);
        // log2 is the exponent's bits; the largest level is 6 = 1.5 * 2^2
        let usual = largest.map(|m| (i32::from((m.abs().to_bits() >> 23) as u8) - 2).clamp(0, 254));
        let (mut best, mut least) = ([0u8; LANES], [f32::INFINITY; LANES]);
        for offset in [0, -1, 1] {
            let e = usual.map(|e| (e + offset).clamp(0, 254) as u8);
            let step = e.map(mxfp4::half_scale);
            let error = symmetric::error::<E2m1, 32>(&g, &step);
            for l in 0..LANES {
                if error[l] < least[l] {
                    (best[l], least[l]) = (e[l], error[l]);
                }
            }
        }
        codes::<E2m1, 32>(&g, &best.map(mxfp4::half_scale), q.as_flattened_mut());
        for (l, b) in out.as_chunks_mut::<BYTES>().0.iter_mut().enumerate() {
            b[mxfp4::E] = best[l];
            nibbles(&q[l], &mut b[mxfp4::QS]);
        }
    }
}

/// NVFP4 with a factor of 1 for the matrix: of the scales around that of the largest value, the one with the least error.
#[inline(always)]
pub fn nvfp4(x: &[f32], w: Option<&[f32]>, out: &mut [u8]) {
    const BYTES: usize = nvfp4::BYTES;
    let mut q = [[0u8; 16]; LANES];
    for (i, out) in out.chunks_mut(LANES / 4 * BYTES).enumerate() {
        let at = i * LANES * 16;
        let g = Groups::<16>::load(&x[at..], w.map(|w| &w[at..]));
        let largest = symmetric::extreme(&g);
        let usual = largest.map(|m| {
            let wanted = m.abs() / 6.0;
            fp8::E4M3[..0x7f].partition_point(|&v| v < wanted).min(0x7e) as i32
        });
        let (mut best, mut least) = ([0u8; LANES], [f32::INFINITY; LANES]);
        for offset in [0, -1, -2, 1, 2, 3, -3] {
            let code = usual.map(|c| (c + offset).clamp(0, 0x7e) as u8);
            let error = symmetric::error::<E2m1, 16>(&g, &code.map(nvfp4::half_scale));
            for l in 0..LANES {
                if error[l] < least[l] {
                    (best[l], least[l]) = (code[l], error[l]);
                }
            }
        }
        codes::<E2m1, 16>(&g, &best.map(nvfp4::half_scale), q.as_flattened_mut());
        for (block, b) in out.as_chunks_mut::<BYTES>().0.iter_mut().enumerate() {
            for s in 0..4 {
                let (q, at) = (&q[4 * block + s], nvfp4::QS.start + 8 * s);
                b[nvfp4::SCALES.start + s] = best[4 * block + s];
                for j in 0..8 {
                    b[at + j] = q[j] | q[8 + j] << 4;
                }
            }
        }
    }
}
