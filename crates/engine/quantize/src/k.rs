//! The types with 256 values a block and whole-numbered scales of their groups: Q2_K to Q6_K and IQ4_XS.
//!
//! A group's scale is `d` times a whole number, so the best steps of the groups ([`affine`], [`symmetric`]) are only a start. A turn
//! takes for each group, with the block's `d` as it is stored, the best of the whole numbers around its best step, and then the `d`
//! that fits best to all groups. The turn with the least error wins.

use half::f16;
use octet_weights::quant::{iq4, q2_k, q3_k, q4_k, q5_k, q6_k};

use crate::affine::{self, Sums};
use crate::lanes::{Groups, LANES, V, between, inverse, nearest};
use crate::single::{codes, nibbles, put, to_f16};
use crate::symmetric::{self, Iq4, Levels, Whole};

/// Turns of the search for `d`.
const TURNS: usize = 2;

/// Blocks of groups with a scale and a minimum, up to sixteen groups.
struct Affine {
    d: [f16; LANES],
    dmin: [f16; LANES],
    scales: V,
    mins: V,
}

/// A number of each block, of which each has `GROUPS` groups, at its groups.
#[inline(always)]
fn spread<const GROUPS: usize>(of_block: impl Fn(usize) -> f32) -> V {
    std::array::from_fn(|l| of_block(l / GROUPS))
}

/// The sum over the groups of block `b`.
#[inline(always)]
fn sum<const GROUPS: usize>(v: &V, b: usize) -> f32 {
    v[b * GROUPS..(b + 1) * GROUPS].iter().sum()
}

#[inline(always)]
fn largest<const GROUPS: usize>(v: &V, b: usize) -> f32 {
    v[b * GROUPS..(b + 1) * GROUPS].iter().fold(0.0, |a: f32, &b| a.max(b))
}

/// Fits `GROUPS` groups a block with quants up to `top`, and scales and minima up to `field`.
#[inline(always)]
fn affine_blocks<const N: usize, const GROUPS: usize>(
    g: &Groups<N>,
    top: f32,
    field: f32,
    cuts: &[(f32, f32)],
) -> Affine {
    let fit = affine::fit(g, top, true, cuts, 2);
    let blocks = LANES / GROUPS;
    let depth = fit.low.map(|v| -v);
    let mut d: V = [0.0; LANES];
    let mut dmin: V = [0.0; LANES];
    for b in 0..blocks {
        d[b] = largest::<GROUPS>(&fit.step, b) / field;
        dmin[b] = largest::<GROUPS>(&depth, b) / field;
    }
    let zero = f16::from_bits(0);
    let mut best = Affine { d: [zero; LANES], dmin: [zero; LANES], scales: [0.0; LANES], mins: [0.0; LANES] };
    let mut least = [f32::INFINITY; LANES];
    let (mut scales, mut mins) = ([0.0; LANES], [0.0; LANES]);
    let constant = affine::constant(g);
    for turn in 0..TURNS {
        let (d16, m16) = (d.map(to_f16), dmin.map(to_f16));
        let dv = spread::<GROUPS>(|b| d16[b].to_f32());
        let mv = spread::<GROUPS>(|b| m16[b].to_f32());
        if turn == 0 {
            for l in 0..LANES {
                scales[l] = nearest(fit.step[l] * inverse(dv[l]));
                mins[l] = nearest(depth[l] * inverse(mv[l]));
            }
        }
        let (error, sums) = around(g, &constant, top, field, &dv, &mv, &mut scales, &mut mins);
        for b in 0..blocks {
            let e = sum::<GROUPS>(&error, b);
            if e < least[b] {
                least[b] = e;
                (best.d[b], best.dmin[b]) = (d16[b], m16[b]);
                let groups = b * GROUPS..(b + 1) * GROUPS;
                best.scales[groups.clone()].copy_from_slice(&scales[groups.clone()]);
                best.mins[groups.clone()].copy_from_slice(&mins[groups]);
            }
        }
        if turn + 1 < TURNS {
            for b in 0..blocks {
                if let Some(two) = block_scales::<GROUPS>(&sums, &scales, &mins, b) {
                    (d[b], dmin[b]) = two;
                }
            }
        }
    }
    best
}

/// Moves each group's scale and minimum to the best of the whole numbers around them; returns the errors and sums there.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn around<const N: usize>(
    g: &Groups<N>,
    constant: &Sums,
    top: f32,
    field: f32,
    d: &V,
    dmin: &V,
    scales: &mut V,
    mins: &mut V,
) -> (V, Sums) {
    let mut least = [f32::INFINITY; LANES];
    let mut sums = *constant;
    let mut s = *constant;
    let (from_scales, from_mins) = (*scales, *mins);
    for (ds, dm) in [(0.0, 0.0), (0.0, -1.0), (0.0, 1.0), (-1.0, 0.0), (1.0, 0.0), (-1.0, -1.0), (1.0, 1.0)] {
        let (mut a, mut m, mut step, mut low) = ([0.0; LANES], [0.0; LANES], [0.0; LANES], [0.0; LANES]);
        for l in 0..LANES {
            a[l] = between(from_scales[l] + ds, 0.0, field);
            m[l] = between(from_mins[l] + dm, 0.0, field);
            step[l] = d[l] * a[l];
            low[l] = -dmin[l] * m[l];
        }
        affine::assign(g, &step, &low, top, &mut s);
        for l in 0..LANES {
            let (p, q) = (step[l], low[l]);
            let error = s.wxx[l]
                + p * p * s.wqq[l]
                + q * q * s.w[l]
                + 2.0 * (p * q * s.wq[l] - p * s.wqx[l] - q * s.wx[l]);
            let better = error < least[l];
            least[l] = if better { error } else { least[l] };
            scales[l] = if better { a[l] } else { scales[l] };
            mins[l] = if better { m[l] } else { mins[l] };
            sums.wq[l] = if better { s.wq[l] } else { sums.wq[l] };
            sums.wqq[l] = if better { s.wqq[l] } else { sums.wqq[l] };
            sums.wqx[l] = if better { s.wqx[l] } else { sums.wqx[l] };
        }
    }
    (least, sums)
}

/// The `d` and `dmin` of block `b` that fit best to the groups' quants, scales and minima; `None` where nothing determines them.
#[inline(always)]
fn block_scales<const GROUPS: usize>(s: &Sums, scales: &V, mins: &V, b: usize) -> Option<(f32, f32)> {
    let (mut aa, mut am, mut mm, mut ax, mut mx) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for l in b * GROUPS..(b + 1) * GROUPS {
        let (a, m) = (scales[l], mins[l]);
        aa += a * a * s.wqq[l];
        am += a * m * s.wq[l];
        mm += m * m * s.w[l];
        ax += a * s.wqx[l];
        mx += m * s.wx[l];
    }
    let det = aa * mm - am * am;
    if det > 1e-6 * aa * mm {
        let (d, dmin) = ((ax * mm - am * mx) / det, (am * ax - aa * mx) / det);
        if d > 0.0 && dmin >= 0.0 {
            return Some((d, dmin));
        }
    }
    (aa > 0.0 && ax > 0.0).then(|| (ax / aa, 0.0))
}

/// Where the starts of a search cut the range: the fewer the levels, the more there is to gain.
const CUTS_4_BIT: &[(f32, f32)] = &[(0.0, 0.0), (0.03, 0.03), (0.08, 0.02), (0.02, 0.08)];
const CUTS_5_BIT: &[(f32, f32)] = &[(0.0, 0.0), (0.015, 0.015), (0.03, 0.0), (0.0, 0.03)];
const CUTS_2_BIT: &[(f32, f32)] = &[
    (0.0, 0.0),
    (0.05, 0.05),
    (0.1, 0.1),
    (0.15, 0.0),
    (0.0, 0.15),
    (0.2, 0.1),
    (0.1, 0.2),
    (0.25, 0.0),
    (0.0, 0.25),
];

/// Calls `f` with the groups of up to `LANES / GROUPS` blocks and the place of these blocks.
#[inline(always)]
fn batches<const N: usize, const GROUPS: usize, const BYTES: usize>(
    x: &[f32],
    w: Option<&[f32]>,
    out: &mut [u8],
    mut f: impl FnMut(&Groups<N>, &mut [[u8; BYTES]]),
) {
    for (i, out) in out.chunks_mut(LANES / GROUPS * BYTES).enumerate() {
        let at = i * LANES * N;
        f(&Groups::load(&x[at..], w.map(|w| &w[at..])), out.as_chunks_mut().0);
    }
}

/// The whole numbers of block `b`.
#[inline(always)]
fn fields<const GROUPS: usize>(v: &V, b: usize) -> [u8; GROUPS] {
    std::array::from_fn(|s| v[b * GROUPS + s] as i32 as u8)
}

#[inline(always)]
fn affine_codes<const N: usize, const GROUPS: usize>(
    g: &Groups<N>,
    a: &Affine,
    top: f32,
    q: &mut [[u8; 256]; 2],
) {
    let step = std::array::from_fn(|l| a.d[l / GROUPS].to_f32() * a.scales[l]);
    let low = std::array::from_fn(|l| -(a.dmin[l / GROUPS].to_f32() * a.mins[l]));
    affine::codes(g, &step, &low, top, &mut q.as_flattened_mut()[..LANES * N]);
}

#[inline(always)]
pub fn q4_k(x: &[f32], w: Option<&[f32]>, out: &mut [u8]) {
    let mut q = [[0u8; 256]; 2];
    batches::<32, 8, { q4_k::BYTES }>(x, w, out, |g, out| {
        let a = affine_blocks::<32, 8>(g, 15.0, 63.0, CUTS_4_BIT);
        affine_codes::<32, 8>(g, &a, 15.0, &mut q);
        for (b, block) in out.iter_mut().enumerate() {
            put(block, q4_k::D, a.d[b]);
            put(block, q4_k::DMIN, a.dmin[b]);
            block[q4_k::SCALES]
                .copy_from_slice(&q4_k::pack_scales(&fields(&a.scales, b), &fields(&a.mins, b)));
            low_nibbles(&q[b], &mut block[q4_k::QS]);
        }
    });
}

/// The low 4 bits of pairs of 32 values, in 32 bytes each.
#[inline(always)]
fn low_nibbles(q: &[u8; 256], out: &mut [u8]) {
    for (q, out) in q.as_chunks::<64>().0.iter().zip(out.as_chunks_mut::<32>().0) {
        for i in 0..32 {
            out[i] = q[i] & 15 | q[32 + i] << 4;
        }
    }
}

#[inline(always)]
pub fn q5_k(x: &[f32], w: Option<&[f32]>, out: &mut [u8]) {
    let mut q = [[0u8; 256]; 2];
    batches::<32, 8, { q5_k::BYTES }>(x, w, out, |g, out| {
        let a = affine_blocks::<32, 8>(g, 31.0, 63.0, CUTS_5_BIT);
        affine_codes::<32, 8>(g, &a, 31.0, &mut q);
        for (b, block) in out.iter_mut().enumerate() {
            put(block, q5_k::D, a.d[b]);
            put(block, q5_k::DMIN, a.dmin[b]);
            block[q5_k::SCALES]
                .copy_from_slice(&q4_k::pack_scales(&fields(&a.scales, b), &fields(&a.mins, b)));
            low_nibbles(&q[b], &mut block[q5_k::QS]);
            block[q5_k::QH].fill(0);
            for (s, q) in q[b].as_chunks::<32>().0.iter().enumerate() {
                for i in 0..32 {
                    block[q5_k::QH.start + i] |= q[i] >> 4 << s;
                }
            }
        }
    });
}

/// The low 2 bits: half `h` has 32 bytes, each with a value of its four runs of 32.
#[inline(always)]
fn low_pairs(q: &[u8; 256], out: &mut [u8]) {
    for (q, out) in q.as_chunks::<128>().0.iter().zip(out.as_chunks_mut::<32>().0) {
        for i in 0..32 {
            out[i] = q[i] & 3 | (q[32 + i] & 3) << 2 | (q[64 + i] & 3) << 4 | (q[96 + i] & 3) << 6;
        }
    }
}

#[inline(always)]
pub fn q2_k(x: &[f32], w: Option<&[f32]>, out: &mut [u8]) {
    let mut q = [[0u8; 256]; 2];
    batches::<16, 16, { q2_k::BYTES }>(x, w, out, |g, out| {
        let a = affine_blocks::<16, 16>(g, 3.0, 15.0, CUTS_2_BIT);
        affine_codes::<16, 16>(g, &a, 3.0, &mut q);
        let (scales, mins): ([u8; 16], [u8; 16]) = (fields(&a.scales, 0), fields(&a.mins, 0));
        let Some(block) = out.first_mut() else { return };
        put(block, q2_k::D, a.d[0]);
        put(block, q2_k::DMIN, a.dmin[0]);
        for s in 0..16 {
            block[q2_k::SCALES.start + s] = scales[s] | mins[s] << 4;
        }
        low_pairs(&q[0], &mut block[q2_k::QS]);
    });
}

/// Blocks of groups with a signed scale.
struct Signed {
    d: [f16; LANES],
    scales: V,
}

/// Fits `GROUPS` groups a block with scales from `-half` to `half - 1`.
#[inline(always)]
fn signed_blocks<L: Levels, const N: usize, const GROUPS: usize>(
    g: &Groups<N>,
    half: f32,
    tries: &[f32],
    turns: usize,
) -> Signed {
    let step = symmetric::fit::<L, N>(g, tries, turns);
    let blocks = LANES / GROUPS;
    let mut d: V = [0.0; LANES];
    for b in 0..blocks {
        let steps = &step[b * GROUPS..(b + 1) * GROUPS];
        d[b] = steps.iter().fold(0.0, |m: f32, &v| if v.abs() > m.abs() { v } else { m }) / -half;
    }
    let mut best = Signed { d: [f16::from_bits(0); LANES], scales: [0.0; LANES] };
    let mut most = [-1.0f32; LANES];
    let mut scales = [0.0; LANES];
    for turn in 0..TURNS {
        let d16 = d.map(to_f16);
        let dv = spread::<GROUPS>(|b| d16[b].to_f32());
        if turn == 0 {
            for l in 0..LANES {
                scales[l] = nearest(step[l] * inverse(dv[l]));
            }
        }
        // By how much the error is reduced, and the sums there.
        let (mut gain, mut wlx, mut wll) = ([f32::NEG_INFINITY; LANES], [0.0; LANES], [0.0; LANES]);
        let from = scales;
        for offset in [0.0, -1.0, 1.0] {
            let (mut a, mut inv) = ([0.0; LANES], [0.0; LANES]);
            for l in 0..LANES {
                a[l] = between(from[l] + offset, -half, half - 1.0);
                inv[l] = inverse(dv[l] * a[l]);
            }
            let (p, q) = symmetric::assign::<L, N>(g, &inv);
            for l in 0..LANES {
                let s = dv[l] * a[l];
                let this = s * (2.0 * p[l] - s * q[l]);
                let better = this > gain[l];
                gain[l] = if better { this } else { gain[l] };
                scales[l] = if better { a[l] } else { scales[l] };
                wlx[l] = if better { p[l] } else { wlx[l] };
                wll[l] = if better { q[l] } else { wll[l] };
            }
        }
        for b in 0..blocks {
            let groups = b * GROUPS..(b + 1) * GROUPS;
            let all: f32 = gain[groups.clone()].iter().sum();
            if all > most[b] {
                most[b] = all;
                best.d[b] = d16[b];
                best.scales[groups.clone()].copy_from_slice(&scales[groups.clone()]);
            }
            let (mut sx, mut ss) = (0.0, 0.0);
            for l in groups {
                sx += scales[l] * wlx[l];
                ss += scales[l] * scales[l] * wll[l];
            }
            if ss > 0.0 {
                d[b] = sx / ss;
            }
        }
    }
    best
}

#[inline(always)]
fn signed_codes<L: Levels, const N: usize, const GROUPS: usize>(
    g: &Groups<N>,
    s: &Signed,
    q: &mut [[u8; 256]; 2],
) {
    let step = std::array::from_fn(|l| s.d[l / GROUPS].to_f32() * s.scales[l]);
    codes::<L, N>(g, &step, &mut q.as_flattened_mut()[..LANES * N]);
}

#[inline(always)]
pub fn q3_k(x: &[f32], w: Option<&[f32]>, out: &mut [u8]) {
    const TRIES: &[f32] = &[1.0, -1.0, 0.85, -0.85, 0.7, -0.75, 1.15, -1.15, 1.3];
    let mut q = [[0u8; 256]; 2];
    batches::<16, 16, { q3_k::BYTES }>(x, w, out, |g, out| {
        let fit = signed_blocks::<Whole<4>, 16, 16>(g, 32.0, TRIES, 1);
        signed_codes::<Whole<4>, 16, 16>(g, &fit, &mut q);
        let Some(block) = out.first_mut() else { return };
        put(block, q3_k::D, fit.d[0]);
        block[q3_k::SCALES].fill(0);
        for s in 0..16 {
            let scale = (fit.scales[s] + 32.0) as i32 as u8;
            block[q3_k::SCALES.start + s % 8] |= (scale & 15) << (s / 8 * 4);
            block[q3_k::SCALES.start + 8 + s % 4] |= scale >> 4 << (s / 4 * 2);
        }
        low_pairs(&q[0], &mut block[q3_k::QS]);
        block[q3_k::HMASK].fill(0);
        for (k, q) in q[0].as_chunks::<32>().0.iter().enumerate() {
            for i in 0..32 {
                block[q3_k::HMASK.start + i] |= q[i] >> 2 << k;
            }
        }
    });
}

#[inline(always)]
pub fn q6_k(x: &[f32], w: Option<&[f32]>, out: &mut [u8]) {
    const TRIES: &[f32] = &[1.0, -1.0, 0.985, -0.985, 0.97, -0.97, 1.02];
    let mut q = [[0u8; 256]; 2];
    batches::<16, 16, { q6_k::BYTES }>(x, w, out, |g, out| {
        let fit = signed_blocks::<Whole<32>, 16, 16>(g, 128.0, TRIES, 1);
        signed_codes::<Whole<32>, 16, 16>(g, &fit, &mut q);
        let Some(block) = out.first_mut() else { return };
        put(block, q6_k::D, fit.d[0]);
        for s in 0..16 {
            block[q6_k::SCALES.start + s] = fit.scales[s] as i32 as u8;
        }
        for (half, q) in q[0].as_chunks::<128>().0.iter().enumerate() {
            for i in 0..32 {
                let v = [q[i], q[32 + i], q[64 + i], q[96 + i]];
                block[q6_k::QL.start + 64 * half + i] = v[0] & 15 | v[2] << 4;
                block[q6_k::QL.start + 64 * half + 32 + i] = v[1] & 15 | v[3] << 4;
                block[q6_k::QH.start + 32 * half + i] =
                    v[0] >> 4 | v[1] >> 4 << 2 | v[2] >> 4 << 4 | v[3] >> 4 << 6;
            }
        }
    });
}

#[inline(always)]
pub fn iq4_xs(x: &[f32], w: Option<&[f32]>, out: &mut [u8]) {
    const TRIES: &[f32] = &[1.0, -1.0, 0.92, -0.9, 1.08, -1.08, 1.2];
    let mut q = [[0u8; 256]; 2];
    batches::<32, 8, { iq4::BYTES_XS }>(x, w, out, |g, out| {
        let fit = signed_blocks::<Iq4, 32, 8>(g, 32.0, TRIES, 1);
        signed_codes::<Iq4, 32, 8>(g, &fit, &mut q);
        for (b, block) in out.iter_mut().enumerate() {
            block.fill(0);
            put(block, iq4::D, fit.d[b]);
            for (s, q) in q[b].as_chunks::<32>().0.iter().enumerate() {
                let scale = (fit.scales[8 * b + s] + 32.0) as i32 as u8;
                block[iq4::SCALES_H_XS + s / 4] |= scale >> 4 << (s % 4 * 2);
                block[iq4::SCALES_L_XS.start + s / 2] |= (scale & 15) << (s % 2 * 4);
                nibbles(q, &mut block[iq4::QS_XS.start + 16 * s..]);
            }
        }
    });
}
