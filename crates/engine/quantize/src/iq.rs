//! The types with codebooks: IQ1, IQ2 and IQ3.
//!
//! A unit, 16 or 32 values, has a step `d * multiple * (0.5 + q)`. Steps around that which gives entries the values' size are tried
//! for each unit; then the block's `d` and the whole numbers `q` are chosen as in `k`.

use half::f16;
use octet_weights::quant::{iq1, iq2, iq3};

use crate::codebook::{self, Grid, Sums};
use crate::lanes::inverse;
use crate::single::{put, to_f16};

/// What is special about a type.
struct Kind {
    /// Values of a unit.
    unit: usize,
    multiple: f32,
    /// The largest `q`.
    most: f32,
    /// Root mean square of the entries.
    size: f32,
    shift: Shift,
}

/// Which values have a shift of an eighth, up or down, in common.
#[derive(Clone, Copy, PartialEq)]
enum Shift {
    None,
    Unit,
    Group,
}

/// A block.
struct Coded {
    d: f16,
    /// Of each unit.
    q: [u8; 16],
    /// Of each group.
    index: [u16; 64],
    down: [bool; 64],
}

/// Steps that are tried, as parts of that which gives the entries the values' size.
const STARTS: [f32; 3] = [1.0, 0.75, 1.35];
/// Assignments after each.
const TURNS: usize = 2;

/// Indices and shifts of a unit's groups for a step.
#[inline(always)]
fn assign<const D: usize>(
    grid: &Grid<D>,
    kind: &Kind,
    x: &[[f32; D]],
    w: &[[f32; D]],
    inv: f32,
    out: &mut [(u16, bool)],
) -> Sums {
    let with = |shift: f32, out: &mut [(u16, bool)]| {
        let mut sums = Sums::default();
        let mut all = 0.0;
        for ((x, w), out) in x.iter().zip(w).zip(out) {
            let (index, distance) = grid.assign(x, w, inv, shift, &mut sums);
            *out = (index, shift < 0.0);
            all += distance;
        }
        (sums, all)
    };
    match kind.shift {
        Shift::None => with(0.0, out).0,
        Shift::Unit => {
            let (up, error) = with(iq1::SHIFT, out);
            let mut other = [(0, false); 8];
            let (down, less) = with(-iq1::SHIFT, &mut other[..out.len()]);
            if less < error {
                let n = out.len();
                out.copy_from_slice(&other[..n]);
                return down;
            }
            up
        }
        Shift::Group => {
            let mut sums = Sums::default();
            for ((x, w), out) in x.iter().zip(w).zip(out) {
                let (mut up, mut down) = (Sums::default(), Sums::default());
                let a = grid.assign(x, w, inv, iq1::SHIFT, &mut up);
                let b = grid.assign(x, w, inv, -iq1::SHIFT, &mut down);
                let chosen = if b.1 < a.1 { &down } else { &up };
                *out = if b.1 < a.1 { (b.0, true) } else { (a.0, false) };
                sums.wxg += chosen.wxg;
                sums.wgg += chosen.wgg;
            }
            sums
        }
    }
}

/// The best step of a unit.
#[inline(always)]
fn unit_step<const D: usize>(grid: &Grid<D>, kind: &Kind, x: &[[f32; D]], w: &[[f32; D]]) -> f32 {
    let (mut wxx, mut all) = (0.0, 0.0);
    for (x, w) in x.as_flattened().iter().zip(w.as_flattened()) {
        wxx += w * x * x;
        all += w;
    }
    let usual = (wxx * inverse(all)).sqrt() / kind.size;
    let (mut best, mut most) = (0.0, 0.0);
    let mut scratch = [(0, false); 8];
    for start in STARTS {
        let mut step = start * usual;
        for _ in 0..TURNS {
            let sums = assign(grid, kind, x, w, inverse(step), &mut scratch[..x.len()]);
            step = (sums.wxg * inverse(sums.wgg)).max(0.0);
            let gain = sums.gain(step);
            if gain > most {
                (best, most) = (step, gain);
            }
        }
    }
    best
}

/// Fits a block; `x` are magnitudes where the type has signs.
#[inline(always)]
fn block<const D: usize>(grid: &Grid<D>, kind: &Kind, x: &[f32; 256], w: &[f32; 256]) -> Coded {
    let (x, w) = (x.as_chunks::<D>().0, w.as_chunks::<D>().0);
    let groups = kind.unit / D;
    let units = 256 / kind.unit;
    let unit = |u: usize| u * groups..(u + 1) * groups;
    let mut steps = [0.0f32; 16];
    for u in 0..units {
        steps[u] = unit_step(grid, kind, &x[unit(u)], &w[unit(u)]);
    }
    let largest = steps.iter().fold(0.0, |a: f32, &b| a.max(b));
    let mut d = largest / (kind.multiple * (0.5 + kind.most));
    let mut best = Coded { d: f16::from_bits(0), q: [0; 16], index: [0; 64], down: [false; 64] };
    let mut most = f32::NEG_INFINITY;
    for turn in 0..2 {
        let d16 = to_f16(d);
        let by = d16.to_f32() * kind.multiple;
        let mut coded = Coded { d: d16, q: [0; 16], index: [0; 64], down: [false; 64] };
        let (mut all, mut dx, mut dd) = (0.0, 0.0, 0.0);
        for u in 0..units {
            let near = (steps[u] * inverse(by) - 0.5).round().clamp(0.0, kind.most);
            let mut gained = f32::NEG_INFINITY;
            let mut sums = Sums::default();
            // The number below or above may fit better to a codebook; in the second turn steps are known well.
            let offsets: &[f32] = if turn == 0 { &[0.0, -1.0, 1.0] } else { &[0.0] };
            for offset in offsets {
                let q = near + offset;
                if !(0.0..=kind.most).contains(&q) {
                    continue;
                }
                let step = by * (0.5 + q);
                let mut found = [(0, false); 8];
                let these = assign(grid, kind, &x[unit(u)], &w[unit(u)], inverse(step), &mut found[..groups]);
                let gain = these.gain(step);
                if gain > gained {
                    (gained, sums) = (gain, these);
                    coded.q[u] = q as u8;
                    for (g, (index, down)) in unit(u).zip(found) {
                        (coded.index[g], coded.down[g]) = (index, down);
                    }
                }
            }
            let k = kind.multiple * (0.5 + f32::from(coded.q[u]));
            steps[u] = by * (0.5 + f32::from(coded.q[u]));
            all += gained;
            dx += k * sums.wxg;
            dd += k * k * sums.wgg;
        }
        if all > most {
            (most, best) = (all, coded);
        }
        let better = dx * inverse(dd);
        let ratio = better * inverse(d16.to_f32());
        d = better.max(0.0);
        steps.iter_mut().for_each(|s| *s *= ratio);
    }
    best
}

/// Magnitudes and signs of 256 values. `even`: the number of negative values in eight is even; where it is not, the value on which least
/// depends gets the wrong sign, and its magnitude here is negative.
#[inline(always)]
fn signs(x: &[f32; 256], w: &[f32; 256], even: bool) -> ([f32; 256], [u8; 32]) {
    let (mut magnitudes, mut bits) = (*x, [0; 32]);
    for (k, m) in magnitudes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        for (j, m) in m.iter_mut().enumerate() {
            bits[k] |= u8::from(*m < 0.0) << j;
            *m = m.abs();
        }
        if even && bits[k].count_ones() % 2 == 1 {
            let cost = |j: usize| w[8 * k + j] * m[j];
            let least = (1..8).fold(0, |a, j| if cost(j) < cost(a) { j } else { a });
            bits[k] ^= 1 << least;
            m[least] = -m[least];
        }
    }
    (magnitudes, bits)
}

/// Calls `f` with each 256 values, their weights and their block.
#[inline(always)]
fn each<const BYTES: usize>(
    x: &[f32],
    w: Option<&[f32]>,
    out: &mut [u8],
    mut f: impl FnMut(&[f32; 256], &[f32; 256], &mut [u8; BYTES]),
) {
    for (i, (x, b)) in x.as_chunks::<256>().0.iter().zip(out.as_chunks_mut::<BYTES>().0).enumerate() {
        match w {
            Some(w) => f(x, &w.as_chunks::<256>().0[i], b),
            None => f(x, &[1.0; 256], b),
        }
    }
}

const PLAIN: Kind = Kind { unit: 32, multiple: 0.25, most: 15.0, size: 23.1, shift: Shift::None };

#[inline(always)]
pub fn iq2_xxs(x: &[f32], w: Option<&[f32]>, out: &mut [u8]) {
    let grid = &*codebook::IQ2_XXS;
    each::<{ iq2::BYTES_XXS }>(x, w, out, |x, w, b| {
        let (m, signs) = signs(x, w, true);
        let c = block(grid, &PLAIN, &m, w);
        put(b, iq2::D, c.d);
        for (u, b) in b[iq2::QS_XXS].as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let mut bits = u32::from(c.q[u]) << 28;
            for k in 0..4 {
                b[k] = c.index[4 * u + k] as u8;
                bits |= u32::from(signs[4 * u + k] & 127) << (7 * k);
            }
            b[4..].copy_from_slice(&bits.to_le_bytes());
        }
    });
}

const HALF: Kind = Kind { unit: 16, size: 24.3, ..PLAIN };

#[inline(always)]
pub fn iq2_xs(x: &[f32], w: Option<&[f32]>, out: &mut [u8]) {
    let grid = &*codebook::IQ2_XS;
    each::<{ iq2::BYTES_XS }>(x, w, out, |x, w, b| {
        let (m, signs) = signs(x, w, true);
        let c = block(grid, &HALF, &m, w);
        put(b, iq2::D, c.d);
        for (k, q) in b[iq2::QS_XS].as_chunks_mut::<2>().0.iter_mut().enumerate() {
            *q = (c.index[k] | u16::from(signs[k] & 127) << 9).to_le_bytes();
        }
        for (i, s) in b[iq2::SCALES_XS].iter_mut().enumerate() {
            *s = c.q[2 * i] | c.q[2 * i + 1] << 4;
        }
    });
}

#[inline(always)]
pub fn iq2_s(x: &[f32], w: Option<&[f32]>, out: &mut [u8]) {
    let grid = &*codebook::IQ2_S;
    each::<{ iq2::BYTES_S }>(x, w, out, |x, w, b| {
        let (m, signs) = signs(x, w, false);
        let c = block(grid, &HALF, &m, w);
        b.fill(0);
        put(b, iq2::D, c.d);
        b[iq2::SIGNS_S].copy_from_slice(&signs);
        for k in 0..32 {
            b[iq2::QS_S.start + k] = c.index[k] as u8;
            b[iq2::QH_S.start + k / 4] |= ((c.index[k] >> 8) as u8) << (k % 4 * 2);
        }
        for i in 0..8 {
            b[iq2::SCALES_S.start + i] = c.q[2 * i] | c.q[2 * i + 1] << 4;
        }
    });
}

#[inline(always)]
pub fn iq3_xxs(x: &[f32], w: Option<&[f32]>, out: &mut [u8]) {
    const KIND: Kind = Kind { multiple: 0.5, size: 30.9, ..PLAIN };
    let grid = &*codebook::IQ3_XXS;
    each::<{ iq3::BYTES_XXS }>(x, w, out, |x, w, b| {
        let (m, signs) = signs(x, w, true);
        let c = block(grid, &KIND, &m, w);
        put(b, iq3::D, c.d);
        for k in 0..64 {
            b[iq3::QS.start + k] = c.index[k] as u8;
        }
        for (u, bits) in b[iq3::SIGNS_XXS].as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let all = (0..4)
                .fold(u32::from(c.q[u]) << 28, |all, k| all | u32::from(signs[4 * u + k] & 127) << (7 * k));
            *bits = all.to_le_bytes();
        }
    });
}

#[inline(always)]
pub fn iq3_s(x: &[f32], w: Option<&[f32]>, out: &mut [u8]) {
    const KIND: Kind = Kind { multiple: 2.0, size: 7.6, ..PLAIN };
    let grid = &*codebook::IQ3_S;
    each::<{ iq3::BYTES_S }>(x, w, out, |x, w, b| {
        let (m, signs) = signs(x, w, false);
        let c = block(grid, &KIND, &m, w);
        b.fill(0);
        put(b, iq3::D, c.d);
        b[iq3::SIGNS_S].copy_from_slice(&signs);
        for k in 0..64 {
            b[iq3::QS.start + k] = c.index[k] as u8;
            b[iq3::QH_S.start + k / 8] |= ((c.index[k] >> 8) as u8) << (k % 8);
        }
        for i in 0..4 {
            b[iq3::SCALES_S.start + i] = c.q[2 * i] | c.q[2 * i + 1] << 4;
        }
    });
}

const TRITS: Kind = Kind { unit: 32, multiple: 2.0, most: 7.0, size: 0.79, shift: Shift::Unit };

#[inline(always)]
pub fn iq1_s(x: &[f32], w: Option<&[f32]>, out: &mut [u8]) {
    let grid = &*codebook::IQ1;
    each::<{ iq1::BYTES_S }>(x, w, out, |x, w, b| {
        let c = block(grid, &TRITS, x, w);
        put(b, iq1::D_S, c.d);
        for u in 0..8 {
            let mut h = u16::from(c.q[u]) << 12 | u16::from(c.down[4 * u]) << 15;
            for k in 0..4 {
                b[iq1::QS_S.start + 4 * u + k] = c.index[4 * u + k] as u8;
                h |= (c.index[4 * u + k] >> 8) << (3 * k);
            }
            b[iq1::QH_S.start + 2 * u..][..2].copy_from_slice(&h.to_le_bytes());
        }
    });
}

#[inline(always)]
pub fn iq1_m(x: &[f32], w: Option<&[f32]>, out: &mut [u8]) {
    const KIND: Kind = Kind { unit: 16, shift: Shift::Group, ..TRITS };
    let grid = &*codebook::IQ1;
    each::<{ iq1::BYTES_M }>(x, w, out, |x, w, b| {
        let c = block(grid, &KIND, x, w);
        b.fill(0);
        for k in 0..32 {
            b[iq1::QS_M.start + k] = c.index[k] as u8;
            let high = (c.index[k] >> 8) as u8 | u8::from(c.down[k]) << 3;
            b[iq1::QH_M.start + k / 2] |= high << (k % 2 * 4);
        }
        for i in 0..4 {
            let scales = (0..4).fold(0, |all, j| all | u16::from(c.q[4 * i + j]) << (3 * j));
            let word = scales | (c.d.to_bits() >> (4 * i) & 15) << 12;
            b[iq1::SCALES_M.start + 2 * i..][..2].copy_from_slice(&word.to_le_bytes());
        }
    });
}
