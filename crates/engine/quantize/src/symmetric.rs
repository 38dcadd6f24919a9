//! `x ~ step * level` with the levels of a type: the least weighted squares over the step, for sixteen groups at once.
//!
//! For given levels the best step is `sum(w x level) / sum(w level^2)`, and it reduces the error by `sum(w x level)^2 / sum(w level^2)`.
//! Steps are tried that put the largest value at, or somewhat within or beyond, the outermost level, with either sign.

use octet_weights::quant::{iq4, mxfp4};

use crate::lanes::{Groups, LANES, V, between, inverse, nearest};

/// The levels of a type.
pub trait Levels {
    /// The level of the largest magnitude, whose sign does not matter as a step has a sign.
    const LARGEST: f32;
    /// The level nearest to `y`.
    fn level(y: f32) -> f32;
    /// Its code, from the level.
    fn code(level: f32) -> u8;
}

/// Whole numbers from `-HALF` to `HALF - 1`.
pub struct Whole<const HALF: i32>;

impl<const HALF: i32> Levels for Whole<HALF> {
    const LARGEST: f32 = HALF as f32;
    #[inline(always)]
    fn level(y: f32) -> f32 {
        between(nearest(y), -(HALF as f32), HALF as f32 - 1.0)
    }
    #[inline(always)]
    fn code(level: f32) -> u8 {
        (level + HALF as f32) as i32 as u8
    }
}

/// `sum(w x level)` and `sum(w level^2)` of the nearest levels.
#[inline(always)]
pub fn assign<L: Levels, const N: usize>(g: &Groups<N>, inv: &V) -> (V, V) {
    let (mut wlx, mut wll) = ([0.0; LANES], [0.0; LANES]);
    for i in 0..N {
        for l in 0..LANES {
            let x = g.x[i][l];
            let q = L::level(x * inv[l]);
            let v = g.w[i][l] * q;
            wlx[l] += v * x;
            wll[l] += v * q;
        }
    }
    (wlx, wll)
}

/// The value of largest magnitude.
#[inline(always)]
pub fn extreme<const N: usize>(g: &Groups<N>) -> V {
    let mut m = g.x[0];
    for row in &g.x[1..] {
        for (m, &x) in m.iter_mut().zip(row) {
            *m = if x.abs() > m.abs() { x } else { *m };
        }
    }
    m
}

/// The best steps of sixteen groups. `tries`: where the largest value lies, as parts of the outermost level; after each, `turns` more
/// assignments with the step that fits best.
#[inline(always)]
pub fn fit<L: Levels, const N: usize>(g: &Groups<N>, tries: &[f32], turns: usize) -> V {
    let m = extreme(g);
    let (mut best, mut gain) = ([0.0; LANES], [0.0; LANES]);
    for &part in tries {
        let mut inv = [0.0; LANES];
        for l in 0..LANES {
            inv[l] = part * L::LARGEST * inverse(m[l]);
        }
        for _ in 0..=turns {
            let (wlx, wll) = assign::<L, N>(g, &inv);
            for l in 0..LANES {
                let step = if wll[l] > 0.0 { wlx[l] / wll[l] } else { 0.0 };
                let this = wlx[l] * step;
                let better = this > gain[l];
                best[l] = if better { step } else { best[l] };
                gain[l] = if better { this } else { gain[l] };
                inv[l] = inverse(step);
            }
        }
    }
    best
}

/// The error of sixteen groups with these steps.
#[inline(always)]
pub fn error<L: Levels, const N: usize>(g: &Groups<N>, step: &V) -> V {
    let (mut inv, mut e) = ([0.0; LANES], [0.0; LANES]);
    for l in 0..LANES {
        inv[l] = inverse(step[l]);
    }
    for i in 0..N {
        for l in 0..LANES {
            let x = g.x[i][l];
            let off = x - step[l] * L::level(x * inv[l]);
            e[l] += g.w[i][l] * off * off;
        }
    }
    e
}

/// The sixteen levels of IQ4_NL and IQ4_XS.
pub struct Iq4;

impl Levels for Iq4 {
    const LARGEST: f32 = -(iq4::LEVELS[0] as f32);
    #[inline(always)]
    fn level(y: f32) -> f32 {
        let mut v = iq4::LEVELS[0] as f32;
        let mut k = 0;
        while k < 15 {
            let (low, high) = (iq4::LEVELS[k] as f32, iq4::LEVELS[k + 1] as f32);
            v = if y > 0.5 * (low + high) { high } else { v };
            k += 1;
        }
        v
    }
    #[inline(always)]
    fn code(level: f32) -> u8 {
        IQ4_CODES[(level as i32 + 127) as usize & 255]
    }
}

/// The code of each level, from -127 on.
const IQ4_CODES: [u8; 256] = {
    let mut codes = [0; 256];
    let mut k = 0;
    while k < 16 {
        codes[(iq4::LEVELS[k] as i32 + 127) as usize] = k as u8;
        k += 1;
    }
    codes
};

/// Twice the values of e2m1.
pub struct E2m1;

impl Levels for E2m1 {
    const LARGEST: f32 = 12.0;
    #[inline(always)]
    fn level(y: f32) -> f32 {
        let a = y.abs();
        let mut v = 0.0;
        let mut k = 0;
        while k < 7 {
            let (low, high) = (mxfp4::LEVELS[k] as f32, mxfp4::LEVELS[k + 1] as f32);
            v = if a > 0.5 * (low + high) { high } else { v };
            k += 1;
        }
        v.copysign(y)
    }
    #[inline(always)]
    fn code(level: f32) -> u8 {
        const CODES: [u8; 16] = [0, 1, 2, 3, 4, 0, 5, 0, 6, 0, 0, 0, 7, 0, 0, 0];
        let sign = (level.to_bits() >> 31) as u8;
        CODES[level.abs() as usize & 15] | sign << 3
    }
}

/// -1, 0 and 1.
pub struct Ternary;

impl Levels for Ternary {
    const LARGEST: f32 = 1.0;
    #[inline(always)]
    fn level(y: f32) -> f32 {
        between(nearest(y), -1.0, 1.0)
    }
    #[inline(always)]
    fn code(level: f32) -> u8 {
        (level + 1.0) as i32 as u8
    }
}

/// -1, 0, 1 and 2.
pub struct TernaryAndTwo;

impl Levels for TernaryAndTwo {
    const LARGEST: f32 = 2.0;
    #[inline(always)]
    fn level(y: f32) -> f32 {
        between(nearest(y), -1.0, 2.0)
    }
    #[inline(always)]
    fn code(level: f32) -> u8 {
        (level + 1.0) as i32 as u8
    }
}
